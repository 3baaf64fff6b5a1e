"""Who may see the page: a name that nobody guesses, a code that works once, and a cookie.

D1 The page stands at a host name of its own, `m-<128 random bits>.localhost`, drawn when it is first asked
   for, and nowhere else; nothing else of the daemon answers there, and no token counts. So a cookie of the
   page goes to no other server of this machine, and no page that does not know the name can name it.
   Browsers look for such a name at both loopback addresses, at `::1` first. Where the daemon does not listen
   at one of them, the same port there is held, so that no other user's server is taken for the page.
D2 A browser says where a request comes from (`Sec-Fetch-Site`). What comes from the page itself, or is typed
   in, may bring a cookie; any other navigation has none, whatever it sends, and finds the way in alone;
   anything else from elsewhere is refused (403), and so is a browser that does not say.
D3 What is posted comes from the page: `Sec-Fetch-Site: same-origin`, and exactly its `Origin`.
D4 A code opens one session, within `CODE_SECONDS`. Only digests of codes and cookies are kept, in memory: a
   session ends when it is signed out, after `SESSION_SECONDS`, or with the daemon.
D5 Answers let a browser run and show nothing but what the page serves as files: no script or style in a
   text, no frame, no form or request to elsewhere.

Does not hold: anything against a process of the same user, or against whoever reads the screen.

Sources: RFC 6265bis for cookies; RFC 6761, 6.3 for names below `localhost`; socket(7) for what is held;
w3.org/TR/fetch-metadata.
"""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

from muniment.kernel.change import digest
from muniment.server.contract import HttpProblem

MADE_WITH: Final = ("jinja2", "markdown_it")
"""What the page is made with, and the base install has not."""

CODE_SECONDS: Final = 60.0
"""Seconds in which a code opens a session."""

SESSION_SECONDS: Final = 12 * 3600.0
"""Seconds after which a session ends: a working day."""

MAX_CODES: Final = 8
MAX_SESSIONS: Final = 16
"""Of codes and sessions at once; where there would be more, the oldest end."""

MAX_NOTICES: Final = 8
"""Of a session at once: whoever sends forms and looks at nothing loses the first ones."""

COOKIE: Final = "muniment"

_LOOPBACK: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_ANY: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104  what a socket says, not what it is to do

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

PAGE_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", _POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # With `no-referrer` browsers would say `Origin: null` of our own forms.
    (b"referrer-policy", b"same-origin"),
)
"""On every answer of the page (D5)."""


@dataclass(slots=True)
class Session:
    """Somebody who has signed in.

    Attributes:
        until: when it ends, by the door's clock.
        notices: what the next view says once, the oldest first.
    """

    until: float
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))


class PageDoor:
    """The way to the page. Belongs to one event loop.

    Args:
        clock: seconds that never go back, those in which the machine slept included.

    Attributes:
        listener: of the daemon, once it listens.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)) -> None:
        self._clock = clock
        self.listener: socket.socket | None = None
        self._held: list[socket.socket] = []
        self._name = ""
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, Session] = {}

    def invite(self) -> tuple[str, str]:
        """The page's URL, and a code to sign in with; until this was asked once there is no page.

        Raises:
            HttpProblem: a browser would find somebody else there (D1), or nobody.
        """
        port = 0 if self.listener is None else self.listener.getsockname()[1]
        if not self._name:
            self._held = [] if self.listener is None else _held_beside(self.listener)
            self._name = f"m-{secrets.token_hex(16)}.localhost"
        code = secrets.token_urlsafe(16)
        now = self._clock()
        self._codes = {each: until for each, until in self._codes.items() if until > now}
        _make_room(self._codes, MAX_CODES)
        self._codes[digest(code.encode())] = now + CODE_SECONDS
        return f"http://{self._name}:{port}", code

    def close(self) -> None:
        """Let go of what is held."""
        for each in self._held:
            each.close()

    def is_at(self, host: str) -> bool:
        """Whether a Host header names the page (D1), by whatever port it is reached."""
        return bool(self._name) and host.partition(":")[0] == self._name

    def admit(self, method: str, headers: dict[str, list[str]]) -> Session | None:
        """Whose a request is; None: of nobody who has signed in (D2, D3).

        Args:
            method: of the request.
            headers: every value of a header by its name.

        Raises:
            HttpProblem: it comes from elsewhere.
        """
        site = headers.get("sec-fetch-site", [])
        is_navigation = method == "GET" and headers.get("sec-fetch-mode") == ["navigate"]
        if site != ["same-origin"] and not is_navigation:
            raise HttpProblem("foreign_origin")
        if method != "GET" and headers.get("origin") != [f"http://{host}" for host in headers["host"]]:
            raise HttpProblem("foreign_origin")
        if site not in (["same-origin"], ["none"]):
            return None
        return self._session(headers.get("cookie", []))

    def sign_in(self, unsafe_code: str) -> str | None:
        """What the cookie of a new session says (D4); None: there is no such code, or no more."""
        until = self._codes.pop(digest(unsafe_code.encode()), 0.0)
        now = self._clock()
        if until <= now:
            return None
        self._sessions = {each: it for each, it in self._sessions.items() if it.until > now}
        _make_room(self._sessions, MAX_SESSIONS)
        cookie = secrets.token_urlsafe(32)
        self._sessions[digest(cookie.encode())] = Session(now + SESSION_SECONDS)
        return cookie

    def sign_out(self, session: Session) -> None:
        """End a session."""
        self._sessions = {each: other for each, other in self._sessions.items() if other is not session}

    def knows(self, session: Session) -> bool:
        """Whether a session goes on."""
        return session.until > self._clock() and any(each is session for each in self._sessions.values())

    def _session(self, cookies: list[str]) -> Session | None:
        try:
            found = [SimpleCookie(each).get(COOKIE) for each in cookies]
        except CookieError:
            return None
        values = [each.value for each in found if each is not None]
        session = self._sessions.get(digest(values[0].encode())) if len(values) == 1 else None
        return session if session is not None and session.until > self._clock() else None


def _make_room(kept: dict[str, float] | dict[str, Session], most: int) -> None:
    """Drop what was added first, so that one more has its place."""
    while len(kept) >= most:
        del kept[next(iter(kept))]


def _held_beside(listener: socket.socket) -> list[socket.socket]:
    """The port of a listener at the loopback addresses where it does not listen: held, and not answered.

    Raises:
        HttpProblem: another program has one of them, or the listener is at neither.
    """
    family, (host, port, *_) = listener.family, listener.getsockname()
    if host == "::" and not listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        return []  # It listens at both.
    others = [each for each in _LOOPBACK if each[0] != family or host not in {each[1], _ANY[family]}]
    if len(others) == len(_LOOPBACK):
        raise HttpProblem("ui_not_local")
    held: list[socket.socket] = []
    for other, address in others:
        try:
            # Without SO_REUSEADDR: nobody else may then bind it, also who sets that.
            held.append(socket.socket(other, socket.SOCK_STREAM))
            held[-1].bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for each in held:
                    each.close()
                raise HttpProblem("ui_port_taken") from None
            # There is no such address here, and nobody to listen there.
    return held
