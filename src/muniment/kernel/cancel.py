"""Waiting that ends: one deadline shared by everything that waits, and a token that ends it early.

C1 A wait ends with its event, `DeadlineExceeded` or `Cancelled`; never later than the deadline.
C2 The deadline is absolute. A peer that answers drop by drop gains no time by it.

Standard library only; attacked by `tests/units/kernel/test_cancel.py`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, Protocol

from muniment.kernel.refusal import Cancelled, DeadlineExceeded
from muniment.kernel.syscalls import select

MAX_POLL_SECONDS: Final = 3600.0
"""Seconds of one poll(2); it takes milliseconds as a C int, a deadline may be later than that or infinite."""


class Cancelling(Protocol):
    """Tells whether its caller wants no more of a run."""

    def is_set(self) -> bool:
        """Whether somebody cancelled."""

    def fileno(self) -> int:
        """A descriptor that is readable once somebody has."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a caller is willing to wait.

    Attributes:
        deadline: second on `time.monotonic()` at which every wait ends.
        cancel: ends every wait early; None: nobody can.
    """

    deadline: float
    cancel: Cancelling | None = None

    def check(self) -> None:
        """Go on only while there is patience left.

        Raises:
            Cancelled: the caller cancelled; told before a deadline that passed as well.
            DeadlineExceeded: the deadline passed.
        """
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("nothing was written")
        if time.monotonic() >= self.deadline:
            raise DeadlineExceeded("the deadline passed")

    def wait(self, fd: int, mask: int, *, alive: int | None = None) -> bool:
        """Wait until `fd` has one of the poll(2) events of `mask`, or hung up.

        Args:
            fd: what to wait for.
            mask: `select.POLLIN` or `select.POLLOUT`.
            alive: the pidfd of the process at the other end, where known.

        Returns:
            True: `fd` is ready. False: it is not, and the process behind `alive` has ended.

        Raises:
            Cancelled, DeadlineExceeded: as `check`, also when `fd` is ready by then.

        Cost: one poll(2) and two clock readings where `fd` is ready at once.
        """
        poller = select.poll()
        poller.register(fd, mask)
        if alive is not None:
            poller.register(alive, select.POLLIN)
        if self.cancel is not None:
            poller.register(self.cancel.fileno(), select.POLLIN)
        while True:
            self.check()
            seconds = min(self.deadline - time.monotonic(), MAX_POLL_SECONDS)
            ready = {number for number, _ in poller.poll(max(0, math.ceil(seconds * 1000)))}
            if fd in ready:
                return True
            if alive in ready:
                return False
