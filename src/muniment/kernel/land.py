"""Write files: only `Judged`, `Generated`, `Replayed` or `Rollback` objects are written to the disk.

On success of `lock_roots`, until its block ends:

- L1 this process holds the lock of every given root; no other process that uses this lock does. The lock is
  `flock` on a descriptor of the root's directory, opened here. So it also works between two homes that bind
  the same root.
- L2 after its lock was acquired, each root was at its bound path, at one moment.

On success of `land`:

- A1 all of it is done, or after an error none. Every file is staged completely under a temporary name before
  the first file gets its final name, so a full disk is detected before any change is visible. An error or
  interrupt during the renames rolls back the renamed files, unless another process has changed them since.
  After a second interrupt, `write` recovers `Judged` changes from its journal; other files are derived and
  can be rebuilt.
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

from muniment.kernel._directory import (
    Directory,
    Landing,
    Staged,
    as_temporary,
    is_temporary,
    open_directory,
    partial_name,
    remove_empty_directory,
    reporting,
    rollback_name,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import (
    _SEAL,
    FileChange,
    Generated,
    IndexFile,
    Judged,
    Replayed,
    Rollback,
    Sealed,
    Standing,
    digest,
)
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

_KEPT: Final = re.compile(rf"{SAVED_NAME}(?:-[0-9]+)?{re.escape(FILE_SUFFIX)}", re.ASCII)

_MOST_NAMES: Final = 1000
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
def lock_roots(roots: Iterable[BoundRoot], patience: Patience) -> Iterator[LockedRoots]:
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
            locks.enter_context(_lock(bound.root, patience))
        for bound in in_order.values():
            bound.verify()
        held = LockedRoots(_SEAL, {bound.scope: bound for bound in in_order.values()})
        locks.callback(held.release)
        yield held


def check_held(held: LockedRoots) -> None:
    """Raise `TypeError` unless `held` is from `lock_roots`."""
    if type(held) is not LockedRoots:
        raise TypeError("roots can be written only under their locks")


def check_landable(judged: Judged, held: LockedRoots) -> None:
    """Raise unless the changes were judged for the locked roots, under the same locks.

    Raises:
        TypeError: they were not.
        KeyError: a root is not locked.
    """
    check_held(held)
    if type(judged) is not Judged or judged.roots is not held:
        raise TypeError("only changes that were judged under the same locks can be written")
    for path in judged.change_set.paths:
        held[path.scope]


@contextmanager
def _lock(root: Root, patience: Patience) -> Iterator[None]:
    with reporting(root.scope):
        fd = root.resolver.open(root.fd, b".", LIST)
    try:
        pause = FIRST_PAUSE
        try:
            while not _try_lock(root.scope, fd):
                patience.check()
                _pause(patience, pause)
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
    with reporting(scope):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _pause(patience: Patience, seconds: float) -> None:
    """Sleep, at most until the deadline; a cancellation ends it at once. `flock` supports neither."""
    poller = select.poll()
    if patience.cancel is not None:
        poller.register(patience.cancel.fileno(), select.POLLIN)
    left = max(0.0, patience.deadline - time.monotonic())
    poller.poll(math.ceil(min(seconds, left) * 1000))


# -- apply -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of a write.

    Attributes:
        degraded: files whose name was changed by a plain rename: their file system has no better way.
        left: of a `Rollback`: files that another process changed, which were not touched.
    """

    degraded: tuple[CanonicalPath, ...] = ()
    left: tuple[CanonicalPath, ...] = ()


def generated(files: Sequence[IndexFile]) -> Generated:
    """Return copies of index files, sealed for `land`.

    Raises:
        TypeError: a file is of a class whose values could change later.
        ValueError: a path is not an index name, a missing file is to be removed, or the name for the saved
            file does not match `_KEPT`.
    """
    chosen = tuple(files)
    for file in chosen:
        if type(file) is not IndexFile or type(file.path) is not CanonicalPath:
            raise TypeError("expected an IndexFile with a CanonicalPath")
        plain = {type(file.before), type(file.after), NoneType} <= {bytes, Standing, NoneType}
        if not plain or type(file.kept) not in {str, NoneType}:
            raise TypeError("an IndexFile must contain plain bytes and names")
        directory, _, name = file.path.rel.rpartition("/")
        is_page = directory == INDEX_DIRECTORY and name.endswith(FILE_SUFFIX)
        if file.path.rel != INDEX_NAME and not is_page:
            raise ValueError(f"{file.path.text} is not an index name")
        if file.after is None and not isinstance(file.before, bytes):
            raise ValueError("a missing file cannot be removed")
        if file.kept is not None and _KEPT.fullmatch(file.kept) is None:
            raise ValueError(f"the name of a saved file must begin with {SAVED_NAME}")
    return Generated(_SEAL, tuple(replace(file) for file in chosen))


