"""What every request passes before any route sees it.

G1 Exactly one Host header, one of the daemon's names: a page that had its own name rebound to this address
   has another (421). On the Unix socket, which no page reaches, any one name.
G2 No Origin but the daemon's own; `null` is foreign, and so is what a browser says comes from another site
   (403).
G3 A path is taken as it was sent: no segment that is empty, dotted or encoded leads anywhere (404). The long
   forms `/workspaces/{workspace}/…` and `/session/{id}/events` become the short ones here, and nowhere else.
G4 A bearer token, exactly one; on the Unix socket, where none is sent, the peer's user, who has to be this
   one, and never the overflow user, whom the kernel names where it knows none (401). Only `HELLO` needs none:
   by it the daemon proves to a client that it is one, before that sends its token (ADR 0026).
G5 At most `MAX_REQUESTS` at once, besides `MAX_WAITING` that wait and `MAX_FOLLOWERS` that follow events
   (503); of each, no client's token has more than half, and all of them leave some to the owner.
G6 Every answer has the headers of `protocol.HEADERS`; whatever goes wrong in a route is a problem, told
   without what was raised.

Where a request is answered before all of its body was read, its connection is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import resource
import secrets
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from muniment import events
from muniment.daemon.contract import HttpProblem, problem_of
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, MunimentError, NotFound
from muniment.lane import OWNER
from muniment.names import Trust, hello_key, hello_name, hello_proof
from muniment.store.audit import append, timestamp
from muniment.store.database import Database
from muniment.store.state import State, put

# -- shares ------------------------------------------------------------------------------------------
#
# Divides a limited number of places, so that no client's token shuts out the others or the owner.

RESERVE: Final = 16
"""Places that all clients together leave to the owner, where there are many."""


class Shares:
    """Places, of which one client's token gets at most half. Belongs to one event loop.

    Args:
        cap: how many there are, more than `reserve`.
        seconds: after which somebody who found none may come again.
        reserve: how many of them all clients together leave to the owner.
    """

    def __init__(self, cap: int, seconds: int, reserve: int = RESERVE) -> None:
        self.cap, self._seconds, self._reserve = cap, seconds, reserve
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def take(self, token: str) -> None:
        """Give a place to the token of this name.

        Raises:
            Problem: there is none for it.
        """
        is_full = len(self) >= self.cap
        if token != OWNER:
            is_full = is_full or len(self) - self._taken[OWNER] >= self.cap - self._reserve
            is_full = is_full or self._taken[token] >= self.cap // 2
        if is_full:
            raise HttpProblem("busy", headers={"Retry-After": str(self._seconds)})
        self._taken[token] += 1

    def leave(self, token: str) -> None:
        """Take a place back from who has one."""
        self._taken[token] -= 1
        if not self._taken[token]:
            del self._taken[token]


# -- tokens ------------------------------------------------------------------------------------------
#
# Who may call: the owner's token in a file, those of clients in the ledger, by keyed digest alone.
#
# - K1 the owner's token stands in `state/token`, alone on a line, 0600. It is made once, and refused where
#   others could read it or it is no plain file of ours.
# - K2 a client's token is shown once, when it is made; the ledger has its keyed digest, and the ids and the
#   trust that belong to it. An id belongs to one token.
# - K3 tokens are compared by digests of one length, in constant time.
# - K4 who asks for a proof that a token is known gets one, whether there is such a token or not, and cannot
#   tell the two apart without it. What is kept to prove it is no way to the token.
#
# Does not hold: anything against another process of the same user, who can read the file.

TOKEN_NAME: Final = "token"  # noqa: S105  a file's name
TOKEN_BYTES: Final = 32

_MAX_TOKEN_FILE_BYTES: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a token belongs to.

    Attributes:
        name: `owner`, or that of the client's token.
        trust: of what comes with it.
        clients: the ids that may be given with it; None: every registered one.
        digest: of a client's token, so that one that was made anew by the same name is another one.
    """

    name: str
    trust: Trust
    clients: frozenset[str] | None
    digest: str = field(default="", repr=False)

    @property
    def is_owner(self) -> bool:
        """Whether this may do everything."""
        return self.name == OWNER


