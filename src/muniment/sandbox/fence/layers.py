"""The kernel fence: a forked worker drops rights permanently, before it reads the first byte of its run.

The steps run in this order, because each step removes rights that the later steps do not need:

1. `LIMITS`: limits on the resources of the worker.
2. `CAPABILITIES`: every capability, of every set. After that, root is an ordinary user who owns root's files.
3. `DUMPABLE`: other processes of the same user cannot trace the worker or read its memory.
4. `MDWE`: writable memory never becomes executable.
5. `NO_NEW_PRIVS`: set-user-ID programs have no effect. The next two steps require this.
6. `LANDLOCK`: files can be opened only for reading, and only under the roots of the worker.
7. `SECCOMP`: only the system calls that serving a run needs.

- F1 A layer that `set_up_fence` does not report as missing is in force. Each layer is requested from the
  kernel. Each one except `mdwe` is also tried once, read back, or confirmed from outside (`evidence.py`). So
  a kernel that accepts a call without effect is detected.
- F2 An unavailable layer is reported with its errno, and the other layers are still set up. A caller that
  requires more ends the worker before it receives any data (`muniment.sandbox.sandbox`).
- F3 Native code cannot remove a layer.

Not guaranteed: a limit on processes does not apply to user 0. Comments below list the gaps of Landlock and
seccomp. Tested with attacks by `tests/units/sandbox/test_fence.py`, and on the machine by `muniment doctor`.

Standard library only. This code runs once in each worker and cannot be undone. So it is excluded from
coverage, and those tests run it in real workers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muniment.kernel.syscalls import LIBC, is_openat2_available, read_last_error
from muniment.names import FenceLayer
from muniment.sandbox.fence.calls import ALLOWED, FATAL, NUMBERS
from muniment.sandbox.fence.wire import MAX_ROOTS

# -- landlock ----------------------------------------------------------------------------------------
#
# Landlock: the rights of a process on files, TCP and signals, by rules that can only be tightened.
#
# - L1 after `restrict_files`, files can be opened only for reading and only under the given directories. No
#   file can be written, created, removed, linked, moved or executed.
# - L2 a root is given as a descriptor, so no path is looked up again and no link is followed.
# - L3 if the ABI supports it, no TCP port can be bound or connected to, no abstract socket outside the worker
#   can be connected to, and no process outside can be signalled.
#
# Not guaranteed: ABI 1 and 2 cannot deny truncation. No ABI can deny name lookups or metadata (an O_PATH open
# and `fstat`, `stat`), UDP, `chmod`, `utime` or sockets on paths. Except for the first, seccomp denies these,
# see below. Descriptors that are already open do not change.
#
# ABI 9 and later add rights over calls that seccomp denies completely; this module does not request them.
# Source: landlock(7), `linux/landlock.h`.

MIN_ABI: Final = 3
"""The first Landlock ABI that can deny truncation. With a lower one, the layer counts as missing."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG: Final = 1
_RULE_TYPE_PATH: Final = 1

_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_ABI_1_RIGHTS: Final = (1 << 13) - 1
"""All rights of ABI 1: execute, write, read, list, remove and make."""

_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_TCP: Final = 0b11
"""Rights on TCP ports: bind and connect."""

_SCOPES: Final = 0b11
"""Scopes of Landlock: abstract sockets and signals."""


_RULESET: Final = struct.Struct("=QQQ")
"""`landlock_ruleset_attr`: rights over files, rights over the network, and scopes."""

_PATH_RULE: Final = struct.Struct("=Qi")
"""`landlock_path_beneath_attr`: the allowed rights, and the directory."""


@dataclass(frozen=True, slots=True)
class HandledRights:
    """The rights that a ruleset controls, as bit masks of the kernel. Without a rule, they are denied."""

    files: int
    network: int
    scoped: int


def get_handled_rights(abi: int) -> HandledRights:
    """Return all rights that this module knows and that a kernel with this Landlock ABI can deny."""
    files = _ABI_1_RIGHTS
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if abi >= since:
            files |= right
    return HandledRights(files, network=_TCP if abi >= 4 else 0, scoped=_SCOPES if abi >= 6 else 0)  # noqa: PLR2004  the table


_syscall = LIBC["syscall"]
_syscall.restype = ctypes.c_long


def read_landlock_abi() -> int:
    """Return the Landlock ABI that this process may use, or 0 if it cannot use Landlock."""
    version: int = _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(version, 0)


