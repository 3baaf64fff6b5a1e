"""Somebody at the door of the page, byte by byte: what a browser would send, and what none does."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode, urlsplit

SAME, FORM = "Sec-Fetch-Site: same-origin", "Content-Type: application/x-www-form-urlencoded"


class Caller:
    """Asks for the page of a daemon, and sends requests there.

    Attributes:
        url, code: as the owner was told.
        host: what a browser sends as Host.
        cookie: of its session, once it has signed in.
    """

    def __init__(self, daemon):
        self.daemon, self.cookie = daemon, None
        told = daemon.post("/ui").json()
        self.url, self.code = told["url"], told["code"]
        self.host = urlsplit(self.url).netloc
        self.memory = f"/w/{daemon.key}/memory"

    def ask(self, method, path, *headers, host=None, cookie=None, **terms):
        """Send a request with these headers, and with the cookie of its session if it has one."""
        cookie = self.cookie if cookie is None else cookie
        sent = [f"Cookie: muniment={cookie}"] if cookie else []
        return self.daemon.ask(method, path, *sent, *headers, token="", host=host or self.host, **terms)

    def get(self, path, *headers, **terms):
        """Ask as a script of the page does."""
        return self.ask("GET", path, SAME, *headers, **terms)

    def post(self, path, _more=(), /, **fields):
        """Send a form of the page."""
        return self.ask("POST", path, SAME, f"Origin: {self.url}", FORM, *_more, body=as_form(fields))

    def sign_in(self, code=None):
        """Sign in, with the code that it has or another one; what that is answered with."""
        answer = self.post("/sign-in", code=self.code if code is None else code)
        for sent in answer.values("set-cookie"):
            self.cookie = sent.partition(";")[0].removeprefix("muniment=")
        return answer

    def has_session(self):
        """Whether it is shown the memory."""
        return self.get(self.memory).status == 200


class Visitor:
    """Somebody who has signed in, and asks for views and sends forms as the owner's browser would."""

    def __init__(self, daemon):
        self.daemon, self._caller = daemon, Caller(daemon)
        assert self._caller.sign_in().status == 303

    def get(self, view, mode="navigate", **query):
        """The answer to a navigation to a view, or to a script's look; a path if it begins with a slash."""
        site = "Sec-Fetch-Site: none" if mode == "navigate" else SAME
        path = self._path(view) + (f"?{urlencode(query)}" if query else "")
        return self._caller.ask("GET", path, site, f"Sec-Fetch-Mode: {mode}")

    def post(self, view, **form):
        """The answer to a form."""
        return self._caller.post(self._path(view), **form)

    def send(self, view, **form):
        """A connection on which a form was sent, whose answer is not waited for."""
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
        """A connection on which the events of the workspace have been asked for, by a path of the page."""
        headers = (SAME, "Sec-Fetch-Mode: cors", f"Cookie: muniment={self._caller.cookie}")
        terms = {"token": "", "host": self._caller.host}
        line = self.daemon.line()
        line.send(self.daemon.request("GET", self._path(path), *headers, **terms))
        return line

    def _path(self, view):
        return view if view.startswith("/") else f"/w/{self.daemon.key}/{view}"


def as_form(fields):
    """Fields as a browser sends them."""
    return urlencode(fields, quote_via=quote).encode()


def words(text):
    """A text without its white space, to be found again however it is laid out."""
    return re.sub(r"\s+", "", text)
