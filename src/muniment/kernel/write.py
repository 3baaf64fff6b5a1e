"""Write judged changes to disk and to a journal, both or neither, and roll back what was interrupted.

A commit is two steps of a journal: an *intent*, which holds all that recovery needs to take it back, and
*done*, which makes it history. In between the files change. What is not done is rolled back: at once if the
commit fails, by `recover` if its process was killed, both by the same code.

- R1 `recover` runs under the locks of the roots. A commit of a living process holds its locks, so an intent
  that is unfinished here belongs to no process any more.
- R2 a file is touched only if it is as before the commit or as that left it. Anything else is somebody's
  later work: it stays, and the journal gets it as a conflict.
- R3 afterwards nothing of the commit is left: no file, no directory that it made and nobody uses, no
  temporary name; what a person wrote meanwhile and was displaced is kept as an entry.
- R4 the journal closes an intent last, and only if every file was read in its state before the commit or as
  changed by somebody else. Any error or interrupt before that, also a second one, keeps the intent: the next
  recovery goes on.
- R5 a journal is believed about what it may have done and no more: bytes come back only to where it knows
  them from, and nothing is rolled back that the policy would not let be done now.
- R6 `replay` writes files of entries in locked roots, and each only where what stands there is what the
  journal says was there: what somebody else made of a copy is found, not written over.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, Self

from muniment.kernel._directory import temporary_name
from muniment.kernel.change import _SEAL, ChangeSet, FileChange, Judged, Replayed, Rollback, digest, plain
from muniment.kernel.decide import Deny, Judge, Policy
from muniment.kernel.judge import Facts, Known
from muniment.kernel.land import Landed, LockedRoots, check_landable, clear, land, remove_directories
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, Digest, RelPath, Scope, Verb
from muniment.kernel.path import CanonicalPath, check_suffix
from muniment.kernel.refusal import Refused

_TOKEN_BYTES: Final = 6
_COUNTER_BYTES: Final = 2
_FIRST_OF_INDEX: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit that was begun.

    Attributes:
        number: of the commit in its journal.
        token: with which its temporary names begin, see `temporary_of`.
        changes: by the number that chooses their temporary names; those of other roots may be left out.
        made: directories that did not exist before it.
        task: for what it is told of.
    """

    number: int
    token: str
    changes: Mapping[int, FileChange]
    made: tuple[CanonicalPath, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of rolling back an intent.

    Attributes:
        intent: the commit.
        left: files that were left alone, since somebody changed them or the policy now denies it.
        kept: files that hold what somebody wrote meanwhile.
    """

    intent: Intent
    left: tuple[CanonicalPath, ...]
    kept: tuple[CanonicalPath, ...]


class Journal(Protocol):
    """What was begun and done. Each call is durable when it returns."""

    def begin(self, judged: Judged, token: str) -> int:
        """Keep an intent; its number."""

    def finish(self, number: int, judged: Judged, notes: Sequence[str]) -> None:
        """Make an intent history."""

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovered | None = None) -> None:
        """Close an intent: nothing of it is left in the files of `scopes` but what `recovered` says.

        If `recovered` is given, the journal keeps where the text is from: somebody may have edited it.
        """

    def unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        """What was begun in any of `scopes` and is not done, the newest first."""

    def knows(self, path: CanonicalPath, of: Digest) -> bool:
        """Whether bytes of that digest stood at the path, before or after a commit."""


def new_token() -> str:
    """Random text for the temporary names of one commit."""
    return secrets.token_hex(_TOKEN_BYTES)


def temporary_of(token: str, number: int) -> str:
    """The temporary name for the change of a number, below 32 768, of the commit with that token."""
    return temporary_name(lambda _: bytes.fromhex(token) + number.to_bytes(_COUNTER_BYTES, "big"))


def temporary_of_index(token: str, number: int) -> str:
    """As `temporary_of`, for the number of an index file."""
    return temporary_of(token, _FIRST_OF_INDEX + number)


def is_of_index(temporary: str) -> bool:
    """Whether a temporary name of a commit is one of `temporary_of_index`."""
    start = len(temporary_of("", 0)) - len(".tmp") + 2 * (_TOKEN_BYTES - _COUNTER_BYTES)
    return int(temporary[start : start + 2 * _COUNTER_BYTES], 16) >= _FIRST_OF_INDEX


@contextmanager
def recover(
    held: LockedRoots, journal: Journal, policy: Policy, facts: Facts
) -> Iterator[tuple[Recovered, ...]]:
    """Roll back unfinished commits in locked roots (R1 to R5); the end of the block closes their intents.

    The block updates what is derived from the files. If it fails, the next recovery does all of it again.

    Args:
        held: where to do it.
        journal: whose intents.
        policy: decides what may be rolled back now; the rest stays as it is and is reported.
        facts: tells an index of ours from what somebody wrote.

    Raises:
        ManagedMemoryUnavailable: a file or the journal cannot be written; nothing is lost, the next
            recovery tries again.
        Any error of `journal` and of the block; likewise.
    """
    done = tuple(_recovered(each, held, journal.knows, policy, facts) for each in journal.unfinished(held))
    yield done
    for each in done:
        journal.abandon(each.intent.number, frozenset(held), each)


@dataclass(slots=True)
class Writing:
    """A commit that is written inside the block of a `with` statement, all or none.

    The block calls `land`, updates what is derived, and calls `finish`. An error or an interrupt anywhere
    between rolls back, while the locks are held; what cannot be rolled back now, the next recovery does.

    Attributes:
        token: for temporary names, see `temporary_of_index`.
    """

    _judged: Judged
    _held: LockedRoots
    _journal: Journal
    _facts: Facts
    token: str = field(default_factory=new_token)
    _begun: set[int] = field(default_factory=set)
    _number: int = 0
    _is_landed: bool = False
    _is_finished: bool = False

    def __enter__(self) -> Self:
        """Begin nothing: an interrupt just before the block would not be noticed."""
        return self

    def land(self) -> Landed:
        """Keep the intent in the journal, then write the files.

        Raises:
            TypeError, KeyError: as `check_landable`: nothing is begun.
            StoreConflict, PathEscape, NotAFile, ManagedMemoryUnavailable: as `land`; nothing is changed.
            RollbackFailed: nothing else is done in these roots until the next recovery has rolled it back.
            Any error of the journal.
        """
        check_landable(self._judged, self._held)
        self._number = self._journal.begin(self._judged, self.token)
        landed = land(self._judged, self._held, partial(temporary_of, self.token), begun=self._begun)
        self._is_landed = True
        return landed

    def finish(self, notes: Sequence[str]) -> None:
        """Make the commit history; the journal keeps `notes` with it, lines for a person.

        Raises:
            TypeError, KeyError: as `check_landable`: somebody may have rolled it back without the locks.
            Any error of the journal, which has no such intent if nothing has landed.
        """
        check_landable(self._judged, self._held)
        self._journal.finish(self._number, self._judged, tuple(notes))
        self._is_finished = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Roll back what is not finished; raise `RuntimeError` if no error says why."""
        if self._is_finished:
            return
        # An interrupt may arrive just before the number is known, or just after the end is in the journal.
        ours = [each for each in self._journal.unfinished(self._held) if each.token == self.token]
        for each in ours:  # R4: nothing here may close the intent early.
            made = tuple(directory for directories in self._judged.made for directory in directories)
            intent = replace(each, changes=dict(enumerate(self._judged.change_set.changes)), made=made)
            done = _roll_back(intent, self._begun, self._held, self._facts)
            if not self._is_landed and not done.left and not done.kept:
                self._journal.abandon(each.number, frozenset(self._held))
            # Else the next recovery closes it: that also corrects what is derived, and records conflicts.
        if error is None:
            raise RuntimeError("the block of a commit ends before it is finished")


def replay(changes: Collection[FileChange], held: LockedRoots) -> None:
    """Carry out in a copy of the memory what was judged and done in another one (R6).

    Nothing judges it anew: whoever may write the journal says what stands in the copy, and nothing beyond.
    It is not durable: a copy that was cut off is made anew.

    Args:
        changes: each with what stood there before; none of them at the name of an index.
        held: the locked roots of the copy.

    Raises:
        Refusal: a path is none of an entry.
        TypeError, KeyError: it is no change, or of a root that is not locked.
        StoreConflict: something else stands there. Nothing is changed.
        PathEscape, NotAFile, ManagedMemoryUnavailable, Stuck: as `land`.
    """
    chosen = plain(ChangeSet(tuple(changes))).changes
    for each in chosen:
        check_suffix(each.path)
        if each.path.rel == INDEX_NAME or each.path.rel.split("/")[0] == INDEX_DIRECTORY:
            raise Refused("an index is made from entries", rule="replay", layer="kernel")
    land(Replayed(_SEAL, chosen), held, partial(temporary_of, new_token()), durable=False)


def clear_index(held: LockedRoots, scope: Scope, facts: Facts) -> tuple[CanonicalPath, ...]:
    """Drop what killed index writes left under temporary names; return files that keep what somebody wrote.

    An index is written under the lock of its root, which the caller holds: so no living process wrote these.
    """
    places = [CanonicalPath(scope, RelPath(rel)) for rel in ("", INDEX_DIRECTORY)]
    return tuple(path for place in places for path in _clear(place, held, facts))


def _recovered(intent: Intent, held: LockedRoots, knows: Known, policy: Policy, facts: Facts) -> Recovered:
    numbered = zip(intent.changes, plain(ChangeSet(tuple(intent.changes.values()))).changes, strict=True)
    ours = {number: each for number, each in numbered if each.path.scope in held}
    decider = Judge(policy)
    may = {number for number, each in ours.items() if _may_return(each, knows, decider)}
    # Those that the rules let, not what equals them: a journal may make objects of its own.
    above = {directory for number in may for directory in _above(ours[number].path)}
    made = tuple(each for each in above if each in intent.made)
    done = _roll_back(replace(intent, changes=ours, made=made), may, held, facts)
    refused = tuple(each.path for number, each in ours.items() if number not in may)
    return Recovered(intent, (*done.left, *refused), done.kept)


def _roll_back(intent: Intent, begun: Collection[int], held: LockedRoots, facts: Facts) -> Recovered:
    """Roll back an intent; see R2 and R3.

    Args:
        intent: with its changes in the roots of `held`, and the directories to remove if nothing is in them.
        begun: numbers of the changes that may have touched their file; of the others temporary names go.
        held: the locked roots.
        facts: tells an index of ours from what somebody wrote.

    Raises:
        ManagedMemoryUnavailable: a file or directory cannot be read or written now.
    """
    numbers, changes = tuple(intent.changes), tuple(intent.changes.values())
    what = Rollback(_SEAL, frozenset(at for at, number in enumerate(numbers) if number in begun), changes)
    landed = land(what, held, lambda at: temporary_of(intent.token, numbers[at]))
    remove_directories(intent.made, held)
    places = {each.path.parent for number, each in intent.changes.items() if number in begun}
    for scope in {each.path.scope for each in changes}:
        places |= {CanonicalPath(scope, RelPath(rel)) for rel in ("", INDEX_DIRECTORY)}
    prefix = temporary_of(intent.token, 0).removesuffix(f"{bytes(_COUNTER_BYTES).hex()}.tmp")
    kept = [path for place in sorted(places) for path in _clear(place, held, facts, prefix)]
    return Recovered(intent, landed.left, tuple(kept))


def _clear(
    directory: CanonicalPath, held: LockedRoots, facts: Facts, prefix: str = ""
) -> tuple[CanonicalPath, ...]:
    """Call `clear` for the names that begin with `prefix`, or for those of any index write."""

    def is_worthless(name: str, content: bytes) -> bool:
        return is_of_index(name) and facts.is_index(directory.scope, content)

    return clear(
        directory, held, lambda name: name.startswith(prefix) if prefix else is_of_index(name), is_worthless
    )


def _may_return(change: FileChange, knows: Known, decider: Judge) -> bool:
    """Whether it may be taken back (R5)."""
    if change.before is not None and change.after is None:
        verdict = decider.decide_removal(change.path)
    else:
        verdict = decider.decide(Verb.CREATE if change.before is None else Verb.MODIFY, change.path)
    if isinstance(verdict, Deny):
        return False
    return change.before is None or knows(change.path, digest(change.before))


def _above(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """The directories above a file, but for the root."""
    while (path := path.parent).rel:
        yield path
