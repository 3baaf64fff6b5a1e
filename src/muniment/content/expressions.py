"""Compile regular expressions when they are first used: a command uses few of them, and all cost 60 ms.

For the expressions of modules that every command imports. `patterns` compiles with RE2.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub")


class _DeferredExpression:
    """Has the methods of a compiled expression, which it compiles when the first of them is read."""

    def __init__(self, source: str | bytes, flags: int) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        """Compile the expression, and return one of its methods; called only while it is not compiled."""
        if name not in _METHODS:
            raise AttributeError(name)
        compiled = re.compile(self._source, self._flags)
        for each in _METHODS:
            setattr(self, each, getattr(compiled, each))
        return getattr(self, name)


def compile_when_used(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an expression for Python's `re` that is compiled at the first call of one of its methods.

    An invalid expression raises `re.error` at that call. Cost: none before the first use.
    """
    return cast("re.Pattern[AnyStr]", _DeferredExpression(source, flags))