def land(
    what: Judged | Generated | Replayed | Rollback,
    held: LockedRoots,
    temporary: Callable[[int], str],
    *,
    durable: bool = True,
    begun: set[int] | None = None,
) -> Landed:
    """Write all files or none; of a `Rollback`, write each file independently.

    Args:
        what: the changes, sealed by the kernel.
        held: the locked roots.
        temporary: returns the temporary name for the change with a number, unique to this commit.
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
    check_held(held)
    begun = set() if begun is None else begun
    if type(what) is Rollback:
        return Landed(left=_roll_back_all(what, held, temporary))
    if type(what) is Judged:
        check_landable(what, held)
        files = _as_files(what.change_set.changes)
    elif type(what) is Replayed:
        files = _as_files(what.changes)
    elif type(what) is Generated:
        files = list(generated(what.files).files)  # Copies
    else:
        raise TypeError("only a Judged, Generated, Replayed or Rollback can be written")
    return Landed(degraded=_carry_out(files, held, temporary, begun, durable=durable))


def _as_files(changes: Sequence[FileChange]) -> list[IndexFile]:
    return [
        IndexFile(each.path, Standing.ABSENT if each.before is None else each.before, each.after)
        for each in changes
    ]


@dataclass(frozen=True, slots=True)
class _Item:
    number: int
    file: IndexFile
    directory: Directory
    temporary: str
    kept: tuple[Directory, str] | None

    @property
    def name(self) -> str:
        return self.file.path.name

    @property
    def staged(self) -> Staged | None:
        """Return the new bytes under the temporary name; None for a removal."""
        return None if self.file.after is None else Staged(self.temporary, digest(self.file.after))


@dataclass(slots=True)
class _Progress:
    """The steps of a write that would have to be rolled back.

    Attributes:
        held: the locked roots.
        opened: closes the directories.
        begun: numbers of the items that were about to get or lose their final name. The disk shows whether
            they did, since an interrupt may arrive between a call's work and its return.
        directories: open directories, by path.
        items: files that are under temporary names, or about to be.
    """

    held: LockedRoots
    opened: ExitStack
    begun: set[int]
    directories: dict[CanonicalPath, Directory] = field(default_factory=dict)
    items: list[_Item] = field(default_factory=list)

    def open(self, directory: CanonicalPath) -> Directory:
        if directory not in self.directories:
            root = self.held[directory.scope].root
            opened = self.opened.enter_context(open_directory(root, directory, create=True))
            self.directories[directory] = opened
        return self.directories[directory]


def _carry_out(
    files: Sequence[IndexFile],
    held: LockedRoots,
    temporary: Callable[[int], str],
    begun: set[int],
    *,
    durable: bool,
) -> tuple[CanonicalPath, ...]:
    """Stage every file, then rename every file; return the paths that got a plain rename."""
    # A link that a generated file replaced cannot be restored, so it is replaced last.
    in_order = sorted(enumerate(files), key=lambda each: each[1].before is Standing.LINK)
    landings: dict[CanonicalPath, Landing] = {}
    with ExitStack() as opened:
        progress = _Progress(held, opened, begun)
        try:
            for number, file in in_order:
                _stage(number, file, temporary(number), progress, durable=durable)
            for item in progress.items:
                landings[item.file.path] = _begin(item, begun)
            if durable:
                for directory in progress.directories.values():
                    directory.sync()
        except BaseException as error:
            _undo(progress, error)
            raise
    return tuple(path for path, landing in landings.items() if landing is not Landing.ATOMIC)


def _begin(item: _Item, begun: set[int]) -> Landing:
    """Give an item its final name, and record its number first."""
    begun.add(item.number)
    try:
        return _publish(item)
    except StoreConflict:
        # The previous file has its name again, unless another process used that moment: then the temporary
        # name has its file.
        if _found(item.directory, item.temporary) == item.file.after:
            begun.discard(item.number)
        raise


def _stage(number: int, file: IndexFile, temporary: str, progress: _Progress, *, durable: bool) -> None:
    as_temporary(temporary)
    directory, kept = progress.open(file.path.parent), None
    if file.kept is not None and isinstance(file.before, bytes):
        kept = progress.open(CanonicalPath(file.path.scope, RelPath(""))), file.kept
    progress.items.append(_Item(number, file, directory, temporary, kept))
    if file.after is not None:
        directory.stage(temporary, file.after, durable=durable)


def _publish(item: _Item) -> Landing:
    before, staged = item.file.before, item.staged
    if staged is None and isinstance(before, bytes):
        return item.directory.withdraw(item.name, item.temporary, digest(before))
    assert staged is not None  # noqa: S101  for the type checker: a missing file is not removed
    if item.kept is not None and isinstance(before, bytes):
        item.directory.set_aside(item.name, *item.kept, digest(before))
        before = Standing.ABSENT
    return _put(item.directory, item.name, staged, before)


def _put(directory: Directory, name: str, staged: Staged, before: bytes | Standing | None) -> Landing:
    """Give staged bytes the name of the current file, which must be `before`."""
    if isinstance(before, bytes):
        return directory.replace(staged, name, digest(before))
    if before is Standing.LINK:
        return directory.replace_link(staged, name)
    return directory.publish_new(staged, name)


def _undo(progress: _Progress, cause: BaseException) -> None:
    """Roll back every file, and remove the directories that were created for it."""
    stuck: list[str] = []
    for item in reversed(progress.items):
        try:
            if not _undo_item(item, is_begun=item.number in progress.begun):
                stuck.append(item.file.path.text)
        except MunimentError:
            stuck.append(item.file.path.text)
    # In reverse, since a later directory may be in an earlier one.
    for directory in reversed(progress.directories.values()):
        for made in reversed(directory.created):
            try:
                remove_empty_directory(directory.root, made)
            except MunimentError:
                stuck.append(made.text)
    if stuck:
        raise RollbackFailed(
            "memory",
            f"the write failed ({str(cause) or type(cause).__name__}) and could not be rolled back for "
            f"{', '.join(stuck)}; the next command that opens this memory tries again",
        ) from cause


def _undo_item(item: _Item, *, is_begun: bool) -> bool:
    """Roll back one item; return whether its name is in its previous state."""
    directory, after = item.directory, item.file.after
    before = item.file.before if isinstance(item.file.before, bytes) else None
    if item.file.before is Standing.LINK and is_begun:
        return _restore_link(item)
    if item.kept is not None and before is not None and is_begun:
        above, kept = item.kept
        if _bytes_at(directory, item.name) != before and _bytes_at(above, kept) == before:
            is_back = _restore(directory, item.name, None, after, item.temporary, is_begun=True)
            above.set_aside(kept, directory, item.name, digest(before))
            return is_back
        is_begun = False  # The file was not moved aside.
    return _restore(directory, item.name, before, after, item.temporary, is_begun=is_begun)


def _restore_link(item: _Item) -> bool:
    """Drop the new bytes if they are under the temporary name; a link that was dropped cannot be restored."""
    aside = _bytes_at(item.directory, item.temporary)
    if aside is not None and aside != item.file.after:
        _put(item.directory, item.name, Staged(item.temporary, digest(aside)), item.file.after)
    elif item.staged is not None:
        item.directory.discard(item.staged)
    return aside is not None


# -- roll back ---------------------------------------------------------------------------------------


def _roll_back_all(
    what: Rollback, held: LockedRoots, temporary: Callable[[int], str]
) -> tuple[CanonicalPath, ...]:
    """Roll each file back; return the paths that another process changed, which were not touched (A3, A4).

    Raises:
        RollbackFailed: a file cannot be read or written now.
    """
    left: list[CanonicalPath] = []
    failed: dict[str, MunimentError] = {}
    for number, change in reversed(list(enumerate(what.changes))):
        is_begun = number in what.begun
        root, path = held[change.path.scope].root, change.path
        try:
            with open_directory(root, path.parent, create=False) as directory:
                is_back = _restore(
                    directory, path.name, change.before, change.after, temporary(number), is_begun=is_begun
                )
                directory.sync()
        except NotFound:
            # Without its directory a new file does not exist, and another process has removed an old one with
            # it.
            is_back = change.before is None
        except (PathEscape, NotAFile):
            is_back = False  # Another process put a link or a file in place of a directory.
        except MunimentError as error:
            failed[path.text] = error
            continue
        if is_begun and not is_back:
            left.append(path)
    if failed:
        raise RollbackFailed(
            "memory",
            f"an interrupted change of {', '.join(sorted(failed))} cannot be rolled back now "
            f"({next(iter(failed.values()))}); the next command that opens this memory tries again",
        )
    return tuple(left)


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
    back = rollback_name(temporary)
    directory.drop_partial(temporary)
    # If the new bytes are still under the temporary name, the rename was not done or is rolled back.
    is_untouched = not is_begun or (after is not None and _found(directory, temporary) == after)
    for aside, placed in ((back, before), (temporary, after)):
        _empty(directory, name, aside, (before, after, placed), is_begun=is_begun)
    if is_untouched:
        return True
    if before != after == _found(directory, name):
        try:
            if before is None:
                directory.withdraw(name, back, digest(after or b""))
            else:
                _put(directory, name, directory.stage(back, before), after)
        except StoreConflict:
            _empty(directory, name, back, (before, after, before), is_begun=True)
    return _found(directory, name) == before


def _empty(
    directory: Directory,
    name: str,
    aside: str,
    states: tuple[bytes | None, bytes | None, bytes | None],
    *,
    is_begun: bool,
) -> None:
    """Empty a temporary name: drop generated bytes, and give a displaced file its name back.

    If the name of a displaced file is in use, the file stays for `clear`.

    Args:
        directory: directory of the file.
        name: the name that the bytes under `aside` may have had.
        aside: the temporary name.
        states: the file before the change, after it, and the one of both that displaced the bytes in `aside`.
        is_begun: False: no file can have been displaced.
    """
    before, after, placed = states
    found = _found(directory, aside)
    if found is None:
        return
    if is_begun and found != after != before:
        content = found if isinstance(found, bytes) else b""
        try:
            _put(directory, name, Staged(aside, digest(content)), after if found == before else placed)
        except StoreConflict:
            found = _found(directory, aside)  # Another process exchanged the name again.
        else:
            return
    # The bytes of `before` are dropped only if another process has replaced them with its file.
    is_replaced = is_begun and found == before and _found(directory, name) is not Standing.LINK
    if isinstance(found, bytes) and (found == after or is_replaced):
        directory.discard(Staged(aside, digest(found)))


def _found(directory: Directory, name: str) -> bytes | Standing | None:
    """Return the bytes of a file, None if the name is free, `LINK` if it is not a regular, readable file.

    Raises:
        ManagedMemoryUnavailable: it cannot be read now.
    """
    try:
        return _bytes_at(directory, name)
    except (PathEscape, ToolError):
        return Standing.LINK


def _bytes_at(directory: Directory, name: str) -> bytes | None:
    """Return the bytes of a file, or None if the name is free.

    Raises:
        MunimentError: as `Directory.read`.
    """
    try:
        return directory.read(name)
    except NotFound:
        return None


# -- clear -------------------------------------------------------------------------------------------


def clear(
    directory: CanonicalPath,
    held: LockedRoots,
    is_ours: Callable[[str], bool],
    is_worthless: Callable[[str, bytes], bool],
) -> tuple[CanonicalPath, ...]:
    """Remove abandoned temporary names from a directory; files that another process wrote get a free name.

    Args:
        directory: the directory to clear.
        held: the locked roots.
        is_ours: called with each temporary name; returns whether a process that has ended created it.
        is_worthless: called with its name and bytes; returns whether they may be dropped.

    Returns:
        The new names of saved files.

    Raises:
        ManagedMemoryUnavailable: a file cannot be read or written now.
    """
    check_held(held)
    kept: list[CanonicalPath] = []
    root = held[directory.scope].root
    try:
        names = [each.name for each in root.list_directory(directory)]
        opened = open_directory(root, directory, create=False)
    except (NotFound, PathEscape, NotAFile):
        return ()
    with opened:
        for name in (name for name in names if is_temporary(name) and is_ours(name)):
            if partial_name(name) == name:
                opened.drop_partial(name)
                continue
            content = None
            try:
                content = opened.read(name)
            except TooLarge:
                pass  # Generated files are smaller, so another process wrote it.
            except (PathEscape, ToolError):
                continue  # A link or special file of another process stays as it is.
            if content is not None and is_worthless(name, content):
                opened.discard(Staged(name, digest(content)))
            else:
                kept.append(directory.child(_publish_free(opened, name)))
        opened.sync()
    return tuple(kept)


def _publish_free(directory: Directory, temporary: str) -> str:
    """Give the file under a temporary name the first free name for saved files; return it."""
    for number in range(1, _MOST_NAMES):
        name = f"{SAVED_NAME}{FILE_SUFFIX}" if number == 1 else f"{SAVED_NAME}-{number}{FILE_SUFFIX}"
        with suppress(StoreConflict):
            directory.publish_new(Staged(temporary, digest(b"")), name)
            return name
    raise StoreConflict((f"{directory.path.text}/{SAVED_NAME}",))


def remove_directories(directories: Iterable[CanonicalPath], held: LockedRoots) -> None:
    """Remove the empty ones of `directories`, the innermost first.

    Raises:
        TypeError: the locks are not held.
        ManagedMemoryUnavailable: the system denies it.
    """
    check_held(held)
    for directory in sorted(set(directories), key=lambda each: len(each.rel), reverse=True):
        with suppress(PathEscape):  # Another process replaced it with a link.
            remove_empty_directory(held[directory.scope].root, directory)
