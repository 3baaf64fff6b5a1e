"""Parse the text files of other tools leniently: no line of a user's text is dropped. No side effects.

Entries of Muniment are parsed strictly (`content.entry`). A file of another tool often has front matter that
no YAML parser accepts, so different rules apply here:

- A block counts as front matter only if all its lines match the format. Otherwise it is body text.
- A value is plain text if the strict parser rejects it, or would drop a comment from it.
- Blank lines may precede the front matter, a second block may follow it, and it may be TOML between `+++`
  lines.

Separate from `formats.py`, which defines the tools, because `transfer/conservation.py` also uses this module.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from muniment.content.entry import ENDS_KEY, parse
from muniment.content.frontmatter import EXPIRY_KEY, Field, find_front_matter, read_list, read_scalar
from muniment.content.gates import count_line

KNOWN_KEYS: Final = frozenset(
    {
        "name",
        "title",
        "description",
        "type",
        "keywords",
        "tags",
        EXPIRY_KEY,
        ENDS_KEY,
        "permalink",
        "globs",
        "metadata",
    }
)
"""Keys that identify a block as front matter, even if other keys in it look like prose."""

TEXT_SUFFIXES: Final = (".md", ".mdc", ".markdown", ".txt")
TEXT_NAMES: Final = frozenset({".cursorrules", ".windsurfrules", ".clinerules", ".goosehints"})

_IDENTIFIER: Final = re.compile(r"[a-z_][A-Za-z0-9_.-]*")
_TOML: Final = re.compile(r"\+\+\+[ \t]*\r?\n(.*?)^\+\+\+[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_BLANK_LINES: Final = re.compile(r"(?:[ \t]*(?:\r\n|\n|\r))*")
_MAX_BLOCKS: Final = 4
_QUOTES: Final = " \t\"'[]-#"


@dataclass(frozen=True, slots=True)
class FrontValue:
    """One key of the front matter of a text file, with its value.

    Attributes:
        key: the key as written.
        line: the number of its first line in the file, from 1.
        last: the number of its last line in the file.
        text: the value as text; empty if the key has no value.
        items: the value as a list of words.
        raw: the lines of the value after the first line, as written.
    """

    key: str
    line: int
    last: int
    text: str
    items: tuple[str, ...] = ()
    raw: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A text file, split into front matter and body.

    Attributes:
        body: everything after the front matter, as written.
        body_line: the number of the first line of the body in the file, from 1.
        values: the front matter in the order of the file; a key may occur twice.
    """

    body: str
    body_line: int = 1
    values: tuple[FrontValue, ...] = field(default=())

    @property
    def by_key(self) -> Mapping[str, FrontValue]:
        """Return the front matter by key. If a key occurs twice, the first value counts."""
        found: dict[str, FrontValue] = {}
        for value in self.values:
            found.setdefault(value.key, value)
        return found


def is_text_name(name: str) -> bool:
    """Return whether a file with this name is imported as text, for example `notes.md`."""
    base = name.rpartition("/")[2].lower()
    return base.endswith(TEXT_SUFFIXES) or base in TEXT_NAMES


def strip_text_suffix(name: str) -> str:
    """Return `name` without the suffix of a text file, such as `.md` or `.MD`."""
    ending = next((each for each in TEXT_SUFFIXES if name.lower().endswith(each)), "")
    return name[: len(name) - len(ending)]


def parse_text(text: str) -> ParsedText:
    """Split a text file into front matter and body. Any text gives a result, and no line of it is dropped.

    Cost: linear.
    """
    text = text.removeprefix("\ufeff")
    if "\n" not in text:  # Line ends of classic Mac OS.
        text = text.replace("\r", "\n")
    position, values = 0, list[FrontValue]()
    for number in range(_MAX_BLOCKS):
        start = position + len(_match_prefix(_BLANK_LINES, text[position:]))
        found = _parse_block(text[start:], count_line(text, start))
        if found is None or (number and not KNOWN_KEYS & {value.key for value in found[0]}):
            break
        values += found[0]
        position = start + found[1]
    return ParsedText(text[position:], count_line(text, position), tuple(values))


def parse_end(value: str) -> str:
    """Return the normalised day or time in a value of `expires` or `ends`; empty if the value is invalid."""
    return "" if "\n" in value else parse(f"---\n{EXPIRY_KEY}: {value}\n---\n").expires or ""


