"""Puts planned writes on the disk: all of them, or after a failure none.

Every file is staged whole under a temporary name before the first one gets its own, so that a full
disk is met before anything shows. A failure while names are given out takes back those that were
given, unless someone has changed them since: a newer state is never overwritten by an older.

A process that is killed in between leaves a change-set half applied, each file whole: `upkeep.py`
takes it back, by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum

from muniment import events
from muniment.errors import ManagedMemoryUnavailable, MunimentError, NotFound, StoreConflict
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import digest
from muniment.kernel.land import Directory, Landing, Staged, open_directory, remove_empty_directory
from muniment.kernel.names import RelPath, joined

# -- takeback ----------------------------------------------------------------------------------------
#
# Brings one file of a commit back to what it was, from whatever point its writing came to.
#
# What is asked is the disk, never a memory of what was done: the same code serves a commit that fails half
# way and a recovery after its process was killed. Two names are looked at: the file's own, and the
# temporary one that only this commit uses.
#
# T1 A file is touched only if what stands there is the before- or the after-state; anything else is
# somebody's later work and stays. T2 What a peer had put in our way, and we displaced, gets its name back.
# T3 Afterwards nothing of this commit stands under either name, unless `StoreConflict` is raised.


def take_back(
    directory: Directory, name: str, before: bytes | None, after: bytes | None, temporary: str
) -> None:
    """Bring `name` from `after`, or from a point on the way there, back to `before`; None is no file.

    Raises:
        StoreConflict: somebody else changed it since; that was left alone (T1).
        MunimentError: something that is no file stands at a name, or the disk fails.
    """
    conflict = StoreConflict((f"{directory.root.scope}/{joined(directory.rel, name)}",))
    aside = bytes_at(directory, temporary)
    if aside is not None and aside == after:
        directory.discard(Staged(temporary, digest(aside)))  # It never got its name, or was put back already.
        return
    current = bytes_at(directory, name)
    if aside is not None and current == after:
        _return(directory, name, Staged(temporary, digest(aside)), after)
        return
    if aside is not None:
        # The ledger has the before-state; what is ours and not whole yet is worth nothing.
        if aside != before and not _is_unfinished(aside, after):
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
        if after is None or bytes_at(directory, aside.temporary) != after:
            raise
        directory.discard(Staged(aside.temporary, digest(after)))


def _is_unfinished(aside: bytes, after: bytes | None) -> bool:
    """Whether these are our bytes, cut off by a kill, or filled up with zeros when the power failed."""
    return after is not None and after.startswith(aside.rstrip(b"\0"))


def _put(directory: Directory, name: str, staged: Staged, after: bytes | None) -> None:
    if after is None:
        directory.publish_new(staged, name)
    else:
        directory.replace(staged, name, digest(after))


def bytes_at(directory: Directory, name: str) -> bytes | None:
    """The bytes of a file, or None where nothing has the name.

    Raises:
        MunimentError: as `Directory.read`.
    """
    try:
        return directory.read(name)
    except NotFound:
        return None


# -- apply -------------------------------------------------------------------------------------------


class Expected(Enum):
    """What must stand at a path, where that is not known bytes."""

    ABSENT = "absent"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Write:
    """One file to be written or removed.

    Attributes:
        before: the bytes that it replaces; `ABSENT`: it must be new; `LINK`: a link, which is dropped.
        after: the new bytes; None: the file goes.
    """

    root: BoundRoot
    rel: RelPath
    before: bytes | Expected
    after: bytes | None

    @property
    def directory(self) -> str:
        """The directory of the file, inside its scope."""
        return self.rel.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The last segment."""
        return self.rel.rpartition("/")[2]


class Stuck(ManagedMemoryUnavailable):
    """A commit failed and could not be taken back whole; the message names the files."""


_Place = tuple[int, int, str]
"""Device and inode of a root, and a directory beneath it."""


@dataclass(frozen=True, slots=True)
class _Item:
    write: Write
    directory: Directory
    temporary: str

    @property
    def staged(self) -> Staged | None:
        """The new bytes under the temporary name; None for a removal."""
        return None if self.write.after is None else Staged(self.temporary, digest(self.write.after))

    @property
    def shown(self) -> str:
        """The logical path, for people."""
        return f"{self.write.root.scope}/{self.write.rel}"


