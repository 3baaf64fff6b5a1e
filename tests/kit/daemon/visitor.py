"""Somebody who has signed in to the page and asks for its views without a browser, as the owner's would."""

from __future__ import annotations

import re
from urllib.parse import urlencode


class Visitor:
    """A session at the page of a daemon of `kit.daemon.raw`.

    Attributes:
        host: the page's own, with its port.
    """

    def __init__(self, daemon):
        told = daemon.post("/ui").json()
        self.daemon, self.host, self._cookie = daemon, told["url"].removeprefix("http://"), ""
        answer = self.post("/sign-in", code=told["code"])
        assert answer.status == 303, answer
        (set_cookie,) = answer.values("set-cookie")
        self._cookie = set_cookie.partition(";")[0]

    def get(self, view, mode="navigate", **query):
        """The answer to a navigation to a view, or to a script's look; a path if it begins with a slash."""
        site = "none" if mode == "navigate" else "same-origin"
        headers = (f"Sec-Fetch-Site: {site}", f"Sec-Fetch-Mode: {mode}", f"Cookie: {self._cookie}")
        path = self._path(view) + (f"?{urlencode(query)}" if query else "")
        return self.daemon.ask("GET", path, *headers, token="", host=self.host)

    def follow(self, path="events"):
        """A connection on which the events of the workspace have been asked for, by a path of the page."""
        headers = ("Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", f"Cookie: {self._cookie}")
        line = self.daemon.line()
        line.send(self.daemon.request("GET", self._path(path), *headers, token="", host=self.host))
        return line

    def post(self, view, **form):
        """The answer to a form."""
        headers = [f"Origin: http://{self.host}", "Sec-Fetch-Site: same-origin"]
        headers += ["Content-Type: application/x-www-form-urlencoded", f"Cookie: {self._cookie or 'x=y'}"]
        body = urlencode(form).encode()
        return self.daemon.ask("POST", self._path(view), *headers, body=body, token="", host=self.host)

    def _path(self, view):
        return view if view.startswith("/") else f"/w/{self.daemon.key}/{view}"


def words(text):
    """A text without its white space, to be found again however it is laid out."""
    return re.sub(r"\s+", "", text)
