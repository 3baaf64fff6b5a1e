"""A collector of traces on the loopback: takes OTLP over HTTP, or misbehaves as a test wants."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kit.pages import answering

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

    def collect(asked):
        document = MessageToDict(ExportTraceServiceRequest.FromString(asked.sent))
        found.requests.append((asked.path, dict(asked.headers), document))
        return b"", *answer()

    with answering(collect) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found
