"""Send requests over the transports of httpx2, without the automatic behaviour of its clients.

H1 A request goes only to its own address: redirects, proxies, cookies and environment variables are ignored.
   TLS certificates are verified with the certificate store of the system.
H2 The token is sent in one header, which only this module adds. No printed value contains the token, and it
   is removed from all texts of responses (`exchange.decode_json`).
H3 A response is read up to `MAX_RESPONSE_BYTES`, as it was sent, without decompression.
H4 A server receives the token only after it has proved, on the same connection, that it knows the token
   (`ServerProof`). On a Unix socket without a token, the process that listens must belong to this user.
H5 A thread reads or writes only for the remaining time of its `AttemptTimeout`, and only while the transport
   is open.

Not guaranteed: opening a connection may take longer than its time limit. Each address of the host name has
`CONNECT_SECONDS`, and the lookup of the name may be slow. If an application makes `httpcore2` log at DEBUG,
its log contains the headers of responses.
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

from muniment.client.core import ClientCore
from muniment.client.discovery import DaemonAddress, Locator
from muniment.client.errors import BadAnswer, build_closed_error
from muniment.client.exchange import (
    OK,
    HttpRequest,
    HttpResponse,
    NoResponse,
    Outcome,
    Plan,
    ServerAttempt,
    decode_json,
)
from muniment.client.follower import Follower
from muniment.client.results import Event
from muniment.errors import RETRYABLE_STATUSES
from muniment.names import UNIX_ADDRESS, compute_hello_proof, derive_hello_key, derive_hello_name
from muniment.portable import IS_LINUX

# -- greeting ----------------------------------------------------------------------------------------
#
# Requires the server to prove that it knows the token before the token is sent; this part does no I/O.
#
# E1 Each connection that will carry a token begins with a new nonce. The token is sent only after the server
#    has returned the proof of `names.compute_hello_proof` for this nonce and the dialled address. So a
#    recorded proof is useless, and so is a proof from a daemon at another address.
# E2 A server learns only the name of the token, from which the token cannot be computed.
#
# Not guaranteed: without TLS, an attacker between client and daemon can read the traffic after the daemon has
# proved itself. On the loopback interface, only root can do that.
#
# Source: ADR 0026.

MAX_PROOF_BYTES: Final = 4096
"""Maximum bytes of the response with the proof; it has about 500 bytes."""


class UnverifiedServer(httpx2.TransportError):
    """The server does not prove that it is the daemon: that it knows the token, or belongs to this user."""


class ServerProof:
    """The proof that a server must give at the beginning of one connection.

    Args:
        address: the address of the server, with a token.
        nonce: 64 hexadecimal digits that were never used before.

    Attributes:
        request: the bytes to send to the server.
    """

    def __init__(self, address: DaemonAddress, nonce: str) -> None:
        key = derive_hello_key(address.token or "")
        host = httpx2.URL(address.url).netloc.decode().lower()
        dialled_address = host if address.socket is None else UNIX_ADDRESS
        self._proof, self._body, self._read = compute_hello_proof(key, nonce, dialled_address), b"", 0
        self._status = 0
        self._connection = h11.Connection(h11.CLIENT, MAX_PROOF_BYTES)
        target = f"/hello?token={derive_hello_name(key)}&nonce={nonce}"
        proof_request = h11.Request(method="GET", target=target, headers=[("host", host)])
        self.request = (self._connection.send(proof_request) or b"") + (
            self._connection.send(h11.EndOfMessage()) or b""
        )

    def feed(self, data: bytes) -> bool:
        """Process data that the server sent, and return True when it has proved that it knows the token.

        Args:
            data: the received bytes; empty: the server closed the connection.

        Raises:
            UnverifiedServer: the proof is wrong or missing.
            httpx2.ConnectError: the connection ended too early, or the daemon is busy; a retry may succeed.
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
            raise UnverifiedServer("its response is not HTTP") from None
        if self._read > MAX_PROOF_BYTES:
            raise UnverifiedServer("its response is too long")
        return False

    def _check(self) -> None:
        if self._status in RETRYABLE_STATUSES:
            raise httpx2.ConnectError("the daemon is busy")
        document = decode_json(self._body, "") if self._status == OK else None
        proof = document.get("proof") if isinstance(document, dict) else None
        if not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise UnverifiedServer(f"its response has status {self._status}, without the proof")
        if self._connection.their_state is not h11.DONE or self._connection.trailing_data[0]:
            raise httpx2.ConnectError("the connection ended early")


