"""Compile expressions with RE2, which needs only linear time for every expression and text.

A separate module, so that modules which check only characters do not load RE2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

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
    import re2  # Commands that only read do not need it.

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = is_bytes
    options.max_mem = max_bytes
    if is_bytes:
        options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(source, options)


_MAX_UNCOMPILED_BYTES: Final = 4096
"""Maximum size of a text that is searched for words before an expression is compiled."""
_MAX_UNCOMPILED_TEXTS: Final = 20
"""Number of texts after which an expression is compiled in any case, because it is faster than the words."""


class WordExpression:
    """An expression that only matches text with certain words; compiled when a text contains one of them.

    Args:
        compile_now: compiles the expression with RE2, for UTF-8 text and without regard to case.
        words: the words, of which each match contains one, without regard to case. A blank matches any
            text, and a `*` at an end has no meaning here. Empty: the expression is compiled at the first
            search.
    """

    def __init__(self, compile_now: Callable[[], Any], words: Iterable[str] = ()) -> None:
        self._compile_now, self._count = compile_now, 0
        self._compiled: Any = None
        split = [word.strip("*").casefold().split() for word in words]
        self._words = sorted({parts[0] for parts in split if len(parts) == 1})
        self._phrases = [parts for parts in split if len(parts) > 1]
        _EXPRESSIONS.append(self)

    def search(self, data: bytes, start: int = 0, end: int | None = None) -> Any:
        """Return the first match in a part of `data`, or None."""
        if not self._may_match(data):
            return None
        return self.compile().search(data, start, len(data) if end is None else end)

    def finditer(self, data: bytes) -> Any:
        """Return the matches in `data`."""
        return self.compile().finditer(data) if self._may_match(data) else iter(())

    def sub(self, replacement: bytes, data: bytes) -> bytes:
        """Return `data` with `replacement` in place of each match."""
        result: bytes = self.compile().sub(replacement, data) if self._may_match(data) else data
        return result

    def compile(self) -> Any:
        """Compile the expression if it is not compiled yet, and return it. Cost: 1 to 20 ms."""
        if self._compiled is None:
            self._compiled = self._compile_now()
        return self._compiled

    def _may_match(self, data: bytes) -> bool:
        if self._compiled is not None or not (self._words or self._phrases):
            return True
        self._count += 1
        if self._count > _MAX_UNCOMPILED_TEXTS or len(data) > _MAX_UNCOMPILED_BYTES:
            return True
        folded = data.decode("utf-8", "replace").casefold()
        return any(word in folded for word in self._words) or any(
            all(part in folded for part in phrase) for phrase in self._phrases
        )


_EXPRESSIONS: Final[list[WordExpression]] = []


def compile_word_expressions() -> None:
    """Compile every `WordExpression` of this process, for a process that searches many texts."""
    for each in _EXPRESSIONS:
        each.compile()