def restrict_files(roots: Sequence[int], abi: int) -> None:
    """Restrict by Landlock what this thread and its children may do with files, permanently (L1 to L3 above).

    Args:
        roots: directories under which files may be read and listed; O_PATH is enough.
        abi: Landlock ABI of this kernel, at least 1.

    Raises:
        OSError: the kernel denies the restriction, and nothing is restricted. EPERM: `no_new_privs` is not
            set.
    """
    handled = get_handled_rights(abi)
    attributes = _RULESET.pack(handled.files, handled.network, handled.scoped)
    size = ctypes.c_size_t(_RULESET.size)
    ruleset = _check_result(_syscall(_CREATE_RULESET, attributes, size, ctypes.c_uint32(0)))
    try:
        for root in roots:
            rule = _PATH_RULE.pack(_READ_FILE | _READ_DIR, root)
            _check_result(_syscall(_ADD_RULE, ruleset, _RULE_TYPE_PATH, rule, ctypes.c_uint32(0)))
        _check_result(_syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _check_result(result: int) -> int:
    """Return the result of a system call; raise `OSError` if it is an error."""
    if result < 0:
        raise read_last_error()
    return result


# -- seccomp -----------------------------------------------------------------------------------------
#
# The system calls that a confined worker may make, as a classic BPF program of the kernel.
#
# Three groups of calls. `ALLOWED`: the calls that serving a run needs; the only one with a file name is
# `openat2`. `FATAL`: calls that no library makes innocently; they kill the process, and the broker sees
# SIGSYS. All others return EPERM, which a library that probes for features may survive.
#
# - S1 a call outside `ALLOWED` has no effect, with any number, ABI or architecture.
# - S2 no memory becomes executable: `mmap` and `mprotect` with PROT_EXEC are fatal.
# - S3 messages on a socket are plain bytes: any flag of `sendto` but MSG_NOSIGNAL, and any of `recvfrom`,
#   is fatal (out-of-band bytes have a history of vulnerabilities). Clocks of other processes cannot be read.
# - S4 the filter is permanent and applies to every thread and child.
#
# Not guaranteed: a filter sees the arguments of a call but not the memory of pointers, so `openat2` is
# allowed with any flags and path. Landlock checks files that are opened for reading or writing. Neither layer
# checks a name that is only looked up by O_PATH: `fstat` then returns metadata, and a network or user-space
# file system learns the name. Neither checks a file opened without access, by access mode 3, which no
# allowed call can use.
#
# Tables and programs are pure functions of the architecture, checked against the kernel's headers and run
# by an interpreter in `tests/units/sandbox/test_seccomp.py`. Source: seccomp(2); `linux/filter.h`,
# `linux/audit.h`; `asm/unistd_64.h` (x86-64), `asm-generic/unistd.h`.

OPENERS: Final = ("openat2", "openat")
"""System calls by which a worker may open files: the first or, if the kernel does not have it, the second."""

_ARCHITECTURES: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64."""

_X32_BIT: Final = 0x4000_0000
"""The bit that marks numbers of x32, a second ABI with other tables. On x86-64 all such numbers are fatal."""

_KILL, _EPERM, _ALLOW = 0x8000_0000, 0x0005_0000 | errno.EPERM, 0x7FFF_0000
_LOAD, _RETURN, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`. Each argument has 8 bytes, with the lower half first on both machines."""

_PROT_EXEC: Final = 4
_MSG_NOSIGNAL: Final = 0x4000
_ALL_BITS: Final = 0xFFFF_FFFF
_NON_SYSTEM_CLOCKS: Final = _ALL_BITS & ~0xF
"""Bits that ids of system clocks lack. Ids of process clocks are negative, so they have such a bit."""

_INSTRUCTION: Final = struct.Struct("<HBBI")

_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def build_filter(machine: str, opener: str) -> bytes:
    """Return the seccomp filter of a worker.

    Args:
        machine: `x86_64` or `aarch64`.
        opener: the system call that may open files, one of `OPENERS`.

    Returns:
        Some hundred instructions of 8 bytes, in the format of the kernel.
    """
    numbers = NUMBERS[machine]
    actions = {numbers[name]: _KILL for name in FATAL if name in numbers}
    actions |= {numbers[name]: _ALLOW for name in (*ALLOWED, opener)}
    if machine == "x86_64":
        actions[_X32_BIT] = _KILL
    body = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
        *_decide_by_argument(numbers["mmap"], 2, _PROT_EXEC, _KILL, _ALLOW),
        *_decide_by_argument(numbers["mprotect"], 2, _PROT_EXEC, _KILL, _EPERM),
        *_decide_by_argument(numbers["sendto"], 3, _ALL_BITS & ~_MSG_NOSIGNAL, _KILL, _ALLOW),
        *_decide_by_argument(numbers["recvfrom"], 3, _ALL_BITS, _KILL, _ALLOW),
        *_decide_by_argument(numbers["clock_gettime"], 0, _NON_SYSTEM_CLOCKS, _EPERM, _ALLOW),
        *_build_search(tuple(_iterate_ranges(actions, endless=machine == "x86_64"))),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in body)


