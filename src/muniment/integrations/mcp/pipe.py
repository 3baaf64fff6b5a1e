"""Forward MCP messages from a host to `/mcp` of a daemon, and the responses back to the host.

Q1 A message is forwarded unchanged, and a response is returned as the daemon wrote it. This module knows no
   tools, and loads neither the SDK nor the memory.
Q2 Every request gets one response: if the daemon sends none, an error with the reason. If the daemon did not
   accept a request because it was busy or not running, the request is sent again for `RETRY_SECONDS`. A
   request that may have arrived is not sent again. After the host has closed its output, responses may still
   arrive for the seconds that `finish` waits.
Q3 A restarted daemon does not know the session. Then a new session is started with the host's `initialize`
   message, and the host does not notice this.
Q4 The daemon proves its identity before it receives the token, as for every client (`client.transport`).

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

from muniment.client.core import encode_segment
from muniment.client.discovery import DaemonAddress, Locator
from muniment.client.errors import BadAnswer
from muniment.client.exchange import (
    FIRST_PAUSE,
    LAST_PAUSE,
    OK,
    FrameParser,
    HttpRequest,
    HttpResponse,
    NoResponse,
    decode_json,
    parse_retry_after,
)
from muniment.client.follower import QUIET_SECONDS
from muniment.client.transport import (
    ConnectionPool,
    build_http_request,
    build_response,
    create_async_transport,
    describe_loss,
    read_response_async,
)
from muniment.content.exact_json import find_request_id_problem, read_json_or_none, repair_json
from muniment.errors import RETRYABLE_STATUSES, ManagedMemoryUnavailable
from muniment.integrations.mcp.wire import (
    BUSY,
    DRAIN_SECONDS,
    INVALID_REQUEST,
    MAX_IN_FLIGHT,
    TOO_MANY,
    Wire,
)

RETRY_SECONDS: Final = 20.0
"""Maximum seconds in which a request that was not accepted is sent again; a daemon restarts in one or two
seconds.
"""

MAX_PARALLEL_REQUESTS: Final = 48
"""Maximum number of requests at the same time, each with a connection; the daemon has 64 slots for a token.
"""

MAX_NOTIFICATIONS: Final = 64
"""Maximum number of notifications that wait for the daemon; further ones are dropped."""

INTERNAL_ERROR: Final = -32603
UNREACHABLE: Final = -32000

_SESSION: Final = "mcp-session-id"
_VERSION: Final = "mcp-protocol-version"
_LISTEN: Final = "subscriptions/listen"
_META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_HEADER_MEMBERS: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""For each method whose requests repeat a member in a header (protocol of 2026): the name of this member."""

_PRINTABLE: Final = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_ENCODED: Final = re.compile(r"=\?base64\?.*\?=")

_ACCEPTED: Final = 202
_NOT_FOUND: Final = 404

Message = dict[str, Any]


async def forward_messages(wire: Wire, locator: Locator, workspace: str, trust: str) -> None:
    """Forward messages until the wire ends.

    Args:
        wire: the connection to the host.
        locator: how to find the daemon.
        workspace: the key of the workspace, or its path on the daemon's machine.
        trust: the trust of every request; limited by the trust of the token.
    """
    async with wire:
        pipe = McpPipe(locator, workspace, trust, wire.send)
        async for line in wire.lines():
            found = read_json_or_none((repair_json(line) if line else None) or line or b"")
            is_message = isinstance(found, dict) and found.get("jsonrpc") == "2.0"
            if is_message and (isinstance(found.get("method"), str) or "id" in found):
                await pipe.forward(found)
            else:
                await wire.reject_line(line)
        await pipe.finish(0 if wire.stopped.is_set() else DRAIN_SECONDS)


