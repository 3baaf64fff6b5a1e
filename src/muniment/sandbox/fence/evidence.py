"""The confinement of a worker: the report of the worker, checked against the kernel's view of the process.

E1 A layer that the worker reports as missing is missing.
E2 `seccomp`, `no_new_privs` and `capabilities` are read from the kernel, in `/proc/PID/status`. If such a
   layer is not in force there, or cannot be read, it is missing, even if the worker reports it as present. A
   seccomp filter counts only if the worker has more filters than this process, which a container may filter
   already.
E3 `full` requires every layer except `mdwe`.

The report comes from Muniment's code in a fresh fork, before the fork receives any data. So code that takes
over a worker later cannot send it. Tested with attacks by `tests/units/sandbox/test_evidence.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from muniment.kernel.names import Enforcement
from muniment.names import Confinement, FenceLayer

OPTIONAL_LAYERS: Final = frozenset({FenceLayer.MDWE})
"""Layers that `full` does not require, because another layer has the same effect."""

_STATUS_FIELDS: Final[Mapping[FenceLayer, tuple[str, str]]] = {
    FenceLayer.SECCOMP: ("Seccomp", "2"),
    FenceLayer.NO_NEW_PRIVS: ("NoNewPrivs", "1"),
    FenceLayer.CAPABILITIES: ("CapEff", "0000000000000000"),
}
"""For some layers, the field of `/proc/PID/status` and its value in a confined worker."""

_FILTER_COUNT: Final = "Seccomp_filters"


def determine_confinement(
    reported_missing: Collection[FenceLayer], status: str, broker_status: str
) -> Confinement:
    """Return the confinement of a worker, from its report and from the kernel.

    Args:
        reported_missing: layers that the worker reports as missing.
        status: `/proc/PID/status` of the worker; empty if it cannot be read.
        broker_status: `/proc/PID/status` of this process.
    """
    fields, broker_fields = _parse_fields(status), _parse_fields(broker_status)
    contradicted = {layer for layer, (name, value) in _STATUS_FIELDS.items() if fields.get(name) != value}
    # Kernels before 5.9 do not count filters; with these the field is missing in both.
    if _FILTER_COUNT in fields and int(fields[_FILTER_COUNT]) <= int(broker_fields.get(_FILTER_COUNT, "0")):
        contradicted.add(FenceLayer.SECCOMP)
    missing = tuple(layer for layer in FenceLayer if layer in contradicted or layer in reported_missing)
    is_full = OPTIONAL_LAYERS.issuperset(missing)
    return Confinement(Enforcement.FULL if is_full else Enforcement.PARTIAL, missing)


def _parse_fields(status: str) -> dict[str, str]:
    lines = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in lines}


def read_status(pid: int) -> str:
    """Return the text of `/proc/PID/status` for the process `pid`, or "" if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
