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
from itertools import chain
from typing import Final, Protocol, Self

from muniment.kernel._directory import build_temporary_name
from muniment.kernel.apply import ApplyResult, LockedRoots

# isort: split
from muniment.kernel.apply import apply_changes, clear_temporary_names, remove_directories, require_judged
from muniment.kernel.change import _SEAL, ChangeSet, FileChange, JudgedChanges, ReplayedChanges, Rollback

# isort: split
from muniment.kernel.change import digest, validated_copy
from muniment.kernel.decide import Deny, Policy, PolicyEvaluator
from muniment.kernel.judge import IsKnown, RootInfo
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, Digest, RelPath, Scope, Verb
from muniment.kernel.path import CanonicalPath, check_suffix
from muniment.kernel.refusal import Refused

_TOKEN_BYTES: Final = 6
_COUNTER_BYTES: Final = 2
_FIRST_INDEX_NUMBER: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit that was begun.

    Attributes:
        number: number of the commit in its journal.
        token: beginning of its temporary names, see `get_temporary_name`.
        changes: by the number that selects their temporary names; those of other roots may be left out.
        new_directories: directories that did not exist before it.
        task: the task of the commit, for reports.
    """

    number: int
    token: str
    changes: Mapping[int, FileChange]
    new_directories: tuple[CanonicalPath, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of rolling back an intent.

    Attributes:
        intent: the commit.
        skipped: files that were not touched, since another process changed them or the policy now denies it.
        saved_paths: files with saved work of other processes.
    """

    intent: Intent
    skipped: tuple[CanonicalPath, ...]
    saved_paths: tuple[CanonicalPath, ...]


class Journal(Protocol):
    """A record of begun and finished commits. Each call is durable when it returns."""

    def begin(self, judged: JudgedChanges, token: str) -> int:
        """Record an intent and return its number."""

    def finish(self, number: int, judged: JudgedChanges, notes: Sequence[str]) -> None:
        """Mark an intent as done."""

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovery | None = None) -> None:
        """Close an intent: only the effects listed in `recovered` remain in the files of `scopes`.

        If `recovered` is given, the journal retains the origin of the text, since it may have been edited.
        """

    def list_unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        """Return the commits that were begun in any of `scopes` and are not done, the newest first."""

    def is_known(self, path: CanonicalPath, content_digest: Digest) -> bool:
        """Return whether a file with that digest was at the path, before or after a commit."""


def new_token() -> str:
    """Return random text for the temporary names of one commit."""
    return secrets.token_hex(_TOKEN_BYTES)


def get_temporary_name(token: str, number: int) -> str:
    """Return the temporary name for change `number`, below 32 768, of the commit with that token."""
    return build_temporary_name(lambda _: bytes.fromhex(token) + number.to_bytes(_COUNTER_BYTES, "big"))


def get_index_temporary_name(token: str, number: int) -> str:
    """Return the temporary name for index file `number` of the commit with that token."""
    return get_temporary_name(token, _FIRST_INDEX_NUMBER + number)


def is_index_temporary_name(temporary: str) -> bool:
    """Return whether a temporary name of a commit is from `get_index_temporary_name`."""
    start = len(get_temporary_name("", 0)) - len(".tmp") + 2 * (_TOKEN_BYTES - _COUNTER_BYTES)
    return int(temporary[start : start + 2 * _COUNTER_BYTES], 16) >= _FIRST_INDEX_NUMBER


@contextmanager
def recover(
    locked_roots: LockedRoots, journal: Journal, policy: Policy, root_info: RootInfo
) -> Iterator[tuple[Recovery, ...]]:
    """Roll back unfinished commits in locked roots (R1 to R5); the end of the block closes their intents.

    The block updates data that is derived from the files. If it fails, the next recovery repeats everything.

    Args:
        locked_roots: the locked roots.
        journal: the journal with the intents.
        policy: decides which changes may be rolled back now; the others stay and are reported.
        root_info: identifies generated index files.

    Raises:
        ManagedMemoryUnavailable: a file or the journal cannot be written; nothing is lost, the next
            recovery tries again.
        Any error of `journal` and of the block, with the same effect.
    """
    found = journal.list_unfinished(locked_roots)
    done = tuple(_recover_intent(each, locked_roots, journal.is_known, policy, root_info) for each in found)
    yield done
    for each in done:
        journal.abandon(each.intent.number, frozenset(locked_roots), each)


