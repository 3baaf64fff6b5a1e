"""Write judged changes to disk and to a journal, both or neither, and roll back interrupted commits.

The journal records a commit in two steps. The *intent* contains everything that is needed to roll the commit
back. *Done* makes the commit part of the history. The files change between the two steps. A commit that is
not done is rolled back: immediately if it fails, or by `recover` if its process was killed. The same code
does both.

- R1 `recover` runs under the locks of the roots. A commit of a living process holds its locks, so an
  unfinished intent that is found under them belongs to no living process.
- R2 A file is touched only if it is in its state before or after the commit. Any other state is later work of
  another process: it stays, and the journal records a conflict.
- R3 After a rollback, the commit leaves no file, no unused directory that it created, and no temporary name.
  Displaced work of another process is saved as an entry.
- R4 The journal closes an intent last, and only if every file was read in its state before the commit or as
  changed by another process. Any earlier error or interrupt, even a second one, leaves the intent open, and
  the next recovery continues.
- R5 A rollback does not trust the journal completely. It restores bytes only to the path for which the
  journal recorded them, and only if the policy allows that now.
- R6 `replay` writes only files of entries in locked roots, and each only if the current file is the one that
  the journal recorded. So a change of a copy by another process is detected, not overwritten.
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
    """A commit that was begun, as the journal recorded it.

    Attributes:
        number: number of the commit in its journal.
        token: text from which the temporary names of the commit are built, see `get_temporary_name`.
        changes: the changes by number, which selects their temporary names. Changes in other roots may be
            left out.
        new_directories: directories that did not exist before the commit.
        task: the task of the commit, for reports.
    """

    number: int
    token: str
    changes: Mapping[int, FileChange]
    new_directories: tuple[CanonicalPath, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of rolling back one commit.

    Attributes:
        intent: the commit.
        skipped: files that were not touched, because another process changed them or the policy now denies
            it.
        saved_paths: files in which work of other processes was saved.
    """

    intent: Intent
    skipped: tuple[CanonicalPath, ...]
    saved_paths: tuple[CanonicalPath, ...]


class Journal(Protocol):
    """The record of the commits that were begun and finished. Each call is durable when it returns."""

    def begin(self, judged: JudgedChanges, token: str) -> int:
        """Record the intent to write `judged`, and return the number of the commit.

        Args:
            judged: the changes.
            token: text from which the temporary names of the commit are built.
        """

    def finish(self, number: int, judged: JudgedChanges, notes: Sequence[str]) -> None:
        """Mark a commit as done.

        Args:
            number: number of the commit.
            judged: its changes.
            notes: lines for a person, which are stored with the commit.
        """

    def abandon(self, number: int, scopes: Collection[Scope], recovered: Recovery | None = None) -> None:
        """Close the intent of a commit that was rolled back in the roots of `scopes`.

        Args:
            number: number of the commit.
            scopes: the scopes in whose roots it was rolled back.
            recovered: the result of a recovery. The effects that it lists remain in the files, and the
                journal keeps the origin of their text, which may have been edited. None: no effect remains.
        """

    def list_unfinished(self, scopes: Collection[Scope]) -> Sequence[Intent]:
        """Return the commits that were begun in any of `scopes` and are not done, the newest first."""

    def is_known(self, path: CanonicalPath, content_digest: Digest) -> bool:
        """Return whether the journal recorded a file with this digest at `path`, before or after a commit."""


def new_token() -> str:
    """Return random text from which the temporary names of one commit are built."""
    return secrets.token_hex(_TOKEN_BYTES)


def get_temporary_name(token: str, number: int) -> str:
    """Return the temporary name for change `number`, below 32 768, of the commit with this token."""
    return build_temporary_name(lambda _: bytes.fromhex(token) + number.to_bytes(_COUNTER_BYTES, "big"))


def get_index_temporary_name(token: str, number: int) -> str:
    """Return the temporary name for index file `number` of the commit with this token."""
    return get_temporary_name(token, _FIRST_INDEX_NUMBER + number)


def is_index_temporary_name(temporary: str) -> bool:
    """Return whether a temporary name was built by `get_index_temporary_name`.

    Args:
        temporary: a temporary name of a commit.
    """
    start = len(get_temporary_name("", 0)) - len(".tmp") + 2 * (_TOKEN_BYTES - _COUNTER_BYTES)
    return int(temporary[start : start + 2 * _COUNTER_BYTES], 16) >= _FIRST_INDEX_NUMBER


