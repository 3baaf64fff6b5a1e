"""Write files to disk, only from `JudgedChanges`, `GeneratedFiles`, `ReplayedChanges` or `Rollback`.

Promises of `lock_roots` until its block ends:

- L1 This process holds the lock of every given root, and no other process that uses these locks does. The
  lock is `flock` on a descriptor of the root directory that is opened here. So the lock also works between
  two homes that bind the same root.
- L2 Each root was at its bound path at one moment after its lock was acquired.

Promises of `apply_changes` if it succeeds:

- A1 All changes are done. After an error, none of them is done. Every file is staged completely under a
  temporary name before the first file gets its final name, so a full disk is detected before any change is
  visible. An error or interrupt during the renames rolls back the renamed files, unless another process has
  changed them since. After a second interrupt, `write` recovers `JudgedChanges` from its journal; all other
  files are derived and can be rebuilt.
- A2 The promises W1 to W5 of `_directory` are kept, in locked roots.
- A3 A rollback touches a file only if it is in the state after the change. Any other state is later work of
  another process and is not touched. If the change displaced a file of another process, that file gets its
  name back. A rollback reads the disk, not a record of its steps. So the same code rolls back a failed commit
  and recovers a commit whose process was killed.
- A4 A rollback returns only after it has read that every file is in its state before the change, or was
  changed by another process. If a file cannot be read or written now, the rollback raises an error, and the
  next rollback tries again.

Not guaranteed: anything about processes that do not use the lock, such as editors. A process that is forked
while the lock is held keeps the lock until it executes a program or ends. A killed process leaves a change
set half applied, with each file complete: `write.recover` rolls it back.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Final

from muniment.kernel._directory import Directory, ReplaceMethod, StagedFile, build_partial_name

# isort: split
from muniment.kernel._directory import build_rollback_name, convert_os_errors, is_temporary, open_directory

# isort: split
from muniment.kernel._directory import remove_empty_directory, require_temporary_name
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import _SEAL, FileChange, GeneratedFiles, IndexFile, JudgedChanges, Precondition

# isort: split
from muniment.kernel.change import ReplayedChanges, Rollback, Sealed, digest
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, SAVED_NAME, RelPath, Scope
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.kernel.refusal import (
    DeadlineExceeded,
    MunimentError,
    NotAFile,
    NotFound,
    PathEscape,
    RollbackFailed,
    StoreConflict,
    TooLarge,
    ToolError,
)
from muniment.kernel.root import Root
from muniment.kernel.syscalls import LIST, fcntl, os, select

FIRST_PAUSE: Final = 0.002
"""Seconds before the second try to acquire a lock; a commit holds the lock for some milliseconds."""

LONGEST_PAUSE: Final = 0.1
"""Longest pause between two tries to acquire a lock, in seconds."""

_SAVED_NAME_PATTERN: Final = re.compile(rf"{SAVED_NAME}(?:-[0-9]+)?{re.escape(FILE_SUFFIX)}", re.ASCII)

_MAX_SAVED_NAMES: Final = 1000
"""Number of file names that are tried to find a free name for a saved file."""


class LockedRoots(Sealed, Mapping[Scope, BoundRoot], seal=_SEAL):
    """The roots whose locks this process holds, by scope; empty after the block of `lock_roots`."""

    __slots__ = ("_roots",)
    _roots: dict[Scope, BoundRoot]

    def __getitem__(self, scope: Scope) -> BoundRoot:
        return self._roots[scope]

    def __iter__(self) -> Iterator[Scope]:
        return iter(self._roots)

    def __len__(self) -> int:
        return len(self._roots)

    def release(self) -> None:
        """Remove all roots from this mapping. `lock_roots` calls this just before it releases the locks."""
        self._roots.clear()


@contextmanager
def lock_roots(roots: Iterable[BoundRoot], deadline: Deadline) -> Iterator[LockedRoots]:
    """Acquire the locks of all `roots`, and release them when the block ends.

    The yielded `LockedRoots` is empty after the block. The locks are acquired in order of device and inode,
    so that two commits cannot block each other. The pauses between tries to acquire a lock grow.

    Raises:
        DeadlineExceeded: another process held a lock until the deadline.
        Cancelled: the caller cancelled while this function waited.
        TypeError: an item of `roots` is not a `BoundRoot`.
        PathEscape: a root is no longer at its bound path (`root_replaced`).
        ManagedMemoryUnavailable: the file system cannot lock a root.
    """
    chosen = tuple(roots)
    if not all(type(bound) is BoundRoot for bound in chosen):
        raise TypeError("only a BoundRoot can be locked")
    in_order = {(bound.device, bound.inode): bound for bound in chosen}
    with ExitStack() as locks:
        for _identity, bound in sorted(in_order.items()):
            locks.enter_context(_lock(bound.root, deadline))
        for bound in in_order.values():
            bound.verify()
        locked_roots = LockedRoots(_SEAL, {bound.scope: bound for bound in in_order.values()})
        locks.callback(locked_roots.release)
        yield locked_roots


def require_locked(locked_roots: LockedRoots) -> None:
    """Raise `TypeError` unless `locked_roots` was created by `lock_roots`."""
    if type(locked_roots) is not LockedRoots:
        raise TypeError("roots can be written only under their locks; expected the LockedRoots of lock_roots")


def require_judged(judged: JudgedChanges, locked_roots: LockedRoots) -> None:
    """Raise an error unless `judged` was judged for `locked_roots`, under the same locks.

    Raises:
        TypeError: the changes were not judged, or were judged under other locks.
        KeyError: the root of a changed file is not locked.
    """
    require_locked(locked_roots)
    if type(judged) is not JudgedChanges or judged.roots is not locked_roots:
        raise TypeError(
            "the changes were judged under other locks; judge and write them under the same locks"
        )
    for path in judged.change_set.paths:
        locked_roots[path.scope]


@contextmanager
def _lock(root: Root, deadline: Deadline) -> Iterator[None]:
    with convert_os_errors(root.scope):
        fd = root.resolver.open(root.fd, b".", LIST)
    try:
        pause = FIRST_PAUSE
        try:
            while not _try_lock(root.scope, fd):
                deadline.check()
                _pause(deadline, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"another process holds the lock of {root.scope}; try again") from None
        yield
    finally:
        # Closing alone would leave the lock with every process that was forked meanwhile.
        try:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:  # Also if a signal interrupts the lines above.
            os.close(fd)


def _try_lock(scope: Scope, fd: int) -> bool:
    with convert_os_errors(scope):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _pause(deadline: Deadline, seconds: float) -> None:
    """Sleep for `seconds`, at most until the deadline. A cancellation ends the sleep early.

    `flock` itself supports neither a deadline nor a cancellation.
    """
    poller = select.poll()
    if deadline.cancel is not None:
        poller.register(deadline.cancel.fileno(), select.POLLIN)
    remaining = max(0.0, deadline.expires_at - time.monotonic())
    poller.poll(math.ceil(min(seconds, remaining) * 1000))


# -- apply -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of `apply_changes`.

    Attributes:
        degraded: files that were changed by a plain rename, because their file system has no better method.
        skipped: files that a `Rollback` did not touch, because another process had changed them.
    """

    degraded: tuple[CanonicalPath, ...] = ()
    skipped: tuple[CanonicalPath, ...] = ()


