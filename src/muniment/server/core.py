"""The daemon without HTTP: its state, its workspaces with their lanes, and the stream of events.

C1 An accepted task is durable before `submit` returns. Tasks that an ended process left unfinished are
   recovered before any task begins.
C2 While draining, the core accepts no task; queued tasks stay in the ledger for the next daemon.

The core is opened and used on one event loop; jobs run in a separate thread for each lane. The only blocking
calls on the loop read a few rows, over a connection that no writer blocks.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from muniment.agent.model import Model
from muniment.cancelling import Cancel, await_completion
from muniment.errors import (
    ConfigInvalid,
    MunimentError,
    NotFound,
    QueueFull,
)
from muniment.events import TraceParents
from muniment.opening import open_state
from muniment.operations.job_context import JobContext
from muniment.sandbox.fence.pool import get_shared_zygote
from muniment.server import lane_tasks
from muniment.server.contract import ContextQuery, HttpProblem, RecallBody, convert_error
from muniment.server.lane import SubmitResult
from muniment.server.lane_tasks import NewTask
from muniment.server.page.access import PAGE_PACKAGES, PageAccess
from muniment.server.recalls import Recalls, RecallSource, SlotPool
from muniment.server.runner import LaneRunner
from muniment.server.stream import Stream
from muniment.server.tokens import Principal, Tokens, load_owner_token
from muniment.server.work import Metrics, TaskExecutor, Workspace, create_workspace
from muniment.server.writer import Writer
from muniment.settings import Settings
from muniment.store import tasks
from muniment.store.database import Ledger
from muniment.store.tasks import Originator, QueuedTask
from muniment.store.watching import get_watcher
from muniment.workspaces.projects import find_project

if TYPE_CHECKING:
    from muniment.types import Recalled


IDLE_SECONDS: Final = 600.0
"""Seconds without a task after which the zygote is stopped, because it uses 30 MB."""

RETRY_SECONDS: Final = 5
"""Seconds after which a client may retry if its request was rejected because too many were pending."""

_CANCEL_SECONDS: Final = 5.0
"""Seconds that a cancellation waits for the running task to end; the task's worker is killed immediately."""

_OWNER_SECONDS: Final = 5.0
"""Seconds to wait for cancelled operations of the owner to end."""

MAX_READS: Final = 4
"""Maximum concurrent reads for clients (entries, MCP and tasks); further reads wait for a slot."""

_READ_RESERVE: Final = 1
"""Read slots that all clients together leave to the owner."""

MAX_OWNER_OPERATIONS: Final = 8
"""Maximum concurrent operations of the owner; each may wait a minute for the locks of its roots."""

MAX_LONG_OPERATIONS: Final = 4
"""A long operation, which queries a model, may start only if fewer operations than this are running. The
other slots stay free for short operations.
"""

_THREAD_END_SECONDS: Final = 2.0
"""Seconds to wait for the threads to end; they need longer only if a disk or a mount hangs."""

FIND_SECONDS: Final = 1.0
"""Time limit in seconds for looking up a path from a client; it takes less than one millisecond."""

_FINDERS: Final = 2
"""Threads that only look up the paths of clients: if a mount hangs, no other thread hangs."""

_THREADS: Final = 8
"""Threads for operations that take milliseconds, unless a disk or a mount hangs."""

T = TypeVar("T")


def _find_project_key(home: Path, unsafe_path: str, served_key: str = "") -> str:
    """Return the key of the project that contains a directory.

    Returns an empty string if the project is neither bound nor has the key `served_key`.
    """
    try:
        found = find_project(home, Path(unsafe_path))
    except ConfigInvalid:
        return ""
    return found.key if found.is_bound or found.key == served_key else ""


class ServedWorkspace(RecallSource, Protocol):
    """The interface of a workspace for routes."""

    @property
    def key(self) -> str:
        """Return the key of the workspace."""

    @property
    def is_open(self) -> bool:
        """Return whether the scopes of the workspace are known."""

    def scopes(self) -> Mapping[str, str]:
        """Return the name of each scope by the key of its root; empty if the scopes are unknown."""


