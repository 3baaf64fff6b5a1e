"""The shell for asyncio: carries plans out on one event loop, and decides nothing.

L1 A try has its seconds, whatever the daemon sends meanwhile, and ends when the shell is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypeVar, cast

import httpx2

from muniment.client.core import Core
from muniment.client.exchange import OK, Lost, Outcome, Plan, Reply, Try
from muniment.client.finding import Place, Where
from muniment.client.following import Following
from muniment.client.results import Event
from muniment.client.transport import Line, grow, head, looped, lost, request

T = TypeVar("T")


class Loop:
    """Carries plans out.

    Args:
        place: where the daemon is to be looked for.
    """

    def __init__(self, place: Place) -> None:
        self._line = Line(place, looped)
        self._limits: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def run(self, plan: Plan[T]) -> T:
        """The result of a plan, or what it raises."""
        try:
            step = next(plan)
            while True:
                await self._sleep(step.pause)
                step = plan.send(await self._carry_out(step))
        except StopIteration as end:
            return cast("T", end.value)

    async def follow(self, core: Core, after: str | None) -> AsyncGenerator[Event]:
        """What happens after an event, with marks, see `following`."""
        following = Following(core, after)
        while True:
            step = following.again()
            await self._sleep(step.pause)
            async with aclosing(self._stream(step, following)) as told:
                async for each in told:
                    if isinstance(each, Lost):
                        following.lost(each)
                    else:
                        yield each

    async def close(self) -> None:
        """Close the connections, and end what waits."""
        self._is_closed = True
        self._line.close()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0)
        await self._tidy()

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with self._within(seconds):
                await asyncio.Event().wait()

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncGenerator[None]:
        """Raise `TimeoutError` after so many seconds, or once the shell is closed."""
        async with asyncio.timeout(0 if self._is_closed else seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def _carry_out(self, step: Try) -> Outcome:
        opened = await self._open(step)
        if isinstance(opened, Lost):
            return opened
        where, transport = opened
        try:
            async with self._within(step.seconds):
                response = await transport.handle_async_request(request(where, step.ask, step.seconds))
                async with aclosing(response):
                    return await _read(response, where)
        except httpx2.TransportError as error:
            return lost(error)
        except TimeoutError:
            return Lost("it took too long", may_have_arrived=True)

    async def _stream(self, step: Try, following: Following) -> AsyncGenerator[Event | Lost]:
        """The events of one connection, and why it ended; no reason where no stream began."""
        opened = await self._open(step)
        if isinstance(opened, Lost):
            yield opened
            return
        where, transport = opened
        try:
            async with self._within(step.seconds):
                response = await transport.handle_async_request(request(where, step.ask, step.seconds))
            async with aclosing(response):
                if response.status_code != OK:
                    async with self._within(step.seconds):
                        following.answered(await _read(response, where))
                    return
                following.answered(head(response, where))
                async for piece in response.aiter_raw():
                    for event in following.feed(piece):
                        yield event
            yield Lost("the stream ended", may_have_arrived=False)
        except httpx2.TransportError as error:
            yield lost(error)
        except TimeoutError:
            yield Lost("it took too long", may_have_arrived=False)

    async def _open(self, step: Try) -> tuple[Where, httpx2.AsyncHTTPTransport] | Lost:
        opened = self._line.open(afresh=step.afresh)
        await self._tidy()
        return opened

    async def _tidy(self) -> None:
        for transport in self._line.retired():
            await transport.aclose()


async def _read(response: httpx2.Response, where: Where) -> Reply:
    body = bytearray()
    async for piece in response.aiter_raw():
        grow(body, piece)
    return head(response, where, bytes(body))
