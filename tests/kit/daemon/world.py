"""Two daemons and what brings them into every state that the contract has a code for."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kit.daemon.minds import writes
from kit.daemon.process import BASE

REVIEWED = '{ trust = "owner", commit = "review" }'
FACT = {"content": "The user prefers codes to prose"}


class World:
    """What the cases need.

    Attributes:
        daemon: the shared one.
        client: a token for it that is not the owner's.
        picky: one with a language model, `model`; its user scope is reviewed, it holds at most twelve
            files, never retries, and a task has two seconds.
    """

    def __init__(self, daemon, picky, model):
        self.daemon, self.picky, self.model = daemon, picky, model
        self.client = daemon.new_token("codes", "codes-client")

    def written(self, path, text, **body):
        """The task of a fact that the model files so."""
        self.model.mind = writes(path, text)
        return self.picky.wait(self.picky.remember(text, **body))

    def review(self, path, text):
        """What waits to be written there: its id and digest."""
        waiting = self.written(path, text)["reviewId"]
        return waiting, self.picky.get(f"{BASE}/review/{waiting}").json()["digest"]

    def approve(self, review_id, digest):
        return self.picky.post(f"{BASE}/review/{review_id}/approve", {"digest": digest})


@contextmanager
def locked(root):
    """Hold the lock of a root, as another program does while it commits."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def directory():
    """A directory for one case."""
    with TemporaryDirectory() as name:
        yield Path(name)


def shown(each):
    """How a case is named in a report."""
    return each if isinstance(each, str) else ""
