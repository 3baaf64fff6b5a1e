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

from muniment.agent.filing import PROJECT, USER, RuleWriter, read
from muniment.cancelling import Cancel
from muniment.content.entry import (
    ENDS_KEY,
    EXPIRY_KEY,
    MAX_DESCRIPTION_CHARS,
    MAX_NAME_CHARS,
    EntryType,
    parse,
    shortened,
)
from muniment.content.expiry import find_end, is_expired, local_day
from muniment.content.frontmatter import written
from muniment.content.gates import GATES, check_text, encode, on_one_line, one_line
from muniment.content.secrets import redacted
from muniment.content.titles import slug, titles_of
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
from muniment.kernel.decide import Judge
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.exporting import as_exported, judge_entry
from muniment.operations.job import id_of_task, put_on_record, run_of, terms_of
from muniment.operations.place import Place
from muniment.operations.request import check_content
from muniment.policy.grammar import check_creatable
from muniment.policy.tables import grant_readable, narrow_writes
from muniment.store.audit import timestamp
from muniment.store.commit import commit
from muniment.store.ledger import Run
from muniment.store.trust import ULID_RANDOM_BYTES, Ruling, entry_id, stamp, ulid
from muniment.store.upkeep import view_of
from muniment.transfer.conservation import TakenText
from muniment.transfer.formats import SourceItem
from muniment.transfer.import_report import ImportRequest, ImportResult, report_item
from muniment.transfer.known_texts import ImportNames, KnownTexts
from muniment.transfer.source_text import without_text_suffix

KIND: Final = "import"

BATCH: Final = 500
"""Items per commit: few undos for a large memory, and a few seconds under the lock."""

BATCH_BYTES: Final = 4_194_304

SPOKEN: Final = 8
"""Items per review if their texts address an agent."""

EXPORTS: Final = "muniment"
"""The format of exports. Their entries are imported byte for byte."""

INSTRUCTION_FILES: Final = "instruction-files"
"""The rule of the shipped policies that denies names of instruction files to entries."""

PLAIN, WAITING, SPEAKING = "plain", "waiting", "speaking"
"""Kinds of batches: accepted; waiting for the owner; waiting because the text addresses an agent."""

FOLDER_CHARS: Final = 40
"""Characters of the folder name of an item."""

KEYWORDS: Final = 12
KEYWORD_CHARS: Final = 40

SOURCE: Final = "source"
"""Provenance key of an entry: the format and item that it was imported from."""

SOURCE_CHARS: Final = 120

_SCOPES: Final[Mapping[str, Scope]] = {EntryType.USER: USER, EntryType.PROJECT: PROJECT}
_QUICKER: Final = "another process wrote there meanwhile; import it again"


@dataclass(frozen=True, slots=True)
class _Filed:
    """An item with the entry that it becomes.

    Attributes:
        content: the file without provenance; for an export the complete file.
        identity: id of the entry; empty if the content has one or needs none.
        judged: the final bytes, as the task `under` would write them.
        source: the source in its provenance.
        reasons: why it needs a review by the owner.
    """

    item: SourceItem
    path: CanonicalPath
    content: bytes
    trust: Trust
    identity: str = ""
    source: str = ""
    judged: bytes = b""
    under: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def batch(self) -> str:
        """Return the kind of batch that it is committed in."""
        if not self.reasons:
            return PLAIN
        return SPEAKING if any("addresses an agent" in each for each in self.reasons) else WAITING

    def stamped(self, run: Run) -> bytes:
        """Return the final bytes."""
        if not self.identity:
            return self.content
        if run.task == self.under:
            return self.judged
        run = replace(run, trust=self.trust)
        return stamp(self.content, None, self.path, run, self.identity, relations={SOURCE: self.source})


