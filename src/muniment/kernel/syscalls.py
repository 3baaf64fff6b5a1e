"""The system calls of a handle: how to ask a descriptor what it is, and what a directory holds.

A fenced worker may make few calls, and the C library chooses others than it is asked for: `os.fstat` becomes
`newfstatat` in many versions, `os.scandir` needs `fcntl`. So `fstat` and `getdents64` are made
here by number, on x86-64 and aarch64. Elsewhere every number is -1, which the kernel answers with
ENOSYS, and `require_known_machine` says so before anything is bound.

Nothing here takes a path. The numbers are those of the kernel's tables, the layouts those of the kernel's
`asm/stat.h` (x86) and `asm-generic/stat.h` (aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl as fcntl  # noqa: PLC0414  the kernel has these three from here, see `portable`
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
"""One of the closed set of flag sets that anything beneath a root is opened with."""

READ: Final = Purpose(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
"""A file's bytes. O_NONBLOCK because opening a FIFO, or a file under a lease, must not wait for anyone."""

LIST: Final = Purpose(os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
"""A directory's names; also what `flock` and `fsync` of a directory need.

No O_NOFOLLOW: with O_DIRECTORY the kernel would answer ENOTDIR for a link, and the reason would be lost.
"""

EXAMINE: Final = Purpose(os.O_PATH | os.O_CLOEXEC)
"""What a name is, without opening what it names."""

STEP: Final = Purpose(EXAMINE | os.O_NOFOLLOW)
"""A directory on the way, for the walk: a link is found to be one, by its descriptor."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """System call numbers of one architecture."""

    fstat: int
    getdents64: int
    renameat2: int


MACHINES: Final = {"x86_64": Numbers(5, 217, 316), "aarch64": Numbers(80, 61, 276)}
UNKNOWN: Final = Numbers(fstat=-1, getdents64=-1, renameat2=-1)

_POINTER_BYTES_64: Final = 8


def numbers_for(machine: str, pointer_bytes: int) -> Numbers:
    """The numbers of `machine`, or `UNKNOWN`; a 32-bit process on a 64-bit kernel uses another table."""
    return MACHINES.get(machine, UNKNOWN) if pointer_bytes == _POINTER_BYTES_64 else UNKNOWN


class Stat(ctypes.Structure):
    """What `fstat` says of a descriptor. Only the fields that somebody asks for are listed here."""

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
    """`struct stat` of aarch64 (asm-generic): 128 bytes, and a spare word before the size."""

    _fields_ = (
        ("st_dev", ctypes.c_uint64),
        ("st_ino", ctypes.c_uint64),
        ("st_mode", ctypes.c_uint32),
        ("st_nlink", ctypes.c_uint32),
        ("owners_and_device", ctypes.c_char * 24),
        ("st_size", ctypes.c_int64),
        ("blocks_and_times", ctypes.c_char * 72),
    )


MACHINE: Final = numbers_for(os.uname().machine, ctypes.sizeof(ctypes.c_void_p))
_LAYOUT: Final[type[Stat]] = StatGeneric if MACHINE is MACHINES["aarch64"] else StatX86
_FSTAT: Final = MACHINE.fstat
LIBC: Final = ctypes.CDLL(None, use_errno=True)

# Each call has a function object of its own, with its own types. The two calls of every open, `fstat` and
# `openat2`, declare none: a declared type costs each argument an object, in all as much as the system call.
# Undeclared, an int is passed as a C int, which libffi widens with its sign, bytes as `char *`, and `byref`
# as a pointer: what these calls take, and all they are given.
_fstat = CFUNCTYPE(c_long, use_errno=True)(("syscall", LIBC))
_getdents64 = CFUNCTYPE(c_long, c_long, c_int, c_char_p, c_size_t, use_errno=True)(("syscall", LIBC))

renameat2 = CFUNCTYPE(c_long, c_long, c_int, c_char_p, c_int, c_char_p, c_uint, use_errno=True)(
    ("syscall", LIBC)
)

_LISTING_BYTES: Final = 32_768
"""Bytes asked of the kernel at a time; what the C library asks for."""

_ENTRY: Final = struct.Struct("=QqHB")
"""`linux_dirent64` before its name: inode, offset, length of this entry, type."""


def require_known_machine(numbers: Numbers = MACHINE) -> None:
    """Raise unless this process runs where the numbers above are known.

    Raises:
        PlatformUnsupported: neither a 64-bit x86-64 nor a 64-bit aarch64 process.
    """
    if numbers is UNKNOWN:
        raise PlatformUnsupported("the confinement knows 64-bit Linux on x86-64 and aarch64 only")


def last_error() -> OSError:
    """The error of the system call that this thread made last. Holds no path."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def fstat(fd: int) -> Stat:
    """What `fd` is. Works on O_PATH descriptors; one `fstat`, and safe to call from many threads.

    Raises:
        OSError: the descriptor is closed, or the file system fails.
    """
    stat = _LAYOUT()
    if _fstat(_FSTAT, fd, byref(stat)) < 0:
        raise last_error()
    return stat


def entries(fd: int) -> Iterator[tuple[bytes, int]]:
    """Name and `d_type` of everything in the directory `fd` but `.` and `..`, in the file system's order.

    Moves the descriptor's offset, so `fd` must belong to the caller alone.

    Raises:
        OSError: ENOENT for a directory that was removed, ENOTDIR for no directory.
    """
    buffer = ctypes.create_string_buffer(_LISTING_BYTES)
    while True:
        count = _getdents64(MACHINE.getdents64, fd, buffer, _LISTING_BYTES)
        if count < 0:
            raise last_error()
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
# Opening beneath a root by one `openat2`: the kernel keeps the promises while it walks.
#
# On success, for the whole walk and not only for a moment before it:
#
# - C1 no component was a symbolic link, a magic link included (ELOOP).
# - C2 the walk did not leave the directory that it began in, nor crossed a mount (EXDEV), a bind mount
#   within one file system included.
# - C3 nothing was waited for (`READ` holds O_NONBLOCK; directories and O_PATH do not block).
#
# Does not hold: anything about the file that was found. `muniment.kernel.root` asks the descriptor.
#
# A device that stands under the root is opened before it is refused, without waiting and without becoming a
# terminal; only a privileged process can put one there, and a second walk to avoid it costs every honest
# open as much as the first.
#
# Source: openat2(2); Linux 5.6.

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

_openat2 = CFUNCTYPE(c_long, use_errno=True)(("syscall", LIBC))  # no argument types: see `_fstat`


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
        """Return a new descriptor of `path` beneath `dir_fd`; see `muniment.kernel.root.Resolver`.

        Cost: one system call, 64 under constant disturbance.
        """
        fd: int
        attempt = 1
        while (fd := _openat2(_NUMBER, dir_fd, path, _HOWS[purpose], _HOW_BYTES)) < 0:
            if attempt == ATTEMPTS or ctypes.get_errno() not in _TRANSIENT:
                raise last_error()
            attempt += 1
        return fd
