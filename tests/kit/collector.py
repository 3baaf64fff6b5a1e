"""A collector of traces on the loopback: takes OTLP over HTTP, or misbehaves as a test wants."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATH = "/v1/traces"


class Collected(SimpleNamespace):
    """What came.

    Attributes:
        url: the endpoint, as an operator gives it.
        requests: path and headers of each, with its spans as OTLP's JSON has them.
    """

    @property
    def spans(self):
        return [
            span
            for _, _, document in self.requests
            for resource in document["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    @property
    def resource(self):
        """The attributes of the program that sent the first request."""
        return attributes(self.requests[0][2]["resourceSpans"][0]["resource"])


def attributes(message):
    """The attributes of a span or resource: of each its one value."""
    return {each["key"]: next(iter(each["value"].values())) for each in message.get("attributes", ())}


@contextmanager
def collecting(answer=lambda: (200, {})):
    """A collector; `answer` gives the status and headers of each answer, when it comes to that."""
    found = Collected(requests=[])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            document = MessageToDict(ExportTraceServiceRequest.FromString(data))
            found.requests.append((self.path, dict(self.headers), document))
            status, headers = answer()
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
