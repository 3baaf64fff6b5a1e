"""Every write: what is `Judged`, `Generated`, `Replayed` or `Returned` comes to the disk; nothing else can.

On success of `lock_roots`, until its block is left:

- L1 this process holds the lock of every root named, and no other process that asks by these rules does. The
  lock is `flock` on a descriptor of the root's own directory, opened here, so that it also holds between two
  homes that bind one root.
- L2 every root was still where it was bound, at one moment after its lock was taken.

On success of `land`:

- A1 all of it is done, or after a failure none. Every file is staged whole under a temporary name before the
  first one gets its own, so that a full disk is met before anything shows. A failure while names are given
  out takes back those that were given, unless someone has changed them since.
- A2 the promises W1 to W5 of `_directory` hold, in roots that are locked.
- A3 of a change that is taken back, a file is touched only if what stands there is the before- or the
  after-state; anything else is somebody's later work and stays. What a peer had put in our way, and we
  displaced, gets its name back. The disk is asked, never a memory of what was done: so one code serves a
  commit that fails half way and a recovery after its process was killed.

Does not hold: anything about processes that do not ask for the lock, such as editors. A process forked
meanwhile keeps a lock until it executes or ends. A process that is killed leaves a change-set half applied,
each file whole: `write.recover` takes it back.
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
    remove_empty_directory,
    reporting,
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
    Returned,
    Sealed,
    Standing,
    digest,
)
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, SAVED_NAME, RelPath, Scope
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.kernel.refusal import (
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    MunimentError,
    NotFound,
    PathEscape,
    StoreConflict,
    ToolError,
)
from muniment.kernel.root import Root
from muniment.kernel.syscalls import LIST, fcntl, os, select

FIRST_PAUSE: Final = 0.002
"""Seconds before a held lock is tried a second time; a commit holds it for some milliseconds."""

LONGEST_PAUSE: Final = 0.1
"""Seconds between tries in the end."""

_KEPT: Final = re.compile(rf"{SAVED_NAME}(?:-[0-9]+)?{re.escape(FILE_SUFFIX)}", re.ASCII)

_MOST_NAMES: Final = 1000
"""Names that are tried for what is kept."""


class LockedRoots(Sealed, Mapping[Scope, BoundRoot], seal=_SEAL):
    """Roots whose locks this process holds, by scope, from `lock_roots`; empty once they are released."""

    __slots__ = ("_roots",)
    _roots: dict[Scope, BoundRoot]

    def __getitem__(self, scope: Scope) -> BoundRoot:
        return self._roots[scope]

    def __iter__(self) -> Iterator[Scope]:
        return iter(self._roots)

    def __len__(self) -> int:
        return len(self._roots)

    def release(self) -> None:
        """Forget the roots, as the end of the block does."""
        self._roots.clear()


@contextmanager
def lock_roots(roots: Iterable[BoundRoot], patience: Patience) -> Iterator[LockedRoots]:
    """Hold the locks of all `roots` inside the block; what is given then is of no use behind it.

    They are taken in order of device and inode, so that two commits cannot block each other, with growing
    pauses between tries. Each is released when its descriptor, opened here, is closed on leaving.

    Raises:
        DeadlineExceeded: somebody else held a lock until the deadline.
        Cancelled: the caller cancelled while waiting.
        TypeError: what is to be locked is no `BoundRoot`.
        PathEscape: `root_replaced`; a root is no longer where it was bound.
        ManagedMemoryUnavailable: the file system cannot lock.
    """
    chosen = tuple(roots)
    if not all(type(bound) is BoundRoot for bound in chosen):
        raise TypeError("only a bound root is locked")
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
    """Raise `TypeError` unless it is what `lock_roots` gave."""
    if type(held) is not LockedRoots:
        raise TypeError("only under their locks are roots written")


def check_landable(judged: Judged, held: LockedRoots) -> None:
    """Raise unless it was judged, for the roots that are locked and under the same locks.

    Raises:
        TypeError: it was not.
        KeyError: a root is not locked.
    """
    check_held(held)
    if type(judged) is not Judged or judged.roots is not held:
        raise TypeError("only what was judged under the same locks is begun")
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
            raise DeadlineExceeded(f"another process keeps {root.scope} locked; try again") from None
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
    """Sleep, at most until the deadline; a cancel wakes at once. `flock` itself knows neither."""
    poller = select.poll()
    if patience.cancel is not None:
        poller.register(patience.cancel.fileno(), select.POLLIN)
    left = max(0.0, patience.deadline - time.monotonic())
    poller.poll(math.ceil(min(seconds, left) * 1000))


# -- land --------------------------------------------------------------------------------------------


class Stuck(ManagedMemoryUnavailable):
    """A commit failed and could not be taken back whole; the message names the files."""


@dataclass(frozen=True, slots=True)
class Landed:
    """What came of it.

    Attributes:
        degraded: files whose name was changed by a plain rename: their file system has no better way.
        left: of what is `Returned`: files that somebody changed since, and that were left alone.
    """

    degraded: tuple[CanonicalPath, ...] = ()
    left: tuple[CanonicalPath, ...] = ()


def generated(files: Sequence[IndexFile]) -> Generated:
    """Index files, to be landed; in objects of their own.

    Raises:
        TypeError: a file is of a class that could say something else later.
        ValueError: a path is no index name, what is not there is to be removed, or what is kept is no entry
            of the root.
    """
    chosen = tuple(files)
    for file in chosen:
        if type(file) is not IndexFile or type(file.path) is not CanonicalPath:
            raise TypeError("what is generated is an IndexFile of a CanonicalPath")
        plain = {type(file.before), type(file.after), NoneType} <= {bytes, Standing, NoneType}
        if not plain or type(file.kept) not in {str, NoneType}:
            raise TypeError("what is generated is made of plain bytes and names")
        directory, _, name = file.path.rel.rpartition("/")
        is_page = directory == INDEX_DIRECTORY and name.endswith(FILE_SUFFIX)
        if file.path.rel != INDEX_NAME and not is_page:
            raise ValueError(f"{file.path.text} is no name of an index")
        if file.after is None and not isinstance(file.before, bytes):
            raise ValueError("what is not there cannot be removed")
        if file.kept is not None and _KEPT.fullmatch(file.kept) is None:
            raise ValueError(f"what is kept is called {SAVED_NAME}")
    return Generated(_SEAL, tuple(replace(file) for file in chosen))


def land(
    what: Judged | Generated | Replayed | Returned,
    held: LockedRoots,
    temporary: Callable[[int], str],
    *,
    durable: bool = True,
) -> Landed:
    """Carry it out, all or none; of what is `Returned`, each file by itself.

    Args:
        what: made by the kernel alone.
        held: the locked roots.
        temporary: the temporary name that belongs to the change of a number, for this commit alone.
        durable: whether everything is on disk on return; else it may be lost when the power fails.

    Raises:
        TypeError: it is nothing that may be landed, or not under these locks.
        KeyError: a root is not locked.
        StoreConflict: a file is not what its change replaces. Nothing is changed.
        PathEscape, NotAFile: the way to a file is no longer one. Nothing is changed.
        ManagedMemoryUnavailable: the disk is full, read-only or broken. Nothing is changed.
        Stuck: as that, but the named files could not be taken back.

    A file that was taken back has its bytes again, but a new inode, time and mode 0600.

    Cost: where durable, an fsync a file and directory.
    """
    check_held(held)
    if type(what) is Returned:
        return Landed(left=_take_back_all(what, held, temporary))
    if type(what) is Judged:
        check_landable(what, held)
        files = _as_files(what.change_set.changes)
    elif type(what) is Replayed:
        files = _as_files(what.changes)
    elif type(what) is Generated:
        files = list(generated(what.files).files)  # In objects of its own.
    else:
        raise TypeError("nothing lands but what is judged, generated, replayed or returned")
    return Landed(degraded=_carry_out(files, held, temporary, durable=durable))


def _as_files(changes: Sequence[FileChange]) -> list[IndexFile]:
    return [
        IndexFile(each.path, Standing.ABSENT if each.before is None else each.before, each.after)
        for each in changes
    ]


@dataclass(frozen=True, slots=True)
class _Item:
    file: IndexFile
    directory: Directory
    temporary: str
    kept: tuple[Directory, str] | None

    @property
    def name(self) -> str:
        return self.file.path.name

    @property
    def staged(self) -> Staged | None:
        """The new bytes under the temporary name; None for a removal."""
        return None if self.file.after is None else Staged(self.temporary, digest(self.file.after))


@dataclass(slots=True)
class _Progress:
    """What was done so far, and would have to be taken back.

    Attributes:
        directories: opened.
        items: on disk under temporary names, or about to be.
        begun: how many of them were about to get their own name, or to lose it. Whether they did is asked
            of the disk, since an interrupt may fall between a call's work and its return.
        degraded: see `Landed`.
    """

    held: LockedRoots
    directories: dict[CanonicalPath, Directory] = field(default_factory=dict)
    items: list[_Item] = field(default_factory=list)
    begun: int = 0
    degraded: list[CanonicalPath] = field(default_factory=list)

    def open(self, directory: CanonicalPath, opened: ExitStack) -> Directory:
        if directory not in self.directories:
            root = self.held[directory.scope].root
            self.directories[directory] = opened.enter_context(open_directory(root, directory, create=True))
        return self.directories[directory]


def _carry_out(
    files: Sequence[IndexFile], held: LockedRoots, temporary: Callable[[int], str], *, durable: bool
) -> tuple[CanonicalPath, ...]:
    # A link that a generated file replaced cannot be brought back: it goes when little else can fail.
    in_order = sorted(enumerate(files), key=lambda each: each[1].before is Standing.LINK)
    with ExitStack() as opened:
        progress = _Progress(held)
        try:
            for number, file in in_order:
                _stage(file, temporary(number), progress, opened, durable=durable)
            for item in progress.items:
                progress.begun += 1
                if _publish(item) is not Landing.ATOMIC:
                    progress.degraded.append(item.file.path)
            if durable:
                for directory in progress.directories.values():
                    directory.sync()
        except BaseException as error:
            _undo(progress, error)
            raise
    return tuple(progress.degraded)


def _stage(file: IndexFile, temporary: str, progress: _Progress, opened: ExitStack, *, durable: bool) -> None:
    as_temporary(temporary)
    directory, kept = progress.open(file.path.parent, opened), None
    if file.kept is not None and isinstance(file.before, bytes):
        kept = progress.open(CanonicalPath(file.path.scope, RelPath("")), opened), file.kept
    progress.items.append(_Item(file, directory, temporary, kept))
    if file.after is not None:
        directory.stage(temporary, file.after, durable=durable)


def _publish(item: _Item) -> Landing:
    before, staged = item.file.before, item.staged
    if staged is None and isinstance(before, bytes):
        return item.directory.withdraw(item.name, item.temporary, digest(before))
    assert staged is not None  # noqa: S101  for the type checker: what is not there is not removed
    if item.kept is not None and isinstance(before, bytes):
        item.directory.set_aside(item.name, *item.kept, digest(before))
        before = Standing.ABSENT
    return _put(item.directory, item.name, staged, before)


def _put(directory: Directory, name: str, staged: Staged, before: bytes | Standing | None) -> Landing:
    """Give staged bytes the name of what stood there before."""
    if isinstance(before, bytes):
        return directory.replace(staged, name, digest(before))
    if before is Standing.LINK:
        return directory.replace_link(staged, name)
    return directory.publish_new(staged, name)


def _undo(progress: _Progress, cause: BaseException) -> None:
    """Bring every file back and remove the directories that were made for it."""
    stuck: list[str] = []
    for number, item in reversed(list(enumerate(progress.items, 1))):
        try:
            if number > progress.begun:
                _drop(item)
            elif not (number == progress.begun and isinstance(cause, StoreConflict) and _never_left(item)):
                _bring_back(item)
        except MunimentError:
            stuck.append(item.file.path.text)
    # Backwards, since a later directory may stand in one that an earlier one made.
    for directory in reversed(progress.directories.values()):
        for made in reversed(directory.created):
            try:
                remove_empty_directory(directory.root, made)
            except MunimentError:
                stuck.append(made.text)
    if stuck:
        raise Stuck(
            "memory",
            f"the commit failed ({str(cause) or type(cause).__name__}) and could not be taken back for "
            f"{', '.join(stuck)}; the next command that opens this memory tries again",
        ) from cause


def _drop(item: _Item) -> None:
    """Drop what was staged, if it came to that."""
    if item.staged is not None:
        item.directory.discard(item.staged)


def _never_left(item: _Item) -> bool:
    """Whether a removal that met a conflict had no effect: what stands there is somebody else's work."""
    return item.file.after is None and _bytes_at(item.directory, item.temporary) is None


