"""Run the tasks of a lane in one thread, one task at a time.

R1 The next task begins only after the call for the previous task has returned, and so after its worker has
   ended.
R2 A task that takes longer than a time limit, the backstop, is cancelled. Its own deadline is slightly
   earlier.
R3 A task that was cancelled to stop the daemon waits again, as if it had not been begun.
R4 The outcome of a task is written to the ledger before the next task begins, in the same transaction. If
   that write fails, it is retried until it succeeds or the daemon stops. If the next task cannot be begun,
   the outcome is still written.
R5 If the system has no free file descriptor, the task waits as if it had not been begun and is retried; the
   lane continues.
R6 When no task waits, request data is removed from the ledger's log.
R7 Changes of a task count: a task that completes although it was cancelled has completed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from muniment import events
from muniment.cancelling import Cancel
from muniment.errors import LeaseLost, ManagedMemoryUnavailable, MunimentError
from muniment.server.lane import MAX_CLAIMS, Lane
from muniment.server.lane_tasks import TaskOutcome
from muniment.server.writer import ChangeWriter
from muniment.store.tasks import Originator, QueuedTask

BACKSTOP_SECONDS: Final = 300.0
"""Seconds after which a task that did not end is cancelled (the backstop); the limit of a run itself is 295.
"""

RETRY_SECONDS: Final = 1.0
"""Seconds until a failed write of the ledger is retried."""

Report = Callable[[Mapping[str, Any]], None]
RunTask = Callable[[QueuedTask, Cancel, Report], TaskOutcome]
"""Runs a task until it ends or is cancelled, and reports its turns. It leaves no process running."""

_LAST_SECONDS: Final = 5.0
"""Seconds that a task has to end after it is interrupted: its worker is killed, its connection to the model
closed.
"""

_Reason = Literal["asked", "backstop", "stop"]
_RecordOutcome = Callable[[], object]
"""A change of the ledger that records the outcome of an attempt."""


@dataclass(slots=True)
class _Running:
    """The running task.

    Attributes:
        backstop_at: time on `time.monotonic()` at which the task is cancelled.
        reason: why the task was cancelled; None: it was not. The first reason counts.
    """

    task: QueuedTask
    cancel: Cancel
    backstop_at: float
    reason: _Reason | None = None

    def interrupt(self, reason: _Reason) -> None:
        self.reason = self.reason or reason
        self.cancel.set()


class LaneRunner:
    """Runs the tasks of one lane, in its own thread or in the thread that calls `drain`.

    A second thread cancels tasks that take too long.

    Args:
        lane: the lane; its `recover` was called.
        writer: writes the ledger of the lane.
        run_task: runs a task.
        backstop: seconds after which a running task is cancelled.
    """

    def __init__(
        self, lane: Lane, writer: ChangeWriter, run_task: RunTask, *, backstop: float = BACKSTOP_SECONDS
    ) -> None:
        self._lane, self._writer, self._run_task, self._backstop = lane, writer, run_task, backstop
        self._wake, self._stopping, self._has_ended = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_lost, self._claim_until = False, math.inf
        self._cancelled_seq = 0  # The `seq` of the last task that was cancelled while it ran.
        self._threads = (
            threading.Thread(target=self._run, name=f"lane-{lane.workspace}", daemon=True),
            threading.Thread(target=self._watch, name=f"backstop-{lane.workspace}", daemon=True),
        )

    @property
    def is_alive(self) -> bool:
        """Return whether the thread of the lane runs: it was started, and has neither stopped nor failed."""
        return self._threads[0].is_alive()

    def start(self) -> None:
        """Start the threads, which run the tasks of the lane."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Notify the runner that a task was accepted."""
        self._wake.set()

    def cancel(self, task_id: str, by: Originator) -> QueuedTask:
        """Cancel a task, and return it.

        If the task is running, its worker is ended, and the task is over a moment later.

        Raises:
            NotFound: the task does not exist.
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing was cancelled.
            LaneError: the writer was closed. Nothing was cancelled.
        """
        task = self._writer.run(lambda: self._lane.cancel(task_id, by))
        if task.status == "running":
            self.interrupt(task)
        return task

    def interrupt(self, task: QueuedTask) -> None:
        """Interrupt a task whose cancellation is already recorded in the ledger, if the task is running."""
        with self._lock:
            # The task may not have reached `_mark_running` yet. Tasks run in the order of `seq`: of two of
            # these, the later one may still run.
            self._cancelled_seq = max(self._cancelled_seq, task.seq)
            if self._running is not None and self._running.task.seq == task.seq:
                self._running.interrupt("asked")

    def interrupt_and_stop(self) -> None:
        """Begin no further task, and interrupt the running task. It is queued again, unless it completes."""
        with self._lock:
            self._stopping.set()
            if self._running is not None:
                self._running.interrupt("stop")

    def drain(self, seconds: float) -> None:
        """Run the pending tasks once, in the calling thread.

        Args:
            seconds: time after which no further task begins, so that other lanes get a turn.

        Raises:
            LeaseLost: another node works on the lane now; changes made here after that are void.
        """
        self._claim_until = time.monotonic() + seconds
        self._threads[1].start()
        try:
            self._run_all()
        finally:
            self._has_ended.set()
            self._threads[1].join()
        if self._is_lost:
            raise LeaseLost(self._lane.workspace)

    def stop(self, grace: float) -> bool:
        """Begin no further task, and let the running task end. Repeated calls have no effect.

        Args:
            grace: seconds that the running task has to end; after that it is interrupted and queued again.

        Returns:
            Whether the running task has ended.
        """
        with self._lock:
            self._stopping.set()
        self._wake.set()
        thread = self._threads[0]
        if thread.ident is None:
            return True
        thread.join(grace)
        with self._lock:
            if self._running is not None:
                self._running.interrupt("stop")
        thread.join(_LAST_SECONDS)
        return not thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                self._wake.clear()  # Before the ledger is read: a task that is accepted later sets it again.
                self._run_all()
                if self._stopping.is_set():
                    return
                self._wake.wait(None if self._lane.try_truncate_log() else RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001  the thread has no caller to raise to; see `is_alive`
            events.emit_defect("lane_broke", error, workspace=self._lane.workspace)
        finally:
            self._has_ended.set()

    def _run_all(self) -> None:
        """Run tasks until no task is pending or the runner stops."""
        record_outcome: _RecordOutcome | None = None
        while (task := self._retry_until_recorded(record_outcome)) is not None:
            record_outcome = self._run_attempt(task)

    def _record_and_claim(self, record_outcome: _RecordOutcome | None) -> QueuedTask | None:
        """Record the outcome of the ended attempt, then begin the next task and return it, or None."""
        if record_outcome is not None:
            record_outcome()
        is_over = self._stopping.is_set() or time.monotonic() >= self._claim_until
        return None if is_over else self._lane.claim()

    def _run_attempt(self, task: QueuedTask) -> _RecordOutcome:
        try:
            cancel = Cancel()
        except OSError as error:
            events.emit("no_descriptor", task_id=task.id, problem=type(error).__name__)
            self._stopping.wait(RETRY_SECONDS)
            return partial(self._lane.requeue, task)
        with cancel:
            running = self._mark_running(task, cancel)
            if running is None:
                return partial(self._lane.requeue, task)
            failures = self._lane.failures
            outcome = self._call_run_task(task, cancel)
            with self._lock:
                self._running = None
        # If the ledger was unavailable, that may be the cause, or it has committed: another attempt finds
        # out.
        is_doubtful = outcome.status == "failed" and self._lane.failures != failures
        if is_doubtful and task.claim < MAX_CLAIMS:
            return partial(self._lane.requeue, task)
        if outcome.status == "cancelled" and running.reason == "stop":
            return partial(self._lane.requeue, task)
        if outcome.status == "cancelled" and running.reason != "asked":
            code = f"{task.kind}_timeout" if running.reason == "backstop" else f"{task.kind}_failed"
            outcome = TaskOutcome("failed", error={"code": code})
        return partial(self._lane.finish, task, outcome)

    def _mark_running(self, task: QueuedTask, cancel: Cancel) -> _Running | None:
        """Mark a task as running, so that it can be cancelled; return None if the runner stops."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._running = _Running(task, cancel, time.monotonic() + self._backstop)
            if self._cancelled_seq == task.seq:
                self._running.interrupt("asked")
            return self._running

    def _call_run_task(self, task: QueuedTask, cancel: Cancel) -> TaskOutcome:
        def report(data: Mapping[str, Any]) -> None:
            self._writer.submit(lambda: self._lane.add_event(task, data)).add_done_callback(_log_failed_event)

        try:
            return self._run_task(task, cancel, report)
        except BaseException as error:  # noqa: BLE001  a defect must end this task, not the lane
            events.emit("task_broke", task_id=task.id, problem=type(error).__name__)
            return TaskOutcome("failed", error={"code": f"{task.kind}_failed"})

    def _watch(self) -> None:
        seconds = self._backstop
        while not self._has_ended.wait(seconds):
            seconds = self._cancel_overdue()

    def _cancel_overdue(self) -> float:
        """Cancel a task that has run longer than the backstop; return the seconds until the next check."""
        with self._lock:
            if self._running is None:
                return self._backstop
            left = self._running.backstop_at - time.monotonic()
            if left > 0:
                return left
            self._running.interrupt("backstop")
            return self._backstop

    def _retry_until_recorded(self, record_outcome: _RecordOutcome | None) -> QueuedTask | None:
        """Record an outcome and begin the next task; retry until the change is durable.

        Returns:
            The next task; None if no task waits, the runner stops, or another node works on the lane.
        """
        logged: tuple[str, str] | None = None
        while True:
            try:
                return self._writer.run(partial(self._record_and_claim, record_outcome))
            except LeaseLost:
                self._is_lost = True
                return None
            except (MunimentError, OSError) as error:
                code = error.code if isinstance(error, MunimentError) else "no_descriptor"
                reason = error.reason if isinstance(error, ManagedMemoryUnavailable) else ""
                if logged != (logged := (code, reason)):
                    events.emit(
                        "ledger_unavailable", workspace=self._lane.workspace, code=code, reason=reason
                    )
            # The next task may be the unreadable row. A repetition has no effect (L4).
            if record_outcome is not None:
                with suppress(MunimentError, OSError):  # The error was logged above.
                    self._writer.run(record_outcome)
            if self._stopping.wait(RETRY_SECONDS):
                return None


def _log_failed_event(future: Future[None]) -> None:
    """Log that an event about a turn could not be stored; the task continues."""
    problem = future.exception()
    if problem is not None:
        events.emit("turn_event_failed", problem=type(problem).__name__)
