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
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muniment import events
from muniment.daemon.problems import Problem, problem_of
from muniment.daemon.protocol import HEADERS, MAX_HEADER_BYTES, PEER
from muniment.daemon.shares import Shares
from muniment.daemon.tokens import THE_OWNER, Principal
from muniment.errors import MunimentError
from muniment.names import Trust

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
        except Problem as problem:
            problem.headers["Connection"] = "close"
            raise
        scope["path"] = path
        return {PRINCIPAL: principal, WORKSPACE: workspace}

    def _check_host(self, sent: list[str], *, is_local: bool) -> None:
        if len(sent) != 1 or not (is_local or sent[0].lower() in self.hosts):
            raise Problem("misdirected_request")

    def _check_origin(self, scope: Scope) -> None:
        origins = _values(scope, b"origin")
        ours = {f"http://{host}" for host in self.hosts}
        if any(origin.lower() not in ours for origin in origins) or len(origins) > 1:
            raise Problem("foreign_origin")
        if not _OUR_SITES.issuperset(_values(scope, b"sec-fetch-site")):
            raise Problem("foreign_origin")

    def _count_hello(self) -> None:
        second = int(time.monotonic())
        self._hellos = self._hellos + 1 if second == self._second else 1
        self._second = second
        if self._hellos > MAX_HELLOS:
            raise Problem("busy", headers={"Retry-After": "1"})

    def _principal(self, scope: Scope) -> Principal:
        sent = _values(scope, b"authorization")
        if not sent and scope["state"][PEER] is not None and scope["state"][PEER] == self._us:
            return THE_OWNER
        found = None
        if len(sent) == 1:
            scheme, _, token = sent[0].partition(" ")
            found = self._whose(token.strip(" ")) if scheme.lower() == "bearer" else None
        if found is None:
            raise Problem("token_required", headers={"WWW-Authenticate": "Bearer"})
        return found


def _problem(error: BaseException, method: str) -> Problem:
    """What is answered where `error` was raised; a defect is logged."""
    match error:
        case Problem():
            return error
        case MunimentError():
            return problem_of(error)
        case asyncio.CancelledError():  # By the server, which stops.
            return Problem("workspace_draining", headers={"Retry-After": "1"})
        case _:
            events.emit_defect("request_broke", error, method=method)
            return Problem("internal_error")


async def _answer(problem: Problem, send: Callable[[Message], Awaitable[None]]) -> None:
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
        raise Problem("invalid_http")


def _has_body(scope: Scope) -> bool:
    sizes = [value for value in _values(scope, b"content-length") if value.strip("0")]
    return bool(sizes or _values(scope, b"transfer-encoding"))


def _check_body(scope: Scope) -> None:
    """Refuse a body that no route would read, and one whose end others would see elsewhere."""
    is_chunked = bool(_values(scope, b"transfer-encoding"))
    is_doubtful = _values(scope, b"content-length") or scope["http_version"] != "1.1"
    if (scope["method"] != "POST" and _has_body(scope)) or (is_chunked and is_doubtful):
        raise Problem("invalid_http")


def _path(raw: bytes) -> tuple[str | None, str]:
    """The workspace that a path names, and the path without it (G3)."""
    before, *segments = raw.decode("ascii").split("/")
    workspace: str | None = None
    if len(segments) > 2 and segments[0] == "workspaces" and segments[2] == "memory":  # noqa: PLR2004
        workspace = _decoded(segments[1])
        segments = ["workspace", *segments[2:]]
    elif len(segments) == 3 and segments[0] == "session" and segments[2] == "events":  # noqa: PLR2004
        if _decoded(segments[1]) in _NO_NAMES:
            raise Problem("not_found")
        segments = ["workspace", "memory", "events"]
    if before:  # A target that is no path: a URL, or worse.
        raise Problem("not_found")
    for segment in segments:
        if _decoded(segment) != segment or segment in _NO_NAMES:
            raise Problem("not_found")
    return workspace, "/" + "/".join(segments)


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Problem("not_found") from None


def _this_user() -> int | None:
    """The user whom the Unix socket serves; None: it cannot be told from others."""
    user = os.geteuid()
    try:
        overflow = int(_OVERFLOW.read_text(encoding="ascii"))
    except (OSError, ValueError):
        overflow = 65_534
    return None if user == overflow else user
