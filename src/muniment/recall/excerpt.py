"""Cut an excerpt of an entry for display: all of a short text, else its most relevant part. Pure.

Separate from `recaller.py` because it handles text, not entries.

- X1. At most the requested number of characters, including each `…` in place of left out text.
- X2. Never cut inside fenced code, nor inside a visible character: a letter stays with its accents, a
  syllable with its letters, an emoji with its variants and joined parts.
- X3. Passages stay in their order and adjacent; the best one is among them.
- X4. Only the beginning of a long body is read, `MAX_READ_CHARS` or twice the requested number, and only the
  first `MAX_PASSAGES` passages of it are weighed. So a file that is built to be slow delays no caller.

Not guaranteed: that no passage is cut; prose that is too long ends at a space, if one is near.

Attacked in tests/units/recall/test_excerpt.py.
Source: UAX #29, 3.1, for the definition of a character. More is kept together than it requires: flags in a
row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from muniment.content.markdown import QUOTE, Line, read_lines

ELLIPSIS: Final = "…"

MAX_READ_CHARS: Final = 32_768
"""Characters of a body that are read: complete texts of people, and the beginning of pasted text."""

MAX_PASSAGES: Final = 1_000
"""Passages that are weighed, about 25 µs each."""

_CUT_BEFORE: Final = f"{ELLIPSIS}\n"
_CUT_AFTER: Final = f"\n{ELLIPSIS}"
_TAB: Final = 4
_VIRAMA_CLASS: Final = 9  # canonical combining class of a sign that joins two consonants
_CONTINUES_CHARACTER: Final = re.compile(
    "[\u0e33\u0eb3\u1160-\u11ff\ud7b0-\ud7fb\uff9e\uff9f"  # the end of a syllable of Thai, Lao, Hangul, kana
    "\u200c\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"  # joiners, tones of skin, tags of flags
)
_FLAGS: Final = range(0x1F1E6, 0x1F200)


class _Piece(NamedTuple):
    """Part of a text; the pieces of a text together are the complete text."""

    text: str
    is_code: bool


class _Fence(NamedTuple):
    """Open fenced code.

    Attributes:
        path: of its first line, see `content.markdown.Line`.
        column: where its marks begin.
        marks: its opening marks.
    """

    path: tuple[int, ...]
    column: int
    marks: str


Weight = Callable[[str], float]
"""Function that returns how relevant a passage is to a query."""


def weigh_equally(_passage: str) -> float:
    """Return 0 for any passage, so that the first one is the best."""
    return 0.0


def cut_excerpt(body: str, limit: int, weight: Weight = weigh_equally) -> str:
    """Return the part of `body` that fits in `limit` characters (X1 to X4); may be empty.

    Args:
        body: markdown.
        limit: characters.
        weight: relevance of a passage.

    Cost: linear in the text that is read, and one `weight` per passage if the body does not fit.
    """
    text = body.strip()
    if len(text) <= limit:
        return text
    available = limit - len(_CUT_BEFORE) - len(_CUT_AFTER)
    if available <= 0:
        return ""
    pieces, is_all = _read_pieces(text, max(MAX_READ_CHARS, 2 * limit))
    usable = [
        number for number, piece in enumerate(pieces) if not piece.is_code or len(piece.text) <= available
    ]
    if not usable:
        return ""
    best = max(usable[:MAX_PASSAGES], key=lambda number: (weight(pieces[number].text), -number))
    if len(pieces[best].text) > available:
        part = _shorten(pieces[best].text, available)
        return f"{_CUT_BEFORE if best and part else ''}{part}"
    begin, end = _find_fitting_range(pieces, best, available)
    part = "".join(piece.text for piece in pieces[begin:end]).strip("\r\n")
    return f"{_CUT_BEFORE if begin else ''}{part}{'' if is_all and end == len(pieces) else _CUT_AFTER}"


def _read_pieces(text: str, limit: int) -> tuple[list[_Piece], bool]:
    """Return the pieces of the beginning of a text, and whether they are complete (X4)."""
    pieces = _split_pieces(text[:limit])
    is_all = len(text) <= limit
    if not is_all and len(pieces) > 1:
        pieces.pop()  # It may be cut at any place, also inside code.
    return pieces, is_all


def _find_fitting_range(pieces: Sequence[_Piece], best: int, room: int) -> tuple[int, int]:
    """Return the range of pieces around the best one that fits; later pieces are added first."""
    begin, end, size = best, best + 1, len(pieces[best].text)
    while end < len(pieces) and size + len(pieces[end].text) <= room:
        size += len(pieces[end].text)
        end += 1
    while begin and size + len(pieces[begin - 1].text) <= room:
        begin -= 1
        size += len(pieces[begin].text)
    return begin, end


def _shorten(text: str, limit: int) -> str:
    """Cut a longer text without code, at a space if one is near (X1, X2); may be empty."""
    end = limit - len(ELLIPSIS)
    while end and _is_inside_character(text, end):
        end -= 1
    space = max(text.rfind(char, end - end // 8, end) for char in " \n")
    part = text[: space if space > 0 else end].rstrip()
    return part and f"{part}{ELLIPSIS}"


def _is_inside_character(text: str, at: int) -> bool:
    """Return whether a cut at a position would be inside a character (X2)."""
    char, before = text[at], text[at - 1]
    return (
        unicodedata.category(char)[0] == "M"
        or _CONTINUES_CHARACTER.match(char) is not None
        or before == "\u200d"
        or (unicodedata.combining(before) == _VIRAMA_CLASS and char.isalpha())
        or (ord(char) in _FLAGS and ord(before) in _FLAGS)
    )


def _split_pieces(text: str) -> list[_Piece]:
    """Split a text at allowed cuts: before items, headings and code, and at blank lines."""
    found: list[_Piece] = []
    start, is_code = 0, False
    fence: _Fence | None = None
    lines = read_lines(text)
    for number, line in enumerate(lines):
        if fence is not None and _has_ended_before(fence, line):
            fence = None
        begins = fence is None and line.kind == "fence"
        if number and fence is None and (begins or is_code or _begins_passage(lines, number)):
            found.append(_Piece(text[start : line.start], is_code))
            start, is_code = line.start, False
        if begins:
            is_code, fence = True, _read_fence(text, line)
        elif fence is not None and _is_end(fence, text, line):
            fence = None
    found.append(_Piece(text[start:], is_code))
    return found


def _begins_passage(lines: Sequence[Line], number: int) -> bool:
    """Return whether a line outside code begins a heading, a paragraph or an item."""
    line, before = lines[number], lines[number - 1]
    is_first = before.kind == "blank" != line.kind
    return line.kind == "heading" or is_first or line.path[-1:] == (number,)


def _read_fence(text: str, line: Line) -> _Fence:
    """Return the fenced code that a line begins."""
    text_of_line = text[line.text : line.end].strip()
    return _Fence(
        line.path,
        _compute_column(text, line),
        text_of_line[: len(text_of_line) - len(text_of_line.lstrip(text_of_line[0]))],
    )


def _has_ended_before(fence: _Fence, line: Line) -> bool:
    """Return whether code has ended because its container ended."""
    return line.kind not in {"fence", "blank"} or (line.kind == "fence" and line.path != fence.path)


def _is_end(fence: _Fence, text: str, line: Line) -> bool:
    """Return whether a line certainly ends its code: its indentation is at most that of the first line.

    If it is uncertain, the next lines count as the same code, up to another block. That keeps more together
    than necessary, but never cuts code. In quotes, whose marks take one or two columns, it is always
    uncertain.
    """
    line_text = text[line.text : line.end].strip()
    is_marks = not line_text.strip(fence.marks[0]) and len(line_text) >= len(fence.marks)
    return is_marks and QUOTE not in fence.path and _compute_column(text, line) <= fence.column


def _compute_column(text: str, line: Line) -> int:
    return len(text[line.start : line.text].expandtabs(_TAB))
