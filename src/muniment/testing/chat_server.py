"""A Chat Completions server on the loopback that responds as a test requires, correctly or not.

    from muniment.agent.openai import OpenAIModel
    from muniment.testing.chat_server import ChatServer, text_response

    with ChatServer([text_response("Saved to user/editor.md.")]) as server:
        model = OpenAIModel("scripted", base_url=server.base_url)
        ...
    assert server.requests[0].body["model"] == "scripted"

    ChatServer([error_response(429, "slow down", retry_after=1), text_response("Saved to user/editor.md.")])
    ChatServer(repeat_responder(drip_response(text_response("Saved."), size=1, pause_seconds=0.05)))

A `Response` is valid HTTP with any body; the other responders break HTTP or never end.

S1. A request is stored completely before the response. No request gets two responses, on any path.
S2. `ChatRequest.hung_up` is set as soon as the client closes its connection during the response, even while
    that response pauses.
S3. On exit of the context every response, thread and socket of the server ends. A responder that waits for
    anything except its `Connection` must end by itself.

The server reads HTTP/1.1 as JSON clients write it: bodies with a Content-Length, no chunks. It listens on
this machine only. It uses only the standard library.
"""

from __future__ import annotations

import json
import math
import select
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from muniment.cancelling import Cancel
from muniment.errors import Cancelled, DeadlineExceeded
from muniment.kernel.cancel import Deadline

MAX_HEAD_BYTES: Final = 64 << 10
"""Maximum bytes of a request line with its headers."""

MAX_REQUEST_BYTES: Final = 8 << 20
"""Maximum bytes of a request body: many times the size of a run of six turns."""

EXIT_SECONDS: Final = 5.0
"""Seconds that a running responder has to end after the exit of the server."""