def seal_index_files(files: Sequence[IndexFile]) -> GeneratedFiles:
    """Check index files, and return copies of them in the type that `apply_changes` accepts.

    Raises:
        TypeError: an item is not an `IndexFile`, or contains a value that could change later.
        ValueError: a path is not the path of an index file, a file that does not exist is to be removed, or
            `saved_as` does not match `_SAVED_NAME_PATTERN`.
    """
    chosen = tuple(files)
    for file in chosen:
        if type(file) is not IndexFile or type(file.path) is not CanonicalPath:
            raise TypeError("expected an IndexFile with a CanonicalPath")
        is_plain = {type(file.before), type(file.after), NoneType} <= {bytes, Precondition, NoneType}
        if not is_plain or type(file.saved_as) not in {str, NoneType}:
            raise TypeError("an IndexFile must contain only bytes, str, Precondition and None")
        directory, _, name = file.path.rel.rpartition("/")
        is_page = directory == INDEX_DIRECTORY and name.endswith(FILE_SUFFIX)
        if file.path.rel != INDEX_NAME and not is_page:
            raise ValueError(f"{file.path.text} is not {INDEX_NAME} or a page in {INDEX_DIRECTORY}/")
        if file.after is None and not isinstance(file.before, bytes):
            raise ValueError("a file that does not exist cannot be removed; set `before` to its bytes")
        if file.saved_as is not None and _SAVED_NAME_PATTERN.fullmatch(file.saved_as) is None:
            raise ValueError(f"the name of a saved file must match {_SAVED_NAME_PATTERN.pattern}")
    return GeneratedFiles(_SEAL, tuple(replace(file) for file in chosen))


