"""What the pool's tests share: probe workers, ways to watch processes."""

import os
import select
import time
from pathlib import Path

import pytest

from muniment.kernel.cancel import Patience
from muniment.sandbox.fence.pool import Zygote, import_directories

SERVICES = str(Path(__file__).parent / "services")


def soon(seconds=20.0, cancel=None):
    """A patience that only a hang outlasts."""
    return Patience(time.monotonic() + seconds, cancel)


def source(service="probe_service:serve", **arguments):
    """A zygote for a service in `services/`."""
    return Zygote(service, directories=[*import_directories(), SERVICES], **arguments)


def own_zygote(service="probe_service:serve", *, scope="module"):
    """A fixture: one for a service that has started."""

    @pytest.fixture(scope=scope)
    def made():
        with source(service) as zygote:
            zygote.wait_ready(soon())
            yield zygote

    return made


def ask(worker, do, body=b"", *, max_body=1 << 20, seconds=20.0, cancel=None, **header):
    """Have a probe worker do something; header and body of its answer."""
    return worker.request({"do": do, **header}, body, max_body=max_body, patience=soon(seconds, cancel))


def look(worker):
    """What a probe worker sees of itself."""
    return ask(worker, "look")[0]


class Watched:
    """A process that the test wants to see end."""

    def __init__(self, pid):
        self.fd = os.pidfd_open(pid)

    def ended(self, seconds=20.0):
        """Whether it ended within that time."""
        return bool(select.select([self.fd], [], [], seconds)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)