_PIECE_BYTES: Final = 64 << 10
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: on, for no time

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class ChatRequest:
    """A request of a client.

    Attributes:
        headers: the headers by lower-case name.
        raw: the body as received.
        body: the body as JSON; None if it is not JSON.
        hung_up: set if the client closes the connection before the response is complete.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    hung_up: threading.Event = field(default_factory=threading.Event, repr=False)


class Connection:
    """A connection from a client, for the responder that writes to it.

    Every method that waits raises `ConnectionAbortedError` when the client closes the connection, and
    `Cancelled` when the server exits. A responder need not catch either.
    """

    def __init__(self, client: socket.socket, stopping: Cancel) -> None:
        client.setblocking(False)
        self._client, self._stopping = client, stopping
        self._received = bytearray()

    @property
    def is_open(self) -> bool:
        """Return whether another request may follow on this connection."""
        return self._client.fileno() >= 0

    def send(self, data: bytes) -> None:
        """Send all of `data`. Waits as long as the client does not read."""
        remaining = memoryview(data)
        while remaining:
            if self._is_closed_by_client():
                raise ConnectionAbortedError
            send = partial(self._client.send, remaining[:_PIECE_BYTES])
            remaining = remaining[self._retry_until_ready(send, select.POLLOUT) :]

    def pause(self, seconds: float = math.inf) -> None:
        """Wait for `seconds` without sending; by default until the client closes the connection."""
        with suppress(DeadlineExceeded):
            self._wait(0, seconds)

    def close(self) -> None:
        """Close the connection. The client can read everything that was sent."""
        self._client.close()

    def reset(self) -> None:
        """Close the connection with a reset (RST). The client may lose data that was sent before."""
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._client.close()

    def start_tls(self) -> None:
        """Complete the TLS handshake if the server has a certificate."""
        if isinstance(self._client, ssl.SSLSocket):
            self._retry_until_ready(self._client.do_handshake, select.POLLIN)

    def read_request(self) -> ChatRequest | Response | None:
        """Return the next request; an error response if it is invalid; None if the client sends no more."""
        if not isinstance(head := self._read_head(), bytes):
            return head
        first, *lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal():
            return _reject_unread(411, "a body needs a Content-Length")
        if len(length) > len(str(MAX_REQUEST_BYTES)) or int(length) > MAX_REQUEST_BYTES:
            return _reject_unread(413, f"the body is larger than {MAX_REQUEST_BYTES} bytes")
        raw = self._read(int(length))
        match first.split(" "):
            case [method, path, _]:
                return ChatRequest(method, path, headers, raw, _parse_or_none(raw))
            case _:
                return _reject_unread(400, "invalid HTTP request line")

    def reject(self, error: Response) -> None:
        """Send an error response although the request was not read, and wait until the client has read it."""
        error(self)
        # Closing a connection with unread bytes resets it, and the client might not see the response.
        self._retry_until_ready(lambda: self._client.shutdown(socket.SHUT_WR), select.POLLOUT)
        while self._receive():
            pass

    def _read_head(self) -> bytes | Response | None:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > MAX_HEAD_BYTES:
                return _reject_unread(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes")
            if not (more := self._receive()):
                return None
            self._received += more
        head = bytes(self._received[:end])
        del self._received[: end + 4]
        return head

    def _read(self, length: int) -> bytes:
        while len(self._received) < length:
            if not (more := self._receive()):
                raise ConnectionAbortedError
            self._received += more
        data = bytes(self._received[:length])
        del self._received[:length]
        return data

    def _receive(self) -> bytes:
        return self._retry_until_ready(lambda: self._client.recv(_PIECE_BYTES), select.POLLIN)

    def _retry_until_ready(self, operation: Callable[[], _T], mask: int) -> _T:
        """Run an operation on the socket, as soon as the socket is ready for it, and return its result."""
        while True:
            try:
                return operation()
            except BlockingIOError:
                self._wait(mask)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise ConnectionAbortedError from error

    def _wait(self, mask: int, seconds: float = math.inf) -> None:
        """Wait for one of the poll(2) events of `mask`, at most `seconds`.

        Raises:
            ConnectionAbortedError: the client has closed the connection; not raised while waiting to read.
            DeadlineExceeded: no event occurred within `seconds`.
        """
        is_reading = mask & select.POLLIN
        deadline = Deadline(time.monotonic() + seconds, self._stopping)
        deadline.wait(self._client.fileno(), mask if is_reading else mask | select.POLLRDHUP)
        if not is_reading and self._is_closed_by_client():
            raise ConnectionAbortedError

    def _is_closed_by_client(self) -> bool:
        poller = select.poll()
        poller.register(self._client.fileno(), select.POLLRDHUP)
        return bool(poller.poll(0))


Responder = Callable[[Connection], None]
"""A function that writes the response to one request."""


class ChatServer:
    """A server that responds to requests at `base_url` as configured; a context manager.

    Args:
        responder: a function that returns the responder for each request, or responders in the order of the
            requests. If no responder is left, requests get status 500. An exception of the function ends its
            connection and thread, and is reported like any error of a thread.
        certificate: a PEM file with a key and its certificate, for TLS; None: plain HTTP.
        port: the port to listen on; 0 for any free port.
    """

    def __init__(
        self,
        responder: Callable[[ChatRequest], Responder] | Iterable[Responder],
        *,
        certificate: Path | None = None,
        port: int = 0,
    ) -> None:
        self._responder = responder if callable(responder) else iter(responder)
        self._certificate, self._port = certificate, port
        self._requests: list[ChatRequest] = []
        self._request_arrived = threading.Condition()
        self._script_lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._tls: ssl.SSLContext | None = None
        if self._certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(self._certificate)
        self._stopping = Cancel()
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stopping.set()
        accepting, *_ = self._threads
        accepting.join()  # After this no new thread starts.
        for thread in self._threads:
            thread.join(EXIT_SECONDS)
        self._listener.close()
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(
                "a responder of this server is still running; it may wait only with pause() of its connection"
            )
        self._stopping.close()

    @property
    def base_url(self) -> str:
        """Return the base URL of the API for clients: `http://127.0.0.1:PORT/v1`."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}/v1"

    @property
    def requests(self) -> list[ChatRequest]:
        """Return the requests received so far, in order of arrival."""
        with self._request_arrived:
            return list(self._requests)

    def wait_for_requests(self, count: int = 1, seconds: float = 10.0) -> list[ChatRequest]:
        """Wait until `count` requests have arrived, and return all requests received so far.

        Raises:
            TimeoutError: fewer requests arrived within `seconds`.
        """
        with self._request_arrived:
            if not self._request_arrived.wait_for(lambda: len(self._requests) >= count, seconds):
                raise TimeoutError(f"{len(self._requests)} of {count} requests arrived within {seconds:g} s")
            return list(self._requests)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="chat-server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(Cancelled):
            while True:
                Deadline(math.inf, self._stopping).wait(self._listener.fileno(), select.POLLIN)
                # The client closed the connection already.
                with suppress(BlockingIOError, ConnectionAbortedError):
                    client, _ = self._listener.accept()
                    if self._tls is not None:
                        client = self._tls.wrap_socket(
                            client, server_side=True, do_handshake_on_connect=False
                        )
                    self._start(self._serve_connection, Connection(client, self._stopping))

    def _serve_connection(self, connection: Connection) -> None:
        """Read the requests of one connection and respond to them, until either side closes it."""
        try:
            with suppress(ConnectionAbortedError, Cancelled):
                connection.start_tls()
                while connection.is_open and (request := connection.read_request()) is not None:
                    if isinstance(request, Response):
                        connection.reject(request)
                        return
                    self._respond(request, connection)
        finally:
            connection.close()

    def _respond(self, request: ChatRequest, connection: Connection) -> None:
        with self._request_arrived:
            self._requests.append(request)
            self._request_arrived.notify_all()
        responder = self._next_responder(request)
        try:
            responder(connection)
        except ConnectionAbortedError:
            request.hung_up.set()
            raise
        if request.headers.get("connection", "").lower() == "close":
            connection.close()

    def _next_responder(self, request: ChatRequest) -> Responder:
        if callable(self._responder):
            return self._responder(request)
        with self._script_lock:
            return next(self._responder, _report_end_of_script)


