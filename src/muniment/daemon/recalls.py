"""Recalls: for whoever asks it is looked up what of the memory helps, in threads that nothing else uses.

R1 An answer comes within `PLACE_SECONDS`, `RECALL_SECONDS` and `_LATE_SECONDS`, also where a disk hangs. What
   goes wrong leaves it empty, with the reason in it.
R2 At most `MAX_RECALLS` are carried out at once. Of these no client's token has more than half, and all of
   them leave `RESERVE` to the owner; for a place one waits `PLACE_SECONDS`, and is busy then.
R3 Entries are answered once it is on record that they are put before a model, or that could not be written.
R4 Once the daemon stops every recall is cancelled, those that come later too.
"""

from __future__ import annotations

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from muniment import events
from muniment.confine.cancel import Cancel, Patience
from muniment.daemon.contract import RecallBody
from muniment.daemon.metrics import Metrics
from muniment.daemon.problems import Problem
from muniment.daemon.shares import Shares
from muniment.daemon.workspace import Workspace
from muniment.errors import Cancelled, DeadlineExceeded, MunimentError, RecallFailed

if TYPE_CHECKING:
    from muniment.recall.recaller import Recalled

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

_END_SECONDS: Final = 1.0
"""Seconds that recalls have to end once they are cancelled, which takes them some 50 ms."""


class Recalls:
    """The recalls of a daemon. Belongs to one event loop.

    Args:
        metrics: told of each.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(MAX_RECALLS, "recall")
        self._places, self._left = Shares(MAX_RECALLS, round(PLACE_SECONDS), RESERVE), asyncio.Event()
        self._running: set[asyncio.Future[Recalled]] = set()
        self._cancel = Cancel()

    async def recall(self, workspace: Workspace, token: str, body: RecallBody) -> Recalled:
        """What helps with a query (R1 to R4).

        Args:
            workspace: where.
            token: the name of that of whoever asks.
            body: what is asked.

        Raises:
            Problem: there is no place for it, or the daemon stops.
        """
        await self._take(token)
        patience = Patience(time.monotonic() + RECALL_SECONDS, self._cancel)
        work = functools.partial(_recalled, workspace, body, patience)
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running.add(running)
        running.add_done_callback(functools.partial(self._leave, token))
        await asyncio.wait({running}, timeout=RECALL_SECONDS + _LATE_SECONDS)
        recalled = _outcome(running)
        if isinstance(recalled.error, Cancelled):
            raise Problem("workspace_draining", headers={"Retry-After": "1"})
        if recalled.error is not None:
            self._metrics.recalled("failed")
        else:
            self._metrics.recalled("found" if recalled.entries else "abstained")
        return recalled

    async def stop(self) -> bool:
        """Cancel every recall (R4); whether all have ended."""
        self._cancel.set()
        if self._running:
            await asyncio.wait(self._running, timeout=_END_SECONDS)
        return not self._running

    def close(self) -> None:
        """Give the threads back, once they have ended; after `stop`, in any thread."""
        self._threads.shutdown()
        self._cancel.close()

    async def _take(self, token: str) -> None:
        """Take a place (R2).

        Raises:
            Problem: none was left in time.
        """
        deadline = time.monotonic() + PLACE_SECONDS
        while True:
            try:
                self._places.take(token)
            except Problem:
                if time.monotonic() >= deadline:
                    raise
            else:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._left.wait()

    def _leave(self, token: str, running: asyncio.Future[Recalled]) -> None:
        running.exception()  # Looked at by nobody else where this came too late.
        self._running.discard(running)
        self._places.leave(token)
        self._left.set()  # Wakes all who wait by now,
        self._left.clear()  # and nobody who comes later.


def _recalled(workspace: Workspace, body: RecallBody, patience: Patience) -> Recalled:
    """Recall, in a thread.

    Raises:
        MunimentError: as `Workspace.place`; whoever asked is told as `_outcome` says.
    """
    recaller = workspace.recaller()
    exclude = recaller.keys_of(body.exclude)
    recalled = recaller.recall(body.query, exclude=exclude, limit=body.limit, patience=patience)
    if recalled.entries:
        recaller.record(recalled, WHERE)
    return recalled


def _outcome(running: asyncio.Future[Recalled]) -> Recalled:
    """What came of a recall: nothing where it hangs, or raised something (R1)."""
    from muniment.recall.recaller import Recalled

    error = running.exception() if running.done() else DeadlineExceeded("the recall hangs")
    match error:
        case None:
            return running.result()
        case MunimentError():
            events.emit("memory_retrieval_failed", code=error.code)
            return Recalled(error=error)
        case _:
            events.emit_defect("memory_retrieval_failed", error)
            return Recalled(error=RecallFailed(type(error).__name__))
