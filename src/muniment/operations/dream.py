"""Dream: tidies the memory. What says the same twice is said once, what is over goes, the rest is counted.

1. Code looks at every entry of each scope.
2. By code go what has expired and what says exactly what another entry says. What has ended by its words
   stays; it is named, so that a person may remove it.
3. A language model, if there is one, is shown entries that are almost the same, a group of one trust at a
   time. It may say that one of them stands for others, as it is or with a text that is made of their words
   (`agent/runner.py`). It has no tools and sees no path, so there is no worker to cage.
   An answer that cannot be used changes nothing in its group; without an answer the whole dream ends.
4. What has expired goes; of the other entries of a scope at most `max_scope_share` change, or one step where
   that is less. The rest is left for the next dream.
5. One commit of steps: each claims all the entries that it is about, so that it is rejected if one of them
   has changed meanwhile, and nothing goes unless what stands for it is there. A dry run writes nothing.

Remembers may land meanwhile. `undo` gives the tree that never dreamt. A failure of any kind changes nothing.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Final

from muniment.agent.model import Model, ModelError
from muniment.agent.runner import MAX_TEXT_CHARS, Asker, Merge
from muniment.agent.updates import says_change, supersedes
from muniment.cancelling import Cancel
from muniment.content.admission import check_entry, own
from muniment.content.entry import MAX_DESCRIPTION_CHARS, Entry, completed, parse, shortened
from muniment.content.expiry import has_ended, is_expired
from muniment.content.gates import encode, one_line
from muniment.content.markdown import relative_links
from muniment.content.provenance import is_made_of
from muniment.content.titles import title_of
from muniment.content.words import STOP_WORDS, alike, comparable, features
from muniment.errors import MunimentError, ToolError
from muniment.kernel.change import ChangeSet, Claim, FileChange
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.forget import _check_preview, expired_by, topics_of
from muniment.operations.job import Fruitless, Job, carry_out, once_more
from muniment.operations.place import Holding, Place, may_see, read_holding, reason_to_keep
from muniment.store.audit import timestamp
from muniment.store.commit import Commit, commit
from muniment.store.erase import is_forgotten
from muniment.store.ledger import CommitRow, history, of_task
from muniment.store.trust import Ruling, entry_id, is_risky, stamp
from muniment.store.upkeep import view_of
from muniment.types import Counts, DreamRequest, DreamResult, KeptEntry

# -- dream findings ----------------------------------------------------------------------------------
#
# What a dream finds in a scope by code alone: what says the same, what is alike, over or broken.
#
# D1 Entries say the same if their bodies do (`content.likeness`). A body of less than `TELLING_WORDS` words
# says nothing without its name, so there the names must be the same too. Without a body nothing is the
# same. D2 Of those that say the same stays the one with the highest trust; of equals one that this memory
# filed, so that its id and history stay; then one that never ends, then one that may not be removed, then the
# oldest, then the first by path. None goes that ends later than it. D3 Entries are alike, or not, among those
# of one trust. D4 What is held back from models is counted as an entry and otherwise left alone, and so is
# what changes while it is looked at. D5 An entry that this memory wrote goes for a later one of its type,
# trusted as far, that says by its form that it is no longer so (`agent/updates.py`).

MAX_SHARING: Final = 50
"""Entries that share a word, above which it tells nothing of what they are about."""

TELLING_WORDS: Final = 4
"""Words from which on a body tells what it is about: "use port 5432" may be true of many things."""


@dataclass(frozen=True, slots=True)
class Same:
    """Entries that say the same, or of which one says that the others are no longer so.

    Attributes:
        stays: the one that stands for all.
        going: those that may be removed for it.
    """

    stays: Holding
    going: tuple[Holding, ...]


class Findings:
    """What a look at every entry of a scope finds.

    Args:
        task: of a trust above which nothing may be removed; its deadline and cancellation end the look.
        scope: which is bound at its place.
        now: the time, as the ledger writes it.

    Attributes:
        entries: how many there are.
        unreadable: how many of them cannot be read.
        broken_links: how many relative links lead to nothing.
        expired: what may be removed because its time is over, the oldest first.
        past: how many there are whose time is over.
        ended: logical paths of those that no longer hold, as their words say.
        same: the groups of which something may be removed.
        repeated: how many entries say what another one says.
        alike: groups of what will be left.
        kept: what would go, but may not.
        room: how many entries may still change.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        DeadlineExceeded, Cancelled: as `Budget.check`.

    Cost: a read, a parse and a query each entry, and 0.2 ms to compare it: half a second a thousand.
    """

    def __init__(self, task: _Dreaming, scope: Scope, now: str) -> None:
        place = task.place
        self._place, self._judge, self._request = place, Judge(place.policy), task.trust
        self._view = view_of(place.state, place.roots[scope], place.policy, sweep=True)
        self._names: dict[str, frozenset[str]] = {}
        self._bodies: dict[str, str] = {}
        rows = self._view.entries()
        self.scope, self.entries, self.unreadable, self.broken_links = scope, len(rows), 0, 0
        self.kept: list[KeptEntry] = []
        facts: defaultdict[str, list[Holding]] = defaultdict(list)
        past: list[Holding] = []
        self.ended: list[str] = []
        for row in rows:
            task.budget.check()
            holding = read_holding(place, scope, row) if row.readable else None
            if holding is None:
                self.unreadable += not row.readable
                continue
            if row.held is not None or not holding.is_as_listed or not may_see(self._judge, holding.path):
                continue
            entry = holding.entry
            self.broken_links += self._broken_links(entry, row.rel)
            self._bodies[holding.path.text] = entry.body
            if is_expired(row.expires, now):
                past.append(holding)
                continue
            if has_ended(row.ends, datetime.fromisoformat(now)):
                self.ended.append(holding.path.text)
            if (fact := _fact(entry)) is not None:
                facts[fact].append(holding)
        self.past = len(past)
        self.room = Room(self.entries - self.past, place.policy.changes.max_scope_share)
        self.expired = sorted(
            filter(self._may_go, past), key=lambda each: (each.row.expires or "", each.path)
        )
        groups = [self._same(group) for group in facts.values()]
        standing = _without_going(chain.from_iterable(facts.values()), groups)
        outdated = list(self._outdated(standing))
        self.same = [*(group for group in groups if group.going), *outdated]
        self.repeated = sum(len(group) - 1 for group in facts.values())
        self.alike = list(self._alike(_without_going(standing, outdated)))
        self._bodies = {}  # A model may be asked for minutes; what a whole scope says is not kept so long.

    def _same(self, group: Sequence[Holding]) -> Same:
        """Which of those that say the same stays (D2)."""
        if len(group) == 1:
            return Same(group[0], ())
        trusts = tuple(Trust)
        protected = {each.path for each in group if self._reason(each) is not None}
        stays, *others = sorted(
            group,
            key=lambda each: (
                trusts.index(each.trust),
                self._filing_rank(each),
                each.row.expires is not None,
                each.row.ends is not None,
                each.path not in protected,
                each.at,
                each.path,
            ),
        )
        return Same(stays, tuple(each for each in others if not each.outlasts(stays) and self._may_go(each)))

    def _filing_rank(self, holding: Holding) -> int:
        """Return 0 for bytes of this memory, 1 for a file of its that was edited, 2 for an id, 3 for none."""
        if holding.at:
            return 0
        names = {self._place.key(self.scope): self.scope}
        last = history(self._place.state, names, holding.path, limit=1)
        if last and last[0].kind != "removed":
            return 1
        return 2 if entry_id(holding.entry) else 3

    def _outdated(self, holdings: Sequence[Holding]) -> Iterator[Same]:
        """What later entries say is no longer so (D5)."""
        ours = [each for each in holdings if each.at and each.row.expires is None and each.row.ends is None]
        words = {each.path: features(self._bodies[each.path.text]) for each in ours}
        sharing: defaultdict[str, list[Holding]] = defaultdict(list)
        for each in ours:
            for word in words[each.path]:
                sharing[word].append(each)
        gone: set[CanonicalPath] = set()
        for new in sorted(ours, key=lambda each: (each.at, each.path), reverse=True):
            body = self._bodies[new.path.text]
            if new.path in gone or not says_change(body):
                continue
            lists = (sharing[word] for word in words[new.path] if len(sharing[word]) <= MAX_SHARING)
            near = {each.path: each for each in chain.from_iterable(lists) if each.path not in gone}
            going = tuple(
                old
                for old in near.values()
                if old.at < new.at
                and old.row.type == new.row.type
                and new.trust.satisfies(old.most)
                and supersedes(body, self._bodies[old.path.text])
                and self._may_go(old)
            )
            gone.update(old.path for old in going)
            if going:
                yield Same(new, going)

    def _alike(self, holdings: Iterable[Holding]) -> Iterator[tuple[Holding, ...]]:
        """Groups of entries that are alike (D3)."""
        by_trust: defaultdict[Trust, dict[str, Holding]] = defaultdict(dict)
        for each in holdings:
            by_trust[each.trust][each.path.text] = each
        for ours in by_trust.values():
            for group in alike({path: self._bodies[path] for path in ours}):
                yield tuple(ours[path] for path in group)

    def questions(self) -> Iterator[tuple[Holding, ...]]:
        """The groups of entries that a model may be asked about (S3)."""
        for group in self.alike:
            asked = [
                each
                for each in group
                if each.trust is not Trust.EXTERNAL
                and each.row.ends is None
                and len(each.entry.body) <= MAX_TEXT_CHARS
                and self._reason(each) is None
            ]
            for start in range(0, len(asked), GROUP):
                if len(part := asked[start : start + GROUP]) > 1:
                    yield tuple(part)

    def _reason(self, holding: Holding) -> str | None:
        return reason_to_keep(self._judge, holding.path, holding.most, self._request)

    def _may_go(self, holding: Holding) -> bool:
        reason = self._reason(holding)
        if reason is not None:
            self.kept.append(KeptEntry(holding.path.text, reason))
        return reason is None

    def _broken_links(self, entry: Entry, rel: RelPath) -> int:
        return sum(not self._exists(path) for path in relative_links(entry.body, rel))

    def _exists(self, path: RelPath) -> bool:
        directory, _, name = path.rpartition("/")
        if directory not in self._names:
            self._names[directory] = self._view.names(directory) or frozenset()
        return name in self._names[directory]


def _without_going(holdings: Iterable[Holding], groups: Iterable[Same]) -> list[Holding]:
    going = {each.path for group in groups for each in group.going}
    return [each for each in holdings if each.path not in going]


def _fact(entry: Entry) -> str | None:
    """What an entry says, the same for those that say the same (D1); None: nothing."""
    said = comparable(entry.body)
    if not said:
        return None
    if len(features(said)) < TELLING_WORDS:
        return f"{comparable(entry.name or '')}\n{said}"
    return said


# -- dream steps -------------------------------------------------------------------------------------
#
# What a dream would do about its findings, step by step, within what it may change.
#
# S1 A step is a part of the commit: it claims everything that it rests on, and no two change the same
# entry. S2 No more entries of a scope are written or removed than its share, which is one step at least, by
# which one entry goes for another one; nor by a model than a run may write. What is over takes none of it,
# and is none of which a share is taken. S3 What a model proposes is taken only if its
# text, or the entry that stays, is made of whole units of the entries that it stands for, with each that
# turns a meaning or holds a number (`content.provenance`, P4); entries that agents wrote may be told in
# another order, with all of their words: another day or name is another fact. It passes the gates; and only
# for entries that may all be removed.
# Nothing from outside is shown to it, and nothing that is too long to be answered with.

GROUP: Final = 8
"""Entries that one question to a model is about."""


LEAST: Final = 2
"""Entries of the least step that writes: one goes, and the one that stands for it gets a new text."""


class Room:
    """How many entries of a scope a dream may still change.

    Attributes:
        left: how many more would have been changed, had there been room.
    """

    def __init__(self, entries: int, share: float) -> None:
        # As the decimal that the policy says: 0.29 of 100 are 29, not 28.
        self._free = max(1, math.floor(Decimal(str(share)) * entries))
        self._is_whole = True
        self.left = 0

    def take(self, wanted: int) -> int:
        """As much of `wanted` as there is; what is missing counts as left."""
        taken = min(wanted, self._free)
        self._free -= taken
        self._is_whole = self._is_whole and not taken
        self.left += wanted - taken
        return taken

    def take_whole(self, wanted: int) -> bool:
        """All of `wanted` or nothing; of `LEAST` the first time in any case."""
        if wanted > (max(self._free, LEAST) if self._is_whole else self._free):
            self.left += wanted
            return False
        self._free, self._is_whole = max(0, self._free - wanted), False
        return True


def steps_by_code(findings: Findings) -> Iterator[ChangeSet]:
    """What goes without asking anybody: first what is over, then what says the same as another entry."""
    for holding in findings.expired:
        yield ChangeSet((_going(holding),))
    for same in findings.same:
        if going := same.going[: findings.room.take(len(same.going))]:
            yield _removal(Same(same.stays, going))


def step_of_merge(merge: Merge, group: Sequence[Holding], policy: Policy) -> ChangeSet | None:
    """What a model's merge comes to; None if it is not taken (S3).

    Args:
        merge: by numbers of `group`.
        group: what it was asked about.
        policy: says which gates a text passes.
    """
    merge = _keep_filed(merge, group)
    stays, going = group[merge.keep], tuple(group[number] for number in merge.drop)
    sources = [each.entry.body for each in (stays, *going)]
    if stays.trust.satisfies(Trust.WORKSPACE) and not is_made_of(merge.text or stays.entry.body, sources):
        return None
    if not merge.text:
        if any(each.outlasts(stays) for each in going) or not _has_words_of(stays, going):
            return None
        return _removal(Same(stays, going))
    said, used = features(merge.text), frozenset.union(*map(features, sources))
    if not used - STOP_WORDS <= said <= used | STOP_WORDS:
        return None
    written = _written(merge.text, stays, policy)
    if written is None:
        return None
    return ChangeSet((FileChange(stays.path, stays.digest, written), *map(_going, going)))


def _keep_filed(merge: Merge, group: Sequence[Holding]) -> Merge:
    """Return a merge that keeps an entry of this memory, with the text that was to stay (D2)."""
    stays = group[merge.keep]
    filed = next((number for number in merge.drop if group[number].at), None)
    is_filed = bool(stays.at or entry_id(stays.entry))
    if is_filed or filed is None or {stays.row.expires, group[filed].row.expires} != {None}:
        return merge
    drop = tuple(merge.keep if number == filed else number for number in merge.drop)
    return replace(merge, keep=filed, drop=drop, text=merge.text or stays.entry.body)


def _has_words_of(stays: Holding, going: Iterable[Holding]) -> bool:
    """Return whether an entry has all telling words of others: another day or name is another fact."""
    said = features(stays.entry.body) | STOP_WORDS
    return all(features(each.entry.body) <= said for each in going)


def _removal(same: Same) -> ChangeSet:
    return ChangeSet(tuple(map(_going, same.going)), (Claim(same.stays.path, same.stays.digest),))


def _written(text: str, stays: Holding, policy: Policy) -> bytes | None:
    """An entry that says `text` in place of another one; None if a gate refuses it."""
    description = shortened(one_line(text), MAX_DESCRIPTION_CHARS)
    kind = stays.entry.type or "reference"
    try:
        labels = {"name": title_of(text), "description": description, "type": kind}
        data = encode(completed(parse(f"{text}\n"), labels))
        check_entry(data, stays.path.rel, policy.content)
    except ToolError:
        return None
    if is_risky(text, stays.trust, policy):
        return None
    return data


def _going(holding: Holding) -> FileChange:
    return FileChange(holding.path, holding.digest, None)


# -- dream -------------------------------------------------------------------------------------------

KIND: Final = "dream"


class _Dreaming(Job[DreamResult]):
    """What stays the same over the attempts of one request, and what the last one had to say.

    Attributes:
        files: how many more files a model's merges may change.
        bytes: how many more bytes they may write.
    """

    kind = KIND

    def __init__(self, request: DreamRequest, place: Place, model: Model) -> None:
        super().__init__(place, model.name, request.trust, request.task_id, is_dry=request.dry_run)
        self.request, self.model = request, model
        self.files = self.bytes = 0

    def check(self) -> None:
        """Whatever is asked of a dream is the same."""

    def body(self) -> DreamResult:
        scopes = self.place.chosen(self.request.scope)
        self.begin(self.place.policy.limits)
        return once_more(self.place.policy, KIND, self.id, lambda: _attempt(self, scopes))

    def result(self, counts: Counts, gone: Collection[str] = (), over: Collection[str] = ()) -> DreamResult:
        """What it has to say, where some entries went, of which some were over."""
        turns, seconds, timeline = self.spent
        merged = tuple(sorted(set(gone).difference(over)))
        return DreamResult(
            task_id=self.id,
            status="preview" if self.is_dry else "completed",
            summary="",
            touched_topics=(),
            touched_scopes=(),
            decided_by=self.decided_by,
            policy=self.place.policy.label,
            turns=turns,
            seconds=seconds,
            timeline=timeline,
            counts=counts,
            rejected=counts.rejected,
            deduped_entries=len(merged),
            deduped_paths=merged,
            expired_paths=tuple(sorted(over)),
            notes=tuple(self.notes),
        )

    def again(self, done: CommitRow) -> DreamResult:
        known = done.known
        gone = {change.path for change in known if change.kind == "delete"}
        over = expired_by(self.place, done)
        counts = Counts(merged=len(gone - over), removed_expired=len(over), rewritten=len(known) - len(gone))
        self.notes = list(done.notes)
        return replace(
            self.result(counts, gone, over),
            summary=f"done before by this task: {_told(counts)}",
            repeated=True,
            touched_topics=topics_of(done.changes),
            touched_scopes=done.touched_scopes,
        )

    def ended(self, status: Fruitless, error: MunimentError) -> DreamResult:
        return replace(self.result(Counts()), status=status, error=error)

    def of_event(self, result: DreamResult) -> dict[str, object]:
        return {"turns": result.turns, "seconds": round(result.seconds, 3), **asdict(result.counts)}

    def trust_of(self, draft: FileChange, held: Trust | None) -> Ruling:
        """A text that a model made of entries of one trust has that: `step_of_merge` saw to its words."""
        asked = self.trust
        return Ruling(asked if draft.after is None or held is None else asked.capped(held))


def dream(request: DreamRequest, place: Place, model: Model, *, cancel: Cancel | None = None) -> DreamResult:
    """Carry out one request; what goes wrong is in the result's `error`, never raised.

    Args:
        request: where to tidy, and whether to do it.
        place: the policy, roots and state; they stay the caller's.
        model: what may merge what is alike; the embedded rules only count that.
        cancel: ends it early; once the commit has begun to write it runs to its end.

    Cost: about half a second for a thousand entries, besides the model.
    """
    return carry_out(_Dreaming(request, place, model), cancel)


def _attempt(task: _Dreaming, scopes: Sequence[Scope]) -> DreamResult:
    """Steps 1 to 5, once."""
    task.notes, limits = [], task.place.policy.limits
    task.files, task.bytes = limits.files_written, limits.write_bytes
    now = timestamp()
    found = [Findings(task, scope, now) for scope in scopes]
    steps = [step for each in found for step in steps_by_code(each)]
    if not task.is_by_rules:
        for each in found:
            steps += _steps_by_model(task, each)
    named = _named(task, steps)
    _check_preview(task.request, named)
    # As of when it looked: what was over then is told to have been so.
    terms = replace(task.terms(task.trust_of), run=replace(task.run(), at=now), stamp=stamp)
    done = commit(steps, replace(terms, attended=task.request.attended))
    if (earlier := task.repeated(done)) is not None:
        return earlier
    task.notes += done.notes
    return replace(_result(task, found, done), digest=named if task.is_dry else None)


def _named(task: _Dreaming, steps: Iterable[ChangeSet]) -> str | None:
    """Return the digest of exactly what would change, as for a forget; None: nothing would."""
    changes = [[each.path.text, each.base, each.digest] for step in steps for each in step.changes]
    return task.place.state.keyed(f"dream {json.dumps(sorted(changes))}") if changes else None


def _steps_by_model(task: _Dreaming, found: Findings) -> Iterator[ChangeSet]:
    """Step 3, for one scope."""
    asker = Asker(task.model, task.budget)
    not_asked = 0
    for group in found.questions():
        if task.budget.turns_left == 0:
            not_asked += len(group)
            continue
        try:
            merges = asker.which_to_merge([each.entry.body for each in group])
        except ModelError as problem:
            if not problem.has_answered:
                raise
            task.notes.append(
                f"{len(group)} entries that are alike stay as they are: {own(str(problem), 'no answer')}"
            )
            continue
        for merge in merges:
            step = step_of_merge(merge, group, task.place.policy)
            if step is None or is_forgotten(task.place.state, merge.text):
                task.notes.append(
                    f"a text of {task.model.name} for {len(merge.drop) + 1} entries is not taken: it says "
                    "more or less than they do or ends sooner, a gate refuses it, or it was erased"
                )
            elif _is_within(task, step) and found.room.take_whole(len(step.changes)):
                task.files -= len(step.changes)
                task.bytes -= _bytes(step)
                yield step
    if not_asked:
        task.notes.append(
            f"{not_asked} entries of {found.scope} that are alike were not asked about any more"
        )


def _is_within(task: _Dreaming, step: ChangeSet) -> bool:
    """Whether a model may still change as much as `step` does."""
    size = len(step.changes)
    if size <= task.files and _bytes(step) <= task.bytes:
        return True
    task.notes.append(f"a merge of {size} entries is more than one run may still write")
    return False


def _bytes(step: ChangeSet) -> int:
    return sum(item.size for item in step.changes)


def _result(task: _Dreaming, found: Sequence[Findings], done: Commit) -> DreamResult:
    """What happened, read from what was committed."""
    gone = {change.path for change in done.changes if change.kind == "delete"}
    over = {holding.path.text for each in found for holding in each.expired} & gone
    groups = [
        tuple(path for path in _paths(group) if path not in gone) for each in found for group in each.alike
    ]
    counts = Counts(
        entries=sum(each.entries for each in found),
        exact_duplicates=sum(each.repeated for each in found),
        near_duplicates=sum(len(group) for each in found for group in each.alike),
        expired=sum(each.past for each in found),
        ended=sum(len(each.ended) for each in found),
        unreadable=sum(each.unreadable for each in found),
        broken_links=sum(each.broken_links for each in found),
        merged=len(gone) - len(over),
        removed_expired=len(over),
        rewritten=len(done.changes) - len(gone),
        left=sum(each.room.left for each in found),
        rejected=done.rejected,
    )
    kept = of_task(task.place.state, task.id) if done.changes and not task.is_dry else None
    ended = tuple(sorted({path for each in found for path in each.ended} - gone))
    return replace(
        task.result(counts, gone, over),
        summary=_summary(counts, is_preview=task.is_dry),
        ended_entries=len(ended) or None,
        ended_paths=ended,
        alike=tuple(group for group in groups if len(group) > 1),
        kept=tuple(kept for each in found for kept in each.kept),
        touched_topics=() if kept is None else topics_of(kept.changes),
        touched_scopes=() if task.is_dry else done.touched_scopes,
    )


def _paths(group: Sequence[Holding]) -> tuple[str, ...]:
    return tuple(each.path.text for each in group)


def _told(counts: Counts) -> str:
    done = {
        "merged": counts.merged,
        "rewrote": counts.rewritten,
        "removed as expired": counts.removed_expired,
    }
    return ", ".join(f"{what} {number}" for what, number in done.items() if number) or "changed nothing"


def _summary(counts: Counts, *, is_preview: bool) -> str:
    left = f"; left {counts.left} for the next dream" if counts.left else ""
    seen = "1 entry" if counts.entries == 1 else f"{counts.entries} entries"
    return f"{'would have ' if is_preview else ''}{_told(counts)}; {seen} looked at{left}"
