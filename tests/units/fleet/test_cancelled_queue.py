"""A node that stops while its database goes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg

from muniment.fleet.queue import TurnQueue


def test_a_queue_that_is_cancelled_while_the_database_goes_ends(fleet, monkeypatch):
    """Giving connections back then fails, and that error comes in the place of the cancel."""
    queue = TurnQueue(fleet.node, fleet.pool, None, lambda: (), slots=1, node="one", stalled=60.0)
    begun = asyncio.Event()

    @asynccontextmanager
    async def going():
        begun.set()
        try:
            yield
        finally:
            raise psycopg.OperationalError("the connection is lost")

    async def stopped():
        monkeypatch.setattr(queue._working, "open_async", going)
        monkeypatch.setattr(queue, "_at_work", asyncio.Event().wait)
        running = asyncio.create_task(queue.run())
        await begun.wait()
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=30)
        running.cancel()
        return bool(done)

    assert asyncio.run(stopped())