class HookEndpoint(Protocol):
    """Answers the events of coding tools. `routes` imports the implementation by name."""

    def close(self) -> None:
        """Wait for the running answer, and close all memories."""


class McpEndpoint(Protocol):
    """The MCP sessions of a daemon. `routes` imports the implementation by name."""

    async def stop(self) -> None:
        """End every MCP session and stream."""


class ServedCore:
    """The interface for routes. A daemon implements it for its workspaces, a fleet node for each home.

    This base class serves the operator of a fleet node, who has no workspace on the node.

    Attributes:
        metrics: the counters.
        recalls: the recalls of clients; set once the core is open.
        mcp: the MCP sessions; set after the first request for one.
        hooks: answers the events of coding tools; set after the first event.
        open_paths: paths that need no token.
        workspaces: the workspaces of this machine, by key.
        read_slots: slots for reads of the memory by clients.
    """

    recalls: Recalls
    _ledger_reader: Ledger
    mcp: McpEndpoint | None = None
    hooks: HookEndpoint | None = None
    open_paths: frozenset[str] = frozenset()
    workspaces: Mapping[str, Workspace] = MappingProxyType({})
    _is_draining = False

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.read_slots = SlotPool(MAX_READS, _READ_RESERVE)

    @property
    def is_draining(self) -> bool:
        """Return whether the core is draining: it stops, and accepts no more requests."""
        return self._is_draining

    def get_any_workspace(self) -> ServedWorkspace | None:
        """Return one workspace of the core, or None. All workspaces of a core have the same scopes."""
        return next(iter(self.workspaces.values()), None)

    async def workspace(self, unsafe_name: str | None) -> ServedWorkspace:
        """Return the workspace with the name `unsafe_name`; None selects the only workspace.

        Raises:
            HttpProblem: the workspace does not exist, or the name is None and there are several workspaces.
        """
        del unsafe_name
        raise HttpProblem("untrusted_workspace")

    async def list_problems(self) -> dict[str, str | None]:
        """Return for each workspace, by key, the code of the problem that prevents tasks, or None."""
        return {}

    async def list_principals(self) -> tuple[Principal, ...]:
        """Return the principals of the client tokens."""
        return ()

    async def is_still_valid(self, principal: Principal) -> bool:
        """Return whether the token of a principal is still valid: not revoked and not replaced."""
        return principal.is_owner

    async def create_proof(self, unsafe_name: str, nonce: str, address: str) -> str:
        """Return a proof that the core knows a token, see `Tokens.create_proof`.

        Args:
            unsafe_name: name of the token, as the client sent it.
            nonce: random value from the client.
            address: address that the client connected to.
        """
        raise NotImplementedError

    def open_ui(self) -> tuple[str, str]:
        """Return the URL of the web page and a sign-in code, see `PageAccess.create_code`.

        Raises:
            HttpProblem: the page is not available.
        """
        raise HttpProblem("not_found")

    async def open_stream(self) -> Stream:
        """Return the stream of events.

        Raises:
            HttpProblem: the core has no workspace, and therefore no events.
        """
        raise HttpProblem("untrusted_workspace")

    async def check(self, workspace: ServedWorkspace, kind: str) -> None:
        """Check that a task could run now.

        Args:
            workspace: the workspace of the task.
            kind: kind of the task, which selects the error code if the check itself fails.

        Raises:
            HttpProblem: the task could not run, or the check itself failed.
        """
        raise NotImplementedError

    async def run_in_context(
        self,
        workspace: ServedWorkspace,
        operation: Callable[[JobContext, Cancel], T],
        *,
        can_query_model: bool = False,
        can_write: bool = True,
    ) -> T:
        """Run an operation that is not a task; if its caller is cancelled, cancel the operation.

        Args:
            workspace: the workspace whose `JobContext` the operation receives.
            operation: the operation; it must end early when its `Cancel` is set, for example if the daemon
                stops.
            can_query_model: whether the operation may query a model (see `MAX_LONG_OPERATIONS`).
            can_write: whether the operation may change the memory; ignored if no other machine can change it.

        Raises:
            HttpProblem: the daemon stops, or too many operations are running.
            MunimentError: raised by `operation`, or the memory is not available.
        """
        raise NotImplementedError

    async def recall(
        self, workspace: ServedWorkspace, token: str, body: RecallBody | ContextQuery
    ) -> Recalled:
        """Return the entries of a memory that help with a query, or its standing context.

        See `Recalls.recall`.

        Args:
            workspace: the memory to search.
            token: share of the caller, see `Principal.share`.
            body: the request.

        Raises:
            HttpProblem: the daemon stops, or too many recalls are running.
        """
        self.require_open()
        return await self.recalls.recall(workspace, token, body)

    async def submit(
        self, workspace: ServedWorkspace, new_task: NewTask, traceparent: Sequence[str] = ()
    ) -> SubmitResult:
        """Accept a task: store it durably, so that it will run.

        Args:
            workspace: the workspace.
            new_task: the task.
            traceparent: values of the request's `traceparent` headers.

        Raises:
            HttpProblem: the task is not accepted, for example because the core is draining or its queue is
                full.
        """
        self.require_open()
        try:
            return await self._submit(workspace, new_task, traceparent)
        except QueueFull:
            raise HttpProblem("remember_queue_full", headers={"Retry-After": str(RETRY_SECONDS)}) from None
        except MunimentError as error:
            raise convert_error(error) from None

    async def cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> QueuedTask:
        """Cancel a task. Return the task when it is finished, or in its current state after a few seconds.

        Args:
            workspace: the workspace of the task.
            task_id: id of the task.
            by: the originator of the cancellation.

        Raises:
            NotFound: the task does not exist.
            HttpProblem: the ledger cannot be written.
        """
        try:
            await self._cancel(workspace, task_id, by)
        except NotFound:
            raise
        except MunimentError as error:
            raise convert_error(error) from None
        return await self.wait(workspace, task_id, _CANCEL_SECONDS)

    async def wait(self, workspace: ServedWorkspace, task_id: str, seconds: float) -> QueuedTask:
        """Return a task when it is finished, or in its current state after `seconds`.

        Raises:
            NotFound: the task does not exist or was deleted.
        """
        stream = await self.open_stream()
        deadline = time.monotonic() + seconds
        while True:
            task = await self._run_query(
                partial(lane_tasks.read_task, self._ledger_reader, workspace.key, task_id)
            )
            left = deadline - time.monotonic()
            if task.is_finished or left <= 0 or stream.is_closed:
                return task
            await stream.wait_for_change(left)

    async def find(self, workspace: ServedWorkspace, task_id: str) -> QueuedTask | None:
        """Return a task of a workspace, or None if the id is unknown."""
        return await self._run_query(
            partial(lane_tasks.find_task, self._ledger_reader, workspace.key, task_id)
        )

    async def tasks(self, workspace: ServedWorkspace, *, before: int | None) -> tuple[QueuedTask, ...]:
        """Return the tasks of a workspace, newest first.

        Args:
            workspace: the workspace.
            before: return only tasks with a smaller `seq`; None: no limit.
        """
        return await self._run_query(
            partial(lane_tasks.list_tasks, self._ledger_reader, workspace.key, before=before)
        )

    def require_open(self) -> None:
        """Raise an error if the core is draining.

        Raises:
            HttpProblem: the core is draining.
        """
        if self.is_draining:
            raise HttpProblem("workspace_draining", headers={"Retry-After": "1"})

    async def _submit(
        self, workspace: ServedWorkspace, new_task: NewTask, traceparent: Sequence[str]
    ) -> SubmitResult:
        raise NotImplementedError

    async def _cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> None:
        raise NotImplementedError

    async def _run_query(self, query: Callable[[], T]) -> T:
        """Run `query`, which reads the ledger, on the event loop, and return its result."""
        return query()


