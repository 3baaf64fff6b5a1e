"""Everything of the daemon but HTTP: the state, the workspaces with their lanes, the stream of events.

C1 What was accepted is durable before `submit` returns; what a process that ended left is recovered before
   anything is begun.
C2 Once draining, nothing more is accepted; what is queued stays in the ledger for the next daemon.

Opened and used on one event loop; jobs run in a thread for each lane. Nothing here waits on the loop but
reads of some rows, over a connection that no writer holds up.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from muniment import events
from muniment.agent.model import Model
from muniment.cancelling import Cancel, until_ended
from muniment.errors import (
    Cancelled,
    ConfigInvalid,
    DeadlineExceeded,
    MunimentError,
    NotFound,
    QueueFull,
    recall_failed,
)
from muniment.events import TraceParents
from muniment.kernel.cancel import Patience
from muniment.opening import open_state
from muniment.operations.place import Place
from muniment.sandbox.fence.pool import shared_zygote
from muniment.server import lane_tasks
from muniment.server.contract import HttpProblem, RecallBody, problem_of
from muniment.server.lane import Submitted
from muniment.server.lane_tasks import NewTask
from muniment.server.page.door import MADE_WITH, PageDoor
from muniment.server.runner import LaneRunner
from muniment.server.stream import Stream
from muniment.server.tokens import Principal, Shares, Tokens, owner_token
from muniment.server.work import Metrics, Work, Workspace, workspace_at
from muniment.server.writer import Writer
from muniment.settings import Settings
from muniment.store import tasks
from muniment.store.database import Ledger
from muniment.store.tasks import Originator, QueuedTask
from muniment.store.watching import looks_of
from muniment.workspaces.projects import find_project

if TYPE_CHECKING:
    from muniment.recall.recaller import Recaller
    from muniment.types import Recalled


# -- recalls -----------------------------------------------------------------------------------------
#
# Recalls: for whoever asks it is looked up what of the memory helps, in threads that nothing else uses.
#
# R1 An answer comes within `PLACE_SECONDS`, `RECALL_SECONDS` and `_LATE_SECONDS`, also where a disk hangs.
# What goes wrong leaves it empty, with the reason in it. R2 At most `MAX_RECALLS` are carried out at once.
# Of these no client's token has more than half, and all of them leave `RESERVE` to the owner; for a place
# one waits `PLACE_SECONDS`, and is busy then. R3 Entries are answered once it is on record that they are
# put before a model, or that could not be written. R4 Once the daemon stops every recall is cancelled,
# those that come later too.

MAX_RECALLS: Final = 8
"""Recalls at once; each takes a millisecond or two, unless a disk or a mount hangs."""

RESERVE: Final = 2
"""Of these, how many all clients together leave to the owner."""

PLACE_SECONDS: Final = 1.0
"""Seconds that a recall waits for others to end: as many as whoever is busy is told to wait."""

RECALL_SECONDS: Final = 5.0
"""Seconds of a recall. What it costs more than milliseconds is to read files that changed, the first time."""

WHERE: Final = "daemon"
"""Where entries are put before a model, in the ledger's words."""

_LATE_SECONDS: Final = 0.5
"""Seconds that a recall has to notice that its time is over; after that it hangs."""

_RECALL_END_SECONDS: Final = 1.0
"""Seconds that recalls have to end once they are cancelled, which takes them some 50 ms."""


