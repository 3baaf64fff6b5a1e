"""Work that runs ahead: begun when it may be needed, taken when it is there, waited for by nobody.

- P1. `Prefetch.begin` and everything that takes or cancels return at once, whatever the work does.
- P2. What came of it is taken at most once.
- P3. A handle that is cancelled, or whose parent is, gives nothing from then on, and its work ends: its
  patience is cancelled, which interrupts a query and closes a model's socket. However it ends, that is no
  failure, and is not told as one.
- P4. No thread outlives `Prefetch.close` but one whose work takes no notice of its patience; that one holds
  the one descriptor of its patience until it ends. After `close` nothing begins.

Each piece of work has a thread of its own, so that one that hangs holds up no other.

Attacked in tests/units/recall/test_prefetch.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from muniment import events
from muniment.cancelling import Cancel
from muniment.kernel.cancel import Patience

END_SECONDS: Final = 5.0
"""Seconds that threads have to end once all is cancelled; each takes milliseconds, a busy disk longer."""

T = TypeVar("T")
Work = Callable[[Patience], T]


class Handle(Generic[T]):
    """One piece of work. Made by `Prefetch.begin`; threads may share it.

    Attributes:
        settled_at: second of the clock at which it was done, failed, or ended because it was cancelled; None:
            it runs.
        consumed: whether what came of it was taken.
    """

    def __init__(self, work: Work[T], cancel: Cancel, parent: Cancel, clock: Callable[[], float]) -> None:
        self._work, self._cancel, self._parent, self._clock = work, cancel, parent, clock
        self._lock = threading.Lock()
        self._came: tuple[T, ...] = ()
        self.settled_at: float | None = None
        self.consumed = False

    def take(self) -> T | None:
        """What came of it, once (P2).

        Returns:
            None: it was taken, is not there yet, failed, or was cancelled (P3).
        """
        with self._lock:
            if not self._came or self.consumed or self.is_cancelled:
                return None
            self.consumed = True
            return self._came[0]

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and nothing came of it."""
        with self._lock:
            return self.settled_at is not None and not self._came

    @property
    def is_cancelled(self) -> bool:
        """Whether it, or its parent, was cancelled."""
        return self._cancel.is_set() or self._parent.is_set()

    def cancel(self) -> None:
        """End the work (P3); harmless when repeated."""
        self._cancel.set()

    def run(self) -> None:
        """Work, and settle whatever comes of it; on the thread of the handle."""
        try:
            self.settle(self._work(Patience(float("inf"), self._cancel)))
        except BaseException as problem:  # noqa: BLE001  nobody waits for this thread who could be told
            self.settle(problem=problem)

    def settle(self, *came: T, problem: BaseException | None = None) -> None:
        """Be over: with what came of it, because of a problem, or because it was cancelled before."""
        try:
            if problem is not None and not self.is_cancelled:
                events.emit_defect("prefetch_failed", problem)
        finally:
            with self._lock:
                self._came, self.settled_at = came, self._clock()
            self._cancel.close()


class Prefetch:
    """Begins work. Close it when done; threads may share one.

    Args:
        clock: monotonic seconds.
        parent: cancels all of it; stays the caller's.

    Raises:
        OSError: the process has no descriptor left.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, parent: Cancel | None = None) -> None:
        self._clock = clock
        self._cancel = Cancel() if parent is None else parent.child()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self, work: Work[T]) -> Handle[T]:
        """Begin some work (P1).

        Where the parent was cancelled before, or all was closed, it is not begun: the handle is cancelled.
        Where the system has no thread for it, the handle has failed.

        Raises:
            OSError: the process has no descriptor left.

        Cost: the start of a thread, some 50 µs; while it runs, a thread and a descriptor.
        """
        with self._lock:
            handle = Handle(work, self._cancel.child(), self._cancel, self._clock)
            if handle.is_cancelled:
                handle.settle()
                return handle
            thread = threading.Thread(target=handle.run, name="recall", daemon=True)
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            try:
                thread.start()
            except RuntimeError as problem:  # The system refuses, or the program is at its end.
                handle.settle(problem=problem)
            return handle

    def close(self) -> None:
        """Cancel what runs, and wait for its threads to end (P4); harmless when repeated.

        Cost: what it takes the work to notice, at most `END_SECONDS`; an event tells where that is too short.
        """
        self._cancel.set()
        with self._lock:  # Whoever begins something now sees that all is cancelled.
            running = [each for each in self._threads if each.is_alive()]
        end = time.monotonic() + END_SECONDS
        for thread in running:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in running):
            events.emit("recall_left_running")
        self._cancel.close()


def begun(prefetch: Prefetch, work: Work[T]) -> Handle[T] | None:
    """Begin some work where nothing may be raised.

    Returns:
        None: the process has no descriptor left, which an event tells.
    """
    try:
        return prefetch.begin(work)
    except OSError as problem:
        events.emit_defect("recall_not_begun", problem)
        return None
