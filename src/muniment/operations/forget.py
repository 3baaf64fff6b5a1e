"""Forget: a query goes in, and what of the memory it means is removed, to the byte.

1. The query is checked: without a word that says something it means nothing, and nothing is removed.
2. The path of an entry means that entry, and no model is asked. What words mean is found by code, in the
   files themselves; the full-text rows of the catalog only say which files need not be read.
3. What may not be removed is kept, with the reason: what the policy protects, what has a higher trust than
   the request, what cannot be taken out without changing how the rest reads; and what says that the words
   do not hold, or no longer, where they do not say so themselves (`content/negation.py`). A request below the
   owner's trust means nothing that a recall may not show (`operations/visibility.py`).
4. A language model, if there is one, is shown what is left, and behind that what is near: entries that share
   a word with the query (`recall/nearest.py`). It says which of these the query describes, by ids that code
   gave out, and cannot name others (`agent/runner.py`). It has no tools and sees no path, so there is no
   worker and nothing to cage. What is held back from models or has expired is not shown to it, and stays.
   Without a model what holds all the words goes. If nothing does, one entry may be described in other words
   (`content/description.py`): the only one that has all words of the query, in the same form, but its
   question words, articles and auxiliary verbs goes, if both deny something or neither does. Else the answer
   lists what is near. If the model fails, the rules decide, unless the operator wants an error
   (`Place.on_model_failure`).
5. More than `max_forget` matches are nobody's intention: then nothing is removed.
6. One commit removes all of them, or none: a file goes, or loses the lines of its items and no other byte.
   Where a file changed meanwhile the job is repeated once. A dry run writes nothing. Who names the
   digest of a preview has exactly that done, or nothing.

A failure of any kind removes nothing. What was forgotten can be brought back with `undo` until it is erased.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Final

from muniment import events
from muniment.agent.filing import RuleWriter
from muniment.agent.model import Model, ModelError
from muniment.agent.runner import MAX_OPTIONS, Asker
from muniment.cancelling import Cancel
from muniment.content.admission import held_for, own
from muniment.content.description import DescribedWords, SaidText, weights_of
from muniment.content.entry import MAX_DESCRIPTION_CHARS, Entry, EntryType, parse, shortened, titled
from muniment.content.expiry import is_expired
from muniment.content.gates import drop_invisible, on_one_line, one_line
from muniment.content.markdown import Item, outline, without
from muniment.content.negation import Says, denied, ended, turns
from muniment.content.words import significant, vocabulary
from muniment.errors import (
    InvalidContent,
    JobError,
    JobFailed,
    MunimentError,
    PathEscape,
    Refusal,
    StoreConflict,
)
from muniment.kernel.change import ChangeSet, FileChange, digest
from muniment.kernel.decide import Judge
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.job import MODEL_ADVICE, Fruitless, Job, carry_out, model_failure, once_more
from muniment.operations.place import Holding, Place, path_of_address, read_holding, reason_to_keep
from muniment.operations.request import MAX_QUERY_BYTES, MAX_QUERY_WORDS, SHOWN_PATHS, bytes_of
from muniment.operations.visibility import Reader, Visibility
from muniment.recall.nearest import Description, may_hold
from muniment.recall.stems import Stemmer
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.commit import commit
from muniment.store.ledger import ChangeRow, CommitRow, RootKey, source_of
from muniment.store.trust import Ruling
from muniment.store.upkeep import view_of
from muniment.types import DreamRequest, ForgetRequest, ForgetResult, KeptEntry, RemovedEntry

# -- matching ----------------------------------------------------------------------------------------
#
# What of an entry a query means: all of it, some of its parts, or nothing. Pure.
#
# A part is an item of a list, or a passage, such as a paragraph (`content.markdown`). M1 Something is meant
# if it holds *every* significant word of the query, as a whole word (`content.words`). M2 The entry is meant
# where it is one passage; where the query has every word of its body; and where its name, description and
# keywords say it all, and no part does. M3 Otherwise a part is meant that says it all, or what the name,
# description and keywords of its entry leave to be said. Of an item and the items in it the innermost is
# meant, unless the outer one says it all by itself. M4 Where only several parts together say it, nothing is
# meant: what a file says in different places nobody said.


@dataclass(frozen=True, slots=True)
class Meant:
    """What a query means of an entry that holds all its words.

    Attributes:
        is_whole: whether it means the entry.
        items: else the parts that it means, in order; none: M4.
        is_labelled: whether name, description and keywords say it too, which stay behind with the entry.
    """

    is_whole: bool
    items: tuple[Item, ...] = ()
    is_labelled: bool = False


def meant(entry: Entry, rel: RelPath, words: Sequence[str]) -> Meant | None:
    """What `words` mean of an entry (M1 to M4); None: it does not hold them all.

    Args:
        entry: the file, parsed.
        rel: its path inside the scope, of which its name is made where it has none.
        words: the significant words of a query.
    """
    # A description that is made of the body tells what one of its lines says, not what all of them are about.
    label = vocabulary("\n".join([titled(entry, rel).name, entry.description or "", *entry.keywords]))
    unsaid = [word for word in words if not label.holds([word])]
    if unsaid and not vocabulary(entry.body).holds(unsaid):
        return None
    parts = outline(entry.body).parts
    if _is_one_passage(parts) or {*words}.issuperset(significant(entry.body) or "-"):
        return Meant(is_whole=True)
    if items := tuple(_items(parts, words)):
        return Meant(is_whole=False, items=items, is_labelled=not unsaid)
    return Meant(is_whole=True) if not unsaid else Meant(is_whole=False, items=tuple(_items(parts, unsaid)))


def near_parts(entry: Entry, says: Says) -> tuple[Item, ...] | None:
    """The innermost parts of an entry that say something of what is asked for, at most `PARTS`, in order.

    Those that say most of it, of the first `LOOKED_AT`. None: it is one part, or its name alone says it.
    """
    parts = outline(entry.body).parts
    if _is_one_passage(parts):
        return None
    looked_at = list(islice(_innermost(parts), LOOKED_AT + 1))
    said = [(-len(says(part.own)), number) for number, part in enumerate(looked_at[:LOOKED_AT])]
    best = sorted(each for each in said if each[0])[:PARTS]
    if not best and len(looked_at) <= LOOKED_AT:
        return None
    return tuple(looked_at[number] for number in sorted(number for _, number in best))


def _is_one_passage(parts: Sequence[Item]) -> bool:
    return len(parts) == 1 and not parts[0].is_item


def _innermost(parts: Iterable[Item]) -> Iterator[Item]:
    for part in parts:
        if part.items:
            yield from _innermost(part.items)
        else:
            yield part


def _items(items: Collection[Item], words: Collection[str]) -> Iterator[Item]:
    """The parts that hold all of some words (M3)."""
    for item in items:
        if vocabulary(item.own).holds(words):
            yield item
        elif inner := tuple(_items(item.items, words)):
            yield from inner
        elif vocabulary(item.text).holds(words):
            yield item


# -- removals ----------------------------------------------------------------------------------------
#
# What jobs say of entries that they removed; and what a commit removed, read from the ledger.
#
# Of a commit that is long done this is what its bytes and the policy of today tell: of two items of a list
# that say the same it may name the other one, and of what was erased since it says nothing.


_BREAK: Final = re.compile("\r\n|\n|\r")


def removal(path: CanonicalPath, entry: Entry, said: str) -> RemovedEntry:
    """An entry, or a part of one, as it is told that it went.

    Args:
        path: of the entry.
        entry: as it was.
        said: its name, or the text of the part; only the start of it is told.
    """
    start = said[: 10 * MAX_DESCRIPTION_CHARS]
    return RemovedEntry(topic_of(entry), shortened(one_line(start), MAX_DESCRIPTION_CHARS), path.text)


def removals(path: CanonicalPath, entry: Entry, parts: Sequence[Item]) -> Iterator[RemovedEntry]:
    """Some parts of an entry as it is told that they went, each with its lines."""
    behind = len(entry.text) - len(entry.body)
    ends = [found.end() for found in _BREAK.finditer(entry.text)] if parts else []
    for part in parts:
        lines = entry.body[part.start : part.end].rstrip()
        start = part.start + len(lines) - len(lines.lstrip("\r\n"))
        line = bisect_right(ends, behind + start) + 1
        yield replace(removal(path, entry, part.own), line=line, text=lines.lstrip("\r\n"))


def topic_of(entry: Entry) -> str:
    """The type of an entry; of one that says none what most of those are."""
    return entry.type or EntryType.REFERENCE


def topics_of(changes: Iterable[ChangeRow]) -> tuple[str, ...]:
    """The topics of what a commit changed, sorted, each once; as far as its bytes are known."""
    known = (each.change.before or each.change.after for each in changes if not each.is_erased)
    return tuple(sorted({topic_of(parse(data)) for data in known if data is not None}))


def forgotten_by(place: Place, done: CommitRow) -> tuple[RemovedEntry, ...]:
    """The entries and items that the commit of a forget removed, as far as their bytes are known."""
    return tuple(each for item in done.changes if not item.is_erased for each in _of_change(place, item))


def expired_by(place: Place, done: CommitRow) -> frozenset[str]:
    """The paths that the commit of a dream removed because their time was over, as far as that is known."""
    found: set[str] = set()
    for item in done.changes:
        path, before = item.change.path, item.change.before
        if item.change.after is not None or before is None:
            continue
        if is_expired(place.assessed(path, before).expires, done.run.at):
            found.add(path.text)
    return frozenset(found)


def _of_change(place: Place, item: ChangeRow) -> Iterator[RemovedEntry]:
    path, before, after = item.change.path, item.change.before or b"", item.change.after
    entry = parse(before)
    if after is None:
        yield removal(path, entry, _name(place, item, before))
        return
    yield from removals(
        path, entry, tuple(_gone(outline(entry.body).parts, outline(parse(after).body).parts))
    )


def _name(place: Place, item: ChangeRow, data: bytes) -> str:
    """The name of an entry; of one whose text is held back that of its file."""
    path = item.change.path
    is_ours = source_of(place.state, item.root, path.rel, digest(data)) is not None
    if not is_ours and held_for(data, path.text, place.policy.trust_of(path.scope)) is not None:
        return path.name.removesuffix(FILE_SUFFIX)
    return titled(parse(data), path.rel).name


def _gone(items: Sequence[Item], left: Sequence[Item]) -> Iterator[Item]:
    """Those of `items` that are not among `left`, which has the others in the same order."""
    rest = list(left)
    for each in items:
        if rest and rest[0].own.strip() == each.own.strip():
            yield from _gone(each.items, rest.pop(0).items)
        else:
            yield each


# -- forget ------------------------------------------------------------------------------------------

KIND: Final = "forget"

_NOT_SEPARABLE: Final = "without this part the rest of the file would read differently; edit it by hand"
_WOULD_BE_HELD: Final = "what is left of the file would have to be held back; edit it by hand"

Wanted = CanonicalPath | Sequence[str]
"""What a query comes to: the path of an entry, or words that must all be found."""

NEAR: Final = 10
"""Entries that are near of which a model is shown something; as many of lower trust."""

COMPARED: Final = 40
"""Entries that are near and that the rules compare with a description; as many of lower trust."""

PARTS: Final = 5
"""Parts of one of these that it is shown."""

LOOKED_AT: Final = 200
"""Parts of one that are looked at for these, some 0.2 ms each."""

_OVER: Final = "it says that this no longer holds, and is what is current"
_OPPOSITE: Final = "it says the opposite"
_HOW: Final = "; to remove it, use its own words or its path"

SHOWN_CHARS: Final = 1_000
"""Characters of a query that a model is shown, and that an answer repeats."""


@dataclass(frozen=True, slots=True)
class _ForgetMatch:
    """Something that the query means: an entry, or a part of one."""

    holding: Holding
    item: Item | None
    removed: RemovedEntry

    @property
    def text(self) -> str:
        """What a model is shown of it."""
        entry = self.holding.entry
        name = titled(entry, self.holding.path.rel).name
        return f"{name}\n{self.said}"

    @property
    def said(self) -> str:
        """What it says itself."""
        return self.holding.entry.body if self.item is None else self.item.text


class _Forgetting(Job[ForgetResult]):
    """What stays the same over the attempts of one request, and what was kept in the last one."""

    kind = KIND

    def __init__(self, request: ForgetRequest, place: Place, model: Model) -> None:
        super().__init__(place, model.name, request.trust, request.task_id, is_dry=request.dry_run)
        self.request, self.model = request, model
        self.query = drop_invisible(request.query).strip()
        self.kept: list[KeptEntry] = []
        self.near: tuple[str, ...] = ()
        self.failure: list[str] = []
        self.visibility = Visibility(place, Reader(request.trust))

    def check(self) -> str:
        """Step 1, but for the words: what is asked can be told from anything else that was asked."""
        size = bytes_of(self.query)
        if size > MAX_QUERY_BYTES:
            raise InvalidContent(
                f"the text has {size} bytes; what is to be forgotten may have {MAX_QUERY_BYTES}"
            )
        return self.place.state.keyed(self.query)

    def body(self) -> ForgetResult:
        scopes = self.place.chosen(self.request.scope)
        wanted = path_of(self.query, self.place.roots) or _words(self.query)
        self.begin(self.place.policy.limits)
        try:
            return once_more(self.place.policy, KIND, self.id, lambda: _attempt(self, wanted, scopes))
        except ModelError as problem:
            if self.is_by_rules or self.place.on_model_failure == "fail":
                raise
            why = on_one_line(own(str(problem), "it gave no answer that can be used"))
        self.failure = [f"{model_failure(self.model.name, why)}; the rules decided; {MODEL_ADVICE}"]
        events.emit("forget_by_rules", task_id=self.id, model=self.model.name)
        self.model = RuleWriter()
        self.decided_by = self.model.name
        return once_more(self.place.policy, KIND, self.id, lambda: _attempt(self, wanted, scopes))

    def result(self) -> ForgetResult:
        """That of a task that removed nothing so far."""
        turns, seconds, timeline = self.spent
        return ForgetResult(
            task_id=self.id,
            status="preview" if self.is_dry else "completed",
            summary="",
            removed_entries=(),
            touched_topics=(),
            touched_scopes=(),
            decided_by=self.decided_by,
            policy=self.place.policy.label,
            turns=turns,
            seconds=seconds,
            timeline=timeline,
            kept=tuple(self.kept),
            near=self.near,
            notes=tuple(self.notes),
        )

    def again(self, done: CommitRow) -> ForgetResult:
        removed = forgotten_by(self.place, done)
        self.kept, self.notes = [], list(done.notes)
        return replace(
            self.result(),
            summary=f"forgot before by this task: {_paths(removed) or 'what was erased since'}",
            repeated=True,
            removed_entries=removed,
            touched_topics=_topics(removed) if done.touched_scopes else (),
            touched_scopes=done.touched_scopes,
        )

    def ended(self, status: Fruitless, error: MunimentError) -> ForgetResult:
        return replace(self.result(), status=status, error=error)

    def trust_of(self, _draft: FileChange, held: Trust | None) -> Ruling:
        """What is left of a file is trusted as before."""
        return Ruling(self.trust if held is None else held, by=self.trust)

    def of_event(self, result: ForgetResult) -> dict[str, object]:
        removed = len(result.removed_entries) if result.status == "completed" else 0
        return {"removed": removed, "turns": result.turns, "seconds": round(result.seconds, 3)}


def forget(
    request: ForgetRequest, place: Place, model: Model, *, cancel: Cancel | None = None
) -> ForgetResult:
    """Carry out one request; what goes wrong is in the result's `error`, never raised.

    Args:
        request: what to forget.
        place: the policy, roots and state; they stay the caller's.
        model: what says which entries are described; the embedded rules take those that hold all the words.
        cancel: ends it early; once the commit has begun to write it runs to its end.

    Cost: a look at every file's status, and a read of those that may hold the words.
    """
    return carry_out(_Forgetting(request, place, model), cancel)


def path_of(query: str, scopes: Collection[Scope]) -> CanonicalPath | None:
    """The file that a query names; None: it is made of words."""
    try:
        path = canonicalise(path_of_address(query), scopes)
    except (PathEscape, Refusal):
        return None
    return path if path.rel.endswith(FILE_SUFFIX) else None


def _words(query: str) -> tuple[str, ...]:
    """The words that must all be found."""
    words = significant(query)
    if words:  # One letter or digit tells "rack B" from "rack C".
        words += tuple(word for word in DescribedWords.of(query).words if len(word) == 1)
    else:
        raise InvalidContent("there is no word in this that says what to forget; nothing was removed")
    if len(words) > MAX_QUERY_WORDS:
        raise InvalidContent(
            f"this has {len(words)} words that say something, and a query may have {MAX_QUERY_WORDS}; "
            "use fewer words"
        )
    return words


def _attempt(task: _Forgetting, wanted: Wanted, scopes: Sequence[Scope]) -> ForgetResult:
    """Steps 2 to 6, once."""
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
    # Counted before anything is cut out: that costs a look at the whole file for each item.
    if (told := _too_many(matches, task.place.policy.changes.max_forget)) is not None:
        return _refused(task, matches, told)
    change_set, matches = _change_set(matches, task.kept)
    removed = tuple(match.removed for match in matches)
    named = _named(task, change_set)
    _check_preview(task.request, named)
    done = commit([change_set], replace(task.terms(task.trust_of), reviewed=task.trust is Trust.OWNER))
    if (earlier := task.repeated(done)) is not None:
        return earlier
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


def _named(task: _Forgetting, change_set: ChangeSet) -> str | None:
    """The digest of exactly what would go: keyed, so that who was not shown it cannot name it."""
    going = [[change.path.text, change.base, change.digest] for change in change_set.changes]
    return task.place.state.keyed(f"forget {json.dumps(sorted(going))}") if going else None


def _check_preview(request: ForgetRequest | DreamRequest, named: str | None) -> None:
    """Refuse to remove something else than the preview showed that the request names."""
    if not request.dry_run and request.digest not in {None, named}:
        raise JobError(
            "what would go now is not what the preview of this digest showed; nothing was removed; "
            "look at a preview again, and give its digest",
            code="preview_changed",
        )


def _nothing(task: _Forgetting, wanted: Wanted) -> str:
    """The same whether nothing is meant or what is stays: who may not read learns nothing by it."""
    if isinstance(wanted, CanonicalPath):
        return f"there is no entry to remove at {wanted.text}"
    words = shortened(", ".join(wanted), SHOWN_CHARS)
    said = f"no single entry matches: {words}; use its path or more of its words"
    if not task.is_by_rules:
        said = "nothing that may be removed is what this describes"
    return f"{said}; these are near: {', '.join(task.near)}" if task.near else said


def _paths(removed: Iterable[RemovedEntry]) -> str:
    return ", ".join(dict.fromkeys(each.path for each in removed))


def _topics(removed: Iterable[RemovedEntry]) -> tuple[str, ...]:
    return tuple(sorted({each.topic for each in removed}))


def _too_many(matches: Sequence[_ForgetMatch], limit: int) -> str | None:
    """Step 5: what is wrong with so many matches; None: nothing."""
    if len(matches) <= limit:
        return None
    return f"this means {len(matches)} things, and one forget may remove {limit}; use more words"


def _refused(task: _Forgetting, matches: Sequence[_ForgetMatch], told: str) -> ForgetResult:
    """A preview that names all of them; where they were to be removed, an error that names some."""
    if task.is_dry:
        task.notes.append(told)
        removed = tuple(match.removed for match in matches)
        return replace(task.result(), removed_entries=removed, summary=told)
    paths = list(dict.fromkeys(match.removed.path for match in matches))
    shown, more = paths[:SHOWN_PATHS], ", …" if len(paths) > SHOWN_PATHS else ""
    raise JobFailed(
        f"{told}; nothing was removed. Meant are: {', '.join(shown)}{more}",
        code="forget_failed",
        paths=shown,
        meant=len(matches),
        limit=task.place.policy.changes.max_forget,
    )


def _matches(task: _Forgetting, view: View, wanted: Wanted) -> Iterator[_ForgetMatch]:
    """Steps 2 and 3: what of a scope is meant and may be removed."""
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
            )  # Edited since the view was made: it is looked at again.
        if not task.visibility.passes(holding):
            continue
        yield from _meant(task, judge, holding, wanted)


def _meant(task: _Forgetting, judge: Judge, holding: Holding, wanted: Wanted) -> Iterator[_ForgetMatch]:
    path, entry = holding.path, holding.entry
    found = Meant(is_whole=True) if isinstance(wanted, CanonicalPath) else meant(entry, path.rel, wanted)
    if found is None:
        return
    reason = reason_to_keep(judge, path, holding.most, task.request.trust)
    if reason is None and not found.is_whole:
        if not found.items and not task.is_by_rules:
            return  # The model is shown its parts.
        reason = _reason_for_items(holding, found.items)
    if reason is not None:
        task.kept.append(KeptEntry(path.text, reason))
        return
    if found.is_whole:
        yield _whole(holding)
    if found.is_labelled:
        task.notes.append(f"{path.text}: its name or description says it too, and stays")
    yield from _parts(holding, entry, found.items)


def _whole(holding: Holding) -> _ForgetMatch:
    path, entry, row = holding.path, holding.entry, holding.row
    name = titled(entry, path.rel).name if row.held is None else row.name
    return _ForgetMatch(holding, None, removal(path, entry, name))


def _parts(holding: Holding, entry: Entry, parts: Sequence[Item]) -> Iterator[_ForgetMatch]:
    told = removals(holding.path, entry, parts)
    yield from (_ForgetMatch(holding, part, removed) for part, removed in zip(parts, told, strict=True))


def _undenied(task: _Forgetting, matches: Sequence[_ForgetMatch], words: Sequence[str]) -> list[_ForgetMatch]:
    """The matches without those that say that the words do not hold (step 3), which are kept.

    What only denies them goes where nothing else is meant: then that is what the words are about.
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
        why = f"{_OPPOSITE}{', and is what is current' if is_current else ''}{_HOW}"
        task.kept.append(KeptEntry(match.removed.path, why))
    return [match for match in left if match not in opposite]


