"""Find the front matter of an entry, and the lines that belong to each key.

Front matter is a `---` line at the very start (after an optional byte order mark), then lines, then a line
`---` or `...`. It counts only if it closes within `MAX_FRONT_MATTER_BYTES`; otherwise the complete text is
body.

Guarantees, for every text:

- F1. A line that starts in column 0 and has the form of a key always begins a key, as YAML 1.2 demands
  (continuation lines are indented). So an open quote cannot hide a key that follows it. Lax YAML 1.1 readers
  disagree about such files. All readers disagree if one quote or bracket encloses all the lines.
- F2. Line breaks are the ones of YAML 1.1 (CR LF, LF, CR, U+0085, U+2028, U+2029): another reader never sees
  a line that this reader misses.
- F3. Offsets refer to the original text, so that a line can be added or removed without changing another one.

The time is linear in `MAX_FRONT_MATTER_BYTES`, for a text of any length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from muniment.content.expressions import compile_when_used

# -- scalar ------------------------------------------------------------------------------------------
#
# The YAML values that front matter may contain: a small reader, and a writer whose output is simpler.
#
# Guarantees, for every text:
#
# - S1. A returned value is the one that YAML 1.2 gives for the same text. Everything outside the subset
#   raises `ValueError`; its message describes the form, not the content. The subset: plain, single- and
#   double-quoted scalars, also over several indented lines; literal and folded block scalars; flow and block
#   lists of plain and quoted scalars.
# - S2. `quote_scalar(text)` reads back as `text`, here and in YAML 1.1 and 1.2, as a string and on one line.
# - S3. Linear time: every pattern below consumes the text that it matched.
#
# Not covered on purpose: anchors, aliases, tags, maps, nested lists, complex keys. Trailing line breaks of
# block scalars are dropped, since they have no meaning for any key of an entry.
#
# Attacked in tests/units/content/test_front_matter.py, with PyYAML as the oracle.
# Source: YAML 1.2.2, sections 6 to 8.

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_RESERVED_WORDS: Final = _NULLS | {"true", "false", "yes", "no", "on", "off", "y", "n"}
_INDICATORS: Final = frozenset(",[]{}#&*!|>'\"%@`")

_UNPRINTABLE: Final = compile_when_used("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TO_ESCAPE: Final = compile_when_used('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]')
_BLOCK_HEADER: Final = compile_when_used(r"([|>])(?:[+-]?([1-9])?|([1-9])[+-])(?:[ \t]+#.*|[ \t]*)")
_COMMENT: Final = compile_when_used(r"[ \t]#")
_SINGLE: Final = compile_when_used(
    r"(?P<text>[^'\n \t]+)|(?P<quote>'')|(?P<fold>[ \t]*\n[ \t\n]*)|(?P<space>[ \t]+)"
)
_DOUBLE: Final = compile_when_used(
    r'(?P<text>[^"\\\n \t]+)|(?P<join>\\\n[ \t\n]*)|(?P<fold>[ \t]*\n[ \t\n]*)|(?P<space>[ \t]+)'
    r"|\\x(?P<x>[0-9A-Fa-f]{2})|\\u(?P<u>[0-9A-Fa-f]{4})|\\U(?P<U>[0-9A-Fa-f]{8})|\\(?P<escape>[^\n])"
)
_ESCAPE: Final = compile_when_used(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U((?:000[0-9A-Fa-f]|0010)[0-9A-Fa-f]{4})|([^\n]))"
)
_ESCAPES: Final = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "\t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "/": "/",
    "\\": "\\",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}


def read_scalar(first: str, rest: Sequence[str] = ()) -> str | None:
    """Return the text of a YAML scalar, or None if its value is null.

    Args:
        first: the text after the colon on the line of the key.
        rest: the lines below that belong to the key, without their line breaks.

    Raises:
        ValueError: the value is not a scalar of the supported subset of YAML.
    """
    first = first.lstrip(" \t")
    if first.startswith(("|", ">")):
        _require_printable(rest)
        return _read_block(first.rstrip(" \t"), rest)
    lines = [first, *rest]
    _require_printable(lines)
    while lines and _is_blank_or_comment(lines[0]):
        lines.pop(0)
    if any(line and not line.startswith((" ", "\t")) for line in lines[1:]):
        raise ValueError("is more than one value")
    if not lines:
        return None
    lines[0] = lines[0].lstrip(" \t")
    if lines[0].startswith(("'", '"')):
        text = "\n".join(lines)
        value, end = read_quoted(text)
        line_end, *below = text[end:].split("\n")
        if not _is_comment_or_empty(line_end) or not all(_is_blank_or_comment(line) for line in below):
            raise ValueError("has text after its closing quote")
        return value
    value = _read_plain(lines)
    return None if value in _NULLS else value


def read_list(first: str, rest: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a flow list `[a, "b"]`, or of a block list of plain or quoted scalars.

    Args:
        first: the text after the colon on the line of the key.
        rest: the lines below that belong to the key, without their line breaks.

    Raises:
        ValueError: the value is not such a list.
    """
    first = first.strip(" \t")
    _require_printable([first, *rest])
    if first.startswith("["):
        return _read_flow_list("\n".join([first, *rest]))
    if not _is_blank_or_comment(first):
        raise ValueError("is not a list, such as [a, b]")
    values = (read_scalar(item[0], item[1:]) for item in _split_block_items(rest))
    return tuple(value for value in values if value)


