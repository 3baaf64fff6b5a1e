"""Sends requests over httpx2's transports, without the automatic behaviour of its clients.

H1 A request goes only to its address: redirects, proxies, cookies and environment variables are ignored, and
   certificates are verified against the system's store.
H2 The token is in one header, which is added here. It is in no printed value, and it is removed from texts of
   responses in every spelling, see `exchange.decoded`.
H3 A response is read up to `MAX_ANSWER_BYTES`, as it was sent, without decompression.
H4 A server receives the token only after it has proved, on the same connection, that it knows it
   (`Greeting`). On a Unix socket without a token, the listener must be this user.
H5 A thread reads or writes only for the remaining time of its `TryPatience`, and only while the transport is
   open.

Not guaranteed: the time limit of a connection, if the host name has many addresses, each of which has
`CONNECT_SECONDS`, or if its lookup is slow. An application that makes `httpcore2` log at DEBUG gets response
headers in its log.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import ssl
import struct
import threading
import time
import traceback
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from typing import Any, Final, Generic, Self, TypeVar, cast

import h11
import httpcore2
import httpx2

from muniment.client.core import ClientCore, Following
from muniment.client.errors import BadAnswer, client_closed
from muniment.client.exchange import (
    OK,
    Ask,
    HttpReply,
    Lost,
    Outcome,
    Plan,
    Try,
    decoded,
)
from muniment.client.finding import Place, Where
from muniment.client.results import Event
from muniment.errors import NOT_NOW
from muniment.names import UNIX_ADDRESS, hello_key, hello_name, hello_proof
from muniment.portable import IS_LINUX

# -- greeting ----------------------------------------------------------------------------------------
#
# Requires the server to prove that it knows the token before the token is sent; this part does no I/O.
#
# E1 Each connection that will carry a token begins with a new nonce. The token is sent only after the server
#    returns the proof of `names.hello_proof` for that nonce and the dialled address. So a recorded proof is
#    useless, and so is a proof of a daemon at another address.
# E2 A server learns only the token's name, from which the token cannot be computed.
#
# Not guaranteed: protection against an attacker between client and daemon, without TLS: it can read the
# traffic after the daemon has proved itself. On the loopback, only root can do that.
#
# Source: ADR 0026.

MAX_BYTES: Final = 4096
"""Maximum bytes of the proof response; it has about 500."""


class Stranger(httpx2.TransportError):
    """The server does not prove that it knows the token."""


class Greeting:
    """The proof exchange at the beginning of one connection.

    Args:
        where: the server, with a token.
        nonce: 64 hexadecimal digits that were never used before.

    Attributes:
        request: the bytes to send.
    """

    def __init__(self, where: Where, nonce: str) -> None:
        key = hello_key(where.token or "")
        host = httpx2.URL(where.url).netloc.decode().lower()
        address = host if where.socket is None else UNIX_ADDRESS
        self._proof, self._body, self._read = hello_proof(key, nonce, address), b"", 0
        self._status = 0
        self._connection = h11.Connection(h11.CLIENT, MAX_BYTES)
        target = f"/hello?token={hello_name(key)}&nonce={nonce}"
        asked = h11.Request(method="GET", target=target, headers=[("host", host)])
        self.request = (self._connection.send(asked) or b"") + (
            self._connection.send(h11.EndOfMessage()) or b""
        )

    def feed(self, data: bytes) -> bool:
        """Return whether the received data proves the daemon's identity; b"" means end of data.

        Raises:
            Stranger: the proof is wrong or missing.
            httpx2.ConnectError: the connection ends here; a retry may succeed.
        """
        self._read += len(data)
        try:
            self._connection.receive_data(data)
            while (event := self._connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._check()
                    return True
                elif isinstance(event, h11.ConnectionClosed):
                    raise httpx2.ConnectError("the connection ended early")
        except h11.RemoteProtocolError:
            if not data:
                raise httpx2.ConnectError("the connection ended early") from None
            raise Stranger("it does not use HTTP") from None
        if self._read > MAX_BYTES:
            raise Stranger("its response is too long")
        return False

    def _check(self) -> None:
        if self._status in NOT_NOW:
            raise httpx2.ConnectError("the daemon is busy")
        said = decoded(self._body, "") if self._status == OK else None
        proof = said.get("proof") if isinstance(said, dict) else None
        if not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise Stranger(f"its response has status {self._status}, without the proof")
        if self._connection.their_state is not h11.DONE or self._connection.trailing_data[0]:
            raise httpx2.ConnectError("the connection ended early")


# -- transport ---------------------------------------------------------------------------------------

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of a response; the largest is a page of tasks."""

