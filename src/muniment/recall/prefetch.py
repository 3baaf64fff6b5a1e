"""Run work on threads in advance: start it before the result is needed, and never wait for it.

- P1. `Prefetch.begin`, and all methods that return a result or cancel, never wait.
- P2. A result is returned only once.
- P3. Cancelling a handle or its parent also cancels the time limit of the work, which interrupts a query and
  closes the socket of a model. The handle then returns no result. This is not logged as a failure.
- P4. After `Prefetch.close`, no thread runs, and no work starts. Exception: a thread whose work ignores its
  time limit runs until the end, and keeps one descriptor open.

Each piece of work has its own thread, so that work that hangs delays no other.

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
"""Maximum seconds to wait for the threads after cancelling; they need milliseconds, more on a busy disk."""

T = TypeVar("T")
Work = Callable[[Deadline], T]


class Handle(Generic[T]):
    """A piece of work that runs on a thread, created by `Prefetch.begin`. Threads may share it.

    Attributes:
        settled_at: the clock time in seconds when the work finished, failed, or ended after being cancelled;
            None while it runs.
        is_consumed: whether the result was already returned.
    """

    def __init__(self, work: Work[T], cancel: Cancel, parent: Cancel, clock: Callable[[], float]) -> None:
        self._work, self._cancel, self._parent, self._clock = work, cancel, parent, clock
        self._lock = threading.Lock()
        self._result: tuple[T, ...] = ()
        self.settled_at: float | None = None
        self.is_consumed = False

    def take_result(self) -> T | None:
        """Return the result of the work once; never wait.

        Returns:
            None if the work is not finished, failed or was cancelled, or if the result was already returned.
        """
        with self._lock:
            if not self._result or self.is_consumed or self.is_cancelled:
                return None
            self.is_consumed = True
            return self._result[0]

    @property
    def has_failed(self) -> bool:
        """Return whether the work ended without a result."""
        with self._lock:
            return self.settled_at is not None and not self._result

    @property
    def is_cancelled(self) -> bool:
        """Return whether the work or its parent was cancelled."""
        return self._cancel.is_set() or self._parent.is_set()

    def cancel(self) -> None:
        """Cancel the work; repeated calls have no effect."""
        self._cancel.set()

    def run(self) -> None:
        """Run the work and store its result; called on the thread of the handle."""
        try:
            self.settle(self._work(Deadline(float("inf"), self._cancel)))
        except BaseException as problem:  # noqa: BLE001  no caller waits for this thread
            self.settle(problem=problem)

    def settle(self, *result: T, problem: BaseException | None = None) -> None:
        """Store how the work ended: with a result, with an error, or without both if it never started.

        Args:
            result: at most one result.
            problem: the error; logged, unless the work was cancelled.
        """
        try:
            if problem is not None and not self.is_cancelled:
                events.emit_defect("prefetch_failed", problem)
        finally:
            with self._lock:
                self._result, self.settled_at = result, self._clock()
            self._cancel.close()


class Prefetch:
    """Runs work on threads. Threads may share it; close it when done.

    Args:
        clock: returns monotonic seconds.
        parent: a token that cancels all work; the caller closes it.

    Raises:
        OSError: the process has no free descriptor.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, parent: Cancel | None = None) -> None:
        self._clock = clock
        self._cancel = Cancel() if parent is None else parent.child()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self, work: Work[T]) -> Handle[T]:
        """Start some work on a thread, and return a handle for its result.

        If the parent was cancelled before, or this object was closed, the work does not start, and the handle
        is cancelled. If the system has no thread left, the handle has failed.

        Raises:
            OSError: the process has no free descriptor.

        Cost: the start of a thread, about 50 µs; while the work runs, a thread and a descriptor.
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
        """Cancel the running work, and wait until its threads end; repeated calls have no effect.

        Cost: the time until the work notices the cancellation, at most `END_SECONDS`. If threads still run
            then, an event is logged.
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
    """Start some work like `Prefetch.begin`, but do not raise.

    Returns:
        None if the process has no free descriptor; an event is logged.
    """
    try:
        return prefetch.begin(work)
    except OSError as problem:
        events.emit_defect("recall_not_begun", problem)
        return None