def _near(
    task: _Forgetting, views: Sequence[View], matches: Sequence[_ForgetMatch], asked: Description
) -> Iterator[_ForgetMatch]:
    """What may be removed and is near, but for what is meant or kept: the best first."""
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


def _near_in(task: _Forgetting, holding: Holding, asked: Description) -> Iterator[_ForgetMatch]:
    """What of an entry is near: parts of it, or all, as it is where no model is shown any."""
    entry = holding.entry
    parts = None if task.is_by_rules else near_parts(entry, asked.said_in)
    if parts is None:
        yield _whole(holding)
    elif parts and _reason_for_items(holding, parts) is None:
        yield from _parts(holding, entry, parts)


def _described(task: _Forgetting, found_near: Iterable[_ForgetMatch]) -> list[_ForgetMatch]:
    """Return the one match that the query describes in other words, or none, and list what is near instead.

    Args:
        task: whose query; nothing holds all of its words.
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
                "no entry has all of these words; this alone has all but question words and articles"
            )
            return [found]
    weights = weights_of(words, texts)
    ordered = sorted(zip(near, texts, strict=True), key=lambda each: -words.share(each[1], weights))
    persons = [match for match, _ in ordered if match.holding.trust.satisfies(Trust.WORKSPACE)]
    others = [match for match, _ in ordered if not match.holding.trust.satisfies(Trust.WORKSPACE)]
    # However much agents filed, it takes every other place at most.
    pairs = zip_longest(persons, others)
    task.near = _first_paths(match for pair in pairs for match in pair if match is not None)
    return []


def _described_part(match: _ForgetMatch, words: DescribedWords) -> _ForgetMatch | None:
    """Return what of an entry is described: all of it, or its one part that says the words, or None."""
    holding, entry = match.holding, match.holding.entry
    parts = outline(entry.body).parts
    if _is_one_passage(parts):
        return match
    label = "\n".join([titled(entry, holding.path.rel).name, *entry.keywords])
    saying = [part for part in _innermost(parts) if words.is_said_by(SaidText.of(f"{label}\n{part.own}"))]
    if len(saying) != 1 or words.is_said_by(SaidText.of(label)) or _reason_for_items(holding, saying):
        return None
    (found,) = _parts(holding, entry, saying)
    return found


def _first_paths(matches: Iterable[_ForgetMatch]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.removed.path for each in matches))[:SHOWN_PATHS]


def _reason_for_items(holding: Holding, items: Sequence[Item]) -> str | None:
    """Why no items can be taken out of a file."""
    if not items:
        return "it says this in several places of a list; use the words of one"
    if holding.row.held is not None:
        # With a commit of ours its remaining text would pass for text that was judged.
        return "only a part of it is meant, and its text is held back; edit it by hand"
    if not holding.data.endswith(holding.entry.body.encode()):
        return "only a part of it is meant, and it is not UTF-8 text; edit it by hand"
    return None


def _chosen(
    task: _Forgetting, matches: Sequence[_ForgetMatch], near: Iterable[_ForgetMatch]
) -> list[_ForgetMatch]:
    """Step 4: what a model says is described, of what holds all the words and of what is near."""
    now = timestamp()
    shown: list[_ForgetMatch] = []
    for match in matches:
        row = match.holding.row
        if row.held is not None:
            task.kept.append(KeptEntry(match.removed.path, "its text is held back from models"))
        elif is_expired(row.expires, now):
            task.kept.append(KeptEntry(match.removed.path, "its time is over: the next dream removes it"))
        else:
            shown.append(match)
    if len(shown) > MAX_OPTIONS:
        return shown  # Too many for a question are too many to be removed.
    options = [*shown, *islice(near, MAX_OPTIONS - len(shown))]
    if not options:
        return []
    asker = Asker(task.model, task.budget)
    chosen = asker.which_to_forget(shortened(task.query, SHOWN_CHARS), [each.text for each in options])
    left_out = len(shown) - sum(number < len(shown) for number in chosen)
    if left_out:
        task.notes.append(f"{task.model.name} left out {left_out} of {len(shown)} that hold these words")
    if not chosen:
        task.near = _first_paths(options)
    return [options[number] for number in chosen]


def _change_set(
    matches: Iterable[_ForgetMatch], kept: list[KeptEntry]
) -> tuple[ChangeSet, list[_ForgetMatch]]:
    """What removes the matches, and those of them that it removes; the others are kept."""
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
    """A file without the items of matches, None where nothing is left; and those that could be removed."""
    data, body = matches[0].holding.data, matches[0].holding.entry.body
    before = data[: len(data) - len(body.encode())]
    done: list[_ForgetMatch] = []
    for match in reversed(matches):  # From the last on, so that the others stay where they are.
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
    """Whether a file without some items may become ours: text of others first passes the gates."""
    return bool(holding.at) or held_for(left, holding.path.text, holding.trust) is None
