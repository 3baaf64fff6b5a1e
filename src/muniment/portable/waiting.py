"""`os.eventfd` and `select.poll` for systems that lack one: a latch has a number, and who polls waits for it.

Only latches can be waited for (`cancelling.Cancel`); sockets and pipes are waited for by the fence alone,
which is not there.

Apart, since both other systems need it, and Windows more.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any, Final

_FIRST: Final = 1 << 24
"""Numbers begin here; no system gives descriptors that high without being asked to."""

_changed: Final = threading.Condition()
_latches: Final[dict[int, bool]] = {}
numbers: Final = itertools.count(_FIRST)


class LatchingOs:
    """`os`, with the latches of `eventfd`."""

    EFD_CLOEXEC = EFD_NONBLOCK = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def eventfd(self, _value: int, _flags: int) -> int:
        """A new latch, not set."""
        with _changed:
            number = next(numbers)
            _latches[number] = False
        return number

    def eventfd_write(self, fd: int, _value: int) -> None:
        """Set a latch, and wake who polls it.

        May be called by a signal handler in a thread that polls: then it only sets, and that thread sees it.
        """
        _latches[fd] = True
        if _changed.acquire(blocking=False):
            try:
                _changed.notify_all()
            finally:
                _changed.release()

    def close(self, fd: int) -> None:
        """As `os.close`."""
        if _latches.pop(fd, None) is None:
            os.close(fd)


LOOK_SECONDS: Final = 0.05
"""Seconds between two looks at the latches, where nobody could be woken."""


class _Poll:
    def __init__(self) -> None:
        self._registered: list[int] = []

    def register(self, fd: int, _mask: int) -> None:
        self._registered.append(fd)

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        """The latches that are set, waiting so long for the first."""
        left = milliseconds / 1000
        with _changed:
            while not (ready := [fd for fd in self._registered if _latches.get(fd)]) and left > 0:
                _changed.wait(min(left, LOOK_SECONDS))
                left -= LOOK_SECONDS
        return [(fd, PolledSelect.POLLIN) for fd in ready]


class PolledSelect:
    """`select`, as far as `poll` goes."""

    POLLIN: Final = 1
    POLLOUT: Final = 4
    poll: Final = _Poll


select: Final = PolledSelect()
