"""A server of somebody else's on the loopback: it answers as a test says."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(answer):
    """The port of a server.

    Args:
        answer: gives the body, the status and the headers of each answer, from a request with its `command`,
            `path`, `headers` and `sent`, the bytes of its body.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.sent = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            body, status, headers = answer(self)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  as the library names them

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def html(text, **headers):
    """An answer that is a page."""
    return text.encode(), 200, {"Content-Type": "text/html", **headers}