@contextmanager
def recover(
    locked_roots: LockedRoots, journal: Journal, policy: Policy, root_info: RootInfo
) -> Iterator[tuple[Recovery, ...]]:
    """Roll back the unfinished commits in the locked roots, and yield one result for each.

    The block updates data that is derived from the files. At its end, the journal closes the commits. If the
    block fails, the next recovery repeats everything. The rules R1 to R5 in the module docstring apply.

    Args:
        locked_roots: the locked roots.
        journal: the journal with the intents.
        policy: decides which changes may be rolled back now; the other changes stay and are reported.
        root_info: identifies generated index files.

    Raises:
        ManagedMemoryUnavailable: a file or the journal cannot be written. Nothing is lost, and the next
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
    """Writes all changes of a commit or none, in the block of a `with` statement.

    The block calls `apply`, updates derived data, and calls `finish`. If an error or an interrupt occurs
    before `finish` returns, the commit is rolled back under its locks. If that fails, the next recovery rolls
    it back.

    Attributes:
        token: text from which temporary names are built, see `get_index_temporary_name`.
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
        """Return this writer and do nothing else: an interrupt just before the block would not be noticed."""
        return self

    def apply(self) -> ApplyResult:
        """Record the intent in the journal, then write the files.

        Raises:
            TypeError, KeyError: the changes were not judged under these locks. Nothing is begun.
            StoreConflict, PathEscape, NotAFile, ManagedMemoryUnavailable: as described in `apply_changes`.
                Nothing is changed.
            RollbackFailed: no other commit runs in these roots until the next recovery has rolled this commit
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
        """Mark the commit as done in the journal.

        Args:
            notes: lines for a person, which the journal stores with the commit.

        Raises:
            TypeError, KeyError: the locks are no longer held, so another process may have rolled the commit
                back.
            Any error of the journal, which has no such intent if `apply` was not called.
        """
        require_judged(self._judged, self._locked_roots)
        self._journal.finish(self._number, self._judged, tuple(notes))
        self._is_finished = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Roll the commit back unless it is finished.

        Raises:
            RuntimeError: the block ended without an error and without a call of `finish`.
        """
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
    """Repeat in a copy of the memory the changes that were judged and written in the original.

    The changes are not judged again: code that may write to the journal may also write the files of the copy.
    The write is not durable: an interrupted copy is created again. Rule R6 in the module docstring applies.

    Args:
        changes: each with the previous bytes; none of them may change an index.
        locked_roots: the locked roots of the copy.

    Raises:
        Refusal: a path is not the path of an entry.
        TypeError, KeyError: an item is not a change, or its root is not locked.
        StoreConflict: a file is not the expected one. Nothing is changed.
        PathEscape, NotAFile, ManagedMemoryUnavailable, RollbackFailed: as described in `apply_changes`.
    """
    chosen = validated_copy(ChangeSet(tuple(changes))).changes
    for each in chosen:
        check_suffix(each.path)
        if each.path.rel == INDEX_NAME or each.path.rel.split("/")[0] == INDEX_DIRECTORY:
            raise Refused("an index cannot be replayed; it is generated", rule="replay", layer="kernel")
    name = partial(get_temporary_name, new_token())
    apply_changes(ReplayedChanges(_SEAL, chosen), locked_roots, name, durable=False)


def clear_index_leftovers(
    locked_roots: LockedRoots, scope: Scope, root_info: RootInfo
) -> tuple[CanonicalPath, ...]:
    """Remove the temporary files that killed processes left while they wrote an index.

    An index is written under the lock of its root, which the caller holds. So no living process uses these
    files.

    Returns:
        The files in which work of other processes was saved.
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
    """Roll back one commit (R2 and R3 in the module docstring).

    Args:
        intent: the commit, with its changes in the locked roots, and the directories to remove if they are
            empty.
        begun: numbers of the changes that may have touched their file. For the other changes, only temporary
            files are removed.
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
    """Remove temporary files from a directory, as `clear_temporary_names` does; return the saved files.

    Args:
        directory: the directory to clear.
        locked_roots: the locked roots.
        root_info: identifies generated index files.
        prefix: the beginning of the names to clear; if empty, the names of all index writes are cleared.
    """

    def is_abandoned(name: str) -> bool:
        return name.startswith(prefix) if prefix else is_index_temporary_name(name)

    def is_worthless(name: str, content: bytes) -> bool:
        return is_index_temporary_name(name) and root_info.is_index(directory.scope, content)

    return clear_temporary_names(directory, locked_roots, is_abandoned, is_worthless)


def _may_roll_back(change: FileChange, is_known: IsKnown, evaluator: PolicyEvaluator) -> bool:
    """Return whether the policy allows to roll back `change`, and the journal knows the restored bytes."""
    if change.before is not None and change.after is None:
        verdict = evaluator.decide_removal(change.path)
    else:
        verdict = evaluator.decide(Verb.CREATE if change.before is None else Verb.MODIFY, change.path)
    if isinstance(verdict, Deny):
        return False
    return change.before is None or is_known(change.path, digest(change.before))


def _iterate_parents(path: CanonicalPath) -> Iterator[CanonicalPath]:
    """Yield the directories above a file, innermost first, without the root."""
    while (path := path.parent).rel:
        yield path
