"""What `kernel.syscalls` gives the kernel, for macOS and Windows: by the standard library, and by the walk.

`available` is false, so that `kernel.root.choose_resolver` walks. There is no O_PATH: what is examined is
opened to be read, without waiting and following nothing; a file that may not be read cannot be examined.

Apart, since it is loaded in the place of `kernel.syscalls` and by nobody else.
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
    "available",
    "entries",
    "fcntl",
    "fstat",
    "last_error",
    "os",
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
    """In the place of the numbers of system calls, of which there are none here."""

    renameat2: Final = -1


MACHINE: Final = _NoMachine()

_DIRECTORY, _FILE, _ELSE = 4, 8, 10
"""`d_type` values of readdir(3): DT_DIR, DT_REG, and DT_LNK for whatever is neither."""


class _NoResolver:
    """What no system but Linux has."""

    name: Final = "openat2"

    def open(self, _dir_fd: int, _path: bytes, _purpose: int) -> NoReturn:
        """Refuse."""
        raise last_error()


Openat2Resolver = _NoResolver


def available() -> bool:
    """Whether this system has `openat2`: it does not."""
    return False


def require_known_machine() -> None:
    """Raise nothing: no call is made by its number here."""


def last_error() -> OSError:
    """What a call is answered that this system lacks."""
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def renameat2(*_call: object) -> int:
    """Fail, as where the file system lacks the flags of `renameat2`: then a plain rename is made."""
    return -1


def fstat(fd: int) -> Any:
    """What `fd` is; raises OSError."""
    return os.fstat(fd)


def entries(fd: int) -> Iterator[tuple[bytes, int]]:
    """Name and `d_type` of everything in the directory `fd` but `.` and `..`; raises OSError."""
    with os.scandir(fd) as listed:
        for item in listed:
            is_directory, is_file = item.is_dir(follow_symlinks=False), item.is_file(follow_symlinks=False)
            kind = _DIRECTORY if is_directory else _FILE if is_file else _ELSE
            yield os.fsencode(item.name), kind


def stand_in() -> None:
    """Put this module where the kernel looks for its system calls; before it imports any."""
    sys.modules["muniment.kernel.syscalls"] = sys.modules[__name__]
