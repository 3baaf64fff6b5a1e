"""Shared helpers for tests of the worker pool: probe workers, and ways to watch processes."""

import os
import select
import time
from pathlib import Path

import pytest

from muniment.kernel.cancel import Patience
from muniment.sandbox.fence.pool import Zygote, import_directories

SERVICES = str(Path(__file__).parent / "services")


def soon(seconds=20.0, cancel=None):
    """Return a deadline that only a hang exceeds."""
    return Patience(time.monotonic() + seconds, cancel)


def source(service="probe_service:serve", **arguments):
    """Create a zygote for a service in `services/`."""
    return Zygote(service, directories=[*import_directories(), SERVICES], **arguments)


def own_zygote(service="probe_service:serve", *, scope="module"):
    """Return a fixture that starts a zygote for a service."""

    @pytest.fixture(scope=scope)
    def made():
        with source(service) as zygote:
            zygote.wait_ready(soon())
            yield zygote

    return made


def ask(worker, do, body=b"", *, max_body=1 << 20, seconds=20.0, cancel=None, **header):
    """Send a command to a probe worker; return header and body of its response."""
    return worker.request({"do": do, **header}, body, max_body=max_body, patience=soon(seconds, cancel))


def look(worker):
    """Return what a probe worker reports about itself."""
    return ask(worker, "look")[0]


class Watched:
    """A process whose end a test waits for."""

    def __init__(self, pid):
        self.fd = os.pidfd_open(pid)

    def ended(self, seconds=20.0):
        """Return whether it ended within this time."""
        return bool(select.select([self.fd], [], [], seconds)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)
