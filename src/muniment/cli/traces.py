"""Export the trace spans of a command, or of the daemon, to an OpenTelemetry collector.

The operator enables the export with `OTEL_TRACES_EXPORTER=otlp`. If only the endpoint is set, nothing is
sent: other programs may need that variable.

X1 Spans are sent only to the endpoint in the variables of OpenTelemetry. Redirects are not followed; proxies
   of the environment and `.netrc` are ignored.
X2 The tracer provider is not registered for the whole process. So libraries that trace the content of their
   calls do not use it.
X3 A task never waits for the collector, and never fails because of it. Spans that the collector does not
   accept are dropped. At its end, a program waits for the collector at most `FLUSH_SECONDS`, and reports
   dropped spans in one line.

Source: opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables, …/protocol/exporter.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from muniment import events
from muniment.cli.terminal import print_notes
from muniment.errors import ConfigInvalid
from muniment.names import __version__

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult

EXPORTER_VARIABLE: Final = "OTEL_TRACES_EXPORTER"
FLUSH_SECONDS: Final = 2.0
"""Seconds that a program waits at its end until the collector has accepted the remaining spans."""

_PROTOCOL: Final = "http/protobuf"
_PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@contextmanager
def export_spans() -> Iterator[None]:
    """Export the trace spans of a block, if the environment variables enable it.

    If spans cannot be sent, one line on standard error reports this; nothing else changes.
    """
    counts = _Counts()
    try:
        provider = _create_provider(counts)
    except ConfigInvalid as error:
        print_notes([f"no traces are sent: {error}"])
        provider = None
    if provider is None:
        yield
        return
    try:
        with events.export_spans_to(provider.get_tracer("muniment", __version__)):
            yield
    finally:
        ending = threading.Thread(target=provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        with suppress(KeyboardInterrupt):  # Ctrl-C ends the wait; the work is already done.
            ending.join(FLUSH_SECONDS)
        if counts.ended > counts.sent:
            lost = f"{counts.ended - counts.sent} of {counts.ended} spans"
            print_notes(
                [f"{lost} were not sent: the collector did not accept them (OTEL_EXPORTER_OTLP_ENDPOINT)"]
            )


class _Counts:
    """The number of spans that ended, and the number of spans that the collector accepted."""

    def __init__(self) -> None:
        self.ended = self.sent = 0
        self._is_lost = False

    def record(self, spans: int, *, is_accepted: bool) -> None:
        """Count spans that were sent. If the collector starts or stops accepting spans, log an event.

        Args:
            spans: the number of spans in the batch.
            is_accepted: whether the collector accepted the batch.
        """
        self.sent += spans if is_accepted else 0
        if self._is_lost == is_accepted:
            self._is_lost = not is_accepted
            events.emit("traces_sent" if is_accepted else "traces_not_sent", spans=spans)


def _create_provider(counts: _Counts) -> TracerProvider | None:
    """Create a tracer provider that exports over OTLP, or return None if the export is not enabled.

    Raises:
        ConfigInvalid: the configuration is invalid, or a package is missing.
    """
    exporters = {name.strip() for name in os.environ.get(EXPORTER_VARIABLE, "").lower().split(",")} - {""}
    if (
        not exporters
        or exporters == {"none"}
        or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    ):
        return None
    if "otlp" not in exporters:
        raise ConfigInvalid(f"invalid {EXPORTER_VARIABLE}: use otlp or none")
    protocol = next((os.environ[name] for name in _PROTOCOL_VARIABLES if os.environ.get(name)), _PROTOCOL)
    if protocol.strip().lower() != _PROTOCOL:
        raise ConfigInvalid(
            f"{_PROTOCOL_VARIABLES[1]} must be {_PROTOCOL}, with an endpoint that supports it"
        )
    try:
        return _build_provider(counts)
    except ImportError:
        raise ConfigInvalid("traces need the extra `otel`: pip install 'muniment[otel]'") from None
    except (ValueError, OSError) as error:  # An invalid variable, or an unreadable certificate.
        raise ConfigInvalid(f"OpenTelemetry reports: {error}") from error


def _create_session() -> requests.Session:
    """Return the HTTP session for the collector: without redirects, proxies and `.netrc`."""
    import requests

    session = requests.Session()
    session.trust_env, session.max_redirects = False, 0
    return session


def _build_provider(counts: _Counts) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

    class CountingExporter(OTLPSpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = super().export(spans)
            counts.record(len(spans), is_accepted=result is SpanExportResult.SUCCESS)
            return result

    class CountingProcessor(BatchSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            counts.ended += span.context.trace_flags.sampled
            super().on_end(span)

    # The library would log a failure for every batch; `_Counts` reports failures once.
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    resource = Resource({"service.name": "muniment", "service.version": __version__})
    provider = TracerProvider(
        resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    provider.add_span_processor(CountingProcessor(CountingExporter(session=_create_session())))
    return provider
