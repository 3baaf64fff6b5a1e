"""Compile expressions with RE2, which takes linear time in the text for every expression.

A separate module, so that modules which check only characters do not load RE2.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import re2

MAX_PROGRAM_BYTES: Final = 64 << 20
"""Memory that RE2 may use for one expression; an expression that needs more does not compile."""


@cache
def compile_pattern(
    source: str | bytes, *, max_bytes: int = MAX_PROGRAM_BYTES, is_bytes: bool = False
) -> Any:
    """Return `source` compiled: case-insensitive, or case-sensitive over bytes with `is_bytes`.

    Cost: some milliseconds for a large expression, once per process.
    """
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = is_bytes
    options.max_mem = max_bytes
    if is_bytes:
        options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(source, options)