class ServingCore(ServedCore, ABC):
    """A core that a `Daemon` opens and closes: the core of one machine, or a node of a fleet.

    Attributes:
        model: the model that files the facts.
        page_access: access to the page.
        settings: the settings of the daemon.
        epoch: id of the series of events, see `Stream`; set once the core is open.
    """

    epoch: str

    def __init__(self, settings: Settings, model: Model) -> None:
        super().__init__(Metrics())
        self.settings, self.model, self.page_access = settings, model, PageAccess()
        self._opened = AsyncExitStack()
        self._operation_threads = ThreadPoolExecutor(MAX_OWNER_OPERATIONS, "owner")
        self._operations: dict[asyncio.Future[Any], Cancel] = {}
        self._last_task = time.monotonic()

    @abstractmethod
    def get_core(self, principal: Principal) -> ServedCore:
        """Return the core that serves `principal`."""

    @abstractmethod
    async def find_principal(self, unsafe_token: str) -> Principal | None:
        """Return the principal of a token, or None if the token is unknown."""

    @abstractmethod
    async def open(self, directories: tuple[Path, ...]) -> None:
        """Start serving the workspaces that contain these directories."""

    @abstractmethod
    async def stop(self, grace: float) -> bool:
        """Stop accepting requests, and give running tasks `grace` seconds to end.

        Returns:
            Whether all tasks and operations have ended.
        """

    @abstractmethod
    def disconnect_followers(self) -> None:
        """Disconnect all clients that follow or wait for events."""

    async def close(self) -> None:
        """Release all resources; call it after `stop`, once no client follows events."""
        await self._opened.aclose()

    async def _run_operation(
        self, operation: Callable[[Cancel], T], on_end: Callable[[], None] = lambda: None
    ) -> T:
        """Run an operation that is not a task in a thread; if its caller is cancelled, cancel the operation.

        Args:
            operation: the operation; it should end early when its `Cancel` is set.
            on_end: called on the event loop when the operation has ended.
        """
        cancel = Cancel()

        def done(future: asyncio.Future[T]) -> None:
            self._operations.pop(future).close()
            on_end()

        future = asyncio.get_running_loop().run_in_executor(self._operation_threads, operation, cancel)
        self._operations[future] = cancel
        future.add_done_callback(done)
        return await await_completion(future, cancel)

    async def _end_idle_zygote(self) -> None:
        """Stop the zygote after each `IDLE_SECONDS` without a task. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 10)
            if time.monotonic() - self._last_task >= IDLE_SECONDS:
                await asyncio.to_thread(get_shared_zygote().stop_if_idle)


class DaemonCore(ServingCore):
    """The core of one machine. Open it with `open`, close it with `close`.

    Attributes:
        workspaces: the workspaces of this machine, by key.
    """

    def __init__(self, settings: Settings, model: Model, *, in_process: bool = False) -> None:
        super().__init__(settings, model)
        self._in_process = in_process
        self._runners: dict[str, LaneRunner] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "core")
        self._finders, self._served_finder = (ThreadPoolExecutor(each, "finder") for each in (_FINDERS, 1))
        self._parents = TraceParents()
        self.workspaces: dict[str, Workspace] = {}

    async def open(self, directories: tuple[Path, ...]) -> None:
        """Open the state and the workspaces of `directories`, and start the pending tasks.

        Raises:
            ConfigInvalid: a workspace does not exist, or is listed twice.
            ManagedMemoryUnavailable, StateTooNew: the state is not available.
        """
        async with AsyncExitStack() as opened:
            self._loop = asyncio.get_running_loop()
            self.recalls = Recalls(self.metrics)
            opened.push_async_callback(self._end_threads)
            self.state = opened.enter_context(await asyncio.to_thread(open_state, self.settings))
            self._ledger_reader = self.state.open_reader()
            opened.callback(self._ledger_reader.close)
            self.tokens = Tokens(self.state, self._ledger_reader)
            self._owner_token = load_owner_token(self.state.directory)
            self.stream = Stream(self._ledger_reader, tasks.read_range(self._ledger_reader))
            self.epoch = self.stream.epoch
            self.writer = Writer(self.state.ledger, on_commit=self._wake_stream)
            opened.callback(self.writer.close)
            for directory in directories:
                await self._add_workspace(directory, opened)
            opened.callback(get_watcher(self.state).close)  # Close this before the roots that it watches.
            for task in (self.stream.watch(), self._end_idle_zygote()):
                running = asyncio.create_task(task)
                opened.callback(running.cancel)
            for runner in self._runners.values():
                runner.start()
            self._opened = opened.pop_all()

    async def stop(self, grace: float) -> bool:
        """Stop accepting requests, and give running tasks `grace` seconds to end.

        Cancels recalls, and operations of the owner that still wait. Operations that have begun to write
        finish.

        Returns:
            Whether all tasks, recalls and operations have ended.
        """
        self._is_draining = True
        runners = self._runners.values()
        # All runners stop in parallel, with the same grace period.
        with ThreadPoolExecutor(max_workers=max(1, len(runners))) as threads:
            stopping = [self._loop.run_in_executor(threads, runner.stop, grace) for runner in runners]
            at_rest = all(await asyncio.gather(*stopping))
        for cancel in self._operations.values():
            cancel.set()
        has_recalled = await self.recalls.stop()
        if self._operations:
            await asyncio.wait(self._operations, timeout=_OWNER_SECONDS)
        return at_rest and has_recalled and not self._operations

    def disconnect_followers(self) -> None:
        """Disconnect all clients that follow or wait for events."""
        self.stream.close()

    async def find_principal(self, unsafe_token: str) -> Principal | None:
        """Return the principal of a token, or None if the token is unknown."""
        return self.tokens.find_principal(unsafe_token, self._owner_token)

    async def is_still_valid(self, principal: Principal) -> bool:
        """Return whether the token of a principal is still valid: not revoked and not replaced."""
        return principal.is_owner or principal in self.tokens.list_principals()

    def get_core(self, principal: Principal) -> DaemonCore:
        """Return this core, which serves every principal."""
        del principal
        return self

    async def list_problems(self) -> dict[str, str | None]:
        """Return for each workspace, by key, the code of the problem that prevents tasks, or None."""
        found = await asyncio.gather(*(self.find_problem_code(each) for each in self.workspaces.values()))
        return dict(zip(self.workspaces, found, strict=True))

    def open_ui(self) -> tuple[str, str]:
        """Return the URL of the web page and a sign-in code, see `PageAccess.create_code`.

        Raises:
            HttpProblem: the packages of the page are not installed, or `PageAccess.create_code` failed.
        """
        if None in map(importlib.util.find_spec, PAGE_PACKAGES):
            raise HttpProblem("ui_not_installed")
        return self.page_access.create_code()

    async def list_principals(self) -> tuple[Principal, ...]:
        """Return the principals of the client tokens."""
        return self.tokens.list_principals()

    async def create_proof(self, unsafe_name: str, nonce: str, address: str) -> str:
        """Return a proof that the daemon knows a token, see `Tokens.create_proof`."""
        return self.tokens.create_proof(unsafe_name, nonce, address, self._owner_token)

    async def workspace(self, unsafe_name: str | None) -> Workspace:
        """Return the served workspace that `unsafe_name` identifies.

        Args:
            unsafe_name: key of the workspace, or an absolute path in any checkout of its project; None: the
                only workspace.

        Raises:
            HttpProblem: the daemon does not serve the workspace, or the name is None and there are several.
        """
        if unsafe_name is None and len(self.workspaces) > 1:
            raise HttpProblem("workspace_required")
        for each in self.workspaces.values():
            if unsafe_name in {None, each.key}:
                return each
        served = next((each.key for each in self.workspaces.values() if str(each.path) == unsafe_name), "")
        found = self.workspaces.get(await self._find_key(unsafe_name or "", served))
        if found is None:
            raise HttpProblem("untrusted_workspace")
        return found

    async def _find_key(self, unsafe_path: str, served_key: str) -> str:
        """Return the key of the project that contains a directory.

        Returns an empty string if no known project contains it, or if the lookup timed out.

        Args:
            unsafe_path: the directory, as a client sent it.
            served_key: key of the served workspace at this path, or an empty string. Its directory may
                contain a different repository by now. A separate thread looks it up, which the paths of other
                clients cannot block.
        """
        if not os.path.isabs(unsafe_path):  # noqa: PTH117  as a text
            return ""
        lookup = partial(_find_project_key, self.settings.home, unsafe_path, served_key)
        finders = self._served_finder if served_key else self._finders
        try:
            return await asyncio.wait_for(self._loop.run_in_executor(finders, lookup), FIND_SECONDS)
        except TimeoutError:
            return ""

    async def check(self, workspace: ServedWorkspace, kind: str) -> None:
        """Check that a task could run now; see `ServedCore.check`."""
        try:
            reason = await self.find_problem_code(workspace)
        except Exception as defect:
            raise HttpProblem(f"{kind}_failed") from defect
        if reason is not None:
            raise HttpProblem("managed_memory_unavailable", reason=reason)

    async def find_problem_code(self, workspace: ServedWorkspace) -> str | None:
        """Return the code of the problem that prevents tasks of a workspace, or None if tasks can run."""
        if self.stream.is_lost:
            return "ledger_gone"
        if not self._runners[workspace.key].is_alive:
            return "lane_dead"
        error = await self._run_in_thread(self.workspaces[workspace.key].problem)
        return None if error is None else error.code

    async def run_in_context(
        self,
        workspace: ServedWorkspace,
        operation: Callable[[JobContext, Cancel], T],
        *,
        can_query_model: bool = False,
        can_write: bool = True,
    ) -> T:
        """Run an operation that is not a task; see `ServedCore.run_in_context`."""
        del can_write
        self.require_open()
        if len(self._operations) >= (MAX_LONG_OPERATIONS if can_query_model else MAX_OWNER_OPERATIONS):
            raise HttpProblem("busy", headers={"Retry-After": str(RETRY_SECONDS)})
        open_context = self.workspaces[workspace.key].open_context
        return await self._run_operation(lambda cancel: operation(open_context(), cancel))

    async def _submit(
        self, workspace: ServedWorkspace, new_task: NewTask, traceparent: Sequence[str]
    ) -> SubmitResult:
        self._last_task = time.monotonic()
        submitted = self.writer.submit(lambda: self._submit_to_lane(workspace.key, new_task, traceparent))
        # Also if the client has disconnected by then: its task is accepted anyway.
        submitted.add_done_callback(lambda _: self._runners[workspace.key].wake())
        return await asyncio.wrap_future(submitted)

    def _submit_to_lane(self, key: str, new_task: NewTask, traceparent: Sequence[str]) -> SubmitResult:
        submitted = self.workspaces[key].lane.submit(new_task)
        if not submitted.is_repeated:
            self._parents.store(submitted.task.id, traceparent)  # Before a runner can read the task.
        return submitted

    async def _cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> None:
        await self._run_in_thread(lambda: self._runners[workspace.key].cancel(task_id, by))

    async def open_stream(self) -> Stream:
        """Return the stream of events."""
        return self.stream

    async def _add_workspace(self, directory: Path, opened: AsyncExitStack) -> None:
        workspace = create_workspace(directory, self.settings, self.state, in_process=self._in_process)
        if (existing := self.workspaces.get(workspace.key)) is not None:
            if existing.path == workspace.path:
                raise ConfigInvalid(f"duplicate workspace {workspace.path}: list it once")
            return  # Another worktree of the same clone, with the same memory.
        opened.callback(workspace.close)
        await self._run_in_thread(workspace.problem)  # If it cannot be opened now, each task tries again.
        await asyncio.wrap_future(self.writer.submit(workspace.lane.recover))
        work = TaskExecutor(workspace, self.model, self.metrics, self._parents)
        self._runners[workspace.key] = LaneRunner(workspace.lane, self.writer, work)
        self.workspaces[workspace.key] = workspace
        self.metrics.watch_pending(
            workspace.key, lambda: sum(lane_tasks.count_pending(self._ledger_reader, workspace.key).values())
        )

    async def _run_in_thread(self, query: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, query)

    async def _end_threads(self) -> None:
        """Wait for the threads to end, with a time limit: a hanging thread must not block the shutdown."""
        ended = asyncio.Event()

        def end() -> None:
            for pool in (self._threads, self._operation_threads, self._finders, self._served_finder):
                pool.shutdown()
            self.recalls.close()
            with suppress(RuntimeError):  # The loop was closed in the meantime.
                self._loop.call_soon_threadsafe(ended.set)

        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _THREAD_END_SECONDS)
            ending.join()

    def _wake_stream(self) -> None:
        """Wake the stream, so that it reads new events. The thread of the writer calls this."""
        self._loop.call_soon_threadsafe(self.stream.wake)
