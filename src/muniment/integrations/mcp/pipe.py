"""Forward MCP messages from a host's pipe to `/mcp` of a daemon, and back.

Q1 A message is forwarded unchanged, and a response is returned as the daemon wrote it: this module knows no
   tools, and loads neither the SDK nor the memory.
Q2 Every request gets one response: if the daemon sends none, an error with the reason. A request that the
   daemon did not accept, because it was busy or not running, is sent again for `PATIENCE_SECONDS`; one that
   may have arrived is not. After the host has closed its end, responses may arrive during the seconds of
   `finish`.
Q3 A restarted daemon does not know the session: a new one is started with the host's `initialize` message,
   and the host does not notice it.
Q4 The daemon proves its identity before it receives the token, as for every client (`transport`).

Separate from the other plans, which know their requests.
Source: modelcontextprotocol.io/specification, "Streamable HTTP", 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from typing import Any, Final

import httpx2

from muniment.client.core import QUIET_SECONDS, segment
from muniment.client.errors import BadAnswer
from muniment.client.exchange import (
    FIRST_PAUSE,
    LAST_PAUSE,
    OK,
    Ask,
    Frames,
    HttpReply,
    Lost,
    decoded,
    retry_after,
)
from muniment.client.finding import Place, Where
from muniment.client.transport import Connections, head, looped, lost, read_reply, request
from muniment.content.exact_json import json_or_none, repaired_json, request_id_problem
from muniment.errors import NOT_NOW, ManagedMemoryUnavailable
from muniment.integrations.mcp.wire import (
    BUSY,
    DRAIN_SECONDS,
    INVALID_REQUEST,
    MAX_IN_FLIGHT,
    TOO_MANY,
    Wire,
)

PATIENCE_SECONDS: Final = 20.0
"""Seconds in which a request that was not accepted is sent again: a daemon restarts in one or two."""

MAX_AT_ONCE: Final = 48
"""Maximum requests at once, each with a connection; the daemon has 64 slots for a token."""

MAX_NOTIFICATIONS: Final = 64
"""Maximum notifications that wait for the daemon; further ones are dropped."""

INTERNAL_ERROR: Final = -32603
UNREACHABLE: Final = -32000

_SESSION: Final = "mcp-session-id"
_VERSION: Final = "mcp-protocol-version"
_LISTEN: Final = "subscriptions/listen"
_OF_META: Final = "io.modelcontextprotocol/protocolVersion"
_NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Requests of 2026 that repeat a member in a header: the member by method."""

_PLAIN: Final = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_ENCODED: Final = re.compile(r"=\?base64\?.*\?=")

_ACCEPTED: Final = 202
_NOT_FOUND: Final = 404

Message = dict[str, Any]


async def pass_on(wire: Wire, place: Place, workspace: str, trust: str) -> None:
    """Forward messages until the wire ends; see `McpPipe` for the arguments."""
    async with wire:
        pipe = McpPipe(place, workspace, trust, wire.send)
        async for line in wire.lines():
            found = json_or_none((repaired_json(line) if line else None) or line or b"")
            is_message = isinstance(found, dict) and found.get("jsonrpc") == "2.0"
            if is_message and (isinstance(found.get("method"), str) or "id" in found):
                await pipe.take(found)
            else:
                await wire.fail_line(line)
        await pipe.finish(0 if wire.stopped.is_set() else DRAIN_SECONDS)


