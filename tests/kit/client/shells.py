"""Both clients (sync and async) with one interface, and a way to run a plan without either."""

from __future__ import annotations

import asyncio
import inspect
import json
from contextlib import ExitStack, contextmanager
from functools import partial

from kit.client.scripted import TOKEN, ScriptedServer, make_proof
from muniment.client import AsyncClient, AsyncTaskHandle, Client
from muniment.client.exchange import HttpResponse, NoResponse

UNREACHABLE = NoResponse("the connection was refused or timed out", may_have_arrived=False)
INTERRUPTED = NoResponse("the connection ended early", may_have_arrived=True)
KEY = f"work-{'0' * 32}"


class Pauses(list):
    """The pauses that a client made, without real waiting; `on_pause` is called with each of them."""

    on_pause = staticmethod(lambda _seconds: None)

    def __call__(self, seconds):
        if seconds:
            self.append(seconds)
            assert len(self) < 100, "it retries without end"
        self.on_pause(seconds)

    async def wait(self, seconds):
        self(seconds)


class SyncWrapper:
    """Wraps an async object: runs its coroutines on an event loop of the test."""

    def __init__(self, runner, inner):
        self._runner, self._inner = runner, inner

    def __repr__(self):
        return repr(self._inner)

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        return found if isinstance(found, Pauses) or not callable(found) else partial(self._call, found)

    def _call(self, method, *args, **kwargs):
        result = method(*args, **kwargs)
        if inspect.isasyncgen(result):
            return self._iterate(result)
        if inspect.isawaitable(result):
            result = self._runner.run(_await_result(lambda: result))
        return SyncWrapper(self._runner, result) if isinstance(result, AsyncTaskHandle) else result

    def _iterate(self, events):
        try:
            while (event := self._runner.run(_await_result(lambda: anext(events, None)))) is not None:
                yield event
        finally:
            self._runner.run(events.aclose())


async def _await_result(make):
    return await make()


@contextmanager
def open_client(shell, *, skip_pauses=True, **options):
    """Open a client, `Client` or `AsyncClient`; pauses take no time and are recorded in `pauses`.

    With a scripted server the workspace is `KEY`.
    """
    options = {"workspace": KEY} | options if skip_pauses else options
    with ExitStack() as stack:
        if shell is Client:
            client = client_view = stack.enter_context(Client(**options))
        else:
            runner = stack.enter_context(asyncio.Runner())
            client = runner.run(_await_result(lambda: AsyncClient(**options).__aenter__()))
            stack.callback(lambda: runner.run(client.close()))
            client_view = SyncWrapper(runner, client)
        client.pauses = Pauses()
        if skip_pauses:
            client._shell._sleep = client.pauses if shell is Client else client.pauses.wait
        yield client_view


@contextmanager
def open_scripted(shell, *steps, prove=None, path=None, certificate=None, **options):
    """Run a scripted server and a client of it; `options` are passed to the client."""
    prove = prove or partial(make_proof, token=options.get("token", TOKEN))
    with ScriptedServer(*steps, prove=prove, path=path, certificate=certificate) as server:
        address = {"url": server.url} if path is None else {"socket": path}
        with open_client(shell, **address, **options) as client:
            yield server, client


def make_reply(status, document, **headers):
    """Build a daemon response in the form that the core of the client receives."""
    return HttpResponse(status, headers, json.dumps(document).encode())


def run_plan(plan, clock, *outcomes):
    """Run a plan with the given `outcomes`; outcomes and pauses may advance the clock. Return (tries,
    result).
    """
    tries, remaining = [], list(outcomes)
    try:
        step = next(plan)
        while True:
            tries.append(step)
            clock.advance(step.pause)
            outcome = remaining.pop(0)
            step = plan.send(outcome(step) if callable(outcome) else outcome)
    except StopIteration as end:
        assert not remaining
        return tries, end.value
