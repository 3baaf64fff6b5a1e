"""Write judged changes to disk and to a journal, both or neither, and roll back interrupted commits.

A commit is two steps of a journal: an *intent*, which contains all that recovery needs to roll it back, and
*done*, which makes it history. The files change in between. A commit that is not done is rolled back: at once
if it fails, by `recover` if its process was killed, both by the same code.

- R1 `recover` runs under the locks of the roots. A commit of a living process holds its locks, so an
  unfinished intent found here belongs to no living process.
- R2 a file is touched only if it is in its state before or after the commit. Any other state is later work of
  another process: it stays, and the journal records a conflict.
- R3 after a rollback, the commit leaves no file, no unused directory that it created, and no temporary name;
  displaced work of another process is saved as an entry.
- R4 the journal closes an intent last, and only if every file was read in its state before the commit or as
  changed by another process. Any error or interrupt before that, also a second one, leaves the intent open:
  the next recovery continues.
- R5 a journal is trusted only for changes that it may have made: bytes are restored only to the path for
  which it recorded them, and only if the policy would allow that now.
- R6 `replay` writes files of entries in locked roots, and each only if the current file is the one that the
  journal recorded: another process's change of a copy is detected, not overwritten.
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
        number: number of the commit in its journal.
        token: beginning of its temporary names, see `temporary_of`.
        changes: by the number that selects their temporary names; those of other roots may be left out.
        made: directories that did not exist before it.
        task: the task of the commit, for reports.
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
        left: files that were not touched, since another process changed them or the policy now denies it.
        kept: files with saved work of other processes.
    """

    intent: Intent
    left: tuple[CanonicalPath, ...]
    kept: tuple[CanonicalPath, ...]


class Journal(Protocol):
    """A record of begun and finished commits. Each call is durable when it returns."""

    def begin(self, judged: Judged, token: str) -> int:
        """Record an intent and return its number."""

    def finish(self, number: int, judged: Judged, notes: Sequence[str]) -> None:
        """Mark an intent as done."""

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovered | None = None) -> None:
        """Close an intent: only the effects listed in `recovered` remain in the files of `scopes`.

        If `recovered` is given, the journal retains the origin of the text, since it may have been edited.
        """

    def unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        """Return the commits that were begun in any of `scopes` and are not done, the newest first."""

    def knows(self, path: CanonicalPath, of: Digest) -> bool:
        """Return whether a file with that digest was at the path, before or after a commit."""


def new_token() -> str:
    """Return random text for the temporary names of one commit."""
    return secrets.token_hex(_TOKEN_BYTES)


def temporary_of(token: str, number: int) -> str:
    """Return the temporary name for change `number`, below 32 768, of the commit with that token."""
    return temporary_name(lambda _: bytes.fromhex(token) + number.to_bytes(_COUNTER_BYTES, "big"))


def temporary_of_index(token: str, number: int) -> str:
    """Return the temporary name for index file `number` of the commit with that token."""
    return temporary_of(token, _FIRST_OF_INDEX + number)


def is_of_index(temporary: str) -> bool:
    """Return whether a temporary name of a commit is from `temporary_of_index`."""
    start = len(temporary_of("", 0)) - len(".tmp") + 2 * (_TOKEN_BYTES - _COUNTER_BYTES)
    return int(temporary[start : start + 2 * _COUNTER_BYTES], 16) >= _FIRST_OF_INDEX


@contextmanager
def recover(
    held: LockedRoots, journal: Journal, policy: Policy, facts: Facts
) -> Iterator[tuple[Recovered, ...]]:
    """Roll back unfinished commits in locked roots (R1 to R5); the end of the block closes their intents.

    The block updates data that is derived from the files. If it fails, the next recovery repeats everything.

    Args:
        held: the locked roots.
        journal: the journal with the intents.
        policy: decides which changes may be rolled back now; the others stay and are reported.
        facts: identifies generated index files.

    Raises:
        ManagedMemoryUnavailable: a file or the journal cannot be written; nothing is lost, the next
            recovery tries again.
        Any error of `journal` and of the block, with the same effect.
    """
    done = tuple(_recovered(each, held, journal.knows, policy, facts) for each in journal.unfinished(held))
    yield done
    for each in done:
        journal.abandon(each.intent.number, frozenset(held), each)


