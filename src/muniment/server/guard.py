"""The checks that every request passes before it reaches a route.

G1 Exactly one Host header, and it must be a name of the daemon, otherwise 421. A web page whose name was
   rebound to this address sends another name. On the Unix socket, which web pages cannot reach, any single
   name is accepted.
G2 The Origin must be the daemon's own or one that its operator allowed, compared exactly, otherwise 403.
   `null` is foreign, and so is a request that the browser marks as cross-site. A page of an allowed origin
   may read the responses. Its preflight is granted without a token; the call needs a token, and cookies do
   not authenticate.
G3 A path is used as it was sent: empty, dotted or encoded segments are not found (404). The long forms
   `/workspaces/{workspace}/…` (also `…/mcp`) and `/session/{id}/events` are converted to the short forms only
   here.
G4 Exactly one bearer token, otherwise 401. On the Unix socket the token may be missing: then the peer must be
   the user of this process. This user must not be the overflow user, which the Linux kernel reports for an
   unknown user. A page that a proxy forwards to the socket is not authenticated. Only `HELLO` needs no token:
   with it the daemon proves its identity to a client before the client sends its token (ADR 0026).
G5 At most `MAX_REQUESTS` requests are in progress, `MAX_WAITING` wait, and `MAX_FOLLOWERS` follow events,
   otherwise 503. Of each of these limits, one client's token gets at most half, and all clients together
   leave some to the owner.
G6 Every response has the headers of `HEADERS`. Each error in a route becomes a problem, without details of
   the exception.
G7 At the host name of the page, once the page was requested, the sign-in of the page replaces G1, G2 and G4,
   and the page replaces the routes (`page/access.py`). Not on the Unix socket.

If a response is sent before the whole body was read, the connection is closed.
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
from muniment.server.contract import HttpProblem, convert_error
from muniment.server.page.access import PAGE_HEADERS, PageAccess
from muniment.server.tokens import OWNER_PRINCIPAL, Principal, SlotShares

# -- protocol ----------------------------------------------------------------------------------------
#
# The HTTP/1.1 protocol of the daemon: uvicorn's, with additional limits.
#
# - A connection that does not send a complete header within `HEADER_SECONDS` is closed, including the first
#   header. So is one that reads none of its response for `UNREAD_SECONDS`.
# - If there are too many connections, the one that has been idle for longest is closed, not the new one. Half
#   of the process's descriptors are never used for connections, so that clients cannot stop other work.
# - On the Unix socket, the kernel reports the user of the peer, once per connection.
# - Invalid HTTP gets a problem as its response, like every other error.
#
# Source: unix(7), SO_PEERCRED.

HEADER_SECONDS: Final = 10.0
"""Seconds within which the header of a request must arrive."""

UNREAD_SECONDS: Final = 60.0
"""Seconds for a client to read about 48 KiB of its response. A follower that is disconnected resumes at its
cursor.
"""

MAX_HEADER_BYTES: Final = 32 * 1024
"""Maximum bytes of a request header; browsers send about 2 KiB."""

MAX_CONNECTIONS: Final = 512
"""Maximum connections, if the process has enough descriptors; see `compute_max_connections`."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names that are always accepted in a Host header. A web page that rebinds a name sends another name."""

PEER: Final = "peer"
"""Key in a request's state for the user id of the peer of a Unix socket; None for TCP."""

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of every response, except those of the page."""

_CREDENTIALS: Final = struct.Struct("3i")


def compute_max_connections() -> int:
    """Return the maximum number of connections; half of the descriptors stay free for other work."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Protocol(H11Protocol):
    """One connection from a client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If there are too many, close the one that has been idle for longest."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: _read_peer(transport.get_extra_info("socket"))}
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > compute_max_connections():
            connections = [each for each in self.connections if isinstance(each, Protocol)]
            idle = {each: since for each in connections if (since := each.get_idle_since()) is not None}
            if not idle:
                self.drop()
                return
            min(idle, key=idle.__getitem__).drop()
        self._expect_header()

    def get_idle_since(self) -> float | None:
        """Return the time, by the loop's clock, since when the connection is idle; None if it is in use."""
        if self._header_timer is not None:
            return self._header_timer.when() - HEADER_SECONDS
        if self.timeout_keep_alive_task is not None:
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive
        return None

    def drop(self) -> None:
        """Close the connection immediately, and discard unsent data."""
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_expecting()
        elif self._header_timer is None and self.conn.trailing_data[0]:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a closed connection."""
        self._stop_expecting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop sending until the client has read pending data. If it reads too slowly, disconnect it."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Resume sending, because the client has read pending data."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP, and close the connection."""
        del msg
        if self.cycle is not None:
            self.cycle.disconnected = True  # It must not respond any more, if it has not done so yet.
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
        problem = HttpProblem("invalid_http")
        headers, body = _render_problem(problem)
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


