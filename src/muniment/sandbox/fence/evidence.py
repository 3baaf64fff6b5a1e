"""What holds a worker, as the broker may believe it: what the worker reports, less what the kernel denies.

E1 a layer that the worker calls missing is missing. E2 `seccomp`, `no_new_privs` and `capabilities` are
asked of the kernel from outside, in `/proc/PID/status`; where that says otherwise, or nothing, the layer
is missing whatever the worker says. A filter counts if the worker has more of them than this process,
which a container may have filtered already. E3 `full` takes every layer but `mdwe`.

The report comes from our own code in a fresh fork, before it was told anything; it is no word of a worker
that was taken over. Attacked by `tests/units/sandbox/test_evidence.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from muniment.kernel.names import Enforcement
from muniment.names import FenceLayer, Held

DISPENSABLE: Final = frozenset({FenceLayer.MDWE})
"""Layers without which `full` is still full: another one holds the same."""

_WITNESSED: Final[Mapping[FenceLayer, tuple[str, str]]] = {
    FenceLayer.SECCOMP: ("Seccomp", "2"),
    FenceLayer.NO_NEW_PRIVS: ("NoNewPrivs", "1"),
    FenceLayer.CAPABILITIES: ("CapEff", "0000000000000000"),
}
"""Field of `/proc/PID/status`, and what it says of a worker that is held."""

_FILTERS: Final = "Seccomp_filters"


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
