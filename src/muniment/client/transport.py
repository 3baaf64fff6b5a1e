"""Carries requests over httpx2's transports, without anything that its clients do by themselves.

H1 A request goes to the one place that it is for: no redirect is followed, no proxy, cookie or variable of
   the environment is heeded, certificates are verified against the system's store.
H2 The token stands in one header, added here. It is in no value that is printed; what an answer says loses
   it, however it is spelt there, see `exchange.decoded`.
H3 An answer is read up to `MAX_ANSWER_BYTES`, as it was sent: nothing is decompressed.
H4 Nobody is sent a token before having proved to know it, on that very connection (`greeting`). On a Unix
   socket without one, whoever listens is this user.
H5 A thread that reads or writes does so for what is left of its `Patience`, and no longer than the transport
   is open.

Do not hold: that a connection is made in time, or not any more, where the name of the host has many
addresses, each of which has `CONNECT_SECONDS`, or is hard to look up. An application that has `httpcore2` log
at DEBUG gets the headers of answers into its log.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import struct
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, Self, TypeVar

import httpcore2
import httpx2

from muniment.client.errors import BadAnswer, ClientClosed
from muniment.client.exchange import Ask, Lost, Reply
from muniment.client.finding import Place, Where
from muniment.client.greeting import Greeting, Stranger

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Bytes of an answer; the largest is a page of tasks."""

CONNECT_SECONDS: Final = 5.0

_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=4.0)
"""The daemon closes what is idle for 75 s, others for 5 s; whoever closes first loses no request by it."""

_BEFORE: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_CREDENTIALS: Final = struct.Struct("3i")
_PIECE_BYTES: Final = 4096

C = TypeVar("C")


class Line(Generic[C]):
    """The connections of a client, which are others once the daemon has moved.

    Args:
        place: where the daemon is to be looked for.
        make: makes connections to where it is.
    """

    def __init__(self, place: Place, make: Callable[[Where], C]) -> None:
        self._place, self._make = place, make
        self._lock = threading.Lock()
        self._current: tuple[Where, C] | None = None
        self._retired: list[C] = []
        self._is_closed = False

    def open(self, *, afresh: bool) -> tuple[Where, C] | Lost:
        """Where the daemon is, and the connections to there.

        Args:
            afresh: look again where it is.

        Raises:
            ClientClosed: there is nothing more to be sent.
            ManagedMemoryUnavailable: what says where it is cannot be relied on.
        """
        with self._lock:
            if self._is_closed:
                raise ClientClosed
            if afresh or self._current is None:
                where = self._place.find()
                if where is None:
                    return Lost(self._place.nobody, may_have_arrived=False)
                if self._current is None or self._current[0] != where:
                    self._retire()
                    self._current = where, self._make(where)
            return self._current

    def retired(self) -> list[C]:
        """The connections that are no longer used, to be closed."""
        with self._lock:
            found, self._retired = self._retired, []
            return found

    def close(self) -> None:
        """Open nothing more."""
        with self._lock:
            self._is_closed = True
            self._retire()

    def _retire(self) -> None:
        if self._current is not None:
            self._retired.append(self._current[1])
            self._current = None


class Patience:
    """What each wait of a try may take: what is left of its seconds; once it is `endless`, all of them.

    Args:
        seconds: for the try.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = time.monotonic() + seconds

    def endless(self) -> None:
        """Give each further wait the seconds of the whole: a stream has begun."""
        self._end = None

    def left(self) -> float:
        """Seconds for the next wait; 0 or less: none."""
        return self._seconds if self._end is None else self._end - time.monotonic()


def _peer_is_us(connection: socket.socket) -> None:
    """Raise `Stranger` where another user listens on a Unix socket."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    if uid != os.geteuid():
        raise Stranger("another user listens on the socket")


def _nonce() -> str:
    return secrets.token_hex(32)


