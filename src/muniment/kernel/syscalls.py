"""System calls by number: `fstat`, `getdents64`, `renameat2` and `openat2`.

A confined worker may make few calls, and the C library replaces some of them: `os.fstat` becomes `newfstatat`
in many versions, and `os.scandir` needs `fcntl`. So `fstat` and `getdents64` are called here by number, on
x86-64 and aarch64. On other machines every number is -1, for which the kernel returns ENOSYS, and
`require_known_machine` raises before a root is bound.

No function here takes an absolute path: each path is relative to an open directory. The numbers are those of
the kernel's tables. The layouts are those of the kernel's `asm/stat.h` (x86) and `asm-generic/stat.h`
(aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl as fcntl  # noqa: PLC0414  the kernel imports these three from here, see `portable`
import os as os  # noqa: PLC0414
import select as select  # noqa: PLC0414
import struct
from collections.abc import Iterator
from ctypes import CFUNCTYPE, byref, c_char_p, c_int, c_long, c_size_t, c_uint
from dataclasses import dataclass
from typing import Final, NewType

from muniment.kernel.refusal import PlatformUnsupported

# -- syscalls ----------------------------------------------------------------------------------------

Purpose = NewType("Purpose", int)
"""Flags for opening a file under a root. Only the values in this module are used."""

READ: Final = Purpose(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
"""Flags to read a file. O_NONBLOCK: opening a FIFO, or a file under a lease, must not wait for a process."""

LIST: Final = Purpose(os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
"""Flags to list a directory; also for `flock` and `fsync` of a directory.

Without O_NOFOLLOW: with O_DIRECTORY the kernel would return ENOTDIR for a link, which hides the reason.
"""

EXAMINE: Final = Purpose(os.O_PATH | os.O_CLOEXEC)
"""Flags to read the status of a name without opening its file."""

STEP: Final = Purpose(EXAMINE | os.O_NOFOLLOW)
"""Flags for the walk to open a directory on the way. A link is detected by its descriptor."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """System call numbers of one architecture."""

    fstat: int
    getdents64: int
    renameat2: int


MACHINES: Final = {"x86_64": Numbers(5, 217, 316), "aarch64": Numbers(80, 61, 276)}
UNKNOWN: Final = Numbers(fstat=-1, getdents64=-1, renameat2=-1)

_POINTER_BYTES_64: Final = 8


def get_numbers(machine: str, pointer_bytes: int) -> Numbers:
    """Return the system call numbers of a machine, or `UNKNOWN`.

    Args:
        machine: the machine as `uname` reports it.
        pointer_bytes: 8 in a 64-bit process. 32-bit processes use another table, so they get `UNKNOWN`.
    """
    return MACHINES.get(machine, UNKNOWN) if pointer_bytes == _POINTER_BYTES_64 else UNKNOWN


class Stat(ctypes.Structure):
    """The result of `fstat`. The annotations list only the fields that are used."""

    st_dev: int
    st_ino: int
    st_mode: int
    st_nlink: int
    st_size: int


class StatX86(Stat):
    """`struct stat` of x86-64: 144 bytes."""

    _fields_ = (
        ("st_dev", ctypes.c_uint64),
        ("st_ino", ctypes.c_uint64),
        ("st_nlink", ctypes.c_uint64),
        ("st_mode", ctypes.c_uint32),
        ("owners_and_device", ctypes.c_char * 20),
        ("st_size", ctypes.c_int64),
        ("blocks_and_times", ctypes.c_char * 88),
    )


class StatGeneric(Stat):
    """`struct stat` of aarch64 (asm-generic): 128 bytes, and a padding word before the size."""

    _fields_ = (
        ("st_dev", ctypes.c_uint64),
        ("st_ino", ctypes.c_uint64),
        ("st_mode", ctypes.c_uint32),
        ("st_nlink", ctypes.c_uint32),
        ("owners_and_device", ctypes.c_char * 24),
        ("st_size", ctypes.c_int64),
        ("blocks_and_times", ctypes.c_char * 72),
    )


MACHINE: Final = get_numbers(os.uname().machine, ctypes.sizeof(ctypes.c_void_p))
_LAYOUT: Final[type[Stat]] = StatGeneric if MACHINE is MACHINES["aarch64"] else StatX86
_FSTAT: Final = MACHINE.fstat
LIBC: Final = ctypes.CDLL(None, use_errno=True)

# Each call has its own function object, with its own types. The two calls of every open, `fstat` and
# `openat2`, declare none: a declared type costs one object per argument, in total as much as the system call.
# Without declarations, an int is passed as a C int, which libffi sign-extends, bytes as `char *`, and `byref`
# as a pointer: the types that these calls take, and the only ones that they get.
_fstat = CFUNCTYPE(c_long, use_errno=True)(("syscall", LIBC))
_getdents64 = CFUNCTYPE(c_long, c_long, c_int, c_char_p, c_size_t, use_errno=True)(("syscall", LIBC))

renameat2 = CFUNCTYPE(c_long, c_long, c_int, c_char_p, c_int, c_char_p, c_uint, use_errno=True)(
    ("syscall", LIBC)
)

_LISTING_BYTES: Final = 32_768
"""Bytes of the buffer for each call of `getdents64`; the C library uses the same number."""

_ENTRY: Final = struct.Struct("=QqHB")
"""The part of `linux_dirent64` before the name: inode, offset, length of this entry, type."""


def require_known_machine(numbers: Numbers = MACHINE) -> None:
    """Raise an error unless the system call numbers of this machine are known.

    Raises:
        PlatformUnsupported: this is neither a 64-bit x86-64 nor a 64-bit aarch64 process.
    """
    if numbers is UNKNOWN:
        raise PlatformUnsupported("the confinement supports only 64-bit Linux on x86-64 and aarch64")


def read_last_error() -> OSError:
    """Return the error of the last system call of this thread, without a path in it."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def fstat(fd: int) -> Stat:
    """Return the status of the descriptor `fd`, which may be O_PATH. Thread-safe; one system call.

    Raises:
        OSError: the descriptor is closed, or the file system fails.
    """
    stat = _LAYOUT()
    if _fstat(_FSTAT, fd, byref(stat)) < 0:
        raise read_last_error()
    return stat