def _read_peer(connection: Any) -> int | None:
    """Return the user id that the peer of a Unix socket had when it connected; None for other sockets."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    return int(uid)


# -- guard -------------------------------------------------------------------------------------------

MAX_REQUESTS: Final = 128
"""Maximum requests in progress, which take a few milliseconds each. Waiting requests are not counted."""

MAX_WAITING: Final = 128
"""Maximum waiting requests, which are not counted as in progress."""

MAX_FOLLOWERS: Final = 256
"""Maximum requests that follow events."""

ALLOWED_METHODS: Final = "GET, POST, DELETE"
ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Mcp-Method, Mcp-Name, "
    "Mcp-Protocol-Version, Mcp-Session-Id, Prefer, X-Muniment-Client-Id, X-Muniment-Trust, X-Qwen-Client-Id, "
    "X-Qwen-Event-Epoch"
)
EXPOSED_HEADERS: Final = (
    "ETag, Idempotency-Replayed, Location, Mcp-Session-Id, Retry-After, X-Qwen-Event-Epoch"
)
"""Methods, request headers and response headers that a page of an allowed origin may use in addition to the
standard ones.
"""

_PREFLIGHT_HEADERS: Final = (
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
"""Keys of a request's state: its principal, its workspace (None: the only workspace), its slot, and for
requests to the page its session (None: not signed in).
"""

_HEADERS: Final = "headers"
_CORS_HEADERS: Final = "granted"
"""Keys of a request's state: the headers of its response, and the headers that let a page of an allowed
origin read the response.
"""

HELLO: Final = "/hello"

MAX_HELLOS: Final = 256
"""Maximum proofs of identity (`/hello`) per second; a client needs one for each connection. A rejected client
retries.
"""

_ANONYMOUS: Final = Principal("", Trust.EXTERNAL, frozenset())

_CLOSE: Final = (b"connection", b"close")
_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")
_INVALID_SEGMENTS: Final = frozenset({"", ".", ".."})
_ALLOWED_SITES: Final = frozenset({"same-origin", "none"})

FindPrincipal = Callable[[str], Awaitable[Principal | None]]


@dataclass(slots=True)
class Slot:
    """The slot of a request: in progress, waiting or following events. A request has at most one slot."""

    guard: Guard
    token: str
    _shares: SlotShares | None = None

    def begin(self) -> None:
        """Count the request among those in progress.

        Raises:
            HttpProblem: too many requests are in progress.
        """
        self._move_to(self.guard.in_progress)

    def wait(self) -> None:
        """Count the request among those that wait, and no longer among those in progress.

        Raises:
            HttpProblem: too many requests wait.
        """
        self._move_to(self.guard.waiting)

    def follow(self) -> None:
        """Count the request among those that follow events, and no longer among those in progress.

        Raises:
            HttpProblem: too many requests follow events.
        """
        self._move_to(self.guard.following)

    def release(self) -> None:
        """Release the slot. Call this when the request is over."""
        if self._shares is not None:
            self._shares.release(self.token)
            self._shares = None

    def _move_to(self, shares: SlotShares) -> None:
        shares.acquire(self.token)
        self.release()
        self._shares = shares


class Guard:
    """The outermost part of the application: checks every request before it reaches a route.

    Args:
        app: the application that receives the accepted requests.
        find_principal: returns the principal of a token.
        hosts: allowed values of the Host header, in lower case.
        origins: origins of other web pages that may call the daemon, in the form of `normalize_origin`.
        page_access: access to the daemon's page (rule G7 in the module docstring).
        open_paths: paths in addition to `HELLO` that need no token for GET.

    Attributes:
        in_progress, waiting, following: slots of the requests in progress, of those that wait, and of those
            that follow events.
    """

    def __init__(
        self,
        app: ASGIApp,
        find_principal: FindPrincipal,
        hosts: frozenset[str],
        origins: frozenset[str] = frozenset(),
        page_access: PageAccess | None = None,
        open_paths: Collection[str] = (),
    ) -> None:
        self._app, self._find_principal, self.hosts, self._origins = app, find_principal, hosts, origins
        self._page_access, self._open = page_access or PageAccess(), frozenset(open_paths)
        self.in_progress, self.waiting = SlotShares(MAX_REQUESTS, 1), SlotShares(MAX_WAITING, 1)
        self.following = SlotShares(MAX_FOLLOWERS, 5)
        self._user_id = _read_user_id()
        self._second, self._hellos = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and let the application respond to it."""
        started, is_read = False, not _has_body(scope)
        slot: Slot | None = None

        async def receive_tracked() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                closing = [] if is_read else [_CLOSE]
                state = scope["state"]
                more = (*state.get(_HEADERS, HEADERS), *state.get(_CORS_HEADERS, ()), *closing)
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            state = await self._admit(scope)
            if state is None:
                await send_guarded(
                    {"type": "http.response.start", "status": 204, "headers": [*_PREFLIGHT_HEADERS]}
                )
                await send_guarded({"type": "http.response.body"})
                return
            slot = Slot(self, state[PRINCIPAL].share)
            slot.begin()
            scope["state"] |= {**state, SLOT: slot}
            await self._app(scope, receive_tracked, send_guarded)
        except (Exception, asyncio.CancelledError) as error:
            problem = _convert_error(error, scope["method"])
            if started:
                raise
            await _send_problem(problem, send_guarded)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            if slot is not None:
                slot.release()

    async def _admit(self, scope: Scope) -> dict[str, Any] | None:
        """Check a request (rules G1 to G4 and G7 in the module docstring), and set its path.

        Returns:
            The entries to add to the request's state; None for a preflight request of an allowed origin.

        Raises:
            HttpProblem: a check failed.
        """
        is_local = scope["state"][PEER] is not None
        try:
            _check_header(scope)
            host = _list_values(scope, b"host")
            if not is_local and len(host) == 1 and self._page_access.is_page_host(host[0].lower()):
                return self._admit_to_page(scope)
            self._check_host(host, is_local=is_local)
            origin = self._check_origin(scope)
            if origin is not None:
                scope["state"][_CORS_HEADERS] = _build_cors_headers(origin)
                if scope["method"] == "OPTIONS" and _list_values(scope, b"access-control-request-method"):
                    return None
            workspace, path = _split_path(scope["raw_path"])
            _check_body(scope)
            if path == HELLO and scope["method"] == "GET":
                self._count_hello()
                principal = _ANONYMOUS
            elif path in self._open and scope["method"] == "GET":
                principal = _ANONYMOUS
            else:
                principal = await self._authenticate(scope)
        except HttpProblem as problem:
            problem.headers["Connection"] = "close"
            raise
        scope["path"] = path
        return {PRINCIPAL: principal, WORKSPACE: workspace}

    def _admit_to_page(self, scope: Scope) -> dict[str, Any]:
        """Check a request to the page (rule G7 in the module docstring), and set its path.

        Returns:
            The entries to add to the request's state.

        Raises:
            HttpProblem: the request comes from another site, or has an invalid path or body.
        """
        scope["state"][_HEADERS] = PAGE_HEADERS
        workspace, scope["path"] = _split_page_path(scope["raw_path"])
        _check_body(scope)
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        session = self._page_access.admit(scope["method"], headers)
        principal = _ANONYMOUS if session is None else OWNER_PRINCIPAL
        return {PRINCIPAL: principal, WORKSPACE: workspace, SESSION: session}

    def _check_host(self, sent: list[str], *, is_local: bool) -> None:
        if len(sent) != 1 or not (is_local or sent[0].lower() in self.hosts):
            raise HttpProblem("misdirected_request")

    def _check_origin(self, scope: Scope) -> str | None:
        """Return the origin of a request if it is one of the allowed other origins.

        Returns None if the origin is the daemon's own, or if no web page sent the request.

        Raises:
            HttpProblem: the origin is foreign.
        """
        origins = _list_values(scope, b"origin")
        if len(origins) == 1 and origins[0] in self._origins:
            return origins[0]
        own_origins = {f"http://{host}" for host in self.hosts}
        if any(origin.lower() not in own_origins for origin in origins) or len(origins) > 1:
            raise HttpProblem("foreign_origin")
        if not _ALLOWED_SITES.issuperset(_list_values(scope, b"sec-fetch-site")):
            raise HttpProblem("foreign_origin")
        return None

    def _count_hello(self) -> None:
        second = int(time.monotonic())
        self._hellos = self._hellos + 1 if second == self._second else 1
        self._second = second
        if self._hellos > MAX_HELLOS:
            raise HttpProblem("busy", headers={"Retry-After": "1"})

    async def _authenticate(self, scope: Scope) -> Principal:
        sent, state = _list_values(scope, b"authorization"), scope["state"]
        if (
            not sent
            and _CORS_HEADERS not in state
            and state[PEER] is not None
            and state[PEER] == self._user_id
        ):
            return OWNER_PRINCIPAL
        found = None
        if len(sent) == 1:
            scheme, _, token = sent[0].partition(" ")
            found = await self._find_principal(token.strip(" ")) if scheme.lower() == "bearer" else None
        if found is None:
            raise HttpProblem("token_required", headers={"WWW-Authenticate": "Bearer"})
        return found