THE_OWNER: Final = Principal(OWNER, Trust.OWNER, None)


class Tokens:
    """The tokens of a state directory; each question asks the ledger, so that a revocation holds at once.

    Args:
        state: whose key digests them, and whose ledger changes.
        reads: a connection of its own to the ledger, so that no question waits for a writer; None: that of
            `state`.
    """

    def __init__(self, state: State, reads: Database | None = None) -> None:
        self._state, self._reads = state, reads or state.ledger

    def add(self, name: str, clients: Collection[str], trust: Trust) -> str:
        """Make a token for a client; this is the only time that it is told.

        Raises:
            ConfigInvalid: the name or an id cannot be one, or is taken.
            ManagedMemoryUnavailable: the ledger cannot be written.
        """
        if _NAME.fullmatch(name) is None or name == OWNER:
            raise ConfigInvalid(
                f"{name!r} cannot name a token; use up to 64 letters, digits, . _ -, not {OWNER!r}"
            )
        for each in clients:
            if _ID.fullmatch(each) is None:
                raise ConfigInvalid(f"{each!r} cannot be a client id; use up to 128 letters, digits, . _ : -")
        token, now = secrets.token_urlsafe(TOKEN_BYTES), timestamp(datetime.now(UTC))
        with self._state.ledger.transaction() as connection:
            there = _all(self._state.ledger)
            taken = {each: other.name for other in there for each in other.clients or ()}
            if name in {other.name for other in there}:
                raise ConfigInvalid(
                    f"there is a token {name!r} already; revoke it first, or take another name"
                )
            for each in clients:
                if each in taken:
                    raise ConfigInvalid(f"the client id {each!r} belongs to the token {taken[each]!r}")
            connection.execute(
                "INSERT INTO token (name, digest, clients, trust, at, hello) VALUES (?, ?, ?, ?, ?, ?)",
                (name, self._digest(token), json.dumps(sorted(clients)), trust, now, hello_key(token)),
            )
            append(
                self._state, now, "token", None, {"added": name, "clients": sorted(clients), "trust": trust}
            )
        return token

    def all(self) -> tuple[Principal, ...]:
        """Those of clients, by name."""
        return _all(self._reads)

    def revoke(self, name: str) -> None:
        """Make a client's token invalid, from the next request on.

        Raises:
            NotFound: there is none of that name.
        """
        now = timestamp(datetime.now(UTC))
        with self._state.ledger.transaction() as connection:
            if connection.execute("DELETE FROM token WHERE name = ?", (name,)).rowcount == 0:
                raise NotFound(f"there is no token {name!r}; see: muniment token list")
            append(self._state, now, "token", None, {"revoked": name})

    def principal(self, unsafe_token: str, owners: str) -> Principal | None:
        """Who a request's token belongs to; None: nobody.

        Args:
            unsafe_token: as it was sent.
            owners: see `owner_token`.
        """
        if _TOKEN.fullmatch(unsafe_token) is None:
            return None
        sent = self._digest(unsafe_token)
        if hmac.compare_digest(sent, self._digest(owners)):
            return THE_OWNER
        found = self._reads.rows("SELECT name, trust, clients, digest FROM token WHERE digest = ?", (sent,))
        for name, trust, clients, digest in found:
            if hmac.compare_digest(sent, digest):
                return Principal(name, Trust(trust), frozenset(json.loads(clients)), digest)
        return None

    def proof(self, unsafe_name: str, nonce: str, address: str, owners: str) -> str:
        """Proof that the token of this name is known (K4); of one that is not, what looks the same.

        Args:
            unsafe_name: see `names.hello_name`.
            nonce: of the client.
            address: that the client has dialled.
            owners: see `owner_token`.

        Cost: one row and two digests for each token of a client.
        """
        rows = self._reads.rows("SELECT hello FROM token WHERE hello IS NOT NULL")
        found = self._state.mac(b"hello", unsafe_name.encode())
        for key in (hello_key(owners), *(key for (key,) in rows)):
            if hmac.compare_digest(hello_name(key), unsafe_name):
                found = key
        return hello_proof(found, nonce, address)

    def _digest(self, token: str) -> str:
        return self._state.keyed(f"token {token}")