def _match_prefix(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.match(text)
    return found[0] if found else ""


def _parse_block(text: str, line: int) -> tuple[list[FrontValue], int] | None:
    """Return the values of the front matter at the start of `text` and the offset of its end.

    Return None if `text` does not start with front matter.

    Args:
        text: the text, without blank lines at its start.
        line: the number of its first line in the file.
    """
    if (toml := _TOML.match(text)) is not None:
        values = _parse_toml(toml[1], line + 1)
        return None if values is None else (values, toml.end())
    front = find_front_matter(text)
    if front is None or not all(field.key for field in front.fields):
        return None
    keys = [field.key or "" for field in front.fields]
    if not keys or not (KNOWN_KEYS.intersection(keys) or all(map(_IDENTIFIER.fullmatch, keys))):
        return None
    return [_parse_value(field, line - 1) for field in front.fields], front.body


def _parse_value(field: Field, offset: int) -> FrontValue:
    number = field.line + offset
    text = _read_text(field)
    return FrontValue(
        field.key or "", number, number + len(field.rest), text, _read_items(field, text), field.rest
    )


def _read_text(field: Field) -> str:
    """Return the value of a field as plain text.

    If the strict parser rejects the value, or would drop a comment from it, return the value as written.
    """
    raw = "\n".join([field.first.strip(), *(line.strip() for line in field.rest)]).strip()
    try:
        value = (read_scalar(field.first, field.rest) or "").strip()
    except ValueError:
        return raw
    return value if value.count("#") == raw.count("#") else raw


def _read_items(field: Field, text: str) -> tuple[str, ...]:
    with suppress(ValueError):
        return tuple(filter(None, (word.strip() for word in read_list(field.first, field.rest))))
    return tuple(filter(None, (word.strip(_QUOTES) for word in re.split(r"[,\n]", text))))


def _parse_toml(text: str, line: int) -> list[FrontValue] | None:
    try:
        table = tomllib.loads(text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    lines = text.splitlines()
    starts = [(number, match[1]) for number, each in enumerate(lines) if (match := _TOML_KEY.match(each))]
    known = dict[str, int]()
    for number, key in starts:
        known.setdefault(key, number)
    return [
        FrontValue(key, line + known[key], line + known[key], *_format_toml_value(value))
        for key, value in table.items()
        if key in known
    ] or None


_TOML_KEY: Final = re.compile(r"[ \t]*\[?[\"']?([\w-]+)[\"']?\]?[ \t]*(?:=|\.|$)")


def _format_toml_value(value: object) -> tuple[str, tuple[str, ...]]:
    if isinstance(value, list):
        texts = tuple(each for each in value if isinstance(each, str))
        return ", ".join(texts), texts
    text = value.strip() if isinstance(value, str) else "" if isinstance(value, dict) else str(value)
    return text, (text,) if text else ()


# -- parts -------------------------------------------------------------------------------------------

_SECTION_SIGN: Final = re.compile(r"^[ \t]*\u00a7[ \t\r]*$", re.MULTILINE)
ADDED_MEMORIES: Final = re.compile(r"^##[ \t]+(?:Gemini|Qwen) Added Memories[ \t\r]*$", re.MULTILINE)
"""Matches the heading under which Gemini CLI and Qwen Code save facts, in a file that also has other text."""

_TASK_GROUP: Final = re.compile(r"^#[ \t]+Task Group:", re.MULTILINE)
"""Matches the first words of a part of the file in which Codex saves its memory."""

_HEADING: Final = re.compile(r"^#{1,2}[ \t]", re.MULTILINE)
_BULLET: Final = re.compile(r"[-*+][ \t]+")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a body that becomes a separate item.

    Attributes:
        line: the number of its first line in the file.
        text: the text of the part.
        is_whole: whether the part is the complete body.
    """

    line: int
    text: str
    is_whole: bool = False


def split_parts(parsed: ParsedText) -> Iterator[TextPart]:
    """Yield the parts of a body that become separate items; the complete body if it has no such parts.

    A body is split at lines that contain only `§`, or before headings `# Task Group: …`. If it has a heading
    `## Gemini Added Memories`, each bullet under that heading is a part.

    Cost: linear.
    """
    body, first = parsed.body, parsed.body_line
    if _SECTION_SIGN.search(body):
        line = first
        for part in _SECTION_SIGN.split(body):
            line += count_line(part, len(part)) - 1
            if text := part.strip():
                yield TextPart(line - count_line(part.lstrip(), len(part)) + 1, text)
    elif (added := ADDED_MEMORIES.search(body)) is not None:
        next_heading = _HEADING.search(body, added.end())
        end = next_heading.start() if next_heading else len(body)
        yield from _build_part(body, 0, added.start(), first)
        yield from _split_bullets(body, added.end(), end, first)
        yield from _build_part(body, end, len(body), first)
    elif starts := [found.start() for found in _TASK_GROUP.finditer(body)]:
        for start, end in pairwise((0, *starts, len(body))):
            yield from _build_part(body, start, end, first)
    else:
        yield TextPart(first, body, is_whole=True)


def _build_part(body: str, start: int, end: int, first: int) -> Iterator[TextPart]:
    text = body[start:end]
    if text.strip():
        lead = len(text) - len(text.lstrip())
        yield TextPart(first + count_line(body, start + lead) - 1, text.strip())


def _split_bullets(body: str, start: int, end: int, first: int) -> Iterator[TextPart]:
    group: list[str] = []
    line = first + count_line(body, start) - 1
    for number, text in enumerate(re.split("\r\n|\n|\r", body[start:end]), line):
        is_continued = bool(group) and (not text.strip() or text[0] in " \t")
        if not is_continued:
            if group:
                yield TextPart(line, "\n".join(group).strip())
            group, line = [], number
        if is_continued or text.strip():
            group.append(text if is_continued else _BULLET.sub("", text, count=1))
    if group and "\n".join(group).strip():
        yield TextPart(line, "\n".join(group).strip())
