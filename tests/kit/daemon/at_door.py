"""Somebody at the door of the page, byte by byte: what a browser would send, and what none does."""

from __future__ import annotations

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
        body = urlencode(fields, quote_via=quote).encode()
        return self.ask("POST", path, SAME, f"Origin: {self.url}", FORM, *_more, body=body)

    def sign_in(self, code=None):
        """Sign in, with the code that it has or another one; what that is answered with."""
        answer = self.post("/sign-in", code=self.code if code is None else code)
        for sent in answer.values("set-cookie"):
            self.cookie = sent.partition(";")[0].removeprefix("muniment=")
        return answer

    def has_session(self):
        """Whether it is shown the memory."""
        return self.get(self.memory).status == 200
