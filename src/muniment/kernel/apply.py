"""Write files to the disk, from `JudgedChanges`, `GeneratedFiles`, `ReplayedChanges` or `Rollback` only.

On success of `lock_roots`, until its block ends:

- L1 this process holds the lock of every given root; no other process that uses this lock does. The lock is
  `flock` on a descriptor of the root's directory, opened here. So it also works between two homes that bind
  the same root.
- L2 after its lock was acquired, each root was at its bound path, at one moment.

On success of `apply_changes`:

- A1 all of it is done, or after an error none. Every file is staged completely under a temporary name before
  the first file gets its final name, so a full disk is detected before any change is visible. An error or
  interrupt during the renames rolls back the renamed files, unless another process has changed them since.
  After a second interrupt, `write` recovers `JudgedChanges` changes from its journal; other files are
  derived and can be rebuilt.
- A2 the promises W1 to W5 of `_directory` are true, in locked roots.
- A3 a rollback touches a file only if it is in the state after the change. Any other state is later work of
  another process and is not touched. A file of another process that the change displaced gets its name back.
  A rollback reads the disk, not a record of its steps. So the same code serves a failed commit and the
  recovery after its process was killed.
- A4 a rollback returns only if it has read that every file is in its state before the change, or was changed
  by another process. If a file cannot be read or written now, it raises, and the next rollback tries again.

Not guaranteed: anything about processes that do not use the lock, such as editors. A process forked
meanwhile keeps the lock until it executes a program or ends. A killed process leaves a change set half
applied, each file complete: `write.recover` rolls it back.
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
"""Seconds before a lock is tried a second time; a commit holds it for some milliseconds."""

LONGEST_PAUSE: Final = 0.1
"""Longest pause between tries, in seconds."""

_SAVED_NAME_PATTERN: Final = re.compile(rf"{SAVED_NAME}(?:-[0-9]+)?{re.escape(FILE_SUFFIX)}", re.ASCII)

_MAX_SAVED_NAMES: Final = 1000
"""Number of file names that are tried for a saved file."""


class LockedRoots(Sealed, Mapping[Scope, BoundRoot], seal=_SEAL):
    """Roots whose locks this process holds, by scope, from `lock_roots`; empty after their release."""

    __slots__ = ("_roots",)
    _roots: dict[Scope, BoundRoot]

    def __getitem__(self, scope: Scope) -> BoundRoot:
        return self._roots[scope]

    def __iter__(self) -> Iterator[Scope]:
        return iter(self._roots)

    def __len__(self) -> int:
        return len(self._roots)

    def release(self) -> None:
        """Remove all roots, when the block ends."""
        self._roots.clear()


@contextmanager
def lock_roots(roots: Iterable[BoundRoot], deadline: Deadline) -> Iterator[LockedRoots]:
    """Hold the locks of all `roots` inside the block; the yielded `LockedRoots` is empty after it.

    They are acquired in order of device and inode, so that two commits cannot block each other, with growing
    pauses between tries. Each is released when its descriptor, opened here, is closed.

    Raises:
        DeadlineExceeded: another process held a lock until the deadline.
        Cancelled: the caller cancelled while waiting.
        TypeError: an item is not a `BoundRoot`.
        PathEscape: `root_replaced`; a root is no longer at its bound path.
        ManagedMemoryUnavailable: the file system cannot lock.
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
    """Raise `TypeError` unless `locked_roots` is from `lock_roots`."""
    if type(locked_roots) is not LockedRoots:
        raise TypeError("roots can be written only under their locks")


