"""A Chat Completions server on the loopback that answers as a test wants, well or badly.

    from muniment.agent.openai import OpenAIModel
    from muniment.testing.chat_server import ChatServer, words

    with ChatServer([words("Saved to user/editor.md.")]) as server:
        model = OpenAIModel("scripted", base_url=server.base_url)
        ...
    assert server.requests[0].body["model"] == "scripted"

    ChatServer([failure(429, "slow down", retry_after=1), words("Saved to user/editor.md.")])
    ChatServer(always(drip(words("Saved."), size=1, every=0.05)))

A `Response` is honest HTTP, whatever its body says; the other answers break HTTP or never end.

S1. A request is kept whole before it is answered; none is answered twice, whatever its path.
S2. `ChatRequest.hung_up` is set as soon as the client closes its connection during the answer, also while
    that answer stalls or drips.
S3. Leaving the context ends every answer, thread and socket of the server. An answer that waits for
    something else than its `Connection` must end by itself.

It reads HTTP/1.1 as clients of JSON write it: bodies with a Content-Length, no chunks. It is reachable
from this machine only. Standard library only.
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
from muniment.kernel.cancel import Patience

MAX_HEAD_BYTES: Final = 64 << 10
"""Bytes of a request line with its headers."""

MAX_REQUEST_BYTES: Final = 8 << 20
"""Bytes of a request's body: many times what a run of six turns can say."""

LEAVE_SECONDS: Final = 5.0
"""Seconds that an answer may still run once its server was left."""

_PIECE_BYTES: Final = 64 << 10
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: on, for no time

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class ChatRequest:
    """What a client sent.

    Attributes:
        headers: by lower-case name.
        raw: the body as it came.
        body: the body as JSON; None where it is none.
        hung_up: set if the client closes the connection before the answer is complete (S2).
    """

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    hung_up: threading.Event = field(default_factory=threading.Event, repr=False)


