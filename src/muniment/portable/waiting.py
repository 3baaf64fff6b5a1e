"""Replacements for `os.eventfd` and `select.poll`, on systems that lack one of them.

An eventfd is replaced by a latch: a flag that another thread sets, and for which a poller waits by its
number. Only latches can be waited for, which `cancelling.Cancel` needs. Sockets and pipes are only waited for
by the fence, which does not exist on these systems.

Separate, because macOS and Windows both need it, and Windows needs more.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any, Final

_FIRST_NUMBER: Final = 1 << 24
"""The first number of a latch; a system uses so high numbers for descriptors only on request."""

_changed: Final = threading.Condition()
_latches: Final[dict[int, bool]] = {}
numbers: Final = itertools.count(_FIRST_NUMBER)


class LatchingOs:
    """The module `os`, with an `eventfd` that creates latches (flags that another thread can wait for)."""

    EFD_CLOEXEC = EFD_NONBLOCK = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def eventfd(self, _value: int, _flags: int) -> int:
        """Create a latch that is not set, and return its number."""
        with _changed:
            number = next(numbers)
            _latches[number] = False
        return number

    def eventfd_write(self, fd: int, _value: int) -> None:
        """Set a latch, and wake the threads that wait for it.

        A signal handler may call this in a thread that is waiting itself. Then it only sets the latch, which
        that thread sees at its next check.
        """
        _latches[fd] = True
        if _changed.acquire(blocking=False):
            try:
                _changed.notify_all()
            finally:
                _changed.release()

    def close(self, fd: int) -> None:
        """Close a latch, or any other descriptor as `os.close` does."""
        if _latches.pop(fd, None) is None:
            os.close(fd)


CHECK_SECONDS: Final = 0.05
"""Seconds after which a waiting thread checks the latches again, in case it was not woken."""


class _Poll:
    def __init__(self) -> None:
        self._registered: list[int] = []

    def register(self, fd: int, _mask: int) -> None:
        self._registered.append(fd)

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        """Wait up to `milliseconds` until a latch is set, and return all registered latches that are set."""
        remaining = milliseconds / 1000
        with _changed:
            while not (ready := [fd for fd in self._registered if _latches.get(fd)]) and remaining > 0:
                _changed.wait(min(remaining, CHECK_SECONDS))
                remaining -= CHECK_SECONDS
        return [(fd, PolledSelect.POLLIN) for fd in ready]


class PolledSelect:
    """The part of the module `select` that `poll` needs."""

    POLLIN: Final = 1
    POLLOUT: Final = 4
    poll: Final = _Poll


select: Final = PolledSelect()
