"""Opening beneath a root by one `openat2`: the kernel keeps the promises while it walks.

On success, for the whole walk and not only for a moment before it:

- C1 no component was a symbolic link, a magic link included (ELOOP).
- C2 the walk did not leave the directory that it began in, nor crossed a mount (EXDEV), a bind mount within
  one file system included.
- C3 nothing was waited for (`READ` holds O_NONBLOCK; directories and O_PATH do not block).

Does not hold: anything about the file that was found. `muniment.confine.root` asks the descriptor.

A device that stands under the root is opened before it is refused, without waiting and without becoming
a terminal; only a privileged process can put one there, and a second walk to avoid it costs
every honest open as much as the first.

Source: openat2(2); Linux 5.6.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from muniment.confine.syscalls import EXAMINE, LIBC, LIST, READ, Purpose, last_error

_NUMBER: Final = 437
"""`openat2` on x86-64 and aarch64; calls added since Linux 5.0 share one number."""

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08

ATTEMPTS: Final = 64
"""How often one open is tried. The kernel answers EAGAIN when a rename or mount anywhere disturbed its
walk, and a file under a lease does so until the lease is broken; neither may hold a run for ever."""

_TRANSIENT: Final = frozenset({errno.EAGAIN, errno.EINTR})


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_BYTES: Final = ctypes.sizeof(_OpenHow)
# Built once, as references: the kernel only reads them, so threads may share them.
_HOWS: Final = {
    purpose: ctypes.byref(_OpenHow(purpose, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV))
    for purpose in (READ, LIST, EXAMINE)
}

_openat2 = LIBC["syscall"]
_openat2.restype = ctypes.c_long  # no argument types: see `muniment.confine.syscalls`


def available() -> bool:
    """Whether this kernel, and whatever filters its calls, lets this process use `openat2`.

    Asks to open beneath descriptor -1, which reaches no file: where the call exists the answer is
    EBADF; an old kernel says ENOSYS and an old container's filter EPERM.
    """
    _openat2(_NUMBER, -1, b".", _HOWS[EXAMINE], _HOW_BYTES)
    return ctypes.get_errno() == errno.EBADF


class Openat2Resolver:
    """The resolver of choice. Holds nothing; may be shared."""

    __slots__ = ()
    name: Final = "openat2"

    def open(self, dir_fd: int, path: bytes, purpose: Purpose) -> int:
        """A new descriptor of `path` beneath `dir_fd`; see `muniment.confine.root.Resolver`.

        Cost: one system call, 64 under constant disturbance.
        """
        fd: int
        attempt = 1
        while (fd := _openat2(_NUMBER, dir_fd, path, _HOWS[purpose], _HOW_BYTES)) < 0:
            if attempt == ATTEMPTS or ctypes.get_errno() not in _TRANSIENT:
                raise last_error()
            attempt += 1
        return fd
