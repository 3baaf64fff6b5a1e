"""What happened, as structlog events on the standard logging tree under `muniment`.

A library must not print: events go to `logging.getLogger("muniment")`, which only `cli` and `daemon`
configure. Fields are names, codes, counts and logical paths, never content or host paths.
"""

from __future__ import annotations

import logging
from typing import Any

_LOGGER = "muniment"


def emit(event: str, **fields: Any) -> None:
    """Log `event` at level INFO. Costs a level check where nobody listens; structlog loads at first use."""
    if not logging.getLogger(_LOGGER).isEnabledFor(logging.INFO):
        return
    import structlog

    logger = structlog.wrap_logger(
        logging.getLogger(_LOGGER),
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    logger.info(event, **fields)