def apply_changes(
    changes: JudgedChanges | GeneratedFiles | ReplayedChanges | Rollback,
    locked_roots: LockedRoots,
    temporary_name: Callable[[int], str],
    *,
    durable: bool = True,
    begun: set[int] | None = None,
) -> ApplyResult:
    """Write all files or none. For a `Rollback`, restore each file independently of the others.

    Args:
        changes: the changes, in one of the types that only the kernel can create.
        locked_roots: the locked roots.
        temporary_name: returns the temporary name for the change with the given number, unique to this
            commit.
        durable: sync everything to disk before returning. If False, a power failure may lose the changes.
        begun: set that receives the number of each change just before its file may be renamed.

    Raises:
        TypeError: the changes are of another type, or were not judged under these locks.
        KeyError: the root of a changed file is not locked.
        StoreConflict: a file is not the one that its change replaces. Nothing is changed.
        PathEscape, NotAFile: a directory on the path of a file was replaced. Nothing is changed.
        ManagedMemoryUnavailable: the disk is full, read-only or broken. Nothing is changed.
        RollbackFailed: one of these errors occurred, and the listed files could not be rolled back.

    A file that was rolled back has its old bytes, but a new inode, a new time and mode 0600.

    Cost: if durable, one fsync per file and directory.
    """
    require_locked(locked_roots)
    begun = set() if begun is None else begun
    if type(changes) is Rollback:
        return ApplyResult(skipped=_roll_back_all(changes, locked_roots, temporary_name))
    if type(changes) is JudgedChanges:
        require_judged(changes, locked_roots)
        files = _convert_to_files(changes.change_set.changes)
    elif type(changes) is ReplayedChanges:
        files = _convert_to_files(changes.changes)
    elif type(changes) is GeneratedFiles:
        files = list(seal_index_files(changes.files).files)  # Copies
    else:
        raise TypeError("expected JudgedChanges, GeneratedFiles, ReplayedChanges or Rollback")
    return ApplyResult(degraded=_apply_files(files, locked_roots, temporary_name, begun, durable=durable))


def _convert_to_files(changes: Sequence[FileChange]) -> list[IndexFile]:
    absent = Precondition.ABSENT
    return [IndexFile(one.path, absent if one.before is None else one.before, one.after) for one in changes]


@dataclass(frozen=True, slots=True)
class _PendingFile:
    number: int
    file: IndexFile
    directory: Directory
    temporary: str
    save_target: tuple[Directory, str] | None

    @property
    def name(self) -> str:
        return self.file.path.name

    @property
    def staged(self) -> StagedFile | None:
        """Return the new file under its temporary name, or None if the change removes the file."""
        return None if self.file.after is None else StagedFile(self.temporary, digest(self.file.after))


@dataclass(slots=True)
class _Progress:
    """The steps of a write that must be rolled back if the write fails.

    Attributes:
        locked_roots: the locked roots.
        opened: stack that closes the open directories.
        begun: numbers of the files whose rename was about to start. Only the disk shows whether the rename
            was done, because an interrupt may arrive between the work of a call and its return.
        directories: open directories, by path.
        items: files that have a temporary name, or were about to get one.
    """

    locked_roots: LockedRoots
    opened: ExitStack
    begun: set[int]
    directories: dict[CanonicalPath, Directory] = field(default_factory=dict)
    items: list[_PendingFile] = field(default_factory=list)

    def open(self, directory: CanonicalPath) -> Directory:
        if directory not in self.directories:
            root = self.locked_roots[directory.scope].root
            opened = self.opened.enter_context(open_directory(root, directory, create=True))
            self.directories[directory] = opened
        return self.directories[directory]


