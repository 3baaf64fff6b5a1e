"""The broker's door to writing: the lock of a root, and the directories beneath it.

Imported by `muniment.store` only, never in a worker. What is done in a directory stands in
`muniment.confine.landing`.

On success, until the block of `lock_roots` is left:

- L1 this process holds the lock of every root named, and no other process that asks by these rules does. The
  lock is `flock` on a descriptor of the root's own directory, opened here, so that it also holds between two
  homes that bind one root.
- L2 every root was still where it was bound, at one moment after its lock was taken.

On success of `open_directory`:

- D1 every component was opened through the root's resolver beneath the one before: no link was followed, no
  mount crossed.
- D2 what was missing was made 0700 and synced into its parent, and is named by the result, so that an aborted
  commit can take it away again.

Does not hold: anything about processes that do not ask for the lock, such as editors; that a directory is
still beneath the root once it is open. A process forked meanwhile keeps a lock until it executes or ends.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import select
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.confine.landing import (
    Directory,
    leaf,
    reporting,
    unavailable,
)
from muniment.confine.root import Root, encoded
from muniment.confine.syscalls import LIST
from muniment.errors import DeadlineExceeded, NotAFile, NotFound, Unreadable, printable
from muniment.names import RelPath, Scope, joined

FIRST_PAUSE: Final = 0.002
"""Seconds before a held lock is tried a second time; a commit holds it for some milliseconds."""

LONGEST_PAUSE: Final = 0.1
"""Seconds between tries in the end."""

_MODE: Final = 0o700
_IN_USE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


@contextmanager
def lock_roots(roots: Iterable[BoundRoot], patience: Patience) -> Iterator[None]:
    """Hold the locks of all `roots` inside the block.

    They are taken in order of device and inode, so that two commits cannot block each other, with growing
    pauses between tries. Each is released when its descriptor, opened here, is closed on leaving.

    Raises:
        DeadlineExceeded: somebody else held a lock until the deadline.
        Cancelled: the caller cancelled while waiting.
        PathEscape: `root_replaced`; a root is no longer where it was bound.
        ManagedMemoryUnavailable: the file system cannot lock.
    """
    in_order = {(bound.device, bound.inode): bound for bound in roots}
    with ExitStack() as held:
        for _identity, bound in sorted(in_order.items()):
            held.enter_context(_lock(bound.root, patience))
        for bound in in_order.values():
            bound.verify()
        yield


@contextmanager
def _lock(root: Root, patience: Patience) -> Iterator[None]:
    with reporting(root.scope):
        fd = root.resolver.open(root.fd, b".", LIST)
    try:
        pause = FIRST_PAUSE
        while not _try_lock(root.scope, fd):
            _check(root.scope, patience)
            _pause(patience, pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        yield
    finally:
        # Closing alone would leave the lock with every process that was forked meanwhile.
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _check(scope: Scope, patience: Patience) -> None:
    try:
        patience.check()
    except DeadlineExceeded:
        raise DeadlineExceeded(f"another process keeps {scope} locked; try again") from None


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


def open_directory(root: Root, rel: str, *, create: bool) -> Directory:
    """Open a directory beneath a root for writing; `rel` "" is the root itself.

    Args:
        root: the handle to stay beneath.
        rel: path inside the scope, by the rules of `Root`.
        create: make what is missing, each 0700, and sync the directory that each is made in.

    Raises:
        PathEscape: the way meets a link or a mount.
        NotFound: the directory, or one on the way, does not exist.
        NotAFile: a file stands where a directory is needed.
        ManagedMemoryUnavailable: the system refuses to create.
        BadName: `rel` is no path.

    Cost: an open a component; an `fsync` a created directory.
    """
    encoded(rel)
    directory = Directory(root, _step(root, root.fd, b".", ""), "", ())
    try:
        for name in rel.split("/") if rel else ():
            _descend(root, directory, name, create=create)
    except BaseException:
        directory.close()
        for made in reversed(directory.created):
            remove_empty_directory(root, made)
        raise
    return directory


def remove_empty_directory(root: Root, rel: RelPath) -> bool:
    """Remove a directory that an aborted commit created, unless somebody uses it.

    Returns:
        Whether it is gone; not if anything stands in it, or something else in its place.

    Raises:
        PathEscape: the way meets a link or a mount.
        ManagedMemoryUnavailable: the system refuses.
    """
    above, _, name = rel.rpartition("/")
    try:
        with open_directory(root, above, create=False) as directory:
            os.rmdir(leaf(name), dir_fd=directory.fd)
    except (NotFound, FileNotFoundError):
        return True
    except NotAFile:
        return False
    except OSError as error:
        if error.errno not in _IN_USE:
            raise unavailable(root.scope, error) from error
        return False
    return True


def _descend(root: Root, directory: Directory, name: str, *, create: bool) -> None:
    """Move `directory` one component down, making it if it is missing and that is asked."""
    rel = joined(directory.rel, name)
    component = leaf(name)
    try:
        fd = _step(root, directory.fd, component, rel)
    except NotFound:
        if not create:
            raise
        with reporting(root.scope):
            # Somebody else may have made it in this moment: then it is theirs to remove.
            with suppress(FileExistsError):
                os.mkdir(component, _MODE, dir_fd=directory.fd)
                directory.created = (*directory.created, rel)
            os.fsync(directory.fd)
        fd = _step(root, directory.fd, component, rel)
    above, directory.fd, directory.rel = directory.fd, fd, rel
    os.close(above)


def _step(root: Root, at_fd: int, name: bytes, rel: str) -> int:
    """Open the directory `name` for writing names into it, following nothing."""
    with reporting(root.scope):
        try:
            return root.resolver.open(at_fd, name, LIST)
        except NotADirectoryError as error:
            raise NotAFile(printable(f"{root.scope}/{rel} is a file, not a directory")) from error
        except OSError as error:
            refusal = root.refusal(rel, error)
            if isinstance(refusal, Unreadable):
                raise
            raise refusal from error
