"""The queue of a fleet: which home has a turn next, and on which node. Procrastinate, in the same database.

Apart from `node`: here alone is the queue's library.

Q1 A job names a home in which a task waits, and nothing else; the ledger's rows of tasks are what counts. So
   a job too many finds nothing to do, and one that is missing is put in again within `SWEEP_SECONDS`.
Q2 A task that is accepted while none of its home was pending is accepted together with its job, or neither.
Q3 A home has its turns on one node as long as that is open: it takes work and has a slot. There its working
   copy is, and no other node is woken. Where it is closed, full or gone, the home is another one's; where
   all are full, it waits for its own.
Q4 Jobs of one home are carried out one after the other: their lock is the home. Where the node of one is gone
   or stopped, another has it within `stalled` seconds and `SWEEP_SECONDS`; what both do is decided by the
   lease.

Source: procrastinate.readthedocs.io, "Locks", "Retry stalled jobs".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import procrastinate
import psycopg
from procrastinate import exceptions

from muniment import events
from muniment.errors import MunimentError
from muniment.fleet.postgres import LedgerPool, connection_options
from muniment.kernel.change import digest

TURN: Final = "turn"

SWEEP_SECONDS: Final = 5.0
"""Seconds between two looks for jobs of nodes that are gone, and for tasks without a job."""

POLL_SECONDS: Final = 0.25
"""Seconds after which a job is found whatever became of the notice of it: of one that comes while the
queue is asked, the worker knows nothing afterwards. To ask costs the database some 0.1 ms of CPU."""

_SWEPT: Final = 500
"""Homes of one look."""

_AGAIN_SECONDS: Final = 1.0

Turn = Callable[[str], Awaitable[None]]


def _is_cancelled() -> bool:
    """Whether the task was: where the database goes just then, its error takes the place of the cancel."""
    own = asyncio.current_task()
    return own is not None and own.cancelling() > 0


class TurnQueue:
    """The queue, as one node uses it.

    Args:
        url: of the nodes' role.
        pool: of the same database.
        turn: carries out what waits in a home.
        open_nodes: the names of those that are open, as far as is known.
        slots: turns at once.
        node: its name.
        stalled: seconds without a sign of a node after which its jobs are another one's.
    """

    def __init__(
        self,
        url: str,
        pool: LedgerPool,
        turn: Turn,
        open_nodes: Callable[[], Sequence[str]],
        *,
        slots: int,
        node: str,
        stalled: float,
    ) -> None:
        self._pool, self._slots, self._node, self._stalled = pool, slots, node, stalled
        self._open_nodes = open_nodes
        kwargs = connection_options(f"muniment {node}")
        self._working = procrastinate.App(
            connector=procrastinate.PsycopgConnector(
                conninfo=url, min_size=1, max_size=4, kwargs=kwargs, timeout=5.0, reconnect_timeout=1.0
            )
        )
        self._telling = procrastinate.App(connector=procrastinate.SyncPsycopgConnector())
        self._working.task(name=TURN)(turn)

    def defer(self, connection: psycopg.Connection[Any], home: str, seconds: int = 0) -> None:
        """Have a home have its turn, if the transaction of a connection holds (Q2).

        Args:
            connection: in that transaction.
            home: its name.
            seconds: after which, at the earliest.
        """
        later: dict[str, Any] = {"schedule_in": {"seconds": seconds}} if seconds else {}
        queue = self._queue_for(home)
        job = self._telling.configure_task(TURN, queue=queue, lock=home, connection=connection, **later)
        job.defer(home=home)

    def _queue_for(self, home: str) -> str:
        return queue_of(node_for(home, self._open_nodes()) or self._node)

    def _move(self, connection: psycopg.Connection[Any], home: str) -> None:
        """Have a home have its turn where it belongs by now.

        A further job would not do: of one lock the oldest job is the next, in whichever queue it waits.
        """
        move = "UPDATE procrastinate_jobs SET queue_name = %s WHERE lock = %s AND status = 'todo'"
        if not connection.execute(move, (self._queue_for(home), home)).rowcount:
            self.defer(connection, home)

    def hand_over(self) -> None:
        """Give what waits for this node to others, where it takes no more work."""
        with self._pool.connection() as connection:
            waiting = "SELECT DISTINCT lock FROM procrastinate_jobs WHERE status = 'todo' AND queue_name = %s"
            for (home,) in connection.execute(waiting, (queue_of(self._node),)).fetchall():
                self._move(connection, home)

    async def run(self) -> None:
        """Take jobs and sweep, until cancelled; where the database is away, from when it is back on."""
        while not _is_cancelled():
            try:
                async with self._working.open_async():
                    await self._at_work()
            except (exceptions.ProcrastinateException, psycopg.Error, MunimentError, OSError) as error:
                events.emit("queue_away", problem=type(error).__name__)
            except Exception as defect:  # noqa: BLE001  Without a queue a node would be up and do nothing.
                events.emit_defect("queue_broke", defect)
            if not _is_cancelled():
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _at_work(self) -> None:
        """Take jobs and sweep, until either fails."""
        working = asyncio.create_task(
            self._working.run_worker_async(
                queues=[queue_of(self._node)],
                name=self._node,
                concurrency=self._slots,
                install_signal_handlers=False,
                fetch_job_polling_interval=POLL_SECONDS,
                delete_jobs="always",
                update_heartbeat_interval=self._stalled / 3,
                stalled_worker_timeout=self._stalled,
            )
        )
        sweeping = asyncio.create_task(self._sweep())
        try:
            done, _ = await asyncio.wait({working, sweeping}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in (working, sweeping):
                each.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(working, sweeping, return_exceptions=True)

    async def _sweep(self) -> None:
        manager = self._working.job_manager
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for job in await manager.get_stalled_jobs(seconds_since_heartbeat=self._stalled):
                events.emit("turn_stalled", home=job.lock)
                with suppress(exceptions.ConnectorException):  # Another node was first.
                    await manager.retry_job(job, queue=self._queue_for(str(job.lock)))
            await manager.prune_stalled_workers(self._stalled)
            await asyncio.to_thread(self._put_in)

    def _put_in(self) -> None:
        """Give each home a job in which a task is pending and none has one (Q1)."""
        with self._pool.connection() as connection:
            queues = [queue_of(node) for node in self._open_nodes()]
            found = connection.execute("SELECT waiting_homes(%s, %s)", (_SWEPT, queues)).fetchall()
            for (home,) in found:
                events.emit("turn_missing", home=home)
                self._move(connection, home)


def queue_of(node: str) -> str:
    """The queue of a node: with it the name of a channel, which has at most 63 bytes."""
    return f"node-{digest(node.encode())[:16]}"


def node_for(home: str, nodes: Sequence[str]) -> str | None:
    """Which of some nodes a home belongs to, the same wherever it is asked; None: there is none.

    Where a node comes or goes, only its homes move.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    return max(nodes, key=lambda node: digest(f"{node}\n{home}".encode()), default=None)
