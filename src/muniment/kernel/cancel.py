"""Waits that always end: an absolute deadline for every wait, and a token that ends a wait early.

C1 A wait ends with its event, with `DeadlineExceeded` or with `Cancelled`, and never later than the deadline.
C2 The deadline is absolute. A peer that answers byte by byte does not extend it.

Standard library only; tested with attacks by `tests/units/kernel/test_cancel.py`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, Protocol

from muniment.kernel.refusal import Cancelled, DeadlineExceeded
from muniment.kernel.syscalls import select

MAX_POLL_SECONDS: Final = 3600.0
"""Longest time of one poll(2), which takes milliseconds as a C int. A deadline may be later, or infinite."""


class CancelToken(Protocol):
    """An object by which a caller cancels a run."""

    def is_set(self) -> bool:
        """Return whether the caller cancelled."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable after a cancellation."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time at which every wait of an operation ends, and a token that ends it earlier.

    Attributes:
        expires_at: time on `time.monotonic()`, in seconds, at which every wait ends.
        cancel: ends every wait early; None: the operation cannot be cancelled.
    """

    expires_at: float
    cancel: CancelToken | None = None

    def check(self) -> None:
        """Raise an error if the deadline passed or the caller cancelled.

        Raises:
            Cancelled: the caller cancelled, even if the deadline also passed.
            DeadlineExceeded: the deadline passed.
        """
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("nothing was written")
        if time.monotonic() >= self.expires_at:
            raise DeadlineExceeded("the deadline passed")

    def wait(self, fd: int, mask: int, *, peer_pidfd: int | None = None) -> bool:
        """Wait until the descriptor `fd` has one of the poll(2) events in `mask`, or its other end is closed.

        Args:
            fd: the descriptor to wait for.
            mask: `select.POLLIN` or `select.POLLOUT`.
            peer_pidfd: the pidfd of the process at the other end. If that process ends, the wait ends. None:
                unknown.

        Returns:
            True if `fd` is ready. False if it is not, and the process of `peer_pidfd` has ended.

        Raises:
            Cancelled, DeadlineExceeded: as described in `check`, even if `fd` is already ready.

        Cost: one poll(2) and two clock readings if `fd` is already ready.
        """
        poller = select.poll()
        poller.register(fd, mask)
        if peer_pidfd is not None:
            poller.register(peer_pidfd, select.POLLIN)
        if self.cancel is not None:
            poller.register(self.cancel.fileno(), select.POLLIN)
        while True:
            self.check()
            seconds = min(self.expires_at - time.monotonic(), MAX_POLL_SECONDS)
            ready = {number for number, _ in poller.poll(max(0, math.ceil(seconds * 1000)))}
            if fd in ready:
                return True
            if peer_pidfd in ready:
                return False
