"""Cut the part of an entry that is shown: all of it if it is short, else what says most. Pure.

Apart from `recaller.py` because it knows nothing of entries, only of text.

- X1. At most so many characters as asked for, the `…` included that stands for what was left out.
- X2. Never cut inside fenced code, nor inside a character as people see it: a letter stays with its
  accents, a syllable with its letters, an emoji with its variants and what it is joined to.
- X3. Passages stay in their order, side by side; the best one is among them.
- X4. Of a long body the beginning is looked at, `MAX_READ_CHARS` or twice what is asked for, and of that
  the first `MAX_PASSAGES` passages are weighed: a file that is made to be slow holds nobody up.

What does not hold: that a passage is cut nowhere else; one of prose that is too long ends at a space,
where one is near.

Attacked in tests/units/recall/test_excerpt.py.
Source: UAX #29, 3.1, for what is one character. More is kept together than it asks for: flags in a row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from muniment.content.markdown import QUOTE, Line, read_lines

CUT: Final = "…"

MAX_READ_CHARS: Final = 32_768
"""Characters of a body that are looked at; all of what people write, and the beginning of what they paste."""

MAX_PASSAGES: Final = 1_000
"""Passages that are weighed, some 25 µs each."""

_BEFORE: Final = f"{CUT}\n"
_AFTER: Final = f"\n{CUT}"
_TAB: Final = 4
_VIRAMA_CLASS: Final = 9  # canonical combining class of what joins two consonants
_GOES_ON: Final = re.compile(
    "[\u0e33\u0eb3\u1160-\u11ff\ud7b0-\ud7fb\uff9e\uff9f"  # the end of a syllable of Thai, Lao, Hangul, kana
    "\u200c\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"  # joiners, tones of skin, tags of flags
)
_FLAGS: Final = range(0x1F1E6, 0x1F200)


class _Piece(NamedTuple):
    """Part of a text; the pieces of a text, side by side, are all of it."""

    text: str
    is_code: bool


class _Fence(NamedTuple):
    """Fenced code that is open.

    Attributes:
        path: of its first line, see `content.markdown.Line`.
        column: at which its marks begin.
        marks: with which it began.
    """

    path: tuple[int, ...]
    column: int
    marks: str


Weight = Callable[[str], float]
"""How much a passage says of what is asked."""


def unweighed(_passage: str) -> float:
    """Nothing of any passage, so that the first one counts."""
    return 0.0


def excerpt(body: str, limit: int, weight: Weight = unweighed) -> str:
    """What of `body` fits in `limit` characters (X1 to X4); empty where nothing does.

    Args:
        body: markdown.
        limit: characters.
        weight: of its passages.

    Cost: linear in what is looked at, and one `weight` a passage where it does not fit.
    """
    text = body.strip()
    if len(text) <= limit:
        return text
    room = limit - len(_BEFORE) - len(_AFTER)
    if room <= 0:
        return ""
    pieces, is_all = _looked_at(text, max(MAX_READ_CHARS, 2 * limit))
    usable = [number for number, piece in enumerate(pieces) if not piece.is_code or len(piece.text) <= room]
    if not usable:
        return ""
    best = max(usable[:MAX_PASSAGES], key=lambda number: (weight(pieces[number].text), -number))
    if len(pieces[best].text) > room:
        kept = _shortened(pieces[best].text, room)
        return f"{_BEFORE if best and kept else ''}{kept}"
    begin, end = _around(pieces, best, room)
    kept = "".join(piece.text for piece in pieces[begin:end]).strip("\r\n")
    return f"{_BEFORE if begin else ''}{kept}{'' if is_all and end == len(pieces) else _AFTER}"


def _looked_at(text: str, limit: int) -> tuple[list[_Piece], bool]:
    """The pieces of the beginning of a text, and whether they are all of it (X4)."""
    pieces = _pieces(text[:limit])
    is_all = len(text) <= limit
    if not is_all and len(pieces) > 1:
        pieces.pop()  # It may be cut anywhere, also inside code.
    return pieces, is_all


def _around(pieces: Sequence[_Piece], best: int, room: int) -> tuple[int, int]:
    """From which piece to which there is room, the best one included; what follows it comes first."""
    begin, end, size = best, best + 1, len(pieces[best].text)
    while end < len(pieces) and size + len(pieces[end].text) <= room:
        size += len(pieces[end].text)
        end += 1
    while begin and size + len(pieces[begin - 1].text) <= room:
        begin -= 1
        size += len(pieces[begin].text)
    return begin, end


def _shortened(text: str, limit: int) -> str:
    """The beginning of a longer text without code, up to a space where one is near (X1, X2); maybe empty."""
    end = limit - len(CUT)
    while end and _is_inside(text, end):
        end -= 1
    space = max(text.rfind(char, end - end // 8, end) for char in " \n")
    kept = text[: space if space > 0 else end].rstrip()
    return kept and f"{kept}{CUT}"


def _is_inside(text: str, at: int) -> bool:
    """Whether a cut there would be inside a character (X2)."""
    char, before = text[at], text[at - 1]
    return (
        unicodedata.category(char)[0] == "M"
        or _GOES_ON.match(char) is not None
        or before == "\u200d"
        or (unicodedata.combining(before) == _VIRAMA_CLASS and char.isalpha())
        or (ord(char) in _FLAGS and ord(before) in _FLAGS)
    )


def _pieces(text: str) -> list[_Piece]:
    """The text in pieces between which it may be cut: before items, headings and code, and at blank lines."""
    found: list[_Piece] = []
    start, is_code = 0, False
    fence: _Fence | None = None
    lines = read_lines(text)
    for number, line in enumerate(lines):
        if fence is not None and _ended_before(fence, line):
            fence = None
        begins = fence is None and line.kind == "fence"
        if number and fence is None and (begins or is_code or _begins_passage(lines, number)):
            found.append(_Piece(text[start : line.start], is_code))
            start, is_code = line.start, False
        if begins:
            is_code, fence = True, _fence_of(text, line)
        elif fence is not None and _is_end(fence, text, line):
            fence = None
    found.append(_Piece(text[start:], is_code))
    return found


def _begins_passage(lines: Sequence[Line], number: int) -> bool:
    """Whether a line outside code begins something of its own: a heading, a paragraph, an item."""
    line, before = lines[number], lines[number - 1]
    is_first = before.kind == "blank" != line.kind
    return line.kind == "heading" or is_first or line.path[-1:] == (number,)


def _fence_of(text: str, line: Line) -> _Fence:
    """The code that a line begins."""
    said = text[line.text : line.end].strip()
    return _Fence(line.path, _column(text, line), said[: len(said) - len(said.lstrip(said[0]))])


def _ended_before(fence: _Fence, line: Line) -> bool:
    """Whether code has ended with what held it."""
    return line.kind not in {"fence", "blank"} or (line.kind == "fence" and line.path != fence.path)


def _is_end(fence: _Fence, text: str, line: Line) -> bool:
    """Whether a line of code certainly ends it: such a line is indented by no more than the first one.

    Where it is not certain, what follows counts as the same code, up to something else. That keeps more
    together than need be, and cuts nothing. In quotes, whose marks take up one column or two, nothing is.
    """
    said = text[line.text : line.end].strip()
    is_marks = not said.strip(fence.marks[0]) and len(said) >= len(fence.marks)
    return is_marks and QUOTE not in fence.path and _column(text, line) <= fence.column


def _column(text: str, line: Line) -> int:
    return len(text[line.start : line.text].expandtabs(_TAB))