def require_judged(judged: JudgedChanges, locked_roots: LockedRoots) -> None:
    """Raise unless the changes were judged for the locked roots, under the same locks.

    Raises:
        TypeError: they were not.
        KeyError: a root is not locked.
    """
    require_locked(locked_roots)
    if type(judged) is not JudgedChanges or judged.roots is not locked_roots:
        raise TypeError("only changes that were judged under the same locks can be written")
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
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _try_lock(scope: Scope, fd: int) -> bool:
    with convert_os_errors(scope):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _pause(deadline: Deadline, seconds: float) -> None:
    """Sleep, at most until the deadline; a cancellation ends it at once. `flock` supports neither."""
    poller = select.poll()
    if deadline.cancel is not None:
        poller.register(deadline.cancel.fileno(), select.POLLIN)
    remaining = max(0.0, deadline.expires_at - time.monotonic())
    poller.poll(math.ceil(min(seconds, remaining) * 1000))


# -- apply -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of a write.

    Attributes:
        degraded: files whose name was changed by a plain rename: their file system has no better way.
        skipped: of a `Rollback`: files that another process changed, which were not touched.
    """

    degraded: tuple[CanonicalPath, ...] = ()
    skipped: tuple[CanonicalPath, ...] = ()


def seal_index_files(files: Sequence[IndexFile]) -> GeneratedFiles:
    """Return copies of index files, sealed for `apply_changes`.

    Raises:
        TypeError: a file is of a class whose values could change later.
        ValueError: a path is not an index name, a missing file is to be removed, or the name for the saved
            file does not match `_SAVED_NAME_PATTERN`.
    """
    chosen = tuple(files)
    for file in chosen:
        if type(file) is not IndexFile or type(file.path) is not CanonicalPath:
            raise TypeError("expected an IndexFile with a CanonicalPath")
        is_plain = {type(file.before), type(file.after), NoneType} <= {bytes, Precondition, NoneType}
        if not is_plain or type(file.saved_as) not in {str, NoneType}:
            raise TypeError("an IndexFile must contain plain bytes and names")
        directory, _, name = file.path.rel.rpartition("/")
        is_page = directory == INDEX_DIRECTORY and name.endswith(FILE_SUFFIX)
        if file.path.rel != INDEX_NAME and not is_page:
            raise ValueError(f"{file.path.text} is not an index name")
        if file.after is None and not isinstance(file.before, bytes):
            raise ValueError("a missing file cannot be removed")
        if file.saved_as is not None and _SAVED_NAME_PATTERN.fullmatch(file.saved_as) is None:
            raise ValueError(f"the name of a saved file must begin with {SAVED_NAME}")
    return GeneratedFiles(_SEAL, tuple(replace(file) for file in chosen))


def apply_changes(
    changes: JudgedChanges | GeneratedFiles | ReplayedChanges | Rollback,
    locked_roots: LockedRoots,
    temporary_name: Callable[[int], str],
    *,
    durable: bool = True,
    begun: set[int] | None = None,
) -> ApplyResult:
    """Write all files or none; of a `Rollback`, write each file independently.

    Args:
        changes: the changes, sealed by the kernel.
        locked_roots: the locked roots.
        temporary_name: returns the temporary name for the change with a number, unique to this commit.
        durable: sync everything to disk before returning; if False, it may be lost after a power failure.
        begun: receives the number of each change just before its final name may change.

    Raises:
        TypeError: the changes are of another type, or were not judged under these locks.
        KeyError: a root is not locked.
        StoreConflict: a file is not the one that its change replaces. Nothing is changed.
        PathEscape, NotAFile: a directory on the path of a file was replaced. Nothing is changed.
        ManagedMemoryUnavailable: the disk is full, read-only or broken. Nothing is changed.
        RollbackFailed: one of these happened, and the listed files could not be rolled back.

    A file that was rolled back has its bytes again, but a new inode, time and mode 0600.

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
        raise TypeError("only a Judged, Generated, Replayed or Rollback can be written")
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
        """Return the new bytes under the temporary name; None for a removal."""
        return None if self.file.after is None else StagedFile(self.temporary, digest(self.file.after))


