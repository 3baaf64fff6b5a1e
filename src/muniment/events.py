"""What happened, as structlog events on the standard logging tree under `muniment`.

A library must not print: events go to `logging.getLogger("muniment")`, which only `cli` and `server`
configure. Fields are names, codes, counts and logical paths, never content or host paths; should one that
may hold more get here by mistake, its size is logged instead. What is bound with `structlog.contextvars` is
added.

Spans of what is done, as OpenTelemetry has them: a task, its runs, their turns, tool calls and commits.

    with span("commit") as told:
        told.tell(files=3)

T1 They hold ids, counts and codes: what is no number, and neither a code nor an id by its form, is left out.
   Errors are told by their codes; no message, no path, no name that anybody chose for an entry or a model.
T2 They go to the tracer provider that the program has set which uses this library, if it has set one; or to
   that of Muniment's own programs (`cli/traces.py`).
T3 Nothing is imported unless somebody asks for spans: `opentelemetry` is an extra.
T4 No task fails for a tracer.

Sources: opentelemetry.io/docs/specs/otel/trace/api; w3.org/TR/trace-context, 3.2.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from muniment.errors import MunimentError
from muniment.names import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span as ForeignSpan
    from opentelemetry.trace import Tracer

_LOGGER = "muniment"

MAX_VALUE_CHARS: Final = 300
"""Characters of a text in an event: a logical path has fewer, what is longer is content."""

_PRIVATE: Final = frozenset(
    {"content", "query", "fact", "text", "body", "token", "authorization", "api_key", "key", "arguments"}
)
"""Fields that are never logged."""


def emit(event: str, **fields: Any) -> None:
    """Log `event` at level INFO. Costs a level check where nobody listens; structlog loads at first use."""
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
    """Log a defect by its class and where it was raised, without its message, which may quote anything."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    emit(event, problem=type(error).__name__, where=where, **fields)


def _redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        event[name] = _redacted(name, value)
    return event


def _redacted(name: Any, value: Any) -> Any:
    """What is logged of a value, and of what is in it."""
    is_text = isinstance(value, str | bytes)
    if name in _PRIVATE or (is_text and len(value) > MAX_VALUE_CHARS):
        return f"(redacted: {len(value)} characters)" if is_text else "(redacted)"
    if isinstance(value, Mapping):
        return {key: _redacted(key, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted("", each) for each in value]
    return value


# -- spans -------------------------------------------------------------------------------------------

SpanName = Literal["task", "run", "turn", "tool", "commit"]

Told = int | str | None
"""A count, a flag, or a code or id; None says nothing."""

_CODE: Final = re.compile(r"[a-z_]{1,40}|_OTHER", re.ASCII)
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_IDS: Final = frozenset({"task_id"})
_MAX_COUNT: Final = 2**63 - 1
"""What a number of the wire can be; a model's server may count as it likes."""

_STANDARD: Final = {
    "error": "error.type",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
"""Attributes that have a name in OpenTelemetry's semantic conventions; all others begin with `muniment.`."""

_DEFECT: Final = "_OTHER"
"""What the conventions have for an error without a code."""


class Span(AbstractContextManager["Span"]):
    """One span, around a block; where nobody asks for spans, nothing. Build one with `span`."""

    def __init__(self, name: SpanName, fields: Mapping[str, Told]) -> None:
        self._name, self._fields = name, fields
        self._opened: AbstractContextManager[ForeignSpan] | None = None
        self._span: ForeignSpan | None = None

    def __enter__(self) -> Self:
        with _unfailing():
            if (tracer := _tracer()) is not None:
                self._opened = tracer.start_as_current_span(
                    f"muniment.{self._name}", record_exception=False, set_status_on_exception=False
                )
                self._span = self._opened.__enter__()
                self.tell(**self._fields)
        return self

    def tell(self, **fields: Told) -> None:
        """Add attributes, see T1; `error`, the code of what went wrong, makes it a failed one."""
        if self._span is None:
            return
        with _unfailing():
            attributes = {_STANDARD.get(name, f"muniment.{name}"): value for name, value in _bare(fields)}
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
            self.tell(error=error.code if isinstance(error, MunimentError) else _DEFECT)
        with _unfailing():
            self._opened.__exit__(None, None, None)  # Told of no exception, it can quote none.


def span(name: SpanName, **fields: Told) -> Span:
    """A span around a block.

    Args:
        name: what is done.
        fields: see `Span.tell`.

    Cost: some microseconds where nobody asks for spans.
    """
    return Span(name, fields)


def _bare(fields: Mapping[str, Told]) -> Iterator[tuple[str, int | str]]:
    for name, value in fields.items():
        form = _ID if name in _IDS else _CODE
        if isinstance(value, int) and 0 <= value <= _MAX_COUNT:
            yield name, value
        elif isinstance(value, str) and form.fullmatch(value):
            yield name, str(value)  # Of an enumeration, its value.


@contextmanager
def _unfailing() -> Iterator[None]:
    """Around what calls a tracer, which is foreign code (T4)."""
    try:
        yield
    except Exception as defect:  # noqa: BLE001  told; no task fails for it
        emit_defect("span_lost", defect)


class _Ours:
    """The tracer of this program while it exports; None: it does not."""

    tracer: Tracer | None = None


@contextmanager
def to(tracer: Tracer) -> Iterator[None]:
    """Have all spans of a block, in every thread, go to a tracer; for programs, and not twice at a time."""
    _Ours.tracer = tracer
    try:
        yield
    finally:
        _Ours.tracer = None


def _tracer() -> Tracer | None:
    """The tracer to use; None: nobody has asked for spans."""
    if _Ours.tracer is not None:
        return _Ours.tracer
    api = sys.modules.get("opentelemetry.trace")  # Whoever has set a provider has imported it.
    tracer: Tracer | None = None if api is None else api.get_tracer("muniment", __version__)
    return tracer


# -- parents -----------------------------------------------------------------------------------------

MAX_PARENTS: Final = 1_000
"""Tasks whose parent is kept until they begin: as many as a ledger keeps of tasks."""

_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class TraceParents:
    """Of which spans of callers the tasks are parts that wait. For threads.

    They are kept in memory alone: a task that waits over a restart begins a trace of its own.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, task_id: str, sent: Sequence[str]) -> None:
        """Keep the one header `traceparent` of a request; what is none is not kept."""
        if len(sent) == 1 and _TRACEPARENT.fullmatch(sent[0]):
            with self._lock:
                self._waiting[task_id] = sent[0]
                if len(self._waiting) > MAX_PARENTS:
                    self._waiting.popitem(last=False)

    @contextmanager
    def above(self, task_id: str) -> Iterator[None]:
        """Around a task: its spans are parts of the one that was kept for it, if that was."""
        with self._lock:
            sent = self._waiting.pop(task_id, None)
        if sent is None or _tracer() is None:
            yield
            return
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        token = context.attach(TraceContextTextMapPropagator().extract({"traceparent": sent}))
        try:
            yield
        finally:
            context.detach(token)
