"""Carries out the tasks of a lane: one thread, one task at a time.

R1 The next task begins only when the call that carried out the one before has returned, and so when its
   worker is gone, however it ended.
R2 A task that takes longer than the backstop is cancelled; its own deadline is a little earlier.
R3 One that was cancelled to stop the daemon waits again, as if it had not been begun.
R4 What a task did is put into the ledger before the next begins; where that cannot be written, it is tried
   again until it can, or the daemon stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from muniment import events
from muniment.confine.cancel import Cancel
from muniment.errors import MunimentError
from muniment.lane.lane import Lane
from muniment.lane.task import Ended, Originator, Task
from muniment.lane.writer import Writer

BACKSTOP_SECONDS: Final = 300.0
"""Seconds after which a task is cancelled that did not end by itself; a run has 295."""

RETRY_SECONDS: Final = 1.0
"""Seconds until a ledger that could not be written is tried again."""

Tell = Callable[[Mapping[str, Any]], None]
Work = Callable[[Task, Cancel, Tell], Ended]
"""Carries out a task until it ends or is cancelled, and tells of its turns; it leaves nothing running."""

_LAST_SECONDS: Final = 5.0
"""Seconds that a task has to end once it is put back: its worker is killed, its socket closed."""

_Reason = Literal["asked", "backstop", "stop"]


class Runner:
    """The thread of one lane.

    Args:
        lane: whose tasks.
        writer: what changes its ledger.
        work: carries them out.
        backstop: seconds, see R2.
    """

    def __init__(self, lane: Lane, writer: Writer, work: Work, *, backstop: float = BACKSTOP_SECONDS) -> None:
        self._lane, self._writer, self._work, self._backstop = lane, writer, work, backstop
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._running: tuple[Task, Cancel] | None = None
        self._reason: _Reason | None = None
        self._thread = threading.Thread(target=self._run, name=f"lane-{lane.workspace}", daemon=True)

    def start(self) -> None:
        """Begin to carry out tasks."""
        self._thread.start()

    def wake(self) -> None:
        """A task was accepted."""
        self._wake.set()

    def cancel(self, task_id: str, by: Originator) -> Task:
        """Cancel a task; of one that runs, the worker is ended, and it is over a moment later.

        Raises:
            NotFound: there is no such task.
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing is cancelled.
        """
        task = self._writer.run(lambda: self._lane.cancel(task_id, by))
        self._interrupt("asked", task_id)
        return task

    def stop(self, grace: float) -> bool:
        """Begin no further task; whether the one that runs is over.

        Args:
            grace: seconds that it is given to end by itself; then it is put back.
        """
        self._stopping.set()
        self._wake.set()
        self._thread.join(grace)
        self._interrupt("stop")
        self._thread.join(_LAST_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            task = self._persist(self._lane.claim)
            if task is not None:
                self._carry_out(task)
            else:
                self._wake.wait()

    def _carry_out(self, task: Task) -> None:
        with Cancel() as cancel:
            with self._lock:
                self._running, self._reason = (task, cancel), None
            timer = threading.Timer(self._backstop, self._interrupt, ("backstop", task.id))
            timer.daemon = True
            timer.start()
            if self._lane.get(task.id).cancelled_by is not None:  # Between its beginning and now.
                self._interrupt("asked", task.id)
            ended = self._ended(task, cancel)
            timer.cancel()
            reason = self._rest()
        if ended.status == "cancelled" and reason == "stop":
            self._persist(lambda: self._lane.requeue(task))
            return
        if ended.status == "cancelled" and reason != "asked":
            ended = Ended("failed", error={"code": f"{task.kind}_timeout"})
        self._persist(lambda: self._lane.finish(task, ended))

    def _rest(self) -> _Reason | None:
        """Nothing runs any more; why what ran was cancelled, if it was."""
        with self._lock:
            self._running = None
            return self._reason

    def _ended(self, task: Task, cancel: Cancel) -> Ended:
        def tell(data: Mapping[str, Any]) -> None:
            self._writer.submit(lambda: self._lane.tell(task, data))

        try:
            return self._work(task, cancel, tell)
        except Exception as error:  # noqa: BLE001  a defect must end this task, not the lane
            events.emit("task_broke", task_id=task.id, problem=type(error).__name__)
            return Ended("failed", error={"code": f"{task.kind}_failed"})

    def _interrupt(self, reason: _Reason, task_id: str | None = None) -> None:
        """Cancel what runs, if it is that task; the first reason counts."""
        with self._lock:
            if self._running is None or task_id not in {None, self._running[0].id}:
                return
            self._reason = self._reason or reason
            self._running[1].set()

    def _persist(self, change: Callable[[], Task | None]) -> Task | None:
        """Carry out a change of the ledger, again and again until it holds (R4)."""
        while True:
            try:
                return self._writer.run(change)
            except MunimentError as error:
                events.emit("ledger_unavailable", workspace=self._lane.workspace, code=error.code)
                if self._stopping.wait(RETRY_SECONDS):
                    return None
