"""The two shells behind one face, each test being about both; and a way through a plan without either."""

from __future__ import annotations

import asyncio
import inspect
import json
from contextlib import contextmanager

from kit.client.scripted import Scripted
from muniment.client import AsyncClient, AsyncTaskHandle, Client
from muniment.client.core import HttpReply, Lost

GONE = Lost("nobody takes the connection", may_have_arrived=False)
BROKEN = Lost("the connection ended early", may_have_arrived=True)
KEY = f"work-{'0' * 32}"


class Pauses(list):
    """The pauses that a client made, none of which took any time."""

    def __call__(self, seconds):
        if seconds:
            self.append(seconds)

    async def wait(self, seconds):
        self(seconds)


class Driven:
    """An object of the async shell, awaited on a loop of the test's own."""

    def __init__(self, runner, inner):
        self._runner, self._inner = runner, inner

    def __repr__(self):
        return repr(self._inner)

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        return found if isinstance(found, Pauses) or not callable(found) else self._wrapped(found)

    def _wrapped(self, method):
        def call(*args, **kwargs):
            result = method(*args, **kwargs)
            if inspect.isasyncgen(result):
                return self._iterate(result)
            if inspect.isawaitable(result):
                result = self._runner.run(_awaited(result))
            return Driven(self._runner, result) if isinstance(result, AsyncTaskHandle) else result

        return call

    def _iterate(self, events):
        try:
            while True:
                try:
                    yield self._runner.run(anext(events))
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(events.aclose())


async def _awaited(result):
    return await result


@contextmanager
def opened(shell, *, hasty=True, **options):
    """A client of a shell, `Client` or `AsyncClient`; pauses take no time, and stand in `pauses`.

    Of a server that follows a script it asks for the workspace `KEY`.
    """
    if hasty:
        options.setdefault("workspace", KEY)
    pauses = Pauses()
    if shell is Client:
        with Client(**options) as client:
            if hasty:
                client._shell._sleep = pauses
            client.pauses = pauses
            yield client
        return
    with asyncio.Runner() as runner:
        client = runner.run(_made(options))
        if hasty:
            client._shell._sleep = pauses.wait
        client.pauses = pauses
        try:
            yield Driven(runner, client)
        finally:
            runner.run(client.close())


async def _made(options):
    return await AsyncClient(**options).__aenter__()


@contextmanager
def talking(shell, *steps, greet=None, path=None, certificate=None, **options):
    """A server that follows a script, and a client of it, which takes what else it needs from `options`."""
    with Scripted(*steps, greet=greet, path=path, certificate=certificate) as server:
        where = {"url": server.url} if path is None else {"socket": path}
        with opened(shell, **where, **options) as client:
            yield server, client


def said(status, document, **headers):
    """An answer of the daemon as the core takes it."""
    return HttpReply(status, headers, json.dumps(document).encode())


def carry_out(plan, clock, *outcomes):
    """(tries, result) of a plan that meets `outcomes`, which may take time by the clock, as pauses do."""
    tries, left = [], list(outcomes)
    try:
        step = next(plan)
        while True:
            tries.append(step)
            clock.advance(step.pause)
            outcome = left.pop(0)
            step = plan.send(outcome(step) if callable(outcome) else outcome)
    except StopIteration as end:
        assert not left
        return tries, end.value