# -- transport ---------------------------------------------------------------------------------------

MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of a response; the largest response is a page of tasks."""

CONNECT_SECONDS: Final = 5.0

_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=4.0)
"""The daemon closes idle connections after 5 or 75 s. The client is faster, so that no request is lost."""

_NOT_SENT_ERRORS: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_CREDENTIALS: Final = struct.Struct("3i")
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED, _XUCRED_BYTES = 0, 1, struct.Struct("2I"), 76
"""Constants of macOS for the user of a peer: `xucred` (<sys/ucred.h>) begins with version and user id."""
_PIECE_BYTES: Final = 4096

C = TypeVar("C")


class ConnectionPool(Generic[C]):
    """The open connections of a client; if the daemon has moved, they are replaced.

    Args:
        locator: finds the daemon.
        make: creates the connections for an address.
    """

    def __init__(self, locator: Locator, make: Callable[[DaemonAddress], C]) -> None:
        self._locator, self._make = locator, make
        self._lock = threading.Lock()
        self._current: tuple[DaemonAddress, C] | None = None
        self._retired: list[C] = []
        self._is_closed = False

    def open(self, *, should_rediscover: bool) -> tuple[DaemonAddress, C] | NoResponse:
        """Return the address of the daemon and the connections to it, or the reason why no daemon was found.

        Args:
            should_rediscover: search for the daemon again, because it may have moved.

        Raises:
            ClientError: the client is closed.
            ManagedMemoryUnavailable: the file with the address is invalid, or other users may access it.
        """
        with self._lock:
            if self._is_closed:
                raise build_closed_error()
            if should_rediscover or self._current is None:
                address = self._locator.find()
                if address is None:
                    return NoResponse(self._locator.missing_message, may_have_arrived=False)
                if self._current is None or self._current[0] != address:
                    self._retire()
                    self._current = address, self._make(address)
            return self._current

    def pop_retired(self) -> list[C]:
        """Return the connections that are no longer used; the caller must close them."""
        with self._lock:
            found, self._retired = self._retired, []
            return found

    def close(self) -> None:
        """Stop opening connections; the caller then closes those that `pop_retired` returns."""
        with self._lock:
            self._is_closed = True
            self._retire()

    def _retire(self) -> None:
        if self._current is not None:
            self._retired.append(self._current[1])
            self._current = None


class AttemptTimeout:
    """The time limit of one attempt, from which each wait of the attempt gets its time limit.

    At first, each wait may take the seconds that are left of the attempt. After `remove_deadline`, each wait
    may take all seconds.

    Args:
        seconds: seconds of the attempt.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = time.monotonic() + seconds

    def remove_deadline(self) -> None:
        """Allow all seconds for each further wait, because a stream without end has begun."""
        self._end = None

    def compute_remaining(self) -> float:
        """Return the seconds that the next wait may take; 0 or less: no time is left."""
        return self._seconds if self._end is None else self._end - time.monotonic()


def _verify_peer_user(connection: socket.socket) -> None:
    """Check that the process that listens on a Unix socket belongs to this user.

    Raises:
        UnverifiedServer: it belongs to another user, or the system does not report the user.
    """
    if IS_LINUX:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _pid, uid, _gid = _CREDENTIALS.unpack(data)
    else:
        data = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        version, uid = _XUCRED.unpack_from(data)
        if version:
            raise UnverifiedServer("this system does not report which user listens on the socket")
    if uid != os.geteuid():
        raise UnverifiedServer("another user listens on the socket")


def _create_nonce() -> str:
    return secrets.token_hex(32)


