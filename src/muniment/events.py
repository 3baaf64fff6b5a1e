"""Log events to the standard logger `muniment`, create OpenTelemetry spans, and track progress.

A library must not print. Therefore events are sent to `logging.getLogger("muniment")`, which only the
packages `cli` and `server` configure. Fields of an event are names, codes, counts and paths inside the
memory, never content or host paths. If a longer text is passed by mistake, only its length is logged.
Variables that are bound with `structlog.contextvars` are added to each event.

Spans describe tasks, their runs, their turns, tool calls and commits, as defined by OpenTelemetry:

    with span("commit") as trace:
        trace.set_attributes(files=3)

T1 A span contains only ids, counts and codes. Any other value is omitted, for example a path or the name of
   an entry or a model. An error is reported by its code, without its message.
T2 If the program that uses this library has set a tracer provider, spans are sent to it. Muniment's own
   programs set one in `cli/traces.py`.
T3 The optional package `opentelemetry` is imported only if spans are requested.
T4 A task never fails because of an error of a tracer.

Work that may take more than a second describes itself while it runs, so that a program can show it:

    with track_progress("importing", unit="files", total=3_000) as progress:
        progress.done += 1

G1 A `Progress` contains only words and numbers of this package and names of scopes, no text of users, files
   or models.
G2 Only the program decides whether anything is shown, with `watch_progress`. The display reads the `Progress`
   from another thread, so that the work neither waits for it nor calls it for each step.

Sources: opentelemetry.io/docs/specs/otel/trace/api; w3.org/TR/trace-context, 3.2.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from muniment.errors import MunimentError
from muniment.names import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span as ForeignSpan
    from opentelemetry.trace import Tracer

_LOGGER = "muniment"

MAX_VALUE_CHARS: Final = 300
"""Maximum characters of a text in an event. A longer text must be content, because paths are shorter."""

_PRIVATE: Final = frozenset(
    {"content", "query", "fact", "text", "body", "token", "authorization", "api_key", "key", "arguments"}
)
"""Names of fields whose values are never logged."""


def emit(event: str, **fields: Any) -> None:
    """Log an event at level INFO.

    Args:
        event: the name of the event.
        fields: the data of the event; private and long values are replaced by their length.

    Cost: if the level is disabled, only the check of the level.
    """
    if not logging.getLogger(_LOGGER).isEnabledFor(logging.INFO):
        return
    import structlog

    logger = structlog.wrap_logger(
        logging.getLogger(_LOGGER),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            _redact,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    logger.info(event, **fields)


def emit_defect(event: str, error: BaseException, **fields: Any) -> None:
    """Log an unexpected exception by its class and source line, without its message.

    The message may quote private data.

    Args:
        event: the name of the event.
        error: the exception.
        fields: as for `emit`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    emit(event, problem=type(error).__name__, where=where, **fields)


def _redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        event[name] = _redact_value(name, value)
    return event


