"""What this system offers for the fence, and what to do about what it does not.

Asking changes nothing. What is offered need not hold: only a worker that is fenced shows that, and only what
it may not do any more (`attempt`).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muniment.kernel.syscalls import LIBC, available, require_known_machine
from muniment.names import FenceLayer
from muniment.sandbox.fence.calls import NUMBERS
from muniment.sandbox.fence.evidence import read_status
from muniment.sandbox.fence.layers import MIN_ABI, offered_abi

_PR_GET_MDWE: Final = 66
_SECCOMP_GET_ACTION_AVAIL: Final = 2
_KILL_PROCESS: Final = 0x8000_0000

_LACKING: Final = (
    (3, "truncation"),
    (4, "TCP"),
    (5, "device controls"),
    (6, "signals and abstract sockets"),
)
"""What Landlock knows since which ABI. Seccomp refuses all but the first in any case."""

_CALLS: Final[Mapping[FenceLayer, str]] = {
    FenceLayer.LIMITS: "prlimit64",
    FenceLayer.CAPABILITIES: "capset and prctl",
    FenceLayer.DUMPABLE: "prctl",
    FenceLayer.MDWE: "prctl",
    FenceLayer.NO_NEW_PRIVS: "prctl",
    FenceLayer.LANDLOCK: "landlock_create_ruleset, landlock_add_rule and landlock_restrict_self",
    FenceLayer.SECCOMP: "prctl",
}
"""The system calls that put a layer up."""


@dataclass(frozen=True, slots=True)
class System:
    """A system, as far as the fence depends on it.

    Attributes:
        kernel: its release.
        machine: as `os.uname` names it.
        resolver: how files are opened: `openat2`, or `walk` where that cannot be had.
        landlock_abi: 0: none.
        landlock_errno: why there is none; 0: there is one.
        seccomp: whether filters can kill a process.
        mdwe: whether memory can be kept from becoming executable.
        is_root: whether this process is user 0, whom limits on processes do not bind.
        has_proc: whether the kernel can be asked what holds a process.
    """

    kernel: str
    machine: str
    resolver: str
    landlock_abi: int
    landlock_errno: int
    seccomp: bool
    mdwe: bool
    is_root: bool
    has_proc: bool

    @property
    def landlock_lacks(self) -> tuple[str, ...]:
        """What this Landlock cannot forbid."""
        return tuple(what for since, what in _LACKING if 0 < self.landlock_abi < since)

    def offers(self, layer: FenceLayer) -> bool:
        """Whether a layer can be had here, as far as can be told without putting it up."""
        match layer:
            case FenceLayer.LANDLOCK:
                return self.landlock_abi >= MIN_ABI
            case FenceLayer.SECCOMP:
                return self.seccomp
            case FenceLayer.MDWE:
                return self.mdwe
            case _:
                return True


def look_around() -> System:
    """This system.

    Raises:
        PlatformUnsupported: nothing here is known of its system calls.
    """
    require_known_machine()
    uname = os.uname()
    abi = offered_abi()
    landlock_errno = ctypes.get_errno()  # Of the call that was just made, where it failed.
    action = ctypes.byref(ctypes.c_uint32(_KILL_PROCESS))
    number = ctypes.c_long(NUMBERS[uname.machine]["seccomp"])
    nothing = (ctypes.c_ulong(0),) * 4
    return System(
        kernel=uname.release,
        machine=uname.machine,
        resolver="openat2" if available() else "walk",
        landlock_abi=abi,
        landlock_errno=0 if abi else landlock_errno,
        seccomp=LIBC.syscall(number, ctypes.c_long(_SECCOMP_GET_ACTION_AVAIL), ctypes.c_long(0), action) == 0,
        mdwe=LIBC.prctl(_PR_GET_MDWE, *nothing) >= 0,
        is_root=os.geteuid() == 0,
        has_proc=bool(read_status(os.getpid())),
    )


def advice(layer: FenceLayer, number: int | None, system: System) -> str:
    """What to do about a layer that is missing.

    Args:
        layer: it does not hold.
        number: the errno that the worker met; None: it met none, and the kernel does not confirm the layer.
        system: where that was.
    """
    if number is None:
        return "the kernel does not confirm it; see that /proc is mounted and shows processes of this user"
    if layer is FenceLayer.LIMITS and number == errno.ENOENT:
        return f"{_refused(number)}; mount /proc, where the size of a process is read"
    if layer is FenceLayer.LANDLOCK and 0 < system.landlock_abi < MIN_ABI:
        return f"ABI {system.landlock_abi} cannot forbid truncation; Linux 6.2 brings ABI {MIN_ABI}"
    if layer is FenceLayer.LANDLOCK and not system.landlock_abi:
        number = system.landlock_errno
        if number == errno.EOPNOTSUPP:
            return "it is built in and switched off; add landlock to the list in the boot parameter lsm="
    elif number == errno.EOPNOTSUPP:
        return "the system accepted it and nothing came of it, as where a container runtime plays the kernel"
    return f"{_refused(number)}; {_remedy(layer)}"


def _refused(number: int) -> str:
    return f"the system answered {errno.errorcode.get(number, number)}"


def _remedy(layer: FenceLayer) -> str:
    allow = f"in a container, have its seccomp profile allow {_CALLS[layer]}"
    match layer:
        case FenceLayer.LANDLOCK:
            return f"it takes Linux 6.2 built with CONFIG_SECURITY_LANDLOCK; {allow}"
        case FenceLayer.SECCOMP:
            return f"it takes a kernel built with CONFIG_SECCOMP_FILTER, and no_new_privs; {allow}"
        case FenceLayer.MDWE:
            return f"it takes Linux 6.3, and full goes without; {allow}"
        case _:
            return allow
