"""The interface of `kernel.syscalls` for macOS and Windows, by the standard library and the walk.

`is_openat2_available` is false, so that `kernel.root.choose_resolver` uses the walk. O_PATH is not
available: a file is opened for reading to examine it, without waiting and without following links. So an
unreadable file cannot be examined.

Separate, since it is loaded in place of `kernel.syscalls` only.
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Iterator
from typing import Any, Final, NewType, NoReturn

from muniment.portable import IS_WINDOWS
from muniment.portable.waiting import LatchingOs, select

__all__ = [
    "EXAMINE",
    "LIST",
    "MACHINE",
    "READ",
    "STEP",
    "Openat2Resolver",
    "Purpose",
    "Stat",
    "fcntl",
    "fstat",
    "is_openat2_available",
    "iterate_entries",
    "os",
    "read_last_error",
    "renameat2",
    "require_known_machine",
    "select",
]

os: Any
fcntl: Any
if IS_WINDOWS:
    from muniment.portable.windows import fcntl, os
else:
    os, fcntl = LatchingOs(), importlib.import_module("fcntl")

Purpose = NewType("Purpose", int)
Stat = os.stat_result

READ: Final = Purpose(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
LIST: Final = Purpose(os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
EXAMINE: Final = READ
STEP: Final = READ


class _NoMachine:
    """A placeholder for the numbers of system calls, which do not exist here."""

    renameat2: Final = -1


MACHINE: Final = _NoMachine()

_DIRECTORY, _FILE, _OTHER = 4, 8, 10
"""`d_type` values of readdir(3): DT_DIR, DT_REG, and DT_LNK for all others."""


class _NoResolver:
    """A placeholder for the resolver that only Linux has."""

    name: Final = "openat2"

    def open(self, _dir_fd: int, _path: bytes, _purpose: int) -> NoReturn:
        """Raise ENOSYS."""
        raise read_last_error()


Openat2Resolver = _NoResolver


def is_openat2_available() -> bool:
    """Return False: `openat2` does not exist on this system."""
    return False


def require_known_machine() -> None:
    """Do nothing: no call is made by its number here."""


def read_last_error() -> OSError:
    """Return the error of a call that this system lacks."""
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def renameat2(*_call: object) -> int:
    """Return -1, as a file system without the flags of `renameat2`; the caller then uses a plain rename."""
    return -1


def fstat(fd: int) -> Any:
    """Return the status of `fd`; raise OSError."""
    return os.fstat(fd)


def iterate_entries(fd: int) -> Iterator[tuple[bytes, int]]:
    """Yield name and `d_type` of each entry of the directory `fd`, without `.` and `..`; raise OSError."""
    with os.scandir(fd) as listed:
        for item in listed:
            is_directory, is_file = item.is_dir(follow_symlinks=False), item.is_file(follow_symlinks=False)
            kind = _DIRECTORY if is_directory else _FILE if is_file else _OTHER
            yield os.fsencode(item.name), kind


def replace_syscalls() -> None:
    """Replace `kernel.syscalls` by this module, before the kernel imports it."""
    sys.modules["muniment.kernel.syscalls"] = sys.modules[__name__]