def _redact_value(name: Any, value: Any) -> Any:
    """Return a value in the form in which it may be logged; nested values are converted in the same way."""
    is_text = isinstance(value, str | bytes)
    if name in _PRIVATE or (is_text and len(value) > MAX_VALUE_CHARS):
        return f"(redacted: {len(value)} characters)" if is_text else "(redacted)"
    if isinstance(value, Mapping):
        return {key: _redact_value(key, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value("", each) for each in value]
    return value


# -- spans -------------------------------------------------------------------------------------------

SpanName = Literal["task", "run", "turn", "tool", "commit"]

AttributeValue = int | str | None
"""The value of an attribute of a span: a count, a flag, a code or an id. None: the attribute is omitted."""

_CODE: Final = re.compile(r"[a-z_]{1,40}|_OTHER", re.ASCII)
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_IDS: Final = frozenset({"task_id"})
_MAX_COUNT: Final = 2**63 - 1
"""The largest number that OpenTelemetry can export; a model's server may report a larger count."""

_STANDARD: Final = {
    "error": "error.type",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
"""Attributes with a name in OpenTelemetry's semantic conventions; names of all others begin with `muniment.`.
"""

_DEFECT: Final = "_OTHER"
"""The value of `error.type` for an error without a code, as OpenTelemetry's conventions define it."""


class Span(AbstractContextManager["Span"]):
    """An OpenTelemetry span around a `with` block; it has no effect without a tracer.

    Create it with `span`.
    """

    def __init__(self, name: SpanName, fields: Mapping[str, AttributeValue]) -> None:
        self._name, self._fields = name, fields
        self._opened: AbstractContextManager[ForeignSpan] | None = None
        self._span: ForeignSpan | None = None

    def __enter__(self) -> Self:
        with _suppress_tracer_errors():
            if (tracer := _find_tracer()) is not None:
                self._opened = tracer.start_as_current_span(
                    f"muniment.{self._name}", record_exception=False, set_status_on_exception=False
                )
                self._span = self._opened.__enter__()
                self.set_attributes(**self._fields)
        return self

    def set_attributes(self, **fields: AttributeValue) -> None:
        """Set attributes of the span; values that are not counts, codes or ids are omitted.

        Args:
            fields: the attributes by name. The attribute `error`, an error code, marks the span as failed.
        """
        if self._span is None:
            return
        with _suppress_tracer_errors():
            attributes = {
                _STANDARD.get(name, f"muniment.{name}"): value for name, value in _filter_attributes(fields)
            }
            self._span.set_attributes(attributes)
            if fields.get("error") is not None:
                from opentelemetry.trace import StatusCode

                self._span.set_status(StatusCode.ERROR)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._opened is None:
            return
        if error is not None:
            self.set_attributes(error=error.code if isinstance(error, MunimentError) else _DEFECT)
        with _suppress_tracer_errors():
            self._opened.__exit__(None, None, None)  # Without the exception it cannot quote its message.


def span(name: SpanName, **fields: AttributeValue) -> Span:
    """Return a span to use in a `with` statement.

    Args:
        name: the kind of work that the span describes.
        fields: attributes, see `Span.set_attributes`.

    Cost: a few microseconds without a tracer.
    """
    return Span(name, fields)


def _filter_attributes(fields: Mapping[str, AttributeValue]) -> Iterator[tuple[str, int | str]]:
    for name, value in fields.items():
        form = _ID if name in _IDS else _CODE
        if isinstance(value, int) and 0 <= value <= _MAX_COUNT:
            yield name, value
        elif isinstance(value, str) and form.fullmatch(value):
            yield name, str(value)  # For an enumeration, its value.


@contextmanager
def _suppress_tracer_errors() -> Iterator[None]:
    """Suppress and log all errors of a tracer in the block: a tracer is code of others (rule T4)."""
    try:
        yield
    except Exception as defect:  # noqa: BLE001  it is logged; no task fails for it
        emit_defect("span_lost", defect)


class _ProgramTracer:
    """The tracer that `export_spans_to` has set, or None."""

    tracer: Tracer | None = None


@contextmanager
def export_spans_to(tracer: Tracer) -> Iterator[None]:
    """Send all spans to a tracer while the block runs, in every thread of this process.

    Only for Muniment's own programs. Two such blocks must not run at the same time.
    """
    _ProgramTracer.tracer = tracer
    try:
        yield
    finally:
        _ProgramTracer.tracer = None


def _find_tracer() -> Tracer | None:
    """Return the tracer to use, or None if spans are not requested."""
    if _ProgramTracer.tracer is not None:
        return _ProgramTracer.tracer
    api = sys.modules.get("opentelemetry.trace")  # A program that has set a provider has imported it.
    tracer: Tracer | None = None if api is None else api.get_tracer("muniment", __version__)
    return tracer


# -- parents -----------------------------------------------------------------------------------------

MAX_PARENTS: Final = 1_000
"""Maximum number of queued tasks whose parent span is stored; a ledger stores as many tasks."""

_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class TraceParents:
    """The spans of callers, as parents for the spans of queued tasks. Thread-safe.

    The parents are stored only in memory: after a restart, a queued task begins a new trace.
    """

    def __init__(self) -> None:
        self._pending: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def store(self, task_id: str, sent: Sequence[str]) -> None:
        """Store the `traceparent` header of the request that queued a task; ignore an invalid header.

        Args:
            task_id: the id of the task.
            sent: the values of all `traceparent` headers; if there is not exactly one, ignore them.
        """
        if len(sent) == 1 and _TRACEPARENT.fullmatch(sent[0]):
            with self._lock:
                self._pending[task_id] = sent[0]
                if len(self._pending) > MAX_PARENTS:
                    self._pending.popitem(last=False)

    @contextmanager
    def attach(self, task_id: str) -> Iterator[None]:
        """Make the stored parent of a task, if there is one, the parent of the spans in the block."""
        with self._lock:
            sent = self._pending.pop(task_id, None)
        if sent is None or _find_tracer() is None:
            yield
            return
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        token = context.attach(TraceContextTextMapPropagator().extract({"traceparent": sent}))
        try:
            yield
        finally:
            context.detach(token)


# -- progress ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Progress:
    """Work that may take more than a second. The code that does the work updates the attributes.

    Attributes:
        doing: the work, such as `importing`.
        unit: the plural of what is counted, such as `files`; empty: `doing` names it, or nothing is counted.
        total: the number of units; None: unknown.
        done: the number of finished units.
        detail: more about the current state; empty: nothing.
        started_at: when the work started, on `time.monotonic()`.
        is_shown: whether a user sees this progress now. Only then is an expensive `total` worth computing.
    """

    doing: str
    unit: str = ""
    total: int | None = None
    done: int = 0
    detail: str = ""
    started_at: float = field(default_factory=time.monotonic)
    is_shown: bool = False


class ProgressWatcher(Protocol):
    """A display of the work of one thread."""

    def begin(self, progress: Progress) -> None:
        """Note that work begins; it may be a part of other work that has begun."""

    def end(self, progress: Progress) -> None:
        """Note that work has ended."""


class _ThreadWatcher(threading.local):
    """The watcher of each thread, or None. A thread of a server has none."""

    watcher: ProgressWatcher | None = None


_THREAD_WATCHER: Final = _ThreadWatcher()


@contextmanager
def watch_progress(watcher: ProgressWatcher) -> Iterator[None]:
    """Report the work of this thread to a watcher during the block."""
    _THREAD_WATCHER.watcher = watcher
    try:
        yield
    finally:
        _THREAD_WATCHER.watcher = None


@contextmanager
def track_progress(
    doing: str,
    *,
    unit: str = "",
    total: int | None = None,
    detail: str = "",
    started_at: float | None = None,
) -> Iterator[Progress]:
    """Describe the work of the block for a watcher; yield the `Progress`, which the block updates.

    Args:
        doing: as in `Progress`; so are the other arguments.
        unit: the plural of what is counted.
        total: the number of units.
        detail: more about the current state.
        started_at: when the work started; None: now.

    Cost: a few microseconds.
    """
    progress = Progress(doing, unit, total, detail=detail)
    if started_at is not None:
        progress.started_at = started_at
    watcher = _THREAD_WATCHER.watcher
    if watcher is None:
        yield progress
        return
    watcher.begin(progress)
    try:
        yield progress
    finally:
        watcher.end(progress)