CONNECT_SECONDS: Final = 5.0

_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=4.0)
"""The daemon closes idle connections after 75 s, others after 5 s; closing first avoids lost requests."""

_BEFORE: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_CREDENTIALS: Final = struct.Struct("3i")
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED, _XUCRED_BYTES = 0, 1, struct.Struct("2I"), 76
"""Constants of macOS for the user of a peer: `xucred` of <sys/ucred.h> begins with version and user id."""
_PIECE_BYTES: Final = 4096

C = TypeVar("C")


class Connections(Generic[C]):
    """The connections of a client, which are replaced after the daemon has moved.

    Args:
        place: finds the daemon.
        make: creates connections to an address.
    """

    def __init__(self, place: Place, make: Callable[[Where], C]) -> None:
        self._place, self._make = place, make
        self._lock = threading.Lock()
        self._current: tuple[Where, C] | None = None
        self._retired: list[C] = []
        self._is_closed = False

    def open(self, *, afresh: bool) -> tuple[Where, C] | Lost:
        """Return the address of the daemon, and the connections to it.

        Args:
            afresh: find the daemon again.

        Raises:
            ClientError: the client is closed.
            ManagedMemoryUnavailable: the file with the address cannot be trusted.
        """
        with self._lock:
            if self._is_closed:
                raise client_closed()
            if afresh or self._current is None:
                where = self._place.find()
                if where is None:
                    return Lost(self._place.nobody, may_have_arrived=False)
                if self._current is None or self._current[0] != where:
                    self._retire()
                    self._current = where, self._make(where)
            return self._current

    def retired(self) -> list[C]:
        """Return the connections that are no longer used, and must be closed."""
        with self._lock:
            found, self._retired = self._retired, []
            return found

    def close(self) -> None:
        """Open no more connections."""
        with self._lock:
            self._is_closed = True
            self._retire()

    def _retire(self) -> None:
        if self._current is not None:
            self._retired.append(self._current[1])
            self._current = None


class TryPatience:
    """The time limit of each wait in a try: the remaining seconds or, after `endless`, all of its seconds.

    Args:
        seconds: seconds of the try.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = time.monotonic() + seconds

    def endless(self) -> None:
        """Give each further wait the full time: a stream has begun."""
        self._end = None

    def left(self) -> float:
        """Return the seconds for the next wait; 0 or less: none are left."""
        return self._seconds if self._end is None else self._end - time.monotonic()


def _peer_is_us(connection: socket.socket) -> None:
    """Raise `Stranger` if another user listens on a Unix socket."""
    if IS_LINUX:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _pid, uid, _gid = _CREDENTIALS.unpack(data)
    else:
        data = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        version, uid = _XUCRED.unpack_from(data)
        if version:
            raise Stranger("this system does not report which user listens on the socket")
    if uid != os.geteuid():
        raise Stranger("another user listens on the socket")


def _nonce() -> str:
    return secrets.token_hex(32)


class _Stream(httpcore2.NetworkStream):
    """A connection of a thread. Another thread may close it: that wakes its reader, and waits for it."""

    def __init__(self, inner: httpcore2.NetworkStream, where: Where) -> None:
        self._inner, self._where = inner, where
        self._in_use = threading.Lock()

    def read(self, max_bytes: int, timeout: float | TryPatience | None = None) -> bytes:
        with self._in_use:
            return self._inner.read(max_bytes, _seconds(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | TryPatience | None = None) -> None:
        with self._in_use:
            self._inner.write(buffer, _seconds(timeout, httpcore2.WriteTimeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        with self._in_use:
            self._inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        return self.greet(timeout)

    def greet(self, timeout: float | None) -> Self:
        """Verify that the server is the daemon (H4); otherwise close the connection."""
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
        greeting, patience = Greeting(self._where, _nonce()), TryPatience(timeout or CONNECT_SECONDS)
        with _connecting():
            self.write(greeting.request, patience)
            while not greeting.feed(self.read(_PIECE_BYTES, patience)):
                pass

    def get_extra_info(self, info: str) -> Any:
        try:
            return self._inner.get_extra_info(info)
        # From select(), on systems without poll(2), if another thread has closed the connection.
        except OSError:
            if info != "is_readable":
                raise
            return True

    def close(self) -> None:
        with suppress(OSError):  # It is already closed.
            socket.socket.shutdown(self._inner.get_extra_info("socket"), socket.SHUT_RDWR)
        with self._in_use:
            self._inner.close()


def _seconds(timeout: float | TryPatience | None, late: type[Exception]) -> float | None:
    if not isinstance(timeout, TryPatience):
        return timeout
    left = timeout.left()
    if left <= 0:
        raise late
    return left


class _Backend(httpcore2.SyncBackend):
    """Creates connections for threads, until it is closed together with all of them."""

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
            # Close the socket that the base class leaves open if the connection is refused: it is in its
            # frame.
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
        raise httpcore2.ConnectError("the client is closed")


class Threaded(httpx2.HTTPTransport):
    """Connections for threads; closing it ends their waits."""

    def __init__(self, where: Where) -> None:
        super().__init__(verify=_tls(where), trust_env=False, limits=_LIMITS, uds=where.socket)
        self._backend = _Backend(where)
        self._pool._network_backend = self._backend  # noqa: SLF001  the only way to set it

    def close(self) -> None:
        """Close all connections, including those in use."""
        self._backend.close()
        super().close()


class _LoopedStream(httpcore2.AsyncNetworkStream):
    """A connection of an event loop that verifies the server after encryption has started."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, where: Where) -> None:
        self._inner, self._where = inner, where
        self.read, self.write, self.aclose = inner.read, inner.write, inner.aclose  # type: ignore[method-assign]
        self.get_extra_info = inner.get_extra_info  # type: ignore[method-assign]

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        return await _greeted(await self._inner.start_tls(*args, **kwargs), self._where)


