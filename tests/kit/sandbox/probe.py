"""Shared helpers for tests of the worker pool: probe workers, and ways to watch processes."""

import os
import select
import time
from pathlib import Path

import pytest

from muniment.kernel.cancel import Deadline
from muniment.sandbox.fence.pool import Zygote, find_import_directories

SERVICES = str(Path(__file__).parent / "services")


def make_deadline(seconds=20.0, cancel=None):
    """Return a deadline that only a hang exceeds."""
    return Deadline(time.monotonic() + seconds, cancel)


def make_zygote(service="probe_service:serve", **arguments):
    """Create a zygote for a service in `services/`."""
    return Zygote(service, directories=[*find_import_directories(), SERVICES], **arguments)


def make_zygote_fixture(service="probe_service:serve", *, scope="module"):
    """Return a fixture that starts a zygote for a service."""

    @pytest.fixture(scope=scope)
    def start_zygote():
        with make_zygote(service) as zygote:
            zygote.wait_ready(make_deadline())
            yield zygote

    return start_zygote


def send_command(worker, command, body=b"", *, max_body=1 << 20, seconds=20.0, cancel=None, **header):
    """Send a command to a probe worker; return header and body of its response."""
    return worker.request(
        {"do": command, **header}, body, max_body=max_body, deadline=make_deadline(seconds, cancel)
    )


def inspect_worker(worker):
    """Return what a probe worker reports about itself."""
    return send_command(worker, "look")[0]


class WatchedProcess:
    """A process whose end a test waits for."""

    def __init__(self, pid):
        self.fd = os.pidfd_open(pid)

    def wait_for_end(self, seconds=20.0):
        """Return whether it ended within this time."""
        return bool(select.select([self.fd], [], [], seconds)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)