def _bring_back(item: _Item) -> None:
    before = item.file.before if isinstance(item.file.before, bytes) else None
    if item.file.before is Standing.LINK:
        _bring_link_back(item)
    elif item.kept is None or before is None:
        _take_back(item.directory, item.name, before, item.file.after, item.temporary)
    elif _bytes_at(item.directory, item.name) == before or _bytes_at(*item.kept) != before:
        _drop(item)  # It was not set aside.
    else:
        above, kept = item.kept
        _take_back(item.directory, item.name, None, item.file.after, item.temporary)
        above.set_aside(kept, item.directory, item.name, digest(before))


def _bring_link_back(item: _Item) -> None:
    """Drop our bytes where they are still aside; a link that was dropped already cannot be made again."""
    aside = _bytes_at(item.directory, item.temporary)
    if aside is None:
        raise StoreConflict((item.file.path.text,))
    if aside == item.file.after:
        _drop(item)
    else:
        _put(item.directory, item.name, Staged(item.temporary, digest(aside)), item.file.after)


# -- back --------------------------------------------------------------------------------------------


def _take_back_all(
    what: Returned, held: LockedRoots, temporary: Callable[[int], str]
) -> tuple[CanonicalPath, ...]:
    """Bring each file back; the paths that were left alone (A3).

    Raises:
        ManagedMemoryUnavailable: the disk fails.
    """
    left: list[CanonicalPath] = []
    for number, change in reversed(list(enumerate(what.changes))):
        root = held[change.path.scope].root
        try:
            with open_directory(root, change.path.parent, create=False) as directory:
                _take_back(directory, change.path.name, change.before, change.after, temporary(number))
                directory.sync()
        except NotFound:
            # Without its directory a new file is gone, and an old one was removed with it by somebody.
            if change.before is not None:
                left.append(change.path)
        except (StoreConflict, PathEscape, ToolError):
            left.append(change.path)
    return tuple(left)


