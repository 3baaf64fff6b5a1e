"""Landlock: what a process may do with files, TCP and signals, by rules that only ever shrink.

- L1 after `restrict`, files can be opened for reading beneath the given directories and for nothing else
  anywhere: not written, created, removed, linked, moved or executed.
- L2 a root is given as a descriptor, so no path is looked up again and no link is followed.
- L3 where the ABI has them, no TCP port is bound or connected to, no abstract socket outside the worker is
  connected to, and no process outside is signalled.

Does not hold: ABI 1 and 2 cannot forbid truncation. No ABI forbids to look up a name or to ask for metadata
(an O_PATH open and `fstat`, `stat`), UDP, `chmod`, `utime` or sockets on paths: but for the first, that is
for `muniment.confine.seccomp`. Descriptors that are open already stay as they are.

ABI 9 and later add rights over calls that seccomp refuses whole; nothing here asks for them.
Source: landlock(7), `linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muniment.confine.syscalls import LIBC, last_error

MIN_ABI: Final = 3
"""The first ABI that can forbid truncation; with less, L1 has a hole."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG: Final = 1
_RULE_PATH_BENEATH: Final = 1

_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FIRST_RIGHTS: Final = (1 << 13) - 1
"""ABI 1: execute, write, read, list, remove and make."""

_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_TCP: Final = 0b11
"""Bind and connect."""

_SCOPES: Final = 0b11
"""Abstract sockets and signals."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _layout_ = "ms"
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@dataclass(frozen=True, slots=True)
class Handled:
    """What a ruleset takes charge of, as the kernel's bit masks; what no rule allows is then denied."""

    files: int
    network: int
    scoped: int


def handled_by(abi: int) -> Handled:
    """Everything that a kernel of this ABI can deny, as far as known here."""
    files = _FIRST_RIGHTS
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if abi >= since:
            files |= right
    return Handled(files, network=_TCP if abi >= 4 else 0, scoped=_SCOPES if abi >= 6 else 0)  # noqa: PLR2004  the table


_syscall = LIBC["syscall"]
_syscall.restype = ctypes.c_long


def offered_abi() -> int:
    """The ABI of this kernel, as far as this process may use it; 0: none."""
    version: int = _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(version, 0)


def restrict(roots: Sequence[int], abi: int) -> None:
    """Restrict this thread, and what it starts, for good (L1 to L3).

    Args:
        roots: directories beneath which files may be read and listed; O_PATH will do.
        abi: of this kernel, at least 1.

    Raises:
        OSError: the kernel refuses; nothing is restricted then. EPERM: `no_new_privs` is not set.
    """
    handled = handled_by(abi)
    attributes = _RulesetAttr(handled.files, handled.network, handled.scoped)
    ruleset = _checked(
        _syscall(
            _CREATE_RULESET,
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
            ctypes.c_uint32(0),
        )
    )
    try:
        for root in roots:
            rule = _PathBeneath(_READ_FILE | _READ_DIR, root)
            _checked(_syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)))
        _checked(_syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        raise last_error()
    return result