def _apply_files(
    files: Sequence[IndexFile],
    locked_roots: LockedRoots,
    temporary: Callable[[int], str],
    begun: set[int],
    *,
    durable: bool,
) -> tuple[CanonicalPath, ...]:
    """Stage all files, then rename all of them; return the paths that were changed by a plain rename."""
    # A link that a generated file replaced cannot be restored, so it is replaced last.
    in_order = sorted(enumerate(files), key=lambda each: each[1].before is Precondition.LINK)
    methods: dict[CanonicalPath, ReplaceMethod] = {}
    with ExitStack() as opened:
        progress = _Progress(locked_roots, opened, begun)
        try:
            for number, file in in_order:
                _stage(number, file, temporary(number), progress, durable=durable)
            for item in progress.items:
                methods[item.file.path] = _publish_recorded(item, begun)
            if durable:
                for directory in progress.directories.values():
                    directory.sync()
        except BaseException as error:
            _roll_back_progress(progress, error)
            raise
    return tuple(path for path, method in methods.items() if method is not ReplaceMethod.ATOMIC)


def _publish_recorded(item: _PendingFile, begun: set[int]) -> ReplaceMethod:
    """Add the number of `item` to `begun`, then give `item` its final name."""
    begun.add(item.number)
    try:
        return _publish(item)
    except StoreConflict:
        # After a conflict, the previous file has its name again. If another process used that name meanwhile,
        # its file may be under the temporary name.
        if _read_state(item.directory, item.temporary) == item.file.after:
            begun.discard(item.number)
        raise


def _stage(number: int, file: IndexFile, temporary: str, progress: _Progress, *, durable: bool) -> None:
    require_temporary_name(temporary)
    directory, save_target = progress.open(file.path.parent), None
    if file.saved_as is not None and isinstance(file.before, bytes):
        save_target = progress.open(CanonicalPath(file.path.scope, RelPath(""))), file.saved_as
    progress.items.append(_PendingFile(number, file, directory, temporary, save_target))
    if file.after is not None:
        directory.stage(temporary, file.after, durable=durable)


def _publish(item: _PendingFile) -> ReplaceMethod:
    before, staged = item.file.before, item.staged
    if staged is None and isinstance(before, bytes):
        return item.directory.remove(item.name, item.temporary, digest(before))
    assert staged is not None  # noqa: S101  for the type checker: a missing file is not removed
    if item.save_target is not None and isinstance(before, bytes):
        item.directory.move_to(item.name, *item.save_target, digest(before))
        before = Precondition.ABSENT
    return _replace_name(item.directory, item.name, staged, before)


def _replace_name(
    directory: Directory, name: str, staged: StagedFile, before: bytes | Precondition | None
) -> ReplaceMethod:
    """Replace the current file `name` with a staged file.

    Args:
        directory: the directory of the file.
        name: the final name.
        staged: the new file.
        before: the expected current file: its bytes, or `Precondition.LINK` for a link. For any other value,
            `name` must be free.
    """
    if isinstance(before, bytes):
        return directory.replace(staged, name, digest(before))
    if before is Precondition.LINK:
        return directory.replace_link(staged, name)
    return directory.publish_new(staged, name)


def _roll_back_progress(progress: _Progress, cause: BaseException) -> None:
    """Roll back every file of a failed write, and remove the directories that the write created."""
    failed_paths: list[str] = []
    for item in reversed(progress.items):
        try:
            if not _roll_back_item(item, is_begun=item.number in progress.begun):
                failed_paths.append(item.file.path.text)
        except MunimentError:
            failed_paths.append(item.file.path.text)
    # In reverse, since a later directory may be in an earlier one.
    for directory in reversed(progress.directories.values()):
        for created in reversed(directory.created):
            try:
                remove_empty_directory(directory.root, created)
            except MunimentError:
                failed_paths.append(created.text)
    if failed_paths:
        raise RollbackFailed(
            "memory",
            f"the write failed ({str(cause) or type(cause).__name__}) and could not be rolled back for "
            f"{', '.join(failed_paths)}; the next command that opens this memory tries again",
        ) from cause


def _roll_back_item(item: _PendingFile, *, is_begun: bool) -> bool:
    """Roll back one file; return whether the file is in its state before the write."""
    directory, after = item.directory, item.file.after
    before = item.file.before if isinstance(item.file.before, bytes) else None
    if item.file.before is Precondition.LINK and is_begun:
        return _restore_link(item)
    if item.save_target is not None and before is not None and is_begun:
        saved_directory, saved_name = item.save_target
        is_present = _read_if_exists(directory, item.name) == before
        if not is_present and _read_if_exists(saved_directory, saved_name) == before:
            is_restored = _restore(directory, item.name, None, after, item.temporary, is_begun=True)
            saved_directory.move_to(saved_name, directory, item.name, digest(before))
            return is_restored
        is_begun = False  # The file was not moved aside.
    return _restore(directory, item.name, before, after, item.temporary, is_begun=is_begun)


