"""Forget: remove what a query matches in the memory, to the byte.

1. The query is checked: without a significant word it matches nothing, and nothing is removed.
2. The path of an entry matches that entry, without a query to a model. For other queries code searches the
   files themselves; the full-text rows of the catalog only show which files need not be read.
3. Some matches are retained, with a reason. The policy protects them, or their trust is higher than the
   request's, or their removal would change the meaning of the rest. Texts that negate the words, or state
   that they no longer apply, are retained too, unless the query does so itself (`content/negation.py`). A
   request below the owner's trust matches only entries that a recall may return (`operations/visibility.py`).
4. A language model, if configured, sees the remaining matches, and after them near entries, which share a
   word with the query (`recall/nearest.py`). It chooses the ones that the query describes, by ids that code
   assigned, and cannot choose others (`agent/questions.py`). It has no tools and sees no path, so no confined
   worker is needed. Withheld and expired entries are not shown to it, and stay. Without a model all remaining
   matches are removed. If none remains, one entry may be described in other words (`content/description.py`).
   This is the only entry that has all words of the query in the same form, except for its question words,
   articles and auxiliary verbs; it is removed if both contain a negation or neither does. Otherwise the
   result lists near entries. If the model fails, the rules decide, unless the operator prefers an error
   (`Place.on_model_failure`).
5. If there are more than `max_forget` matches, the query is too broad, and nothing is removed.
6. One commit removes all or none: a file is deleted, or loses the lines of its items and no other byte. If a
   file changed in the meantime, the job is repeated once. A dry run writes nothing. A request with the digest
   of a preview removes exactly what the preview listed, or nothing.

After a failure of any kind nothing is removed. `undo` restores forgotten entries until they are erased.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Final

from muniment import events
from muniment.agent.filing import RuleWriter
from muniment.agent.model import Model, ModelError
from muniment.agent.questions import MAX_OPTIONS, Asker
from muniment.cancelling import Cancel
from muniment.content.admission import held_for, own
from muniment.content.description import DescribedWords, SaidText, weights_of
from muniment.content.entry import Entry, shortened, titled
from muniment.content.expiry import is_expired
from muniment.content.gates import drop_invisible, on_one_line
from muniment.content.markdown import Item, outline, without
from muniment.content.negation import denied, ended, turns
from muniment.content.words import significant, vocabulary
from muniment.errors import (
    InvalidContent,
    JobFailed,
    MunimentError,
    PathEscape,
    Refusal,
    StoreConflict,
)
from muniment.events import span
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import Judge
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.job import (
    MODEL_ADVICE,
    Job,
    check_retry,
    emit_end,
    model_failure,
    own_cancel,
    status_of,
)
from muniment.operations.matching import Meant, innermost, is_one_passage, meant, near_parts
from muniment.operations.place import Holding, Place, path_of_address, read_holding, reason_to_keep
from muniment.operations.removals import check_preview, forgotten_by, preview_digest, removal, removals
from muniment.operations.request import MAX_QUERY_BYTES, MAX_QUERY_WORDS, SHOWN_PATHS, bytes_of
from muniment.operations.visibility import Reader, Visibility
from muniment.recall.nearest import Description, may_hold
from muniment.recall.stems import Stemmer
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.commit import commit
from muniment.store.ledger import CommitRow
from muniment.store.trust import Ruling
from muniment.store.upkeep import view_of
from muniment.types import ForgetRequest, ForgetResult, KeptEntry, RemovedEntry
from muniment.types.keys import RootKey

KIND: Final = "forget"

_NOT_SEPARABLE: Final = "removing this part would change the rest of the file; edit it by hand"
_WOULD_BE_HELD: Final = "the rest of the file would be withheld; edit it by hand"

Wanted = CanonicalPath | Sequence[str]
"""A parsed query: the path of an entry, or words that must all be found."""

NEAR: Final = 10
"""Near entries of which a model sees a part; the same number of lower trust."""

COMPARED: Final = 40
"""Near entries that the rules compare with a description; the same number of lower trust."""

_OVER: Final = "it states that this no longer applies, and is the current fact"
_OPPOSITE: Final = "it states the opposite"
_HOW: Final = "; to remove it, use its exact words or its path"

SHOWN_CHARS: Final = 1_000
"""Characters of a query that a model sees, and that a response quotes."""


@dataclass(frozen=True, slots=True)
class _ForgetMatch:
    """A match of the query: an entry, or a part of one."""

    holding: Holding
    item: Item | None
    removed: RemovedEntry

    @property
    def text(self) -> str:
        """Return the text of the match for a model."""
        entry = self.holding.entry
        name = titled(entry, self.holding.path.rel).name
        return f"{name}\n{self.said}"

    @property
    def said(self) -> str:
        """Return the text of the entry or part."""
        return self.holding.entry.body if self.item is None else self.item.text


class _ForgetJob(Job):
    """The state of one request over its attempts, and the entries that the last attempt retained."""

    kind = KIND

    def __init__(self, request: ForgetRequest, place: Place, model: Model, cancel: Cancel) -> None:
        super().__init__(place, model, cancel, request.trust, request.task_id, is_dry=request.dry_run)
        self.request = request
        self.query = drop_invisible(request.query).strip()
        self.kept: list[KeptEntry] = []
        self.near: tuple[str, ...] = ()
        self.failure: list[str] = []
        self.visibility = Visibility(place, Reader(request.trust))

    def result(self) -> ForgetResult:
        """Return the result of a task that has not removed anything."""
        return ForgetResult(
            **self.members(),
            status="preview" if self.is_dry else "completed",
            removed_entries=(),
            touched_topics=(),
            kept=tuple(self.kept),
            near=self.near,
        )

    def trust_of(self, _draft: FileChange, held: Trust | None) -> Ruling:
        """Return the trust of the rest of a file, which is unchanged."""
        return Ruling(self.trust if held is None else held, by=self.trust)


def forget(
    request: ForgetRequest, place: Place, model: Model, *, cancel: Cancel | None = None
) -> ForgetResult:
    """Carry out one request; errors are returned in the result's `error`, never raised.

    Args:
        request: the query to forget.
        place: the policy, roots and state; the caller closes them.
        model: chooses the described entries; the embedded rules choose those that contain all the words.
        cancel: cancels the task; a commit that has begun to write is completed.

    Cost: a check of every file's status, and a read of those that may contain the words.
    """
    with own_cancel(cancel) as cancelling, span("task", kind=KIND) as task_span:
        job = _ForgetJob(request, place, model, cancelling)
        try:
            result = _forget(job)
        except (MunimentError, ModelError) as problem:
            error = job.record_failure(problem)
            result = replace(job.result(), status=status_of(error), error=error)
        removed = len(result.removed_entries) if result.status == "completed" else 0
        seconds = round(result.seconds, 3)
        emit_end(KIND, result, task_span, removed=removed, turns=result.turns, seconds=seconds)
    return result


def _forget(task: _ForgetJob) -> ForgetResult:
    """Run steps 1 to 6; if the model fails, again with the rules."""
    size = bytes_of(task.query)
    if size > MAX_QUERY_BYTES:
        raise InvalidContent(f"the query has {size} bytes; use at most {MAX_QUERY_BYTES}")
    earlier = task.find_earlier(task.place.state.keyed(task.query))
    if earlier is not None:
        return _repeated(task, earlier)
    scopes = task.place.chosen(task.request.scope)
    wanted = path_of(task.query, task.place.roots) or _words(task.query)
    task.begin(task.place.policy.limits)
    try:
        return _attempts(task, wanted, scopes)
    except ModelError as problem:
        if task.is_by_rules or task.place.on_model_failure == "fail":
            raise
        why = on_one_line(own(str(problem), "it returned no valid response"))
    task.failure = [f"{model_failure(task.model.name, why)}; the rules decided; {MODEL_ADVICE}"]
    events.emit("forget_by_rules", task_id=task.id, model=task.model.name)
    task.model = RuleWriter()
    task.decided_by = task.model.name
    return _attempts(task, wanted, scopes)


def _repeated(task: _ForgetJob, done: CommitRow) -> ForgetResult:
    """Return the result of a task that has committed before, as far as the ledger knows it."""
    removed = forgotten_by(task.place, done)
    task.kept, task.notes = [], list(done.notes)
    return replace(
        task.result(),
        summary=f"already forgotten by this task: {_paths(removed) or 'erased since'}",
        repeated=True,
        removed_entries=removed,
        touched_topics=_topics(removed) if done.touched_scopes else (),
        touched_scopes=done.touched_scopes,
    )


def _attempts(task: _ForgetJob, wanted: Wanted, scopes: Sequence[Scope]) -> ForgetResult:
    """Run steps 2 to 6; retry if another process wrote during the commit."""
    try:
        return _attempt(task, wanted, scopes)
    except StoreConflict as conflict:
        check_retry(task.place.policy, KIND, task.id, conflict)
    return _attempt(task, wanted, scopes)


def path_of(query: str, scopes: Collection[Scope]) -> CanonicalPath | None:
    """Return the file whose path is the query, or None if the query is words."""
    try:
        path = canonicalise(path_of_address(query), scopes)
    except (PathEscape, Refusal):
        return None
    return path if path.rel.endswith(FILE_SUFFIX) else None


def _words(query: str) -> tuple[str, ...]:
    """Return the words that must all be found."""
    words = significant(query)
    if words:  # One letter or digit distinguishes "rack B" from "rack C".
        words += tuple(word for word in DescribedWords.of(query).words if len(word) == 1)
    else:
        raise InvalidContent(
            "the query contains no significant word; nothing was removed; describe what to forget"
        )
    if len(words) > MAX_QUERY_WORDS:
        raise InvalidContent(f"the query has {len(words)} significant words; use at most {MAX_QUERY_WORDS}")
    return words


def _attempt(task: _ForgetJob, wanted: Wanted, scopes: Sequence[Scope]) -> ForgetResult:
    """Run steps 2 to 6 once."""
    task.kept, task.notes, task.near = [], [*task.failure], ()
    place = task.place
    task.visibility = Visibility(place, Reader(task.trust))
    views = [view_of(place.state, place.roots[scope], place.policy, sweep=True) for scope in scopes]
    matches = [match for view in views for match in _matches(task, view, wanted)]
    if not isinstance(wanted, CanonicalPath):
        matches = _undenied(task, matches, wanted)
        if not matches or not task.is_by_rules:
            with closing(Stemmer()) as stemmer:
                near = _near(task, views, matches, Description(task.query, stemmer))
                matches = _described(task, near) if task.is_by_rules else _chosen(task, matches, near)
    # Check this before anything is removed from a text: that parses the whole file for each item.
    if (told := _too_many(matches, task.place.policy.changes.max_forget)) is not None:
        return _refused(task, matches, told)
    change_set, matches = _change_set(matches, task.kept)
    removed = tuple(match.removed for match in matches)
    named = preview_digest(place, KIND, [change_set])
    check_preview(task.request.digest, named, is_dry=task.is_dry)
    done = commit([change_set], replace(task.terms(task.trust_of), reviewed=task.trust is Trust.OWNER))
    if (earlier := task.find_quicker(done)) is not None:
        return _repeated(task, earlier)
    task.notes += done.notes
    would = "would forget" if task.is_dry else "forgot"
    return replace(
        task.result(),
        removed_entries=removed,
        touched_topics=_topics(removed) if done.touched_scopes and not task.is_dry else (),
        touched_scopes=() if task.is_dry else done.touched_scopes,
        digest=named if task.is_dry else None,
        summary=f"{would} {len(removed)}: {_paths(removed)}" if removed else _nothing(task, wanted),
    )


def _nothing(task: _ForgetJob, wanted: Wanted) -> str:
    """Return the summary of a forget without removals.

    It is the same whether entries matched and were retained or none matched: a reader without access learns
    nothing.
    """
    if isinstance(wanted, CanonicalPath):
        return f"entry {wanted.text} not found"
    words = shortened(", ".join(wanted), SHOWN_CHARS)
    said = f"no single entry matches: {words}; use its path or more of its words"
    if not task.is_by_rules:
        said = "this describes no entry that may be removed"
    return f"{said}; similar entries: {', '.join(task.near)}" if task.near else said


def _paths(removed: Iterable[RemovedEntry]) -> str:
    return ", ".join(dict.fromkeys(each.path for each in removed))


def _topics(removed: Iterable[RemovedEntry]) -> tuple[str, ...]:
    return tuple(sorted({each.topic for each in removed}))


def _too_many(matches: Sequence[_ForgetMatch], limit: int) -> str | None:
    """Return the problem if there are too many matches (step 5), else None."""
    if len(matches) <= limit:
        return None
    return f"this matches {len(matches)} items, and one forget may remove {limit}; use more words"


def _refused(task: _ForgetJob, matches: Sequence[_ForgetMatch], told: str) -> ForgetResult:
    """Return a preview of all matches, or raise an error with some of them if it is not a dry run."""
    if task.is_dry:
        task.notes.append(told)
        removed = tuple(match.removed for match in matches)
        return replace(task.result(), removed_entries=removed, summary=told)
    paths = list(dict.fromkeys(match.removed.path for match in matches))
    shown, more = paths[:SHOWN_PATHS], ", …" if len(paths) > SHOWN_PATHS else ""
    raise JobFailed(
        f"{told}; nothing was removed. Matches: {', '.join(shown)}{more}",
        code="forget_failed",
        paths=shown,
        meant=len(matches),
        limit=task.place.policy.changes.max_forget,
    )


def _matches(task: _ForgetJob, view: View, wanted: Wanted) -> Iterator[_ForgetMatch]:
    """Return the matches of a scope that may be removed (steps 2 and 3)."""
    place, judge, scope = task.place, Judge(task.place.policy), view.scope
    named = wanted if isinstance(wanted, CanonicalPath) else None
    listed = None if isinstance(wanted, CanonicalPath) else may_hold(place.state, view, wanted)
    for row in view.entries():
        if named is not None and (scope, row.rel) != (named.scope, named.rel):
            continue
        if listed is not None and row.rel not in listed and row.held is None:
            continue
        if not task.visibility.lists(CanonicalPath(scope, row.rel), row):
            continue
        task.budget.check()
        holding = read_holding(place, scope, row)
        if holding is None:
            continue
        if not holding.is_as_listed:
            raise StoreConflict(
                (holding.path.text,)
            )  # Edited since the view was created: the attempt is repeated.
        if not task.visibility.passes(holding):
            continue
        yield from _meant(task, judge, holding, wanted)


def _meant(task: _ForgetJob, judge: Judge, holding: Holding, wanted: Wanted) -> Iterator[_ForgetMatch]:
    path, entry = holding.path, holding.entry
    found = Meant(is_whole=True) if isinstance(wanted, CanonicalPath) else meant(entry, path.rel, wanted)
    if found is None:
        return
    reason = reason_to_keep(judge, path, holding.most, task.request.trust)
    if reason is None and not found.is_whole:
        if not found.items and not task.is_by_rules:
            return  # The model sees its parts.
        reason = _reason_for_items(holding, found.items)
    if reason is not None:
        task.kept.append(KeptEntry(path.text, reason))
        return
    if found.is_whole:
        yield _whole(holding)
    if found.is_labelled:
        task.notes.append(f"{path.text}: its name or description also contains it, and stays")
    yield from _parts(holding, entry, found.items)


def _whole(holding: Holding) -> _ForgetMatch:
    path, entry, row = holding.path, holding.entry, holding.row
    name = titled(entry, path.rel).name if row.held is None else row.name
    return _ForgetMatch(holding, None, removal(path, entry, name))


def _parts(holding: Holding, entry: Entry, parts: Sequence[Item]) -> Iterator[_ForgetMatch]:
    told = removals(holding.path, entry, parts)
    yield from (_ForgetMatch(holding, part, removed) for part, removed in zip(parts, told, strict=True))


def _undenied(task: _ForgetJob, matches: Sequence[_ForgetMatch], words: Sequence[str]) -> list[_ForgetMatch]:
    """Return the matches without those that state that the words do not apply (step 3); retain these.

    If only negations match, they are removed: then the query is about them.
    """
    if turns(task.query):
        return list(matches)

    def says(text: str) -> frozenset[str]:
        said = vocabulary(text)
        return frozenset(word for word in words if said.holds([word]))

    left: list[_ForgetMatch] = []
    for match in matches:
        if match.holding.row.held is None and ended(match.said, says):
            task.kept.append(KeptEntry(match.removed.path, f"{_OVER}{_HOW}"))
        else:
            left.append(match)
    opposite = [match for match in left if match.holding.row.held is None and denied(match.said, says)]
    if len(opposite) == len(left):
        return left
    newest = max(match.holding.at for match in left if match not in opposite)
    for match in opposite:
        is_current = match.holding.at > newest
        why = f"{_OPPOSITE}{', and is the current fact' if is_current else ''}{_HOW}"
        task.kept.append(KeptEntry(match.removed.path, why))
    return [match for match in left if match not in opposite]


def _near(
    task: _ForgetJob, views: Sequence[View], matches: Sequence[_ForgetMatch], asked: Description
) -> Iterator[_ForgetMatch]:
    """Return near entries that may be removed and that are not matched or retained, the best first."""
    place, judge, by_key = task.place, Judge(task.place.policy), {RootKey(view.key): view for view in views}
    passed = {match.removed.path for match in matches} | {each.path for each in task.kept}
    may_be_over = not turns(task.query)
    terms: tuple[int, Iterable[str]] = (NEAR, ())
    if task.is_by_rules:
        terms = (COMPARED, DescribedWords.of(task.query).beginnings())
    for key, rel in asked.nearest(place.state, tuple(by_key), timestamp(), *terms):
        task.budget.check()
        view = by_key[key]
        row = view.entry(rel)
        holding = None if row is None else read_holding(place, view.scope, row)
        if row is None or holding is None or not holding.is_as_listed:
            continue
        if not task.visibility.lists(holding.path, row) or not task.visibility.passes(holding):
            continue
        if holding.path.text in passed:
            continue
        if reason_to_keep(judge, holding.path, holding.most, task.request.trust) is not None:
            continue
        yield from (
            each
            for each in _near_in(task, holding, asked)
            if not (may_be_over and ended(each.said, asked.said_in))
        )


def _near_in(task: _ForgetJob, holding: Holding, asked: Description) -> Iterator[_ForgetMatch]:
    """Return the near parts of an entry, or the whole entry; always the whole entry if no model sees it."""
    entry = holding.entry
    parts = None if task.is_by_rules else near_parts(entry, asked.said_in)
    if parts is None:
        yield _whole(holding)
    elif parts and _reason_for_items(holding, parts) is None:
        yield from _parts(holding, entry, parts)


def _described(task: _ForgetJob, found_near: Iterable[_ForgetMatch]) -> list[_ForgetMatch]:
    """Return the one match that the query describes in other words, or none, and list near entries instead.

    Args:
        task: the job; no entry contains all words of its query.
        found_near: whole entries that may be removed.
    """
    near = list(found_near)
    words = DescribedWords.of(task.query)
    texts = [SaidText.of(each.text) for each in near]
    saying = [match for match, said in zip(near, texts, strict=True) if words.is_said_by(said)]
    if len(saying) == 1 and words.is_telling and not task.kept:
        (match,) = saying
        found = _described_part(match, words)
        if found is not None and turns(found.said) is turns(task.query):
            task.notes.append(
                "no entry has all of these words; only this one has all except question words and articles"
            )
            return [found]
    weights = weights_of(words, texts)
    ordered = sorted(zip(near, texts, strict=True), key=lambda each: -words.share(each[1], weights))
    persons = [match for match, _ in ordered if match.holding.trust.satisfies(Trust.WORKSPACE)]
    others = [match for match, _ in ordered if not match.holding.trust.satisfies(Trust.WORKSPACE)]
    # Entries of agents get at most every other position, however many there are.
    pairs = zip_longest(persons, others)
    task.near = _first_paths(match for pair in pairs for match in pair if match is not None)
    return []


def _described_part(match: _ForgetMatch, words: DescribedWords) -> _ForgetMatch | None:
    """Return the described entry or its only part that contains the words, or None."""
    holding, entry = match.holding, match.holding.entry
    parts = outline(entry.body).parts
    if is_one_passage(parts):
        return match
    label = "\n".join([titled(entry, holding.path.rel).name, *entry.keywords])
    saying = [part for part in innermost(parts) if words.is_said_by(SaidText.of(f"{label}\n{part.own}"))]
    if len(saying) != 1 or words.is_said_by(SaidText.of(label)) or _reason_for_items(holding, saying):
        return None
    (found,) = _parts(holding, entry, saying)
    return found


def _first_paths(matches: Iterable[_ForgetMatch]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.removed.path for each in matches))[:SHOWN_PATHS]


def _reason_for_items(holding: Holding, items: Sequence[Item]) -> str | None:
    """Return why no items can be removed from a file, or None if they can."""
    if not items:
        return "several items of a list match; use the words of one item"
    if holding.row.held is not None:
        # With a commit its remaining text would count as judged.
        return "only a part of it matches, and its text is withheld; edit it by hand"
    if not holding.data.endswith(holding.entry.body.encode()):
        return "only a part of it matches, and it is not UTF-8 text; edit it by hand"
    return None


def _chosen(
    task: _ForgetJob, matches: Sequence[_ForgetMatch], near: Iterable[_ForgetMatch]
) -> list[_ForgetMatch]:
    """Return the entries that a model chooses, among the matches and near entries (step 4)."""
    now = timestamp()
    shown: list[_ForgetMatch] = []
    for match in matches:
        row = match.holding.row
        if row.held is not None:
            task.kept.append(KeptEntry(match.removed.path, "its text is withheld from models"))
        elif is_expired(row.expires, now):
            task.kept.append(KeptEntry(match.removed.path, "it has expired: the next dream removes it"))
        else:
            shown.append(match)
    if len(shown) > MAX_OPTIONS:
        return shown  # Too many for one query are also too many to be removed.
    options = [*shown, *islice(near, MAX_OPTIONS - len(shown))]
    if not options:
        return []
    asker = Asker(task.model, task.budget)
    chosen = asker.which_to_forget(shortened(task.query, SHOWN_CHARS), [each.text for each in options])
    left_out = len(shown) - sum(number < len(shown) for number in chosen)
    if left_out:
        task.notes.append(f"{task.model.name} left out {left_out} of {len(shown)} that contain these words")
    if not chosen:
        task.near = _first_paths(options)
    return [options[number] for number in chosen]


def _change_set(
    matches: Iterable[_ForgetMatch], kept: list[KeptEntry]
) -> tuple[ChangeSet, list[_ForgetMatch]]:
    """Return the changes that remove the matches, and the removed matches; the others are retained."""
    of_file: dict[str, list[_ForgetMatch]] = {}
    for match in matches:
        of_file.setdefault(match.removed.path, []).append(match)
    changes: list[FileChange] = []
    going: list[_ForgetMatch] = []
    for ours in of_file.values():
        holding = ours[0].holding
        content, cut = _cut(ours, kept)
        going += cut
        if content is None or cut:
            changes.append(FileChange(holding.path, holding.digest, content))
    return ChangeSet(tuple(changes)), going


def _cut(matches: Sequence[_ForgetMatch], kept: list[KeptEntry]) -> tuple[bytes | None, list[_ForgetMatch]]:
    """Return a file without the items of matches, or None if nothing is left, and the removable matches."""
    data, body = matches[0].holding.data, matches[0].holding.entry.body
    before = data[: len(data) - len(body.encode())]
    done: list[_ForgetMatch] = []
    # Start with the last one, so that the positions of the others stay valid.
    for match in reversed(matches):
        if match.item is None:
            return None, [match]
        shorter = without(body, match.item)
        if shorter is None:
            kept.append(KeptEntry(match.removed.path, _NOT_SEPARABLE))
            continue
        body = shorter
        done.insert(0, match)
    if outline(body).is_empty:
        return None, done
    left = before + body.encode()
    if done and not _may_be_left(matches[0].holding, left):
        kept += [KeptEntry(match.removed.path, _WOULD_BE_HELD) for match in done]
        return data, []
    return left, done


def _may_be_left(holding: Holding, left: bytes) -> bool:
    """Return whether a file without some items may be committed: foreign text must pass the gates."""
    return bool(holding.at) or held_for(left, holding.path.text, holding.trust) is None
