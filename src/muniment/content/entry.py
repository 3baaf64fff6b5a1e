"""Parse an entry, complete its front matter, and add its provenance. This module opens no files.

Guarantees:

- C1. `parse` accepts any bytes and returns an `Entry`. A key that cannot be read counts as missing and adds a
  note.
- C2. The body cannot change the keys. If a key occurs twice, the first one counts: a line that is added below
  never changes the meaning of the lines above it. (YAML readers use the last one or reject the file.)
- C3. `complete_front_matter` adds or removes complete lines of front matter and changes no other character:
  byte order mark, line breaks, comments, order and spelling of keys stay.
- C4. After provenance was added, there is exactly one `muniment` key, for this reader and for YAML readers,
  even if the text had one before. If this reader does not understand a line that another reader may read as
  that key (`? muniment`, `&x muniment: …`, an alias), the text is rejected.

Not guaranteed: the `muniment` line proves nothing. Anyone who can edit the file can edit the line; the ledger
decides. A value may contain any character that YAML can write as an escape. The gates check the bytes of the
file and do not see such a character, so code that displays a value cleans it with `muniment.content.gates`.

Attacks on these rules are in tests/units/content/test_entry.py and test_front_matter.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Final, TypeVar

from muniment.content.exact_json import read_json_or_none
from muniment.content.expiry import End, format_utc
from muniment.content.frontmatter import (
    BYTE_ORDER_MARK,
    EXPIRY_KEY,
    MAX_FRONT_MATTER_BYTES,
    Field,
    FrontMatter,
    decode_escapes,
    escape_json,
    find_front_matter,
    find_line_break,
    quote_scalar,
    read_list,
    read_scalar,
    starts_front_matter,
)
from muniment.content.gates import clean_line
from muniment.errors import ContentRejected, TooLarge
from muniment.kernel.names import RelPath
from muniment.kernel.path import FILE_SUFFIX, fold


class EntryType(StrEnum):
    """The kind of an entry, with the names used by existing memory directories."""

    USER = "user"
    """Facts about the user."""
    FEEDBACK = "feedback"
    """Instructions for how to work."""
    PROJECT = "project"
    """Facts about ongoing work."""
    REFERENCE = "reference"
    """Locations where something can be found."""


T = TypeVar("T")

TYPES: Final[tuple[str, ...]] = tuple(EntryType)
"""Valid values of `type`."""

PROVENANCE_KEY: Final = "muniment"

ENDS_KEY: Final = "ends"
"""Key of an end date that was inferred from the text. After this date recall still finds the entry."""

PINNED_FOLDER: Final = "pinned"
"""The folder of a scope whose entries come first. Upper and lower case do not matter. Policies protect the
folder.
"""

MAX_NAME_CHARS: Final = 80
"""Maximum number of characters of a name that is derived or listed: short enough for a heading."""

MAX_DESCRIPTION_CHARS: Final = 150
"""Maximum number of characters of a description that is derived or listed: about two lines of a terminal."""

_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*)|)")
_BLANK_OR_BACKSLASH: Final = re.compile(r"[\s\\]+")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_DAY_CHARS: Final = len("2026-12-31")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ]|\Z)")
_MARKER: Final = re.compile(r"(?:[-*+>]|[0-9]{1,9}[.)])[ \t]+")


def is_pinned(rel: str) -> bool:
    """Return whether a path of a root is in the folder `pinned/`, in which runs change nothing."""
    return fold(rel.partition("/")[0]) == PINNED_FOLDER and "/" in rel


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of an entry file.

    Attributes:
        name: the name in the front matter, without outer white space; None: missing, empty or not readable.
        description: the description in the front matter, read like `name`.
        type: one of `TYPES`, or None.
        keywords: the keywords in the front matter, without empty ones.
        expires: the last day on which the entry is visible, or a time in UTC; None: missing or not a valid
            date.
        ends: the last day on which the fact is true, inferred from its text; None: missing or not a valid
            date.
        muniment: the JSON object of the provenance line, unchecked; None: missing or not readable.
        body: the text after the front matter.
        notes: the problems found, each with its line; they never contain text of the file.
        text: the complete text of the file.
        front: the position of the front matter in `text`; None: missing.
    """

    name: str | None
    description: str | None
    type: str | None
    keywords: tuple[str, ...]
    expires: str | None
    ends: date | None
    muniment: Mapping[str, object] | None
    body: str
    notes: tuple[str, ...]
    text: str
    front: FrontMatter | None

    @property
    def has_end_date(self) -> bool:
        """Return whether the entry expires or ends."""
        return self.expires is not None or self.ends is not None

    def is_valid_until(self, end: End | None) -> bool:
        """Return whether the entry is valid and visible at least until `end`.

        Args:
            end: the end of a fact; None: the fact has no end.
        """
        if end is None:
            return not self.has_end_date
        is_visible = self.expires is None or (end.is_explicit and self.expires[:_DAY_CHARS] >= str(end.day))
        return is_visible and (self.ends is None or self.ends >= end.day)

    def has_same_end(self, end: End | None) -> bool:
        """Return whether the entry expires or ends exactly as a fact with this end would.

        Args:
            end: the end of the fact; None: the fact has no end.
        """
        return (self.expires and self.expires[:_DAY_CHARS], self.ends and str(self.ends)) == (
            str(end.day) if end is not None and end.is_explicit else None,
            str(end.day) if end is not None and not end.is_explicit else None,
        )