class Places:
    """Shares of places for which one waits `PLACE_SECONDS`. Belongs to one event loop.

    Attributes:
        waiting: how many wait for a place.

    Args:
        cap: as of `Shares`.
        reserve: as of `Shares`.
    """

    def __init__(self, cap: int, reserve: int) -> None:
        self._shares, self._left = Shares(cap, round(PLACE_SECONDS), reserve), asyncio.Event()
        self.waiting = 0

    def __len__(self) -> int:
        """How many are taken."""
        return len(self._shares)

    async def take(self, token: str) -> None:
        """Take a place.

        Raises:
            HttpProblem: none was left in time.
        """
        deadline = time.monotonic() + PLACE_SECONDS
        while True:
            try:
                self._shares.take(token)
            except HttpProblem:
                if time.monotonic() >= deadline:
                    raise
            else:
                return
            self.waiting += 1
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._left.wait()
            except TimeoutError:
                pass  # The next look raises.
            finally:
                self.waiting -= 1

    def leave(self, token: str) -> None:
        """Take a place back from who has one."""
        self._shares.leave(token)
        self._left.set()  # Wakes all who wait by now,
        self._left.clear()  # and nobody who comes later.

    @asynccontextmanager
    async def held(self, token: str) -> AsyncIterator[None]:
        """Hold a place within the block. Raises as `take`."""
        await self.take(token)
        try:
            yield
        finally:
            self.leave(token)


class Recalling(Protocol):
    """What can be recalled from."""

    def recalling(self, patience: Patience) -> AbstractContextManager[Recaller]:
        """What recalls from it as it is now, until the block ends.

        Raises:
            MunimentError: it cannot be used.
        """


