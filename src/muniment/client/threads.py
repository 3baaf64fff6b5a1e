"""The shell for threads: carries plans out in the thread that asks, and decides nothing.

L2 A try has its seconds, whatever the daemon sends meanwhile, and ends when another thread closes the shell;
   see `transport` for what it takes to make a connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar, cast

import httpx2

from muniment.client.core import Core
from muniment.client.exchange import OK, Lost, Outcome, Plan, Reply, Try
from muniment.client.finding import Place, Where
from muniment.client.following import Following
from muniment.client.results import Event
from muniment.client.transport import Line, Patience, Threaded, grow, head, lost, request

T = TypeVar("T")


class Threads:
    """Carries plans out.

    Args:
        place: where the daemon is to be looked for.
    """

    def __init__(self, place: Place) -> None:
        self._line = Line(place, Threaded)
        self._closing = threading.Event()
        self._sleep: Callable[[float], object] = self._closing.wait

    def run(self, plan: Plan[T]) -> T:
        """The result of a plan, or what it raises."""
        try:
            step = next(plan)
            while True:
                self._sleep(step.pause)
                step = plan.send(self._carry_out(step))
        except StopIteration as end:
            return cast("T", end.value)

    def follow(self, core: Core, after: str | None) -> Generator[Event]:
        """What happens after an event, with marks, see `following`."""
        following = Following(core, after)
        while True:
            step = following.again()
            self._sleep(step.pause)
            outcome = yield from self._stream(step, following)
            if outcome is not None:
                following.lost(outcome)

    def close(self) -> None:
        """Close the connections, and end what waits."""
        self._line.close()
        self._closing.set()
        self._tidy()

    def _carry_out(self, step: Try) -> Outcome:
        opened = self._open(step)
        if isinstance(opened, Lost):
            return opened
        where, transport = opened
        try:
            patience = Patience(step.seconds)
            response = transport.handle_request(request(where, step.ask, step.seconds, patience))
            with closing(response):
                return _read(response, where)
        except httpx2.TransportError as error:
            return lost(error)

    def _stream(self, step: Try, following: Following) -> Generator[Event, None, Lost | None]:
        """The events of one connection, until it ends; None: no stream began."""
        opened = self._open(step)
        if isinstance(opened, Lost):
            return opened
        where, transport = opened
        try:
            patience = Patience(step.seconds)
            response = transport.handle_request(request(where, step.ask, step.seconds, patience))
            with closing(response):
                if response.status_code != OK:
                    following.answered(_read(response, where))
                    return None
                following.answered(head(response, where))
                patience.endless()
                for piece in response.iter_raw():
                    yield from following.feed(piece)
        except httpx2.TransportError as error:
            return lost(error)
        return Lost("the stream ended", may_have_arrived=False)

    def _open(self, step: Try) -> tuple[Where, Threaded] | Lost:
        opened = self._line.open(afresh=step.afresh)
        self._tidy()
        return opened

    def _tidy(self) -> None:
        for transport in self._line.retired():
            transport.close()


def _read(response: httpx2.Response, where: Where) -> Reply:
    body = bytearray()
    for piece in response.iter_raw():
        grow(body, piece)
    return head(response, where, bytes(body))
