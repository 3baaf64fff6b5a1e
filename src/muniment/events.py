"""What happened, as structlog events on the standard logging tree under `muniment`.

A library must not print: events go to `logging.getLogger("muniment")`, which only `cli` and `server`
configure. Fields are names, codes, counts and logical paths, never content or host paths; should one that
may hold more get here by mistake, its size is logged instead. What is bound with `structlog.contextvars` is
added.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

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
