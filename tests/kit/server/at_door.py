"""Clients of the page, byte by byte: requests that a browser sends, and requests that no browser sends."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode, urlsplit

SAME, FORM = "Sec-Fetch-Site: same-origin", "Content-Type: application/x-www-form-urlencoded"


class Caller:
    """Requests the page of a daemon.

    Attributes:
        url, code: as given to the owner.
        host: the Host header of a browser.
        cookie: of its session, after it has signed in.
    """

    def __init__(self, daemon):
        self.daemon, self.cookie = daemon, None
        told = daemon.post("/ui").json()
        self.url, self.code = told["url"], told["code"]
        self.host = urlsplit(self.url).netloc
        self.memory = f"/w/{daemon.key}/memory"

    def ask(self, method, path, *headers, host=None, cookie=None, **terms):
        """Send a request with these headers, and with the session cookie if there is one."""
        cookie = self.cookie if cookie is None else cookie
        sent = [f"Cookie: muniment={cookie}"] if cookie else []
        return self.daemon.ask(method, path, *sent, *headers, token="", host=host or self.host, **terms)

    def get(self, path, *headers, **terms):
        """Send a request like a script of the page."""
        return self.ask("GET", path, SAME, *headers, **terms)

    def post(self, path, _more=(), /, **fields):
        """Send a form of the page."""
        return self.ask("POST", path, SAME, f"Origin: {self.url}", FORM, *_more, body=as_form(fields))

    def sign_in(self, code=None):
        """Sign in with its code or another one; return the response."""
        answer = self.post("/sign-in", code=self.code if code is None else code)
        for sent in answer.values("set-cookie"):
            self.cookie = sent.partition(";")[0].removeprefix("muniment=")
        return answer

    def has_session(self):
        """Return whether the memory is displayed."""
        return self.get(self.memory).status == 200


class Visitor:
    """A signed-in client that requests views and sends forms like the browser of the owner."""

    def __init__(self, daemon):
        self.daemon, self._caller = daemon, Caller(daemon)
        assert self._caller.sign_in().status == 303

    def get(self, view, mode="navigate", **query):
        """Return the response to a navigation or to a script's request; `view` is a path if it starts with a
        slash.
        """
        site = "Sec-Fetch-Site: none" if mode == "navigate" else SAME
        path = self._path(view) + (f"?{urlencode(query)}" if query else "")
        return self._caller.ask("GET", path, site, f"Sec-Fetch-Mode: {mode}")

    def post(self, view, **form):
        """Return the response to a form."""
        return self._caller.post(self._path(view), **form)

    def send(self, view, **form):
        """Send a form without waiting for the response; return the connection."""
        at = self._caller
        headers = (SAME, f"Origin: {at.url}", FORM, f"Cookie: muniment={at.cookie}")
        line = self.daemon.line()
        line.send(
            self.daemon.request(
                "POST", self._path(view), *headers, body=as_form(form), token="", host=at.host
            )
        )
        return line

    def follow(self, path="events"):
        """Request the events of the workspace by a path of the page; return the connection."""
        headers = (SAME, "Sec-Fetch-Mode: cors", f"Cookie: muniment={self._caller.cookie}")
        terms = {"token": "", "host": self._caller.host}
        line = self.daemon.line()
        line.send(self.daemon.request("GET", self._path(path), *headers, **terms))
        return line

    def _path(self, view):
        return view if view.startswith("/") else f"/w/{self.daemon.key}/{view}"


def as_form(fields):
    """Encode fields like a browser."""
    return urlencode(fields, quote_via=quote).encode()


def words(text):
    """Remove the white space of a text, for comparison."""
    return re.sub(r"\s+", "", text)
