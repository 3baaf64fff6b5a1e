"""The daemon's log: one JSON object a line on standard error, also for what uvicorn and Python have to say.

What is logged are names, codes, counts and sizes: `events.emit` sees to that for this package. Of other
loggers only the level and the name are kept, since their messages may quote a request.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_OURS: Final = "muniment"


def configure(level: int = logging.INFO) -> None:
    """Send the log of the whole process to standard error; for programs, not for a library.

    Args:
        level: the least that is logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # It warns of each request that is no HTTP, and anybody can send as many as he likes.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logger = logging.getLogger(_OURS)
    logger.handlers[:] = []
    logger.propagate = True
    logger.setLevel(level)


class _Lines(logging.Formatter):
    """A line of JSON for a record; those of this package are one already."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == _OURS:
            return record.getMessage()
        return json.dumps(
            {
                "event": "foreign_log",
                "level": record.levelname.lower(),
                "logger": record.name,
                "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
                **({} if record.exc_info is None else {"problem": str(record.exc_info[0])}),
            },
            sort_keys=True,
        )
