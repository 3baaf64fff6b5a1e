"""Import items of other memories as entries: judge each alone and commit them in batches, one task per batch.

1. An item is checked like a fact (`operations.request.check_content`). Under `redact` its secrets are
   removed first.
2. Code chooses the path: the scope by type or content, the folder and the file as slugs of their names in the
   source. A source name that no path may have is rejected, and the report lists the item.
3. A text that an entry already has, or that was imported before, is known and not written again. A text in
   a pending review is reported as pending.
4. The final bytes are judged alone, so that a rejected item does not block the others.
5. Accepted items are committed in batches. Items that need a review wait in separate batches. Texts that
   address an agent wait in small batches, so that the owner can read them one by one.

I1 The operator sets the trust of an item, not the item. An export can lower it, never raise it.
I2 Nothing is replaced: each item is a new file or is not written.
I3 The id of an entry derives from its text and a key of this home. It is recognised even after an edit here.
I4 Every line of a source is in the memory, in a pending review, or listed in the report (`conservation.py`).

If a whole batch is rejected, for example by a quota, its halves are tried, down to the items at fault.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from types import MappingProxyType
from typing import Final

from muniment.agent.filing import PROJECT, USER, RuleWriter, read_cues
from muniment.cancelling import Cancel
from muniment.content.entry import (
    ENDS_KEY,
    EXPIRY_KEY,
    MAX_DESCRIPTION_CHARS,
    MAX_NAME_CHARS,
    EntryType,
    parse,
    shorten,
)
from muniment.content.expiry import compute_local_day, find_end, is_expired
from muniment.content.frontmatter import quote_scalar
from muniment.content.gates import GATES, check_text, clean_foreign_line, clean_line, encode
from muniment.content.secrets import redact_secrets
from muniment.content.titles import build_slug, derive_titles
from muniment.errors import (
    BadName,
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
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.exporting import judge_entry, lower_trust_claim
from muniment.operations.job import choose_task_id, create_commit_options, create_run, record_result
from muniment.operations.job_context import JobContext
from muniment.operations.request import check_content
from muniment.policy.grammar import check_creatable
from muniment.policy.tables import grant_readable, narrow_writes
from muniment.store.audit import timestamp
from muniment.store.commit import commit
from muniment.store.ledger import Run
from muniment.store.trust import ULID_RANDOM_BYTES, TrustDecision, encode_ulid, read_entry_id, stamp_entry
from muniment.store.upkeep import open_view
from muniment.transfer.conservation import ImportedText
from muniment.transfer.formats import SourceItem
from muniment.transfer.import_report import ImportRequest, ImportResult, report_item
from muniment.transfer.known_texts import ImportNames, KnownTexts
from muniment.transfer.source_text import strip_text_suffix

TASK_KIND: Final = "import"

BATCH_ITEMS: Final = 500
"""Items per commit: few undos for a large memory, and a few seconds under the lock."""

BATCH_BYTES: Final = 4_194_304

AGENT_TEXTS_PER_REVIEW: Final = 8
"""Items per review if their texts address an agent."""

MUNIMENT_FORMAT: Final = "muniment"
"""The format of exports. Their entries are imported byte for byte."""

INSTRUCTION_FILES: Final = "instruction-files"
"""The rule of the shipped policies that denies names of instruction files to entries."""

ACCEPTED, PENDING, ADDRESSES_AGENT = "plain", "waiting", "speaking"
"""Kinds of batches: accepted; waiting for the owner; waiting because the text addresses an agent."""

FOLDER_CHARS: Final = 40
"""Characters of the folder name of an item."""

KEYWORDS: Final = 12
KEYWORD_CHARS: Final = 40

SOURCE: Final = "source"
"""Provenance key of an entry: the format and item that it was imported from."""

SOURCE_CHARS: Final = 120

_SCOPES: Final[Mapping[str, Scope]] = {EntryType.USER: USER, EntryType.PROJECT: PROJECT}
_CONFLICT: Final = "another process wrote there meanwhile; import it again"


@dataclass(frozen=True, slots=True)
class _PreparedItem:
    """An item with the entry that it becomes.

    Attributes:
        content: the file without provenance; for an export the complete file.
        identity: id of the entry; empty if the content has one or needs none.
        final_bytes: the final bytes, as the task `task` would write them.
        source: the source in its provenance.
        reasons: why it needs a review by the owner.
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
        """Return the kind of batch that it is committed in."""
        if not self.reasons:
            return ACCEPTED
        return ADDRESSES_AGENT if any("addresses an agent" in each for each in self.reasons) else PENDING

    def finalize(self, run: Run) -> bytes:
        """Return the final bytes."""
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
    observe: Callable[[int], None] = lambda _: None,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> ImportResult:
    """Import items. Failures of single items are reported; a failure that stops the import is in `error`.

    Args:
        items: from an untrusted source.
        request: the options.
        context: the destination; the caller closes it.
        cancel: stops the import between two batches, or before a batch is written.
        observe: called with the number of additional items processed.
        files: the source files by name. The report lists their lines that were not imported.

    Cost: per item about 4 ms of CPU, and an fsync of its file.
    """
    started = time.monotonic()
    result = ImportResult(request, context.policy.label)
    imported_text = ImportedText()
    try:
        importer = _Import(request, context, result, cancel, observe, imported_text)
        for item in items:
            importer.process(item)
        importer.finish()
    except MunimentError as error:
        result.error = error
        if not request.dry_run:
            record_result(
                context, TASK_KIND, choose_task_id(TASK_KIND, None), error, decided_by=RuleWriter.name
            )
    _report_missing(result, imported_text, files, context)
    result.seconds = time.monotonic() - started
    return result