class Connection:
    """One client, as an answer writes to it.

    Every wait ends with `ConnectionAbortedError` when the client closes the connection, and with `Cancelled`
    when the server is left; an answer need catch neither.
    """

    def __init__(self, client: socket.socket, leaving: Cancel) -> None:
        client.setblocking(False)
        self._client, self._leaving = client, leaving
        self._received = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether another request may follow on this connection."""
        return self._client.fileno() >= 0

    def send(self, data: bytes) -> None:
        """Send all of `data`, at the pace at which the client reads."""
        rest = memoryview(data)
        while rest:
            if self._is_gone():
                raise ConnectionAbortedError
            send = partial(self._client.send, rest[:_PIECE_BYTES])
            rest = rest[self._attempt(send, select.POLLOUT) :]

    def pause(self, seconds: float = math.inf) -> None:
        """Send nothing for so long."""
        with suppress(DeadlineExceeded):
            self._wait(0, seconds)

    def close(self) -> None:
        """End the connection; the client reads what was sent, and then its end."""
        self._client.close()

    def reset(self) -> None:
        """End the connection with a reset (RST), which may overtake what was sent."""
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._client.close()

    def shake_hands(self) -> None:
        """Begin TLS, where the server has a certificate."""
        if isinstance(self._client, ssl.SSLSocket):
            self._attempt(self._client.do_handshake, select.POLLIN)

    def read_request(self) -> ChatRequest | Response | None:
        """The next request, or what to say to one that is not read here; None: the client is done."""
        if not isinstance(head := self._read_head(), bytes):
            return head
        first, *lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal():
            return _unread(411, "a body needs a Content-Length here")
        if len(length) > len(str(MAX_REQUEST_BYTES)) or int(length) > MAX_REQUEST_BYTES:
            return _unread(413, f"the body has more than {MAX_REQUEST_BYTES} bytes")
        raw = self._read(int(length))
        match first.split(" "):
            case [method, path, _]:
                return ChatRequest(method, path, headers, raw, _parsed(raw))
            case _:
                return _unread(400, "the request line is none of HTTP")

    def refuse(self, why: Response) -> None:
        """Say why a request is not read, and wait until the client has heard it."""
        why(self)
        # Closed with unread bytes, the connection would be reset and the client might never see the answer.
        self._attempt(lambda: self._client.shutdown(socket.SHUT_WR), select.POLLOUT)
        while self._receive():
            pass

    def _read_head(self) -> bytes | Response | None:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > MAX_HEAD_BYTES:
                return _unread(431, f"the headers have more than {MAX_HEAD_BYTES} bytes")
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
        return self._attempt(lambda: self._client.recv(_PIECE_BYTES), select.POLLIN)

    def _attempt(self, operation: Callable[[], _T], mask: int) -> _T:
        """Carry out an operation on the socket as soon as it can be."""
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
        """Wait for one of the poll(2) events of `mask`; unless that is to read, a client may not hang up."""
        reads = mask & select.POLLIN
        patience = Patience(time.monotonic() + seconds, self._leaving)
        patience.wait(self._client.fileno(), mask if reads else mask | select.POLLRDHUP)
        if not reads and self._is_gone():
            raise ConnectionAbortedError

    def _is_gone(self) -> bool:
        poller = select.poll()
        poller.register(self._client.fileno(), select.POLLRDHUP)
        return bool(poller.poll(0))


Answer = Callable[[Connection], None]
"""What a server says to one request."""


class ChatServer:
    """Answers requests at `base_url` as it is told; to be used as a context manager.

    Args:
        answer: a function from each request to its answer, or answers in the order of the requests;
            when these run out, further requests are answered with status 500. What the function raises
            ends its connection and thread, and is reported as Python reports errors of threads.
        certificate: a PEM file with a key and its certificate, for TLS.
        port: where to listen; 0: anywhere.
    """

    def __init__(
        self,
        answer: Callable[[ChatRequest], Answer] | Iterable[Answer],
        *,
        certificate: Path | None = None,
        port: int = 0,
    ) -> None:
        self._answer = answer if callable(answer) else iter(answer)
        self._certificate, self._port = certificate, port
        self._requests: list[ChatRequest] = []
        self._arrival = threading.Condition()
        self._script = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._tls: ssl.SSLContext | None = None
        if self._certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(self._certificate)
        self._leaving = Cancel()
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._leaving.set()
        accepting, *_ = self._threads
        accepting.join()  # Now no further thread begins.
        for thread in self._threads:
            thread.join(LEAVE_SECONDS)
        self._listener.close()
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(
                "an answer of this server still runs; let it wait by its connection's pause() only"
            )
        self._leaving.close()

    @property
    def base_url(self) -> str:
        """Where the API begins, as clients want it: `http://127.0.0.1:PORT/v1`."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}/v1"

    @property
    def requests(self) -> list[ChatRequest]:
        """The requests so far, in order of arrival."""
        with self._arrival:
            return list(self._requests)

    def wait_for_requests(self, count: int = 1, seconds: float = 10.0) -> list[ChatRequest]:
        """The requests, once there are `count`.

        Raises:
            TimeoutError: there are not so many within `seconds`.
        """
        with self._arrival:
            if not self._arrival.wait_for(lambda: len(self._requests) >= count, seconds):
                raise TimeoutError(f"{len(self._requests)} of {count} requests came within {seconds:g} s")
            return list(self._requests)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="chat-server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(Cancelled):
            while True:
                Patience(math.inf, self._leaving).wait(self._listener.fileno(), select.POLLIN)
                with suppress(BlockingIOError, ConnectionAbortedError):  # The client thought better of it.
                    client, _ = self._listener.accept()
                    if self._tls is not None:
                        client = self._tls.wrap_socket(
                            client, server_side=True, do_handshake_on_connect=False
                        )
                    self._start(self._converse, Connection(client, self._leaving))

    def _converse(self, connection: Connection) -> None:
        """Read and answer the requests of one connection, until either side ends it."""
        try:
            with suppress(ConnectionAbortedError, Cancelled):
                connection.shake_hands()
                while connection.is_open and (request := connection.read_request()) is not None:
                    if isinstance(request, Response):
                        connection.refuse(request)
                        return
                    self._respond(request, connection)
        finally:
            connection.close()

    def _respond(self, request: ChatRequest, connection: Connection) -> None:
        with self._arrival:
            self._requests.append(request)
            self._arrival.notify_all()
        answer = self._next(request)
        try:
            answer(connection)
        except ConnectionAbortedError:
            request.hung_up.set()
            raise
        if request.headers.get("connection", "").lower() == "close":
            connection.close()

    def _next(self, request: ChatRequest) -> Answer:
        if callable(self._answer):
            return self._answer(request)
        with self._script:
            return next(self._answer, _run_out)


