"""The confinement of a worker: the worker's report, checked against the kernel's view of the process.

E1 a layer that the worker reports as missing is missing. E2 `seccomp`, `no_new_privs` and `capabilities` are
read from the kernel, in `/proc/PID/status`. If they differ there or cannot be read, the layer is missing,
even if the worker reports it as present. A seccomp filter counts if the worker has more filters than this
process, which a container may have filtered already. E3 `full` requires every layer except `mdwe`.

The report comes from Muniment's code in a fresh fork, before it received any data. A worker that was taken
over could not have sent it. Tested with attacks by `tests/units/sandbox/test_evidence.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from muniment.kernel.names import Enforcement
from muniment.names import FenceLayer, Held

DISPENSABLE: Final = frozenset({FenceLayer.MDWE})
"""Layers that `full` does not require: another layer has the same effect."""

_WITNESSED: Final[Mapping[FenceLayer, tuple[str, str]]] = {
    FenceLayer.SECCOMP: ("Seccomp", "2"),
    FenceLayer.NO_NEW_PRIVS: ("NoNewPrivs", "1"),
    FenceLayer.CAPABILITIES: ("CapEff", "0000000000000000"),
}
"""Field of `/proc/PID/status`, and its value in a confined worker."""

_FILTERS: Final = "Seccomp_filters"


def what_holds(reported_missing: Collection[FenceLayer], status: str, ours: str) -> Held:
    """Check a worker's report and return its confinement (E1 to E3).

    Args:
        reported_missing: layers that the worker reports as missing.
        status: `/proc/PID/status` of the worker; empty: unknown.
        ours: `/proc/PID/status` of this process.
    """
    fields, own = _fields(status), _fields(ours)
    denied = {layer for layer, (name, value) in _WITNESSED.items() if fields.get(name) != value}
    # Kernels before 5.9 do not count filters; with these the field is missing in both.
    if _FILTERS in fields and int(fields[_FILTERS]) <= int(own.get(_FILTERS, "0")):
        denied.add(FenceLayer.SECCOMP)
    missing = tuple(layer for layer in FenceLayer if layer in denied or layer in reported_missing)
    is_full = DISPENSABLE.issuperset(missing)
    return Held(Enforcement.FULL if is_full else Enforcement.PARTIAL, missing)


def _fields(status: str) -> dict[str, str]:
    lines = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in lines}


def read_status(pid: int) -> str:
    """Return `/proc/PID/status` of a process; empty if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