def normalize_origin(text: str) -> str:
    """Return an origin as browsers send it: in lower case, and without the default port of its scheme.

    Args:
        text: `scheme://host` or `scheme://host:port`.

    Raises:
        ConfigInvalid: invalid origin. `*` and `null` are rejected, because they would allow every web page.

    Source: RFC 6454, 6.2.
    """
    found = _ORIGIN.fullmatch(text)
    if found is None or int(found[3] or 0) > _MAX_PORT:
        explanation = "use an origin such as https://memory.example.org:8443, without a slash at its end"
        raise ConfigInvalid(f"invalid --allow-origin {printable(text)!r}: {explanation}")
    scheme, host, port = (part and part.lower() for part in found.groups())
    has_explicit_port = port is not None and (scheme, port) not in _USUAL_PORTS
    return f"{scheme}://{host}:{port}" if has_explicit_port else f"{scheme}://{host}"


def _build_cors_headers(origin: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that let a web page of this origin read a response. They do not allow cookies."""
    return (
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
        (b"vary", b"Origin"),
    )


def _convert_error(error: BaseException, method: str) -> HttpProblem:
    """Return the response for an exception; if the exception is a defect, log it."""
    match error:
        case HttpProblem():
            return error
        case MunimentError():
            return convert_error(error)
        case asyncio.CancelledError():  # Raised when the server stops.
            return HttpProblem("workspace_draining", headers={"Retry-After": "1"})
        case _:
            events.emit_defect("request_broke", error, method=method)
            return HttpProblem("internal_error")


async def _send_problem(problem: HttpProblem, send: Callable[[Message], Awaitable[None]]) -> None:
    headers, body = _render_problem(problem)
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _render_problem(problem: HttpProblem) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the body of the response for a problem."""
    body = json.dumps(problem.body()).encode()
    about = {"content-type": "application/problem+json", "content-length": str(len(body))}
    headers = {**problem.headers, **about}
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()], body