class _Stream(httpcore2.NetworkStream):
    """A connection that a thread uses. Another thread may close it: then a waiting read ends."""

    def __init__(self, inner: httpcore2.NetworkStream, address: DaemonAddress) -> None:
        self._inner, self._address = inner, address
        self._in_use = threading.Lock()

    def read(self, max_bytes: int, timeout: float | AttemptTimeout | None = None) -> bytes:
        with self._in_use:
            return self._inner.read(max_bytes, _compute_seconds(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | AttemptTimeout | None = None) -> None:
        with self._in_use:
            self._inner.write(buffer, _compute_seconds(timeout, httpcore2.WriteTimeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        with self._in_use:
            self._inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        return self.verify_server(timeout)

    def verify_server(self, timeout: float | None) -> Self:
        """Check that the server is the daemon (H4 in the module docstring); if not, close the connection."""
        try:
            self._verify_server(timeout)
        except BaseException:
            self.close()
            raise
        return self

    def _verify_server(self, timeout: float | None) -> None:
        if self._address.token is None:
            if self._address.socket is not None:
                _verify_peer_user(self.get_extra_info("socket"))
            return
        proof, timeout_left = (
            ServerProof(self._address, _create_nonce()),
            AttemptTimeout(timeout or CONNECT_SECONDS),
        )
        with _convert_errors():
            self.write(proof.request, timeout_left)
            while not proof.feed(self.read(_PIECE_BYTES, timeout_left)):
                pass

    def get_extra_info(self, info: str) -> Any:
        try:
            return self._inner.get_extra_info(info)
        # select(), on systems without poll(2), raises this if another thread has closed the connection.
        except OSError:
            if info != "is_readable":
                raise
            return True

    def close(self) -> None:
        with suppress(OSError):  # It is already closed.
            socket.socket.shutdown(self._inner.get_extra_info("socket"), socket.SHUT_RDWR)
        with self._in_use:
            self._inner.close()


def _compute_seconds(timeout: float | AttemptTimeout | None, timeout_error: type[Exception]) -> float | None:
    if not isinstance(timeout, AttemptTimeout):
        return timeout
    left = timeout.compute_remaining()
    if left <= 0:
        raise timeout_error
    return left


class _Backend(httpcore2.SyncBackend):
    """Creates connections for threads. If it is closed, it closes all of them and creates no new ones."""

    def __init__(self, address: DaemonAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._is_closed = False

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **kwargs: Any
    ) -> httpcore2.NetworkStream:
        stream = self._register_stream(super().connect_tcp(host, port, timeout, *args, **kwargs))
        return stream if self._address.url.startswith("https:") else stream.verify_server(timeout)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, *args: Any, **kwargs: Any
    ) -> httpcore2.NetworkStream:
        try:
            return self._register_stream(
                super().connect_unix_socket(path, timeout, *args, **kwargs)
            ).verify_server(timeout)
        except (httpcore2.NetworkError, httpcore2.TimeoutException) as error:
            # If the connection fails, the base class leaves its socket open. Find the socket in the frame of
            # the base class, and close it.
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if isinstance(open_socket := frame.f_locals.get("sock"), socket.socket):
                    open_socket.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def _register_stream(self, inner: httpcore2.NetworkStream) -> _Stream:
        stream = _Stream(inner, self._address)
        with self._lock:
            if not self._is_closed:
                self._streams.add(stream)
                return stream
        stream.close()
        raise httpcore2.ConnectError("the client is closed")


class ThreadTransport(httpx2.HTTPTransport):
    """The HTTP transport for threads. If one thread closes it, the waits of the other threads end."""

    def __init__(self, address: DaemonAddress) -> None:
        super().__init__(verify=_choose_tls(address), trust_env=False, limits=_LIMITS, uds=address.socket)
        self._backend = _Backend(address)
        self._pool._network_backend = self._backend  # noqa: SLF001  the only way to set it

    def close(self) -> None:
        """Close all connections, including those in use."""
        self._backend.close()
        super().close()


class _AsyncStream(httpcore2.AsyncNetworkStream):
    """A connection of an event loop; after TLS has started, it verifies that the server is the daemon."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, address: DaemonAddress) -> None:
        self._inner, self._address = inner, address
        self.read, self.write, self.aclose = inner.read, inner.write, inner.aclose  # type: ignore[method-assign]
        self.get_extra_info = inner.get_extra_info  # type: ignore[method-assign]

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        return await _verify_stream(await self._inner.start_tls(*args, **kwargs), self._address)


class _AsyncBackend(httpcore2.AnyIOBackend):
    """Creates connections for an event loop, and verifies that the server is the daemon."""

    def __init__(self, address: DaemonAddress) -> None:
        self._address = address

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(*args, **kwargs)
        if self._address.url.startswith("https:"):
            return _AsyncStream(stream, self._address)
        return await _verify_stream(stream, self._address)

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        return await _verify_stream(await super().connect_unix_socket(*args, **kwargs), self._address)


async def _verify_stream(
    stream: httpcore2.AsyncNetworkStream, address: DaemonAddress
) -> httpcore2.AsyncNetworkStream:
    """Return the connection if the server is the daemon (H4 in the module docstring); otherwise close it."""
    try:
        if address.token is None:
            if address.socket is not None:
                _verify_peer_user(stream.get_extra_info("socket"))
            return stream
        proof = ServerProof(address, _create_nonce())
        with _convert_errors():
            async with asyncio.timeout(CONNECT_SECONDS):
                await stream.write(proof.request)
                while not proof.feed(await stream.read(_PIECE_BYTES)):
                    pass
    except BaseException:
        await stream.aclose()
        raise
    return stream


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert network errors in the block to connection errors: the request itself was not sent yet."""
    try:
        yield
    except (httpcore2.TimeoutException, TimeoutError):
        raise httpcore2.ConnectTimeout from None
    except httpcore2.NetworkError:
        raise httpcore2.ConnectError("the connection ended early") from None


def create_async_transport(address: DaemonAddress) -> httpx2.AsyncHTTPTransport:
    """Return the HTTP transport for an event loop."""
    transport = httpx2.AsyncHTTPTransport(
        verify=_choose_tls(address), trust_env=False, limits=_LIMITS, uds=address.socket
    )
    transport._pool._network_backend = _AsyncBackend(address)  # noqa: SLF001  the only way to set it
    return transport


def build_http_request(
    address: DaemonAddress, request: HttpRequest, seconds: float, timeout: AttemptTimeout | None = None
) -> httpx2.Request:
    """Build the HTTP request to send.

    Args:
        address: the address of the daemon, with its token.
        request: the request.
        seconds: time limit of each wait.
        timeout: if given, a read or write may take only the remaining time of this timeout.
    """
    headers = {**request.headers, "accept-encoding": "identity"}
    if address.token is not None:
        headers["authorization"] = f"Bearer {address.token}"
    each = timeout or seconds
    times = {"connect": min(seconds, CONNECT_SECONDS), "read": each, "write": each, "pool": seconds}
    return httpx2.Request(
        request.method,
        f"{address.url}{request.path}",
        headers=headers,
        content=request.body,
        extensions={"timeout": times},
    )


def describe_loss(error: httpx2.TransportError) -> NoResponse:
    """Convert a transport error to the outcome of the attempt, with a reason written by this program."""
    if isinstance(error, UnverifiedServer):
        return NoResponse(str(error), may_have_arrived=False, is_unverified=True)
    if isinstance(error, _NOT_SENT_ERRORS):
        return NoResponse("the connection was refused or timed out", may_have_arrived=False)
    if isinstance(error, httpx2.TimeoutException):
        return NoResponse("it took too long", may_have_arrived=True)
    return NoResponse("the connection ended early", may_have_arrived=True)


def build_response(response: httpx2.Response, address: DaemonAddress, body: bytes = b"") -> HttpResponse:
    """Convert an HTTP response to a value without a connection.

    Args:
        response: the response.
        address: the address of the daemon, with the token to remove from texts.
        body: the complete body.

    Raises:
        BadAnswer: the response is compressed.
    """
    headers = {name.lower(): value for name, value in response.headers.items()}
    if headers.get("content-encoding", "identity") != "identity":
        raise BadAnswer("the response is compressed, which the client does not accept")
    return HttpResponse(response.status_code, headers, body, address.token or "")


def append_piece(body: bytearray, piece: bytes) -> None:
    """Append a piece to the body of a response.

    Raises:
        BadAnswer: the body has more than `MAX_RESPONSE_BYTES`.
    """
    body += piece
    if len(body) > MAX_RESPONSE_BYTES:
        raise BadAnswer(f"the response has more than {MAX_RESPONSE_BYTES} bytes, which is not accepted")


def _choose_tls(address: DaemonAddress) -> ssl.SSLContext | bool:
    """Return the TLS verification for a connection: with the certificates of the system.

    Without TLS, return an empty context, because it is faster to create.
    """
    return address.url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


# -- loop --------------------------------------------------------------------------------------------
#
# The shell for asyncio: executes plans on one event loop, and makes no decisions.
#
# L1 An attempt ends after its time limit, even if the daemon still sends data, and when the shell is closed.

T = TypeVar("T")


class AsyncShell:
    """Executes plans on an event loop.

    Args:
        locator: finds the daemon.
    """

    def __init__(self, locator: Locator) -> None:
        self._connections = ConnectionPool(locator, create_async_transport)
        self._limits: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def run(self, plan: Plan[T]) -> T:
        """Execute a plan; return its result, or raise its exception."""
        try:
            step = next(plan)
            while True:
                await self._sleep(step.pause)
                step = plan.send(await self._run_attempt(step))
        except StopIteration as end:
            return cast("T", end.value)

    async def follow(self, core: ClientCore, after: str | None) -> AsyncGenerator[Event]:
        """Yield the events of the workspace without end.

        The events include marks, which only report a position (`follower.MARK`).

        Args:
            core: the requests of the client.
            after: the id of an event: the stream continues after it; None: it starts now.
        """
        following = Follower(core, after)
        while True:
            step = following.build_attempt()
            await self._sleep(step.pause)
            async with aclosing(self._stream(step, following)) as events:
                async for each in events:
                    if isinstance(each, NoResponse):
                        following.record_loss(each)
                    else:
                        yield each

    async def close(self) -> None:
        """Close the connections, and end all waits."""
        self._is_closed = True
        self._connections.close()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0)
        await self._close_retired()

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with self._limit_time(seconds):
                await asyncio.Event().wait()

    @asynccontextmanager
    async def _limit_time(self, seconds: float) -> AsyncGenerator[None]:
        """Raise `TimeoutError` in the block after this number of seconds, or when the shell is closed."""
        async with asyncio.timeout(0 if self._is_closed else seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def _run_attempt(self, step: ServerAttempt) -> Outcome:
        opened = await self._open(step)
        if isinstance(opened, NoResponse):
            return opened
        address, transport = opened
        try:
            async with self._limit_time(step.seconds):
                response = await transport.handle_async_request(
                    build_http_request(address, step.request, step.seconds)
                )
                async with aclosing(response):
                    return await read_response_async(response, address)
        except httpx2.TransportError as error:
            return describe_loss(error)
        except TimeoutError:
            return NoResponse("it took too long", may_have_arrived=True)

    async def _stream(self, step: ServerAttempt, following: Follower) -> AsyncGenerator[Event | NoResponse]:
        """Yield the events of one connection, and at its end the reason for the end.

        If the daemon responded with a temporary error, yield nothing: `following` has recorded it.
        """
        opened = await self._open(step)
        if isinstance(opened, NoResponse):
            yield opened
            return
        address, transport = opened
        try:
            async with self._limit_time(step.seconds):
                response = await transport.handle_async_request(
                    build_http_request(address, step.request, step.seconds)
                )
            async with aclosing(response):
                if response.status_code != OK:
                    async with self._limit_time(step.seconds):
                        following.accept_response(await read_response_async(response, address))
                    return
                following.accept_response(build_response(response, address))
                async for piece in response.aiter_raw():
                    for event in following.feed(piece):
                        yield event
            yield NoResponse("the stream ended", may_have_arrived=False)
        except httpx2.TransportError as error:
            yield describe_loss(error)
        except TimeoutError:
            yield NoResponse("it took too long", may_have_arrived=False)

    async def _open(
        self, step: ServerAttempt
    ) -> tuple[DaemonAddress, httpx2.AsyncHTTPTransport] | NoResponse:
        opened = self._connections.open(should_rediscover=step.should_rediscover)
        await self._close_retired()
        return opened

    async def _close_retired(self) -> None:
        for transport in self._connections.pop_retired():
            await transport.aclose()


async def read_response_async(response: httpx2.Response, address: DaemonAddress) -> HttpResponse:
    """Read the complete body, and return the response as a value.

    Raises as `append_piece` and `build_response`.
    """
    body = bytearray()
    async for piece in response.aiter_raw():
        append_piece(body, piece)
    return build_response(response, address, bytes(body))


# -- threads -----------------------------------------------------------------------------------------
#
# The shell for threads: executes plans in the calling thread, and makes no decisions.
#
# L2 An attempt ends after its time limit, even if the daemon still sends data, and when another thread closes
# the shell. For the time to connect, see the module docstring.


class ThreadShell:
    """Executes plans in the calling thread.

    Args:
        locator: finds the daemon.
    """

    def __init__(self, locator: Locator) -> None:
        self._connections = ConnectionPool(locator, ThreadTransport)
        self._closing = threading.Event()
        self._sleep: Callable[[float], object] = self._closing.wait

    def run(self, plan: Plan[T]) -> T:
        """Execute a plan; return its result, or raise its exception."""
        try:
            step = next(plan)
            while True:
                self._sleep(step.pause)
                step = plan.send(self._run_attempt(step))
        except StopIteration as end:
            return cast("T", end.value)

    def follow(self, core: ClientCore, after: str | None) -> Generator[Event]:
        """Yield the events of the workspace without end.

        The events include marks, which only report a position (`follower.MARK`).

        Args:
            core: the requests of the client.
            after: the id of an event: the stream continues after it; None: it starts now.
        """
        following = Follower(core, after)
        while True:
            step = following.build_attempt()
            self._sleep(step.pause)
            outcome = yield from self._stream(step, following)
            if outcome is not None:
                following.record_loss(outcome)

    def close(self) -> None:
        """Close the connections, and end all waits."""
        self._connections.close()
        self._closing.set()
        self._close_retired()

    def _run_attempt(self, step: ServerAttempt) -> Outcome:
        opened = self._open(step)
        if isinstance(opened, NoResponse):
            return opened
        address, transport = opened
        try:
            timeout = AttemptTimeout(step.seconds)
            response = transport.handle_request(
                build_http_request(address, step.request, step.seconds, timeout)
            )
            with closing(response):
                return _read_response(response, address)
        except httpx2.TransportError as error:
            return describe_loss(error)

    def _stream(self, step: ServerAttempt, following: Follower) -> Generator[Event, None, NoResponse | None]:
        """Yield the events of one connection, and return the reason for its end.

        If the daemon responded with a temporary error, return None: `following` has recorded it.
        """
        opened = self._open(step)
        if isinstance(opened, NoResponse):
            return opened
        address, transport = opened
        try:
            timeout = AttemptTimeout(step.seconds)
            response = transport.handle_request(
                build_http_request(address, step.request, step.seconds, timeout)
            )
            with closing(response):
                if response.status_code != OK:
                    following.accept_response(_read_response(response, address))
                    return None
                following.accept_response(build_response(response, address))
                timeout.remove_deadline()
                for piece in response.iter_raw():
                    yield from following.feed(piece)
        except httpx2.TransportError as error:
            return describe_loss(error)
        return NoResponse("the stream ended", may_have_arrived=False)

    def _open(self, step: ServerAttempt) -> tuple[DaemonAddress, ThreadTransport] | NoResponse:
        opened = self._connections.open(should_rediscover=step.should_rediscover)
        self._close_retired()
        return opened

    def _close_retired(self) -> None:
        for transport in self._connections.pop_retired():
            transport.close()


def _read_response(response: httpx2.Response, address: DaemonAddress) -> HttpResponse:
    body = bytearray()
    for piece in response.iter_raw():
        append_piece(body, piece)
    return build_response(response, address, bytes(body))
