"""Waiting that ends: a cancellation token, and one deadline shared by everything that waits.

C1 A wait ends with its event, `DeadlineExceeded` or `Cancelled`; never later than the deadline.
C2 The deadline is absolute. A peer that answers drop by drop gains no time by it.
C3 `Cancel.set` may be called from any thread and from a signal handler: none of its locks is held while
   another one is waited for, and a thread that it interrupts may hold any of them.
C4 A child is cancelled with its parent, and alone without it. Whichever is closed first, closing takes
   nothing from the other.

Standard library only; attacked by `tests/units/kernel/test_cancel.py`.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from muniment.kernel.refusal import Cancelled, DeadlineExceeded

MAX_POLL_SECONDS: Final = 3600.0
"""Seconds of one poll(2); it takes milliseconds as a C int, a deadline may be later than that or infinite."""


class Cancel:
    """Tells the threads of a run that its caller wants no more of it. Set once, never unset."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False
        self._children: set[Cancel] = set()
        self._leave: Callable[[Cancel], None] | None = None
        # Reentrant: a signal handler may call `set` while this very thread holds the lock.
        self._lock = threading.RLock()

    def set(self) -> None:
        """Cancel. Wakes every wait that watches this token or a child of it; a second call changes nothing.

        Cost: a system call for each of them.
        """
        with self._lock:
            is_first, self._is_set = not self._is_set, True  # Before it wakes anybody who asks.
            if is_first and self._fd >= 0:
                os.eventfd_write(self._fd, 1)
            children = tuple(self._children)
        for child in children:  # Not under the lock: another thread may hold a child's, and wait for ours.
            child.set()

    def child(self) -> Cancel:
        """A token of its own that is set when this one is, or was (C4).

        Close it when done: until then this token keeps it, and the descriptor that it takes.

        Raises:
            OSError: the process has no descriptor left.
        """
        child = Cancel()
        child._leave = self._remove
        with self._lock:
            self._children.add(child)
            is_set = self._is_set
        if is_set:
            child.set()
        return child

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def fileno(self) -> int:
        """A descriptor that is readable once cancelled.

        Raises:
            ValueError: the token was closed.
        """
        if self._fd < 0:
            raise ValueError("this cancellation token was closed")
        return self._fd

    def close(self) -> None:
        """Give the descriptor back; only when nothing waits on the token any more."""
        if self._leave is not None:
            self._leave(self)
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _remove(self, child: Cancel) -> None:
        with self._lock:
            self._children.discard(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a caller is willing to wait.

    Attributes:
        deadline: second on `time.monotonic()` at which every wait ends.
        cancel: ends every wait early; None: nobody can.
    """

    deadline: float
    cancel: Cancel | None = None

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
