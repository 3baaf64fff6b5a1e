"""What every request passes before any route sees it.

G1 Exactly one Host header, one of the daemon's names: a page that had its own name rebound to this address
   has another (421). On the Unix socket, which no page reaches, any one name.
G2 No Origin but the daemon's own and those that its operator allowed, letter by letter; `null` is foreign,
   and so is what a browser says comes from another site (403). A page of an allowed one may read the answers,
   and its preflight is granted before a token is asked for; the call itself needs one, and no cookie is one.
G3 A path is taken as it was sent: no segment that is empty, dotted or encoded leads anywhere (404). The long
   forms `/workspaces/{workspace}/…` (also `…/mcp`) and `/session/{id}/events` become the short ones here, and
   nowhere else.
G4 A bearer token, exactly one; on the Unix socket, where none is sent, the peer's user, who has to be this
   one, and never the overflow user, whom the kernel names where it knows none (401); a page that a proxy
   brings there is nobody. Only `HELLO` needs none:
   by it the daemon proves to a client that it is one, before that sends its token (ADR 0026).
G5 At most `MAX_REQUESTS` at once, besides `MAX_WAITING` that wait and `MAX_FOLLOWERS` that follow events
   (503); of each, no client's token has more than half, and all of them leave some to the owner.
G6 Every answer has the headers of `HEADERS`; whatever goes wrong in a route is a problem, told
   without what was raised.
G7 At the host name of the page, if it was asked for, its door decides in the place of G1, G2 and G4, and the
   page answers in the place of routes (`page/door.py`). Not on the Unix socket.

Where a request is answered before all of its body was read, its connection is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from muniment import events
from muniment.errors import ConfigInvalid, MunimentError, printable
from muniment.kernel.names import Trust
from muniment.server.contract import HttpProblem, problem_of
from muniment.server.page.door import PAGE_HEADERS, PageDoor
from muniment.server.tokens import THE_OWNER, Principal, Shares

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
        headers, body = _rendered(problem)
        headers = [*HEADERS, *headers, _CLOSE]
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

ALLOWED_METHODS: Final = "GET, POST, DELETE"
ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Mcp-Method, Mcp-Name, "
    "Mcp-Protocol-Version, Mcp-Session-Id, Prefer, X-Muniment-Client-Id, X-Muniment-Trust, X-Qwen-Client-Id, "
    "X-Qwen-Event-Epoch"
)
EXPOSED_HEADERS: Final = (
    "ETag, Idempotency-Replayed, Location, Mcp-Session-Id, Retry-After, X-Qwen-Event-Epoch"
)
"""What a page of an allowed origin may use, send and read, besides what every page may."""

_GRANT: Final = (
    (b"access-control-allow-methods", ALLOWED_METHODS.encode()),
    (b"access-control-allow-headers", ALLOWED_HEADERS.encode()),
    (b"access-control-max-age", b"600"),
)
_ORIGIN: Final = re.compile(
    r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([1-9][0-9]{0,4}))?",
    re.ASCII | re.IGNORECASE,
)
_USUAL_PORTS: Final = frozenset({("http", "80"), ("https", "443")})
_MAX_PORT: Final = 65_535

PRINCIPAL: Final = "principal"
WORKSPACE: Final = "workspace"
SLOT: Final = "slot"
SESSION: Final = "session"
"""Keys of a request's state: who sent it, the workspace that it names (None: the only one), its place, and
of one to the page whose session it is of (None: nobody's)."""

_HEADERS: Final = "headers"
_GRANTED: Final = "granted"
"""Likewise: the headers of its answer, and those that let a page of an allowed origin read that."""

HELLO: Final = "/hello"

MAX_HELLOS: Final = 256
"""Proofs a second; a client needs one for each connection. Who finds none comes again."""

_NOBODY: Final = Principal("", Trust.EXTERNAL, frozenset())

_CLOSE: Final = (b"connection", b"close")
_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")
_NO_NAMES: Final = frozenset({"", ".", ".."})
_OUR_SITES: Final = frozenset({"same-origin", "none"})

WhoseToken = Callable[[str], Awaitable[Principal | None]]


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
        origins: of pages that may call besides the daemon's own, as `as_origin` writes them.
        door: of the daemon's own page (G7).
        open_paths: what may be looked at without a token besides `HELLO`.

    Attributes:
        answering, waiting, following: the requests that are being answered, that wait, that follow events.
    """

    def __init__(
        self,
        app: ASGIApp,
        whose: WhoseToken,
        hosts: frozenset[str],
        origins: frozenset[str] = frozenset(),
        door: PageDoor | None = None,
        open_paths: Collection[str] = (),
    ) -> None:
        self._app, self._whose, self.hosts, self._origins = app, whose, hosts, origins
        self._door, self._open = door or PageDoor(), frozenset(open_paths)
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
                state = scope["state"]
                more = (*state.get(_HEADERS, HEADERS), *state.get(_GRANTED, ()), *closing)
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            state = await self._admit(scope)
            if state is None:
                await guarded({"type": "http.response.start", "status": 204, "headers": [*_GRANT]})
                await guarded({"type": "http.response.body"})
                return
            slot = Slot(self, state[PRINCIPAL].share)
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

    async def _admit(self, scope: Scope) -> dict[str, Any] | None:
        """G1 to G4; what the request's state gets. The path becomes the one that routes know.

        None: it is the preflight of a page that may call.
        """
        is_local = scope["state"][PEER] is not None
        try:
            _check_header(scope)
            host = _values(scope, b"host")
            if not is_local and len(host) == 1 and self._door.is_at(host[0].lower()):
                return self._at_door(scope)
            self._check_host(host, is_local=is_local)
            origin = self._check_origin(scope)
            if origin is not None:
                scope["state"][_GRANTED] = _for_page(origin)
                if scope["method"] == "OPTIONS" and _values(scope, b"access-control-request-method"):
                    return None
            workspace, path = _path(scope["raw_path"])
            _check_body(scope)
            if path == HELLO and scope["method"] == "GET":
                self._count_hello()
                principal = _NOBODY
            elif path in self._open and scope["method"] == "GET":
                principal = _NOBODY
            else:
                principal = await self._principal(scope)
        except HttpProblem as problem:
            problem.headers["Connection"] = "close"
            raise
        scope["path"] = path
        return {PRINCIPAL: principal, WORKSPACE: workspace}

    def _at_door(self, scope: Scope) -> dict[str, Any]:
        """G7."""
        scope["state"][_HEADERS] = PAGE_HEADERS
        workspace, scope["path"] = _path_of_page(scope["raw_path"])
        _check_body(scope)
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        session = self._door.admit(scope["method"], headers)
        principal = _NOBODY if session is None else THE_OWNER
        return {PRINCIPAL: principal, WORKSPACE: workspace, SESSION: session}

    def _check_host(self, sent: list[str], *, is_local: bool) -> None:
        if len(sent) != 1 or not (is_local or sent[0].lower() in self.hosts):
            raise HttpProblem("misdirected_request")

    def _check_origin(self, scope: Scope) -> str | None:
        """The allowed origin that a request comes from; None: the daemon's own, or from no page."""
        origins = _values(scope, b"origin")
        if len(origins) == 1 and origins[0] in self._origins:
            return origins[0]
        ours = {f"http://{host}" for host in self.hosts}
        if any(origin.lower() not in ours for origin in origins) or len(origins) > 1:
            raise HttpProblem("foreign_origin")
        if not _OUR_SITES.issuperset(_values(scope, b"sec-fetch-site")):
            raise HttpProblem("foreign_origin")
        return None

    def _count_hello(self) -> None:
        second = int(time.monotonic())
        self._hellos = self._hellos + 1 if second == self._second else 1
        self._second = second
        if self._hellos > MAX_HELLOS:
            raise HttpProblem("busy", headers={"Retry-After": "1"})

    async def _principal(self, scope: Scope) -> Principal:
        sent, state = _values(scope, b"authorization"), scope["state"]
        if not sent and _GRANTED not in state and state[PEER] is not None and state[PEER] == self._us:
            return THE_OWNER
        found = None
        if len(sent) == 1:
            scheme, _, token = sent[0].partition(" ")
            found = await self._whose(token.strip(" ")) if scheme.lower() == "bearer" else None
        if found is None:
            raise HttpProblem("token_required", headers={"WWW-Authenticate": "Bearer"})
        return found


def as_origin(text: str) -> str:
    """An origin as browsers send it: in lower case, and without the port that its scheme has anyway.

    Args:
        text: `scheme://host` or `scheme://host:port`, and nothing else.

    Raises:
        ConfigInvalid: it is none. `*` and `null` are not, since they would be every page.

    Source: RFC 6454, 6.2.
    """
    found = _ORIGIN.fullmatch(text)
    if found is None or int(found[3] or 0) > _MAX_PORT:
        what = (
            "this is no origin of a page, such as https://memory.example.org:8443, without a slash at its end"
        )
        raise ConfigInvalid(f"--allow-origin {printable(text)}: {what}")
    scheme, host, port = (part and part.lower() for part in found.groups())
    is_told = port is not None and (scheme, port) not in _USUAL_PORTS
    return f"{scheme}://{host}:{port}" if is_told else f"{scheme}://{host}"


def _for_page(origin: str) -> tuple[tuple[bytes, bytes], ...]:
    """Headers that let a page of this origin read an answer; without cookies, which are none of ours."""
    return (
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
        (b"vary", b"Origin"),
    )


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
    headers, body = _rendered(problem)
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _rendered(problem: HttpProblem) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers and the body that tell of a problem."""
    body = json.dumps(problem.body()).encode()
    about = {"content-type": "application/problem+json", "content-length": str(len(body))}
    headers = {**problem.headers, **about}
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()], body


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
    elif len(segments) == 3 and segments[0] == "workspaces" and segments[2] == "mcp":  # noqa: PLR2004
        workspace, segments = _decoded(segments[1]), ["mcp"]
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


def _path_of_page(raw: bytes) -> tuple[str | None, str]:
    """Likewise, of the page: `/w/{workspace}/…`, and `/`."""
    if raw == b"/":
        return None, "/"
    _, path = _path(raw)
    _, first, *rest = path.split("/")
    if first == "w" and len(rest) > 1:
        return rest[0], "/" + "/".join(rest[1:])
    return None, path


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
