"""A third-party HTTP server on the loopback whose responses a test defines."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(answer):
    """Run a server; yield its port.

    Args:
        answer: returns body, status and headers of each response, from a request with `command`, `path`,
            `headers` and `sent`, the bytes of its body.
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

        do_POST = do_GET  # noqa: N815  name required by the library

        def log_message(self, *_):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def html(text, **headers):
    """Build an HTML response."""
    return text.encode(), 200, {"Content-Type": "text/html", **headers}