class McpPipe:
    """The forwarding from one host to one workspace. Belongs to one event loop.

    Args:
        place: describes how to find the daemon.
        workspace: its key, or its path on the daemon's machine.
        trust: of every request, limited by that of the token.
        tell: sends a message to the host.
    """

    def __init__(
        self, place: Place, workspace: str, trust: str, tell: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._line = Connections(place, looped)
        self._path = f"/workspaces/{segment(workspace)}/mcp"
        self._headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "x-muniment-trust": trust,
        }
        self._tell = tell
        self._asked: dict[str | int, tuple[asyncio.Task[None], Message]] = {}
        self._notified: asyncio.Queue[Message] = asyncio.Queue(MAX_NOTIFICATIONS)
        self._notifying: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._hello: Message | None = None
        self._session: dict[str, str] = {}
        self._beginning, self._places = asyncio.Lock(), asyncio.Semaphore(MAX_AT_ONCE)

    async def take(self, message: Message) -> None:
        """Forward a message of the host without waiting for the response."""
        method, request_id = message.get("method"), message.get("id")
        if (problem := request_id_problem(message)) is not None:
            await self._fail(None, _NotAnswered(problem, INVALID_REQUEST))
            return
        if isinstance(request_id, str | int) and isinstance(method, str):
            if len(self._asked) >= MAX_IN_FLIGHT:
                await self._fail(request_id, _NotAnswered(TOO_MANY, BUSY))
                return
            if method == "initialize":
                self._hello, self._session = message, {}
            running = asyncio.create_task(self._answered(request_id, message))
            self._asked[request_id] = running, message
            running.add_done_callback(lambda done: self._forget(request_id, done))
            return
        cancelled = _params(message).get("requestId") if method == "notifications/cancelled" else None
        asked = self._asked.get(cancelled) if isinstance(cancelled, str | int) else None
        if asked is not None and _version_of(asked[1]) is not None:
            asked[0].cancel()  # A request of 2026 is cancelled by closing its stream.
            return
        if self._notifying is None:
            self._notifying = asyncio.create_task(self._notify())
        with suppress(asyncio.QueueFull):
            self._notified.put_nowait(message)

    async def finish(self, seconds: float) -> None:
        """Wait for outstanding responses, except streams of changes; then end the session."""
        streams = [running for running, message in self._asked.values() if message["method"] == _LISTEN]
        for each in (*streams, self._following):
            if each is not None:
                each.cancel()
        with suppress(TimeoutError):  # Q2
            async with asyncio.timeout(seconds):
                await self._notified.join()
                await asyncio.gather(*(each for each, _ in self._asked.values()), return_exceptions=True)
        await self.close()

    async def close(self) -> None:
        """End the session, and close the connections."""
        for each in (*(each for each, _ in self._asked.values()), self._following, self._notifying):
            if each is not None:
                each.cancel()
        if _SESSION in self._session:
            # Otherwise the daemon ends it after a time without requests.
            with suppress(_NotAnswered, TimeoutError):
                async with asyncio.timeout(1):
                    await self._done("DELETE", None)
        self._line.close()
        for transport in self._line.retired():
            await transport.aclose()

    def _forget(self, request_id: str | int, done: asyncio.Task[None]) -> None:
        if request_id in self._asked and self._asked[request_id][0] is done:
            del self._asked[request_id]

    async def _answered(self, request_id: str | int, message: Message) -> None:
        """Send a request, and forward all its responses to the host (Q2)."""
        is_answered, why = False, _NotAnswered("the daemon ended without a response")
        is_stream = message.get("method") == _LISTEN
        try:
            async with (
                nullcontext() if is_stream else self._places,
                aclosing(self._exchanged("POST", message)) as said,
            ):
                async for each in said:
                    if "method" not in each and "id" in each:
                        is_answered = True
                        each["id"] = request_id
                    await self._say(each)
        except _NotAnswered as reason:
            why = reason
        except Exception as defect:  # noqa: BLE001  the host waits for an answer, whatever this is
            why = _NotAnswered(f"the message was not forwarded ({type(defect).__name__})")
        if not is_answered:
            await self._fail(request_id, why)

    async def _fail(self, request_id: str | int | None, why: _NotAnswered) -> None:
        await self._say({"jsonrpc": "2.0", "id": request_id, "error": why.error})

    async def _notify(self) -> None:
        """Send the notifications of the host, one after the other, until cancelled."""
        while True:
            message = await self._notified.get()
            try:
                with suppress(_NotAnswered):  # A notification gets no response.
                    async for _ in self._exchanged("POST", message):
                        pass
            finally:
                self._notified.task_done()
            if message.get("method") == "notifications/initialized" and self._following is None:
                self._following = asyncio.create_task(self._follow())

    async def _say(self, message: Message) -> None:
        await self._tell(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))

    async def _exchanged(self, method: str, message: Message | None) -> AsyncGenerator[Message]:
        """Send a message as `_sent`, and restart the session if the daemon does not know it (Q3)."""
        for is_again in (False, True):
            session = self._session
            try:
                async with aclosing(self._sent(method, message)) as said:
                    async for each in said:
                        yield each
            except _NotAnswered as reason:
                if is_again or not reason.is_forgotten:
                    raise
            else:
                return
            await self._begin_again(session)

    async def _begin_again(self, session: Mapping[str, str]) -> None:
        async with self._beginning:
            if self._session is not session or self._hello is None:
                return  # Another request has restarted it.
            self._session = {}
            for message in (self._hello, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
                await self._done("POST", message)

    async def _follow(self) -> None:
        """Forward messages that the daemon sends without a request, until cancelled."""
        pause = FIRST_PAUSE
        while True:
            with suppress(_NotAnswered):  # The daemon may respond later.
                async with aclosing(self._exchanged("GET", None)) as said:
                    async for each in said:
                        pause = FIRST_PAUSE
                        await self._say(each)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _done(self, method: str, message: Message | None) -> None:
        """Send a message and ignore its responses; raise as `_sent`."""
        async with aclosing(self._sent(method, message)) as said:
            async for _ in said:
                pass

    async def _sent(self, method: str, message: Message | None) -> AsyncGenerator[Message]:
        """Send a message; yield the messages of its response.

        Raises:
            _NotAnswered: the daemon does not respond, rejects it, or does not know the session.
        """
        deadline, pause, afresh = time.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE, False
        headers: dict[str, str] = {}
        body = None if message is None else _encoded(message)
        outcome: Lost | HttpReply
        while True:
            try:
                opened = self._line.open(afresh=afresh)
                if isinstance(opened, Lost):
                    outcome = opened
                else:
                    where, transport = opened
                    headers = self._headers_of(message)
                    ask = Ask(method, self._path, headers, body)
                    response = await transport.handle_async_request(request(where, ask, QUIET_SECONDS))
                    async with aclosing(response):
                        if response.status_code in {OK, _ACCEPTED}:
                            async for each in self._read(response, where, message):
                                yield each
                            return
                        outcome = await read_reply(response, where)
            except httpx2.TransportError as error:
                outcome = lost(error)
            except (BadAnswer, ManagedMemoryUnavailable) as error:
                number = INTERNAL_ERROR if isinstance(error, BadAnswer) else UNREACHABLE
                raise _NotAnswered(str(error), number) from None
            if isinstance(outcome, Lost):
                if outcome.may_have_arrived or time.monotonic() > deadline:
                    raise _NotAnswered(f"cannot connect to the daemon: {outcome.why}", UNREACHABLE)
                afresh = True
            elif outcome.status not in NOT_NOW or time.monotonic() > deadline:
                raise _refusal(outcome, of_session=_SESSION in headers)
            else:
                pause = retry_after(outcome) or pause
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    def _headers_of(self, message: Message | None) -> dict[str, str]:
        version = None if message is None else _version_of(message)
        if message is None or version is None:
            return {**self._headers, **self._session}
        found = {**self._headers, _VERSION: version, "mcp-method": _in_header(str(message.get("method")))}
        named = _params(message).get(_NAMED.get(str(message.get("method")), ""))
        return found | ({"mcp-name": _in_header(named)} if isinstance(named, str) else {})

    async def _read(
        self, response: httpx2.Response, where: Where, asked: Message | None
    ) -> AsyncGenerator[Message]:
        session = response.headers.get(_SESSION)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            frames = Frames()
            head(response, where)
            async for piece in response.aiter_raw():
                for frame in frames.feed(piece):
                    if frame.data:
                        yield self._learnt(_message(frame.data, where), session, asked)
            return
        body = (await read_reply(response, where)).body
        if body.strip():
            yield self._learnt(_message(body, where), session, asked)

    def _learnt(self, answer: Message, session: str | None, asked: Message | None) -> Message:
        """Return a response; for `initialize`, store its version and session for later requests."""
        result = answer.get("result")
        if asked is not None and asked.get("method") == "initialize" and isinstance(result, dict):
            self._session = {_VERSION: str(result.get("protocolVersion"))}
            if session is not None:
                self._session[_SESSION] = session
        return answer


class _NotAnswered(Exception):
    """The daemon sent no response; the text is the reason.

    Attributes:
        error: of JSON-RPC.
        is_forgotten: the daemon does not know the session.
    """

    is_forgotten = False

    def __init__(self, text: str, number: int = INTERNAL_ERROR, **more: Any) -> None:
        self.error = {"code": number, "message": text, **more}
        super().__init__(text)


def _refusal(reply: HttpReply, *, of_session: bool) -> _NotAnswered:
    """Return the reason for a missing response, from a JSON-RPC error or a problem document."""
    said = decoded(reply.body, reply.secret)
    document = said if isinstance(said, dict) else {}
    if isinstance(error := document.get("error"), dict):
        number = error.get("code")
        more = {"data": error["data"]} if "data" in error else {}
        told = number if isinstance(number, int) else INTERNAL_ERROR
        refusal = _NotAnswered(str(error.get("message")), told, **more)
        refusal.is_forgotten = reply.status == _NOT_FOUND and of_session
        return refusal
    if isinstance(document.get("code"), str):
        return _NotAnswered(f"{document.get('title')} [{document['code']}]")
    return _NotAnswered(f"unexpected status {reply.status} of the daemon; check that it supports MCP")


def _encoded(message: Message) -> bytes:
    """Encode a message as JSON.

    Raises:
        _NotAnswered: it is nested too deeply.
    """
    try:
        return json.dumps(message).encode()
    except RecursionError:
        raise _NotAnswered("the message is nested too deeply") from None


def _message(text: str | bytes, where: Where) -> Message:
    found = decoded(text, where.token or "")
    if not isinstance(found, dict):
        raise _NotAnswered("the daemon sent an invalid message")
    return found


def _params(message: Message) -> dict[str, Any]:
    found = message.get("params")
    return found if isinstance(found, dict) else {}


def _version_of(message: Message) -> str | None:
    """Return the version in a request of 2026; None for an older request."""
    meta = _params(message).get("_meta")
    version = meta.get(_OF_META) if isinstance(meta, dict) else None
    return version if isinstance(version, str) and _PLAIN.fullmatch(version) else None


def _in_header(text: str) -> str:
    """Encode a text as the value of a header, as the protocol requires."""
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="
