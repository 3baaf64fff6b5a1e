"""Compile expressions with RE2, which needs only linear time for every expression and text.

A separate module, so that modules which check only characters do not load RE2.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import re2

MAX_PROGRAM_BYTES: Final = 64 << 20
"""Maximum memory that RE2 may use for one expression. An expression that needs more does not compile."""


@cache
def compile_pattern(
    source: str | bytes, *, max_bytes: int = MAX_PROGRAM_BYTES, is_bytes: bool = False
) -> Any:
    """Return `source` compiled with RE2; the result is cached.

    Args:
        source: the expression.
        max_bytes: the memory that the compiled expression may use.
        is_bytes: False: match text, ignoring case; True: match bytes, with case.

    Cost: some milliseconds for a large expression, once per process.
    """
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = is_bytes
    options.max_mem = max_bytes
    if is_bytes:
        options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(source, options)