class _LoopedBackend(httpcore2.AnyIOBackend):
    """Creates connections for an event loop."""

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
    """Return the connection after the daemon has proved itself (H4); otherwise close it and raise."""
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
    """Convert errors in the block to connection errors: the request itself was not sent."""
    try:
        yield
    except (httpcore2.TimeoutException, TimeoutError):
        raise httpcore2.ConnectTimeout from None
    except httpcore2.NetworkError:
        raise httpcore2.ConnectError("the connection ended early") from None


def looped(where: Where) -> httpx2.AsyncHTTPTransport:
    """Return connections for an event loop."""
    transport = httpx2.AsyncHTTPTransport(
        verify=_tls(where), trust_env=False, limits=_LIMITS, uds=where.socket
    )
    transport._pool._network_backend = _LoopedBackend(where)  # noqa: SLF001  the only way to set it
    return transport


def request(where: Where, ask: Ask, seconds: float, patience: TryPatience | None = None) -> httpx2.Request:
    """Return the HTTP request; each wait may take `seconds`, or the remaining time of `patience`."""
    headers = {**ask.headers, "accept-encoding": "identity"}
    if where.token is not None:
        headers["authorization"] = f"Bearer {where.token}"
    each = patience or seconds
    times = {"connect": min(seconds, CONNECT_SECONDS), "read": each, "write": each, "pool": seconds}
    return httpx2.Request(
        ask.method, f"{where.url}{ask.path}", headers=headers, content=ask.body, extensions={"timeout": times}
    )


def lost(error: httpx2.TransportError) -> Lost:
    """Return the reason for a missing response, as an internal text."""
    if isinstance(error, Stranger):
        return Lost(str(error), may_have_arrived=False, is_stranger=True)
    if isinstance(error, _BEFORE):
        return Lost("the connection was refused or timed out", may_have_arrived=False)
    if isinstance(error, httpx2.TimeoutException):
        return Lost("it took too long", may_have_arrived=True)
    return Lost("the connection ended early", may_have_arrived=True)