@dataclass(slots=True)
class _Progress:
    """What was done so far, and would have to be taken back.

    Attributes:
        directories: opened, by root and path.
        items: on disk under temporary names, or about to be.
        begun: how many of them were about to get their own name, or to lose it. Whether they did is asked
            of the disk, since an interrupt may fall between a call's work and its return.
    """

    directories: dict[_Place, Directory] = field(default_factory=dict)
    items: list[_Item] = field(default_factory=list)
    begun: int = 0


def apply(writes: Sequence[Write], temporary: Callable[[int], str], *, durable: bool = True) -> None:
    """Carry out `writes`; the caller holds the locks of their roots. Those that claim nothing come last.

    Args:
        writes: what to do.
        temporary: the temporary name that belongs to the write of a number, for this commit alone.
        durable: whether everything is on disk on return; else it may be lost when the power fails.

    Raises:
        StoreConflict: a file is not what its write replaces. Nothing is changed.
        PathEscape, NotAFile: the way to a file is no longer one. Nothing is changed.
        ManagedMemoryUnavailable: the disk is full, read-only or broken. Nothing is changed.
        Stuck: as that, but the named files could not be taken back.

    A file that was taken back has its bytes again, but a new inode, time and mode 0600.

    Cost: where durable, an fsync a file and directory.
    """
    # A link that a generated file replaced cannot be brought back: it goes when little else can fail.
    in_order = sorted(enumerate(writes), key=lambda each: each[1].before is Expected.LINK)
    with ExitStack() as held:
        progress = _Progress()
        try:
            for number, write in in_order:
                _stage(write, temporary(number), progress, held, durable=durable)
            for item in progress.items:
                progress.begun += 1
                _publish(item)
            if durable:
                for directory in progress.directories.values():
                    directory.sync()
        except BaseException as error:
            _take_back(progress, error)
            raise


def _stage(write: Write, temporary: str, progress: _Progress, held: ExitStack, *, durable: bool) -> None:
    place = (write.root.device, write.root.inode, write.directory)
    directory = progress.directories.get(place)
    if directory is None:
        directory = held.enter_context(open_directory(write.root.root, write.directory, create=True))
        progress.directories[place] = directory
    progress.items.append(_Item(write, directory, temporary))
    if write.after is not None:
        directory.stage(temporary, write.after, durable=durable)


def _publish(item: _Item) -> None:
    match item.write.before, item.staged:
        case Expected.ABSENT, Staged() as staged:
            landing = item.directory.publish_new(staged, item.write.name)
        case Expected.LINK, Staged() as staged:
            landing = item.directory.replace_link(staged, item.write.name)
        case bytes() as before, Staged() as staged:
            landing = item.directory.replace(staged, item.write.name, digest(before))
        case bytes() as before, None:
            landing = item.directory.withdraw(item.write.name, item.temporary, digest(before))
        case _:
            raise ValueError("what is not there cannot be removed")
    if landing is not Landing.ATOMIC:
        events.emit("commit_degraded", scope=item.write.root.scope, landing=str(landing))


def _take_back(progress: _Progress, cause: BaseException) -> None:
    """Bring every file back and remove the directories that were made for it."""
    stuck: list[str] = []
    for number, item in reversed(list(enumerate(progress.items, 1))):
        try:
            if number > progress.begun:
                _drop(item)
            elif not (isinstance(cause, StoreConflict) and _never_left(item)):
                _bring_back(item)
        except MunimentError:
            stuck.append(item.shown)
    # Backwards, since a later directory may stand in one that an earlier one made.
    for directory in reversed(progress.directories.values()):
        for made in reversed(directory.created):
            try:
                remove_empty_directory(directory.root, made)
            except MunimentError:
                stuck.append(f"{directory.root.scope}/{made}")
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
    return item.write.after is None and bytes_at(item.directory, item.temporary) is None


def _bring_back(item: _Item) -> None:
    match item.write.before:
        case Expected.ABSENT:
            before = None
        case Expected.LINK:
            _bring_link_back(item)
            return
        case content:
            before = content
    take_back(item.directory, item.write.name, before, item.write.after, item.temporary)


def _bring_link_back(item: _Item) -> None:
    """Drop our bytes where they are still aside; a link that was dropped already cannot be made again."""
    aside = bytes_at(item.directory, item.temporary)
    if aside is None or item.staged is None:
        raise StoreConflict((item.shown,))
    if digest(aside) == item.staged.digest:
        item.directory.discard(item.staged)
    else:
        item.directory.replace(Staged(item.temporary, digest(aside)), item.write.name, item.staged.digest)