@dataclass(frozen=True, slots=True)
class Titles:
    """The name and description of an entry for display; neither is ever empty."""

    name: str
    description: str


def parse(data: bytes | str) -> Entry:
    """Parse an entry file. Any content is accepted; problems are listed in the notes of the entry.

    Args:
        data: the file, or its first bytes. Bytes that are not UTF-8 become U+FFFD, with a note.
    """
    notes: list[str] = []
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    if isinstance(data, bytes) and text.encode() != data:
        notes.append("the file is not UTF-8 text")
    front = find_front_matter(text)
    if front is None:
        if starts_front_matter(text):
            notes.append(f"the front matter is not closed within {MAX_FRONT_MATTER_BYTES} bytes")
        body = text.removeprefix(BYTE_ORDER_MARK)
        return Entry(None, None, None, (), None, None, None, body, tuple(notes), text, None)
    fields: dict[str, Field] = {}
    for field in front.fields:
        if field.key is None:
            notes.append(f"line {field.line} is not `key: value`")
        elif field.key in fields:
            notes.append(f"line {field.line}: duplicate {_describe_key(field.key)}; the first one counts")
        else:
            fields[field.key] = field
    return Entry(
        name=_read_value(fields.get("name"), _read_text, notes),
        description=_read_value(fields.get("description"), _read_text, notes),
        type=_read_value(fields.get("type"), _read_type, notes),
        keywords=_read_value(fields.get("keywords"), _read_keywords, notes) or (),
        expires=_read_value(fields.get(EXPIRY_KEY), _read_time, notes),
        ends=_read_value(fields.get(ENDS_KEY), _read_day, notes),
        muniment=_read_value(fields.get(PROVENANCE_KEY), _read_object, notes),
        body=text[front.body :],
        notes=tuple(notes),
        text=text,
        front=front,
    )


def read_titles(entry: Entry, rel_path: RelPath | str) -> Titles:
    """Return name and description of an entry; derive the ones that the front matter does not have.

    The name comes from the front matter, else from the first heading of the body, else it is the file name
    without suffix. The description comes from the front matter, else it is the first line of prose in the
    body, else the name. A line of prose is not blank, not a heading and not in a code block. A derived text
    is one line of at most `MAX_NAME_CHARS` or `MAX_DESCRIPTION_CHARS` characters without invisible ones.

    Args:
        entry: the entry.
        rel_path: the path of its file.
    """
    if entry.name is not None and entry.description is not None:
        return Titles(entry.name, entry.description)
    heading = prose = ""
    for is_heading, text in _list_body_lines(entry.body):
        heading = heading or (text if is_heading else "")
        prose = prose or ("" if is_heading else text)
        if heading and prose:
            break
    stem = rel_path.rpartition("/")[2].removesuffix(FILE_SUFFIX)
    name = entry.name or shorten(heading or clean_line(stem) or "unnamed", MAX_NAME_CHARS)
    return Titles(name, entry.description or shorten(prose or name, MAX_DESCRIPTION_CHARS))


def complete_front_matter(
    entry: Entry,
    labels: Mapping[str, str],
    provenance: Mapping[str, object] | None = None,
    changed: Collection[str] = (),
) -> str:
    """Return the text of `entry` with front matter that has the keys of `labels`.

    An existing key stays unchanged, readable or not, unless it is in `changed`. Missing keys are added after
    the last line. No other character of the text changes.

    Args:
        entry: the entry.
        labels: the values by key.
        provenance: if given, it replaces every `muniment` key, on the last line of the front matter.
        changed: keys whose existing lines are removed first.

    Raises:
        TooLarge: the front matter would be longer than `MAX_FRONT_MATTER_BYTES`.
        ContentRejected: another YAML reader may read one of the lines as the `muniment` key; the `rule` of
            the error is `front-matter`.
    """
    fields = entry.front.fields if entry.front is not None else ()
    present = {field.key for field in fields} - set(changed)
    lines = [f"{key}: {quote_scalar(value)}" for key, value in labels.items() if key not in present]
    removed = [field for field in fields if field.key in changed]
    if provenance is not None:
        _require_no_hidden_key(entry.text, fields)
        removed = [field for field in fields if field.key == PROVENANCE_KEY or field in removed]
        value = escape_json(json.dumps(dict(provenance), ensure_ascii=False))
        lines.append(f"{PROVENANCE_KEY}: {value}")
    result = _edit_front_matter(entry.text, entry.front, removed, lines)
    if find_front_matter(result) is None:
        raise TooLarge(f"the front matter would be longer than {MAX_FRONT_MATTER_BYTES} bytes; shorten it")
    return result