@dataclass(slots=True)
class _Progress:
    """The steps of a write that would have to be rolled back.

    Attributes:
        locked_roots: the locked roots.
        opened: closes the directories.
        begun: numbers of the items that were about to get or lose their final name. The disk shows whether
            they did, since an interrupt may arrive between a call's work and its return.
        directories: open directories, by path.
        items: files that are under temporary names, or about to be.
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
    """Stage every file, then rename every file; return the paths that got a plain rename."""
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
    """Give an item its final name, and record its number first."""
    begun.add(item.number)
    try:
        return _publish(item)
    except StoreConflict:
        # The previous file has its name again, unless another process used that moment: then the temporary
        # name has its file.
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
    """Give staged bytes the name of the current file, which must be `before`."""
    if isinstance(before, bytes):
        return directory.replace(staged, name, digest(before))
    if before is Precondition.LINK:
        return directory.replace_link(staged, name)
    return directory.publish_new(staged, name)


def _roll_back_progress(progress: _Progress, cause: BaseException) -> None:
    """Roll back every file, and remove the directories that were created for it."""
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
    """Roll back one item; return whether its name is in its previous state."""
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
    """Drop the new bytes if they are under the temporary name; a link that was dropped cannot be restored."""
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
    """Roll each file back; return the paths that another process changed, which were not touched (A3, A4).

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
            # Without its directory a new file does not exist, and another process has removed an old one with
            # it.
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
    """Restore `name` to `before`, and remove generated files under its temporary names. None means no file.

    Args:
        directory: directory of the file.
        name: name of the file.
        before: its bytes before the change.
        after: its bytes after the change.
        temporary: the temporary name of the change.
        is_begun: False: the change cannot have touched `name`, so `name` is not touched.

    Returns:
        Whether `name` is `before`, or the change never touched it. If not, another process has changed it.

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
    """Empty a temporary name: drop generated bytes, and give a displaced file its name back.

    If the name of a displaced file is in use, the file stays for `clear_temporary_names`.

    Args:
        directory: directory of the file.
        name: the name that the bytes under `temporary` may have had.
        temporary: the temporary name.
        states: the file before the change, after it, and the one of both that displaced the bytes in
            `temporary`.
        is_begun: False: no file can have been displaced.
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
    """Return the bytes of a file, None if the name is free, `LINK` if it is not a regular, readable file.

    Raises:
        ManagedMemoryUnavailable: it cannot be read now.
    """
    try:
        return _read_if_exists(directory, name)
    except (PathEscape, ToolError):
        return Precondition.LINK


def _read_if_exists(directory: Directory, name: str) -> bytes | None:
    """Return the bytes of a file, or None if the name is free.

    Raises:
        MunimentError: as `Directory.read`.
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
    """Remove abandoned temporary names from a directory; files that another process wrote get a free name.

    Args:
        directory: the directory to clear.
        locked_roots: the locked roots.
        is_abandoned: called with each temporary name; returns whether a process that has ended created it.
        is_disposable: called with its name and bytes; returns whether they may be dropped.

    Returns:
        The new names of saved files.

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
    """Give the file under a temporary name the first free name for saved files; return it."""
    for number in range(1, _MAX_SAVED_NAMES):
        name = f"{SAVED_NAME}{FILE_SUFFIX}" if number == 1 else f"{SAVED_NAME}-{number}{FILE_SUFFIX}"
        with suppress(StoreConflict):
            directory.publish_new(StagedFile(temporary, digest(b"")), name)
            return name
    raise StoreConflict((f"{directory.path.text}/{SAVED_NAME}",))


def remove_directories(directories: Iterable[CanonicalPath], locked_roots: LockedRoots) -> None:
    """Remove the empty ones of `directories`, the innermost first.

    Raises:
        TypeError: the locks are not held.
        ManagedMemoryUnavailable: the system denies it.
    """
    require_locked(locked_roots)
    for directory in sorted(set(directories), key=lambda each: len(each.rel), reverse=True):
        with suppress(PathEscape):  # Another process replaced it with a link.
            remove_empty_directory(locked_roots[directory.scope].root, directory)