def _restore_link(item: _PendingFile) -> bool:
    """Roll back the replacement of a link, as far as possible.

    Returns:
        False if the link was already removed, so that it cannot be restored.
    """
    displaced = _read_if_exists(item.directory, item.temporary)
    if displaced is not None and displaced != item.file.after:
        staged = StagedFile(item.temporary, digest(displaced))
        _replace_name(item.directory, item.name, staged, item.file.after)
    elif item.staged is not None:
        item.directory.discard(item.staged)
    return displaced is not None


# -- roll back ---------------------------------------------------------------------------------------


def _roll_back_all(
    changes: Rollback, locked_roots: LockedRoots, temporary: Callable[[int], str]
) -> tuple[CanonicalPath, ...]:
    """Roll back each file of an interrupted commit.

    Returns:
        The paths that another process has changed. They are not touched.

    Raises:
        RollbackFailed: a file cannot be read or written now.
    """
    skipped: list[CanonicalPath] = []
    failed: dict[str, MunimentError] = {}
    for number, change in reversed(list(enumerate(changes.changes))):
        is_begun = number in changes.begun
        root, path = locked_roots[change.path.scope].root, change.path
        try:
            with open_directory(root, path.parent, create=False) as directory:
                is_restored = _restore(
                    directory, path.name, change.before, change.after, temporary(number), is_begun=is_begun
                )
                directory.sync()
        except NotFound:
            # The directory is missing: a new file does not exist, and another process has removed an old one.
            is_restored = change.before is None
        except (PathEscape, NotAFile):
            is_restored = False  # Another process put a link or a file in place of a directory.
        except MunimentError as error:
            failed[path.text] = error
            continue
        if is_begun and not is_restored:
            skipped.append(path)
    if failed:
        raise RollbackFailed(
            "memory",
            f"an interrupted change of {', '.join(sorted(failed))} cannot be rolled back now "
            f"({next(iter(failed.values()))}); the next command that opens this memory tries again",
        )
    return tuple(skipped)


def _restore(
    directory: Directory,
    name: str,
    before: bytes | None,
    after: bytes | None,
    temporary: str,
    *,
    is_begun: bool,
) -> bool:
    """Restore the file `name` to `before`, and remove the files that the change left under temporary names.

    Args:
        directory: directory of the file.
        name: name of the file.
        before: its bytes before the change; None: it did not exist.
        after: its bytes after the change; None: the change removed it.
        temporary: the temporary name of the change.
        is_begun: whether the change may have renamed the file. If False, `name` is not touched.

    Returns:
        True if `name` is in the state `before`, or the change never touched it. False if another process has
        changed it.

    Raises:
        MunimentError: a file cannot be read or written now.
    """
    rollback_temporary = build_rollback_name(temporary)
    directory.drop_partial(temporary)
    # If the new bytes are still under the temporary name, the rename was not done or is rolled back.
    is_untouched = not is_begun or (after is not None and _read_state(directory, temporary) == after)
    for temporary_path, replacement in ((rollback_temporary, before), (temporary, after)):
        _clear_temporary(directory, name, temporary_path, (before, after, replacement), is_begun=is_begun)
    if is_untouched:
        return True
    if before != after == _read_state(directory, name):
        try:
            if before is None:
                directory.remove(name, rollback_temporary, digest(after or b""))
            else:
                _replace_name(directory, name, directory.stage(rollback_temporary, before), after)
        except StoreConflict:
            _clear_temporary(directory, name, rollback_temporary, (before, after, before), is_begun=True)
    return _read_state(directory, name) == before


