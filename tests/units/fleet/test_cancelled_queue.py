"""A node that stops while its database fails."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg

from muniment.fleet.queue import TurnQueue


def test_cancelled_queue_ends_while_database_fails(fleet, monkeypatch):
    """Let the return of connections fail, so that its error replaces the cancellation."""
    queue = TurnQueue(fleet.node, fleet.pool, None, lambda: (), slots=1, node="one", stalled=60.0)
    started = asyncio.Event()

    @asynccontextmanager
    async def fail_on_exit():
        started.set()
        try:
            yield
        finally:
            raise psycopg.OperationalError("the connection is lost")

    async def cancel_queue():
        monkeypatch.setattr(queue._worker_app, "open_async", fail_on_exit)
        monkeypatch.setattr(queue, "_process_jobs", asyncio.Event().wait)
        running = asyncio.create_task(queue.run())
        await started.wait()
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=30)
        running.cancel()
        return bool(done)

    assert asyncio.run(cancel_queue())
