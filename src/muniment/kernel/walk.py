"""Open files under a root one path component at a time, for systems without `openat2`.

The contract is that of `muniment.kernel.root.Resolver`, with the same error numbers and two differences:

- A mount is detected only by its device number. A bind mount from the same file system is not detected. If
  files of one mount have several device numbers (some stacked file systems), they are rejected.
- Between two components, another process may move the current directory. The opened file is still a
  descendant of a directory that was under the root at one moment during the walk.

Directories on the way are opened O_PATH, so that only the last component is opened fully. Their kind is read
from the descriptor, so that a link is detected as a link and not guessed from ENOTDIR.

Separate from `root.py`, which chooses between this module and `openat2`: a system with `openat2` never runs
this code.
"""

from __future__ import annotations

import errno
import stat
from typing import Final

from muniment.kernel.syscalls import STEP, Purpose, fstat, os


class WalkResolver:
    """Opens paths one component at a time, for systems without `openat2`. Has no state; may be shared."""

    __slots__ = ()
    name: Final = "walk"

    def open(self, dir_fd: int, path: bytes, purpose: Purpose) -> int:
        """Open `path` under `dir_fd` and return a new descriptor; see `muniment.kernel.root.Resolver`.

        Cost: an `openat`, `fstat` and `close` per component.
        """
        device = fstat(dir_fd).st_dev
        names = path.split(b"/")
        # A directory is walked completely and then opened as ".", so that its last component is also checked.
        last = b"." if purpose & os.O_DIRECTORY else names.pop()
        directory = dir_fd
        try:
            for name in names:
                child = os.open(name, STEP, dir_fd=directory)
                directory = _close_and_move(directory, child, dir_fd)
                if not stat.S_ISDIR(_require_on_device(directory, device)):
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            fd = os.open(last, purpose | os.O_NOFOLLOW, dir_fd=directory)
        finally:
            _close_and_move(directory, dir_fd, dir_fd)
        try:
            _require_on_device(fd, device)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _close_and_move(from_fd: int, to_fd: int, caller_fd: int) -> int:
    """Close the directory `from_fd`, which the walk leaves, unless it is `caller_fd`; return `to_fd`."""
    if from_fd != caller_fd:
        os.close(from_fd)
    return to_fd


def _require_on_device(fd: int, device: int) -> int:
    """Return the mode of the descriptor `fd`; raise `OSError` if it is a link or on another device."""
    found = fstat(fd)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if found.st_dev != device:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return found.st_mode