def iterate_entries(fd: int) -> Iterator[tuple[bytes, int]]:
    """Yield the name and `d_type` of each entry of the directory `fd`, without `.` and `..`, unsorted.

    Moves the offset of the descriptor, so no other code may use `fd` at the same time.

    Raises:
        OSError: ENOENT if the directory was removed, ENOTDIR if `fd` is not a directory.
    """
    buffer = ctypes.create_string_buffer(_LISTING_BYTES)
    while True:
        count = _getdents64(MACHINE.getdents64, fd, buffer, _LISTING_BYTES)
        if count < 0:
            raise read_last_error()
        if count == 0:
            return
        chunk, offset = buffer.raw, 0
        while offset < count:
            _inode, _next, length, kind = _ENTRY.unpack_from(chunk, offset)
            start = offset + _ENTRY.size
            name = chunk[start : chunk.index(b"\0", start)]
            offset += length
            if name not in {b".", b".."}:
                yield name, kind


# -- openat2 -----------------------------------------------------------------------------------------
#
# Opening under a root by one `openat2`: the kernel keeps the promises while it walks.
#
# On success, for the complete walk and not only for a moment before it:
#
# - C1 no component was a symbolic link, magic links included (ELOOP).
# - C2 the walk did not leave its first directory and did not cross a mount (EXDEV), including a bind mount
#   within one file system.
# - C3 no call waited (`READ` contains O_NONBLOCK; directories and O_PATH do not block).
#
# Not guaranteed: anything about the opened file. `muniment.kernel.root` checks the descriptor.
#
# A device under the root is opened before it is rejected, without waiting and without becoming a terminal.
# Only a privileged process can create one there, and a second walk to avoid it would double the cost of
# every open.
#
# Source: openat2(2); Linux 5.6.

_OPENAT2: Final = 437
"""`openat2` on x86-64 and aarch64; calls added since Linux 5.0 share one number."""

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08

ATTEMPTS: Final = 64
"""Number of tries of one open. The kernel returns EAGAIN if a rename or mount on the system disturbed its
walk, and for a file under a lease until the lease is broken; neither may block a run forever."""

_TRANSIENT: Final = frozenset({errno.EAGAIN, errno.EINTR})


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_OPEN_HOW_BYTES: Final = ctypes.sizeof(_OpenHow)
# Built once, as references: the kernel only reads them, so threads may share them.
_OPEN_HOWS: Final = {
    purpose: ctypes.byref(_OpenHow(purpose, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV))
    for purpose in (READ, LIST, EXAMINE)
}

_openat2 = CFUNCTYPE(c_long, use_errno=True)(("syscall", LIBC))  # no argument types: see `_fstat`


def is_openat2_available() -> bool:
    """Return whether the kernel and its system call filter let this process use `openat2`.

    Tries to open under descriptor -1, which accesses no file. If the call exists, the error is EBADF. An old
    kernel returns ENOSYS, and the filter of an old container returns EPERM.
    """
    _openat2(_OPENAT2, -1, b".", _OPEN_HOWS[EXAMINE], _OPEN_HOW_BYTES)
    return ctypes.get_errno() == errno.EBADF


class Openat2Resolver:
    """Opens each path by one `openat2` call; preferred to the walk. It has no state and may be shared."""

    __slots__ = ()
    name: Final = "openat2"

    def open(self, dir_fd: int, path: bytes, purpose: Purpose) -> int:
        """Open `path` under `dir_fd` and return a new descriptor; see `muniment.kernel.root.Resolver`.

        Cost: one system call; up to 64 if other processes rename or mount all the time.
        """
        fd: int
        attempt = 1
        while (fd := _openat2(_OPENAT2, dir_fd, path, _OPEN_HOWS[purpose], _OPEN_HOW_BYTES)) < 0:
            if attempt == ATTEMPTS or ctypes.get_errno() not in _TRANSIENT:
                raise read_last_error()
            attempt += 1
        return fd