def build_http_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of an HTTP response.

    Args:
        body: the body.
        status: status of the response.
        headers: headers by lower-case name; they extend or replace Content-Type and Content-Length.
    """
    defaults = {"content-type": "application/json"}
    if "transfer-encoding" not in (headers or {}):
        defaults["content-length"] = str(len(body))
    lines = [f"{name}: {value}\r\n" for name, value in {**defaults, **(headers or {})}.items()]
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{''.join(lines)}\r\n".encode("latin-1") + body


def _report_end_of_script(connection: Connection) -> None:
    connection.send(
        build_http_response(_encode_error("the script of this server has no further response"), 500)
    )


def _encode_error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "chat_server"}}).encode()


def _reject_unread(status: int, message: str) -> Response:
    return Response(_encode_error(message), status, {"connection": "close"})


def _parse_or_none(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


_BLOCK: Final = 1 << 20
RESPONSE_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED_HEAD: Final = RESPONSE_HEAD + b"transfer-encoding: chunked\r\n\r\n"
"""The start of a response; `send_raw` can send it, followed by the body."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete HTTP response, sent without pauses. The connection stays open for further requests.

    Attributes:
        body: the body.
        status: status of the response.
        headers: headers by lower-case name; they extend or replace Content-Type and Content-Length.
    """

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the bytes of the response."""
        return build_http_response(self.body, self.status, self.headers)

    def __call__(self, connection: Connection) -> None:
        """Send the response to a client."""
        connection.send(self.encode())


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose body is `value` as JSON."""
    return Response(json.dumps(value).encode(), status, headers or {})


def completion_response(
    message: Mapping[str, Any],
    finish_reason: str | None = "stop",
    usage: tuple[int, int] | None = (100, 10),
) -> Response:
    """Return a chat completion with one choice.

    Args:
        message: the keys of the message except its role.
        finish_reason: why the model stopped, in OpenAI's terms: `stop`, `tool_calls`, `length`.
        usage: input and output tokens; None: the response does not report them.
    """
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    response: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "scripted",
        "choices": [choice],
    }
    if usage is not None:
        tokens_in, tokens_out = usage
        response["usage"] = {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }
    return json_response(response)


def text_response(text: str | None, finish_reason: str | None = "stop") -> Response:
    """Return a completion with `text` and no tool calls."""
    return completion_response({"content": text}, finish_reason)


def make_tool_call(tool: str, arguments: Any, call_id: str = "call-1") -> dict[str, Any]:
    """Return one item of a message's `tool_calls`, in OpenAI's format."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def tool_calls_response(*calls: Any) -> Response:
    """Return a completion with tool calls. They may also be invalid; `make_tool_call` creates valid ones."""
    return completion_response({"content": None, "tool_calls": list(calls)}, "tool_calls")


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    retry_after: float | str | None = None,
) -> Response:
    """Return an error in OpenAI's format.

    Args:
        status: status of the response.
        message: message of the error.
        code: code of the error.
        param: name of the invalid parameter.
        retry_after: value of the `Retry-After` header: seconds, or any text.
    """
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004  the classes of HTTP
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json_response({"error": error}, status, headers)


