"""Unicode normal forms at a bounded cost: the only module that calls `unicodedata.normalize`.

Normalisation sorts each run of combining marks, in quadratic time: 64 KiB of two alternating marks take most
of a minute, in C, without releasing the interpreter lock. No language uses more than a few marks in a row,
and text in the stream-safe format has at most 30. So every run is cut to `MAX_MARKS` before it is normalised.

Source: UAX #15, 13 (Stream-Safe Text Format). An architecture test checks that no other module normalises.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

MAX_MARKS: Final = 30  # combining marks in a row; source: UAX #15, UAX15-D3
_HIDDEN_MARKS: Final = "\u0f73\u0f75\u0f81\uff9e\uff9f"  # of class 0, but they decompose into marks only
_LONGEST: Final = "\ufdfa"  # a complete sentence in one character
# No other mark is a word character. Every match is checked again.
_SUSPECT: Final = re.compile(rf"[\W{_HIDDEN_MARKS}]{{{MAX_MARKS + 1},}}")


def normalise(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
    """Return `text` in a normal form, with every run of combining marks cut to `MAX_MARKS`.

    The character `_LONGEST` is not changed: it would become eighteen characters, any other at most eight.

    Cost: linear for any text.
    """
    if text.isascii():
        return text
    parts = _SUSPECT.sub(_cut_marks, text).split(_LONGEST)
    return _LONGEST.join(unicodedata.normalize(form, part) for part in parts)


def is_normalised(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> bool:
    """Return whether `normalise` would not change `text`. Cost: linear."""
    return text.isascii() or (find_overlong_run(text) is None and unicodedata.is_normalized(form, text))


def find_overlong_run(text: str) -> int | None:
    """Return the position of the first run of more than `MAX_MARKS` combining marks, or None.

    Cost: linear.
    """
    cut = text if text.isascii() else _SUSPECT.sub(_cut_marks, text)
    if cut == text:
        return None
    # The first removed mark is at the first difference, since no mark follows at that position in `cut`.
    pairs = enumerate(zip(text, f"{cut} ", strict=False))
    return next(index for index, (char, other) in pairs if char != other) - MAX_MARKS


def _cut_marks(found: re.Match[str]) -> str:
    characters, marks = [], 0
    for char in found[0]:
        marks = marks + 1 if _is_mark(char) else 0
        if marks <= MAX_MARKS:
            characters.append(char)
    return "".join(characters)


def _is_mark(char: str) -> bool:
    return unicodedata.combining(char) > 0 or char in _HIDDEN_MARKS
