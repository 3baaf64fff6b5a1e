"""The core that serves one home on a node: it answers the routes, and runs the home's tasks in turns.

In a turn, a node runs the pending tasks of one home for about two seconds. This module is separate from
`node`, which serves all homes.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from muniment import events
from muniment.agent.model import Model
from muniment.cancelling import Cancel
from muniment.errors import DeadlineExceeded, LeaseLost, MunimentError
from muniment.fleet import lease
from muniment.fleet.postgres import HomeLedger
from muniment.fleet.queue import TurnQueue
from muniment.fleet.working_copies import CopyOptions, OpenCopy, WorkingCopy
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Trust
from muniment.operations.job_context import JobContext
from muniment.server import lane_tasks
from muniment.server.contract import HttpProblem
from muniment.server.core import ServedCore, ServedWorkspace
from muniment.server.lane import Lane, SubmitResult
from muniment.server.lane_tasks import NewTask
from muniment.server.recalls import Recalls
from muniment.server.runner import LaneRunner
from muniment.server.stream import Stream
from muniment.server.tokens import Principal, Tokens
from muniment.server.work import Metrics, TaskExecutor, Workspace
from muniment.server.writer import ChangeWriter
from muniment.store import tasks
from muniment.store.database import Ledger
from muniment.store.state import LedgerState, compute_shared_root_key
from muniment.store.tasks import OWNER, Originator

if TYPE_CHECKING:
    from muniment.recall.recaller import Recaller

TURN_SECONDS: Final = 2.0
"""Seconds after which a turn begins no further task, so that other homes get a turn."""

LEASE_WAIT_SECONDS: Final = 30.0
"""Seconds that an operation of the owner waits for another node to release the home."""

TURN_WAIT_SECONDS: Final = 1.0
"""Seconds that a turn waits for another node to release the home, before the turn is queued again."""

RETRY_SECONDS: Final = 5
"""Seconds after which a client may retry a task that was rejected because the queue was full."""

MAX_QUERIES: Final = 8
"""Maximum concurrent queries of one home: half of the node's, because the home's row may be locked for long.
"""

_CANCEL_SECONDS: Final = 5.0
"""Seconds that a cancellation waits for the running task to end."""

T = TypeVar("T")


class HomeNode(Protocol):
    """The parts of a node that its homes use. `FleetNode` implements this interface."""

    metrics: Metrics
    model: Model
    recalls: Recalls
    queue: TurnQueue
    copy_options: CopyOptions
    problem: str | None

    @property
    def is_draining(self) -> bool:
        """Return whether the node is draining: it stops, and accepts no more requests."""

    def compute_keyed_digest(self, text: str) -> str:
        """Return the digest of `text` under the key of the fleet."""

    def build_unavailable_problem(self) -> HttpProblem:
        """Return the error to send while the node accepts no work."""

    async def run_query(self, query: Callable[[], T]) -> T:
        """Run `query` in a thread and return its result."""

    async def run_operation(self, home: str, operation: Callable[[Cancel], T]) -> T:
        """Run an operation in a thread, and return its result. The operation is not a task of the home."""


class HomeCore(ServedCore):
    """The core of a home on a node; the home is its only workspace.

    Args:
        node: the node that serves the home.
        ledger: ledger of the home.
        state: the same ledger, with the key of the home.
        copy: working copy of the home.

    Attributes:
        name: name of the home, which is the name of its workspace.
        is_open: always true: the scopes of a home are always known.
        last_used: time of the last query or turn, on `time.monotonic()`.
    """

    def __init__(self, node: HomeNode, ledger: HomeLedger, state: LedgerState, copy: WorkingCopy) -> None:
        self.name, self.copy, self.last_used = ledger.home, copy, time.monotonic()
        super().__init__(node.metrics)
        self.recalls, self.is_open = node.recalls, True
        self._node, self._ledger_reader, self._ledger, self._state = node, ledger, ledger, state
        self._lane = Lane(state, self.name)
        self._scopes = {
            compute_shared_root_key(state, scope): str(scope) for scope in node.copy_options.policy.scopes
        }
        self._tokens = Tokens(state, compute_digest=node.compute_keyed_digest)
        self._lock, self._turn_lock = threading.Lock(), threading.Lock()
        self._runner: LaneRunner | None = None
        self._stream_lock, self._query_slots = asyncio.Lock(), asyncio.Semaphore(MAX_QUERIES)
        self._stream: Stream | None = None

    # -- callers

    @property
    def is_draining(self) -> bool:
        """Return whether the node is draining: it stops, and accepts no more requests."""
        return self._node.is_draining

    def get_any_workspace(self) -> HomeCore:
        """Return this home, which is its only workspace."""
        return self

    @property
    def key(self) -> str:
        """Return the key of the workspace: the name of the home."""
        return self.name

    def scopes(self) -> dict[str, str]:
        """Return the name of each scope by the key of its root."""
        return self._scopes

    def find_principal(self, digest: str) -> Principal | None:
        """Return the principal of the token with this digest, or None. Blocks, so call it in a thread."""
        for name, trust, clients in self._ledger.rows(
            "SELECT name, trust, clients FROM token WHERE digest = ?", (digest,)
        ):
            client_ids = None if name == OWNER else frozenset(json.loads(clients))
            return Principal(name, Trust(trust), client_ids, digest, self.name)
        return None

    async def is_still_valid(self, principal: Principal) -> bool:
        """Return whether the token of a principal is still valid: not revoked and not replaced."""
        return await self._run_query(partial(self.find_principal, principal.digest)) is not None

    async def list_principals(self) -> tuple[Principal, ...]:
        """Return the principals of all tokens of the home."""
        return await self._run_query(self._tokens.list_principals)

    async def workspace(self, unsafe_name: str | None) -> HomeCore:
        """Return this home if `unsafe_name` selects it: None, the name of the home, or any absolute path.

        Raises:
            HttpProblem: the name is that of another workspace.
        """
        if unsafe_name not in {None, self.name} and not (unsafe_name or "").startswith("/"):
            raise HttpProblem("untrusted_workspace")
        return self

    # -- tasks

    async def check(self, workspace: ServedWorkspace, kind: str) -> None:
        """Check that the node accepts tasks.

        Raises:
            HttpProblem: the node accepts no work now.
        """
        del workspace, kind
        if self._node.problem is not None:
            raise self._node.build_unavailable_problem()

    async def _submit(
        self, workspace: ServedWorkspace, new_task: NewTask, traceparent: Sequence[str]
    ) -> SubmitResult:
        """Accept a task. If no other task of this home waits, also queue a job that runs its tasks."""
        del workspace, traceparent
        return await self._run_query(partial(self._submit_with_job, new_task))

    def _submit_with_job(self, new_task: NewTask) -> SubmitResult:
        with self._ledger.transaction() as connection:
            submitted = self._lane.submit(new_task)
            if submitted.is_only_pending:
                self._node.queue.defer(connection.raw, self.name)
            return submitted

    async def _cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> None:
        """Cancel a task. The database notifies the node that runs it."""
        del workspace
        await self._run_query(partial(self._lane.cancel, task_id, by))

    # -- memory

    @contextmanager
    def open_recaller(self, deadline: Deadline) -> Iterator[Recaller]:
        """Provide a recaller for the memory as it is in the ledger, for the duration of the block.

        Args:
            deadline: time limit for updating the working copy.

        Raises:
            MunimentError: see `WorkingCopy.open_for_reading`.
        """
        with self.copy.open_for_reading(deadline) as opened:
            yield opened.workspace.get_recaller()

    async def run_in_context(
        self,
        workspace: ServedWorkspace,
        operation: Callable[[JobContext, Cancel], T],
        *,
        can_query_model: bool = False,
        can_write: bool = True,
    ) -> T:
        """Run an operation that is not a task; see `ServedCore.run_in_context`.

        If the operation may write, it runs under the lease of the home.
        """
        del workspace, can_query_model
        return await self._node.run_operation(self.name, partial(self._run_in_context, operation, can_write))

    def _run_in_context(
        self,
        operation: Callable[[JobContext, Cancel], T],
        can_write: bool,  # noqa: FBT001
        cancel: Cancel,
    ) -> T:
        deadline = Deadline(time.monotonic() + LEASE_WAIT_SECONDS, cancel)
        if not can_write:
            with self.copy.open_for_reading(deadline) as opened:
                return operation(opened.context, cancel)
        with self.copy.open_for_writing(deadline) as (_, context):
            return operation(context, cancel)

    # -- turns

    def run_turn(self) -> None:
        """Run the pending tasks of the home, until `TURN_SECONDS` have passed. Runs in a separate thread.

        If tasks remain, add a job for a later turn to the queue.
        """
        self.last_used = time.monotonic()
        deadline = Deadline(time.monotonic() + TURN_WAIT_SECONDS)
        try:
            with self._lock_turn(), self.copy.open_for_writing(deadline) as (opened, context):
                self._drain(opened, context)
            seconds = 0
        except DeadlineExceeded:
            seconds = 1  # The home has a turn here already, or another node has the lease for an operation.
        except LeaseLost:
            seconds = 1
            self.copy.spoil()
        with self._ledger.transaction() as connection:
            if lane_tasks.count_pending(self._ledger, self.name):
                self._node.queue.defer(connection.raw, self.name, seconds)

    @contextmanager
    def _lock_turn(self) -> Iterator[None]:
        """Allow only one turn of the home on this node: a stalled job may be started a second time.

        Raises:
            DeadlineExceeded: another turn of the home is running.
        """
        if not self._turn_lock.acquire(timeout=TURN_WAIT_SECONDS):
            raise DeadlineExceeded("another turn of the home is still running")
        try:
            yield
        finally:
            self._turn_lock.release()

    def _drain(self, opened: OpenCopy, context: JobContext) -> None:
        fenced = Workspace(opened.workspace.path, self.name, context.state, lambda: context)
        work = TaskExecutor(fenced, self._node.model, self.metrics)
        runner = LaneRunner(fenced.lane, _TransactionWriter(context.state.ledger), work)
        fenced.lane.recover()
        with self._lock:
            self._runner = runner
        try:
            if self._node.is_draining:
                runner.interrupt_and_stop()
            runner.drain(TURN_SECONDS)
        finally:
            with self._lock:
                self._runner = None

    def interrupt(self, task_id: str) -> None:
        """Interrupt a cancelled task if it is running on this node."""
        with self._lock:
            runner = self._runner
        if runner is not None:
            with suppress(MunimentError):
                runner.interrupt(lane_tasks.read_task(self._ledger, self.name, task_id))

    def interrupt_and_stop(self) -> None:
        """Begin no further task, and interrupt the running task, which is queued again."""
        with self._lock:
            if self._runner is not None:
                self._runner.interrupt_and_stop()

    def renew_lease(self) -> None:
        """Renew the lease of this node, if it has one, and interrupt running tasks that were cancelled.

        Raises:
            ManagedMemoryUnavailable: the database does not respond.
        """
        leased_ledger = self.copy.leased_ledger
        if leased_ledger is None:
            return
        try:
            lease.renew(leased_ledger, self._node.copy_options.seconds)
        except LeaseLost:
            current_ledger = self.copy.leased_ledger
            if (
                current_ledger is not None and current_ledger.epoch == leased_ledger.epoch
            ):  # Otherwise it was released, and possibly acquired again here.
                events.emit("lease_lost", home=self.name)
                self.copy.spoil()
                self.interrupt_and_stop()
            return
        for task in lane_tasks.list_running(self._ledger, self.name):
            if task.cancelled_by is not None:
                self.interrupt(task.id)

    # -- events

    async def open_stream(self) -> Stream:
        """Return the stream of the home's events; the first call opens it."""
        async with self._stream_lock:
            if self._stream is None:
                span = await self._run_query(partial(tasks.read_range, self._ledger))
                self._stream = Stream(self._ledger, span, self._run_query)
            return self._stream

    @property
    def is_followed(self) -> bool:
        """Return whether a client waits for events of the home."""
        return self._stream is not None and self._stream.is_followed

    def close_stream(self) -> None:
        """Close the stream of events, which only followers need; a current follower reconnects."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def wake(self) -> None:
        """Wake the stream, so that it reads new events of the home, from any node."""
        if self._stream is not None:
            self._stream.wake()

    def recheck_permissions(self) -> None:
        """Check immediately whether each follower still may follow, because a token may have been revoked."""
        if self._stream is not None:
            self._stream.recheck_permissions()

    def disconnect_followers(self) -> None:
        """Disconnect all clients that follow or wait for events."""
        if self._stream is not None:
            self._stream.close()

    async def _run_query(self, query: Callable[[], T]) -> T:
        """Run `query` in a thread, because the database is on another machine, and return its result."""
        self.last_used = time.monotonic()
        async with self._query_slots:
            return await self._node.run_query(query)


class _TransactionWriter(ChangeWriter):
    """Runs each change in a separate transaction: PostgreSQL groups commits itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """Run `change` in a transaction, see `Writer.submit`. The returned future is already done."""
        future: Future[T] = Future()
        try:
            with self._ledger.transaction():
                value = change()
        except MunimentError as error:
            future.set_exception(error)
        else:
            future.set_result(value)
        return future
