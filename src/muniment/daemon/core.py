"""Everything of the daemon but HTTP: the state, the workspaces with their lanes, the stream of events.

C1 What was accepted is durable before `submit` returns; what a process that ended left is recovered before
   anything is begun.
C2 Once draining, nothing more is accepted; what is queued stays in the ledger for the next daemon.

Opened and used on one event loop; jobs run in a thread for each lane. Nothing here waits on the loop but
reads of some rows, over a connection that no writer holds up.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from muniment.agent.model import Model
from muniment.confine.pool import shared_zygote
from muniment.daemon.metrics import Metrics
from muniment.daemon.problems import Problem, problem_of
from muniment.daemon.stream import Stream
from muniment.daemon.tokens import Principal, Tokens, owner_token
from muniment.daemon.work import Work
from muniment.daemon.workspace import Workspace
from muniment.errors import ConfigInvalid, MunimentError
from muniment.job_errors import QueueFull
from muniment.lane import reading
from muniment.lane import runner as lanes
from muniment.lane.lane import Submitted
from muniment.lane.task import Asked, Originator, Task
from muniment.lane.writer import Writer
from muniment.settings import Settings
from muniment.store.database import Database
from muniment.store.state import State

IDLE_SECONDS: Final = 600.0
"""Seconds without a task after which the zygote is ended, which keeps 30 MB."""

RETRY_SECONDS: Final = 5
"""Seconds after which a client may try again whose task found the queue full."""

_CANCEL_SECONDS: Final = 5.0
"""Seconds that a cancel waits for the running task to be over; its worker is killed at once."""


class Core:
    """Open with `open`, close with `close`.

    Attributes:
        epoch: of the events.
        workspaces: by key; the first one is the default.
        is_draining: nothing is accepted any more.
    """

    def __init__(self, settings: Settings, model: Model, *, in_process: bool = False) -> None:
        self._settings, self._model, self._in_process = settings, model, in_process
        self._opened = AsyncExitStack()
        self._runners: dict[str, lanes.Runner] = {}
        self._last_task = time.monotonic()
        self.metrics = Metrics()
        self.workspaces: dict[str, Workspace] = {}
        self.is_draining = False

    async def open(self, directories: tuple[Path, ...]) -> None:
        """Open the state and the workspaces, and begin with what waits.

        Raises:
            ConfigInvalid: a workspace is not there.
            ManagedMemoryUnavailable, StateTooNew: the state cannot be used.
        """
        async with AsyncExitStack() as opened:
            self._loop = asyncio.get_running_loop()
            self.state = opened.enter_context(await asyncio.to_thread(State, self._settings.state))
            self._reads = Database(self.state.ledger.path, synchronous="FULL")
            opened.callback(self._reads.close)
            self.tokens = Tokens(self.state, self._reads)
            self._owner_token = owner_token(self.state.directory)
            self.stream = Stream(self._reads)
            self.writer = Writer(self.state.ledger, committed=self._wake)
            opened.callback(self.writer.close)
            for directory in directories:
                await self._add(directory, opened)
            for task in (self.stream.watch(), self._rest()):
                running = asyncio.create_task(task)
                opened.callback(running.cancel)
            for runner in self._runners.values():
                runner.start()
            self._opened = opened.pop_all()

    async def stop(self, grace: float) -> bool:
        """Accept nothing more, and give what runs `grace` seconds; whether all lanes are at rest then."""
        self.is_draining = True
        runners = self._runners.values()
        with ThreadPoolExecutor(max_workers=max(1, len(runners))) as threads:  # All have the same grace.
            stopping = [self._loop.run_in_executor(threads, runner.stop, grace) for runner in runners]
            return all(await asyncio.gather(*stopping))

    async def close(self) -> None:
        """End every follower, and give everything back; after `stop`."""
        self.stream.close()
        await self._opened.aclose()

    def whose(self, unsafe_token: str) -> Principal | None:
        """Who a token belongs to; None: nobody."""
        return self.tokens.principal(unsafe_token, self._owner_token)

    def workspace(self, unsafe_name: str | None) -> Workspace:
        """The workspace of a key or path; None: the first.

        Raises:
            Problem: the daemon was not started for it.
        """
        if unsafe_name is None:
            return next(iter(self.workspaces.values()))
        for each in self.workspaces.values():
            if unsafe_name in {each.key, str(each.path)}:
                return each
        raise Problem("untrusted_workspace")

    async def check(self, workspace: Workspace, kind: str) -> None:
        """Check that a task could be carried out now.

        Raises:
            Problem: it could not, or the check itself failed.
        """
        try:
            error = workspace.problem() if workspace.is_open else await asyncio.to_thread(workspace.problem)
        except Exception as defect:
            raise Problem(f"{kind}_failed") from defect
        if error is not None:
            raise Problem("managed_memory_unavailable", reason=error.code)

    async def submit(self, workspace: Workspace, asked: Asked) -> Submitted:
        """Accept a task (C1, C2).

        Raises:
            Problem: it is not accepted.
        """
        if self.is_draining:
            raise Problem("workspace_draining", headers={"Retry-After": "1"})
        self._last_task = time.monotonic()
        try:
            submitted = self.writer.submit(lambda: workspace.lane.submit(asked))
            # Also where the client has gone by then: its task is accepted all the same.
            submitted.add_done_callback(lambda _: self._runners[workspace.key].wake())
            return await asyncio.wrap_future(submitted)
        except QueueFull:
            raise Problem("remember_queue_full", headers={"Retry-After": str(RETRY_SECONDS)}) from None
        except MunimentError as error:
            raise problem_of(error) from None

    async def cancel(self, workspace: Workspace, task_id: str, by: Originator) -> Task:
        """Cancel a task; the task as it is once it is over, or after a few seconds.

        Raises:
            NotFound: there is no such task.
            Problem: the ledger cannot be written.
        """
        try:
            await asyncio.to_thread(self._runners[workspace.key].cancel, task_id, by)
        except MunimentError as error:
            raise problem_of(error) from None
        return await self.wait(workspace, task_id, _CANCEL_SECONDS)

    async def wait(self, workspace: Workspace, task_id: str, seconds: float) -> Task:
        """A task once it is over, or as it is after `seconds`.

        Raises:
            NotFound: there is no such task, or no more.
        """
        deadline = time.monotonic() + seconds
        while True:
            task = reading.task(self._reads, workspace.key, task_id)
            left = deadline - time.monotonic()
            if task.is_over or left <= 0 or self.stream.is_closed:
                return task
            await self.stream.changed(left)

    @property
    def dead_lanes(self) -> tuple[str, ...]:
        """Keys of the workspaces whose lane a defect ended: what waits there does so for the next start."""
        return tuple(key for key, runner in self._runners.items() if not runner.is_alive)

    def find(self, workspace: Workspace, task_id: str) -> Task | None:
        """A task of a workspace; None: there is none of that id."""
        return reading.find(self._reads, workspace.key, task_id)

    def tasks(self, workspace: Workspace, *, before: int | None) -> tuple[Task, ...]:
        """The tasks of a workspace, the newest first; see `lane.reading.tasks`."""
        return reading.tasks(self._reads, workspace.key, before=before)

    async def _add(self, directory: Path, opened: AsyncExitStack) -> None:
        workspace = Workspace(directory, self._settings, self.state, in_process=self._in_process)
        if workspace.key in self.workspaces:
            raise ConfigInvalid(f"the workspace {workspace.path} is named twice")
        opened.callback(workspace.close)
        await asyncio.to_thread(workspace.problem)  # What cannot be opened now is tried again for each task.
        await asyncio.wrap_future(self.writer.submit(workspace.lane.recover))
        work = Work(workspace, self._model, self.metrics)
        self._runners[workspace.key] = lanes.Runner(workspace.lane, self.writer, work)
        self.workspaces[workspace.key] = workspace
        self.metrics.watch_pending(
            workspace.key, lambda: sum(reading.pending(self._reads, workspace.key).values())
        )

    def _wake(self) -> None:
        """Have the stream look; called by the writer's thread."""
        self._loop.call_soon_threadsafe(self.stream.wake)

    async def _rest(self) -> None:
        """End the zygote whenever nothing was asked for a while, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 10)
            if time.monotonic() - self._last_task >= IDLE_SECONDS:
                await asyncio.to_thread(shared_zygote().rest)
