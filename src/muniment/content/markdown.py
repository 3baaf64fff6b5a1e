"""Read markdown without rendering it: find blocks, list items, links and active markup, and quote text."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import unquote

from muniment.content.expressions import compile_when_used
from muniment.content.frontmatter import find_front_matter, starts_front_matter
from muniment.content.patterns import compile_pattern
from muniment.kernel.names import MAX_PATH_BYTES, RelPath

# -- blocks ------------------------------------------------------------------------------------------
#
# Assign each line of a body to blocks of markdown.
#
# This is the first phase of CommonMark's parsing strategy, as far as it determines where list items begin and
# end; inline markup is not parsed. Every text can be read, in time linear in its length.
#
# Not guaranteed: link reference definitions are read as text, and nesting ends at `MAX_NESTING`.
#
# Source: CommonMark 0.31.2, "Appendix: A parsing strategy", and "HTML blocks" for the table.

Kind = Literal["blank", "marks", "text", "heading", "rule", "fence", "code", "html"]
"""The kind of a line; `marks`: the line has only markers of list items and quotes."""

_LINE: Final = compile_when_used(r"[^\r\n]*(?:\r\n|\n|\r|\Z)")
_CODE_INDENT: Final = 4
_MAX_PADDING: Final = 4
_TAB: Final = 4

MAX_NESTING: Final = 64
"""Maximum depth of nested lists and quotes; people use three or four levels. Deeper blocks are text."""

QUOTE: Final = -1
"""The number of every block quote in `Line.path`."""

_HEADING: Final = compile_when_used(r"#{1,6}(?:[ \t]|\Z)")
_RULE: Final = compile_when_used(r"(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*){3,})\Z")
_UNDERLINE: Final = compile_when_used(r"(?:=+|-+)[ \t]*\Z")
_FENCE: Final = compile_when_used(r"(`{3,})[^`]*\Z|(~{3,})")
_MARKER: Final = compile_when_used(r"(?:[-+*]|([0-9]{1,9})[.)])(?=[ \t]|\Z)")
_VALUE: Final = r"""(?:[^"'=<>`\s]+|'[^']*'|"[^"]*")"""
_ATTRIBUTE: Final = rf"(?>[ \t]+[a-z_:][a-z0-9_.:-]*(?:[ \t]*=[ \t]*{_VALUE})?)"
_HTML_BLOCKS: Final = (
    "address article aside base basefont blockquote body caption center col colgroup dd details dialog "
    "dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header "
    "hr html iframe legend li link main menu menuitem nav noframes ol optgroup option p param search "
    "section summary table tbody td tfoot th thead title tr track ul"
).replace(" ", "|")
_HTML: Final = tuple(
    (compile_when_used(start, re.IGNORECASE), compile_when_used(end, re.IGNORECASE) if end else None)
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
"""The beginnings of HTML blocks with their ends; None: a blank line. The last kind may not interrupt text."""


@dataclass(slots=True)
class Line:
    """A line of a body with its offsets and its blocks.

    Attributes:
        start: the offset of its first character in the body.
        text: the offset of its content, after the markers of list items and quotes and white space.
        end: the offset after its line break.
        kind: the kind of the line.
        path: the list items and quotes around the line, outermost first: an item by the number of its first
            line, a quote by `QUOTE`. Empty for a blank line.
        is_open: whether its block of code or HTML continues after it, even over a blank line.
    """

    start: int
    text: int
    end: int
    kind: Kind = "blank"
    path: tuple[int, ...] = ()
    is_open: bool = False


def read_lines(body: str) -> list[Line]:
    """Return every line of `body` with the blocks that it belongs to."""
    reader = _Reader()
    for found in _LINE.finditer(body):
        if found[0]:
            reader.read(found.start(), found[0])
    return reader.lines


@dataclass(slots=True)
class _Container:
    """An open list item, or a block quote if `width` is None.

    Attributes:
        path: the number of the first line of every item from the outermost to this one; `QUOTE` for a quote.
        width: the columns by which a line in the item must be indented.
        is_new: whether the item or quote is still empty.
    """

    path: tuple[int, ...]
    width: int | None
    is_new: bool = True


class _Cursor:
    """A position in a line. The width of a tab depends on its column.

    Attributes:
        at: the offset in the line of the first character that is not white space, from the position on.
        rest: the text from `at` on.
        column: the number of columns before the position, which may be inside a tab.
    """

    __slots__ = ("_end_column", "_text", "at", "column", "rest")

    def __init__(self, text: str) -> None:
        self._text, self.at, self.column = text, 0, 0
        self._measure()

    @property
    def white_space_columns(self) -> int:
        """Return the number of columns of white space at the position."""
        return self._end_column - self.column

    def skip(self, columns: int) -> None:
        """Move the position over some columns of white space."""
        self.column += columns

    def skip_characters(self, count: int) -> None:
        """Move the position over the white space and then over `count` characters."""
        self.at += count
        self.column = self._end_column + count
        self._measure()

    def _measure(self) -> None:
        """Find the end of the white space at the position."""
        text, position, column = self._text, self.at, self.column
        while (char := text[position : position + 1]) and char in " \t":
            column += 1 if char == " " else _TAB - column % _TAB
            position += 1
        self.at, self._end_column, self.rest = position, column, text[position:]


class _Reader:
    """A reader that finds the blocks of each line, by the first phase of CommonMark's parsing strategy.

    Attributes:
        lines: the lines that were read.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._open: list[_Container] = []
        self._leaf: Kind = "blank"  # the open block that accepts lines of text; "blank": all are closed
        self._fence = ""
        self._html_end: re.Pattern[str] | None = None
        self._paragraph = 0  # number of its first line

    def read(self, start: int, full_line: str) -> None:
        """Read the next line of the body and append it to `lines`.

        Args:
            start: the offset of the line in the body.
            full_line: the line with its line break.
        """
        cursor = _Cursor(full_line.rstrip("\r\n"))
        matched = self._count_continued(cursor)
        kind = self._read_open_leaf(cursor) if matched == len(self._open) else None
        if kind is None:
            matched, begins = self._open_containers(cursor, matched)
            kind = self._read_leaf(cursor, matched)
            if kind == "blank" and full_line.strip(" \t\r\n"):
                kind = "marks"
            if kind != "blank" and not (begins and kind == "marks"):
                self._mark_filled()
        if not full_line.strip(" \t\r\n"):
            kind = "blank"  # Also in code: the last blank line of a block belongs to no block.
        path = self._open[-1].path if self._open and kind != "blank" else ()
        is_open = self._leaf == "fence" or (self._leaf == "html" and self._html_end is not None)
        self.lines.append(Line(start, start + cursor.at, start + len(full_line), kind, path, is_open))

    def _count_continued(self, cursor: _Cursor) -> int:
        """Return the number of open list items and quotes that continue in the line."""
        for number, container in enumerate(self._open):
            if container.width is None:
                if cursor.white_space_columns >= _CODE_INDENT or not cursor.rest.startswith(">"):
                    return number
                _skip_quote(cursor)
            elif not cursor.rest:
                if container.is_new:
                    return number
            elif cursor.white_space_columns >= container.width:
                cursor.skip(container.width)
            else:
                return number
        return len(self._open)

    def _read_open_leaf(self, cursor: _Cursor) -> Kind | None:
        """Return the kind of a line inside fenced code or HTML; None if neither is open."""
        rest = cursor.rest
        if self._leaf == "fence":
            closes = rest.startswith(self._fence) and not rest.strip(f" \t{self._fence[0]}")
            if closes and cursor.white_space_columns < _CODE_INDENT:
                self._leaf = "blank"
            return "fence"
        if self._leaf == "html" and (rest or self._html_end is not None):
            if self._html_end is not None and self._html_end.search(rest):
                self._leaf = "blank"
            return "html"
        return None

    def _open_containers(self, cursor: _Cursor, matched: int) -> tuple[int, bool]:
        """Open the list items and quotes that begin in the line.

        Args:
            cursor: the position in the line, which moves over the markers.
            matched: the number of open items and quotes that continue in the line.

        Returns:
            The number of items and quotes around the line, and whether one of them began in it.
        """
        begins = False
        while cursor.white_space_columns < _CODE_INDENT and matched < MAX_NESTING:
            rest = cursor.rest
            in_text = self._leaf == "text" and matched == len(self._open)
            if rest.startswith(">"):
                self._close(matched)
                _skip_quote(cursor)
                self._push(QUOTE, None)
            elif not _RULE.match(rest) and (marker := _match_item_marker(rest, in_text=in_text)) is not None:
                self._close(matched)
                self._push(len(self.lines), _skip_marker(cursor, marker))
            else:
                break
            matched, begins = len(self._open), True
        return matched, begins

    def _read_leaf(self, cursor: _Cursor, matched: int) -> Kind:
        """Return the kind of the rest of a line, after the markers of its list items and quotes.

        Args:
            cursor: the position after the markers.
            matched: the number of items and quotes around the line.
        """
        rest = cursor.rest
        is_text = self._leaf == "text"
        if not rest:
            self._close(matched)
            if self._leaf != "code":
                self._leaf = "blank"
            return "blank"
        if cursor.white_space_columns >= _CODE_INDENT:
            return self._add_text(matched) if is_text else self._add(matched, "code")
        if _HEADING.match(rest):
            return self._add(matched, "heading")
        if fence := _FENCE.match(rest):
            self._fence = fence[1] or fence[2]
            return self._add(matched, "fence")
        if (html := _match_html_block(rest, in_text=is_text)) is not None:
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
        """Begin or continue a block that is not a paragraph, and return its kind."""
        self._close(matched)
        self._leaf = kind if kind in {"fence", "html", "code"} else "blank"
        return kind

    def _add_text(self, matched: int) -> Kind:
        """Add a line of a paragraph.

        An open paragraph may continue without the markers of its list items and quotes.
        """
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
        self._mark_filled()
        above = self._open[-1].path if self._open else ()
        self._open.append(_Container((*above, first), width))
        self._leaf = "blank"

    def _mark_filled(self) -> None:
        if self._open:  # The items and quotes around it are already marked as filled.
            self._open[-1].is_new = False


def _match_item_marker(rest: str, *, in_text: bool) -> str | None:
    """Return the marker with which `rest` begins a list item, or None.

    Args:
        rest: the line from its first character that is not white space.
        in_text: whether a paragraph is open, which only some markers can interrupt.
    """
    found = _MARKER.match(rest)
    if found is None:
        return None
    interrupts = found[1] in {None, "1"} or int(found[1]) == 1
    if in_text and not (interrupts and rest[found.end() :].strip(" \t")):
        return None
    return found[0]


def _skip_marker(cursor: _Cursor, marker: str) -> int:
    """Skip a list marker and its white space; return the columns from the marker to the item's text."""
    before = cursor.column
    cursor.skip_characters(len(marker))
    padding = cursor.white_space_columns
    if not cursor.rest:
        return cursor.column - before + 1
    cursor.skip(padding if padding <= _MAX_PADDING else 1)
    return cursor.column - before


def _skip_quote(cursor: _Cursor) -> None:
    cursor.skip_characters(1)
    cursor.skip(min(cursor.white_space_columns, 1))


def _match_html_block(rest: str, *, in_text: bool) -> int | None:
    """Return the index in `_HTML` of the HTML block that begins with `rest`, or None.

    Args:
        rest: the line from its first character that is not white space.
        in_text: whether a paragraph is open, which the last kind cannot interrupt.
    """
    if not rest.startswith("<"):
        return None
    kinds = len(_HTML) - in_text
    return next((number for number in range(kinds) if _HTML[number][0].match(rest)), None)


# -- bullets -----------------------------------------------------------------------------------------
#
# Find the list items and paragraphs of an entry's body, and remove one of them exactly.
#
# CommonMark defines what an item is: blocks are read by the two phases of its specification, as far as they
# determine to which item a line belongs. Guarantees, for every text:
#
# - B1. `build_outline` reads any text, in time linear in the text, times the depth of its nesting.
# - B2. An item has complete lines: from its marker to its last line that is not blank, including nested
#   blocks and lazy continuation lines. Text in code, in HTML or after other text is not an item, even if it
#   has the same form. A passage includes the blank lines after it; the last passage includes those before it.
# - B3. `remove_item` removes exactly one run of characters: line breaks, tabs and a missing last line break
#   stay. If the lines above and below would otherwise be joined, the last line break of the removed text
#   stays as an empty line.
# - B4. The blocks of the rest stay: every other line belongs to the same items and is the same kind of block.
#   If this is impossible, `remove_item` returns None.
#
# Not guaranteed: items in block quotes, and items that begin on the line of another one, are not returned;
# the quote or the outer item is one piece. Link reference definitions are read as paragraphs.
#
# Source: CommonMark 0.31.2, "Appendix: A parsing strategy". Attacked in tests/units/content/test_bullets.py.


@dataclass(frozen=True, slots=True)
class Item:
    """A list item, or a passage: a paragraph, code, or other text outside list items. Both can be removed.

    Attributes:
        start: the offset of its first line in the body, including indentation.
        end: the offset after its last line that is not blank; a passage also includes the blank lines after
            it.
        own_text: its text without markers and without nested items.
        items: the nested items, which can be removed separately.
        is_item: True: a list item; False: a passage.
    """

    start: int
    end: int
    own_text: str
    items: tuple[Item, ...]
    is_item: bool = True

    @property
    def text(self) -> str:
        """Return the complete text of the item or passage, including nested items."""
        return "\n".join([self.own_text, *(item.text for item in self.items)])


@dataclass(frozen=True, slots=True)
class Outline:
    """The list items of a body and its other text.

    Attributes:
        items: the outermost items, in order.
        passages: the other text, in order: runs of lines between blank lines, headings and items.
    """

    items: tuple[Item, ...]
    passages: tuple[Item, ...]

    @property
    def parts(self) -> tuple[Item, ...]:
        """Return the outermost items and the passages, in the order of the body."""
        return tuple(sorted((*self.items, *self.passages), key=lambda part: part.end))

    @property
    def is_empty(self) -> bool:
        """Return whether the body has only headings, rules and blank lines."""
        return not self.items and not self.passages


def build_outline(body: str) -> Outline:
    """Return the list items and the other passages of the body of an entry.

    Cost: linear in the text, times the depth of its nesting.
    """
    lines = read_lines(body)
    builders: dict[int, _ItemBuilder] = {}
    outermost: list[_ItemBuilder] = []
    passages: list[list[int]] = [[]]
    for number, line in enumerate(lines):
        if line.kind == "blank":
            if not line.is_open:
                passages.append([])
            continue
        owner: _ItemBuilder | None = None
        for first in _list_removable_items(line.path):
            if first not in builders:
                builders[first] = _ItemBuilder(lines[first].start)
                (outermost if owner is None else owner.items).append(builders[first])
            owner = builders[first]
            owner.end = line.end
        text = body[line.text : line.end]
        if owner is not None:
            owner.own.append(text)
            passages.append([])
        elif line.kind in {"heading", "rule", "marks"}:
            passages.append([])
        else:
            passages[-1].append(number)
    found = (_build_passage(body, lines, run[0], run[-1]) for run in passages if run)
    return Outline(tuple(item.build() for item in outermost), tuple(found))


def _build_passage(body: str, lines: Sequence[Line], first: int, last: int) -> Item:
    """Return the passage of some lines with the blank lines after it; for the last passage, those before it.

    Args:
        body: the body.
        lines: the lines of the body.
        first: the number of the first line of the passage.
        last: the number of the last line of the passage.
    """
    text = body[lines[first].start : lines[last].end]
    following = next(
        (number for number in range(last + 1, len(lines)) if lines[number].kind != "blank"), None
    )
    if following is not None:
        return Item(lines[first].start, lines[following].start, text, (), is_item=False)
    while first and lines[first - 1].kind == "blank":
        first -= 1
    return Item(lines[first].start, lines[last].end, text, (), is_item=False)


def remove_item(body: str, item: Item) -> str | None:
    """Return `body` without one item or passage; None if that would change the blocks of other lines.

    Args:
        body: the body.
        item: an item or passage from the outline of this body.
    """
    removed = body[item.start : item.end]
    line_break = len(removed) - len(removed.rstrip("\r\n"))
    before = read_lines(body)
    for retained in dict.fromkeys((0, line_break)):
        shorter = body[: item.start] + body[item.end - retained :]
        if _has_same_blocks(before, read_lines(shorter), item):
            return shorter
    return None


def _list_removable_items(path: tuple[int, ...]) -> Iterator[int]:
    """Yield the list items of a path that can be removed: outside quotes, each begun on its own line."""
    for index, first in enumerate(path):
        if first == QUOTE or first in path[:index]:
            return
        yield first


@dataclass(slots=True)
class _ItemBuilder:
    start: int
    end: int = 0
    own: list[str] = field(default_factory=list)
    items: list[_ItemBuilder] = field(default_factory=list)

    def build(self) -> Item:
        return Item(self.start, self.end, "".join(self.own), tuple(item.build() for item in self.items))


def _has_same_blocks(before: Sequence[Line], after: Sequence[Line], item: Item) -> bool:
    """Return whether the lines of `before` without `item` are in the same blocks in `after`.

    Blank lines are ignored.
    """
    retained = [
        (number, line) for number, line in enumerate(before) if not item.start <= line.start < item.end
    ]
    old = [(number, line) for number, line in retained if line.kind != "blank"]
    new = [(number, line) for number, line in enumerate(after) if line.kind != "blank"]
    if len(old) != len(new):
        return False
    moved = {QUOTE: QUOTE} | {
        number: new_number for (number, _), (new_number, _) in zip(old, new, strict=True)
    }
    return all(
        old_line.kind == new_line.kind and tuple(map(moved.get, old_line.path)) == new_line.path
        for (_, old_line), (_, new_line) in zip(old, new, strict=True)
    )


# -- links -------------------------------------------------------------------------------------------
#
# Find the relative links of an entry to files of its scope. This section opens no files.

_TARGET: Final = compile_when_used(rf"\]\([ \t]{{0,8}}<?([^)\s<>]{{1,{MAX_PATH_BYTES}}})")
_SCHEME: Final = compile_when_used(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


def find_relative_links(body: str, rel: RelPath) -> Iterator[RelPath]:
    """Yield the paths inside the scope that the inline links of a body point to, one for each link.

    Skipped are links in code, links with a scheme, absolute links, and links that leave the scope.

    Args:
        body: the text after the front matter.
        rel: the path of the entry inside the scope; links are relative to its folder.
    """
    if "](" not in body:
        return
    for line in read_lines(body):
        if line.kind in {"fence", "code", "html"}:
            continue
        for found in _TARGET.finditer(body, line.start, line.end):
            target = unquote(found[1].partition("#")[0].partition("?")[0])
            if target and not target.startswith("/") and _SCHEME.match(target) is None:
                path = _join_path(rel.rpartition("/")[0], target)
                if path is not None:
                    yield path


def _join_path(folder: str, target: str) -> RelPath | None:
    """Return the path of a link target relative to a folder; None if it leaves the scope or is its root."""
    steps = folder.split("/") if folder else []
    for step in target.split("/"):
        if step == "..":
            if not steps:
                return None
            steps.pop()
        elif step not in {"", "."}:
            steps.append(step)
    return RelPath("/".join(steps)) if steps else None


# -- markup ------------------------------------------------------------------------------------------
#
# Find active markup: markup that runs or fetches something when a file is displayed as markdown.
#
# Guarantees:
#
# - A1. Rejected are: elements that run or replace the page (`script`, `iframe`, `style`, …) in any form;
#   elements that load (`object`, `link`, `meta`, `form`, `video`, …) with an attribute; event handlers;
#   attributes and styles that fetch; images, also by reference, whose address is not a path; links,
#   definitions and autolinks with a scheme that runs or embeds (`javascript:`, `vbscript:`, `data:`,
#   `file:`), entities decoded; fences in a language that note readers run.
# - A2. Displayed code is inert: closed fences that begin in column 0, and code spans on one line. If markdown
#   readers may disagree about what is code, it counts as text. This applies to fences that are not closed,
#   indented, or in a list or quote; fences with a line that is similar to another fence; fences that note
#   readers draw; spans after a tag, an unmatched tick or a backslash, and across table cells; and everything
#   in a file in which a line outside fences begins with a tag.
# - A3. Ordinary links, local images, bare tags such as `<T>`, `<name>` and `<b>`, and comparisons pass.
# - A4. Linear time: RE2 for all patterns that scan ahead.
#
# Not guaranteed: a renderer with other extensions may run more. An ordinary link can carry data if a user
# opens it. HTML that only hides text is not rejected.
#
# Attacked in tests/units/content/test_markup.py. Source: CommonMark 0.31.2, sections 4.5, 4.6, 6.1 and 6.4 to
# 6.6; the HTML standard, section 13.2.5.

ACTIVE_MARKUP: Final = "active-markup"
"""The name of this gate in policies."""

_MAX_PROGRAM_BYTES: Final = 32 << 20

_SPACE: Final = r"[\s\x00-\x20]*"
_RUNNING_SCHEME: Final = (
    "(?:"
    + "|".join(_SPACE.join(scheme) for scheme in ("javascript", "vbscript", "livescript", "data", "file"))
    + rf"){_SPACE}\\?:"
)
_REMOTE: Final = r"(?:[a-z][a-z0-9+.-]*\\?:|[/\\]{2})"
"""The beginning of an address that is not a relative path."""

_ALT: Final = r"(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])*\])*"
_OPENING: Final = r"<[a-z][a-z0-9:_.-]*[\s/]"
_TAG: Final = rf"{_OPENING}(?:[^>]*[\s/\"'\x0c])?"
_QUOTED_TAG: Final = rf"{_OPENING}(?:(?:[^<>\"']|\"[^\"]*\"|'[^']*')*[\s/\"'])?"
_BLOCK: Final = rf"(?m:^)[ \t>*+0-9.)-]*{_OPENING}(?:[^\n]|\n[^\n])*?[\s/\"']"
_REPLACING: Final = "script|iframe|style|frameset|xmp|plaintext|noembed|noframes"
_LOADING: Final = (
    "object|embed|applet|meta|base|link|form|input|button|video|audio|source|track|frame|portal|param|"
    "foreignobject|animate[a-z]*|set|use|image|feimage|body|bgsound|layer|isindex|keygen|template|handler|listener"
)
_FETCHING: Final = (
    "src|poster|background|data|action|formaction|ping|lowsrc|dynsrc|xlink:href|longdesc|profile|codebase|"
    "classid|archive|manifest|usemap|icon"
)

_RUN_BY_READERS: Final = ("dataviewjs", "js-engine", "templater")
_DRAWN_BY_READERS: Final = ("mermaid", "dot", "graphviz", "plantuml", "svg")
"""Languages of fences that note readers run (first tuple), or draw as pictures with links (second tuple)."""

_FORMS: Final = (
    rf"<(?:{_REPLACING})(?:[\s/>]|$)",
    rf"<(?:[a-z]+:)?(?:{_LOADING})[\s/][^>]*=",
    *(rf"{tag}on[a-z]+\s*=" for tag in (_TAG, _QUOTED_TAG, _BLOCK)),
    *(rf"{tag}(?:{_FETCHING})\s*=\s*[\"'`]?{_SPACE}{_REMOTE}" for tag in (_TAG, _QUOTED_TAG)),
    *(rf"{tag}(?:srcset|srcdoc|imagesrcset)\s*=" for tag in (_TAG, _QUOTED_TAG)),
    *(rf"{tag}[a-z:-]+\s*=\s*[\"'`]?{_SPACE}{_RUNNING_SCHEME}" for tag in (_TAG, _QUOTED_TAG)),
    rf"{_TAG}style\s*=[^>]*(?:url|image|expression|import|binding|behavior|[\\@])",
    rf"<{_SPACE}{_RUNNING_SCHEME}[^\s>]*>",
    rf"\]\({_SPACE}<?{_SPACE}{_RUNNING_SCHEME}",
    rf"\]:{_SPACE}<?{_SPACE}{_RUNNING_SCHEME}",
    rf"!\[{_ALT}\]\({_SPACE}<?{_SPACE}{_REMOTE}",
    rf"!\[(?:[^\]]|\][^(\[])*?\]\({_SPACE}<?{_SPACE}{_REMOTE}",
    r"<!(?:entity|attlist)\s|<\?xml-stylesheet\s|<!doctype[^>]*\[",
    rf"(?m:^)[ \t>*+0-9.)-]*(?:`{{3,}}|~{{3,}})[ \t]*(?:{'|'.join(_RUN_BY_READERS)})\b",
)
_ANY_FORM: Final = "|".join(f"(?:{form})" for form in _FORMS)
_REFERENCE: Final = rf"(?m:^)[ \t>*+0-9.)-]*\[(?:[^\[\]\\]|\\.)+\]:{_SPACE}<?{_REMOTE}"
_BY_REFERENCE: Final = rf"!\[{_ALT}\](?:[^(]|$)"

_BREAK: Final = compile_when_used("\r\n|\n|\r")
_OTHER_BREAK: Final = compile_when_used("\r\n?")
_ENTITY: Final = compile_when_used("&[#a-zA-Z]")
_FENCE_LINE: Final = compile_when_used(r"(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*")
_LIKE_A_FENCE: Final = compile_when_used(r"[ \t>*+0-9.)-]*(?:```|~~~)")
_OPENS_HTML: Final = compile_when_used(r"[ \t>*+0-9.)-]*<[A-Za-z!?/]")
_ACTIVE_LANGUAGES: Final = frozenset({*_RUN_BY_READERS, *_DRAWN_BY_READERS})
_MARKS: Final = ("<", "](", "]:", "```", "~~~")
"""Text without any of these characters has no active markup."""

_TICKS: Final = compile_when_used(r"\\?`+|<(?![ =<>-])(?![a-zA-Z/][\w:-]*>)")


def find_active_markup(text: str) -> int | None:
    """Return the number of the line on which active markup begins, from 1; None if the text has none.

    Active markup runs or loads something when a file is displayed. Code blocks and code spans are ignored if
    every markdown reader displays them as code.

    Cost: a few microseconds for text without `<`, `](`, `]:` and fences; otherwise about 20 µs per KiB.
    """
    if not any(mark in text for mark in _MARKS):
        return None
    if _search(text) is None:
        return None
    return _search(mask_code(text))


def mask_code(text: str) -> str:
    """Return `text` with blanks in place of code that every markdown reader displays as code; lines stay."""
    text = _OTHER_BREAK.sub("\n", text)
    lines = text.split("\n")
    bounds = None if _is_doubtful(text) else _find_code_blocks(lines)
    if bounds is None:
        return text
    inside = {number for first, last in bounds for number in range(first, last + 1)}
    masked_lines: list[str] = []
    doubt = False
    for number, line in enumerate(lines):
        if number in inside or not line.strip():
            masked_lines.append("")
            doubt = False
            continue
        masked, doubt = _mask_spans(line, doubt=doubt)
        masked_lines.append(masked)
    return "\n".join(masked_lines)


def _search(text: str) -> int | None:
    view = html.unescape(text) if _ENTITY.search(text) else text
    found = _compile(_ANY_FORM).search(view)
    if found is None and "![" in view and _compile(_BY_REFERENCE).search(view) is not None:
        found = _compile(_REFERENCE).search(view)
    return None if found is None else len(_BREAK.findall(view, 0, found.start())) + 1


def _compile(source: str) -> Any:
    return compile_pattern(source, max_bytes=_MAX_PROGRAM_BYTES)


def _is_doubtful(text: str) -> bool:
    """Return whether markdown readers may disagree about code because of the front matter."""
    front = find_front_matter(text)
    if front is None:
        return starts_front_matter(text)
    return "```" in text[: front.body] or "~~~" in text[: front.body]


def _find_code_blocks(lines: list[str]) -> list[tuple[int, int]] | None:
    """Return the numbers of the first and last line of each block that all markdown readers treat as code.

    Return None if a line outside fences begins with an HTML tag: then readers may disagree about all blocks.
    """
    found: list[tuple[int, int]] = []
    fence, first, certain = "", 0, True
    for number, line in enumerate(lines):
        if not fence:
            if _OPENS_HTML.match(line):
                return None
            opening = _FENCE_LINE.fullmatch(line)
            if opening is not None:
                fence, first = opening[1], number
                certain = opening[2].strip("{}.=").lower() not in _ACTIVE_LANGUAGES
        elif _closes_fence(line, fence):
            if certain:
                found.append((first, number))
            fence = ""
        elif _LIKE_A_FENCE.match(line):
            certain = False
    return found


def _closes_fence(line: str, fence: str) -> bool:
    text = line.strip(" \t")
    return len(text) >= len(fence) and not text.strip(fence[0]) and not line.startswith(("    ", "\t"))


def _mask_spans(line: str, *, doubt: bool) -> tuple[str, bool]:
    """Return `line` without its code spans, and whether readers may disagree about those of the next line.

    Args:
        line: the line.
        doubt: whether readers may disagree about the spans of this line, because of the line before.
    """
    if doubt or "`" not in line:
        return line, doubt or any(not found[0].startswith("`") for found in _TICKS.finditer(line))
    marks = list(_TICKS.finditer(line))
    parts: list[str] = []
    position = index = 0
    while index < len(marks):
        mark = marks[index]
        closing = (
            next((n for n in range(index + 1, len(marks)) if marks[n][0] == mark[0]), None)
            if mark[0].startswith("`")
            else None
        )
        if closing is None:
            return "".join([*parts, line[position:]]), True
        inner = line[mark.end() : marks[closing].start()]
        parts += [line[position : mark.start()], " " if "|" not in inner else inner]
        position, index = marks[closing].end(), closing + 1
    return "".join([*parts, line[position:]]), False


# -- quoting -----------------------------------------------------------------------------------------
#
# Quote external text for a model, between marks that the text cannot imitate.

_TOKEN_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # noqa: S105  not a password
_TOKEN_CHARS: Final = 8
"""Characters of the random token of a quoted text: 2^40 values. Two characters cost a model about a token."""


def create_fence_token() -> str:
    """Return random text for the marks of `fence_text`, which the author of the quoted text cannot know."""
    return "".join(_TOKEN_LETTERS[byte % len(_TOKEN_LETTERS)] for byte in os.urandom(_TOKEN_CHARS))


def fence_text(text: str, kind: str, token: str) -> str:
    """Return `text` between two marks that `text` cannot imitate, because its author does not know `token`.

    Args:
        text: the text to quote.
        kind: a word or two for the model about the text.
        token: random text from `create_fence_token`.
    """
    return f"<<{kind} {token}>>\n{text}\n<<end {token}>>"


def remove_fences(text: str, token: str) -> str:
    """Return `text` without the marks of `fence_text` for this token; lines with only marks are dropped."""
    if token not in text:
        return text
    marks = re.compile(rf"<<\w{{1,20}}+ {re.escape(token)}>>")
    stripped = [(line, marks.sub("", line)) for line in text.splitlines(keepends=True)]
    return "".join(
        rest for line, rest in stripped if token not in rest and (rest.strip() or not line.strip())
    )