class McpPipe:
    """Forwards the messages of one host to one workspace of a daemon. Belongs to one event loop.

    Args:
        locator: how to find the daemon.
        workspace: the key of the workspace, or its path on the daemon's machine.
        trust: the trust of every request; limited by the trust of the token.
        send_to_host: sends a message to the host.
    """

    def __init__(
        self, locator: Locator, workspace: str, trust: str, send_to_host: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._connections = ConnectionPool(locator, create_async_transport)
        self._path = f"/workspaces/{encode_segment(workspace)}/mcp"
        self._headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "x-muniment-trust": trust,
        }
        self._send_to_host = send_to_host
        self._running: dict[str | int, tuple[asyncio.Task[None], Message]] = {}
        self._notifications: asyncio.Queue[Message] = asyncio.Queue(MAX_NOTIFICATIONS)
        self._notifying: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._initialize: Message | None = None
        self._session: dict[str, str] = {}
        self._session_lock, self._slots = asyncio.Lock(), asyncio.Semaphore(MAX_PARALLEL_REQUESTS)

    async def forward(self, message: Message) -> None:
        """Start to forward a message of the host; do not wait for the response."""
        method, request_id = message.get("method"), message.get("id")
        if (problem := find_request_id_problem(message)) is not None:
            await self._fail(None, _NoResponse(problem, INVALID_REQUEST))
            return
        if isinstance(request_id, str | int) and isinstance(method, str):
            if len(self._running) >= MAX_IN_FLIGHT:
                await self._fail(request_id, _NoResponse(TOO_MANY, BUSY))
                return
            if method == "initialize":
                self._initialize, self._session = message, {}
            running = asyncio.create_task(self._forward_request(request_id, message))
            self._running[request_id] = running, message
            running.add_done_callback(lambda done: self._remove_request(request_id, done))
            return
        cancelled = _get_params(message).get("requestId") if method == "notifications/cancelled" else None
        cancelled_request = self._running.get(cancelled) if isinstance(cancelled, str | int) else None
        if cancelled_request is not None and _read_version(cancelled_request[1]) is not None:
            cancelled_request[0].cancel()  # A request of 2026 is cancelled by closing its stream.
            return
        if self._notifying is None:
            self._notifying = asyncio.create_task(self._send_notifications())
        with suppress(asyncio.QueueFull):
            self._notifications.put_nowait(message)

    async def finish(self, seconds: float) -> None:
        """Wait for outstanding responses, but not for streams of changes; then end the session.

        Args:
            seconds: the maximum time to wait.
        """
        streams = [running for running, message in self._running.values() if message["method"] == _LISTEN]
        for each in (*streams, self._following):
            if each is not None:
                each.cancel()
        with suppress(TimeoutError):  # Q2
            async with asyncio.timeout(seconds):
                await self._notifications.join()
                await asyncio.gather(*(each for each, _ in self._running.values()), return_exceptions=True)
        await self.close()

    async def close(self) -> None:
        """End the session, cancel outstanding requests, and close the connections."""
        for each in (*(each for each, _ in self._running.values()), self._following, self._notifying):
            if each is not None:
                each.cancel()
        if _SESSION in self._session:
            # Otherwise the daemon ends it after a time without requests.
            with suppress(_NoResponse, TimeoutError):
                async with asyncio.timeout(1):
                    await self._send_only("DELETE", None)
        self._connections.close()
        for transport in self._connections.pop_retired():
            await transport.aclose()

    def _remove_request(self, request_id: str | int, done: asyncio.Task[None]) -> None:
        if request_id in self._running and self._running[request_id][0] is done:
            del self._running[request_id]

    async def _forward_request(self, request_id: str | int, message: Message) -> None:
        """Send a request, and forward all messages of the response to the host.

        Without a response, send the host an error with the reason.
        """
        is_answered, failure = False, _NoResponse("the daemon ended without a response")
        is_stream = message.get("method") == _LISTEN
        try:
            async with (
                nullcontext() if is_stream else self._slots,
                aclosing(self._exchange("POST", message)) as messages,
            ):
                async for each in messages:
                    if "method" not in each and "id" in each:
                        is_answered = True
                        each["id"] = request_id
                    await self._send_message(each)
        except _NoResponse as reason:
            failure = reason
        except Exception as defect:  # noqa: BLE001  the host waits for an answer after any error
            failure = _NoResponse(f"the message was not forwarded ({type(defect).__name__})")
        if not is_answered:
            await self._fail(request_id, failure)

    async def _fail(self, request_id: str | int | None, failure: _NoResponse) -> None:
        await self._send_message({"jsonrpc": "2.0", "id": request_id, "error": failure.error})

    async def _send_notifications(self) -> None:
        """Send the notifications of the host, one after the other, until cancelled."""
        while True:
            message = await self._notifications.get()
            try:
                with suppress(_NoResponse):  # A notification gets no response.
                    async for _ in self._exchange("POST", message):
                        pass
            finally:
                self._notifications.task_done()
            if message.get("method") == "notifications/initialized" and self._following is None:
                self._following = asyncio.create_task(self._forward_stream())

    async def _send_message(self, message: Message) -> None:
        await self._send_to_host(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))

    async def _exchange(self, method: str, message: Message | None) -> AsyncGenerator[Message]:
        """Send a message, and yield the messages of its response.

        If the daemon does not know the session, start a new session and send the message again.

        Raises:
            _NoResponse: as `_send`.
        """
        for is_retry in (False, True):
            session = self._session
            try:
                async with aclosing(self._send(method, message)) as messages:
                    async for each in messages:
                        yield each
            except _NoResponse as reason:
                if is_retry or not reason.is_unknown_session:
                    raise
            else:
                return
            await self._restart_session(session)

    async def _restart_session(self, session: Mapping[str, str]) -> None:
        async with self._session_lock:
            if self._session is not session or self._initialize is None:
                return  # Another request has restarted it.
            self._session = {}
            for message in (self._initialize, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
                await self._send_only("POST", message)

    async def _forward_stream(self) -> None:
        """Forward messages that the daemon sends without a request, until cancelled."""
        pause = FIRST_PAUSE
        while True:
            with suppress(_NoResponse):  # The daemon may respond later.
                async with aclosing(self._exchange("GET", None)) as messages:
                    async for each in messages:
                        pause = FIRST_PAUSE
                        await self._send_message(each)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _send_only(self, method: str, message: Message | None) -> None:
        """Send a message and ignore the response; raise as `_send`."""
        async with aclosing(self._send(method, message)) as messages:
            async for _ in messages:
                pass

    async def _send(self, method: str, message: Message | None) -> AsyncGenerator[Message]:
        """Send a message, and yield the messages of its response.

        Raises:
            _NoResponse: the daemon does not respond, rejects the message, or does not know the session.
        """
        deadline, pause, is_reconnect = time.monotonic() + RETRY_SECONDS, FIRST_PAUSE, False
        headers: dict[str, str] = {}
        body = None if message is None else _encode(message)
        outcome: NoResponse | HttpResponse
        while True:
            try:
                opened = self._connections.open(should_rediscover=is_reconnect)
                if isinstance(opened, NoResponse):
                    outcome = opened
                else:
                    daemon, transport = opened
                    headers = self._create_headers(message)
                    request_plan = HttpRequest(method, self._path, headers, body)
                    response = await transport.handle_async_request(
                        build_http_request(daemon, request_plan, QUIET_SECONDS)
                    )
                    async with aclosing(response):
                        if response.status_code in {OK, _ACCEPTED}:
                            async for each in self._read_response(response, daemon, message):
                                yield each
                            return
                        outcome = await read_response_async(response, daemon)
            except httpx2.TransportError as error:
                outcome = describe_loss(error)
            except (BadAnswer, ManagedMemoryUnavailable) as error:
                number = INTERNAL_ERROR if isinstance(error, BadAnswer) else UNREACHABLE
                raise _NoResponse(str(error), number) from None
            if isinstance(outcome, NoResponse):
                if outcome.may_have_arrived or time.monotonic() > deadline:
                    raise _NoResponse(f"cannot connect to the daemon: {outcome.reason}", UNREACHABLE)
                is_reconnect = True
            elif outcome.status not in RETRYABLE_STATUSES or time.monotonic() > deadline:
                raise _create_failure(outcome, has_session=_SESSION in headers)
            else:
                pause = parse_retry_after(outcome) or pause
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    def _create_headers(self, message: Message | None) -> dict[str, str]:
        version = None if message is None else _read_version(message)
        if message is None or version is None:
            return {**self._headers, **self._session}
        found = {**self._headers, _VERSION: version, "mcp-method": _encode_header(str(message.get("method")))}
        header_value = _get_params(message).get(_HEADER_MEMBERS.get(str(message.get("method")), ""))
        return found | ({"mcp-name": _encode_header(header_value)} if isinstance(header_value, str) else {})

    async def _read_response(
        self, response: httpx2.Response, daemon: DaemonAddress, request_message: Message | None
    ) -> AsyncGenerator[Message]:
        session = response.headers.get(_SESSION)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            frames = FrameParser()
            build_response(response, daemon)
            async for piece in response.aiter_raw():
                for frame in frames.feed(piece):
                    if frame.data:
                        yield self._store_session(
                            _decode_message(frame.data, daemon), session, request_message
                        )
            return
        body = (await read_response_async(response, daemon)).body
        if body.strip():
            yield self._store_session(_decode_message(body, daemon), session, request_message)

    def _store_session(
        self, response: Message, session: str | None, request_message: Message | None
    ) -> Message:
        """Return a response; if it is for `initialize`, store its version and session for later requests."""
        result = response.get("result")
        if (
            request_message is not None
            and request_message.get("method") == "initialize"
            and isinstance(result, dict)
        ):
            self._session = {_VERSION: str(result.get("protocolVersion"))}
            if session is not None:
                self._session[_SESSION] = session
        return response


class _NoResponse(Exception):
    """The daemon sent no response to a message; the text is the reason.

    Attributes:
        error: the JSON-RPC error for the host.
        is_unknown_session: whether the reason is that the daemon does not know the session.
    """

    is_unknown_session = False

    def __init__(self, text: str, number: int = INTERNAL_ERROR, **members: Any) -> None:
        self.error = {"code": number, "message": text, **members}
        super().__init__(text)


def _create_failure(reply: HttpResponse, *, has_session: bool) -> _NoResponse:
    """Return the reason why a response has no message, from a JSON-RPC error or a problem document.

    Args:
        reply: the response.
        has_session: whether the request contained a session.
    """
    decoded_body = decode_json(reply.body, reply.secret)
    document = decoded_body if isinstance(decoded_body, dict) else {}
    if isinstance(error := document.get("error"), dict):
        number = error.get("code")
        more = {"data": error["data"]} if "data" in error else {}
        error_number = number if isinstance(number, int) else INTERNAL_ERROR
        failure = _NoResponse(str(error.get("message")), error_number, **more)
        failure.is_unknown_session = reply.status == _NOT_FOUND and has_session
        return failure
    if isinstance(document.get("code"), str):
        return _NoResponse(f"{document.get('title')} [{document['code']}]")
    return _NoResponse(f"unexpected status {reply.status} of the daemon; check that it supports MCP")


def _encode(message: Message) -> bytes:
    """Return a message as JSON.

    Raises:
        _NoResponse: the message is nested too deeply.
    """
    try:
        return json.dumps(message).encode()
    except RecursionError:
        raise _NoResponse("the message is nested too deeply") from None


def _decode_message(text: str | bytes, daemon: DaemonAddress) -> Message:
    found = decode_json(text, daemon.token or "")
    if not isinstance(found, dict):
        raise _NoResponse("the daemon sent an invalid message")
    return found


def _get_params(message: Message) -> dict[str, Any]:
    found = message.get("params")
    return found if isinstance(found, dict) else {}


def _read_version(message: Message) -> str | None:
    """Return the protocol version in a request of the protocol of 2026; None for older requests."""
    meta = _get_params(message).get("_meta")
    version = meta.get(_META_VERSION) if isinstance(meta, dict) else None
    return version if isinstance(version, str) and _PRINTABLE.fullmatch(version) else None


def _encode_header(text: str) -> str:
    """Return a text in the form that the protocol requires for the value of a header."""
    if _PRINTABLE.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="