@dataclass(slots=True)
class Writing:
    """A commit that is written inside the block of a `with` statement, all or none.

    The block calls `land`, updates derived data, and calls `finish`. An error or an interrupt in between
    rolls back, while the locks are held. If that fails now, the next recovery does it.

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
        """Do nothing: an interrupt just before the block would not be noticed."""
        return self

    def land(self) -> Landed:
        """Record the intent in the journal, then write the files.

        Raises:
            TypeError, KeyError: as `check_landable`: nothing is begun.
            StoreConflict, PathEscape, NotAFile, ManagedMemoryUnavailable: as `land`; nothing is changed.
            RollbackFailed: no other commit runs in these roots until the next recovery has rolled this one
                back.
            Any error of the journal.
        """
        check_landable(self._judged, self._held)
        self._number = self._journal.begin(self._judged, self.token)
        landed = land(self._judged, self._held, partial(temporary_of, self.token), begun=self._begun)
        self._is_landed = True
        return landed

    def finish(self, notes: Sequence[str]) -> None:
        """Mark the commit as done; the journal stores `notes` with it, lines for a person.

        Raises:
            TypeError, KeyError: as `check_landable`: without the locks, another process may have rolled it
            back.
            Any error of the journal, which has no such intent if `land` was not called.
        """
        check_landable(self._judged, self._held)
        self._journal.finish(self._number, self._judged, tuple(notes))
        self._is_finished = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Roll back an unfinished commit; raise `RuntimeError` if the block raised no error."""
        if self._is_finished:
            return
        # An interrupt may arrive just before the number is stored here, or just after the journal marked it
        # done.
        ours = [each for each in self._journal.unfinished(self._held) if each.token == self.token]
        for each in ours:  # R4: no code here may close the intent early.
            made = tuple(directory for directories in self._judged.made for directory in directories)
            intent = replace(each, changes=dict(enumerate(self._judged.change_set.changes)), made=made)
            done = _roll_back(intent, self._begun, self._held, self._facts)
            if not self._is_landed and not done.left and not done.kept:
                self._journal.abandon(each.number, frozenset(self._held))
            # If not, the next recovery closes it: that also corrects derived data, and records conflicts.
        if error is None:
            raise RuntimeError("the block of a commit ended without a call of finish")


def replay(changes: Collection[FileChange], held: LockedRoots) -> None:
    """Repeat in a copy of the memory the changes that were judged and written in another one (R6).

    They are not judged again: write access to the journal includes the files of the copy, and nothing more.
    The write is not durable: an interrupted copy is created again.

    Args:
        changes: each with the previous bytes; no index names.
        held: the locked roots of the copy.

    Raises:
        Refusal: a path is not that of an entry.
        TypeError, KeyError: an item is not a change, or its root is not locked.
        StoreConflict: a file is not the expected one. Nothing is changed.
        PathEscape, NotAFile, ManagedMemoryUnavailable, RollbackFailed: as `land`.
    """
    chosen = plain(ChangeSet(tuple(changes))).changes
    for each in chosen:
        check_suffix(each.path)
        if each.path.rel == INDEX_NAME or each.path.rel.split("/")[0] == INDEX_DIRECTORY:
            raise Refused("an index is generated from entries", rule="replay", layer="kernel")
    land(Replayed(_SEAL, chosen), held, partial(temporary_of, new_token()), durable=False)


def clear_index(held: LockedRoots, scope: Scope, facts: Facts) -> tuple[CanonicalPath, ...]:
    """Remove temporary files of killed index writes; return files that save work of other processes.

    An index is written under the lock of its root, which the caller holds: so no living process wrote these.
    """
    places = [CanonicalPath(scope, RelPath(rel)) for rel in ("", INDEX_DIRECTORY)]
    return tuple(path for place in places for path in _clear(place, held, facts))


def _recovered(intent: Intent, held: LockedRoots, knows: Known, policy: Policy, facts: Facts) -> Recovered:
    numbered = zip(intent.changes, plain(ChangeSet(tuple(intent.changes.values()))).changes, strict=True)
    ours = {number: each for number, each in numbered if each.path.scope in held}
    decider = Judge(policy)
    may = {number for number, each in ours.items() if _may_return(each, knows, decider)}
    # Only permitted directories, as new objects: a journal may use objects of other classes.
    above = {directory for number in may for directory in _above(ours[number].path)}
    made = tuple(each for each in above if each in intent.made)
    done = _roll_back(replace(intent, changes=ours, made=made), may, held, facts)
    refused = tuple(each.path for number, each in ours.items() if number not in may)
    return Recovered(intent, (*done.left, *refused), done.kept)


def _roll_back(intent: Intent, begun: Collection[int], held: LockedRoots, facts: Facts) -> Recovered:
    """Roll back an intent; see R2 and R3.

    Args:
        intent: with its changes in the roots of `held`, and the directories to remove if they are empty.
        begun: numbers of the changes that may have touched their file. Of the others only temporary names are
            removed.
        held: the locked roots.
        facts: identifies generated index files.

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
    """Call `clear` for the names that begin with `prefix`; if it is empty, for those of any index write."""

    def is_worthless(name: str, content: bytes) -> bool:
        return is_of_index(name) and facts.is_index(directory.scope, content)

    return clear(
        directory, held, lambda name: name.startswith(prefix) if prefix else is_of_index(name), is_worthless
    )


def _may_return(change: FileChange, knows: Known, decider: Judge) -> bool:
    """Return whether the change may be rolled back (R5)."""
    if change.before is not None and change.after is None:
        verdict = decider.decide_removal(change.path)
    else:
        verdict = decider.decide(Verb.CREATE if change.before is None else Verb.MODIFY, change.path)
    if isinstance(verdict, Deny):
        return False
    return change.before is None or knows(change.path, digest(change.before))


def _above(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """Yield the directories above a file, without the root."""
    while (path := path.parent).rel:
        yield path
