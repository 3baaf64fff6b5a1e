"""An attempt: one forbidden thing as data, and how it is done.

- A1 an act makes its calls by number, so that no C library refuses, replaces or retries them.
- A2 an act that succeeds harms nothing: it touches the stage, its own process or processes of the trial,
  and changes nothing that outlives them. Where only privileged arguments would do, it passes some that the
  kernel refuses behind its check of privilege (`reaches`).
- A3 it returns when the thing was really done, and raises `OSError` with the errno of a refusal.

Acts leave descriptors and mappings to the end of their process. Excluded from coverage, like the modules of
the acts, since they run in throwaway workers only: driven by `tests/confine/test_attempts.py`, where each
also succeeds without the fence.

Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from muniment.confine.syscall_table import NUMBERS
from muniment.confine.syscalls import LIBC, last_error
from muniment.names import FenceLayer

DONE: Final = "done"
"""What an act that went through answers; any other answer names an error."""

UNTRIED: Final = "untried"
"""What an act answers that has nothing to be tried on here."""

AT_FDCWD: Final = -100
MACHINE: Final = os.uname().machine
READ_BYTES: Final = 64

_PATH_FLAGS: Final = os.O_PATH | os.O_CLOEXEC

_syscall = LIBC["syscall"]
_syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Targets:
    """What attempts are aimed at; all of it made by the stage, for one trial.

    Attributes:
        root: descriptor of the worker's one root, which holds what `stage.py` lists.
        connection: descriptor of the worker's socket, whose other end the broker has.
        outside: a directory beside that root; absolute.
        canary: what the secret file outside says.
        broker: process id of whoever runs the trial.
        canary_address: where the canary stands in the broker's memory.
        listener: descriptor of a socket in the broker.
        pipe: descriptor, in the broker, of the end to read of a pipe that holds the canary.
        zygote: process id.
        sibling: process id of another worker of that zygote.
        tcp: port on the loopback that accepts.
        udp: port on the loopback that receives.
        abstract: name of a listening abstract socket, without its NUL.
        handle: of the secret file, as name_to_handle_at(2) gives it, in hexadecimal; empty: it has none.
        library: a shared object that no worker of the trial has loaded.
        needle: part of an environment variable of the broker that is no secret, in hexadecimal; empty: it has
            none.
    """

    root: int
    connection: int
    outside: str
    canary: str
    broker: int
    canary_address: int
    listener: int
    pipe: int
    zygote: int
    sibling: int
    tcp: int
    udp: int
    abstract: str
    handle: str
    library: str
    needle: str

    @property
    def secret(self) -> bytes:
        """The file outside whose content nobody may learn."""
        return f"{self.outside}/secret".encode()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One forbidden thing.

    Attributes:
        name: unique.
        what: for people, after "tries to".
        act: does it (A1 to A3).
        expected: what the full fence makes of it: an errno, a signal, another error's name, or `DONE` for
            what it leaves open.
        stopped_by: layers each of which stops it alone, whoever runs it. Empty: none does, and where it
            does not succeed, that rests on the worker's clean process.
        ordinary: further layers that stop it alone where the worker's user is not root.
        privileged: the kernel itself refuses it to whoever is not root with all capabilities.
        landlock_abi: Landlock stops it from this one on, where it is said to.
        consequence: for people, what follows where it succeeds, if `what` does not say it already.
    """

    name: str
    what: str
    act: Callable[[Targets], object]
    expected: str
    stopped_by: frozenset[FenceLayer]
    ordinary: frozenset[FenceLayer] = frozenset()
    privileged: bool = False
    landlock_abi: int = 1
    consequence: str = ""

    def stopped_with(self, abi: int) -> frozenset[FenceLayer]:
        """`stopped_by`, where Landlock has this ABI."""
        return self.stopped_by if abi >= self.landlock_abi else self.stopped_by - {FenceLayer.LANDLOCK}

    @property
    def is_residual(self) -> bool:
        """Whether the full fence leaves it open."""
        return self.expected == DONE


class Untried(Exception):
    """There is nothing here to try it on; the message says why."""


def call(name: str, *arguments: Any) -> int:
    """Make a system call.

    Args:
        name: as `syscall_table.NUMBERS` has it.
        arguments: integers of any width, bytes, None for NULL, or ctypes pointers.

    Raises:
        OSError: the kernel refuses.
        Untried: this machine has no such call.
    """
    number = NUMBERS[MACHINE].get(name)
    if number is None:
        raise Untried(f"{MACHINE} has no {name}")
    return call_number(number, *arguments)


def call_number(number: int, *arguments: Any) -> int:
    """`call`, by number."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in (number, *arguments)]
    result: int = _syscall(*words)
    if result < 0:
        raise last_error()
    return result


def reaches(number: int, name: str, *arguments: Any) -> None:
    """Make a call whose arguments end in the error `number` once everything that could forbid it did not.

    Raises:
        OSError: it ended in another.
    """
    try:
        call(name, *arguments)
    except OSError as error:
        if error.errno != number:
            raise


def openat(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open as a C library does."""
    return call("openat", dir_fd, path, flags | os.O_CLOEXEC, mode)


def openat2(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open by the call that seccomp lets through, and ask the kernel to resolve whatever there is."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, 0)
    return call("openat2", dir_fd, path, how, len(how))


def open_path(path: bytes) -> int:
    """A descriptor that only names a file, by the call that the filter of this worker lets through."""
    try:
        return openat2(AT_FDCWD, path, _PATH_FLAGS)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise
        return openat(AT_FDCWD, path, _PATH_FLAGS)


def read(fd: int, position: int = 0) -> bytes:
    """The bytes of a file at a position."""
    buffer = ctypes.create_string_buffer(READ_BYTES)
    count = call("pread64", fd, buffer, READ_BYTES, position)
    return buffer.raw[:count]


def must_hold(content: bytes, expected: bytes) -> None:
    """Take nothing for a success that did not bring the canary.

    Raises:
        OSError: ENODATA; it did not.
    """
    if expected not in content:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