def http_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of an HTTP response; `headers` (lower-case names) add to its own or take their place."""
    own = {"content-type": "application/json"}
    if "transfer-encoding" not in (headers or {}):
        own["content-length"] = str(len(body))
    lines = [f"{name}: {value}\r\n" for name, value in {**own, **(headers or {})}.items()]
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{''.join(lines)}\r\n".encode("latin-1") + body


def _run_out(connection: Connection) -> None:
    connection.send(http_response(_error("the script of this server has no further answer"), 500))


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "chat_server"}}).encode()


def _unread(status: int, why: str) -> Response:
    return Response(_error(why), status, {"connection": "close"})


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


_BLOCK: Final = 1 << 20
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED: Final = HEAD + b"transfer-encoding: chunked\r\n\r\n"
"""Beginnings of a response, to be gone on with by `raw`."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole HTTP response, sent at once; the connection is kept for further requests.

    Attributes:
        headers: by lower-case name; they add to Content-Type and Content-Length or take their place.
    """

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """The bytes of the response."""
        return http_response(self.body, self.status, self.headers)

    def __call__(self, connection: Connection) -> None:
        """Send it."""
        connection.send(self.encoded())


def document(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response whose body is `value` as JSON."""
    return Response(json.dumps(value).encode(), status, headers or {})


def completion(
    message: Mapping[str, Any],
    finish_reason: str | None = "stop",
    usage: tuple[int, int] | None = (100, 10),
) -> Response:
    """A chat completion with one choice.

    Args:
        message: the keys of the message beside its role.
        finish_reason: why the model stopped, as OpenAI names it: stop, tool_calls, length.
        usage: tokens in and out; None: the server does not say.
    """
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    whole: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "scripted",
        "choices": [choice],
    }
    if usage is not None:
        tokens_in, tokens_out = usage
        whole["usage"] = {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }
    return document(whole)


def words(text: str | None, finish_reason: str | None = "stop") -> Response:
    """A completion that says `text` and calls nothing."""
    return completion({"content": text}, finish_reason)


def tool_call(tool: str, arguments: Any, call_id: str = "call-1") -> dict[str, Any]:
    """One entry of a message's `tool_calls`, as OpenAI writes it."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def tool_calls(*calls: Any) -> Response:
    """A completion that makes calls, which need not be ones of `tool_call`."""
    return completion({"content": None, "tool_calls": list(calls)}, "tool_calls")


def failure(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    retry_after: float | str | None = None,
) -> Response:
    """An error as OpenAI spells it; `retry_after` is in seconds, or any text."""
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004  the classes of HTTP
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    error = {"message": message, "type": kind, "param": param, "code": code}
    return document({"error": error}, status, headers)


def always(answer: Answer) -> Callable[[ChatRequest], Answer]:
    """The same answer to every request, for a `ChatServer`."""
    return lambda _: answer


def raw(*steps: bytes | float, reset: bool = False) -> Answer:
    """Send the bytes, pause for the seconds, as they come; then close the connection, or reset it."""

    def answer(connection: Connection) -> None:
        for step in steps:
            if isinstance(step, bytes):
                connection.send(step)
            else:
                connection.pause(step)
        connection.reset() if reset else connection.close()

    return answer


def late(seconds: float, answer: Answer) -> Answer:
    """`answer`, after so many seconds without a byte."""

    def answer_late(connection: Connection) -> None:
        connection.pause(seconds)
        answer(connection)

    return answer_late


def drip(response: Response, *, size: int = 1, every: float = 0.05) -> Answer:
    """`response` from its first header on, `size` bytes every so many seconds."""

    def answer(connection: Connection) -> None:
        data = response.encoded()
        for start in range(0, len(data), size):
            connection.send(data[start : start + size])
            connection.pause(every)

    return answer


def endless(block: bytes = b" " * (64 << 10), *, every: float = 0.0) -> Answer:
    """A body that never ends: `block` over and over, every so many seconds. Spaces may begin any JSON."""

    def answer(connection: Connection) -> None:
        connection.send(CHUNKED)
        while True:
            connection.send(b"%x\r\n%s\r\n" % (len(block), block))
            connection.pause(every)

    return answer


def bomb(response: Response, size: int = 64 << 20, filler: bytes = b" ") -> Answer:
    """`response` behind `size` bytes of `filler`, all compressed to about a thousandth.

    Cost: half a second for the first of its kind.
    """

    def answer(connection: Connection) -> None:
        compressed = _compressed(response.body, size, filler)
        headers = {**response.headers, "content-encoding": "gzip"}
        replace(response, body=compressed, headers=headers)(connection)

    return answer


def redirect(url: str, status: int = 307) -> Response:
    """Send the client elsewhere."""
    return Response(b"", status, {"location": url})


@lru_cache(maxsize=4)
def _compressed(body: bytes, size: int, filler: bytes) -> bytes:
    """Compress `filler` and `body`, block by block: the memory that a test measures is the client's."""
    gzip = zlib.compressobj(wbits=31)
    block = filler * _BLOCK
    parts = [gzip.compress(block[: min(_BLOCK, size - done)]) for done in range(0, size, _BLOCK)]
    return b"".join([*parts, gzip.compress(body), gzip.flush()])
