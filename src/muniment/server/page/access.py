"""Access to the page: a host name that cannot be guessed, a code that works once, and a cookie.

D1 The page has a separate host name, `m-<128 random bits>.localhost`, created when the page is first opened.
   No other part of the daemon is served there, and no token is accepted. So the cookie of the page is sent to
   no other server of this machine, and a web page that does not know the name cannot request it. Browsers
   look up such a name at both loopback addresses, `::1` first. If the daemon does not listen at one of them,
   the same port is bound there, so that another user's server cannot pretend to be the page.
D2 A browser reports the source of a request (`Sec-Fetch-Site`). A cookie counts only if the request comes
   from the page or its address was typed in. Any other navigation counts as signed out and can only reach the
   sign-in. Other foreign requests are rejected (403), and also requests without the header.
D3 A POST must come from the page: `Sec-Fetch-Site: same-origin`, and exactly its `Origin`.
D4 A code opens one session, within `CODE_SECONDS`. Only digests of codes and cookies are stored, in memory. A
   session ends when the user signs out, after `SESSION_SECONDS`, or with the daemon.
D5 Responses let a browser run and show only files of the page: no script or style in a text, no frame, no
   form or request to other servers.

Not guaranteed: protection against a process of the same user, or against an attacker who reads the screen.

Sources: RFC 6265bis for cookies; RFC 6761, 6.3 for names under `localhost`; socket(7) for bound ports;
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

PAGE_PACKAGES: Final = ("jinja2", "markdown_it")
"""Packages that the page needs in addition to the base install."""

CODE_SECONDS: Final = 60.0
"""Seconds during which a sign-in code opens a session."""

SESSION_SECONDS: Final = 12 * 3600.0
"""Seconds after which a session ends: a working day."""

MAX_CODES: Final = 8
MAX_SESSIONS: Final = 16
"""Maximum number of codes, and of sessions. If there are more, the oldest are removed."""

MAX_NOTICES: Final = 8
"""Maximum notices that a session stores until a view displays them; if there are more, the oldest are
removed.
"""

COOKIE: Final = "muniment"

_LOOPBACK: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_ANY: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104  compared with a socket's address, not bound

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
    # With `no-referrer`, browsers would send `Origin: null` with the page's forms.
    (b"referrer-policy", b"same-origin"),
)
"""Headers of every response of the page (rule D5 in the module docstring)."""


@dataclass(slots=True)
class Session:
    """The session of a signed-in browser.

    Attributes:
        until: time at which the session ends, by the clock of `PageAccess`.
        notices: messages that the next view displays once, oldest first.
    """

    until: float
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))


class PageAccess:
    """Access to the daemon's web page: creates sign-in codes and sessions, and finds a request's session.

    Belongs to one event loop.

    Args:
        clock: returns monotonic seconds that include the time in which the machine slept.

    Attributes:
        listener: the daemon's listener; set once the daemon listens.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)) -> None:
        self._clock = clock
        self.listener: socket.socket | None = None
        self._reserved: list[socket.socket] = []
        self._name = ""
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, Session] = {}

    def create_code(self) -> tuple[str, str]:
        """Return the URL of the daemon's web page and a new sign-in code; the first call creates the page.

        Raises:
            HttpProblem: a browser would not reach the page at this URL, or could reach another server.
        """
        port = 0 if self.listener is None else self.listener.getsockname()[1]
        if not self._name:
            self._reserved = [] if self.listener is None else _reserve_other_addresses(self.listener)
            self._name = f"m-{secrets.token_hex(16)}.localhost"
        code = secrets.token_urlsafe(16)
        now = self._clock()
        self._codes = {each: until for each, until in self._codes.items() if until > now}
        _drop_oldest(self._codes, MAX_CODES)
        self._codes[digest(code.encode())] = now + CODE_SECONDS
        return f"http://{self._name}:{port}", code

    def close(self) -> None:
        """Close the sockets that reserve the port at other loopback addresses."""
        for each in self._reserved:
            each.close()

    def is_page_host(self, host: str) -> bool:
        """Return whether a Host header contains the name of the page, with any port."""
        return bool(self._name) and host.partition(":")[0] == self._name

    def admit(self, method: str, headers: dict[str, list[str]]) -> Session | None:
        """Return the session of a request, or None if the browser is not signed in.

        Args:
            method: method of the request.
            headers: all values of each header by its name.

        Raises:
            HttpProblem: the request comes from another site.
        """
        site = headers.get("sec-fetch-site", [])
        is_navigation = method == "GET" and headers.get("sec-fetch-mode") == ["navigate"]
        if site != ["same-origin"] and not is_navigation:
            raise HttpProblem("foreign_origin")
        if method != "GET" and headers.get("origin") != [f"http://{host}" for host in headers["host"]]:
            raise HttpProblem("foreign_origin")
        if site not in (["same-origin"], ["none"]):
            return None
        return self._find_session(headers.get("cookie", []))

    def sign_in(self, unsafe_code: str) -> str | None:
        """Open a session and return its cookie, or None if the code is invalid or expired."""
        until = self._codes.pop(digest(unsafe_code.encode()), 0.0)
        now = self._clock()
        if until <= now:
            return None
        self._sessions = {each: session for each, session in self._sessions.items() if session.until > now}
        _drop_oldest(self._sessions, MAX_SESSIONS)
        cookie = secrets.token_urlsafe(32)
        self._sessions[digest(cookie.encode())] = Session(now + SESSION_SECONDS)
        return cookie

    def sign_out(self, session: Session) -> None:
        """End a session."""
        self._sessions = {each: other for each, other in self._sessions.items() if other is not session}

    def is_valid(self, session: Session) -> bool:
        """Return whether a session is still signed in and has not expired."""
        return session.until > self._clock() and any(each is session for each in self._sessions.values())

    def _find_session(self, cookies: list[str]) -> Session | None:
        try:
            found = [SimpleCookie(each).get(COOKIE) for each in cookies]
        except CookieError:
            return None
        values = [each.value for each in found if each is not None]
        session = self._sessions.get(digest(values[0].encode())) if len(values) == 1 else None
        return session if session is not None and session.until > self._clock() else None


def _drop_oldest(items: dict[str, float] | dict[str, Session], limit: int) -> None:
    """Remove the oldest items until there is space for one more."""
    while len(items) >= limit:
        del items[next(iter(items))]


def _reserve_other_addresses(listener: socket.socket) -> list[socket.socket]:
    """Bind the port of a listener at the other loopback addresses, so that no other program can use it.

    The returned sockets do not listen.

    Raises:
        HttpProblem: another program uses the port there, or the listener does not use a loopback address.
    """
    family, (host, port, *_) = listener.family, listener.getsockname()
    if host == "::" and not listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        return []  # The listener uses both.
    others = [each for each in _LOOPBACK if each[0] != family or host not in {each[1], _ANY[family]}]
    if len(others) == len(_LOOPBACK):
        raise HttpProblem("ui_not_local")
    reserved: list[socket.socket] = []
    for other, address in others:
        try:
            # Without SO_REUSEADDR: then no other program can bind it, even with that option.
            reserved.append(socket.socket(other, socket.SOCK_STREAM))
            reserved[-1].bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for each in reserved:
                    each.close()
                raise HttpProblem("ui_port_taken") from None
            # This machine lacks the address, so no program can listen there.
    return reserved