def _take_back(
    directory: Directory, name: str, before: bytes | None, after: bytes | None, temporary: str
) -> None:
    """Bring `name` from `after`, or from a point on the way there, back to `before`; None is no file.

    Raises:
        StoreConflict: somebody else changed it since; that was left alone.
        MunimentError: something that is no file stands at a name, or the disk fails.
    """
    conflict = StoreConflict((f"{directory.path.text}/{name}",))
    aside = _bytes_at(directory, temporary)
    if aside is not None and aside == after:
        directory.discard(Staged(temporary, digest(aside)))
        if not _is_part(aside, before) or _bytes_at(directory, name) != after:
            return  # It never got its name, or was put back already.
        aside = None  # Or it was to become the before-state.
    current = _bytes_at(directory, name)
    if aside is not None and _was_displaced(aside, current, before, after):
        _return(directory, name, Staged(temporary, digest(aside)), after)
        return
    if aside is not None:
        # The before-state is known; what is ours and not whole yet is worth nothing.
        if not (_is_part(aside, before) or _is_part(aside, after)):
            raise conflict
        directory.discard(Staged(temporary, digest(aside)))
    if current == before:
        return
    if current != after:
        raise conflict
    if before is None:
        directory.withdraw(name, temporary, digest(after or b""))
        return
    again = directory.stage(temporary, before)
    try:
        _put(directory, name, again, after)
    except BaseException:
        directory.discard(again)
        raise


