"""Run work ahead on threads: start it when it may be needed, use it when it is ready, never wait for it.

- P1. `Prefetch.begin` and all methods that take or cancel return at once, for any work.
- P2. A result is taken at most once.
- P3. A handle that is cancelled, or whose parent is, returns no result from then on, and its work ends: its
  time limit is cancelled, which interrupts a query and closes a model's socket. This is never a failure, and
  is not logged as one.
- P4. No thread outlives `Prefetch.close`, except if its work ignores its time limit; such a thread keeps one
  descriptor open until it ends. After `close` no work starts.

Each piece of work has a separate thread, so that one that hangs delays no other.

Attacked in tests/units/recall/test_prefetch.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from muniment import events
from muniment.cancelling import Cancel
from muniment.kernel.cancel import Deadline

END_SECONDS: Final = 5.0
"""Seconds for threads to end after all is cancelled; each takes milliseconds, longer on a busy disk."""

T = TypeVar("T")
Work = Callable[[Deadline], T]


class Handle(Generic[T]):
    """A piece of work, created by `Prefetch.begin`; threads may share it.

    Attributes:
        settled_at: clock second at which it finished, failed, or ended after being cancelled; None: it runs.
        is_consumed: whether its result was taken.
    """

    def __init__(self, work: Work[T], cancel: Cancel, parent: Cancel, clock: Callable[[], float]) -> None:
        self._work, self._cancel, self._parent, self._clock = work, cancel, parent, clock
        self._lock = threading.Lock()
        self._result: tuple[T, ...] = ()
        self.settled_at: float | None = None
        self.is_consumed = False

    def take_result(self) -> T | None:
        """Return the result, once (P2).

        Returns:
            None: it was already taken, is not ready, failed, or was cancelled (P3).
        """
        with self._lock:
            if not self._result or self.is_consumed or self.is_cancelled:
                return None
            self.is_consumed = True
            return self._result[0]

    @property
    def has_failed(self) -> bool:
        """Return whether it ended without a result."""
        with self._lock:
            return self.settled_at is not None and not self._result

    @property
    def is_cancelled(self) -> bool:
        """Return whether it, or its parent, was cancelled."""
        return self._cancel.is_set() or self._parent.is_set()

    def cancel(self) -> None:
        """Cancel the work (P3); repeated calls have no effect."""
        self._cancel.set()

    def run(self) -> None:
        """Run the work and settle its result; on the thread of the handle."""
        try:
            self.settle(self._work(Deadline(float("inf"), self._cancel)))
        except BaseException as problem:  # noqa: BLE001  no caller waits for this thread
            self.settle(problem=problem)

    def settle(self, *result: T, problem: BaseException | None = None) -> None:
        """Finish with a result, a problem, or neither if it was cancelled before."""
        try:
            if problem is not None and not self.is_cancelled:
                events.emit_defect("prefetch_failed", problem)
        finally:
            with self._lock:
                self._result, self.settled_at = result, self._clock()
            self._cancel.close()


class Prefetch:
    """Runs work on threads. Close it when done; threads may share one.

    Args:
        clock: monotonic seconds.
        parent: cancels all work; the caller closes it.

    Raises:
        OSError: the process has no free descriptor.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, parent: Cancel | None = None) -> None:
        self._clock = clock
        self._cancel = Cancel() if parent is None else parent.child()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self, work: Work[T]) -> Handle[T]:
        """Start some work (P1).

        If the parent was cancelled before, or this was closed, the work does not start: the handle is
        cancelled. If the system has no thread for it, the handle has failed.

        Raises:
            OSError: the process has no free descriptor.

        Cost: the start of a thread, about 50 µs; while it runs, a thread and a descriptor.
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
            except RuntimeError as problem:  # The system refuses, or the program is ending.
                handle.settle(problem=problem)
            return handle

    def close(self) -> None:
        """Cancel the running work, and wait for its threads to end (P4); repeated calls have no effect.

        Cost: the time in which the work notices, at most `END_SECONDS`; an event is logged if that is too
        short.
        """
        self._cancel.set()
        with self._lock:  # Callers of `begin` now see that all is cancelled.
            running = [each for each in self._threads if each.is_alive()]
        end = time.monotonic() + END_SECONDS
        for thread in running:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in running):
            events.emit("recall_left_running")
        self._cancel.close()


def begin_or_log(prefetch: Prefetch, work: Work[T]) -> Handle[T] | None:
    """Start some work where errors are not allowed.

    Returns:
        None: the process has no free descriptor; an event is logged.
    """
    try:
        return prefetch.begin(work)
    except OSError as problem:
        events.emit_defect("recall_not_begun", problem)
        return None
