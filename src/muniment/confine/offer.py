"""What this system offers for the fence, and what to do about what it does not.

Asking changes nothing. What is offered need not hold: only a worker that is fenced shows that, and only what
it may not do any more (`attempts`).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muniment.confine.fence import MIN_ABI, offered_abi
from muniment.confine.syscalls import LIBC, NUMBERS, available, require_known_machine
from muniment.errors import ConfinementUnavailable
from muniment.names import Enforcement, FenceLayer

if TYPE_CHECKING:
    from muniment.policy.decide import Policy

# -- evidence ----------------------------------------------------------------------------------------
#
# What holds a worker, as the broker may believe it: what the worker reports, less what the kernel denies.
#
# E1 a layer that the worker calls missing is missing. E2 `seccomp`, `no_new_privs` and `capabilities` are
# asked of the kernel from outside, in `/proc/PID/status`; where that says otherwise, or nothing, the layer
# is missing whatever the worker says. A filter counts if the worker has more of them than this process,
# which a container may have filtered already. E3 `full` takes every layer but `mdwe`.
#
# The report comes from our own code in a fresh fork, before it was told anything; it is no word of a worker
# that was taken over. Attacked by `tests/units/confine/test_offer.py`.

DISPENSABLE: Final = frozenset({FenceLayer.MDWE})
"""Layers without which `full` is still full: another one holds the same."""

_WITNESSED: Final[Mapping[FenceLayer, tuple[str, str]]] = {
    FenceLayer.SECCOMP: ("Seccomp", "2"),
    FenceLayer.NO_NEW_PRIVS: ("NoNewPrivs", "1"),
    FenceLayer.CAPABILITIES: ("CapEff", "0000000000000000"),
}
"""Field of `/proc/PID/status`, and what it says of a worker that is held."""

_FILTERS: Final = "Seccomp_filters"


@dataclass(frozen=True, slots=True)
class Held:
    """What holds a worker.

    Attributes:
        enforcement: as a whole.
        missing: layers that the kernel does not hold, in the order of the fence.
    """

    enforcement: Enforcement
    missing: tuple[FenceLayer, ...]


IN_PROCESS: Final = Held(Enforcement.NONE, tuple(FenceLayer))
"""What holds tools that run in the broker's own process."""


def what_holds(reported_missing: Collection[FenceLayer], status: str, ours: str) -> Held:
    """Judge a worker's report (E1 to E3).

    Args:
        reported_missing: what the worker says.
        status: what `/proc/PID/status` says of it; empty: nothing.
        ours: what that says of this process.
    """
    fields, own = _fields(status), _fields(ours)
    denied = {layer for layer, (name, value) in _WITNESSED.items() if fields.get(name) != value}
    # Kernels before 5.9 do not count filters; there the field is missing on both sides.
    if _FILTERS in fields and int(fields[_FILTERS]) <= int(own.get(_FILTERS, "0")):
        denied.add(FenceLayer.SECCOMP)
    missing = tuple(layer for layer in FenceLayer if layer in denied or layer in reported_missing)
    is_full = DISPENSABLE.issuperset(missing)
    return Held(Enforcement.FULL if is_full else Enforcement.PARTIAL, missing)


def _fields(status: str) -> dict[str, str]:
    lines = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in lines}


def read_status(pid: int) -> str:
    """What the kernel says of a process; empty where it cannot be asked."""
    try:
        return Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


# -- requirement -------------------------------------------------------------------------------------
#
# What a policy requires to hold the worker of a run, compared with what does. The broker's only.


def require(policy: Policy, held: Held) -> None:
    """Refuse a run that is held less than its policy requires.

    Raises:
        ConfinementUnavailable: it is; the message names what is missing and what to do.
    """
    required = policy.confinement.require
    if held.enforcement.satisfies(required):
        return
    if held.enforcement is Enforcement.NONE:
        remedy = 'run it in a worker, or use a policy that says require = "none"'
    else:
        remedy = (
            f"the kernel does not hold {', '.join(held.missing)}; 'muniment doctor' says why, "
            'or use a policy that requires "partial"'
        )
    raise ConfinementUnavailable(required, held.enforcement, remedy)


def check_enforcement(policy: Policy, *, in_process: bool) -> None:
    """`require`, as far as it is known before a worker is started.

    Raises:
        ConfinementUnavailable: the tools would run in this process, and the policy requires a worker.
    """
    if in_process:
        require(policy, IN_PROCESS)


# -- offer -------------------------------------------------------------------------------------------

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
