"""Line search with RE2: linear in the text whatever the pattern.

The whole file is searched in one call with `(?m)` and `never_nl`, and line numbers are counted only
for hits: per line the same search is two orders of magnitude slower (measured).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import re2

from muniment.errors import BadArguments

_MAX_PROGRAM_BYTES: Final = 8 << 20
"""Memory that RE2 may use for one pattern; its own default. Larger patterns do not compile."""

MAX_LINE_CHARS: Final = 200
"""Characters of a matching line that are shown."""


class Pattern:
    """A compiled pattern.

    Raises:
        BadArguments: it is not RE2 syntax, is too large, or is not Unicode text.
    """

    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        options = re2.Options()
        options.log_errors = False
        options.never_nl = True
        options.max_mem = _MAX_PROGRAM_BYTES
        options.case_sensitive = not ignore_case
        try:
            self._compiled: Any = re2.compile("(?m)" + pattern, options)
        except UnicodeEncodeError:
            raise BadArguments("not an RE2 pattern: it holds half a character; mend it") from None
        except re2.error as invalid:
            raise BadArguments(f"not an RE2 pattern: {_reason(invalid)}; mend or simplify it") from None

    def matching_lines(self, data: bytes) -> Iterator[tuple[int, str]]:
        """Numbers (from 1) and texts of the lines of `data` that match, each once, in order."""
        position, number, counted_to = 0, 1, 0
        while position < len(data):
            match = self._compiled.search(data, position)
            if match is None:
                return
            start = data.rfind(b"\n", 0, match.start()) + 1
            end = data.find(b"\n", match.start())
            end = len(data) if end < 0 else end
            if start == len(data):
                return  # What follows the final newline is not a line.
            number += data.count(b"\n", counted_to, start)
            counted_to = start
            yield number, _shown(data[start:end])
            position = end + 1


def _shown(line: bytes) -> str:
    text = line[: 4 * MAX_LINE_CHARS].decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + "…"


def _reason(invalid: Exception) -> str:
    detail = invalid.args[0] if invalid.args else "cannot be compiled"
    text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
    return " ".join(text.split())[:100]