def _all(ledger: Database) -> tuple[Principal, ...]:
    return tuple(
        Principal(name, Trust(trust), frozenset(json.loads(clients)), digest)
        for name, trust, clients, digest in ledger.rows(
            "SELECT name, trust, clients, digest FROM token ORDER BY name"
        )
    )


def owner_token(directory: Path) -> str:
    """The owner's token (K1), made if there is none.

    Args:
        directory: the state directory.

    Raises:
        ManagedMemoryUnavailable: it cannot be made or relied on; the reason says what to do.
    """
    path = directory / TOKEN_NAME
    if not os.path.lexists(path):
        try:
            put(path, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), over=False)
        except OSError as error:
            if not os.path.lexists(path):  # Else somebody else has made it meanwhile.
                raise ManagedMemoryUnavailable(str(path), f"cannot be made: {error.strerror}") from None
    return _read(path)


def _read(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ManagedMemoryUnavailable(str(path), f"cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ManagedMemoryUnavailable(
                str(path), "is no file of yours alone (0600); delete it, and the next start makes another"
            )
        text = os.read(fd, _MAX_TOKEN_FILE_BYTES).strip().decode("latin-1")
    finally:
        os.close(fd)
    if _TOKEN.fullmatch(text) is None:
        raise ManagedMemoryUnavailable(
            str(path), "holds no token; delete it, and the next start makes another"
        )
    return text


# -- protocol ----------------------------------------------------------------------------------------
#
# The HTTP/1.1 protocol of the daemon: uvicorn's, with some things that it leaves open.
#
# - a connection that sends no whole header within `HEADER_SECONDS` is closed, also its first one, and so is
#   one
#   that takes nothing of its answer for `UNREAD_SECONDS`;
# - where there are too many connections, the one goes that has been idle for longest, not the one that
#   comes;
#   half of the process's descriptors are never connections, so that work goes on whoever connects;
# - on the Unix socket the peer's user is asked from the kernel, once a connection;
# - what is no HTTP is answered as every other problem is.
#
# Source: unix(7), SO_PEERCRED.

HEADER_SECONDS: Final = 10.0
"""Seconds for the header of a request to arrive in."""

UNREAD_SECONDS: Final = 60.0
"""Seconds for a client to take some 48 KiB of what it was sent; a follower comes again where it stood."""

MAX_HEADER_BYTES: Final = 32 * 1024
"""Bytes of a header; browsers send some 2 KiB."""

MAX_CONNECTIONS: Final = 512
"""Connections at once: 200 that follow events, and as many again that ask; see `connections_allowed`."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names that a Host header may always say: a page that rebinds a name has another one."""

PEER: Final = "peer"
"""Key of a request's state for the user id at the other end of a Unix socket; None: it came over TCP."""

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
"""On every answer."""

_CREDENTIALS: Final = struct.Struct("3i")


def connections_allowed() -> int:
    """Connections at once, which leave half of the descriptors that there may be to work."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Protocol(H11Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there are not too many."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: _peer(transport.get_extra_info("socket"))}
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > connections_allowed():
            ours = [each for each in self.connections if isinstance(each, Protocol)]
            idle = {each: since for each in ours if (since := each.idle_since()) is not None}
            if not idle:
                self.drop()
                return
            min(idle, key=idle.__getitem__).drop()
        self._expect_header()

    def idle_since(self) -> float | None:
        """When this began to wait for a request, by the loop's clock; None: it has one."""
        if self._header_timer is not None:
            return self._header_timer.when() - HEADER_SECONDS
        if self.timeout_keep_alive_task is not None:
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive
        return None

    def drop(self) -> None:
        """Close this at once, whatever was still to be sent."""
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what was sent."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_expecting()
        elif self._header_timer is None and self.conn.trailing_data[0]:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop_expecting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Send nothing more until the client has taken some of what there is."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Send again."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and close."""
        del msg
        if self.cycle is not None:
            self.cycle.disconnected = True  # It may not answer any more, where it has not done so yet.
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
        problem = HttpProblem("invalid_http")
        body = json.dumps(problem.body()).encode()
        headers = [
            *HEADERS,
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=problem.status, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_header(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _peer(connection: Any) -> int | None:
    """The user id at the other end of a Unix socket, when it connected."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    return int(uid)


# -- guard -------------------------------------------------------------------------------------------

MAX_REQUESTS: Final = 128
"""Requests at once that are being answered. Each takes some milliseconds, one that waits is not counted."""

MAX_WAITING: Final = 128
"""Requests at once that wait. With the others, clients get fewer places than there are connections."""

MAX_FOLLOWERS: Final = 256
"""Followers of events at once."""

PRINCIPAL: Final = "principal"
WORKSPACE: Final = "workspace"
SLOT: Final = "slot"
"""Keys of a request's state: who sent it, the workspace that it names (None: the first), and its place."""

HELLO: Final = "/hello"

MAX_HELLOS: Final = 256
"""Proofs a second; a client needs one for each connection. Who finds none comes again."""

_NOBODY: Final = Principal("", Trust.EXTERNAL, frozenset())

_CLOSE: Final = (b"connection", b"close")
_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")
_NO_NAMES: Final = frozenset({"", ".", ".."})
_OUR_SITES: Final = frozenset({"same-origin", "none"})

WhoseToken = Callable[[str], Principal | None]


@dataclass(slots=True)
class Slot:
    """The place of a request, among those that are being answered, that wait, or that follow."""

    guard: Guard
    token: str
    _shares: Shares | None = None

    def answer(self) -> None:
        """Count it among those that are being answered.

        Raises:
            Problem: there are too many; as for the others.
        """
        self._take(self.guard.answering)

    def wait(self) -> None:
        """Count it among those that wait, from now on."""
        self._take(self.guard.waiting)

    def follow(self) -> None:
        """Count it among those that follow events, from now on."""
        self._take(self.guard.following)

    def leave(self) -> None:
        """Count it no more: it is over."""
        if self._shares is not None:
            self._shares.leave(self.token)
            self._shares = None

    def _take(self, shares: Shares) -> None:
        shares.take(self.token)
        self.leave()
        self._shares = shares


class Guard:
    """The outermost part of the application.

    Args:
        app: what it guards.
        whose: who a token belongs to.
        hosts: what a Host header may say, in lower case.

    Attributes:
        answering, waiting, following: the requests that are being answered, that wait, that follow events.
    """

    def __init__(self, app: ASGIApp, whose: WhoseToken, hosts: frozenset[str]) -> None:
        self._app, self._whose, self.hosts = app, whose, hosts
        self.answering, self.waiting = Shares(MAX_REQUESTS, 1), Shares(MAX_WAITING, 1)
        self.following = Shares(MAX_FOLLOWERS, 5)
        self._us = _this_user()
        self._second, self._hellos = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        started, is_read = False, not _has_body(scope)
        slot: Slot | None = None

        async def reading() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                closing = [] if is_read else [_CLOSE]
                message = {**message, "headers": [*message["headers"], *HEADERS, *closing]}
            await send(message)

        try:
            state = self._admit(scope)
            slot = Slot(self, state[PRINCIPAL].name)
            slot.answer()
            scope["state"] |= {**state, SLOT: slot}
            await self._app(scope, reading, guarded)
        except (Exception, asyncio.CancelledError) as error:
            problem = _problem(error, scope["method"])
            if started:
                raise
            await _answer(problem, guarded)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            if slot is not None:
                slot.leave()

    def _admit(self, scope: Scope) -> dict[str, Any]:
        """G1 to G4; what the request's state gets. The path becomes the one that routes know."""
        is_local = scope["state"][PEER] is not None
        try:
            _check_header(scope)
            self._check_host(_values(scope, b"host"), is_local=is_local)
            self._check_origin(scope)
            workspace, path = _path(scope["raw_path"])
            _check_body(scope)
            if path == HELLO and scope["method"] == "GET":
                self._count_hello()
                principal = _NOBODY
            else:
                principal = self._principal(scope)
        except HttpProblem as problem:
            problem.headers["Connection"] = "close"
            raise
        scope["path"] = path
        return {PRINCIPAL: principal, WORKSPACE: workspace}

    def _check_host(self, sent: list[str], *, is_local: bool) -> None:
        if len(sent) != 1 or not (is_local or sent[0].lower() in self.hosts):
            raise HttpProblem("misdirected_request")

    def _check_origin(self, scope: Scope) -> None:
        origins = _values(scope, b"origin")
        ours = {f"http://{host}" for host in self.hosts}
        if any(origin.lower() not in ours for origin in origins) or len(origins) > 1:
            raise HttpProblem("foreign_origin")
        if not _OUR_SITES.issuperset(_values(scope, b"sec-fetch-site")):
            raise HttpProblem("foreign_origin")

    def _count_hello(self) -> None:
        second = int(time.monotonic())
        self._hellos = self._hellos + 1 if second == self._second else 1
        self._second = second
        if self._hellos > MAX_HELLOS:
            raise HttpProblem("busy", headers={"Retry-After": "1"})

    def _principal(self, scope: Scope) -> Principal:
        sent = _values(scope, b"authorization")
        if not sent and scope["state"][PEER] is not None and scope["state"][PEER] == self._us:
            return THE_OWNER
        found = None
        if len(sent) == 1:
            scheme, _, token = sent[0].partition(" ")
            found = self._whose(token.strip(" ")) if scheme.lower() == "bearer" else None
        if found is None:
            raise HttpProblem("token_required", headers={"WWW-Authenticate": "Bearer"})
        return found


def _problem(error: BaseException, method: str) -> HttpProblem:
    """What is answered where `error` was raised; a defect is logged."""
    match error:
        case HttpProblem():
            return error
        case MunimentError():
            return problem_of(error)
        case asyncio.CancelledError():  # By the server, which stops.
            return HttpProblem("workspace_draining", headers={"Retry-After": "1"})
        case _:
            events.emit_defect("request_broke", error, method=method)
            return HttpProblem("internal_error")


async def _answer(problem: HttpProblem, send: Callable[[Message], Awaitable[None]]) -> None:
    body = json.dumps(problem.body()).encode()
    headers = {
        **problem.headers,
        "content-type": "application/problem+json",
        "content-length": str(len(body)),
    }
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _check_header(scope: Scope) -> None:
    """Refuse another version of HTTP, and a header too large; one that came in one piece was let through."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES or scope["http_version"] not in {"1.0", "1.1"}:
        raise HttpProblem("invalid_http")


def _has_body(scope: Scope) -> bool:
    sizes = [value for value in _values(scope, b"content-length") if value.strip("0")]
    return bool(sizes or _values(scope, b"transfer-encoding"))


def _check_body(scope: Scope) -> None:
    """Refuse a body that no route would read, and one whose end others would see elsewhere."""
    is_chunked = bool(_values(scope, b"transfer-encoding"))
    is_doubtful = _values(scope, b"content-length") or scope["http_version"] != "1.1"
    if (scope["method"] != "POST" and _has_body(scope)) or (is_chunked and is_doubtful):
        raise HttpProblem("invalid_http")


def _path(raw: bytes) -> tuple[str | None, str]:
    """The workspace that a path names, and the path without it (G3)."""
    before, *segments = raw.decode("ascii").split("/")
    workspace: str | None = None
    if len(segments) > 2 and segments[0] == "workspaces" and segments[2] == "memory":  # noqa: PLR2004
        workspace = _decoded(segments[1])
        segments = ["workspace", *segments[2:]]
    elif len(segments) == 3 and segments[0] == "session" and segments[2] == "events":  # noqa: PLR2004
        if _decoded(segments[1]) in _NO_NAMES:
            raise HttpProblem("not_found")
        segments = ["workspace", "memory", "events"]
    if before:  # A target that is no path: a URL, or worse.
        raise HttpProblem("not_found")
    for segment in segments:
        if _decoded(segment) != segment or segment in _NO_NAMES:
            raise HttpProblem("not_found")
    return workspace, "/" + "/".join(segments)


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise HttpProblem("not_found") from None


def _this_user() -> int | None:
    """The user whom the Unix socket serves; None: it cannot be told from others."""
    user = os.geteuid()
    try:
        overflow = int(_OVERFLOW.read_text(encoding="ascii"))
    except (OSError, ValueError):
        overflow = 65_534
    return None if user == overflow else user
