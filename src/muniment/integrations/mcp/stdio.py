"""Serve the memory to an MCP host that starts `muniment mcp` as its child process.

P1 Every request gets one response. After the end of the input, requests that still run have `DRAIN_SECONDS`
   to respond. After a signal, they are cancelled instead, unless they have begun to write.
P2 Nothing is opened before it is needed. Therefore a host that only starts the program does not wait for the
   memory. If the memory cannot be opened, tools report the error, and the next call tries again.
P3 At most `MAX_IN_FLIGHT` requests run at the same time; further requests get an error.

A separate module, so that `muniment mcp --help` does not load the SDK.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from contextlib import closing
from typing import Any, Final

import anyio
import mcp_types as t
from mcp.shared.message import SessionMessage

from muniment import events
from muniment.content.exact_json import find_request_id_problem, read_json_or_none, repair_json
from muniment.errors import MunimentError
from muniment.integrations.mcp.actions import CommitsSince
from muniment.integrations.mcp.memory import LazyMemory, LocalBackend
from muniment.integrations.mcp.server import MemoryServer, notify_of_commits
from muniment.integrations.mcp.wire import BUSY, DRAIN_SECONDS, MAX_IN_FLIGHT, TOO_MANY, Wire
from muniment.kernel.names import Trust

FORCE_EXIT_SECONDS: Final = 15.0
"""Maximum seconds after the end of the messages in which a running write may finish; then the process is
ended.
"""

REOPEN_SECONDS: Final = 60.0
"""Seconds after which the program tries again to open the memory for notifications."""


async def serve(wire: Wire, opened: LazyMemory, trust: Trust) -> None:
    """Serve the messages of a wire until it ends; if something then blocks the process, force it to exit.

    See `serve_wire` for the arguments.
    """

    async def force_exit() -> None:
        await wire.stopped.wait()
        timer = threading.Timer(FORCE_EXIT_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()

    watching = asyncio.create_task(force_exit())
    gc.freeze()
    gc.enable()
    await serve_wire(wire, opened, trust)
    await watching


async def serve_wire(wire: Wire, opened: LazyMemory, trust: Trust) -> None:
    """Serve the messages of a wire until it ends.

    Args:
        wire: the connection to the host.
        opened: the memory; the caller closes it.
        trust: the trust of every request.
    """
    memory = LocalBackend(opened, trust)
    watching: asyncio.Task[None] | None = None

    def start_watching() -> None:
        nonlocal watching
        if watching is None or watching.done():  # It failed; the log has the reason.
            watching = asyncio.create_task(_watch(server, opened))

    server = MemoryServer(lambda _: memory, start_watching)
    try:
        async with wire:
            await _Exchange(wire, server).run()
    finally:
        memory.close()
        if watching is not None:
            watching.cancel()


async def _watch(server: MemoryServer, opened: LazyMemory) -> None:
    """Notify the host of commits by any program, until cancelled."""
    from muniment.server.stream import Stream
    from muniment.store.tasks import read_range

    while True:
        try:
            context = await asyncio.to_thread(opened.get_context)
            with closing(context.state.open_reader()) as reads:
                stream = Stream(reads, read_range(reads))
                watching = asyncio.create_task(stream.watch())
                try:
                    commits = CommitsSince(opened.get_context, stream.last)
                    await notify_of_commits(stream, commits, server.notify_changed)
                finally:
                    watching.cancel()
        except MunimentError as error:
            events.emit("mcp_not_watching", code=error.code)
        await asyncio.sleep(REOPEN_SECONDS)


class _Exchange:
    """Passes messages between a host and the SDK's server."""

    def __init__(self, wire: Wire, server: MemoryServer) -> None:
        self._wire, self._server = wire, server
        self._pending: Counter[str | int] = Counter()
        self._responded = asyncio.Event()

    async def run(self) -> None:
        """Pass messages until the input ends or the wire is stopped; then wait for outstanding responses."""
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        options = self._server.create_initialization_options()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all(outgoing))
            group.create_task(self._server.run(read, write, options))
            async with incoming:
                async for line in self._wire.lines():
                    if (message := await self._parse_message(line)) is not None:
                        await incoming.send(SessionMessage(message))
                if not self._wire.stopped.is_set():
                    await self._drain()
                    self._wire.stop()
                self._server.end_listening()

    async def _parse_message(self, line: bytes | None) -> t.JSONRPCMessage | None:
        try:
            repaired = repair_json(line) if line and b"\\u" in line else line
            message = t.jsonrpc_message_adapter.validate_json(repaired or line or b"", by_name=False)
        except ValueError:
            message = None
        # The SDK takes a request with an invalid id for a notification, which gets no response.
        if message is None or (
            isinstance(message, t.JSONRPCNotification)
            and find_request_id_problem(read_json_or_none(line or b""))
        ):
            await self._wire.reject_line(line)
            return None
        match message:
            case t.JSONRPCRequest(method="subscriptions/listen"):
                pass  # Its response is sent when it ends.
            case t.JSONRPCRequest() if self._pending.total() >= MAX_IN_FLIGHT:
                await self._wire.send_error(BUSY, TOO_MANY, message.id)
                return None
            case t.JSONRPCRequest():
                self._pending[message.id] += 1
            case t.JSONRPCNotification(method="notifications/cancelled", params=dict(params)):
                self._mark_responded(params.get("requestId"))
        return message

    async def _send_all(self, outgoing: Any) -> None:
        async with outgoing:
            async for each in outgoing:
                await self._wire.send(
                    each.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                )
                if isinstance(each.message, t.JSONRPCResponse | t.JSONRPCError):
                    self._mark_responded(each.message.id)

    def _mark_responded(self, request_id: Any) -> None:
        if isinstance(request_id, str | int) and self._pending.get(request_id):
            self._pending[request_id] -= 1
            self._responded.set()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._pending.total():
                    self._responded.clear()
                    await self._responded.wait()
        except TimeoutError:
            events.emit("mcp_not_answered", requests=self._pending.total())