def _clear_temporary(
    directory: Directory,
    name: str,
    temporary: str,
    states: tuple[bytes | None, bytes | None, bytes | None],
    *,
    is_begun: bool,
) -> None:
    """Empty a temporary name: remove generated bytes, and give a displaced file its name back.

    If another file has that name by now, the displaced file stays until `clear_temporary_names` renames it.

    Args:
        directory: directory of the file.
        name: the name that a displaced file had before.
        temporary: the temporary name.
        states: the bytes before the change, the bytes after it, and which of these two was staged under
            `temporary`. None: no file.
        is_begun: whether the change may have renamed the file. If False, no file can have been displaced.
    """
    before, after, replacement = states
    found = _read_state(directory, temporary)
    if found is None:
        return
    if is_begun and found != after != before:
        content = found if isinstance(found, bytes) else b""
        try:
            _replace_name(
                directory,
                name,
                StagedFile(temporary, digest(content)),
                after if found == before else replacement,
            )
        except StoreConflict:
            found = _read_state(directory, temporary)  # Another process exchanged the name again.
        else:
            return
    # The bytes of `before` are dropped only if another process has replaced them with its file.
    is_replaced = is_begun and found == before and _read_state(directory, name) is not Precondition.LINK
    if isinstance(found, bytes) and (found == after or is_replaced):
        directory.discard(StagedFile(temporary, digest(found)))


def _read_state(directory: Directory, name: str) -> bytes | Precondition | None:
    """Return the state of a file: its bytes, None if it does not exist, or `LINK`.

    `LINK` means anything except a regular file that can be read.

    Raises:
        ManagedMemoryUnavailable: the file cannot be read now.
    """
    try:
        return _read_if_exists(directory, name)
    except (PathEscape, ToolError):
        return Precondition.LINK


def _read_if_exists(directory: Directory, name: str) -> bytes | None:
    """Return the bytes of a file, or None if it does not exist.

    Raises:
        MunimentError: any other error of `Directory.read`.
    """
    try:
        return directory.read(name)
    except NotFound:
        return None


# -- clear -------------------------------------------------------------------------------------------


def clear_temporary_names(
    directory: CanonicalPath,
    locked_roots: LockedRoots,
    is_abandoned: Callable[[str], bool],
    is_disposable: Callable[[str, bytes], bool],
) -> tuple[CanonicalPath, ...]:
    """Remove the temporary files that ended processes left in a directory.

    Files that may not be removed, such as a file that another process wrote, get a free name.

    Args:
        directory: the directory to clear.
        locked_roots: the locked roots.
        is_abandoned: gets a temporary name; returns whether the process that created it has ended.
        is_disposable: gets a temporary name and its bytes; returns whether the file may be removed.

    Returns:
        The paths of the files that got a free name.

    Raises:
        ManagedMemoryUnavailable: a file cannot be read or written now.
    """
    require_locked(locked_roots)
    saved_paths: list[CanonicalPath] = []
    root = locked_roots[directory.scope].root
    try:
        names = [each.name for each in root.list_directory(directory)]
        opened = open_directory(root, directory, create=False)
    except (NotFound, PathEscape, NotAFile):
        return ()
    with opened:
        for name in (name for name in names if is_temporary(name) and is_abandoned(name)):
            if build_partial_name(name) == name:
                opened.drop_partial(name)
                continue
            content = None
            try:
                content = opened.read(name)
            except TooLarge:
                pass  # Generated files are smaller, so another process wrote it.
            except (PathEscape, ToolError):
                continue  # A link or special file of another process stays as it is.
            if content is not None and is_disposable(name, content):
                opened.discard(StagedFile(name, digest(content)))
            else:
                saved_paths.append(directory.child(_publish_free(opened, name)))
        opened.sync()
    return tuple(saved_paths)


def _publish_free(directory: Directory, temporary: str) -> str:
    """Rename a temporary file to the first free name for saved files; return that name."""
    for number in range(1, _MAX_SAVED_NAMES):
        name = f"{SAVED_NAME}{FILE_SUFFIX}" if number == 1 else f"{SAVED_NAME}-{number}{FILE_SUFFIX}"
        with suppress(StoreConflict):
            directory.publish_new(StagedFile(temporary, digest(b"")), name)
            return name
    raise StoreConflict((f"{directory.path.text}/{SAVED_NAME}",))


def remove_directories(directories: Iterable[CanonicalPath], locked_roots: LockedRoots) -> None:
    """Remove each directory of `directories` that is empty, the innermost first.

    Raises:
        TypeError: the roots are not locked.
        ManagedMemoryUnavailable: the system denies the removal.
    """
    require_locked(locked_roots)
    for directory in sorted(set(directories), key=lambda each: len(each.rel), reverse=True):
        with suppress(PathEscape):  # Another process replaced it with a link.
            remove_empty_directory(locked_roots[directory.scope].root, directory)
