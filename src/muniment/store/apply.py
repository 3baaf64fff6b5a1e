"""Puts planned writes on the disk: all of them, or after a failure none.

Every file is staged whole under a temporary name before the first one gets its own, so that a full
disk is met before anything shows. A failure while names are given out takes back those that were
given, unless someone has changed them since: a newer state is never overwritten by an older.

Without a ledger a process that is killed between two names leaves a change-set half applied, each
file whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum

from muniment import events
from muniment.confine.binding import BoundRoot
from muniment.confine.landing import Directory, Landing, Staged, temporary_name
from muniment.confine.writing import open_directory, remove_empty_directory
from muniment.errors import ManagedMemoryUnavailable, MunimentError, NotFound, StoreConflict
from muniment.names import RelPath
from muniment.tools.changeset import digest


class Expected(Enum):
    """What must stand at a path, where that is not known bytes."""

    ABSENT = "absent"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Write:
    """One file to be written.

    Attributes:
        before: the bytes that it replaces; `ABSENT`: it must be new; `LINK`: a link, which is dropped.
    """

    root: BoundRoot
    rel: RelPath
    before: bytes | Expected
    after: bytes

    @property
    def directory(self) -> str:
        """The directory of the file, inside its scope."""
        return self.rel.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The last segment."""
        return self.rel.rpartition("/")[2]


_Place = tuple[int, int, str]
"""Device and inode of a root, and a directory beneath it."""


@dataclass(frozen=True, slots=True)
class _Item:
    write: Write
    directory: Directory
    staged: Staged

    @property
    def shown(self) -> str:
        """The logical path, for people."""
        return f"{self.write.root.scope}/{self.write.rel}"


@dataclass(slots=True)
class _Progress:
    """What was done so far, and would have to be taken back.

    Attributes:
        directories: opened, by root and path.
        staged: on disk under temporary names.
        begun: those of them that were about to get their own name. Whether they did is asked of the disk,
            since an interrupt may fall between a call's work and its return.
    """

    directories: dict[_Place, Directory] = field(default_factory=dict)
    staged: list[_Item] = field(default_factory=list)
    begun: list[_Item] = field(default_factory=list)


def apply(writes: Sequence[Write]) -> None:
    """Carry out `writes`; the caller holds the locks of their roots. Those that claim nothing come last.

    Raises:
        StoreConflict: a file is not what its write replaces. Nothing is changed.
        PathEscape, NotAFile: the way to a file is no longer one. Nothing is changed.
        ManagedMemoryUnavailable: the disk is full, read-only or broken. Nothing is changed, or the
            message names the files that could not be taken back.

    A file that was taken back has its bytes again, but a new inode, time and mode 0600.

    Cost: an fsync a file and a directory.
    """
    # A link that a generated file replaced cannot be brought back: it goes when little else can fail.
    in_order = sorted(writes, key=lambda write: write.before is Expected.LINK)
    with ExitStack() as held:
        progress = _Progress()
        try:
            for write in in_order:
                _stage(write, progress, held)
            for item in progress.staged:
                progress.begun.append(item)
                _publish(item)
            for directory in progress.directories.values():
                directory.sync()
        except BaseException as error:
            _take_back(progress, error)
            raise


def _stage(write: Write, progress: _Progress, held: ExitStack) -> None:
    place = (write.root.device, write.root.inode, write.directory)
    directory = progress.directories.get(place)
    if directory is None:
        directory = held.enter_context(open_directory(write.root.root, write.directory, create=True))
        progress.directories[place] = directory
    staged = directory.stage(temporary_name(secrets.token_bytes), write.after)
    progress.staged.append(_Item(write, directory, staged))


def _publish(item: _Item) -> None:
    match item.write.before:
        case Expected.ABSENT:
            landing = item.directory.publish_new(item.staged, item.write.name)
        case Expected.LINK:
            landing = item.directory.replace_link(item.staged, item.write.name)
        case before:
            landing = item.directory.replace(item.staged, item.write.name, digest(before))
    if landing is not Landing.ATOMIC:
        events.emit("commit_degraded", scope=item.write.root.scope, landing=str(landing))


def _take_back(progress: _Progress, cause: BaseException) -> None:
    """Undo what was published, drop what was only staged, remove the directories that were made for it."""
    stuck: list[str] = []
    for item in reversed(progress.staged):
        try:
            if item in progress.begun:
                _unpublish(item)
            else:
                item.directory.discard(item.staged)
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
        raise ManagedMemoryUnavailable(
            "memory",
            f"the commit failed ({str(cause) or type(cause).__name__}) and could not be taken back for "
            f"{', '.join(stuck)}",
        ) from cause


def _unpublish(item: _Item) -> None:
    """Take back one file, from whatever point its publishing came to.

    Raises:
        MunimentError: somebody changed it since, it can no longer be brought back, or the disk fails.
    """
    directory, name = item.directory, item.write.name
    try:
        aside = directory.read(item.staged.temporary)
    except NotFound:
        _restore(item)
        return
    if digest(aside) == item.staged.digest:
        directory.discard(item.staged)
        return
    # The names were exchanged, and what was displaced is not dropped yet.
    try:
        directory.replace(Staged(item.staged.temporary, digest(aside)), name, item.staged.digest)
    except StoreConflict:
        # Somebody exchanged the name once more. Where our bytes are aside again, nothing else of us is left.
        if digest(directory.read(item.staged.temporary)) != item.staged.digest:
            raise
        directory.discard(item.staged)


def _restore(item: _Item) -> None:
    """Bring the before-state of a published file back."""
    directory, name = item.directory, item.write.name
    match item.write.before:
        case Expected.LINK:
            raise StoreConflict((item.shown,))
        case Expected.ABSENT:
            with suppress(NotFound):
                directory.read(name)
                directory.withdraw(name, temporary_name(secrets.token_bytes), item.staged.digest)
        case before:
            again = directory.stage(temporary_name(secrets.token_bytes), before)
            try:
                directory.replace(again, name, item.staged.digest)
            except BaseException:
                directory.discard(again)
                raise
