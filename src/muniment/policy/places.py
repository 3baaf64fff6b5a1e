"""Where things stand in a policy file: `tomllib` gives values, this gives the lines that they stand on.

A scan of our own walks the text from key to key and value to value, decoding nothing but keys. It is
believed only if it found exactly the keys, tables and elements that `tomllib` found; otherwise nothing has
a line. So a text that fools it costs a reader the line.

    P1  Lines count from 1. A table stands where its header is, a key where it begins, an element of a list
        where it begins.
    P2  Comments, and what looks like a table or key in a string, are neither.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

Loc = tuple[str | int, ...]
"""Keys and indexes from the top of the file, as pydantic has them: `("deny", 1, "paths", 0)`."""

_QUOTED: Final = r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'"
_PART: Final = rf"(?:{_QUOTED}|[A-Za-z0-9_-]+)"
_KEY: Final = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")
_BLANK: Final = re.compile(r"[ \t]*")
_BLANK_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_LONG: Final = r'"""(?s:[^\\]|\\.)*?""""{0,2}' + r"|'''(?s:.)*?''''{0,2}"
"""A long string; one or two quotes before the three that close it belong to it."""

_SCALAR: Final = re.compile(f"{_LONG}|{_QUOTED}" + r"|[^,\[\]{}#\r\n]+")
"""What is no string is a number, a boolean or a date, and a date may hold a space."""


def line_of(
    text: str, kind: str, name: str | int | None = None, key: str | None = None, value: object = None
) -> int | None:
    """The line of a table, of a key in it, or of an element of the list that the key has.

    Args:
        text: a policy file.
        kind: a section, or a key at the top: `deny`, `limits`, `test`, `schema`.
        name: which one, where there are several: the id of a rule or quota, the number of a test from 1;
            None for a section that stands once.
        key: in that table; None for the table itself.
        value: an element of the key's list, or a key of the key's table; None for the key itself.

    Returns:
        None if there is no such thing, if the text is not TOML, or if it is beyond the scan.
    """
    here, lines = _read(text)
    loc: Loc = ()
    for step in (kind, name, key, value):
        if step is None:
            continue
        part = _part(here, step)
        if part is None:
            return None
        here, loc = here[part], (*loc, part)
    return lines.get(loc)


def line_at(text: str, loc: Loc) -> int | None:
    """The line of what stands at `loc`, or of the nearest thing around it; None if nothing is known."""
    lines = lines_of(text)
    return next((lines[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in lines), None)


def lines_of(text: str) -> Mapping[Loc, int]:
    """The line of every table, key and element; empty if the text is not TOML or beyond the scan."""
    return _read(text)[1]


@lru_cache(maxsize=16)
def _read(text: str) -> tuple[Any, dict[Loc, int]]:
    """What `tomllib` returned, and the lines of it."""
    try:
        data = tomllib.loads(text)
        expected, scan = set(_locs(data, ())), _Scan(text)
        scan.file()
    except (_Lost, RecursionError, ValueError):  # TOMLDecodeError is a ValueError.
        return {}, {}
    return data, scan.lines if set(scan.lines) == expected else {}


def _part(here: Any, step: object) -> Any:
    """The key or index by which `step` stands in a table or list; None if it does not."""
    if isinstance(here, dict):
        return step if step in here else None
    if not isinstance(here, list):
        return None
    for index, each in enumerate(here):
        known = (each.get("id"), index + 1) if isinstance(each, dict) else (each,)
        if step in known:
            return index
    return None


class _Lost(Exception):
    """The text is not TOML as the scan knows it."""


class _Scan:
    """One walk through a text that `tomllib` has read."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Loc, int] = {}
        self._text, self._at = text, 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._latest: dict[Loc, int] = {}

    def file(self) -> None:
        here: Loc = ()
        while self._skip(_BLANK_LINES) < len(self._text):
            if self._take("[["):
                here = self._header("]]")
            elif self._take("["):
                here = self._header("]")
            else:
                self._pair(here)

    def _header(self, end: str) -> Loc:
        """The place that the keys below a header belong to."""
        line = self._line()
        self._skip(_BLANK)
        here: Loc = ()
        *around, last = self._key()
        for part in around:
            here = (*here, part)
            self.lines.setdefault(here, line)
            if here in self._latest:  # `[a.b]` below `[[a]]` belongs to the latest `a`.
                here = (*here, self._latest[here])
        here = (*here, last)
        if end == "]]":
            self.lines.setdefault(here, line)
            self._latest[here] = self._latest.get(here, -1) + 1
            here = (*here, self._latest[here])
        self.lines[here] = line
        self._skip(_BLANK)
        self._expect(end)
        return here

    def _pair(self, here: Loc) -> None:
        line = self._line()
        for part in self._key():
            here = (*here, part)
            self.lines.setdefault(here, line)
        self._skip(_BLANK)
        self._expect("=")
        self._skip(_BLANK)
        self._value(here)

    def _value(self, loc: Loc) -> None:
        if self._take("["):
            index = 0
            while self._goes_on("]"):
                self.lines[*loc, index] = self._line()
                self._value((*loc, index))
                index += 1
        elif self._take("{"):
            while self._goes_on("}"):
                self._pair(loc)
        else:
            self._match(_SCALAR)

    def _goes_on(self, end: str) -> bool:
        """Whether another element follows, past a comma; the end is passed, too."""
        self._skip(_BLANK_LINES)
        if self._take(","):
            self._skip(_BLANK_LINES)
        return not self._take(end)

    def _key(self) -> tuple[str, ...]:
        found: Any = tomllib.loads(f"{self._match(_KEY)} = 0")
        parts: list[str] = []
        while isinstance(found, dict):
            ((part, found),) = found.items()
            parts.append(part)
        return tuple(parts)

    def _line(self) -> int:
        return bisect_right(self._newlines, self._at) + 1

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _Lost
        self._at = found.end()
        return found[0]

    def _skip(self, pattern: re.Pattern[str]) -> int:
        self._match(pattern)
        return self._at

    def _take(self, token: str) -> bool:
        is_there = self._text.startswith(token, self._at)
        self._at += len(token) if is_there else 0
        return is_there

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise _Lost


def _locs(value: Any, loc: Loc) -> Iterator[Loc]:
    """The place of everything in what `tomllib` returned."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in inside:
        yield (*loc, part)
        yield from _locs(inner, (*loc, part))