def read_quoted(text: str) -> tuple[str, int]:
    """Return the value of the quoted scalar at the start of `text`, and the offset after its closing quote.

    Raises:
        ValueError: the quote is not closed, or an escape in it is not a character.
    """
    quote = text[0]
    pattern = _SINGLE if quote == "'" else _DOUBLE
    parts: list[str] = []
    position = 1
    while match := pattern.match(text, position):
        parts.append(_decode_quoted_part(match))
        position = match.end()
    if text[position : position + 1] != quote:
        raise ValueError("has a quote that is not closed")
    try:
        # JSON writes characters above U+FFFF as two escapes; a lone half of such a pair is not a character.
        value = "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("contains a lone surrogate") from None
    return value, position + 1


def decode_escapes(text: str) -> str:
    r"""Return `text` with every YAML escape (such as `\u0041`) decoded, inside and outside quotes.

    An escape for a line break stays, so that lines keep their numbers. Adjacent surrogate halves become one
    character; other halves stay.
    """
    return (
        _ESCAPE.sub(_decode_escape, text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    )


def quote_scalar(text: str) -> str:
    """Return `text` as a YAML scalar on one line: plain if that is unambiguous, else in double quotes."""
    plain = (
        text[:1].isalpha()
        and not text.endswith((" ", ":"))
        and text.lower() not in _RESERVED_WORDS
        and ": " not in text
        and " #" not in text
        and _TO_ESCAPE.search(text) is None
    )
    return text if plain else f'"{_TO_ESCAPE.sub(_escape_character, text)}"'


def escape_json(json_text: str) -> str:
    """Return a JSON text in which characters that YAML would read as line breaks or reject are escaped."""
    return _TO_ESCAPE.sub(
        lambda found: found[0] if found[0] in '"\\' else _escape_character(found), json_text
    )


def _require_printable(lines: Sequence[str]) -> None:
    if any(_UNPRINTABLE.search(line) for line in lines):
        raise ValueError("contains a character that YAML does not allow; remove it")


def _is_blank_or_comment(line: str) -> bool:
    text = line.strip(" \t")
    return not text or text.startswith("#")


def _is_comment_or_empty(text: str) -> bool:
    """Return whether the rest of a line after a value is empty, or a comment after a space."""
    return not text.strip(" \t") or (text[0] in " \t" and text.lstrip(" \t").startswith("#"))


def _read_plain(lines: Sequence[str]) -> str:
    _require_plain_start(lines[0])
    texts: list[str] = []
    ended = False
    for line in lines:
        text = line.strip(" \t")
        if ended and not _is_blank_or_comment(text):
            raise ValueError("has text after a comment")
        if found := _COMMENT.search(f" {text}"):
            text, ended = text[: found.start()].rstrip(" \t"), True
        if ": " in text or ":\t" in text or text.endswith(":"):
            raise ValueError("looks like a map because of a colon; put it in quotes")
        texts.append(text)
    return _fold_lines(texts)


def _fold_lines(lines: Sequence[str]) -> str:
    """Join lines as YAML folds them: a line break becomes a space, and each blank line a line break."""
    parts: list[str] = []
    blank = 0
    for line in lines:
        if line and parts:
            parts.append("\n" * blank or " ")
        if line:
            parts.append(line)
        blank = 0 if line else blank + 1
    return "".join(parts)


def _require_plain_start(text: str) -> None:
    if text[0] in _INDICATORS or (text[0] in "-?:" and text[1:2] in ("", " ", "\t")):
        raise ValueError("is neither a string nor a list of strings; put it in quotes")


def _read_block(header: str, rest: Sequence[str]) -> str:
    match = _BLOCK_HEADER.fullmatch(header)
    if match is None:
        raise ValueError("has invalid text after `|` or `>`")
    digit = match[2] or match[3]
    content = next((line for line in rest if line.strip(" ")), "")
    indent = int(digit) if digit else len(content) - len(content.lstrip(" "))
    if content and not indent:
        raise ValueError("has a line that is not indented")
    lead = rest[: rest.index(content)] if content else ()
    if any(len(line) > indent for line in lead):
        raise ValueError("begins with blank lines that are indented deeper than its text")
    if any(line[:indent].strip(" ") for line in rest):
        raise ValueError("has a line that is not indented enough")
    return _join_block([line[indent:] for line in rest], folded=match[1] == ">")


def _join_block(lines: Sequence[str], *, folded: bool) -> str:
    parts: list[str] = []
    blank = 0
    previous = ""
    for line in lines:
        if not line:
            blank += 1
            continue
        if previous:
            is_folded_break = folded and previous[0] not in " \t" and line[0] not in " \t"
            parts.append(("\n" * blank or " ") if is_folded_break else "\n" * (blank + 1))
        else:
            parts.append("\n" * blank)
        parts.append(line)
        previous, blank = line, 0
    return "".join(parts)


def _split_block_items(lines: Sequence[str]) -> list[list[str]]:
    """Return the items of a block list: for each, the text after the dash, then the deeper lines below it."""
    items: list[list[str]] = []
    depth = 0
    for line in lines:
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if not text.strip("\t") or (text.startswith("#") and (not items or indent <= depth)):
            if items:
                items[-1].append("")
        elif (text == "-" or text.startswith("- ")) and (not items or indent == depth):
            if text[1:].lstrip(" ").startswith(("|", ">")):
                raise ValueError("is not a list of texts, such as [a, b]")
            items.append([text[1:]])
            depth = indent
        elif items and indent > depth:
            items[-1].append(line)
        else:
            raise ValueError("is not a list of texts, such as [a, b]")
    return items


def _read_flow_list(text: str) -> tuple[str, ...]:
    items: list[str] = []
    position = 1
    while True:
        position = _skip_space(text, position)
        if text[position : position + 1] == "]":
            break
        item, position = _read_flow_item(text, position)
        items.append(item)
        if text[position : position + 1] == ",":
            position += 1
        elif text[position : position + 1] != "]":
            raise ValueError("is not a list of texts, such as [a, b]")
    line_end, *below = text[position + 1 :].split("\n")
    if not _is_comment_or_empty(line_end) or not all(_is_blank_or_comment(line) for line in below):
        raise ValueError("has text after its closing bracket")
    return tuple(item for item in items if item)


def _read_flow_item(text: str, position: int) -> tuple[str, int]:
    if text[position : position + 1] in ("'", '"'):
        value, length = read_quoted(text[position:])
        return value, _skip_space(text, position + length)
    end = position
    while end < len(text) and text[end] not in ",[]{}":
        end += 1
    raw = text[position:end].strip(" \t\n")
    if not raw or raw.startswith("?"):  # YAML 1.1 reads any `?` here as the start of a map
        raise ValueError("is not a list of texts, such as [a, b]")
    _require_plain_start(raw)
    item = _fold_lines([line.strip(" \t") for line in raw.split("\n")])
    if ": " in item or ":\n" in item or ":\t" in item or item.endswith(":") or re.search(r"\s#", item):
        raise ValueError("is not a list of texts, such as [a, b]")
    return item, end


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\t", "\n"):
        position += 1
    return position


def _decode_quoted_part(match: re.Match[str]) -> str:
    kind, text = match.lastgroup, match[match.lastgroup or 0]
    if kind == "quote":
        return "'"
    if kind == "fold":
        return "\n" * (text.count("\n") - 1) or " "
    if kind == "join":
        return "\n" * (text.count("\n") - 1)
    if kind == "escape":
        if text not in _ESCAPES:
            raise ValueError("contains an unknown escape")
        return _ESCAPES[text]
    if kind in ("x", "u", "U"):
        code = int(text, 16)
        if code > 0x10FFFF:  # noqa: PLR2004 -- the last code point of Unicode
            raise ValueError("contains an escape that is not a character")
        return chr(code)
    return text


def _decode_escape(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    char = chr(int(digits, 16)) if digits else _ESCAPES.get(match[4], match[0])
    return match[0] if char in "\r\n" else char


def _escape_character(match: re.Match[str]) -> str:
    return f"\\{match[0]}" if match[0] in '"\\' else f"\\u{ord(match[0]):04x}"


# -- frontmatter -------------------------------------------------------------------------------------

EXPIRY_KEY: Final = "expires"
"""Key of an end date that the caller gave. After this date the entry is hidden."""

MAX_FRONT_MATTER_BYTES: Final = 8_192
"""Maximum number of UTF-8 bytes from the start of the file to the end of the closing line.

Entries need a fiftieth of it. A listing reads at most this much of every file.
"""

BYTE_ORDER_MARK: Final = "\ufeff"

_OPENING: Final = compile_when_used(f"{BYTE_ORDER_MARK}?---[ \t]*(\r\n|\n|\r)")
_BREAK: Final = compile_when_used("\r\n|[\n\r\x85\u2028\u2029]")
_COLON: Final = compile_when_used(r":(?=[ \t]|\Z)")


@dataclass(frozen=True, slots=True)
class Field:
    """A top-level key with the lines that belong to it.

    Attributes:
        key: the key; None: the line does not have the form `key: value`.
        line: the number of its first line in the file, from 1.
        start: the offset of its first character.
        end: the offset after the line break of its last line, without later comments and blank lines.
        first: the text after the colon.
        rest: the lines below that belong to the key, without line breaks.
    """

    key: str | None
    line: int
    start: int
    end: int
    first: str
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The front matter of a text; all offsets refer to that text.

    Attributes:
        fields: the keys in the order of the file.
        close: the offset of the closing line; a new key is inserted before it.
        body: the offset of the body.
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


def starts_front_matter(text: str) -> bool:
    """Return whether `text` begins with the opening line of front matter, closed or not."""
    return _OPENING.match(text) is not None


def find_front_matter(text: str) -> FrontMatter | None:
    """Return the front matter of `text`; None if it is missing or does not close within the size limit."""
    opening = _OPENING.match(text)
    if opening is None:
        return None
    size = _count_bytes(opening[0])
    lines: list[_Line] = []
    for line in _split_lines(text, opening.end()):
        size += _count_bytes(text[line.start : line.end])
        if size > MAX_FRONT_MATTER_BYTES:
            return None
        if line.text.rstrip(" \t") in ("---", "..."):
            return FrontMatter(tuple(_group_fields(lines)), line.start, line.end, opening[1])
        lines.append(line)
    return None


def decode_front_matter(text: str) -> str | None:
    """Return `text` with the escapes of its front matter decoded; None if it cannot contain any escape.

    YAML readers differ, so every escape counts, in any key or value. The text before the first double quote
    is unchanged, because escapes exist only in double quotes. Lines keep their numbers.
    """
    front = find_front_matter(text) if "\\" in text else None
    if front is None:
        return None
    before, quote, quoted = text[: front.close].partition('"')
    return before + quote + decode_escapes(quoted) + text[front.close :]


def find_line_break(text: str) -> str:
    """Return the first line break of `text` that all readers accept, or LF if the text has none."""
    found = re.search("\r\n|\n|\r", text)
    return found[0] if found else "\n"


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _split_lines(text: str, start: int) -> Iterator[_Line]:
    # One character more than the limit, so that a CR LF across it is not read as a CR.
    limit = min(len(text), MAX_FRONT_MATTER_BYTES + 1)
    number = 2
    while found := _BREAK.search(text, start, limit):
        yield _Line(number, start, found.end(), text[start : found.start()])
        start = found.end()
        number += 1
    if limit == len(text):
        yield _Line(number, start, limit, text[start:])


def _group_fields(lines: list[_Line]) -> Iterator[Field]:
    group: list[_Line] = []
    # blank lines and comments belong to a key only if more lines of that key follow
    pending: list[_Line] = []
    for line in lines:
        if not line.text.strip(" \t") or line.text.startswith("#"):
            pending.append(line)
        elif line.text.startswith((" ", "\t", "- ", "-\t")) or line.text == "-":
            group += [*(pending if group else ()), line]
            pending = []
        else:
            if group:
                yield _build_field(group)
            group, pending = [line], []
    if group:
        yield _build_field(group)


def _build_field(group: list[_Line]) -> Field:
    head = group[0]
    key, first = _split_key(head.text)
    rest = tuple(line.text for line in group[1:])
    return Field(key, head.number, head.start, group[-1].end, first, rest)


def _split_key(line: str) -> tuple[str | None, str]:
    if line.startswith(("'", '"')):
        try:
            key, end = read_quoted(line)
        except ValueError:
            return None, line
        tail = line[end:].lstrip(" \t")
        return (key, tail[1:]) if _COLON.match(tail) else (None, line)
    colon = _COLON.search(line)
    outside = line[0] in " \t,[]{}&*!|>%@`" or line.startswith(("- ", "-\t", "? ", "?\t"))
    if colon is None or outside or " #" in line[: colon.start()]:
        return None, line
    return line[: colon.start()].rstrip(" \t"), line[colon.end() :]
