"""Search the memory for entries that help with a message, in dedicated threads.

R1 A response arrives within the sum of `SLOT_WAIT_SECONDS`, `RECALL_SECONDS` and `_LATE_SECONDS`, even if a
   disk hangs. If a recall fails, the response is empty and contains the reason.
R2 At most `MAX_RECALLS` recalls run at the same time. One client's token gets at most half of them, and all
   clients together leave `RECALL_RESERVE` to the owner. A recall waits `SLOT_WAIT_SECONDS` for a free slot,
   then it is rejected as busy.
R3 Entries are returned only after the ledger has recorded that they are injected, or after that write has
   failed.
R4 When the daemon stops, every recall is cancelled, including later ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from muniment import events
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, DeadlineExceeded, MunimentError, build_recall_failure
from muniment.kernel.cancel import Deadline
from muniment.names import RECALL_SECONDS
from muniment.server.contract import ContextQuery, HttpProblem, RecallBody
from muniment.server.tokens import SlotShares
from muniment.server.work import Metrics

if TYPE_CHECKING:
    from muniment.recall.recaller import Recaller
    from muniment.types import Recalled

MAX_RECALLS: Final = 8
"""Maximum concurrent recalls; each takes a millisecond or two, unless a disk or a mount hangs."""

RECALL_RESERVE: Final = 2
"""Slots that all clients together leave to the owner."""

SLOT_WAIT_SECONDS: Final = 1.0
"""Seconds that a recall waits for a free slot; if it gets none, its `Retry-After` has the same value."""

INJECTION_SITE: Final = "daemon"
"""The component that injects entries, as the ledger records it."""

_LATE_SECONDS: Final = 0.5
"""Seconds after its deadline within which a recall must end; after that, the recall counts as hanging."""

_RECALL_END_SECONDS: Final = 1.0
"""Seconds to wait for cancelled recalls to end; they normally need about 50 ms."""


class SlotPool:
    """A pool of slots that are shared between tokens. A caller waits at most `SLOT_WAIT_SECONDS` for a slot.

    A pool belongs to one event loop.

    Args:
        cap: number of slots, as in `SlotShares`.
        reserve: number of slots that all clients together leave to the owner, as in `SlotShares`.
    """

    def __init__(self, cap: int, reserve: int) -> None:
        self._shares, self._released = SlotShares(cap, round(SLOT_WAIT_SECONDS), reserve), asyncio.Event()

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return len(self._shares)

    async def acquire(self, token: str) -> None:
        """Acquire a slot; if all are in use, wait at most `SLOT_WAIT_SECONDS`.

        Args:
            token: share of the caller, see `Principal.share`.

        Raises:
            HttpProblem: no slot became free in time.
        """
        deadline = time.monotonic() + SLOT_WAIT_SECONDS
        while True:
            try:
                self._shares.acquire(token)
            except HttpProblem:
                if time.monotonic() >= deadline:
                    raise
            else:
                return
            with suppress(TimeoutError):  # Then the next attempt raises.
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._released.wait()

    def release(self, token: str) -> None:
        """Release a slot that was acquired with `token`."""
        self._shares.release(token)
        self._released.set()  # Wakes all current waiters,
        self._released.clear()  # but no later ones.

    @asynccontextmanager
    async def use_slot(self, token: str) -> AsyncIterator[None]:
        """Acquire a slot for the duration of the block.

        Args:
            token: share of the caller, see `Principal.share`.

        Raises:
            HttpProblem: no slot became free in time.
        """
        await self.acquire(token)
        try:
            yield
        finally:
            self.release(token)


class RecallSource(Protocol):
    """A memory from which entries can be recalled."""

    def open_recaller(self, deadline: Deadline) -> AbstractContextManager[Recaller]:
        """Return a context manager that provides a recaller for the current memory.

        Args:
            deadline: time limit for opening the memory.

        Raises:
            MunimentError: the memory is not available.
        """


class Recalls:
    """Runs the recalls of a daemon in dedicated threads. Belongs to one event loop.

    Args:
        metrics: records each recall.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(MAX_RECALLS, "recall")
        self._slots = SlotPool(MAX_RECALLS, RECALL_RESERVE)
        self._running: set[asyncio.Future[Recalled]] = set()
        self._cancel = Cancel()

    async def recall(self, workspace: RecallSource, token: str, body: RecallBody | ContextQuery) -> Recalled:
        """Return the entries that help with a query, or the standing context.

        The rules R1 to R4 of this module apply.

        If the recall fails, the result has no entries and contains the error.

        Args:
            workspace: the memory to search.
            token: share of the caller, see `Principal.share`.
            body: the request.

        Raises:
            HttpProblem: no slot is free, or the daemon stops.
        """
        await self._slots.acquire(token)
        deadline = Deadline(time.monotonic() + RECALL_SECONDS, self._cancel)
        work = partial(_run_recall, workspace, body, deadline)
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running.add(running)
        running.add_done_callback(partial(self._release, token))
        await asyncio.wait({running}, timeout=RECALL_SECONDS + _LATE_SECONDS)
        recalled = _convert_outcome(running)
        if isinstance(recalled.error, Cancelled):
            raise HttpProblem("workspace_draining", headers={"Retry-After": "1"})
        if recalled.error is not None:
            self._metrics.record_recall("failed")
        else:
            self._metrics.record_recall("found" if recalled.entries else "abstained")
        return recalled

    async def stop(self) -> bool:
        """Cancel every recall, including later ones; return whether all recalls have ended."""
        self._cancel.set()
        if self._running:
            await asyncio.wait(self._running, timeout=_RECALL_END_SECONDS)
        return not self._running

    def close(self) -> None:
        """Shut down the threads of the recalls. Call this after `stop`; any thread may call it."""
        self._threads.shutdown()
        self._cancel.close()

    def _release(self, token: str, running: asyncio.Future[Recalled]) -> None:
        running.exception()  # Retrieves the exception; if this was too late, no other code does.
        self._running.discard(running)
        self._slots.release(token)


def _run_recall(workspace: RecallSource, body: RecallBody | ContextQuery, deadline: Deadline) -> Recalled:
    """Recall entries in a worker thread, and record them as injected.

    Raises:
        MunimentError: the memory is not available or the recall failed. `_convert_outcome` converts the error
            for the caller.
    """
    from muniment.recall.standing import read_standing

    with workspace.open_recaller(deadline) as recaller:
        match body:
            case RecallBody():
                exclude = recaller.read_keys(body.exclude)
                scopes = None if body.scope is None else [body.scope]
                recalled = recaller.recall(
                    body.query, exclude=exclude, scopes=scopes, limit=body.limit, deadline=deadline
                )
            case ContextQuery():
                tokens = recaller.standing_tokens if body.budget is None else body.budget
                recalled = read_standing(recaller, tokens, deadline)
        if recalled.entries:
            recaller.record(recalled, INJECTION_SITE)
        return recalled


def _convert_outcome(running: asyncio.Future[Recalled]) -> Recalled:
    """Return the result of a recall. If the recall hangs or raised, return an empty result with the error."""
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
            return Recalled(error=build_recall_failure(type(error).__name__))
