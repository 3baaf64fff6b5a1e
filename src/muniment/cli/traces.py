"""Export of the spans of a command, or of the daemon, to an OpenTelemetry collector.

The operator asks for it by `OTEL_TRACES_EXPORTER=otlp`: an endpoint alone, which may stand in an environment
for the sake of other programs, sends nothing.

X1 Spans go to the endpoint that OpenTelemetry's variables name, and nowhere else: redirects are not followed,
   proxies of the environment and `.netrc` not read.
X2 The provider is this program's own and not the process's, so that libraries which trace their calls,
   contents and all, do not reach it.
X3 No task waits for a collector or fails for it. What it does not take is dropped. A program waits for it
   `FLUSH_SECONDS` at its end, and says in a line what it did not take.

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
from muniment.cli.terminal import say_notes
from muniment.errors import ConfigInvalid
from muniment.names import __version__

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult

EXPORTER_VARIABLE: Final = "OTEL_TRACES_EXPORTER"
FLUSH_SECONDS: Final = 2.0
"""Seconds that a program waits at its end for the collector to take what is left."""

_PROTOCOL: Final = "http/protobuf"
_PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@contextmanager
def exported() -> Iterator[None]:
    """Export the spans of a block, if the environment asks for it.

    Whatever keeps them from being sent is said in one line on standard error, and changes nothing else.
    """
    counted = _Counts()
    try:
        provider = _provider(counted)
    except ConfigInvalid as error:
        say_notes([f"no traces are sent: {error}"])
        provider = None
    if provider is None:
        yield
        return
    try:
        with events.to(provider.get_tracer("muniment", __version__)):
            yield
    finally:
        ending = threading.Thread(target=provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        with suppress(KeyboardInterrupt):  # It ends the wait; what was done stays done.
            ending.join(FLUSH_SECONDS)
        if counted.ended > counted.sent:
            lost = f"{counted.ended - counted.sent} of {counted.ended} spans"
            say_notes(
                [f"{lost} were not sent: the collector did not take them (OTEL_EXPORTER_OTLP_ENDPOINT)"]
            )


class _Counts:
    """Spans that ended, and those that the collector took."""

    def __init__(self) -> None:
        self.ended = self.sent = 0
        self._is_lost = False

    def took(self, spans: int, *, is_taken: bool) -> None:
        """The collector was sent some; a change is logged, for whoever runs a daemon."""
        self.sent += spans if is_taken else 0
        if self._is_lost == is_taken:
            self._is_lost = not is_taken
            events.emit("traces_sent" if is_taken else "traces_not_sent", spans=spans)


def _provider(counted: _Counts) -> TracerProvider | None:
    """A provider that exports over OTLP; None: nobody asks for it.

    Raises:
        ConfigInvalid: it cannot, with the reason.
    """
    asked = {name.strip() for name in os.environ.get(EXPORTER_VARIABLE, "").lower().split(",")} - {""}
    if not asked or asked == {"none"} or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if "otlp" not in asked:
        raise ConfigInvalid(f"{EXPORTER_VARIABLE} may be otlp or none")
    said = next((os.environ[name] for name in _PROTOCOL_VARIABLES if os.environ.get(name)), _PROTOCOL)
    if said.strip().lower() != _PROTOCOL:
        raise ConfigInvalid(f"{_PROTOCOL_VARIABLES[1]} may be {_PROTOCOL}, with an endpoint that speaks it")
    try:
        return _built(counted)
    except ImportError:
        raise ConfigInvalid("they need an extra: pip install 'muniment[otel]'") from None
    except (ValueError, OSError) as error:  # Of a variable, or a certificate that one names.
        raise ConfigInvalid(f"OpenTelemetry says {error}") from error


def _session() -> requests.Session:
    """What speaks HTTP with the collector (X1)."""
    import requests

    session = requests.Session()
    session.trust_env, session.max_redirects = False, 0
    return session


def _built(counted: _Counts) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

    class CountingExporter(OTLPSpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = super().export(spans)
            counted.took(len(spans), is_taken=result is SpanExportResult.SUCCESS)
            return result

    class CountingProcessor(BatchSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            counted.ended += span.context.trace_flags.sampled
            super().on_end(span)

    # What it has to say with every batch is said by the counts, and once.
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    named = Resource({"service.name": "muniment", "service.version": __version__})
    provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(CountingProcessor(CountingExporter(session=_session())))
    return provider
