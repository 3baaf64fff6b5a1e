"""A home, as one node serves it: what routes ask, and the turns of its tasks. Apart: `node` is about all."""

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
from muniment.fleet.copies import CopyTerms, OpenCopy, WorkingCopy
from muniment.fleet.postgres import HomeLedger
from muniment.fleet.queue import TurnQueue
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Trust
from muniment.operations.place import Place
from muniment.server import lane_tasks
from muniment.server.contract import HttpProblem
from muniment.server.core import Recalls, ServedCore, ServedWorkspace
from muniment.server.lane import Lane, Submitted
from muniment.server.lane_tasks import NewTask
from muniment.server.runner import LaneRunner
from muniment.server.stream import Stream
from muniment.server.tokens import Principal, Tokens
from muniment.server.work import Metrics, Work, Workspace
from muniment.server.writer import Carrier
from muniment.store import tasks
from muniment.store.database import Ledger
from muniment.store.state import LedgerState, shared_root_key
from muniment.store.tasks import OWNER, Originator

if TYPE_CHECKING:
    from muniment.recall.recaller import Recaller

TURN_SECONDS: Final = 2.0
"""Seconds after which a turn begins no further task: other homes have theirs."""

LEASE_WAIT_SECONDS: Final = 30.0
"""Seconds that what the owner asks for waits for another node to let go of the home."""

TURN_WAIT_SECONDS: Final = 1.0
"""Seconds that a turn waits for that, before it comes again."""

RETRY_SECONDS: Final = 5
"""Seconds after which a client may try again whose task found the queue full."""

MAX_ASKING: Final = 8
"""Questions of one home to the ledger at once, half of those of the node: it may be locked for long."""

_CANCEL_SECONDS: Final = 5.0
"""Seconds that a cancel waits for the running task to be over."""

T = TypeVar("T")


