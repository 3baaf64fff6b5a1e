"""Carries out the tasks of a lane: one thread, one task at a time.

R1 The next task begins only when the call that carried out the one before has returned, and so when its
worker is gone, however it ended. R2 A task that takes longer than the backstop is cancelled; its own
deadline is a little earlier. R3 One that was cancelled to stop the daemon waits again, as if it had not
been begun. R4 What a task did is put into the ledger before the next begins, in the same transaction;
where that cannot be written, it is tried again until it can, or the daemon stops. A next task that cannot
be begun does not keep it from the ledger. R5 Where the system has no descriptor left, a task waits as if
it had not been begun, and is tried again; the lane goes on. R6 Once no task waits, the ledger's log is
emptied of what was asked. R7 What a task did counts: one that completes although it was cancelled has
completed.
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
from muniment.server.lane_tasks import Ended
from muniment.server.writer import Carrier
from muniment.store.tasks import Originator, QueuedTask

BACKSTOP_SECONDS: Final = 300.0
"""Seconds after which a task is cancelled that did not end by itself; a run has 295."""

RETRY_SECONDS: Final = 1.0
"""Seconds until a ledger that could not be written is tried again."""

Tell = Callable[[Mapping[str, Any]], None]
Work = Callable[[QueuedTask, Cancel, Tell], Ended]
"""Carries out a task until it ends or is cancelled, and tells of its turns; it leaves nothing running."""

_LAST_SECONDS: Final = 5.0
"""Seconds that a task has to end once it is put back: its worker is killed, its socket closed."""

_Reason = Literal["asked", "backstop", "stop"]
_Settle = Callable[[], object]
"""The change of the ledger that says how an attempt ended."""


@dataclass(slots=True)
class _Running:
    """The task that runs.

    Attributes:
        until: second on `time.monotonic()` of its backstop.
        reason: why it was cancelled, if it was; the first one counts.
    """

    task: QueuedTask
    cancel: Cancel
    until: float
    reason: _Reason | None = None

    def interrupt(self, reason: _Reason) -> None:
        self.reason = self.reason or reason
        self.cancel.set()


class LaneRunner:
    """The thread of one lane, or whoever calls `drain`; and one that watches the clock for it.

    Args:
        lane: whose tasks; `recover` was called.
        writer: what changes its ledger.
        work: carries them out.
        backstop: seconds, see R2.
    """

    def __init__(
        self, lane: Lane, writer: Carrier, work: Work, *, backstop: float = BACKSTOP_SECONDS
    ) -> None:
        self._lane, self._writer, self._work, self._backstop = lane, writer, work, backstop
        self._wake, self._stopping, self._over = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_lost, self._until = False, math.inf
        self._asked = 0  # The `seq` of the last task that was cancelled while it ran.
        self._threads = (
            threading.Thread(target=self._run, name=f"lane-{lane.workspace}", daemon=True),
            threading.Thread(target=self._watch, name=f"backstop-{lane.workspace}", daemon=True),
        )

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs: it was started, and has neither stopped nor broken."""
        return self._threads[0].is_alive()

    def start(self) -> None:
        """Begin to carry out tasks."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """A task was accepted."""
        self._wake.set()

    def cancel(self, task_id: str, by: Originator) -> QueuedTask:
        """Cancel a task; of one that runs, the worker is ended, and it is over a moment later.

        Raises:
            NotFound: there is no such task.
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing is cancelled.
            LaneError: the writer was closed. Nothing is cancelled.
        """
        task = self._writer.run(lambda: self._lane.cancel(task_id, by))
        if task.status == "running":
            self.interrupt(task)
        return task

    def interrupt(self, task: QueuedTask) -> None:
        """End the worker of a task that is cancelled while it runs."""
        with self._lock:
            # It may not have come as far as `_begin` yet. Tasks run in the order of `seq`: of two of
            # these, the later one may still run.
            self._asked = max(self._asked, task.seq)
            if self._running is not None and self._running.task.seq == task.seq:
                self._running.interrupt("asked")

    def give_up(self) -> None:
        """Begin no further task, and end the one that runs; it is put back where that can still be told."""
        with self._lock:
            self._stopping.set()
            if self._running is not None:
                self._running.interrupt("stop")

    def drain(self, seconds: float) -> None:
        """Carry out what waits in the calling thread, once.

        Args:
            seconds: after which it begins no further task: others have their turn.

        Raises:
            LeaseLost: another node has the lane; what was done here since does not count.
        """
        self._until = time.monotonic() + seconds
        self._threads[1].start()
        try:
            self._carry_out_all()
        finally:
            self._over.set()
            self._threads[1].join()
        if self._is_lost:
            raise LeaseLost(self._lane.workspace)

    def stop(self, grace: float) -> bool:
        """Begin no further task; whether the one that runs is over. Harmless when repeated.

        Args:
            grace: seconds that it is given to end by itself; then it is put back.
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
                self._wake.clear()  # Before the ledger is looked at: what comes after that sets it again.
                self._carry_out_all()
                if self._stopping.is_set():
                    return
                self._wake.wait(None if self._lane.tidy() else RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001  a thread has nobody else to tell; see `is_alive`
            events.emit_defect("lane_broke", error, workspace=self._lane.workspace)
        finally:
            self._over.set()

    def _carry_out_all(self) -> None:
        """Carry out one task after the other, until none is to be begun."""
        settle: _Settle | None = None
        while (task := self._persist(settle)) is not None:
            settle = self._carry_out(task)

    def _go_on(self, settle: _Settle | None) -> QueuedTask | None:
        """Put an attempt that ended into the ledger, and begin the next task."""
        if settle is not None:
            settle()
        is_over = self._stopping.is_set() or time.monotonic() >= self._until
        return None if is_over else self._lane.claim()

    def _carry_out(self, task: QueuedTask) -> _Settle:
        try:
            cancel = Cancel()
        except OSError as error:
            events.emit("no_descriptor", task_id=task.id, problem=type(error).__name__)
            self._stopping.wait(RETRY_SECONDS)
            return partial(self._lane.requeue, task)
        with cancel:
            running = self._begin(task, cancel)
            if running is None:
                return partial(self._lane.requeue, task)
            failures = self._lane.failures
            ended = self._ended(task, cancel)
            with self._lock:
                self._running = None
        # Where the ledger was away that may be why, or it has committed: another attempt will tell.
        is_doubtful = ended.status == "failed" and self._lane.failures != failures
        if is_doubtful and task.claim < MAX_CLAIMS:
            return partial(self._lane.requeue, task)
        if ended.status == "cancelled" and running.reason == "stop":
            return partial(self._lane.requeue, task)
        if ended.status == "cancelled" and running.reason != "asked":
            code = f"{task.kind}_timeout" if running.reason == "backstop" else f"{task.kind}_failed"
            ended = Ended("failed", error={"code": code})
        return partial(self._lane.finish, task, ended)

    def _begin(self, task: QueuedTask, cancel: Cancel) -> _Running | None:
        """From now on the task can be cancelled; None: there was a `stop`, and it is not begun at all."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._running = _Running(task, cancel, time.monotonic() + self._backstop)
            if self._asked == task.seq:
                self._running.interrupt("asked")
            return self._running

    def _ended(self, task: QueuedTask, cancel: Cancel) -> Ended:
        def tell(data: Mapping[str, Any]) -> None:
            self._writer.submit(lambda: self._lane.tell(task, data)).add_done_callback(_log_untold)

        try:
            return self._work(task, cancel, tell)
        except BaseException as error:  # noqa: BLE001  a defect must end this task, not the lane
            events.emit("task_broke", task_id=task.id, problem=type(error).__name__)
            return Ended("failed", error={"code": f"{task.kind}_failed"})

    def _watch(self) -> None:
        seconds = self._backstop
        while not self._over.wait(seconds):
            seconds = self._overdue()

    def _overdue(self) -> float:
        """Cancel what has run for too long (R2); seconds until that can be so of anything again."""
        with self._lock:
            if self._running is None:
                return self._backstop
            left = self._running.until - time.monotonic()
            if left > 0:
                return left
            self._running.interrupt("backstop")
            return self._backstop

    def _persist(self, settle: _Settle | None) -> QueuedTask | None:
        """Go on, by a change of the ledger that is tried again and again until it holds (R4)."""
        logged: tuple[str, str] | None = None
        while True:
            try:
                return self._writer.run(partial(self._go_on, settle))
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
            # The next task may be what cannot be read. Repeated, it changes nothing (L4).
            if settle is not None:
                with suppress(MunimentError, OSError):  # It was told just now.
                    self._writer.run(settle)
            if self._stopping.wait(RETRY_SECONDS):
                return None


def _log_untold(told: Future[None]) -> None:
    """Log that a turn could not be told; the task goes on."""
    problem = told.exception()
    if problem is not None:
        events.emit("turn_untold", problem=type(problem).__name__)