class Recalls:
    """The recalls of a daemon. Belongs to one event loop.

    Args:
        metrics: told of each.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(MAX_RECALLS, "recall")
        self._places = Places(MAX_RECALLS, RESERVE)
        self._running: set[asyncio.Future[Recalled]] = set()
        self._cancel = Cancel()

    async def recall(self, workspace: Recalling, token: str, body: RecallBody) -> Recalled:
        """What helps with a query (R1 to R4).

        Args:
            workspace: where.
            token: the name of that of whoever asks.
            body: what is asked.

        Raises:
            Problem: there is no place for it, or the daemon stops.
        """
        await self._places.take(token)
        patience = Patience(time.monotonic() + RECALL_SECONDS, self._cancel)
        work = partial(_recalled, workspace, body, patience)
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running.add(running)
        running.add_done_callback(partial(self._leave, token))
        await asyncio.wait({running}, timeout=RECALL_SECONDS + _LATE_SECONDS)
        recalled = _outcome(running)
        if isinstance(recalled.error, Cancelled):
            raise HttpProblem("workspace_draining", headers={"Retry-After": "1"})
        if recalled.error is not None:
            self._metrics.recalled("failed")
        else:
            self._metrics.recalled("found" if recalled.entries else "abstained")
        return recalled

    async def stop(self) -> bool:
        """Cancel every recall (R4); whether all have ended."""
        self._cancel.set()
        if self._running:
            await asyncio.wait(self._running, timeout=_RECALL_END_SECONDS)
        return not self._running

    def close(self) -> None:
        """Give the threads back, once they have ended; after `stop`, in any thread."""
        self._threads.shutdown()
        self._cancel.close()

    def _leave(self, token: str, running: asyncio.Future[Recalled]) -> None:
        running.exception()  # Looked at by nobody else where this came too late.
        self._running.discard(running)
        self._places.leave(token)


def _recalled(workspace: Recalling, body: RecallBody, patience: Patience) -> Recalled:
    """Recall, in a thread.

    Raises:
        MunimentError: as `Workspace.place`; whoever asked is told as `_outcome` says.
    """
    with workspace.recalling(patience) as recaller:
        exclude = recaller.keys_of(body.exclude)
        scopes = None if body.scope is None else [body.scope]
        recalled = recaller.recall(
            body.query, exclude=exclude, scopes=scopes, limit=body.limit, patience=patience
        )
        if recalled.entries:
            recaller.record(recalled, WHERE)
        return recalled


def _outcome(running: asyncio.Future[Recalled]) -> Recalled:
    """What came of a recall: nothing where it hangs, or raised something (R1)."""
    from muniment.types import Recalled

    error = running.exception() if running.done() else DeadlineExceeded("the recall hangs")
    match error:
        case None:
            return running.result()
        case MunimentError():
            events.emit("memory_retrieval_failed", code=error.code)
            return Recalled(error=error)
        case _:
            events.emit_defect("memory_retrieval_failed", error)
            return Recalled(error=recall_failed(type(error).__name__))


# -- core --------------------------------------------------------------------------------------------

IDLE_SECONDS: Final = 600.0
"""Seconds without a task after which the zygote is ended, which keeps 30 MB."""

RETRY_SECONDS: Final = 5
"""Seconds after which a client may try again whose task found the queue full."""

_CANCEL_SECONDS: Final = 5.0
"""Seconds that a cancel waits for the running task to be over; its worker is killed at once."""

_OWNER_SECONDS: Final = 5.0
"""Seconds that what the owner asked for has to end once it is cancelled."""

MAX_READS: Final = 4
"""Reads of the memory for clients at once, of entries, of MCP and of tasks; one waits as for a recall."""

_READ_RESERVE: Final = 1
"""Of these, how many all clients together leave to the owner."""

MAX_OWNER: Final = 8
"""What the owner asks for at once; each may wait a minute for the locks of its roots."""

TRIES: Final = 4
"""Of these, when one may begin that thinks for minutes with a model: others find a place beside it."""

_END_SECONDS: Final = 2.0
"""Seconds that its threads have to end; more is taken only where a disk or a mount hangs."""

FIND_SECONDS: Final = 1.0
"""Seconds that a path may take to be looked up which a client names; it takes less than one millisecond."""

_FINDERS: Final = 2
"""Threads for that, of their own: where a mount hangs they do, and nothing else."""

_THREADS: Final = 8
"""Threads for what takes milliseconds, unless a disk or a mount hangs."""

T = TypeVar("T")


def _key_of(home: Path, unsafe_path: str, known: str = "") -> str:
    """The key of the project around a directory, in a thread; empty: none is bound or `known`."""
    try:
        found = find_project(home, Path(unsafe_path))
    except ConfigInvalid:
        return ""
    return found.key if found.is_bound or found.key == known else ""


class ServedWorkspace(Recalling, Protocol):
    """A workspace as routes know it."""

    @property
    def key(self) -> str:
        """By which it is named."""

    @property
    def is_open(self) -> bool:
        """Whether its scopes are known."""

    def scopes(self) -> Mapping[str, str]:
        """The names of its scopes by the keys of their roots, as far as they are known."""


class McpEndpoint(Protocol):
    """The sessions of the Model Context Protocol of a daemon, which `routes` loads by name."""

    async def stop(self) -> None:
        """End every session and stream."""


class ServedCore:
    """What routes ask: of a daemon for its workspaces, and of a node of a fleet for one home.

    The node is asked by who operates it, who has no workspace there: that is what stands here.

    Attributes:
        metrics: what was counted.
        recalls: what clients are told of the memory; there once it is open.
        mcp: the sessions of MCP, once somebody has asked for one.
        open_paths: what is asked without a token.
        workspaces: those of this machine, by key.
        reads: places for reads of the memory for clients.
    """

    recalls: Recalls
    _reads: Ledger
    mcp: McpEndpoint | None = None
    open_paths: frozenset[str] = frozenset()
    workspaces: Mapping[str, Workspace] = MappingProxyType({})
    _is_draining = False

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.reads = Places(MAX_READS, _READ_RESERVE)

    @property
    def is_draining(self) -> bool:
        """Whether nothing is accepted any more."""
        return self._is_draining

    def any_workspace(self) -> ServedWorkspace | None:
        """One of its workspaces, which all have the same scopes."""
        return next(iter(self.workspaces.values()), None)

    async def workspace(self, unsafe_name: str | None) -> ServedWorkspace:
        """The workspace of a name; None: the only one.

        Raises:
            HttpProblem: there is none, or there are several.
        """
        del unsafe_name
        raise HttpProblem("untrusted_workspace")

    async def problems(self) -> dict[str, str | None]:
        """By workspace, the code of what keeps it from taking tasks now; None: nothing does."""
        return {}

    async def known(self) -> tuple[Principal, ...]:
        """The tokens of clients."""
        return ()

    async def still_knows(self, principal: Principal) -> bool:
        """Whether a token was not revoked since, nor made anew by the same name."""
        return principal.is_owner

    async def proof(self, unsafe_name: str, nonce: str, address: str) -> str:
        """Proof that a token is known, see `Tokens.proof`."""
        raise NotImplementedError

    def open_ui(self) -> tuple[str, str]:
        """The page's URL, and a code to sign in with, see `PageDoor.invite`.

        Raises:
            HttpProblem: there is no page.
        """
        raise HttpProblem("not_found")

    async def followed(self) -> Stream:
        """What happens."""
        raise HttpProblem("untrusted_workspace")

    async def check(self, workspace: ServedWorkspace, kind: str) -> None:
        """Check that a task could be carried out now.

        Raises:
            HttpProblem: it could not, or the check itself failed.
        """
        raise NotImplementedError

    async def at(
        self,
        workspace: ServedWorkspace,
        body: Callable[[Place, Cancel], T],
        *,
        is_long: bool = False,
        writes: bool = True,
    ) -> T:
        """Carry out at the place of a workspace what is no task; it is cancelled with whoever awaits it.

        Args:
            workspace: where.
            body: ends early once cancelled, which it is when the daemon stops.
            is_long: whether it may ask a model (`TRIES`).
            writes: whether it may change the memory; of no account where no other machine does.

        Raises:
            HttpProblem: the daemon stops, or too much is asked for at once.
            MunimentError: as `body`, and where the memory cannot be used.
        """
        raise NotImplementedError

    async def recall(self, workspace: ServedWorkspace, token: str, body: RecallBody) -> Recalled:
        """What of a memory helps; see `Recalls.recall`.

        Raises:
            HttpProblem: the daemon stops, or too much is recalled at once.
        """
        self.require_open()
        return await self.recalls.recall(workspace, token, body)

    async def submit(
        self, workspace: ServedWorkspace, asked: NewTask, traceparent: Sequence[str] = ()
    ) -> Submitted:
        """Accept a task (C1, C2).

        Args:
            workspace: where.
            asked: the task.
            traceparent: the headers of that name.

        Raises:
            HttpProblem: it is not accepted.
        """
        self.require_open()
        try:
            return await self._submit(workspace, asked, traceparent)
        except QueueFull:
            raise HttpProblem("remember_queue_full", headers={"Retry-After": str(RETRY_SECONDS)}) from None
        except MunimentError as error:
            raise problem_of(error) from None

    async def cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> QueuedTask:
        """Cancel a task; the task as it is once it is over, or after a few seconds.

        Raises:
            NotFound: there is no such task.
            HttpProblem: the ledger cannot be written.
        """
        try:
            await self._cancel(workspace, task_id, by)
        except NotFound:
            raise
        except MunimentError as error:
            raise problem_of(error) from None
        return await self.wait(workspace, task_id, _CANCEL_SECONDS)

    async def wait(self, workspace: ServedWorkspace, task_id: str, seconds: float) -> QueuedTask:
        """A task once it is over, or as it is after `seconds`.

        Raises:
            NotFound: there is no such task, or no more.
        """
        stream = await self.followed()
        deadline = time.monotonic() + seconds
        while True:
            task = await self._asked(partial(lane_tasks.read_task, self._reads, workspace.key, task_id))
            left = deadline - time.monotonic()
            if task.is_over or left <= 0 or stream.is_closed:
                return task
            await stream.changed(left)

    async def find(self, workspace: ServedWorkspace, task_id: str) -> QueuedTask | None:
        """A task of a workspace; None: there is none of that id."""
        return await self._asked(partial(lane_tasks.find, self._reads, workspace.key, task_id))

    async def tasks(self, workspace: ServedWorkspace, *, before: int | None) -> tuple[QueuedTask, ...]:
        """The tasks of a workspace, the newest first; see `server.lane_tasks.tasks`."""
        return await self._asked(partial(lane_tasks.tasks, self._reads, workspace.key, before=before))

    def require_open(self) -> None:
        """Refuse what comes while it drains.

        Raises:
            HttpProblem: it does.
        """
        if self.is_draining:
            raise HttpProblem("workspace_draining", headers={"Retry-After": "1"})

    async def _submit(
        self, workspace: ServedWorkspace, asked: NewTask, traceparent: Sequence[str]
    ) -> Submitted:
        raise NotImplementedError

    async def _cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> None:
        raise NotImplementedError

    async def _asked(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, which asks the ledger: here on the loop."""
        return ask()