class HomeNode(Protocol):
    """What the homes of a node share, see `FleetNode`."""

    metrics: Metrics
    model: Model
    recalls: Recalls
    queue: TurnQueue
    terms: CopyTerms
    problem: str | None

    @property
    def is_draining(self) -> bool:
        """Whether the node stops."""

    def keyed(self, text: str) -> str:
        """Return the digest of a text under the key of the fleet."""

    def unavailable(self) -> HttpProblem:
        """Return the error of a node that accepts nothing now."""

    async def asked(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, in a thread."""

    async def carried_out(self, home: str, body: Callable[[Cancel], T]) -> T:
        """Carry out what is no task of a home, in a thread."""


class HomeCore(ServedCore):
    """What a home is asked on a node, which is its own workspace.

    Args:
        node: what all homes of it share.
        ledger: of the home.
        state: the same, with its key.
        copy: its working copy.

    Attributes:
        name: of the home, and of its workspace.
        is_open: whether its scopes are known, as they always are here.
        last_used: on `time.monotonic()`.
    """

    def __init__(self, node: HomeNode, ledger: HomeLedger, state: LedgerState, copy: WorkingCopy) -> None:
        self.name, self.copy, self.last_used = ledger.home, copy, time.monotonic()
        super().__init__(node.metrics)
        self.recalls, self.is_open = node.recalls, True
        self._node, self._reads, self._ledger, self._state = node, ledger, ledger, state
        self._lane = Lane(state, self.name)
        self._scopes = {shared_root_key(state, scope): str(scope) for scope in node.terms.policy.scopes}
        self._tokens = Tokens(state, keyed=node.keyed)
        self._lock, self._turning = threading.Lock(), threading.Lock()
        self._runner: LaneRunner | None = None
        self._following, self._asking = asyncio.Lock(), asyncio.Semaphore(MAX_ASKING)
        self._stream: Stream | None = None

    # -- whoever asks

    @property
    def is_draining(self) -> bool:
        """Whether the node stops."""
        return self._node.is_draining

    def any_workspace(self) -> HomeCore:
        """The one that there is."""
        return self

    @property
    def key(self) -> str:
        """Of the workspace: the name of the home."""
        return self.name

    def scopes(self) -> dict[str, str]:
        """The names of the scopes by the keys of their roots, as far as they are known here."""
        return self._scopes

    def principal(self, digest: str) -> Principal | None:
        """Whose the token of a digest is; in a thread."""
        for name, trust, clients in self._ledger.rows(
            "SELECT name, trust, clients FROM token WHERE digest = ?", (digest,)
        ):
            known = None if name == OWNER else frozenset(json.loads(clients))
            return Principal(name, Trust(trust), known, digest, self.name)
        return None

    async def still_knows(self, principal: Principal) -> bool:
        """Whether a token was not revoked since."""
        return await self._asked(partial(self.principal, principal.digest)) is not None

    async def known(self) -> tuple[Principal, ...]:
        """The tokens of the home."""
        return await self._asked(self._tokens.all)

    async def workspace(self, unsafe_name: str | None) -> HomeCore:
        """The workspace of the home, whatever directory of its own a client works in: none is looked at here.

        Raises:
            HttpProblem: it is named otherwise.
        """
        if unsafe_name not in {None, self.name} and not (unsafe_name or "").startswith("/"):
            raise HttpProblem("untrusted_workspace")
        return self

    # -- tasks

    async def check(self, workspace: ServedWorkspace, kind: str) -> None:
        """See `ServedCore`."""
        del workspace, kind
        if self._node.problem is not None:
            raise self._node.unavailable()

    async def _submit(
        self, workspace: ServedWorkspace, asked: NewTask, traceparent: Sequence[str]
    ) -> Submitted:
        """With its place in the queue."""
        del workspace, traceparent
        return await self._asked(partial(self._submitted, asked))

    def _submitted(self, asked: NewTask) -> Submitted:
        with self._ledger.transaction() as connection:
            submitted = self._lane.submit(asked)
            if submitted.is_alone:
                self._node.queue.defer(connection.raw, self.name)
            return submitted

    async def _cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> None:
        """On whichever node it runs."""
        del workspace
        await self._asked(partial(self._lane.cancel, task_id, by))

    # -- memory

    @contextmanager
    def recalling(self, patience: Patience) -> Iterator[Recaller]:
        """What recalls from the memory as the ledger says it is, until the block ends."""
        with self.copy.reading(patience) as opened:
            yield opened.workspace.recaller()

    async def at(
        self,
        workspace: ServedWorkspace,
        body: Callable[[Place, Cancel], T],
        *,
        is_long: bool = False,
        writes: bool = True,
    ) -> T:
        """See `ServedCore`; under the lease of the home if it writes."""
        del workspace, is_long
        return await self._node.carried_out(self.name, partial(self._at, body, writes))

    def _at(self, body: Callable[[Place, Cancel], T], writes: bool, cancel: Cancel) -> T:  # noqa: FBT001
        patience = Patience(time.monotonic() + LEASE_WAIT_SECONDS, cancel)
        if not writes:
            with self.copy.reading(patience) as opened:
                return body(opened.place, cancel)
        with self.copy.holding(patience) as (_, place):
            return body(place, cancel)

    # -- turns

    def turn(self) -> None:
        """Carry out what waits, as long as it is this node's turn; in a thread of its own.

        Whatever is left is another turn's, of which a job is in the queue by then.
        """
        self.last_used = time.monotonic()
        patience = Patience(time.monotonic() + TURN_WAIT_SECONDS)
        try:
            with self._alone(), self.copy.holding(patience) as (opened, place):
                self._drain(opened, place)
            seconds = 0
        except DeadlineExceeded:
            seconds = 1  # It has its turn already, or another node has it, for what is no task.
        except LeaseLost:
            seconds = 1
            self.copy.spoil()
        with self._ledger.transaction() as connection:
            if lane_tasks.count_pending(self._ledger, self.name):
                self._node.queue.defer(connection.raw, self.name, seconds)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The only turn of the home here: a job that was taken for stalled may come again meanwhile."""
        if not self._turning.acquire(timeout=TURN_WAIT_SECONDS):
            raise DeadlineExceeded("the home has its turn")
        try:
            yield
        finally:
            self._turning.release()

    def _drain(self, opened: OpenCopy, place: Place) -> None:
        fenced = Workspace(opened.workspace.path, self.name, place.state, lambda: place)
        work = Work(fenced, self._node.model, self.metrics)
        runner = LaneRunner(fenced.lane, _InTransactions(place.state.ledger), work)
        fenced.lane.recover()
        with self._lock:
            self._runner = runner
        try:
            if self._node.is_draining:
                runner.give_up()
            runner.drain(TURN_SECONDS)
        finally:
            with self._lock:
                self._runner = None

    def interrupt(self, task_id: str) -> None:
        """End the worker of a task that was cancelled, if it runs here."""
        with self._lock:
            runner = self._runner
        if runner is not None:
            with suppress(MunimentError):
                runner.interrupt(lane_tasks.read_task(self._ledger, self.name, task_id))

    def give_up(self) -> None:
        """Put back what runs here, and begin nothing more."""
        with self._lock:
            if self._runner is not None:
                self._runner.give_up()

    def renew(self) -> None:
        """Have the lease last longer, if there is one, and look whether what runs under it was cancelled.

        Raises:
            ManagedMemoryUnavailable: nobody answers.
        """
        held = self.copy.held
        if held is None:
            return
        try:
            lease.renew(held, self._node.terms.seconds)
        except LeaseLost:
            now = self.copy.held
            if (
                now is not None and now.epoch == held.epoch
            ):  # Else it was let go, and perhaps taken again here.
                events.emit("lease_lost", home=self.name)
                self.copy.spoil()
                self.give_up()
            return
        for task in lane_tasks.running(self._ledger, self.name):
            if task.cancelled_by is not None:
                self.interrupt(task.id)

    # -- events

    async def followed(self) -> Stream:
        """The stream of the home, which is looked at from now on."""
        async with self._following:
            if self._stream is None:
                span = await self._asked(partial(tasks.span, self._ledger))
                self._stream = Stream(self._ledger, span, self._asked)
            return self._stream

    @property
    def is_followed(self) -> bool:
        """Whether anybody waits for what happens in it."""
        return self._stream is not None and self._stream.is_followed

    def rest(self) -> None:
        """Let go of what is only for who waits for what happens in it; who is just being told comes again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def wake(self) -> None:
        """Something happened in the home, on some node."""
        if self._stream is not None:
            self._stream.wake()

    def ask_again(self) -> None:
        """A token of the home may be gone."""
        if self._stream is not None:
            self._stream.ask_again()

    def end_followers(self) -> None:
        """End whoever follows its events or waits for them."""
        if self._stream is not None:
            self._stream.close()

    async def _asked(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, asked in a thread: the database is elsewhere."""
        self.last_used = time.monotonic()
        async with self._asking:
            return await self._node.asked(ask)


class _InTransactions(Carrier):
    """Carries out each change in a transaction of its own: the database groups commits by itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def submit(self, change: Callable[[], T]) -> Future[T]:
        """See `Writer.submit`; done on return."""
        future: Future[T] = Future()
        try:
            with self._ledger.transaction():
                value = change()
        except MunimentError as error:
            future.set_exception(error)
        else:
            future.set_result(value)
        return future