def repeat_responder(responder: Responder) -> Callable[[ChatRequest], Responder]:
    """Return a function for `ChatServer` that gives every request the same responder."""
    return lambda _: responder


def send_raw(*steps: bytes | float, reset: bool = False) -> Responder:
    """Return a responder that executes `steps` in order, then closes the connection.

    Args:
        *steps: bytes to send, or seconds to pause.
        reset: close the connection with a reset (RST).
    """

    def respond(connection: Connection) -> None:
        for step in steps:
            if isinstance(step, bytes):
                connection.send(step)
            else:
                connection.pause(step)
        connection.reset() if reset else connection.close()

    return respond


def delay_responder(seconds: float, responder: Responder) -> Responder:
    """Return a responder that waits for `seconds`, then calls `responder`."""

    def respond(connection: Connection) -> None:
        connection.pause(seconds)
        responder(connection)

    return respond


def drip_response(response: Response, *, size: int = 1, pause_seconds: float = 0.05) -> Responder:
    """Return a responder that sends `response` in pieces of `size` bytes, with a pause after each piece."""

    def respond(connection: Connection) -> None:
        data = response.encode()
        for start in range(0, len(data), size):
            connection.send(data[start : start + size])
            connection.pause(pause_seconds)

    return respond


def send_endless_body(block: bytes = b" " * (64 << 10), *, pause_seconds: float = 0.0) -> Responder:
    """Return a responder that sends `block` repeatedly, with a pause after each block, and never ends.

    The default block consists of spaces, which may precede any JSON.
    """

    def respond(connection: Connection) -> None:
        connection.send(CHUNKED_HEAD)
        while True:
            connection.send(b"%x\r\n%s\r\n" % (len(block), block))
            connection.pause(pause_seconds)

    return respond


def send_gzip_bomb(response: Response, size: int = 64 << 20, filler: bytes = b" ") -> Responder:
    """Return a responder that sends a compressed body: `size` bytes of `filler`, then the body of `response`.

    The body is compressed about 1000:1.

    Cost: half a second for the first call with the same arguments.
    """

    def respond(connection: Connection) -> None:
        compressed = _compress(response.body, size, filler)
        headers = {**response.headers, "content-encoding": "gzip"}
        replace(response, body=compressed, headers=headers)(connection)

    return respond


def redirect_response(url: str, status: int = 307) -> Response:
    """Return a response that redirects the client to `url`."""
    return Response(b"", status, {"location": url})


@lru_cache(maxsize=4)
def _compress(body: bytes, size: int, filler: bytes) -> bytes:
    """Compress `filler` and `body` block by block, so that a memory test measures only the client."""
    gzip = zlib.compressobj(wbits=31)
    block = filler * _BLOCK
    parts = [gzip.compress(block[: min(_BLOCK, size - done)]) for done in range(0, size, _BLOCK)]
    return b"".join([*parts, gzip.compress(body), gzip.flush()])
