"""Zygotes whose workers run a service of `services/` instead of the tools."""

from __future__ import annotations

from pathlib import Path

from muniment.confine.pool import Zygote, import_directories

SERVICES = str(Path(__file__).parent / "services")


def source(service):
    """A zygote for a service in `services/`."""
    return Zygote(service, directories=(*import_directories(), SERVICES))