class ServingCore(ServedCore, ABC):
    """What a `Daemon` opens and closes with itself: that of one machine, or a node of a fleet.

    Attributes:
        model: what files the facts.
        door: the way to the page.
        epoch: of the series of events, see `Stream`; there once it is open.
    """

    epoch: str

    def __init__(self, settings: Settings, model: Model) -> None:
        super().__init__(Metrics())
        self._settings, self.model, self.door = settings, model, PageDoor()
        self._opened = AsyncExitStack()
        self._owner_threads = ThreadPoolExecutor(MAX_OWNER, "owner")
        self._owners: dict[asyncio.Future[Any], Cancel] = {}
        self._last_task = time.monotonic()

    @abstractmethod
    def of(self, principal: Principal) -> ServedCore:
        """What whoever asks is served by."""

    @abstractmethod
    async def whose(self, unsafe_token: str) -> Principal | None:
        """Who a token belongs to; None: nobody."""

    @abstractmethod
    async def open(self, directories: tuple[Path, ...]) -> None:
        """Begin to serve."""

    @abstractmethod
    async def stop(self, grace: float) -> bool:
        """Accept nothing more, and give what runs `grace` seconds; whether everything is at rest then."""

    @abstractmethod
    def end_followers(self) -> None:
        """End whoever follows events or waits for them."""

    async def close(self) -> None:
        """Give everything back; after `stop`, and once nobody follows."""
        await self._opened.aclose()

    async def _carried_out(self, body: Callable[[Cancel], T], ended: Callable[[], None] = lambda: None) -> T:
        """Carry out what is no task, in a thread; it is cancelled with whoever awaits it."""
        cancel = Cancel()

        def done(asked: asyncio.Future[T]) -> None:
            self._owners.pop(asked).close()
            ended()

        asked = asyncio.get_running_loop().run_in_executor(self._owner_threads, body, cancel)
        self._owners[asked] = cancel
        asked.add_done_callback(done)
        return await until_ended(asked, cancel)

    async def _rest(self) -> None:
        """End the zygote whenever nothing was asked for a while, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 10)
            if time.monotonic() - self._last_task >= IDLE_SECONDS:
                await asyncio.to_thread(shared_zygote().rest)


class DaemonCore(ServingCore):
    """Open with `open`, close with `close`.

    Attributes:
        workspaces: by key.
    """

    def __init__(self, settings: Settings, model: Model, *, in_process: bool = False) -> None:
        super().__init__(settings, model)
        self._in_process = in_process
        self._runners: dict[str, LaneRunner] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "core")
        self._finders, self._own_finder = (ThreadPoolExecutor(each, "finder") for each in (_FINDERS, 1))
        self._parents = TraceParents()
        self.workspaces: dict[str, Workspace] = {}

    async def open(self, directories: tuple[Path, ...]) -> None:
        """Open the state and the workspaces, and begin with what waits.

        Raises:
            ConfigInvalid: a workspace is not there.
            ManagedMemoryUnavailable, StateTooNew: the state cannot be used.
        """
        async with AsyncExitStack() as opened:
            self._loop = asyncio.get_running_loop()
            self.recalls = Recalls(self.metrics)
            opened.push_async_callback(self._end_threads)
            self.state = opened.enter_context(await asyncio.to_thread(open_state, self._settings))
            self._reads = self.state.reads()
            opened.callback(self._reads.close)
            self.tokens = Tokens(self.state, self._reads)
            self._owner_token = owner_token(self.state.directory)
            self.stream = Stream(self._reads, tasks.span(self._reads))
            self.epoch = self.stream.epoch
            self.writer = Writer(self.state.ledger, committed=self._wake)
            opened.callback(self.writer.close)
            for directory in directories:
                await self._add(directory, opened)
            opened.callback(looks_of(self.state).close)  # Before the roots that it looks at.
            for task in (self.stream.watch(), self._rest()):
                running = asyncio.create_task(task)
                opened.callback(running.cancel)
            for runner in self._runners.values():
                runner.start()
            self._opened = opened.pop_all()

    async def stop(self, grace: float) -> bool:
        """Accept nothing more, and give what runs `grace` seconds; whether everything is at rest then.

        What the owner asked for is cancelled where it still waits; what it has begun to write it finishes.
        Recalls are cancelled.
        """
        self._is_draining = True
        runners = self._runners.values()
        with ThreadPoolExecutor(max_workers=max(1, len(runners))) as threads:  # All have the same grace.
            stopping = [self._loop.run_in_executor(threads, runner.stop, grace) for runner in runners]
            at_rest = all(await asyncio.gather(*stopping))
        for cancel in self._owners.values():
            cancel.set()
        has_recalled = await self.recalls.stop()
        if self._owners:
            await asyncio.wait(self._owners, timeout=_OWNER_SECONDS)
        return at_rest and has_recalled and not self._owners

    def end_followers(self) -> None:
        """End whoever follows events or waits for them."""
        self.stream.close()

    async def whose(self, unsafe_token: str) -> Principal | None:
        """Who a token belongs to; None: nobody."""
        return self.tokens.principal(unsafe_token, self._owner_token)

    async def still_knows(self, principal: Principal) -> bool:
        """Whether a token was not revoked since, nor made anew by the same name."""
        return principal.is_owner or principal in self.tokens.all()

    def of(self, principal: Principal) -> DaemonCore:
        """What whoever asks is served by."""
        del principal
        return self

    async def problems(self) -> dict[str, str | None]:
        """By workspace, the code of what keeps it from taking tasks now; None: nothing does."""
        found = await asyncio.gather(*(self.reason(each) for each in self.workspaces.values()))
        return dict(zip(self.workspaces, found, strict=True))

    def open_ui(self) -> tuple[str, str]:
        """The page's URL, and a code to sign in with, see `PageDoor.invite`.

        Raises:
            HttpProblem: what the page is made with is not installed; and as `PageDoor.invite`.
        """
        if None in map(importlib.util.find_spec, MADE_WITH):
            raise HttpProblem("ui_not_installed")
        return self.door.invite()

    async def known(self) -> tuple[Principal, ...]:
        """The tokens of clients."""
        return self.tokens.all()

    async def proof(self, unsafe_name: str, nonce: str, address: str) -> str:
        """Proof that a token is known, see `Tokens.proof`."""
        return self.tokens.proof(unsafe_name, nonce, address, self._owner_token)

    async def workspace(self, unsafe_name: str | None) -> Workspace:
        """The workspace of a key, or of a path in another checkout of its project; None: the only one.

        Raises:
            Problem: the daemon was not started for it, or there are several.
        """
        if unsafe_name is None and len(self.workspaces) > 1:
            raise HttpProblem("workspace_required")
        for each in self.workspaces.values():
            if unsafe_name in {None, each.key}:
                return each
        served = next((each.key for each in self.workspaces.values() if str(each.path) == unsafe_name), "")
        found = self.workspaces.get(await self._key_at(unsafe_name or "", served))
        if found is None:
            raise HttpProblem("untrusted_workspace")
        return found

    async def _key_at(self, unsafe_path: str, served: str) -> str:
        """The key of the project that a directory belongs to; empty: of none, or nobody could tell.

        What lies where a workspace is served, by its key, may be another repository by now. It is looked up
        in a thread that nobody else's paths hold up.
        """
        if not os.path.isabs(unsafe_path):  # noqa: PTH117  as a text
            return ""
        look = partial(_key_of, self._settings.home, unsafe_path, served)
        finders = self._own_finder if served else self._finders
        try:
            return await asyncio.wait_for(self._loop.run_in_executor(finders, look), FIND_SECONDS)
        except TimeoutError:
            return ""

    async def check(self, workspace: ServedWorkspace, kind: str) -> None:
        """See `ServedCore`."""
        try:
            reason = await self.reason(workspace)
        except Exception as defect:
            raise HttpProblem(f"{kind}_failed") from defect
        if reason is not None:
            raise HttpProblem("managed_memory_unavailable", reason=reason)

    async def reason(self, workspace: ServedWorkspace) -> str | None:
        """The code of what keeps a workspace from taking tasks now; None: nothing does."""
        if self.stream.is_lost:
            return "ledger_gone"
        if not self._runners[workspace.key].is_alive:
            return "lane_dead"
        error = await self._in_thread(self.workspaces[workspace.key].problem)
        return None if error is None else error.code

    async def at(
        self,
        workspace: ServedWorkspace,
        body: Callable[[Place, Cancel], T],
        *,
        is_long: bool = False,
        writes: bool = True,
    ) -> T:
        """See `ServedCore`."""
        del writes
        self.require_open()
        if len(self._owners) >= (TRIES if is_long else MAX_OWNER):
            raise HttpProblem("busy", headers={"Retry-After": str(RETRY_SECONDS)})
        place = self.workspaces[workspace.key].place
        return await self._carried_out(lambda cancel: body(place(), cancel))

    async def _submit(
        self, workspace: ServedWorkspace, asked: NewTask, traceparent: Sequence[str]
    ) -> Submitted:
        self._last_task = time.monotonic()
        submitted = self.writer.submit(lambda: self._submitted(workspace.key, asked, traceparent))
        # Also where the client has gone by then: its task is accepted all the same.
        submitted.add_done_callback(lambda _: self._runners[workspace.key].wake())
        return await asyncio.wrap_future(submitted)

    def _submitted(self, key: str, asked: NewTask, traceparent: Sequence[str]) -> Submitted:
        submitted = self.workspaces[key].lane.submit(asked)
        if not submitted.repeated:
            self._parents.keep(submitted.task.id, traceparent)  # Before a runner can see the task.
        return submitted

    async def _cancel(self, workspace: ServedWorkspace, task_id: str, by: Originator) -> None:
        await self._in_thread(lambda: self._runners[workspace.key].cancel(task_id, by))

    async def followed(self) -> Stream:
        """See `ServedCore`."""
        return self.stream

    async def _add(self, directory: Path, opened: AsyncExitStack) -> None:
        workspace = workspace_at(directory, self._settings, self.state, in_process=self._in_process)
        if (known := self.workspaces.get(workspace.key)) is not None:
            if known.path == workspace.path:
                raise ConfigInvalid(f"the workspace {workspace.path} is named twice")
            return  # Another worktree of a clone, which has the same memory.
        opened.callback(workspace.close)
        await self._in_thread(workspace.problem)  # What cannot be opened now is tried again for each task.
        await asyncio.wrap_future(self.writer.submit(workspace.lane.recover))
        work = Work(workspace, self.model, self.metrics, self._parents)
        self._runners[workspace.key] = LaneRunner(workspace.lane, self.writer, work)
        self.workspaces[workspace.key] = workspace
        self.metrics.watch_pending(
            workspace.key, lambda: sum(lane_tasks.count_pending(self._reads, workspace.key).values())
        )

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, ask)

    async def _end_threads(self) -> None:
        """Wait for the threads to end; one that hangs holds up neither this nor the end of the loop."""
        ended = asyncio.Event()

        def end() -> None:
            for pool in (self._threads, self._owner_threads, self._finders, self._own_finder):
                pool.shutdown()
            self.recalls.close()
            with suppress(RuntimeError):  # The loop was closed meanwhile.
                self._loop.call_soon_threadsafe(ended.set)

        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _END_SECONDS)
            ending.join()

    def _wake(self) -> None:
        """Have the stream look; called by the writer's thread."""
        self._loop.call_soon_threadsafe(self.stream.wake)
