"""Shorten the text of an entry for display: keep the most relevant part if the text is too long. Pure.

- X1. The excerpt has at most the requested number of characters, including each `…` in place of removed text.
- X2. Fenced code is never cut, and neither is a visible character: a letter stays with its accents, a
  syllable with its letters, an emoji with its variants and joined parts.
- X3. The passages of the excerpt are adjacent and in their original order; the best passage is among them.
- X4. Of a long text, only the beginning is read: `MAX_READ_CHARS`, or twice the requested number of
  characters. Only its first `MAX_PASSAGES` passages are weighed. Therefore a file that is built to be slow
  delays no caller.

Not guaranteed: a passage that is too long is cut inside, if possible at a space.

Attacked in tests/units/recall/test_excerpt.py.
Source: UAX #29, 3.1, for the definition of a character. This module also keeps several flags in a row
    together, which the source does not require.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from muniment.content.markdown import QUOTE, Line, read_lines

ELLIPSIS: Final = "…"

MAX_READ_CHARS: Final = 32_768
"""Maximum characters of a text that are read: the complete text of most entries, the beginning of pasted
text.
"""

MAX_PASSAGES: Final = 1_000
"""Maximum number of passages that are weighed; each takes about 25 µs."""

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
    """A part of a text, for example a paragraph or fenced code; joined, the pieces are the complete text."""

    text: str
    is_code: bool


class _Fence(NamedTuple):
    """Fenced code that has begun and not ended yet.

    Attributes:
        path: the containers of its first line, see `content.markdown.Line`.
        column: the column at which the opening marks begin.
        marks: the opening marks, such as three backticks.
    """

    path: tuple[int, ...]
    column: int
    marks: str


Weight = Callable[[str], float]
"""Function that returns how relevant a passage is for a query."""


def weigh_equally(_passage: str) -> float:
    """Return 0 for any passage, so that the first passage is the best one."""
    return 0.0


def cut_excerpt(body: str, limit: int, weight: Weight = weigh_equally) -> str:
    """Return the most relevant part of a text, in at most `limit` characters; may be empty.

    A text that fits is returned completely.

    Args:
        body: the markdown text of an entry.
        limit: maximum number of characters.
        weight: returns the relevance of a passage.

    Cost: linear in the text that is read, and one call of `weight` per passage if the text is too long.
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
    """Return the pieces of the first `limit` characters of a text, and whether this is the complete text."""
    pieces = _split_pieces(text[:limit])
    is_all = len(text) <= limit
    if not is_all and len(pieces) > 1:
        pieces.pop()  # It may be cut at any place, also inside code.
    return pieces, is_all


def _find_fitting_range(pieces: Sequence[_Piece], best: int, room: int) -> tuple[int, int]:
    """Return the range of pieces around the best one that fits into `room` characters.

    Pieces after the best one are added before pieces in front of it.
    """
    begin, end, size = best, best + 1, len(pieces[best].text)
    while end < len(pieces) and size + len(pieces[end].text) <= room:
        size += len(pieces[end].text)
        end += 1
    while begin and size + len(pieces[begin - 1].text) <= room:
        begin -= 1
        size += len(pieces[begin].text)
    return begin, end


def _shorten(text: str, limit: int) -> str:
    """Return the beginning of a text, in at most `limit` characters; may be empty.

    The cut is at a space if one is near, and never inside a visible character. The text contains no code.
    """
    end = limit - len(ELLIPSIS)
    while end and _is_inside_character(text, end):
        end -= 1
    space = max(text.rfind(char, end - end // 8, end) for char in " \n")
    part = text[: space if space > 0 else end].rstrip()
    return part and f"{part}{ELLIPSIS}"


def _is_inside_character(text: str, at: int) -> bool:
    """Return whether a cut at position `at` would split a visible character.

    A visible character is, for example, a letter with its accents.
    """
    char, before = text[at], text[at - 1]
    return (
        unicodedata.category(char)[0] == "M"
        or _CONTINUES_CHARACTER.match(char) is not None
        or before == "\u200d"
        or (unicodedata.combining(before) == _VIRAMA_CLASS and char.isalpha())
        or (ord(char) in _FLAGS and ord(before) in _FLAGS)
    )


def _split_pieces(text: str) -> list[_Piece]:
    """Split a text at the allowed positions: before items, headings and code, and after blank lines."""
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
    """Return whether a line outside code begins a heading, a paragraph or a list item."""
    line, before = lines[number], lines[number - 1]
    is_first = before.kind == "blank" != line.kind
    return line.kind == "heading" or is_first or line.path[-1:] == (number,)


def _read_fence(text: str, line: Line) -> _Fence:
    """Return the fenced code that begins at a line."""
    text_of_line = text[line.text : line.end].strip()
    return _Fence(
        line.path,
        _compute_column(text, line),
        text_of_line[: len(text_of_line) - len(text_of_line.lstrip(text_of_line[0]))],
    )


def _has_ended_before(fence: _Fence, line: Line) -> bool:
    """Return whether fenced code has ended before a line, because the list item or quote around it ended."""
    return line.kind not in {"fence", "blank"} or (line.kind == "fence" and line.path != fence.path)


def _is_end(fence: _Fence, text: str, line: Line) -> bool:
    """Return whether a line certainly ends fenced code.

    This requires closing marks that are not indented more than the opening marks. If this is uncertain, the
    next lines count as the same code up to another block. That keeps more text together than necessary, but
    never cuts code. In a quote it is always uncertain, because the marks of a quote take one or two columns.
    """
    line_text = text[line.text : line.end].strip()
    is_marks = not line_text.strip(fence.marks[0]) and len(line_text) >= len(fence.marks)
    return is_marks and QUOTE not in fence.path and _compute_column(text, line) <= fence.column


def _compute_column(text: str, line: Line) -> int:
    return len(text[line.start : line.text].expandtabs(_TAB))
