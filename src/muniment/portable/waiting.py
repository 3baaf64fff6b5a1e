"""`os.eventfd` and `select.poll` for systems that lack one: a latch has a number, for which a poller waits.

Only latches can be waited for (`cancelling.Cancel`). Only the fence, which does not exist here, waits for
sockets and pipes.

Separate, since macOS and Windows both need it, and Windows needs more.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any, Final

_FIRST_NUMBER: Final = 1 << 24
"""Numbers begin here; a system allocates descriptors that high only on request."""

_changed: Final = threading.Condition()
_latches: Final[dict[int, bool]] = {}
numbers: Final = itertools.count(_FIRST_NUMBER)


class LatchingOs:
    """`os`, with the latches of `eventfd`."""

    EFD_CLOEXEC = EFD_NONBLOCK = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def eventfd(self, _value: int, _flags: int) -> int:
        """Return a new latch, not set."""
        with _changed:
            number = next(numbers)
            _latches[number] = False
        return number

    def eventfd_write(self, fd: int, _value: int) -> None:
        """Set a latch, and wake the pollers.

        May be called by a signal handler in a thread that polls: then it only sets the latch, and that thread
        sees it.
        """
        _latches[fd] = True
        if _changed.acquire(blocking=False):
            try:
                _changed.notify_all()
            finally:
                _changed.release()

    def close(self, fd: int) -> None:
        """Close as `os.close`, also latches."""
        if _latches.pop(fd, None) is None:
            os.close(fd)


CHECK_SECONDS: Final = 0.05
"""Seconds between two checks of the latches, if a thread could not be woken."""


class _Poll:
    def __init__(self) -> None:
        self._registered: list[int] = []

    def register(self, fd: int, _mask: int) -> None:
        self._registered.append(fd)

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        """Return the latches that are set; wait up to `milliseconds` for the first."""
        remaining = milliseconds / 1000
        with _changed:
            while not (ready := [fd for fd in self._registered if _latches.get(fd)]) and remaining > 0:
                _changed.wait(min(remaining, CHECK_SECONDS))
                remaining -= CHECK_SECONDS
        return [(fd, PolledSelect.POLLIN) for fd in ready]


class PolledSelect:
    """The part of `select` for `poll`."""

    POLLIN: Final = 1
    POLLOUT: Final = 4
    poll: Final = _Poll


select: Final = PolledSelect()
