"""The interface of `kernel.syscalls` for macOS and Windows, implemented with the standard library.

`is_openat2_available` returns False, so that `kernel.root.choose_resolver` opens paths one component at a
time (the "walk"). The flag O_PATH does not exist: to examine a file, it is opened for reading, without
waiting and without following links. So a file that this user may not read cannot be examined.

Separate, because it is loaded only as a replacement of `kernel.syscalls`.
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
    """A placeholder for the table of system call numbers, which only Linux needs."""

    renameat2: Final = -1


MACHINE: Final = _NoMachine()

_DIRECTORY, _FILE, _OTHER = 4, 8, 10
"""Values of `d_type` from readdir(3): DT_DIR for a directory, DT_REG for a file, and DT_LNK for everything
else.
"""


class _NoResolver:
    """A placeholder for the resolver that uses `openat2`, which only Linux has."""

    name: Final = "openat2"

    def open(self, _dir_fd: int, _path: bytes, _purpose: int) -> NoReturn:
        """Raise an OSError with ENOSYS: the system call does not exist."""
        raise read_last_error()


Openat2Resolver = _NoResolver


def is_openat2_available() -> bool:
    """Return False: `openat2` does not exist on this system."""
    return False


def require_known_machine() -> None:
    """Do nothing: on this system no system call is made by its number."""


def read_last_error() -> OSError:
    """Return the error of a system call that does not exist here (ENOSYS)."""
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def renameat2(*_call: object) -> int:
    """Return -1, like a file system that does not support the flags; the caller then uses a plain rename."""
    return -1


def fstat(fd: int) -> Any:
    """Return the status of the open file `fd`, or raise OSError."""
    return os.fstat(fd)


def iterate_entries(fd: int) -> Iterator[tuple[bytes, int]]:
    """Yield the name and the `d_type` of each entry in the directory `fd`, without `.` and `..`.

    Raises:
        OSError: the directory cannot be read.
    """
    with os.scandir(fd) as listed:
        for item in listed:
            is_directory, is_file = item.is_dir(follow_symlinks=False), item.is_file(follow_symlinks=False)
            kind = _DIRECTORY if is_directory else _FILE if is_file else _OTHER
            yield os.fsencode(item.name), kind


def replace_syscalls() -> None:
    """Make imports of `kernel.syscalls` use this module instead; call it before the kernel is imported."""
    sys.modules["muniment.kernel.syscalls"] = sys.modules[__name__]
