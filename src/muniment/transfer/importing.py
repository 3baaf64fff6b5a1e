"""Import items of other memories as entries: judge each item alone, and commit them in batches.

Each batch is one task.

1. An item is checked like a fact (`operations.request.check_content`). If the policy redacts secrets, they
   are removed from the item first.
2. Code chooses the path of the entry. The scope depends on the type or the text of the item. The folder and
   the file are slugs of their names in the source. If that name is not allowed, the item is rejected.
3. If an entry has the same text already, or an earlier import added it, the item is known and is not written
   again. If the text is in a pending review, the item is reported as pending.
4. The final bytes of each entry are judged alone, so that a rejected item does not block the others.
5. Accepted items are committed in batches. Items that need a review wait in separate batches. Items whose
   texts address an agent wait in small batches, so that the owner can read the texts one by one.

I1 The operator sets the trust of an item; the item itself cannot. An export can only lower the trust.
I2 No file is replaced: each item becomes a new file, or it is not written.
I3 The id of an entry derives from the text of the item and a key of this home. The item is therefore
   recognised even if its entry was edited after the import.
I4 Every line of a source is in the memory, in a pending review, or listed in the report (`conservation.py`).

If a whole batch is rejected, for example by a quota, the halves of the batch are tried, down to single items.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from types import MappingProxyType
from typing import Final

from muniment.agent.filing import PROJECT, USER, RuleWriter, read_cues
from muniment.cancelling import Cancel
from muniment.content.entry import (
    ENDS_KEY,
    MAX_DESCRIPTION_CHARS,
    MAX_NAME_CHARS,
    EntryType,
    parse,
    shorten,
)
from muniment.content.expiry import compute_local_day, find_end, is_expired
from muniment.content.frontmatter import EXPIRY_KEY, quote_scalar
from muniment.content.gates import GATES, check_text, clean_foreign_line, clean_line, encode
from muniment.content.secrets import redact_secrets
from muniment.content.titles import build_slug, derive_titles, shorten_name
from muniment.errors import (
    BadName,
    Cancelled,
    InvalidContent,
    MunimentError,
    NotFound,
    PathEscape,
    PendingReview,
    QuotaExceeded,
    Refusal,
    Refused,
    StoreConflict,
    ToolError,
)
from muniment.events import track_progress
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.exporting import judge_entry, lower_trust_claim
from muniment.operations.job import choose_task_id, create_commit_options, create_run, record_result
from muniment.operations.job_context import JobContext
from muniment.operations.request import check_content
from muniment.policy.combine import grant_readable, narrow_writes
from muniment.policy.grammar import check_creatable
from muniment.store.audit import timestamp
from muniment.store.commit import commit
from muniment.store.handles import read_entry_id
from muniment.store.ledger import Run
from muniment.store.trust import ULID_RANDOM_BYTES, TrustDecision, encode_ulid, stamp_entry
from muniment.store.upkeep import open_view
from muniment.transfer.conservation import ImportedText
from muniment.transfer.formats import SourceItem
from muniment.transfer.import_report import ImportRequest, ImportResult, report_item
from muniment.transfer.known_texts import ImportNames, KnownTexts
from muniment.transfer.source_text import strip_text_suffix

TASK_KIND: Final = "import"

BATCH_ITEMS: Final = 500
"""Maximum number of items per commit: few undos for a large import, and short locks."""

BATCH_BYTES: Final = 4_194_304

AGENT_TEXTS_PER_REVIEW: Final = 8
"""Maximum number of items per review if their texts address an agent."""

MUNIMENT_FORMAT: Final = "muniment"
"""Name of the format of `muniment export`, whose entries are imported byte for byte."""

INSTRUCTION_FILES: Final = "instruction-files"
"""The rule of the shipped policies that denies names of instruction files to entries."""

ACCEPTED, PENDING, ADDRESSES_AGENT = "plain", "waiting", "speaking"
"""Kinds of batches: accepted; waiting for the owner; waiting because the text addresses an agent."""

FOLDER_CHARS: Final = 40
"""Maximum number of characters in the folder name that an item gets."""

KEYWORDS: Final = 12
KEYWORD_CHARS: Final = 40

SOURCE: Final = "source"
"""Provenance key of an entry: the format and the item that the entry was imported from."""

SOURCE_CHARS: Final = 120

_SCOPES: Final[Mapping[str, Scope]] = {EntryType.USER: USER, EntryType.PROJECT: PROJECT}
_CONFLICT: Final = "another process changed this path meanwhile; import the item again"


@dataclass(frozen=True, slots=True)
class _PreparedItem:
    """An item with the entry that it becomes.

    Attributes:
        path: the path of the entry.
        content: the file of the entry without provenance; for an item of an export, the complete file.
        identity: the id of the entry; empty for an item of an export, which gets no new provenance.
        source: the value of `source` in the provenance of the entry.
        final_bytes: the file as the task `task` would write it.
        reasons: why the owner must review the item; empty if no review is needed.
    """

    item: SourceItem
    path: CanonicalPath
    content: bytes
    trust: Trust
    identity: str = ""
    source: str = ""
    final_bytes: bytes = b""
    task: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def batch_kind(self) -> str:
        """Return the kind of batch for this item: `ACCEPTED`, `PENDING` or `ADDRESSES_AGENT`."""
        if not self.reasons:
            return ACCEPTED
        return ADDRESSES_AGENT if any("addresses an agent" in each for each in self.reasons) else PENDING

    def finalize(self, run: Run) -> bytes:
        """Return the bytes of the entry as `run` writes them."""
        if not self.identity:
            return self.content
        if run.task == self.task:
            return self.final_bytes
        run = replace(run, trust=self.trust)
        return stamp_entry(self.content, None, self.path, run, self.identity, relations={SOURCE: self.source})


def import_items(
    items: Sequence[SourceItem],
    request: ImportRequest,
    context: JobContext,
    *,
    cancel: Cancel | None = None,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> ImportResult:
    """Import items of another memory as entries, and return the outcome of each item.

    The failure of one item does not stop the import. An error that stops the import is not raised: it is in
    `ImportResult.error`.

    Args:
        items: the items of an untrusted source.
        request: the options.
        context: the context of the destination memory; the caller closes it.
        cancel: stops the import before the next item, or before a batch is written.
        files: the source files by name. The report lists their lines that were not imported.

    Cost: per item about 4 ms of CPU, and an fsync of its file.
    """
    started = time.monotonic()
    result = ImportResult(request, context.policy.label)
    imported_text = ImportedText()
    try:
        with track_progress("importing", unit="items", total=len(items)) as progress:
            importer = _Import(request, context, result, cancel, imported_text)
            for item in items:
                importer.process(item)
                progress.done += 1
            importer.finish()
    except MunimentError as error:
        is_partial = isinstance(error, Cancelled) and bool(result.tasks)
        result.error = Cancelled("the listed tasks were written, the rest was not") if is_partial else error
        if not request.dry_run:
            record_result(
                context, TASK_KIND, choose_task_id(TASK_KIND, None), error, decided_by=RuleWriter.name
            )
    with track_progress("comparing the source with the memory"):
        _report_missing(result, imported_text, files, context)
    result.seconds = time.monotonic() - started
    return result


def _report_missing(
    result: ImportResult, imported_text: ImportedText, files: Mapping[str, bytes], context: JobContext
) -> None:
    """Add to the report the source lines that are neither in the memory nor in a reported item."""
    if result.request.format == MUNIMENT_FORMAT:
        return
    named = {each.name for each in (*result.refused, *result.not_taken) if not each.lines}
    missing = list(imported_text.find_missing(files, named))
    if missing and result.known:
        for scope, root in context.roots.items():
            for row in open_view(context.state, root, context.policy).entries():
                with suppress(PathEscape, ToolError):  # A file that cannot be read has no lines to compare.
                    imported_text.add_entry(context.read_file(CanonicalPath(scope, row.rel)))
        missing = list(imported_text.find_missing(files, named))
    result.not_taken += [report_item(each.name, reason=each.reason, lines=each.lines) for each in missing]


class _Import:
    """One import in progress: the batches that are not committed yet, and the names and texts in use."""

    def __init__(
        self,
        request: ImportRequest,
        context: JobContext,
        result: ImportResult,
        cancel: Cancel | None,
        imported_text: ImportedText,
    ) -> None:
        self._request, self._context, self._result = request, context, result
        self._cancel, self._imported_text = cancel, imported_text
        chosen = context.select_scopes(None if request.scope in request.scopes_to_create else request.scope)
        self._policy = narrow = context.policy
        if request.format == MUNIMENT_FORMAT:
            self._policy = grant_readable(context.policy)
        if request.scope is None:
            chosen = (*chosen, *request.scopes_to_create)
        else:
            chosen = (Scope(request.scope),)
            self._policy, narrow = (narrow_writes(each, chosen[0]) for each in (self._policy, narrow))
        self._narrow_judge = PolicyEvaluator(narrow)
        self._judge = PolicyEvaluator(self._policy)
        self._writable = [scope for scope in chosen if self._judge.may_grant_in(Verb.CREATE, scope)]
        self._known_texts, self._names = KnownTexts(context), ImportNames(context)
        self._batches: dict[str, list[_PreparedItem]] = {ACCEPTED: [], PENDING: [], ADDRESSES_AGENT: []}
        self._bytes: Counter[str] = Counter()
        self._full_quotas: dict[Hashable, str] = {}
        self._next_run = self._create_run()

    def process(self, item: SourceItem) -> None:
        """Prepare one item for its batch, or report why not; commit the batch if it is full."""
        self._context.start_deadline(self._cancel).check()
        if item.skipped:
            self._result.not_taken.append(report_item(item.name, reason=item.skipped))
            self._imported_text.add_reported(item.name, item.text)
            return
        try:
            prepared = self._prepare(item)
        except (PathEscape, Refusal, ToolError, InvalidContent) as problem:
            self._reject([item], str(problem))
            return
        if prepared is None:
            return
        batch = self._batches[prepared.batch_kind]
        batch.append(prepared)
        limit = AGENT_TEXTS_PER_REVIEW if prepared.batch_kind == ADDRESSES_AGENT else BATCH_ITEMS
        self._bytes[prepared.batch_kind] += len(prepared.content)
        if len(batch) >= limit or self._bytes[prepared.batch_kind] > BATCH_BYTES:
            self._flush(prepared.batch_kind)

    def _count_text(self, item: SourceItem, prepared: _PreparedItem) -> None:
        if item.entry is None:
            self._imported_text.add_entry(prepared.final_bytes)
            flat = clean_line(parse(prepared.final_bytes).body)
            self._imported_text.add(*(part for part in item.parts if clean_line(part) in flat))

    def finish(self) -> None:
        """Commit the items that are still in batches."""
        for kind in self._batches:
            self._flush(kind)

    def _prepare(self, item: SourceItem) -> _PreparedItem | None:
        """Check an item and build its entry (steps 1 to 4 of the module docstring).

        Return None if the memory already has the item, or if it already waits for a review.
        """
        if item.problem:
            raise InvalidContent(item.problem)
        prepared = self._prepare_new(item) if item.entry is None else self._prepare_exported(item, item.entry)
        if prepared is None:
            return None
        if (review := self._known_texts.find_pending_review(prepared.item.text)) is not None:
            self._imported_text.add(prepared.item.text)
            self._result.held.append(
                report_item(item.name, prepared.path.text, "already waits for a review", review)
            )
            return None
        path, final = prepared.path, prepared.finalize(self._next_run)
        reasons = judge_entry(path, final, prepared.trust, self._judge, self._policy)
        if reasons:  # An approval is judged by the policy alone, without this grant.
            self._narrow_judge.require(Verb.CREATE, path)
        prepared = replace(prepared, reasons=reasons, final_bytes=final, task=self._next_run.task)
        if (problem := self._full_quotas.get(self._get_quota_key(prepared))) is not None:
            raise QuotaExceeded(problem)
        self._names.reserve(path)
        if item.entry is None:
            self._known_texts.add_text(prepared.item.text)
        return prepared

    def _prepare_new(self, item: SourceItem) -> _PreparedItem | None:
        """Return the new entry for an item that is not from an export; None if the memory already has it."""
        text = check_content(self._redact_if_required(_build_full_text(item)))
        if item.expires and is_expired(item.expires, timestamp()):
            raise InvalidContent(f"expired on {item.expires[:10]}")
        identity = encode_ulid(0, self._context.state.mac(b"import", text.encode())[:ULID_RANDOM_BYTES])
        if self._known_texts.is_known(identity, text, self._request.trust, item.expires or None):
            self._result.known.append(report_item(item.name))
            return None
        titles, reading = derive_titles(text), read_cues(text)
        kind = item.type or reading.type
        scopes = (_SCOPES.get(kind, reading.scope), USER, PROJECT, *self._writable)
        scope = next((each for each in scopes if each in self._writable), None)
        if scope is None:
            raise Refused("no available scope allows new entries", rule="scopes", layer=self._policy.name)
        title = self._shorten_label(item.title, MAX_NAME_CHARS) or titles.name
        labels = {"name": title, "description": self._shorten_label(item.description, MAX_DESCRIPTION_CHARS)}
        labels["description"] = labels["description"] or titles.description
        labels |= {"type": kind} | ({EXPIRY_KEY: item.expires} if item.expires else {})
        labels |= (
            {ENDS_KEY: ends} if not item.expires and (ends := item.ends or _find_end_date(item, text)) else {}
        )
        keywords = [self._shorten_label(each, KEYWORD_CHARS) for each in item.keywords[:KEYWORDS]]
        front = [f"{key}: {quote_scalar(value)}" for key, value in labels.items()]
        front += (
            [f"keywords: [{', '.join(map(quote_scalar, filter(None, keywords)))}]"] if any(keywords) else []
        )
        folder, stem = self._choose_names(item, scope, title, text)
        source = self._shorten_label(f"{self._request.format}: {item.name}", SOURCE_CHARS)
        return _PreparedItem(
            replace(item, text=text),
            self._names.find_free_path(scope, folder if item.path else reading.topic, stem),
            encode("\n".join(["---", *front, "---", f"{text}\n"])),
            self._request.trust,
            identity,
            f"{source}, {item.when}" if item.when else source,
        )

    def _redact_if_required(self, text: str) -> str:
        """Return a text, without its secrets if the policy redacts them.

        Otherwise a later check rejects a text with secrets.
        """
        return redact_secrets(text) if self._policy.content.secrets == "redact" else text

    def _shorten_label(self, text: str, limit: int) -> str:
        return shorten(clean_foreign_line(self._redact_if_required(text)), limit)

    def _choose_names(self, item: SourceItem, scope: Scope, title: str, text: str) -> tuple[str, str]:
        """Return the folder and the file name (without suffix) for an entry, from its path in the source.

        Both are slugs. If the item has no path, the folder is empty, and the title gives the file name.

        Raises:
            PathEscape, BadName, InvalidContent, Refused: the path in the source leaves the scope, resembles a
                reserved name, contains invisible characters, or is denied by the policy.
        """
        if not item.path:
            return "", build_slug(title, text)
        *folders, name = item.path.split("/")
        try:
            check_text(item.path, GATES)
        except ToolError:
            raise InvalidContent("the name contains invisible characters") from None
        plain = strip_text_suffix(item.path) + FILE_SUFFIX
        try:
            source_path = CanonicalPath(scope, RelPath(plain))
        except BadName:
            source_path = None  # For example a question mark, or too many folders: slugs have neither.
        stem = shorten_name(strip_text_suffix(name), text)
        if source_path is not None:
            check_creatable(source_path)
            visible_name = plain.rpartition("/")[2].lstrip(
                "."
            )  # A hidden file gets a name that is not hidden.
            try:
                self._judge.require(Verb.CREATE, CanonicalPath(scope, RelPath(visible_name)))
            except Refused as denied:
                if denied.rule != INSTRUCTION_FILES:
                    raise
                # The text is allowed, but not under the name of an instruction file.
                stem = build_slug(title, text)
        folder = shorten_name(" ".join(folders), text)[:FOLDER_CHARS].strip("-") if folders else ""
        return folder, stem

    def _prepare_exported(self, item: SourceItem, entry: bytes) -> _PreparedItem | None:
        """Return the item of an export at its original path, or None if the memory already has it."""
        path = canonicalise(item.path, self._context.policy.scopes)
        if path.scope not in {*self._context.roots, *self._request.scopes_to_create}:
            raise NotFound(f"scope {path.scope} not available; pass --workspace DIR of its project")
        trust = cap_trust(item, self._request.trust)
        data = lower_trust_claim(entry, trust)
        current = self._known_texts.read_or_none(path)
        if current == data or self._known_texts.has_text(item.text, trust, parse(data).expires):
            self._result.known.append(report_item(item.name, path.text))
            return None
        if current is not None or self._names.is_used(path):
            raise InvalidContent(f"{path.text} already exists with another text or trust")
        if self._known_texts.has_id(read_entry_id(parse(data))):
            raise InvalidContent("another entry with the same id already exists, with another text or trust")
        return _PreparedItem(item, path, data, trust)

    # Step 5.

    def _create_run(self) -> Run:
        return create_run(
            self._context, TASK_KIND, choose_task_id(TASK_KIND, None), self._request.trust, RuleWriter.name
        )

    def _flush(self, kind: str) -> None:
        batch, self._batches[kind], self._bytes[kind] = self._batches[kind], [], 0
        batch = self._drop_known(batch)
        if new := [each for each in batch if each.path.scope in self._request.scopes_to_create]:
            self._report_imported(new, ())
        if batch := [each for each in batch if each.path.scope not in self._request.scopes_to_create]:
            self._commit(batch)

    def _drop_known(self, batch: Sequence[_PreparedItem]) -> list[_PreparedItem]:
        """Return the items that no concurrent import has added meanwhile; report the other items as known."""
        present_ids = self._known_texts.find_present_ids(each.identity for each in batch)
        known = [each for each in batch if each.identity in present_ids]
        self._result.known += [report_item(each.item.name) for each in known]
        return [each for each in batch if each.identity not in present_ids]

    def _reject_conflicts(self, batch: Sequence[_PreparedItem]) -> None:
        """Reject the items because another process wrote to their paths.

        Items that a concurrent import added are reported as known instead.
        """
        self._reject([each.item for each in self._drop_known(batch)], _CONFLICT)

    def _commit(self, batch: Sequence[_PreparedItem]) -> None:
        """Commit a batch. If the batch is rejected, try its halves.

        Items at whose paths another process wrote a file meanwhile are rejected.
        """
        context, run, by_path = self._context, self._next_run, {each.path: each for each in batch}
        self._next_run = self._create_run()
        options = replace(
            create_commit_options(
                context,
                run,
                self._context.start_deadline(self._cancel),
                lambda draft, _: TrustDecision(by_path[draft.path].trust),
            ),
            policy=self._policy,
            stamp=lambda _, __, path, by: by_path[path].finalize(by),
            dry_run=self._request.dry_run,
        )
        parts = [ChangeSet((FileChange(path, None, each.content),)) for path, each in by_path.items()]
        try:
            done = commit(parts, options)
        except PendingReview as pending:
            self._report_pending(batch, pending.review_id)
        except StoreConflict:
            self._reject_conflicts(batch)
        except (PathEscape, Refusal, ToolError) as problem:
            self._split_failed_batch(batch, problem)
        else:
            committed = {change.path for change in done.changes}
            self._reject_conflicts([each for path, each in by_path.items() if path.text not in committed])
            if not self._request.dry_run:
                self._result.tasks.append(run.task)
            self._report_imported(
                [each for path, each in by_path.items() if path.text in committed], done.notes
            )

    def _split_failed_batch(self, batch: Sequence[_PreparedItem], problem: MunimentError) -> None:
        """Try the halves of a rejected batch.

        If the batch has only one item, or if no more reviews may wait, reject the items of the batch.
        """
        is_full, kind = isinstance(problem, QuotaExceeded), batch[0].batch_kind
        if len(batch) > 1 and not (is_full and kind != ACCEPTED):
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                for each in half:
                    if (reason := self._full_quotas.get(self._get_quota_key(each))) is not None:
                        self._reject([each.item], reason)
                if rest := [each for each in half if self._get_quota_key(each) not in self._full_quotas]:
                    self._commit(rest)
            return
        if is_full:
            self._full_quotas[self._get_quota_key(batch[0])] = str(problem)
        self._reject([each.item for each in batch], str(problem))

    def _get_quota_key(self, prepared: _PreparedItem) -> Hashable:
        """Return the key of the quotas that limit an item: those of its path, or that of pending reviews."""
        if prepared.batch_kind != ACCEPTED:
            return PENDING
        return prepared.path.scope, self._judge.quotas_for(prepared.path)

    def _report_imported(self, batch: Sequence[_PreparedItem], notes: Sequence[str]) -> None:
        if batch[0].batch_kind != ACCEPTED:  # Only in a dry run.
            self._report_pending(batch, "")
            return
        self._result.imported += [report_item(each.item.name, each.path.text) for each in batch]
        self._result.notes += [note for note in notes if note not in self._result.notes]
        self._record_batch(batch)

    def _report_pending(self, batch: Sequence[_PreparedItem], review: str) -> None:
        self._result.held += [
            report_item(each.item.name, each.path.text, "; ".join(each.reasons), review) for each in batch
        ]
        self._record_batch(batch)

    def _record_batch(self, batch: Sequence[_PreparedItem]) -> None:
        for each in batch:
            self._count_text(each.item, each)
            self._result.lowered += each.item.entry is not None and each.trust is not each.item.trust
            self._known_texts.add_imported_path(each.path)

    def _reject(self, items: Sequence[SourceItem], reason: str) -> None:
        self._result.refused += [report_item(each.name, reason=reason) for each in items]
        for each in items:
            self._imported_text.add_reported(each.name, each.text, each.title, each.description, *each.parts)


def _build_full_text(item: SourceItem) -> str:
    """Return the text of an item, preceded by a title or description that is too long for the front matter.

    If the text is empty, return the description.
    """
    text, flat = item.text.strip(), clean_line(item.text)
    if not text:
        return item.description
    prefix: list[str] = []
    if len(clean_line(item.title)) > MAX_NAME_CHARS and clean_line(item.title) not in flat:
        prefix.append(f"# {clean_line(item.title)}")
    if len(clean_line(item.description)) > MAX_DESCRIPTION_CHARS and clean_line(item.description) not in flat:
        prefix.append(item.description)
    return "\n\n".join([*prefix, text])


def _find_end_date(item: SourceItem, text: str) -> str:
    """Return the last day on which a fact applies, as its text states it; empty if the day is not certain.

    If the item has no date, only a full date in the text is certain: "until Friday" can mean any Friday.
    """
    today = date.fromisoformat(item.when) if item.when else compute_local_day()
    end = find_end(text, today)
    if end is None or (not item.when and find_end(text, today - timedelta(days=366)) != end):
        return ""
    return str(end)


def cap_trust(item: SourceItem, limit: Trust) -> Trust:
    """Return the trust that an exported entry claims, but at most `limit`, which the operator sets."""
    return item.trust.cap(limit)
