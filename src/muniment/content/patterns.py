"""Expressions of RE2, which is linear in the text whatever the expression.

Apart, so that who looks at characters alone loads no RE2.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import re2

MAX_PROGRAM_BYTES: Final = 64 << 20
"""Memory that RE2 may use for one expression; what needs more does not compile."""


@cache
def compiled(source: str | bytes, *, most_bytes: int = MAX_PROGRAM_BYTES, of_bytes: bool = False) -> Any:
    """`source`, without regard to case; or, `of_bytes`, with regard to it over any bytes, by their offsets.

    Cost: some milliseconds for a large expression, once a process.
    """
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = of_bytes
    options.max_mem = most_bytes
    if of_bytes:
        options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(source, options)