class _Stream(httpcore2.NetworkStream):
    """A connection of a thread, which another one may close: that wakes whoever reads, and waits for them."""

    def __init__(self, inner: httpcore2.NetworkStream, where: Where) -> None:
        self._inner, self._where = inner, where
        self._in_use = threading.Lock()

    def read(self, max_bytes: int, timeout: float | Patience | None = None) -> bytes:
        with self._in_use:
            return self._inner.read(max_bytes, _seconds(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | Patience | None = None) -> None:
        with self._in_use:
            self._inner.write(buffer, _seconds(timeout, httpcore2.WriteTimeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        with self._in_use:
            self._inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        return self.greet(timeout)

    def greet(self, timeout: float | None) -> Self:
        """Go on with the daemon alone (H4); else the connection is closed."""
        try:
            self._greet(timeout)
        except BaseException:
            self.close()
            raise
        return self

    def _greet(self, timeout: float | None) -> None:
        if self._where.token is None:
            if self._where.socket is not None:
                _peer_is_us(self.get_extra_info("socket"))
            return
        greeting, patience = Greeting(self._where, _nonce()), Patience(timeout or CONNECT_SECONDS)
        with _connecting():
            self.write(greeting.request, patience)
            while not greeting.feed(self.read(_PIECE_BYTES, patience)):
                pass

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    def close(self) -> None:
        with suppress(OSError):  # It is closed already.
            socket.socket.shutdown(self._inner.get_extra_info("socket"), socket.SHUT_RDWR)
        with self._in_use:
            self._inner.close()


def _seconds(timeout: float | Patience | None, late: type[Exception]) -> float | None:
    if not isinstance(timeout, Patience):
        return timeout
    left = timeout.left()
    if left <= 0:
        raise late
    return left


class _Backend(httpcore2.SyncBackend):
    """Makes connections for threads, until it is closed with all of them."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._is_closed = False

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **kwargs: Any
    ) -> httpcore2.NetworkStream:
        stream = self._keep(super().connect_tcp(host, port, timeout, *args, **kwargs))
        return stream if self._where.url.startswith("https:") else stream.greet(timeout)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, *args: Any, **kwargs: Any
    ) -> httpcore2.NetworkStream:
        try:
            return self._keep(super().connect_unix_socket(path, timeout, *args, **kwargs)).greet(timeout)
        except (httpcore2.NetworkError, httpcore2.TimeoutException) as error:
            # Close what the base leaves open where nobody takes a connection: the socket stands in its frame.
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if isinstance(left := frame.f_locals.get("sock"), socket.socket):
                    left.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def _keep(self, inner: httpcore2.NetworkStream) -> _Stream:
        stream = _Stream(inner, self._where)
        with self._lock:
            if not self._is_closed:
                self._streams.add(stream)
                return stream
        stream.close()
        raise httpcore2.ConnectError("the client was closed")


class Threaded(httpx2.HTTPTransport):
    """Connections for threads; closing it ends what they wait for."""

    def __init__(self, where: Where) -> None:
        super().__init__(verify=_tls(where), trust_env=False, limits=_LIMITS, uds=where.socket)
        self._backend = _Backend(where)
        self._pool._network_backend = self._backend  # noqa: SLF001  no other way in

    def close(self) -> None:
        """Close all connections, also those in use."""
        self._backend.close()
        super().close()


class _LoopedStream(httpcore2.AsyncNetworkStream):
    """A connection of an event loop that greets once it is encrypted."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, where: Where) -> None:
        self._inner, self._where = inner, where
        self.read, self.write, self.aclose = inner.read, inner.write, inner.aclose  # type: ignore[method-assign]
        self.get_extra_info = inner.get_extra_info  # type: ignore[method-assign]

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        return await _greeted(await self._inner.start_tls(*args, **kwargs), self._where)


class _LoopedBackend(httpcore2.AnyIOBackend):
    """Makes connections for an event loop."""

    def __init__(self, where: Where) -> None:
        self._where = where

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(*args, **kwargs)
        if self._where.url.startswith("https:"):
            return _LoopedStream(stream, self._where)
        return await _greeted(stream, self._where)

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        return await _greeted(await super().connect_unix_socket(*args, **kwargs), self._where)


async def _greeted(stream: httpcore2.AsyncNetworkStream, where: Where) -> httpcore2.AsyncNetworkStream:
    """The connection, once the daemon has proved itself (H4), and closed where it has not."""
    try:
        if where.token is None:
            if where.socket is not None:
                _peer_is_us(stream.get_extra_info("socket"))
            return stream
        greeting = Greeting(where, _nonce())
        with _connecting():
            async with asyncio.timeout(CONNECT_SECONDS):
                await stream.write(greeting.request)
                while not greeting.feed(await stream.read(_PIECE_BYTES)):
                    pass
    except BaseException:
        await stream.aclose()
        raise
    return stream


@contextmanager
def _connecting() -> Iterator[None]:
    """What goes wrong meanwhile has nothing to do with what is to be asked."""
    try:
        yield
    except (httpcore2.TimeoutException, TimeoutError):
        raise httpcore2.ConnectTimeout from None
    except httpcore2.NetworkError:
        raise httpcore2.ConnectError("the connection ended early") from None


def looped(where: Where) -> httpx2.AsyncHTTPTransport:
    """Connections for an event loop."""
    transport = httpx2.AsyncHTTPTransport(
        verify=_tls(where), trust_env=False, limits=_LIMITS, uds=where.socket
    )
    transport._pool._network_backend = _LoopedBackend(where)  # noqa: SLF001  no other way in
    return transport


def request(where: Where, ask: Ask, seconds: float, patience: Patience | None = None) -> httpx2.Request:
    """What is sent; each wait for the daemon may take `seconds`, or what is left of `patience`."""
    headers = {**ask.headers, "accept-encoding": "identity"}
    if where.token is not None:
        headers["authorization"] = f"Bearer {where.token}"
    each = patience or seconds
    times = {"connect": min(seconds, CONNECT_SECONDS), "read": each, "write": each, "pool": seconds}
    return httpx2.Request(
        ask.method, f"{where.url}{ask.path}", headers=headers, content=ask.body, extensions={"timeout": times}
    )


def lost(error: httpx2.TransportError) -> Lost:
    """What it means that there was no answer; in words of ours."""
    if isinstance(error, Stranger):
        return Lost(str(error), may_have_arrived=False, is_stranger=True)
    if isinstance(error, _BEFORE):
        return Lost("nobody takes the connection", may_have_arrived=False)
    if isinstance(error, httpx2.TimeoutException):
        return Lost("it took too long", may_have_arrived=True)
    return Lost("the connection ended early", may_have_arrived=True)


def head(response: httpx2.Response, where: Where, body: bytes = b"") -> Reply:
    """An answer as a value."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    if headers.get("content-encoding", "identity") != "identity":
        raise BadAnswer("the answer is compressed, which nobody asked for")
    return Reply(response.status_code, headers, body, where.token or "")


def grow(body: bytearray, piece: bytes) -> None:
    """Add a piece to the body of an answer.

    Raises:
        BadAnswer: it is too long (H3).
    """
    body += piece
    if len(body) > MAX_ANSWER_BYTES:
        raise BadAnswer(f"the answer has more than {MAX_ANSWER_BYTES} bytes")


def _tls(where: Where) -> ssl.SSLContext | bool:
    """The system's certificates; without TLS none, as loading them takes 20 ms."""
    return where.url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
