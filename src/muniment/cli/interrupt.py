"""Ctrl-C: in commands that write it cancels, and what has begun to write runs to its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from muniment.confine.cancel import Cancel


@contextmanager
def cancel_on_interrupt() -> Iterator[Cancel]:
    """A token that Ctrl-C sets, for the time of the block."""
    with Cancel() as cancel:
        before = signal.signal(signal.SIGINT, lambda *_: cancel.set())
        try:
            yield cancel
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def end_on_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process as SIGTERM does, for the time of the block: at once, also where it waits."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
