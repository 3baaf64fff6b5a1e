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
   gave out, and cannot name others (`agent/questions.py`). It has no tools and sees no path, so there is no
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

_NOT_SEPARABLE: Final = "without this part the rest of the file would read differently; edit it by hand"
_WOULD_BE_HELD: Final = "what is left of the file would have to be held back; edit it by hand"

Wanted = CanonicalPath | Sequence[str]
"""What a query comes to: the path of an entry, or words that must all be found."""

NEAR: Final = 10
"""Entries that are near of which a model is shown something; as many of lower trust."""

COMPARED: Final = 40
"""Entries that are near and that the rules compare with a description; as many of lower trust."""

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


class _ForgetJob(Job):
    """What stays the same over the attempts of one request, and what was kept in the last one."""

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
        """Return the result of a task that removed nothing so far."""
        return ForgetResult(
            **self.members(),
            status="preview" if self.is_dry else "completed",
            removed_entries=(),
            touched_topics=(),
            kept=tuple(self.kept),
            near=self.near,
        )

    def trust_of(self, _draft: FileChange, held: Trust | None) -> Ruling:
        """What is left of a file is trusted as before."""
        return Ruling(self.trust if held is None else held, by=self.trust)


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
    """Steps 1 to 6; if the model fails, with the rules in its place."""
    size = bytes_of(task.query)
    if size > MAX_QUERY_BYTES:
        raise InvalidContent(f"the text has {size} bytes; what is to be forgotten may have {MAX_QUERY_BYTES}")
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
        why = on_one_line(own(str(problem), "it gave no answer that can be used"))
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
        summary=f"forgot before by this task: {_paths(removed) or 'what was erased since'}",
        repeated=True,
        removed_entries=removed,
        touched_topics=_topics(removed) if done.touched_scopes else (),
        touched_scopes=done.touched_scopes,
    )


def _attempts(task: _ForgetJob, wanted: Wanted, scopes: Sequence[Scope]) -> ForgetResult:
    """Steps 2 to 6; again if somebody wrote just while it committed."""
    try:
        return _attempt(task, wanted, scopes)
    except StoreConflict as conflict:
        check_retry(task.place.policy, KIND, task.id, conflict)
    return _attempt(task, wanted, scopes)


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


def _attempt(task: _ForgetJob, wanted: Wanted, scopes: Sequence[Scope]) -> ForgetResult:
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


def _refused(task: _ForgetJob, matches: Sequence[_ForgetMatch], told: str) -> ForgetResult:
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


def _matches(task: _ForgetJob, view: View, wanted: Wanted) -> Iterator[_ForgetMatch]:
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


def _meant(task: _ForgetJob, judge: Judge, holding: Holding, wanted: Wanted) -> Iterator[_ForgetMatch]:
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


def _undenied(task: _ForgetJob, matches: Sequence[_ForgetMatch], words: Sequence[str]) -> list[_ForgetMatch]:
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
    task: _ForgetJob, views: Sequence[View], matches: Sequence[_ForgetMatch], asked: Description
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


def _near_in(task: _ForgetJob, holding: Holding, asked: Description) -> Iterator[_ForgetMatch]:
    """What of an entry is near: parts of it, or all, as it is where no model is shown any."""
    entry = holding.entry
    parts = None if task.is_by_rules else near_parts(entry, asked.said_in)
    if parts is None:
        yield _whole(holding)
    elif parts and _reason_for_items(holding, parts) is None:
        yield from _parts(holding, entry, parts)


def _described(task: _ForgetJob, found_near: Iterable[_ForgetMatch]) -> list[_ForgetMatch]:
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
    task: _ForgetJob, matches: Sequence[_ForgetMatch], near: Iterable[_ForgetMatch]
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