def _list_values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _check_header(scope: Scope) -> None:
    """Raise `HttpProblem` if the HTTP version is not 1.0 or 1.1, or the header is too large.

    uvicorn does not limit the size of a header in all cases.
    """
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES or scope["http_version"] not in {"1.0", "1.1"}:
        raise HttpProblem("invalid_http")


def _has_body(scope: Scope) -> bool:
    sizes = [value for value in _list_values(scope, b"content-length") if value.strip("0")]
    return bool(sizes or _list_values(scope, b"transfer-encoding"))


def _check_body(scope: Scope) -> None:
    """Raise `HttpProblem` for a body that no route reads, or whose length is ambiguous."""
    is_chunked = bool(_list_values(scope, b"transfer-encoding"))
    is_doubtful = _list_values(scope, b"content-length") or scope["http_version"] != "1.1"
    if (scope["method"] != "POST" and _has_body(scope)) or (is_chunked and is_doubtful):
        raise HttpProblem("invalid_http")


def _split_path(raw: bytes) -> tuple[str | None, str]:
    """Return the workspace that a path names (None: it names none), and the path in its short form.

    Raises:
        HttpProblem: the path has an empty, dotted or encoded segment.
    """
    before, *segments = raw.decode("ascii").split("/")
    workspace: str | None = None
    if len(segments) > 2 and segments[0] == "workspaces" and segments[2] == "memory":  # noqa: PLR2004
        workspace = _decode_segment(segments[1])
        segments = ["workspace", *segments[2:]]
    elif len(segments) == 3 and segments[0] == "workspaces" and segments[2] == "mcp":  # noqa: PLR2004
        workspace, segments = _decode_segment(segments[1]), ["mcp"]
    elif len(segments) == 3 and segments[0] == "session" and segments[2] == "events":  # noqa: PLR2004
        if _decode_segment(segments[1]) in _INVALID_SEGMENTS:
            raise HttpProblem("not_found")
        segments = ["workspace", "memory", "events"]
    if before:  # The target is not a path, but for example a URL.
        raise HttpProblem("not_found")
    for segment in segments:
        if _decode_segment(segment) != segment or segment in _INVALID_SEGMENTS:
            raise HttpProblem("not_found")
    return workspace, "/" + "/".join(segments)


def _split_page_path(raw: bytes) -> tuple[str | None, str]:
    """Return the workspace that a path of the page names, and the rest of the path.

    The path is `/w/{workspace}/…`; for other paths, the workspace is None.
    """
    if raw == b"/":
        return None, "/"
    _, path = _split_path(raw)
    _, first, *rest = path.split("/")
    if first == "w" and len(rest) > 1:
        return rest[0], "/" + "/".join(rest[1:])
    return None, path


def _decode_segment(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise HttpProblem("not_found") from None


def _read_user_id() -> int | None:
    """Return the id of the user that may use the Unix socket without a token; None for the overflow user."""
    user = os.geteuid()
    try:
        overflow = int(_OVERFLOW.read_text(encoding="ascii"))
    except (OSError, ValueError):
        overflow = 65_534
    return None if user == overflow else user
