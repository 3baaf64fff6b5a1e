"""The system calls that a fenced worker may make, as a classic BPF program of the kernel.

Three tiers. `ALLOWED`: what serving a run takes, and nothing that names a file but `openat2`. `FATAL`: what
no library tries innocently; it kills the process, and the broker sees SIGSYS. Everything else: EPERM, which
a library may survive that feels its way.

- S1 a call outside `ALLOWED` has no effect, whatever its number, ABI or architecture.
- S2 no memory becomes executable: `mmap` and `mprotect` with PROT_EXEC are fatal.
- S3 messages on a socket are plain bytes: any flag of `sendto` but MSG_NOSIGNAL, and any of `recvfrom`, is
  fatal (out-of-band bytes have a history of holes). Clocks of other processes cannot be read.
- S4 the filter stays for good and holds for every thread and child.

Does not hold: the kernel shows a filter the numbers of a call and not what pointers lead to, so `openat2`
is allowed with any flags and path. Landlock judges what is opened for reading or writing; what neither sees
is a name that is only looked up, by O_PATH: `fstat` then tells metadata, and a network or user-space file
system hears the name; nor what is opened for neither, by access mode 3, which no call allowed here can use.

Tables and programs are pure functions of the architecture, checked against the kernel's headers and run by an
interpreter of their own in `tests/confine/test_seccomp.py`.
Source: seccomp(2); `linux/filter.h`, `linux/audit.h`; `asm/unistd_64.h` (x86-64), `asm-generic/unistd.h`.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from muniment.confine.syscall_table import FATAL, NUMBERS, PASSED
from muniment.confine.syscalls import LIBC, last_error

OPENERS: Final = ("openat2", "openat")
"""How a worker opens files: by the first, or where the kernel has it not by the second, never by both."""

_ARCHITECTURES: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64."""

_X32_BIT: Final = 0x4000_0000
"""Set in the numbers of x32, a second ABI with other tables; numbers from here up are fatal on x86-64."""

_KILL, _EPERM, _ALLOW = 0x8000_0000, 0x0005_0000 | errno.EPERM, 0x7FFF_0000
_LOAD, _RETURN, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`; each argument has 8 bytes, the lower half first on both machines."""

_PROT_EXEC: Final = 4
_MSG_NOSIGNAL: Final = 0x4000
_ALL_BITS: Final = 0xFFFF_FFFF
_OTHER_CLOCKS: Final = _ALL_BITS & ~0xF
"""Set in some bit by every clock that is no clock of the system: those of processes are negative."""

_INSTRUCTION: Final = struct.Struct("<HBBI")

_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def program(machine: str, opener: str) -> bytes:
    """The filter of a worker.

    Args:
        machine: `x86_64` or `aarch64`.
        opener: one of `OPENERS`.

    Returns:
        Instructions of 8 bytes, as the kernel takes them; some hundreds.
    """
    numbers = NUMBERS[machine]
    actions = {numbers[name]: _KILL for name in FATAL if name in numbers}
    actions |= {numbers[name]: _ALLOW for name in (*PASSED, opener)}
    if machine == "x86_64":
        actions[_X32_BIT] = _KILL
    body = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
        *_by_argument(numbers["mmap"], 2, _PROT_EXEC, _KILL, _ALLOW),
        *_by_argument(numbers["mprotect"], 2, _PROT_EXEC, _KILL, _EPERM),
        *_by_argument(numbers["sendto"], 3, _ALL_BITS & ~_MSG_NOSIGNAL, _KILL, _ALLOW),
        *_by_argument(numbers["recvfrom"], 3, _ALL_BITS, _KILL, _ALLOW),
        *_by_argument(numbers["clock_gettime"], 0, _OTHER_CLOCKS, _EPERM, _ALLOW),
        *_search(tuple(_ranges(actions, endless=machine == "x86_64"))),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in body)


def install(filter_program: bytes) -> None:
    """Hold this thread, and what it starts, to `filter_program` for good.

    Raises:
        OSError: the kernel refuses; nothing is filtered then. EACCES: `no_new_privs` is not set.
    """
    code = _Program(len(filter_program) // _INSTRUCTION.size, filter_program)
    words = (ctypes.c_ulong(_MODE_FILTER), ctypes.byref(code), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if LIBC.prctl(_PR_SET_SECCOMP, *words) != 0:
        raise last_error()


def _by_argument(number: int, index: int, bits: int, action: int, otherwise: int) -> list[_Instruction]:
    """Decide the call `number` by whether an argument has any of `bits`; other calls go on behind these."""
    return [
        (_IF_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _AT_ARGUMENTS + 8 * index),
        (_IF_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, action),
        (_RETURN, 0, 0, otherwise),
    ]


def _ranges(actions: Mapping[int, int], *, endless: bool) -> Iterator[tuple[int, int]]:
    """(first number, action) of each run of numbers with one action, from 0 upwards.

    Args:
        actions: by number; any other number is refused with EPERM.
        endless: whether the highest of them stands for all numbers above it, too.
    """
    highest = max(actions)
    last: int | None = None
    for number in sorted({0, *actions, *(known + 1 for known in actions)}):
        action = actions.get(number, _EPERM)
        if endless and number > highest:
            return
        if action != last:
            yield number, action
            last = action


def _search(ranges: tuple[tuple[int, int], ...]) -> list[_Instruction]:
    """A binary search for the number at hand, which the kernel runs at each call not plainly allowed."""
    if len(ranges) == 1:
        return [(_RETURN, 0, 0, ranges[0][1])]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    # A jump reaches 255 instructions, and packing a longer one fails; the longest here takes half of that.
    return [(_IF_AT_LEAST, len(below), 0, ranges[middle][0]), *below, *above]