def bring_in(
    items: Sequence[SourceItem],
    request: ImportRequest,
    place: Place,
    *,
    cancel: Cancel | None = None,
    observe: Callable[[int], None] = lambda _: None,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> ImportResult:
    """Import items. Failures of single items are reported; a failure that stops the import is in `error`.

    Args:
        items: from an untrusted source.
        request: the options.
        place: the destination; the caller closes it.
        cancel: stops the import between two batches, or before a batch is written.
        observe: called with the number of additional items processed.
        files: the source files by name. The report lists their lines that were not imported.

    Cost: per item about 4 ms of CPU, and an fsync of its file.
    """
    began = time.monotonic()
    result = ImportResult(request, place.policy.label)
    taken = TakenText()
    try:
        work = _Import(request, place, result, cancel, observe, taken)
        for item in items:
            work.take(item)
        work.finish()
    except MunimentError as error:
        result.error = error
        if not request.dry_run:
            put_on_record(place, KIND, id_of_task(KIND, None), error, decided_by=RuleWriter.name)
    _report_missing(result, taken, files, place)
    result.seconds = time.monotonic() - began
    return result


def _report_missing(result: ImportResult, taken: TakenText, files: Mapping[str, bytes], place: Place) -> None:
    """Add the lines to the report that are neither in the memory nor in a reported item."""
    if result.request.format == EXPORTS:
        return
    named = {each.name for each in (*result.refused, *result.not_taken) if not each.lines}
    missing = list(taken.missing(files, named))
    if missing and result.known:
        for scope, root in place.roots.items():
            for row in view_of(place.state, root, place.policy).entries():
                with suppress(PathEscape, ToolError):  # A file that cannot be read has no lines to compare.
                    taken.add_entry(place.read(CanonicalPath(scope, row.rel)))
        missing = list(taken.missing(files, named))
    result.not_taken += [report_item(each.name, reason=each.reason, lines=each.lines) for each in missing]


class _Import:
    """One import in progress."""

    def __init__(
        self,
        request: ImportRequest,
        place: Place,
        result: ImportResult,
        cancel: Cancel | None,
        observe: Callable[[int], None],
        taken: TakenText,
    ) -> None:
        self._request, self._place, self._result = request, place, result
        self._cancel, self._observe, self._taken = cancel, observe, taken
        chosen = place.chosen(None if request.scope in request.to_make else request.scope)
        self._policy = narrow = place.policy
        if request.format == EXPORTS:
            self._policy = grant_readable(place.policy)
        if request.scope is None:
            chosen = (*chosen, *request.to_make)
        else:
            chosen = (Scope(request.scope),)
            self._policy, narrow = (narrow_writes(each, chosen[0]) for each in (self._policy, narrow))
        self._narrow_judge = Judge(narrow)
        self._judge = Judge(self._policy)
        self._writable = [scope for scope in chosen if self._judge.reaches(Verb.CREATE, scope)]
        self._texts, self._names = KnownTexts(place), ImportNames(place)
        self._batches: dict[str, list[_Filed]] = {PLAIN: [], WAITING: [], SPEAKING: []}
        self._bytes: Counter[str] = Counter()
        self._full: dict[Hashable, str] = {}
        self._next = self._run()

    def take(self, item: SourceItem) -> None:
        """Process one item."""
        self._place.patience(self._cancel).check()
        if item.skipped:
            self._result.not_taken.append(report_item(item.name, reason=item.skipped))
            self._taken.add_named(item.name, item.text)
            self._observe(1)
            return
        try:
            filed = self._filed(item)
        except (PathEscape, Refusal, ToolError, InvalidContent) as problem:
            self._refuse([item], str(problem))
            return
        if filed is None:
            self._observe(1)
            return
        batch = self._batches[filed.batch]
        batch.append(filed)
        most = SPOKEN if filed.batch == SPEAKING else BATCH
        self._bytes[filed.batch] += len(filed.content)
        if len(batch) >= most or self._bytes[filed.batch] > BATCH_BYTES:
            self._flush(filed.batch)

    def _take_text(self, item: SourceItem, filed: _Filed) -> None:
        if item.entry is None:
            self._taken.add_entry(filed.judged)
            flat = one_line(parse(filed.judged).body)
            self._taken.add(*(part for part in item.parts if one_line(part) in flat))

    def finish(self) -> None:
        """Commit the remaining batches."""
        for kind in self._batches:
            self._flush(kind)

    def _filed(self, item: SourceItem) -> _Filed | None:
        """Run steps 1 to 4; return None if the item is known or already waits for a review."""
        if item.problem:
            raise InvalidContent(item.problem)
        filed = self._made(item) if item.entry is None else self._brought(item, item.entry)
        if filed is None:
            return None
        if (review := self._texts.waiting(filed.item.text)) is not None:
            self._taken.add(filed.item.text)
            self._result.held.append(
                report_item(item.name, filed.path.text, "already waits for a review", review)
            )
            return None
        path, final = filed.path, filed.stamped(self._next)
        reasons = judge_entry(path, final, filed.trust, self._judge, self._policy)
        if reasons:  # An approval is judged by the policy alone, without this grant.
            self._narrow_judge.require(Verb.CREATE, path)
        filed = replace(filed, reasons=reasons, judged=final, under=self._next.task)
        if (problem := self._full.get(self._room_of(filed))) is not None:
            raise QuotaExceeded(problem)
        self._names.take(path)
        if item.entry is None:
            self._texts.take(filed.item.text)
        return filed

    def _made(self, item: SourceItem) -> _Filed | None:
        """Create the entry of an item that is not an entry yet."""
        text = check_content(self._clean(_whole_text(item)))
        if item.expires and is_expired(item.expires, timestamp()):
            raise InvalidContent(f"expired on {item.expires[:10]}")
        identity = ulid(0, self._place.state.mac(b"import", text.encode())[:ULID_RANDOM_BYTES])
        if self._texts.knows(identity, text, self._request.trust, item.expires or None):
            self._result.known.append(report_item(item.name))
            return None
        made, reading = titles_of(text), read(text)
        kind = item.type or reading.type
        wanted = (_SCOPES.get(kind, reading.scope), USER, PROJECT, *self._writable)
        scope = next((each for each in wanted if each in self._writable), None)
        if scope is None:
            raise Refused("no scope here allows writes", rule="scopes", layer=self._policy.name)
        title = self._label(item.title, MAX_NAME_CHARS) or made.name
        labels = {"name": title, "description": self._label(item.description, MAX_DESCRIPTION_CHARS)}
        labels["description"] = labels["description"] or made.description
        labels |= {"type": kind} | ({EXPIRY_KEY: item.expires} if item.expires else {})
        labels |= {ENDS_KEY: ends} if not item.expires and (ends := item.ends or _end_in(item, text)) else {}
        words = [self._label(each, KEYWORD_CHARS) for each in item.keywords[:KEYWORDS]]
        front = [f"{key}: {written(value)}" for key, value in labels.items()]
        front += [f"keywords: [{', '.join(map(written, filter(None, words)))}]"] if any(words) else []
        folder, stem = self._named(item, scope, title, text)
        source = self._label(f"{self._request.format}: {item.name}", SOURCE_CHARS)
        return _Filed(
            replace(item, text=text),
            self._names.free(scope, folder if item.path else reading.topic, stem),
            encode("\n".join(["---", *front, "---", f"{text}\n"])),
            self._request.trust,
            identity,
            f"{source}, {item.when}" if item.when else source,
        )

    def _clean(self, text: str) -> str:
        """Remove the secrets of a text if the policy redacts them; otherwise a later check rejects it."""
        return redacted(text) if self._policy.content.secrets == "redact" else text

    def _label(self, text: str, most: int) -> str:
        return shortened(on_one_line(self._clean(text)), most)

    def _named(self, item: SourceItem, scope: Scope, title: str, text: str) -> tuple[str, str]:
        """Return the folder and stem of an entry: slugs of its file name in the source, or of its title.

        Raises:
            PathEscape, BadName, InvalidContent, Refused: the name leaves the scope, contains invisible
            characters,
                is reserved, or is that of an instruction file.
        """
        if not item.path:
            return "", slug(title, text)
        *folders, name = item.path.split("/")
        try:
            check_text(item.path, GATES)
        except ToolError:
            raise InvalidContent("the name contains invisible characters") from None
        plain = without_text_suffix(item.path) + FILE_SUFFIX
        try:
            whole = CanonicalPath(scope, RelPath(plain))
        except BadName:
            whole = None  # For example a question mark, or too many folders: slugs have neither.
        stem = slug(without_text_suffix(name), text)
        if whole is not None:
            check_creatable(whole)
            shown = plain.rpartition("/")[2].lstrip(".")  # A hidden file gets a name that is not hidden.
            try:
                self._judge.require(Verb.CREATE, CanonicalPath(scope, RelPath(shown)))
            except Refused as denied:
                if denied.rule != INSTRUCTION_FILES:
                    raise
                # The text is allowed, but not under the name of an instruction file.
                stem = slug(title, text)
        folder = slug(" ".join(folders), text)[:FOLDER_CHARS].strip("-") if folders else ""
        return folder, stem

    def _brought(self, item: SourceItem, entry: bytes) -> _Filed | None:
        """Return an entry of an export at its original path."""
        path = canonicalise(item.path, self._place.policy.scopes)
        if path.scope not in {*self._place.roots, *self._request.to_make}:
            raise NotFound(f"scope {path.scope} not available; pass its --workspace DIR")
        trust = trusted(item, self._request.trust)
        data = as_exported(entry, trust)
        standing = self._texts.at(path)
        if standing == data or self._texts.is_said(item.text, trust, parse(data).expires):
            self._result.known.append(report_item(item.name, path.text))
            return None
        if standing is not None or self._names.has(path):
            raise InvalidContent(f"{path.text} already exists with another text or trust")
        if self._texts.has_id(entry_id(parse(data))):
            raise InvalidContent("an entry with its id already exists with another text or trust")
        return _Filed(item, path, data, trust)

    # Step 5.

    def _run(self) -> Run:
        return run_of(self._place, KIND, id_of_task(KIND, None), self._request.trust, RuleWriter.name)

    def _flush(self, kind: str) -> None:
        batch, self._batches[kind], self._bytes[kind] = self._batches[kind], [], 0
        batch = self._still_new(batch)
        if new := [each for each in batch if each.path.scope in self._request.to_make]:
            self._done(new, ())
        if batch := [each for each in batch if each.path.scope not in self._request.to_make]:
            self._commit(batch)

    def _still_new(self, batch: Sequence[_Filed]) -> list[_Filed]:
        """Return the batch without items that a concurrent import has added; report those as known."""
        came = self._texts.came(each.identity for each in batch)
        known = [each for each in batch if each.identity in came]
        self._result.known += [report_item(each.item.name) for each in known]
        self._observe(len(known))
        return [each for each in batch if each.identity not in came]

    def _was_quicker(self, batch: Sequence[_Filed]) -> None:
        """Reject the items whose paths another process wrote, even with the same text."""
        self._refuse([each.item for each in self._still_new(batch)], _QUICKER)

    def _commit(self, batch: Sequence[_Filed]) -> None:
        """Commit a batch, or its halves if it is rejected; reject items whose paths another process wrote."""
        place, run, of = self._place, self._next, {each.path: each for each in batch}
        self._next = self._run()
        terms = replace(
            terms_of(
                place, run, self._place.patience(self._cancel), lambda draft, _: Ruling(of[draft.path].trust)
            ),
            policy=self._policy,
            stamp=lambda _, __, path, by: of[path].stamped(by),
            dry_run=self._request.dry_run,
        )
        parts = [ChangeSet((FileChange(path, None, each.content),)) for path, each in of.items()]
        try:
            done = commit(parts, terms)
        except PendingReview as waits:
            self._held(batch, waits.review_id)
        except StoreConflict:
            self._was_quicker(batch)
        except (PathEscape, Refusal, ToolError) as problem:
            self._blame(batch, problem)
        else:
            landed = {change.path for change in done.changes}
            self._was_quicker([each for path, each in of.items() if path.text not in landed])
            if not self._request.dry_run:
                self._result.tasks.append(run.task)
            self._done([each for path, each in of.items() if path.text in landed], done.notes)

    def _blame(self, batch: Sequence[_Filed], problem: MunimentError) -> None:
        """Try the halves of a rejected batch. Report the reason for a single item, or if too much waits."""
        is_full, kind = isinstance(problem, QuotaExceeded), batch[0].batch
        if len(batch) > 1 and not (is_full and kind != PLAIN):
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                for each in half:
                    if (why := self._full.get(self._room_of(each))) is not None:
                        self._refuse([each.item], why)
                if rest := [each for each in half if self._room_of(each) not in self._full]:
                    self._commit(rest)
            return
        if is_full:
            self._full[self._room_of(batch[0])] = str(problem)
        self._refuse([each.item for each in batch], str(problem))

    def _room_of(self, filed: _Filed) -> Hashable:
        """Return the key of a quota: one set of quotas of a scope, or all pending reviews."""
        if filed.batch != PLAIN:
            return WAITING
        return filed.path.scope, self._judge.quotas_for(filed.path)

    def _done(self, batch: Sequence[_Filed], notes: Sequence[str]) -> None:
        if batch[0].batch != PLAIN:  # Only in a dry run.
            self._held(batch, "")
            return
        self._result.imported += [report_item(each.item.name, each.path.text) for each in batch]
        self._result.notes += [note for note in notes if note not in self._result.notes]
        self._settled(batch)

    def _held(self, batch: Sequence[_Filed], review: str) -> None:
        self._result.held += [
            report_item(each.item.name, each.path.text, "; ".join(each.reasons), review) for each in batch
        ]
        self._settled(batch)

    def _settled(self, batch: Sequence[_Filed]) -> None:
        for each in batch:
            self._take_text(each.item, each)
            self._result.lowered += each.item.entry is not None and each.trust is not each.item.trust
            self._texts.bring(each.path)
        self._observe(len(batch))

    def _refuse(self, items: Sequence[SourceItem], why: str) -> None:
        self._result.refused += [report_item(each.name, reason=why) for each in items]
        for each in items:
            self._taken.add_named(each.name, each.text, each.title, each.description, *each.parts)
        self._observe(len(items))


def _whole_text(item: SourceItem) -> str:
    """Return the text of an item, with any title or description that is too long for the front matter.

    The description replaces an empty text.
    """
    text, flat = item.text.strip(), one_line(item.text)
    if not text:
        return item.description
    above: list[str] = []
    if len(one_line(item.title)) > MAX_NAME_CHARS and one_line(item.title) not in flat:
        above.append(f"# {one_line(item.title)}")
    if len(one_line(item.description)) > MAX_DESCRIPTION_CHARS and one_line(item.description) not in flat:
        above.append(item.description)
    return "\n\n".join([*above, text])


def _end_in(item: SourceItem, text: str) -> str:
    """Return the last day on which an item applies, as its text states it; empty if this is not certain.

    Without a date of the item only a full date is certain: it is unknown which Friday is meant.
    """
    today = date.fromisoformat(item.when) if item.when else local_day()
    end = find_end(text, today)
    if end is None or (not item.when and find_end(text, today - timedelta(days=366)) != end):
        return ""
    return str(end)


def trusted(item: SourceItem, most: Trust) -> Trust:
    """Return the trust of an exported entry: its claim, at most the trust that the operator allows (I1)."""
    return item.trust.capped(most)