@dataclass(slots=True)
class CommitWriter:
    """A commit that is written inside the block of a `with` statement, all or none.

    The block calls `apply`, updates derived data, and calls `finish`. An error or an interrupt in between
    rolls back, while the locks are held. If that fails now, the next recovery does it.

    Attributes:
        token: for temporary names, see `get_index_temporary_name`.
    """

    _judged: JudgedChanges
    _locked_roots: LockedRoots
    _journal: Journal
    _root_info: RootInfo
    token: str = field(default_factory=new_token)
    _begun: set[int] = field(default_factory=set)
    _number: int = 0
    _is_applied: bool = False
    _is_finished: bool = False

    def __enter__(self) -> Self:
        """Do nothing: an interrupt just before the block would not be noticed."""
        return self

    def apply(self) -> ApplyResult:
        """Record the intent in the journal, then write the files.

        Raises:
            TypeError, KeyError: as `require_judged`: nothing is begun.
            StoreConflict, PathEscape, NotAFile, ManagedMemoryUnavailable: as `apply_changes`; nothing is
            changed.
            RollbackFailed: no other commit runs in these roots until the next recovery has rolled this one
                back.
            Any error of the journal.
        """
        require_judged(self._judged, self._locked_roots)
        self._number = self._journal.begin(self._judged, self.token)
        name = partial(get_temporary_name, self.token)
        result = apply_changes(self._judged, self._locked_roots, name, begun=self._begun)
        self._is_applied = True
        return result

    def finish(self, notes: Sequence[str]) -> None:
        """Mark the commit as done; the journal stores `notes` with it, lines for a person.

        Raises:
            TypeError, KeyError: as `require_judged`: without the locks, another process may have rolled it
            back.
            Any error of the journal, which has no such intent if `apply_changes` was not called.
        """
        require_judged(self._judged, self._locked_roots)
        self._journal.finish(self._number, self._judged, tuple(notes))
        self._is_finished = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Roll back an unfinished commit; raise `RuntimeError` if the block raised no error."""
        if self._is_finished:
            return
        # An interrupt may arrive just before the number is stored here, or just after the journal marked it
        # done.
        own = [each for each in self._journal.list_unfinished(self._locked_roots) if each.token == self.token]
        for each in own:  # R4: no code here may close the intent early.
            new = tuple(path for directories in self._judged.new_directories for path in directories)
            changes = dict(enumerate(self._judged.change_set.changes))
            intent = replace(each, changes=changes, new_directories=new)
            done = _roll_back(intent, self._begun, self._locked_roots, self._root_info)
            if not self._is_applied and not done.skipped and not done.saved_paths:
                self._journal.abandon(each.number, frozenset(self._locked_roots))
            # If not, the next recovery closes it: that also corrects derived data, and records conflicts.
        if error is None:
            raise RuntimeError("the block of a commit ended without a call of finish")


def replay(changes: Collection[FileChange], locked_roots: LockedRoots) -> None:
    """Repeat in a copy of the memory the changes that were judged and written in another one (R6).

    They are not judged again: write access to the journal includes the files of the copy, and nothing more.
    The write is not durable: an interrupted copy is created again.

    Args:
        changes: each with the previous bytes; no index names.
        locked_roots: the locked roots of the copy.

    Raises:
        Refusal: a path is not that of an entry.
        TypeError, KeyError: an item is not a change, or its root is not locked.
        StoreConflict: a file is not the expected one. Nothing is changed.
        PathEscape, NotAFile, ManagedMemoryUnavailable, RollbackFailed: as `apply_changes`.
    """
    chosen = validated_copy(ChangeSet(tuple(changes))).changes
    for each in chosen:
        check_suffix(each.path)
        if each.path.rel == INDEX_NAME or each.path.rel.split("/")[0] == INDEX_DIRECTORY:
            raise Refused("an index is generated from entries", rule="replay", layer="kernel")
    name = partial(get_temporary_name, new_token())
    apply_changes(ReplayedChanges(_SEAL, chosen), locked_roots, name, durable=False)


def clear_index_leftovers(
    locked_roots: LockedRoots, scope: Scope, root_info: RootInfo
) -> tuple[CanonicalPath, ...]:
    """Remove temporary files of killed index writes; return files that save work of other processes.

    An index is written under the lock of its root, which the caller holds: so no living process wrote these.
    """
    directories = [CanonicalPath(scope, RelPath(rel)) for rel in ("", INDEX_DIRECTORY)]
    return tuple(path for each in directories for path in _clear_directory(each, locked_roots, root_info))


def _recover_intent(
    intent: Intent, locked_roots: LockedRoots, is_known: IsKnown, policy: Policy, root_info: RootInfo
) -> Recovery:
    changes = validated_copy(ChangeSet(tuple(intent.changes.values()))).changes
    numbered = zip(intent.changes, changes, strict=True)
    local = {number: each for number, each in numbered if each.path.scope in locked_roots}
    evaluator = PolicyEvaluator(policy)
    permitted = {number for number, each in local.items() if _may_roll_back(each, is_known, evaluator)}
    # Only permitted directories, as new objects: a journal may use objects of other classes.
    parents = {directory for number in permitted for directory in _iterate_parents(local[number].path)}
    new = tuple(each for each in parents if each in intent.new_directories)
    changed = replace(intent, changes=local, new_directories=new)
    done = _roll_back(changed, permitted, locked_roots, root_info)
    refused = tuple(each.path for number, each in local.items() if number not in permitted)
    return Recovery(intent, (*done.skipped, *refused), done.saved_paths)


def _roll_back(
    intent: Intent, begun: Collection[int], locked_roots: LockedRoots, root_info: RootInfo
) -> Recovery:
    """Roll back an intent; see R2 and R3.

    Args:
        intent: with its changes in the roots of `locked_roots`, and the directories to remove if they are
            empty.
        begun: numbers of the changes that may have touched their file. Of the others only temporary names are
            removed.
        locked_roots: the locked roots.
        root_info: identifies generated index files.

    Raises:
        ManagedMemoryUnavailable: a file or directory cannot be read or written now.
    """
    numbers, changes = tuple(intent.changes), tuple(intent.changes.values())
    rollback = Rollback(_SEAL, frozenset(at for at, each in enumerate(numbers) if each in begun), changes)
    result = apply_changes(rollback, locked_roots, lambda at: get_temporary_name(intent.token, numbers[at]))
    remove_directories(intent.new_directories, locked_roots)
    directories = {each.path.parent for number, each in intent.changes.items() if number in begun}
    for scope in {each.path.scope for each in changes}:
        directories |= {CanonicalPath(scope, RelPath(rel)) for rel in ("", INDEX_DIRECTORY)}
    prefix = get_temporary_name(intent.token, 0).removesuffix(f"{bytes(_COUNTER_BYTES).hex()}.tmp")
    saved = (_clear_directory(each, locked_roots, root_info, prefix) for each in sorted(directories))
    return Recovery(intent, result.skipped, tuple(chain.from_iterable(saved)))


def _clear_directory(
    directory: CanonicalPath, locked_roots: LockedRoots, root_info: RootInfo, prefix: str = ""
) -> tuple[CanonicalPath, ...]:
    """Call `clear_temporary_names` for names that begin with `prefix`, or if empty, of any index write."""

    def is_abandoned(name: str) -> bool:
        return name.startswith(prefix) if prefix else is_index_temporary_name(name)

    def is_worthless(name: str, content: bytes) -> bool:
        return is_index_temporary_name(name) and root_info.is_index(directory.scope, content)

    return clear_temporary_names(directory, locked_roots, is_abandoned, is_worthless)


def _may_roll_back(change: FileChange, is_known: IsKnown, evaluator: PolicyEvaluator) -> bool:
    """Return whether the change may be rolled back (R5)."""
    if change.before is not None and change.after is None:
        verdict = evaluator.decide_removal(change.path)
    else:
        verdict = evaluator.decide(Verb.CREATE if change.before is None else Verb.MODIFY, change.path)
    if isinstance(verdict, Deny):
        return False
    return change.before is None or is_known(change.path, digest(change.before))


def _iterate_parents(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """Yield the directories above a file, without the root."""
    while (path := path.parent).rel:
        yield path
