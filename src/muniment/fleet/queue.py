"""The queue of a fleet: which home has a turn next, and on which node.

It uses the library Procrastinate, in the database of the fleet. Only this module imports the library, so it
is separate from `node`.

Q1 A job contains only the name of a home with a waiting task; the tasks themselves are rows of the ledger. So
   a surplus job does nothing, and a missing job is added within `SWEEP_SECONDS`.
Q2 A task that is accepted while no other task of its home is pending is committed together with its job.
Q3 A home has its turns on one node while that node is open, which means that it accepts work and has a free
   slot. The working copy of the home is on that node, and no other node is woken. If the node is closed, full
   or has ended, another node gets the home. If all nodes are full, the home waits for its node.
Q4 Jobs of one home run one after the other: each job locks its home. If the node of a job has ended or is
   paused, another node gets the job within `stalled` seconds and `SWEEP_SECONDS`. If both nodes run the job,
   the lease decides which changes are committed.

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
from muniment.fleet.postgres import LedgerPool, build_connection_options
from muniment.kernel.change import digest

TURN: Final = "turn"

SWEEP_SECONDS: Final = 5.0
"""Seconds between two checks for jobs of ended nodes, and for tasks without a job."""

POLL_SECONDS: Final = 0.25
"""Seconds after which a job is found even if its notice was lost: the worker misses a notice that arrives
during a query. A query costs the database about 0.1 ms of CPU.
"""

_SWEEP_HOMES: Final = 500
"""Maximum homes for which one check adds missing jobs."""

_RESTART_SECONDS: Final = 1.0

Turn = Callable[[str], Awaitable[None]]


def _is_cancelled() -> bool:
    """Return whether the current task was cancelled; a database error may have hidden the cancellation."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


class TurnQueue:
    """The queue of turns, as one node uses it.

    Args:
        url: URL for the nodes' role.
        pool: connections to the same database.
        turn: runs the pending tasks of a home.
        open_nodes: returns the names of the nodes that are known to be open: they accept work and have a free
            slot.
        slots: maximum concurrent turns.
        node: name of this node.
        stalled: seconds without a sign of a node after which other nodes get its jobs.
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
        kwargs = build_connection_options(f"muniment {node}")
        self._worker_app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(
                conninfo=url, min_size=1, max_size=4, kwargs=kwargs, timeout=5.0, reconnect_timeout=1.0
            )
        )
        self._defer_app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector())
        self._worker_app.task(name=TURN)(turn)

    def defer(self, connection: psycopg.Connection[Any], home: str, seconds: int = 0) -> None:
        """Add a job for a turn of a home. It is added only if the transaction of `connection` commits.

        Args:
            connection: a connection, which may have an open transaction.
            home: name of the home.
            seconds: minimum delay of the turn.
        """
        schedule: dict[str, Any] = {"schedule_in": {"seconds": seconds}} if seconds else {}
        queue = self._choose_queue(home)
        job = self._defer_app.configure_task(TURN, queue=queue, lock=home, connection=connection, **schedule)
        job.defer(home=home)

    def _choose_queue(self, home: str) -> str:
        return build_queue_name(choose_node(home, self._open_nodes()) or self._node)

    def _move_job(self, connection: psycopg.Connection[Any], home: str) -> None:
        """Move the waiting job of a home to the queue of its current node; if no job waits, add one.

        A second job would not help: for each lock, Procrastinate runs the oldest job of all queues first.
        """
        move = "UPDATE procrastinate_jobs SET queue_name = %s WHERE lock = %s AND status = 'todo'"
        if not connection.execute(move, (self._choose_queue(home), home)).rowcount:
            self.defer(connection, home)

    def hand_over(self) -> None:
        """Move the waiting jobs of this node, which accepts no more work, to other nodes."""
        with self._pool.connection() as connection:
            waiting = "SELECT DISTINCT lock FROM procrastinate_jobs WHERE status = 'todo' AND queue_name = %s"
            for (home,) in connection.execute(waiting, (build_queue_name(self._node),)).fetchall():
                self._move_job(connection, home)

    async def run(self) -> None:
        """Process jobs, and repeatedly add missing ones, until cancelled.

        If the database does not respond, continue when it responds again.
        """
        while not _is_cancelled():
            try:
                async with self._worker_app.open_async():
                    await self._process_jobs()
            except (exceptions.ProcrastinateException, psycopg.Error, MunimentError, OSError) as error:
                events.emit("queue_away", problem=type(error).__name__)
            except Exception as defect:  # noqa: BLE001  Without a queue, a node would be up and do nothing.
                events.emit_defect("queue_broke", defect)
            if not _is_cancelled():
                await asyncio.sleep(_RESTART_SECONDS)

    async def _process_jobs(self) -> None:
        """Process jobs, and repeatedly check for missing ones, until one of these two activities fails."""
        working = asyncio.create_task(
            self._worker_app.run_worker_async(
                queues=[build_queue_name(self._node)],
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
        manager = self._worker_app.job_manager
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for job in await manager.get_stalled_jobs(seconds_since_heartbeat=self._stalled):
                events.emit("turn_stalled", home=job.lock)
                with suppress(exceptions.ConnectorException):  # Another node was first.
                    await manager.retry_job(job, queue=self._choose_queue(str(job.lock)))
            await manager.prune_stalled_workers(self._stalled)
            await asyncio.to_thread(self._add_missing_jobs)

    def _add_missing_jobs(self) -> None:
        """Give a job on an open node to each home that has a waiting task, but no such job.

        A waiting job on an ended node is moved.
        """
        with self._pool.connection() as connection:
            queues = [build_queue_name(node) for node in self._open_nodes()]
            found = connection.execute("SELECT waiting_homes(%s, %s)", (_SWEEP_HOMES, queues)).fetchall()
            for (home,) in found:
                events.emit("turn_missing", home=home)
                self._move_job(connection, home)


def build_queue_name(node: str) -> str:
    """Return the name of a node's queue: a part of a channel name, which has at most 63 bytes."""
    return f"node-{digest(node.encode())[:16]}"


def choose_node(home: str, nodes: Sequence[str]) -> str | None:
    """Return the node that gets the turns of a home, or None if `nodes` is empty.

    The result is the same for every caller. If a node is added or removed, only the homes of this node move.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    return max(nodes, key=lambda node: digest(f"{node}\n{home}".encode()), default=None)
