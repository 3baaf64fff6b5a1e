"""JSON that every parser reads alike.

What another parser might read differently is refused: a key that is there twice, half of a surrogate pair,
NaN and infinities, bytes that are not UTF-8.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(data: bytes) -> Any:
    """The value of a JSON document.

    Raises:
        ValueError: it is none, or one with two meanings.
    """
    try:
        found = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_refuse)
        # Fails on half of a surrogate pair, and on what was too large a number and has become infinite.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
