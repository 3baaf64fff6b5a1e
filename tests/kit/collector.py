"""A trace collector on the loopback: accepts OTLP over HTTP, or misbehaves as a test defines."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kit.pages import answering

PATH = "/v1/traces"


class Collected(SimpleNamespace):
    """The received traces.

    Attributes:
        url: the endpoint, as an operator configures it.
        requests: path, headers and the OTLP JSON document of each request.
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
        """Return the attributes of the program that sent the first request."""
        return attributes(self.requests[0][2]["resourceSpans"][0]["resource"])


def attributes(message):
    """Return the attributes of a span or resource, each with its single value."""
    return {each["key"]: next(iter(each["value"].values())) for each in message.get("attributes", ())}


@contextmanager
def collecting(answer=lambda: (200, {})):
    """Run a collector; `answer` returns the status and headers of each response."""
    found = Collected(requests=[])

    def collect(asked):
        document = MessageToDict(ExportTraceServiceRequest.FromString(asked.sent))
        found.requests.append((asked.path, dict(asked.headers), document))
        return b"", *answer()

    with answering(collect) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found