def head(response: httpx2.Response, where: Where, body: bytes = b"") -> HttpReply:
    """Return a response as a value."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    if headers.get("content-encoding", "identity") != "identity":
        raise BadAnswer("the response is compressed although no compression was requested")
    return HttpReply(response.status_code, headers, body, where.token or "")


def grow(body: bytearray, piece: bytes) -> None:
    """Add a piece to the body of a response.

    Raises:
        BadAnswer: it is too long (H3).
    """
    body += piece
    if len(body) > MAX_ANSWER_BYTES:
        raise BadAnswer(f"the response has more than {MAX_ANSWER_BYTES} bytes")


def _tls(where: Where) -> ssl.SSLContext | bool:
    """Return the TLS verification: the system's certificates, or without TLS an empty context (faster)."""
    return where.url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


# -- loop --------------------------------------------------------------------------------------------
#
# The shell for asyncio: executes plans on one event loop, and makes no decisions.
#
# L1 A try ends after its seconds, even if the daemon still sends data, or when the shell is closed.

T = TypeVar("T")


class Loop:
    """Executes plans on an event loop.

    Args:
        place: finds the daemon.
    """

    def __init__(self, place: Place) -> None:
        self._line = Connections(place, looped)
        self._limits: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def run(self, plan: Plan[T]) -> T:
        """Return the result of a plan, or raise its exception."""
        try:
            step = next(plan)
            while True:
                await self._sleep(step.pause)
                step = plan.send(await self._carry_out(step))
        except StopIteration as end:
            return cast("T", end.value)

    async def follow(self, core: ClientCore, after: str | None) -> AsyncGenerator[Event]:
        """Yield the events after a given one, with marks, see `Following`."""
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
        """Close the connections, and end all waits."""
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
        """Raise `TimeoutError` after so many seconds, or when the shell is closed."""
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
                    return await read_reply(response, where)
        except httpx2.TransportError as error:
            return lost(error)
        except TimeoutError:
            return Lost("it took too long", may_have_arrived=True)

    async def _stream(self, step: Try, following: Following) -> AsyncGenerator[Event | Lost]:
        """Yield the events of one connection, and the reason for its end; no reason if no stream began."""
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
                        following.answered(await read_reply(response, where))
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


async def read_reply(response: httpx2.Response, where: Where) -> HttpReply:
    """Return a complete response. Raises as `grow` and `head`."""
    body = bytearray()
    async for piece in response.aiter_raw():
        grow(body, piece)
    return head(response, where, bytes(body))


# -- threads -----------------------------------------------------------------------------------------
#
# The shell for threads: executes plans in the calling thread, and makes no decisions.
#
# L2 A try ends after its seconds, even if the daemon still sends data, or when another thread closes the
# shell; see `transport` for the time to connect.


class Threads:
    """Executes plans in the calling thread.

    Args:
        place: finds the daemon.
    """

    def __init__(self, place: Place) -> None:
        self._line = Connections(place, Threaded)
        self._closing = threading.Event()
        self._sleep: Callable[[float], object] = self._closing.wait

    def run(self, plan: Plan[T]) -> T:
        """Return the result of a plan, or raise its exception."""
        try:
            step = next(plan)
            while True:
                self._sleep(step.pause)
                step = plan.send(self._carry_out(step))
        except StopIteration as end:
            return cast("T", end.value)

    def follow(self, core: ClientCore, after: str | None) -> Generator[Event]:
        """Yield the events after a given one, with marks, see `Following`."""
        following = Following(core, after)
        while True:
            step = following.again()
            self._sleep(step.pause)
            outcome = yield from self._stream(step, following)
            if outcome is not None:
                following.lost(outcome)

    def close(self) -> None:
        """Close the connections, and end all waits."""
        self._line.close()
        self._closing.set()
        self._tidy()

    def _carry_out(self, step: Try) -> Outcome:
        opened = self._open(step)
        if isinstance(opened, Lost):
            return opened
        where, transport = opened
        try:
            patience = TryPatience(step.seconds)
            response = transport.handle_request(request(where, step.ask, step.seconds, patience))
            with closing(response):
                return _read(response, where)
        except httpx2.TransportError as error:
            return lost(error)

    def _stream(self, step: Try, following: Following) -> Generator[Event, None, Lost | None]:
        """Yield the events of one connection until it ends; return None if no stream began."""
        opened = self._open(step)
        if isinstance(opened, Lost):
            return opened
        where, transport = opened
        try:
            patience = TryPatience(step.seconds)
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


def _read(response: httpx2.Response, where: Where) -> HttpReply:
    body = bytearray()
    for piece in response.iter_raw():
        grow(body, piece)
    return head(response, where, bytes(body))
