"""Report which layers of the fence this system supports, and how to get the missing layers.

The check changes nothing. A supported layer need not be effective: only the failed attempts of a confined
worker show that (`attempt`).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muniment.kernel.syscalls import LIBC, is_openat2_available, require_known_machine
from muniment.names import FenceLayer
from muniment.sandbox.fence.calls import NUMBERS
from muniment.sandbox.fence.evidence import read_status
from muniment.sandbox.fence.layers import MIN_ABI, read_landlock_abi

_PR_GET_MDWE: Final = 66
_SECCOMP_GET_ACTION_AVAIL: Final = 2
_KILL_PROCESS: Final = 0x8000_0000

_LANDLOCK_FEATURES: Final = (
    (3, "truncation"),
    (4, "TCP"),
    (5, "device controls"),
    (6, "signals and abstract sockets"),
)
"""The actions that Landlock can forbid since each ABI version. Seccomp stops all of them except the first
anyway.
"""

_CALLS: Final[Mapping[FenceLayer, str]] = {
    FenceLayer.LIMITS: "prlimit64",
    FenceLayer.CAPABILITIES: "capset and prctl",
    FenceLayer.DUMPABLE: "prctl",
    FenceLayer.MDWE: "prctl",
    FenceLayer.NO_NEW_PRIVS: "prctl",
    FenceLayer.LANDLOCK: "landlock_create_ruleset, landlock_add_rule and landlock_restrict_self",
    FenceLayer.SECCOMP: "prctl",
}
"""The system calls that create each layer."""


@dataclass(frozen=True, slots=True)
class SystemSupport:
    """The properties of a system that the fence depends on.

    Attributes:
        kernel: release of the Linux kernel.
        machine: name of the hardware, as `os.uname` reports it.
        resolver: how files are opened: `openat2`, or `walk` if that system call is not available.
        landlock_abi: version of the Landlock ABI; 0 if Landlock is not available.
        landlock_errno: errno that shows why Landlock is missing; 0 if it is available.
        seccomp: whether filters can kill a process.
        mdwe: whether memory can be prevented from becoming executable.
        is_root: whether this process is user 0; limits on processes do not apply to user 0.
        has_proc: whether the Linux kernel reports the confinement of a process.
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
    def missing_landlock_features(self) -> tuple[str, ...]:
        """Return the actions that the Landlock version of this system cannot forbid."""
        return tuple(what for since, what in _LANDLOCK_FEATURES if 0 < self.landlock_abi < since)

    def supports(self, layer: FenceLayer) -> bool:
        """Return whether a layer is available here, as far as this is known without creating the layer."""
        match layer:
            case FenceLayer.LANDLOCK:
                return self.landlock_abi >= MIN_ABI
            case FenceLayer.SECCOMP:
                return self.seccomp
            case FenceLayer.MDWE:
                return self.mdwe
            case _:
                return True


def inspect_system() -> SystemSupport:
    """Return the properties of this system that the fence depends on.

    Raises:
        PlatformUnsupported: the system calls of this machine are unknown.
    """
    require_known_machine()
    uname = os.uname()
    abi = read_landlock_abi()
    landlock_errno = ctypes.get_errno()  # Of the last call, if it failed.
    action = ctypes.byref(ctypes.c_uint32(_KILL_PROCESS))
    number = ctypes.c_long(NUMBERS[uname.machine]["seccomp"])
    zeros = (ctypes.c_ulong(0),) * 4
    return SystemSupport(
        kernel=uname.release,
        machine=uname.machine,
        resolver="openat2" if is_openat2_available() else "walk",
        landlock_abi=abi,
        landlock_errno=0 if abi else landlock_errno,
        seccomp=LIBC.syscall(number, ctypes.c_long(_SECCOMP_GET_ACTION_AVAIL), ctypes.c_long(0), action) == 0,
        mdwe=LIBC.prctl(_PR_GET_MDWE, *zeros) >= 0,
        is_root=os.geteuid() == 0,
        has_proc=bool(read_status(os.getpid())),
    )


def suggest_remedy(layer: FenceLayer, number: int | None, system: SystemSupport) -> str:
    """Return a text that explains how to fix a missing layer.

    Args:
        layer: the missing layer.
        number: the errno in the worker; None: no error, but the Linux kernel does not confirm the layer.
        system: the system of that worker.
    """
    if number is None:
        return "the kernel does not confirm it; mount /proc so that it shows processes of this user"
    if layer is FenceLayer.LIMITS and number == errno.ENOENT:
        return f"{_describe_errno(number)}; mount /proc, which reports the size of a process"
    if layer is FenceLayer.LANDLOCK and 0 < system.landlock_abi < MIN_ABI:
        return f"ABI {system.landlock_abi} cannot forbid truncation; use Linux 6.2 or later (ABI {MIN_ABI})"
    if layer is FenceLayer.LANDLOCK and not system.landlock_abi:
        number = system.landlock_errno
        if number == errno.EOPNOTSUPP:
            return "it is built in but disabled; add landlock to the list in the boot parameter lsm="
    elif number == errno.EOPNOTSUPP:
        return "the system accepted it without effect; use a system whose kernel is not emulated"
    return f"{_describe_errno(number)}; {_describe_remedy(layer)}"


def _describe_errno(number: int) -> str:
    return f"the system returned {errno.errorcode.get(number, number)}"


def _describe_remedy(layer: FenceLayer) -> str:
    allow = f"in a container, let its seccomp profile allow {_CALLS[layer]}"
    match layer:
        case FenceLayer.LANDLOCK:
            return f"it requires Linux 6.2 built with CONFIG_SECURITY_LANDLOCK; {allow}"
        case FenceLayer.SECCOMP:
            return f"it requires a kernel built with CONFIG_SECCOMP_FILTER, and no_new_privs; {allow}"
        case FenceLayer.MDWE:
            return f"it requires Linux 6.3; full confinement does not require it; {allow}"
        case _:
            return allow
