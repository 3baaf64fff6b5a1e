"""Where the front matter of an entry is, and which lines of it belong to which key.

Front matter is a `---` line at the very start (a byte order mark may precede it), lines, and a line `---` or
`...`. It counts only if it closes within `MAX_FRONT_MATTER_BYTES`; otherwise the whole text is body.

Holds, for every text:

- F1. A line that starts in column 0 and has the form of a key begins a key, whatever stands above it, as YAML
  1.2 demands (continuation lines are indented). A quote that is left open can hide no key that follows it.
  Lax YAML 1.1 readers disagree on such files, and all do where one quote or bracket is around all the lines.
- F2. Line breaks are those of YAML 1.1 (CR LF, LF, CR, U+0085, U+2028, U+2029): no reader sees a line that
  this one overlooks.
- F3. Offsets are into the text as given, so that a line can be added or taken away without touching another.

Linear in `MAX_FRONT_MATTER_BYTES`, whatever the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muniment.content.scalar import Unsupported, read_quoted, unescaped

MAX_FRONT_MATTER_BYTES: Final = 8_192
"""UTF-8 bytes from the start of the file to the end of the closing line: fifty times what entries have, and
small enough that a listing may read it of every file."""

BYTE_ORDER_MARK: Final = "\ufeff"

_OPENING: Final = re.compile(f"{BYTE_ORDER_MARK}?---[ \t]*(\r\n|\n|\r)")
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_COLON: Final = re.compile(r":(?=[ \t]|\Z)")


@dataclass(frozen=True, slots=True)
class Field:
    """One top-level key with the lines that belong to it.

    Attributes:
        key: the key, or None where the line has another form.
        line: number of its first line in the file, from 1.
        start: offset of its first character.
        end: offset behind the line break of its last line; comments and blank lines below are not its own.
        first: what follows the colon.
        rest: the lines below, without line breaks.
    """

    key: str | None
    line: int
    start: int
    end: int
    first: str
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Front matter that was found.

    Attributes:
        fields: in the order of the file.
        close: offset of the closing line, where a further key can be put.
        body: offset of the body.
        newline: the line break of the opening line.
    """

    fields: tuple[Field, ...]
    close: int
    body: int
    newline: str


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    start: int
    end: int
    text: str


def opens(text: str) -> bool:
    """Whether `text` starts like front matter, closed or not."""
    return _OPENING.match(text) is not None


def locate(text: str) -> FrontMatter | None:
    """The front matter of `text`, or None where there is none or it does not close in time."""
    opening = _OPENING.match(text)
    if opening is None:
        return None
    size = _size(opening[0])
    lines: list[_Line] = []
    for line in _lines(text, opening.end()):
        size += _size(text[line.start : line.end])
        if size > MAX_FRONT_MATTER_BYTES:
            return None
        if line.text.rstrip(" \t") in ("---", "..."):
            return FrontMatter(tuple(_fields(lines)), line.start, line.end, opening[1])
        lines.append(line)
    return None


def spelled(text: str) -> str | None:
    """`text` with what the escapes of its front matter mean, or None where there are none.

    Readers of YAML differ, so every escape counts, whatever key or value it stands in, except before the
    first double quote, where nothing can be one. Lines keep their numbers.
    """
    front = locate(text) if "\\" in text else None
    if front is None:
        return None
    before, quote, quoted = text[: front.close].partition('"')
    return before + quote + unescaped(quoted) + text[front.close :]


def line_break(text: str) -> str:
    """The first line break of `text` that is one to every reader; LF where there is none."""
    found = re.search("\r\n|\n|\r", text)
    return found[0] if found else "\n"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _lines(text: str, start: int) -> Iterator[_Line]:
    # One character more than the limit, so that a CR LF across it is not taken for a CR.
    limit = min(len(text), MAX_FRONT_MATTER_BYTES + 1)
    number = 2
    while found := _BREAK.search(text, start, limit):
        yield _Line(number, start, found.end(), text[start : found.start()])
        start = found.end()
        number += 1
    if limit == len(text):
        yield _Line(number, start, limit, text[start:])


def _fields(lines: list[_Line]) -> Iterator[Field]:
    group: list[_Line] = []
    pending: list[_Line] = []  # blank lines and comments belong to a key only if more of its lines follow
    for line in lines:
        if not line.text.strip(" \t") or line.text.startswith("#"):
            pending.append(line)
        elif line.text.startswith((" ", "\t", "- ", "-\t")) or line.text == "-":
            group += [*(pending if group else ()), line]
            pending = []
        else:
            if group:
                yield _field(group)
            group, pending = [line], []
    if group:
        yield _field(group)


def _field(group: list[_Line]) -> Field:
    head = group[0]
    key, first = _split_key(head.text)
    rest = tuple(line.text for line in group[1:])
    return Field(key, head.number, head.start, group[-1].end, first, rest)


def _split_key(line: str) -> tuple[str | None, str]:
    if line.startswith(("'", '"')):
        try:
            key, end = read_quoted(line)
        except Unsupported:
            return None, line
        tail = line[end:].lstrip(" \t")
        return (key, tail[1:]) if _COLON.match(tail) else (None, line)
    colon = _COLON.search(line)
    outside = line[0] in " \t,[]{}&*!|>%@`" or line.startswith(("- ", "-\t", "? ", "?\t"))
    if colon is None or outside or " #" in line[: colon.start()]:
        return None, line
    return line[: colon.start()].rstrip(" \t"), line[colon.end() :]
