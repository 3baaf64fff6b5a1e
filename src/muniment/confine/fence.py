"""The kernel fence: what a forked worker gives up, for good, before it reads the first byte of its run.

In this order, since each step takes away what the later ones do not need:

1. `LIMITS`: bounds on what it can use up.
2. `CAPABILITIES`: every capability, of every set; so root is an ordinary user who owns root's files.
3. `DUMPABLE`: not traceable, and its memory not readable, by others of the same user.
4. `MDWE`: no memory becomes executable that was writable.
5. `NO_NEW_PRIVS`: needed by the next two, and no set-user-ID program helps it.
6. `LANDLOCK`: files only for reading and only beneath its roots (`landlock.py`).
7. `SECCOMP`: the system calls that serving takes (`seccomp.py`).

- F1 a layer that `put_up` does not call missing holds: each was asked for, and all but `mdwe` are tried once,
  read back, or confirmed from outside (`evidence.py`), so that a kernel which accepts and does nothing is
  found out.
- F2 a layer that cannot be had is reported with its errno, and the rest is put up all the same. Whoever
  requires more ends the worker before it is told anything (`muniment.sandbox`).
- F3 native code cannot take a layer down again.

Does not hold: a limit on processes binds no process of user 0. What Landlock and seccomp leave open stands in
their modules. Attacked by `tests/confine/test_fence*.py`, and on the spot by `muniment doctor`.

Standard library only. Runs once in each worker and cannot be undone, so it is excluded from coverage and run
in real workers by those tests.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muniment.confine import landlock, seccomp
from muniment.confine.control import MAX_ROOTS
from muniment.confine.openat2 import available
from muniment.confine.syscall_table import NUMBERS
from muniment.confine.syscalls import LIBC, last_error
from muniment.names import FenceLayer

MEMORY_BYTES: Final = 128 << 20
"""Address space that a worker may add to what it was forked with. The largest call, a grep over the largest
files and the largest pattern take half of it together."""

DATA_BYTES: Final = 160 << 20
"""Bytes of private writable memory, what it was forked with included."""

CPU_SECONDS: Final = 300
"""Processor time of one worker: as much as the wall clock gives a run that waits in a queue."""

OPEN_FILES: Final = MAX_ROOTS + 32
"""Highest descriptor number and one: its roots, its socket, and a directory open at each depth."""

_PR_SET_DUMPABLE, _PR_GET_DUMPABLE = 4, 3
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 65, 1

_CAPABILITY_VERSION_3: Final = 0x2008_0522
_CAPABILITY_SETS_BYTES: Final = 24
_MAX_CAPABILITIES: Final = 64
"""What the sets of that version have room for."""

_FILTERS: Final = {
    (machine, opener): seccomp.program(machine, opener) for machine in NUMBERS for opener in seccomp.OPENERS
}


Missing = Mapping[FenceLayer, int]
"""Layers that do not hold, each with the errno of the system."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What the steps need to know.

    Attributes:
        roots: descriptors beneath which the worker may read.
        landlock_abi: what the kernel offers; 0: nothing.
        machine: as `os.uname` names it.
    """

    roots: Sequence[int]
    landlock_abi: int
    machine: str


def put_up(roots: Sequence[int]) -> Missing:
    """Fence this process in. It has one thread and needs no further import.

    Args:
        roots: descriptors beneath which it may read from here on.

    Returns:
        What could not be had; empty: everything holds.

    Cost: about 1 ms, most of it the kernel's, checking the filter.
    """
    grounds = Grounds(roots, landlock.offered_abi(), os.uname().machine)
    missing: dict[FenceLayer, int] = {}
    for layer, step in STEPS.items():
        try:
            step(grounds)
        except OSError as error:
            missing[layer] = error.errno or errno.EIO
    return missing


def prctl(option: int, *words: int) -> int:
    """Control this process (prctl(2)); its result, where it has one.

    Raises:
        OSError: the kernel refuses, or is too old.
    """
    # Unused arguments must be zero, and unsigned long like the rest.
    padded = [ctypes.c_ulong(word) for word in (*words, 0, 0, 0, 0)[:4]]
    result: int = LIBC.prctl(ctypes.c_int(option), *padded)
    if result < 0:
        raise last_error()
    return result


def set_undumpable() -> None:
    """Let no other process of this user trace this one or read its memory, now or after it crashed."""
    _lower(resource.RLIMIT_CORE, 0)
    prctl(_PR_SET_DUMPABLE, 0)


def _limit(_grounds: Grounds) -> None:
    _lower(resource.RLIMIT_DATA, DATA_BYTES)
    _lower(resource.RLIMIT_CPU, CPU_SECONDS)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_NPROC, 0)
    _lower(resource.RLIMIT_CORE, 0)
    # Last, since its size cannot be told where /proc is not mounted.
    _lower(resource.RLIMIT_AS, _address_space() + MEMORY_BYTES)


def _lower(limit: int, value: int) -> None:
    """Set a limit for good; to less where a parent set less."""
    _, hard = resource.getrlimit(limit)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(limit, (lowest, lowest))
    except ValueError:  # What Python makes of EPERM.
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None
    _expect(resource.getrlimit(limit) == (lowest, lowest))


def _address_space() -> int:
    """Bytes that this process has mapped."""
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 100).split()[0]) * resource.getpagesize()
    finally:
        os.close(fd)


def _expect(held: bool) -> None:  # noqa: FBT001
    """Raise unless what the kernel accepted also holds."""
    if not held:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def _drop_capabilities(_grounds: Grounds) -> None:
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    for capability in range(_MAX_CAPABILITIES):
        try:
            if prctl(_PR_CAPBSET_READ, capability) == 1:
                prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EINVAL: this kernel has no more of them. EPERM: only a privileged process may drop one; where no
            # privilege can be gained, the set bounds nothing.
            if error.errno not in {errno.EINVAL, errno.EPERM}:
                raise
            break
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    number = NUMBERS[os.uname().machine]["capset"]
    if LIBC.syscall(ctypes.c_long(number), header, bytes(_CAPABILITY_SETS_BYTES)) < 0:
        raise last_error()


def _undumpable(_grounds: Grounds) -> None:
    prctl(_PR_SET_DUMPABLE, 0)
    _expect(prctl(_PR_GET_DUMPABLE) == 0)


def _refuse_exec_gain(_grounds: Grounds) -> None:
    prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN)


def _no_new_privs(_grounds: Grounds) -> None:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _expect(prctl(_PR_GET_NO_NEW_PRIVS) == 1)


def _landlock(grounds: Grounds) -> None:
    if grounds.landlock_abi == 0:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    landlock.restrict(grounds.roots, grounds.landlock_abi)
    try:
        # Every worker opened this before (`zygote._isolate`), so that only this layer can refuse it now.
        os.close(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        _expect(grounds.landlock_abi >= landlock.MIN_ABI)
        return
    _expect(False)


def _seccomp(grounds: Grounds) -> None:
    opener = "openat2" if available() else "openat"
    seccomp.install(_FILTERS[grounds.machine, opener])
    try:
        prctl(_PR_GET_DUMPABLE)
    except PermissionError:
        return
    _expect(False)


STEPS: Mapping[FenceLayer, Callable[[Grounds], None]] = {
    FenceLayer.LIMITS: _limit,
    FenceLayer.CAPABILITIES: _drop_capabilities,
    FenceLayer.DUMPABLE: _undumpable,
    FenceLayer.MDWE: _refuse_exec_gain,
    FenceLayer.NO_NEW_PRIVS: _no_new_privs,
    FenceLayer.LANDLOCK: _landlock,
    FenceLayer.SECCOMP: _seccomp,
}
"""How each layer is put up; they raise OSError."""