def install_filter(filter_program: bytes) -> None:
    """Apply a seccomp filter to this thread and its children permanently.

    Raises:
        OSError: the kernel denies the filter, and nothing is filtered. EACCES: `no_new_privs` is not set.
    """
    code = _Program(len(filter_program) // _INSTRUCTION.size, filter_program)
    arguments = (ctypes.c_ulong(_MODE_FILTER), ctypes.byref(code), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check_result(LIBC.prctl(_PR_SET_SECCOMP, *arguments))


def _decide_by_argument(
    number: int, index: int, bits: int, action: int, otherwise: int
) -> list[_Instruction]:
    """Return instructions that decide the system call `number` by one of its arguments; other calls continue.

    Args:
        number: number of the system call.
        index: position of the argument.
        bits: bits of the argument to test.
        action: result if one of these bits is set.
        otherwise: result if none of these bits is set.
    """
    return [
        (_IF_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _AT_ARGUMENTS + 8 * index),
        (_IF_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, action),
        (_RETURN, 0, 0, otherwise),
    ]


def _iterate_ranges(actions: Mapping[int, int], *, endless: bool) -> Iterator[tuple[int, int]]:
    """Yield each range of call numbers that have the same action, as (first number, action), from 0 upwards.

    Args:
        actions: action by number; every other number is denied with EPERM.
        endless: whether the highest number also covers all numbers above it.
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


def _build_search(ranges: tuple[tuple[int, int], ...]) -> list[_Instruction]:
    """Return instructions that find the action of a call number by binary search.

    The kernel runs them for calls that are not allowed directly.

    Args:
        ranges: (first number, action) of each range, from 0 upwards.
    """
    if len(ranges) == 1:
        return [(_RETURN, 0, 0, ranges[0][1])]
    middle = len(ranges) // 2
    lower, upper = _build_search(ranges[:middle]), _build_search(ranges[middle:])
    # A jump spans at most 255 instructions, and packing a longer one fails; the longest here is half of that.
    return [(_IF_AT_LEAST, len(lower), 0, ranges[middle][0]), *lower, *upper]


# -- fence -------------------------------------------------------------------------------------------

MEMORY_BYTES: Final = 128 << 20
"""Address space that a worker may add after the fork. The largest call, a grep over the largest files and the
largest pattern need half of it if they occur together."""

DATA_BYTES: Final = 160 << 20
"""Maximum bytes of private writable memory, including the memory at the fork."""

CPU_SECONDS: Final = 300
"""Processor time of one worker: as much as the wall-clock limit of a run that waits in a queue."""

OPEN_FILES: Final = MAX_ROOTS + 32
"""Highest descriptor number plus one: its roots, its socket, and a directory open at each depth."""

_PR_SET_DUMPABLE, _PR_GET_DUMPABLE = 4, 3
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 65, 1

_CAPABILITY_VERSION_3: Final = 0x2008_0522
_CAPABILITY_SETS_BYTES: Final = 24
_MAX_CAPABILITIES: Final = 64
"""Number of capabilities in the sets of version 3."""

_FILTERS: Final = {
    (machine, opener): build_filter(machine, opener) for machine in NUMBERS for opener in OPENERS
}


MissingLayers = Mapping[FenceLayer, int]
"""Layers that are not in force, each with the errno of the system."""


@dataclass(frozen=True, slots=True)
class FenceInput:
    """The input of the steps that set up the fence.

    Attributes:
        roots: descriptors of directories under which the worker may read.
        landlock_abi: the Landlock ABI of the kernel; 0: Landlock is not available.
        machine: machine name from `os.uname`.
    """

    roots: Sequence[int]
    landlock_abi: int
    machine: str


def set_up_fence(roots: Sequence[int]) -> MissingLayers:
    """Set up the fence around this process.

    The process must have one thread and need no further import.

    Args:
        roots: descriptors of the directories under which the process may read from now on.

    Returns:
        The layers that are not in force, each with its errno; empty if all layers are in force.

    Cost: about 1 ms, mostly in the kernel, which checks the filter.
    """
    fence_input = FenceInput(roots, read_landlock_abi(), os.uname().machine)
    missing: dict[FenceLayer, int] = {}
    for layer, step in STEPS.items():
        try:
            step(fence_input)
        except OSError as error:
            missing[layer] = error.errno or errno.EIO
    return missing


def prctl(option: int, *values: int) -> int:
    """Change or read a setting of this process, as the manual page of prctl describes.

    Raises:
        OSError: the kernel denies the call, or does not know the option.
    """
    # Unused arguments must be zero, and unsigned long like the others.
    padded = [ctypes.c_ulong(word) for word in (*values, 0, 0, 0, 0)[:4]]
    return _check_result(LIBC.prctl(ctypes.c_int(option), *padded))


def set_undumpable() -> None:
    """Prevent processes of this user from tracing this process or reading its memory, even after a crash."""
    _lower_limit(resource.RLIMIT_CORE, 0)
    prctl(_PR_SET_DUMPABLE, 0)


def _set_limits(_grounds: FenceInput) -> None:
    _lower_limit(resource.RLIMIT_DATA, DATA_BYTES)
    _lower_limit(resource.RLIMIT_CPU, CPU_SECONDS)
    _lower_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower_limit(resource.RLIMIT_FSIZE, 0)
    _lower_limit(resource.RLIMIT_NPROC, 0)
    _lower_limit(resource.RLIMIT_CORE, 0)
    # Last, since its size is unknown if /proc is not mounted.
    _lower_limit(resource.RLIMIT_AS, _read_address_space() + MEMORY_BYTES)


def _lower_limit(limit: int, value: int) -> None:
    """Set a resource limit permanently to `value`, or to the limit of a parent process if that is lower."""
    _, hard = resource.getrlimit(limit)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(limit, (lowest, lowest))
    except ValueError:  # Python converts EPERM to it.
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None
    _require_in_force(resource.getrlimit(limit) == (lowest, lowest))


def _read_address_space() -> int:
    """Return the number of bytes of address space that this process has mapped."""
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 100).split()[0]) * resource.getpagesize()
    finally:
        os.close(fd)


def _require_in_force(is_in_force: bool) -> None:  # noqa: FBT001
    """Raise `OSError` if the kernel accepted a setting that is not in force."""
    if not is_in_force:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def _drop_capabilities(_grounds: FenceInput) -> None:
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    for capability in range(_MAX_CAPABILITIES):
        try:
            if prctl(_PR_CAPBSET_READ, capability) == 1:
                prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EINVAL: this kernel has no more capabilities. EPERM: only a privileged process may drop one; if
            # no privilege can be gained, the set has no effect.
            if error.errno not in {errno.EINVAL, errno.EPERM}:
                raise
            break
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    number = NUMBERS[os.uname().machine]["capset"]
    _check_result(_syscall(ctypes.c_long(number), header, bytes(_CAPABILITY_SETS_BYTES)))


def _set_undumpable_step(_grounds: FenceInput) -> None:
    prctl(_PR_SET_DUMPABLE, 0)
    _require_in_force(prctl(_PR_GET_DUMPABLE) == 0)


def _deny_exec_gain(_grounds: FenceInput) -> None:
    prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN)


def _set_no_new_privs(_grounds: FenceInput) -> None:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _require_in_force(prctl(_PR_GET_NO_NEW_PRIVS) == 1)


def _set_up_landlock(fence_input: FenceInput) -> None:
    if fence_input.landlock_abi == 0:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    restrict_files(fence_input.roots, fence_input.landlock_abi)
    try:
        # Every worker opened this before (`zygote._isolate`), so only this layer can deny it now.
        os.close(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        _require_in_force(fence_input.landlock_abi >= MIN_ABI)
        return
    _require_in_force(False)


def _set_up_seccomp(fence_input: FenceInput) -> None:
    opener = "openat2" if is_openat2_available() else "openat"
    install_filter(_FILTERS[fence_input.machine, opener])
    try:
        prctl(_PR_GET_DUMPABLE)
    except PermissionError:
        return
    _require_in_force(False)


STEPS: Mapping[FenceLayer, Callable[[FenceInput], None]] = {
    FenceLayer.LIMITS: _set_limits,
    FenceLayer.CAPABILITIES: _drop_capabilities,
    FenceLayer.DUMPABLE: _set_undumpable_step,
    FenceLayer.MDWE: _deny_exec_gain,
    FenceLayer.NO_NEW_PRIVS: _set_no_new_privs,
    FenceLayer.LANDLOCK: _set_up_landlock,
    FenceLayer.SECCOMP: _set_up_seccomp,
}
"""The function that sets up each layer; it raises `OSError` if the layer is not available."""