def _report_missing(
    result: ImportResult, imported_text: ImportedText, files: Mapping[str, bytes], context: JobContext
) -> None:
    """Add the lines to the report that are neither in the memory nor in a reported item."""
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
    """One import in progress."""

    def __init__(
        self,
        request: ImportRequest,
        context: JobContext,
        result: ImportResult,
        cancel: Cancel | None,
        observe: Callable[[int], None],
        imported_text: ImportedText,
    ) -> None:
        self._request, self._context, self._result = request, context, result
        self._cancel, self._observe, self._imported_text = cancel, observe, imported_text
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
        """Process one item."""
        self._context.start_deadline(self._cancel).check()
        if item.skipped:
            self._result.not_taken.append(report_item(item.name, reason=item.skipped))
            self._imported_text.add_reported(item.name, item.text)
            self._observe(1)
            return
        try:
            prepared = self._prepare(item)
        except (PathEscape, Refusal, ToolError, InvalidContent) as problem:
            self._reject([item], str(problem))
            return
        if prepared is None:
            self._observe(1)
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
        """Commit the remaining batches."""
        for kind in self._batches:
            self._flush(kind)

    def _prepare(self, item: SourceItem) -> _PreparedItem | None:
        """Run steps 1 to 4; return None if the item is known or already waits for a review."""
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
        """Create the entry of an item that is not an entry yet."""
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
            raise Refused("no scope here allows writes", rule="scopes", layer=self._policy.name)
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
        """Remove the secrets of a text if the policy redacts them; otherwise a later check rejects it."""
        return redact_secrets(text) if self._policy.content.secrets == "redact" else text

    def _shorten_label(self, text: str, limit: int) -> str:
        return shorten(clean_foreign_line(self._redact_if_required(text)), limit)

    def _choose_names(self, item: SourceItem, scope: Scope, title: str, text: str) -> tuple[str, str]:
        """Return the folder and stem of an entry: slugs of its file name in the source, or of its title.

        Raises:
            PathEscape, BadName, InvalidContent, Refused: the name leaves the scope, contains invisible
            characters,
                is reserved, or is that of an instruction file.
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
        stem = build_slug(strip_text_suffix(name), text)
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
        folder = build_slug(" ".join(folders), text)[:FOLDER_CHARS].strip("-") if folders else ""
        return folder, stem

    def _prepare_exported(self, item: SourceItem, entry: bytes) -> _PreparedItem | None:
        """Return an entry of an export at its original path."""
        path = canonicalise(item.path, self._context.policy.scopes)
        if path.scope not in {*self._context.roots, *self._request.scopes_to_create}:
            raise NotFound(f"scope {path.scope} not available; pass its --workspace DIR")
        trust = cap_trust(item, self._request.trust)
        data = lower_trust_claim(entry, trust)
        current = self._known_texts.read_or_none(path)
        if current == data or self._known_texts.has_text(item.text, trust, parse(data).expires):
            self._result.known.append(report_item(item.name, path.text))
            return None
        if current is not None or self._names.is_used(path):
            raise InvalidContent(f"{path.text} already exists with another text or trust")
        if self._known_texts.has_id(read_entry_id(parse(data))):
            raise InvalidContent("an entry with its id already exists with another text or trust")
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
        """Return the batch without items that a concurrent import has added; report those as known."""
        present_ids = self._known_texts.find_present_ids(each.identity for each in batch)
        known = [each for each in batch if each.identity in present_ids]
        self._result.known += [report_item(each.item.name) for each in known]
        self._observe(len(known))
        return [each for each in batch if each.identity not in present_ids]

    def _reject_conflicts(self, batch: Sequence[_PreparedItem]) -> None:
        """Reject the items whose paths another process wrote, even with the same text."""
        self._reject([each.item for each in self._drop_known(batch)], _CONFLICT)

    def _commit(self, batch: Sequence[_PreparedItem]) -> None:
        """Commit a batch, or its halves if it is rejected; reject items whose paths another process wrote."""
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
        """Try the halves of a rejected batch. Report the reason for a single item, or if too much waits."""
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
        """Return the key of a quota: one set of quotas of a scope, or all pending reviews."""
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
        self._observe(len(batch))

    def _reject(self, items: Sequence[SourceItem], reason: str) -> None:
        self._result.refused += [report_item(each.name, reason=reason) for each in items]
        for each in items:
            self._imported_text.add_reported(each.name, each.text, each.title, each.description, *each.parts)
        self._observe(len(items))


def _build_full_text(item: SourceItem) -> str:
    """Return the text of an item, with any title or description that is too long for the front matter.

    The description replaces an empty text.
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
    """Return the last day on which an item applies, as its text states it; empty if this is not certain.

    Without a date of the item only a full date is certain: it is unknown which Friday is meant.
    """
    today = date.fromisoformat(item.when) if item.when else compute_local_day()
    end = find_end(text, today)
    if end is None or (not item.when and find_end(text, today - timedelta(days=366)) != end):
        return ""
    return str(end)


def cap_trust(item: SourceItem, limit: Trust) -> Trust:
    """Return the trust of an exported entry: its claim, at most the trust that the operator allows (I1)."""
    return item.trust.cap(limit)
