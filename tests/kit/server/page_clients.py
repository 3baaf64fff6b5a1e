"""Clients of the page, byte by byte: requests that a browser sends, and requests that no browser sends."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode, urlsplit

SAME, FORM = "Sec-Fetch-Site: same-origin", "Content-Type: application/x-www-form-urlencoded"


class PageClient:
    """Requests the page of a daemon.

    Attributes:
        url, code: as given to the owner.
        host: the Host header of a browser.
        cookie: of its session, after it has signed in.
    """

    def __init__(self, daemon):
        self.daemon, self.cookie = daemon, None
        login = daemon.post("/ui").json()
        self.url, self.code = login["url"], login["code"]
        self.host = urlsplit(self.url).netloc
        self.memory = f"/w/{daemon.key}/memory"

    def request(self, method, path, *headers, host=None, cookie=None, **options):
        """Send a request with these headers, and with the session cookie if there is one."""
        cookie = self.cookie if cookie is None else cookie
        sent = [f"Cookie: muniment={cookie}"] if cookie else []
        return self.daemon.send_request(
            method, path, *sent, *headers, token="", host=host or self.host, **options
        )

    def get(self, path, *headers, **options):
        """Send a request like a script of the page."""
        return self.request("GET", path, SAME, *headers, **options)

    def post(self, path, _more=(), /, **fields):
        """Send a form of the page."""
        return self.request("POST", path, SAME, f"Origin: {self.url}", FORM, *_more, body=encode_form(fields))

    def sign_in(self, code=None):
        """Sign in with its code or another one; return the response."""
        answer = self.post("/sign-in", code=self.code if code is None else code)
        for sent in answer.get_header_values("set-cookie"):
            self.cookie = sent.partition(";")[0].removeprefix("muniment=")
        return answer

    def has_session(self):
        """Return whether the memory is displayed."""
        return self.get(self.memory).status == 200


class SignedInClient:
    """A signed-in client that requests views and sends forms like the browser of the owner."""

    def __init__(self, daemon):
        self.daemon, self._caller = daemon, PageClient(daemon)
        assert self._caller.sign_in().status == 303

    def get(self, view, mode="navigate", **query):
        """Return the response to a navigation or to a script's request; `view` is a path if it starts with a
        slash.
        """
        site = "Sec-Fetch-Site: none" if mode == "navigate" else SAME
        path = self._path(view) + (f"?{urlencode(query)}" if query else "")
        return self._caller.request("GET", path, site, f"Sec-Fetch-Mode: {mode}")

    def post(self, view, /, **form):
        """Return the response to a form."""
        return self._caller.post(self._path(view), **form)

    def send(self, view, **form):
        """Send a form without waiting for the response; return the connection."""
        client = self._caller
        headers = (SAME, f"Origin: {client.url}", FORM, f"Cookie: muniment={client.cookie}")
        line = self.daemon.open_connection()
        line.send(
            self.daemon.build_request(
                "POST", self._path(view), *headers, body=encode_form(form), token="", host=client.host
            )
        )
        return line

    def follow(self, path="events"):
        """Request the events of the workspace by a path of the page; return the connection."""
        headers = (SAME, "Sec-Fetch-Mode: cors", f"Cookie: muniment={self._caller.cookie}")
        options = {"token": "", "host": self._caller.host}
        line = self.daemon.open_connection()
        line.send(self.daemon.build_request("GET", self._path(path), *headers, **options))
        return line

    def _path(self, view):
        return view if view.startswith("/") else f"/w/{self.daemon.key}/{view}"


def encode_form(fields):
    """Encode fields like a browser."""
    return urlencode(fields, quote_via=quote).encode()


def remove_whitespace(text):
    """Remove the white space of a text, for comparison."""
    return re.sub(r"\s+", "", text)
