"""Unicode normal forms at a bounded cost: the one door to `unicodedata.normalize`.

Normalising sorts each run of combining marks, at the square of its length: 64 KiB of two marks in turn take
most of a minute, in C, with the interpreter held. No language stacks more than a handful of them, and text
that is streamed has at most 30. So a run is cut to `MAX_MARKS` before it is normalised, whoever asks.

Source: UAX #15, 13 (Stream-Safe Text Format). An architecture test holds everybody to this door.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

MAX_MARKS: Final = 30
"""Combining marks in a row. Source: UAX #15, UAX15-D3."""

_HIDDEN_MARKS: Final = "\u0f73\u0f75\u0f81\uff9e\uff9f"
"""Characters of class 0 that decompose into marks alone."""

_LONGEST: Final = "\ufdfa"
"""A whole sentence in one character."""

_SUSPECT: Final = re.compile(rf"[\W{_HIDDEN_MARKS}]{{{MAX_MARKS + 1},}}")
"""No other mark is a word character; what this finds is looked at again."""


def normalised(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
    """`text` in a normal form, without what any run of marks has beyond `MAX_MARKS`.

    `_LONGEST` is left as it is: it would become eighteen characters, the next longest eight.

    Cost: linear, whatever the text.
    """
    if text.isascii():
        return text
    return _LONGEST.join(
        unicodedata.normalize(form, part) for part in _SUSPECT.sub(_cut, text).split(_LONGEST)
    )


def is_normalised(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> bool:
    """Whether `normalised` would change nothing. Cost: linear."""
    return text.isascii() or (overlong_run(text) is None and unicodedata.is_normalized(form, text))


def overlong_run(text: str) -> int | None:
    """Where the first run of more than `MAX_MARKS` marks begins, or None. Cost: linear."""
    for found in () if text.isascii() else _SUSPECT.finditer(text):
        begin = found.start()
        for at, char in enumerate(found[0], begin):
            if not _is_mark(char):
                begin = at + 1
            elif at - begin == MAX_MARKS:
                return begin
    return None


def _cut(found: re.Match[str]) -> str:
    kept, marks = [], 0
    for char in found[0]:
        marks = marks + 1 if _is_mark(char) else 0
        if marks <= MAX_MARKS:
            kept.append(char)
    return "".join(kept)


def _is_mark(char: str) -> bool:
    return unicodedata.combining(char) > 0 or char in _HIDDEN_MARKS