def _return(directory: Directory, name: str, aside: Staged, after: bytes | None) -> None:
    """Give what was displaced its name back, in place of our bytes or of nothing."""
    try:
        _put(directory, name, aside, after)
    except StoreConflict:
        # Somebody exchanged the name once more. Where our bytes are aside again, nothing else of us is left.
        if after is None or _bytes_at(directory, aside.temporary) != after:
            raise
        directory.discard(Staged(aside.temporary, digest(after)))


def _was_displaced(aside: bytes, current: bytes | None, before: bytes | None, after: bytes | None) -> bool:
    """Whether what lies aside is what ours displaced, and nothing that a taking back left unfinished."""
    return current == after != before and (aside == before or not _is_part(aside, before))


def _is_part(aside: bytes, whole: bytes | None) -> bool:
    """Whether these are our bytes: all, cut off by a kill, or filled up with zeros when the power failed."""
    return whole is not None and whole.startswith(aside.rstrip(b"\0"))


def _bytes_at(directory: Directory, name: str) -> bytes | None:
    """The bytes of a file, or None where nothing has the name.

    Raises:
        MunimentError: as `Directory.read`.
    """
    try:
        return directory.read(name)
    except NotFound:
        return None


# -- clearing ----------------------------------------------------------------------------------------


def clear(
    directory: CanonicalPath,
    held: LockedRoots,
    is_ours: Callable[[str], bool],
    is_worthless: Callable[[str, bytes], bool],
    *,
    keep: bool,
) -> tuple[CanonicalPath, ...]:
    """Leave no temporary name of ours in a directory; what is not ours gets a name of its own.

    Args:
        directory: where.
        held: the locked roots.
        is_ours: asked of each temporary name: whether somebody who is gone made it.
        is_worthless: asked of its name and bytes: whether nobody would miss them.
        keep: whether anything else gets the name of what is kept; else it is left alone.

    Returns:
        Those names.
    """
    check_held(held)
    kept: list[CanonicalPath] = []
    root = held[directory.scope].root
    try:
        opened = open_directory(root, directory, create=False)
    except (NotFound, PathEscape, ToolError):
        return ()
    with opened:
        names = [each.name for each in root.list_directory(directory)]
        for name in (name for name in names if is_temporary(name) and is_ours(name)):
            try:
                content = opened.read(name)
            except (PathEscape, ToolError):
                continue  # A link or something special that a peer put there: not ours to drop.
            staged = Staged(name, digest(content))
            if is_worthless(name, content):
                opened.discard(staged)
            elif keep:
                kept.append(directory.child(_publish_free(opened, staged)))
        opened.sync()
    return tuple(kept)


def _publish_free(directory: Directory, staged: Staged) -> str:
    """Give bytes that stand under a temporary name the first free one for what is kept."""
    for number in range(1, _MOST_NAMES):
        name = f"{SAVED_NAME}{FILE_SUFFIX}" if number == 1 else f"{SAVED_NAME}-{number}{FILE_SUFFIX}"
        with suppress(StoreConflict):
            directory.publish_new(staged, name)
            return name
    raise StoreConflict((f"{directory.path.text}/{SAVED_NAME}",))


def remove_directories(directories: Iterable[CanonicalPath], held: LockedRoots) -> None:
    """Remove those of `directories` in which nothing stands, the innermost first.

    Raises:
        TypeError: no locks are held.
        ManagedMemoryUnavailable: the system refuses.
    """
    check_held(held)
    for directory in sorted(set(directories), key=lambda each: len(each.rel), reverse=True):
        with suppress(PathEscape):  # Somebody else's link has taken its place.
            remove_empty_directory(held[directory.scope].root, directory)
