"""Which blocks of markdown each line of a body belongs to. Pure.

This is the first phase of CommonMark's parsing strategy, as far as it decides where list items begin and end;
what stands inside of a line is not looked at. Every text is read, in time linear in its length.

What does not hold: link reference definitions are read as text, and nesting ends at `MAX_NESTING`.

Source: CommonMark 0.31.2, "Appendix: A parsing strategy", and "HTML blocks" for the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["blank", "marks", "text", "heading", "rule", "fence", "code", "html"]
"""What a line is; `marks`: nothing but the marks of items and quotes."""

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\n|\r|\Z)")
_CODE_INDENT: Final = 4
_MAX_PADDING: Final = 4
_TAB: Final = 4

MAX_NESTING: Final = 64
"""Lists and quotes in each other; what is nested deeper is text. Those of people have three or four."""

QUOTE: Final = -1
"""What stands in the path of a line for a block quote."""

_HEADING: Final = re.compile(r"#{1,6}(?:[ \t]|\Z)")
_RULE: Final = re.compile(r"(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*){3,})\Z")
_UNDERLINE: Final = re.compile(r"(?:=+|-+)[ \t]*\Z")
_FENCE: Final = re.compile(r"(`{3,})[^`]*\Z|(~{3,})")
_MARKER: Final = re.compile(r"(?:[-+*]|([0-9]{1,9})[.)])(?=[ \t]|\Z)")
_VALUE: Final = r"""(?:[^"'=<>`\s]+|'[^']*'|"[^"]*")"""
_ATTRIBUTE: Final = rf"(?>[ \t]+[a-z_:][a-z0-9_.:-]*(?:[ \t]*=[ \t]*{_VALUE})?)"
_HTML_BLOCKS: Final = (
    "address article aside base basefont blockquote body caption center col colgroup dd details dialog "
    "dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header "
    "hr html iframe legend li link main menu menuitem nav noframes ol optgroup option p param search "
    "section summary table tbody td tfoot th thead title tr track ul"
).replace(" ", "|")
_HTML: Final = tuple(
    (re.compile(start, re.IGNORECASE), re.compile(end, re.IGNORECASE) if end else None)
    for start, end in (
        (r"<(?:script|pre|style|textarea)(?=[ \t>]|\Z)", r"</(?:script|pre|style|textarea)>"),
        (r"<!--", r"-->"),
        (r"<\?", r"\?>"),
        (r"<![a-z]", r">"),
        (r"<!\[CDATA\[", r"\]\]>"),
        (rf"</?(?:{_HTML_BLOCKS})(?=[ \t]|/?>|\Z)", None),
        (rf"(?:<[a-z][a-z0-9-]*{_ATTRIBUTE}*+[ \t]*/?>|</[a-z][a-z0-9-]*[ \t]*>)[ \t]*\Z", None),
    )
)
"""The ways to begin an HTML block and what ends it; None: a blank line. The last may not interrupt text."""


@dataclass(slots=True)
class Line:
    """A line as it was read, with its offsets in the body.

    Attributes:
        start: offset of its first character.
        text: offset of what it says itself, behind what its containers took of it and white space.
        end: offset behind its line break.
        kind: which block it is part of.
        path: the blocks that hold it, outermost first: an item by the number of its first line, or `QUOTE`.
            Empty for a blank line.
    """

    start: int
    text: int
    end: int
    kind: Kind = "blank"
    path: tuple[int, ...] = ()


def read_lines(body: str) -> list[Line]:
    """Every line of `body`, as it belongs to blocks."""
    reader = _Reader()
    for found in _LINE.finditer(body):
        if found[0]:
            reader.read(found.start(), found[0])
    return reader.lines


@dataclass(slots=True)
class _Container:
    """An open list item, or a block quote where `width` is None.

    Attributes:
        path: the first line of every item from the outermost to this one, `QUOTE` for a quote.
        width: columns that a line must be indented by to be in the item.
        is_new: whether it holds nothing yet.
    """

    path: tuple[int, ...]
    width: int | None
    is_new: bool = True


class _Cursor:
    """A place in a line; tabs are as wide as they are there.

    Attributes:
        at: offset in the line of what stands behind the white space here.
        rest: that.
        column: columns gone over, maybe to somewhere in a tab.
    """

    __slots__ = ("_behind", "_text", "at", "column", "rest")

    def __init__(self, text: str) -> None:
        self._text, self.at, self.column = text, 0, 0
        self._measure()

    @property
    def indent(self) -> int:
        """Columns of white space here."""
        return self._behind - self.column

    def skip(self, columns: int) -> None:
        """Go over so many columns of white space."""
        self.column += columns

    def take(self, count: int) -> None:
        """Go over the white space here and so many characters behind it."""
        self.at += count
        self.column = self._behind + count
        self._measure()

    def _measure(self) -> None:
        """Find out where the white space here ends."""
        text, at, column = self._text, self.at, self.column
        while (char := text[at : at + 1]) and char in " \t":
            column += 1 if char == " " else _TAB - column % _TAB
            at += 1
        self.at, self._behind, self.rest = at, column, text[at:]


class _Reader:
    """Both phases of CommonMark's strategy, of which the first is enough: which block each line is part of.

    Attributes:
        lines: what was read so far.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._open: list[_Container] = []
        self._leaf: Kind = "blank"  # the open block that takes lines of text; "blank": there is none
        self._fence = ""
        self._html_end: re.Pattern[str] | None = None
        self._paragraph = 0  # its first line

    def read(self, start: int, whole: str) -> None:
        """The next line of the body, with its line break."""
        cursor = _Cursor(whole.rstrip("\r\n"))
        matched = self._matched(cursor)
        kind = self._inside_leaf(cursor) if matched == len(self._open) else None
        if kind is None:
            matched, begins = self._begin(cursor, matched)
            kind = self._leaf_of(cursor, matched)
            if kind == "blank" and whole.strip(" \t\r\n"):
                kind = "marks"
            if kind != "blank" and not (begins and kind == "marks"):
                self._fill()
        if not whole.strip(" \t\r\n"):
            kind = "blank"  # Also in code: where it is the last of its block, it belongs to nothing.
        path = self._open[-1].path if self._open and kind != "blank" else ()
        self.lines.append(Line(start, start + cursor.at, start + len(whole), kind, path))

    def _matched(self, cursor: _Cursor) -> int:
        """How many of the open containers the line is in by its beginning."""
        for number, container in enumerate(self._open):
            if container.width is None:
                if cursor.indent >= _CODE_INDENT or not cursor.rest.startswith(">"):
                    return number
                _take_quote(cursor)
            elif not cursor.rest:
                if container.is_new:
                    return number
            elif cursor.indent >= container.width:
                cursor.skip(container.width)
            else:
                return number
        return len(self._open)

    def _inside_leaf(self, cursor: _Cursor) -> Kind | None:
        """The kind of a line of fenced code or HTML that is open; None if neither is."""
        rest = cursor.rest
        if self._leaf == "fence":
            closes = rest.startswith(self._fence) and not rest.strip(f" \t{self._fence[0]}")
            if closes and cursor.indent < _CODE_INDENT:
                self._leaf = "blank"
            return "fence"
        if self._leaf == "html" and (rest or self._html_end is not None):
            if self._html_end is not None and self._html_end.search(rest):
                self._leaf = "blank"
            return "html"
        return None

    def _begin(self, cursor: _Cursor, matched: int) -> tuple[int, bool]:
        """Open the containers that begin in the line: how many it is in then, and whether one began."""
        begins = False
        while cursor.indent < _CODE_INDENT and matched < MAX_NESTING:
            rest = cursor.rest
            in_text = self._leaf == "text" and matched == len(self._open)
            if rest.startswith(">"):
                self._close(matched)
                _take_quote(cursor)
                self._push(QUOTE, None)
            elif not _RULE.match(rest) and (marker := _item_marker(rest, in_text=in_text)) is not None:
                self._close(matched)
                self._push(len(self.lines), _take_marker(cursor, marker))
            else:
                break
            matched, begins = len(self._open), True
        return matched, begins

    def _leaf_of(self, cursor: _Cursor, matched: int) -> Kind:
        """What the rest of the line is, once no further container begins in it."""
        rest = cursor.rest
        is_text = self._leaf == "text"
        if not rest:
            self._close(matched)
            if self._leaf != "code":
                self._leaf = "blank"
            return "blank"
        if cursor.indent >= _CODE_INDENT:
            return self._add_text(matched) if is_text else self._add(matched, "code")
        if _HEADING.match(rest):
            return self._add(matched, "heading")
        if fence := _FENCE.match(rest):
            self._fence = fence[1] or fence[2]
            return self._add(matched, "fence")
        if (html := _html_block(rest, in_text=is_text)) is not None:
            self._html_end = _HTML[html][1]
            kind = self._add(matched, "html")
            if self._html_end is not None and self._html_end.search(rest):
                self._leaf = "blank"
            return kind
        if is_text and matched == len(self._open) and _UNDERLINE.match(rest):
            for line in self.lines[self._paragraph :]:
                line.kind = "heading"
            return self._add(matched, "heading")
        return self._add(matched, "rule") if _RULE.match(rest) else self._add_text(matched)

    def _add(self, matched: int, kind: Kind) -> Kind:
        """Begin or go on with a block that is not text."""
        self._close(matched)
        self._leaf = kind if kind in {"fence", "html", "code"} else "blank"
        return kind

    def _add_text(self, matched: int) -> Kind:
        """A line of a paragraph; if one is open, it may go on without the containers of the lines above."""
        if self._leaf != "text":
            self._close(matched)
            self._paragraph = len(self.lines)
            self._leaf = "text"
        return "text"

    def _close(self, matched: int) -> None:
        if matched < len(self._open):
            del self._open[matched:]
            self._leaf = "blank"

    def _push(self, first: int, width: int | None) -> None:
        self._fill()
        above = self._open[-1].path if self._open else ()
        self._open.append(_Container((*above, first), width))
        self._leaf = "blank"

    def _fill(self) -> None:
        if self._open:  # Those above it were filled when it began.
            self._open[-1].is_new = False


def _item_marker(rest: str, *, in_text: bool) -> str | None:
    """The marker with which `rest` begins an item; in a paragraph fewer do than elsewhere."""
    found = _MARKER.match(rest)
    if found is None:
        return None
    interrupts = found[1] in {None, "1"} or int(found[1]) == 1
    if in_text and not (interrupts and rest[found.end() :].strip(" \t")):
        return None
    return found[0]


def _take_marker(cursor: _Cursor, marker: str) -> int:
    """Go over a marker and the white space that belongs to it; columns up to the text of the item."""
    before = cursor.column
    cursor.take(len(marker))
    padding = cursor.indent
    if not cursor.rest:
        return cursor.column - before + 1
    cursor.skip(padding if padding <= _MAX_PADDING else 1)
    return cursor.column - before


def _take_quote(cursor: _Cursor) -> None:
    cursor.take(1)
    cursor.skip(min(cursor.indent, 1))


def _html_block(rest: str, *, in_text: bool) -> int | None:
    """Which kind of HTML block `rest` begins, if it does."""
    if not rest.startswith("<"):
        return None
    kinds = len(_HTML) - in_text
    return next((number for number in range(kinds) if _HTML[number][0].match(rest)), None)