def shorten(text: str, limit: int) -> str:
    """Return `text` cut to `limit` characters, ending in an ellipsis if anything was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _require_no_hidden_key(text: str, fields: Sequence[Field]) -> None:
    """Reject lines that another YAML reader may read as the `muniment` key, unlike this reader."""
    for field in fields:
        if field.key is not None:
            continue
        written_out = decode_escapes(text[field.start : field.end])
        if "*" in written_out or PROVENANCE_KEY in _BLANK_OR_BACKSLASH.sub("", written_out):
            raise ContentRejected(
                f"line {field.line} of the front matter is not `key: value`; correct or remove it",
                rule="front-matter",
            )


def _edit_front_matter(
    text: str, front: FrontMatter | None, removed: Sequence[Field], lines: Sequence[str]
) -> str:
    if front is None:
        mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
        newline = find_line_break(text)
        block = "".join(f"{line}{newline}" for line in ("---", *lines, "---"))
        return mark + block + text.removeprefix(BYTE_ORDER_MARK)
    parts: list[str] = []
    position = 0
    for field in removed:
        parts.append(text[position : field.start])
        position = field.end
    parts.append(text[position : front.close])
    return "".join([*parts, *(f"{line}{front.newline}" for line in lines), text[front.close :]])


def _read_value(field: Field | None, reader: Callable[[str, Sequence[str]], T], notes: list[str]) -> T | None:
    """Return the value of a key. If it cannot be read, add a note and return None."""
    if field is None:
        return None
    try:
        return reader(field.first, field.rest)
    except ValueError as problem:
        notes.append(f"line {field.line}: {field.key} {problem}")
        return None


def _read_text(first: str, rest: Sequence[str]) -> str | None:
    return (read_scalar(first, rest) or "").strip() or None


def _read_type(first: str, rest: Sequence[str]) -> str | None:
    value = _read_text(first, rest)
    if value is not None and value not in TYPES:
        raise ValueError(f"is not one of {', '.join(TYPES)}")
    return value


def _read_keywords(first: str, rest: Sequence[str]) -> tuple[str, ...]:
    return tuple(filter(None, (item.strip() for item in read_list(first, rest))))


def _read_time(first: str, rest: Sequence[str]) -> str | None:
    value = _read_text(first, rest)
    if value is None:
        return None
    with suppress(ValueError, OverflowError):
        if _DATE.match(value):  # fromisoformat alone also reads a bare number as a date
            found = datetime.fromisoformat(value)
            return (
                value if len(value) == _DAY_CHARS else format_utc(found.replace(tzinfo=found.tzinfo or UTC))
            )
    raise ValueError("is not a date such as 2026-12-31")


def _read_day(first: str, rest: Sequence[str]) -> date | None:
    value = _read_time(first, rest)
    return None if value is None else date.fromisoformat(value[:_DAY_CHARS])


def _read_object(first: str, rest: Sequence[str]) -> Mapping[str, object]:
    value = None if rest else read_json_or_none(first)
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object on one line")  # noqa: TRY004  like any other value
    return value


def _describe_key(key: str) -> str:
    """Return the name of a known key, for a note; else a general phrase, because notes quote no file text."""
    return (
        key
        if key in ("name", "description", "type", "keywords", EXPIRY_KEY, ENDS_KEY, PROVENANCE_KEY)
        else "key of the same name"
    )


def _list_body_lines(body: str) -> Iterator[tuple[bool, str]]:
    """Yield the lines of a body as (is a heading, text), without code blocks and empty lines."""
    fence = ""
    for line in body.splitlines():
        marker = _FENCE.match(line)
        if fence:
            if marker and marker[1].startswith(fence) and not line.strip(" \t`~"):
                fence = ""
            continue
        if marker:
            fence = marker[1]
            continue
        heading = _HEADING.fullmatch(line)
        raw = _without_closing_hashes(heading[1] or "") if heading else line
        # Only ten times the limit is read, so that a megabyte on one line costs no more than a short one.
        text = clean_line(raw[: 10 * MAX_DESCRIPTION_CHARS])
        if heading is None and (found := _MARKER.match(text)):
            text = text[found.end() :]
        if text:
            yield heading is not None, text


def _without_closing_hashes(text: str) -> str:
    text = text.rstrip()
    bare = text.rstrip("#")
    return bare if not bare or bare[-1] in " \t" else text
