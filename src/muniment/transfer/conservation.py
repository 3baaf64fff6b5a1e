"""Compare the input of an import with the memory: no line of a source is lost without a report.

The check does not know why a text was left out. Therefore it also covers unexpected formats and bugs. A line
counts as imported if an entry has it as a line or as a value of its front matter, ignoring white space and
list markers. For JSON the texts and numbers count instead of lines.

Separate from `importing.py`, which creates the entries: this module only compares the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from muniment.content.entry import parse
from muniment.content.gates import one_line
from muniment.transfer.formats import STRUCTURE, json_rows
from muniment.transfer.source_text import FrontValue, is_text_name, parse_text, read_end

_MARKER: Final = re.compile(
    r"(?:[-*+>\u2022]|#{1,6}|[0-9]{1,9}[.)])?\s*(?:\[[ xX]\]\s+)?(?:\[[0-9-]{10}\]\.?\s*)?"
)
_SHOWN_KEYS: Final = 12
"""Limit of the keys that one line of the report lists."""

_KEY_CHARS: Final = 40


class MissingLines(NamedTuple):
    """Lines of a source that are neither in the memory nor in a reported item.

    Attributes:
        name: of the file.
        lines: their numbers, such as `2-4, 7`; for a JSON list the numbers of its members.
        reason: what kind of lines they are.
    """

    name: str
    lines: str
    reason: str


class TakenText:
    """The lines that are in the memory and, for each file, the lines of reported items."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._named: dict[str, set[int]] = {}

    def add(self, *texts: str) -> None:
        """Count each text, and each line of it, as imported."""
        self._taken |= _hashes(texts)

    def add_named(self, name: str, *texts: str) -> None:
        """Count the texts of a reported item as reported, only for its file.

        Args:
            name: of the item: a file and a number, or, for JSON, any other name.
            texts: of the item.
        """
        numbered = re.fullmatch(r"(.+):[0-9]+", name, re.DOTALL)
        self._named.setdefault(numbered[1] if numbered else "", set()).update(_hashes(texts))

    def add_entry(self, data: bytes | str) -> None:
        """Count the body and the front matter of an entry as imported."""
        entry = parse(data)
        self.add(
            "---", entry.body, *entry.keywords, *filter(None, (entry.name, entry.description, entry.type))
        )
        self.add(*(str(end) for end in (entry.expires, entry.ends) if end is not None))

    def has(self, text: str, name: str) -> bool:
        """Return whether a text of a file is imported or reported, as a whole or line by line."""
        flat = one_line(text)
        named = self._named.get(name, set())
        if not flat or any(
            each in self._taken or each in named for each in (hash(flat), hash(_unmarked(flat)))
        ):
            return True
        lines = text.splitlines()
        return len(lines) > 1 and all(self.has(line, name) for line in lines)

    def missing(self, files: Mapping[str, bytes], named: Iterable[str] = ()) -> Iterator[MissingLines]:
        """Yield the lines of some files that were not imported.

        Args:
            files: the bytes of each, by its name.
            named: files that the report lists as a whole.

        Cost: linear.
        """
        whole = set(named)
        for name, data in files.items():
            if name in whole:
                continue
            text = data.decode("utf-8", "replace").removeprefix("\ufeff")
            yield from (
                self._missing_lines(name, text) if is_text_name(name) else self._missing_json(name, text)
            )

    def _missing_lines(self, name: str, text: str) -> Iterator[MissingLines]:
        lines = [line.replace("\0", "") for line in re.split("\r\n|\n|\r", text)]
        missing = {number for number, line in enumerate(lines, 1) if not self.has(line, name)}
        keys: dict[str, list[int]] = {}
        for value in parse_text(text).values:
            numbers = missing.intersection(range(value.line, value.last + 1))
            missing -= numbers
            if numbers and not self._has_value(value, name):
                keys.setdefault(value.key, []).extend(sorted(numbers))
        if keys:
            numbers = {number for each in keys.values() for number in each}
            yield MissingLines(name, ranges(numbers), f"front matter: {_listed(keys)}")
        if wordless := {number for number in missing if not re.search(r"\w", lines[number - 1])}:
            yield MissingLines(name, ranges(wordless), "separators")
        if missing := missing - wordless:
            yield MissingLines(name, ranges(missing), "not in an entry")

    def _has_value(self, value: FrontValue, name: str) -> bool:
        words = [word.lstrip("#") for word in value.words if value.key in {"keywords", "tags"}]
        are_words = bool(words) and all(self.has(word, name) for word in words)
        return re.search(r"\w", value.text) is not None and (
            are_words or self.has(read_end(value.text) or value.text, name)
        )

    def _missing_json(self, name: str, text: str) -> Iterator[MissingLines]:
        keys: dict[str, dict[int, None]] = {}
        for where, row in json_rows(name, text, hook=_Pairs):
            for number, key, leaf in _leaves(int(where.rpartition(":")[2]), row):
                if not self.has(leaf, name) and not self.has(leaf, "") and (key, leaf) not in STRUCTURE:
                    keys.setdefault(key, {})[number] = None
        by_lines: dict[str, list[str]] = {}
        for key, numbers in keys.items():
            by_lines.setdefault(ranges(numbers), []).append(key)
        for lines, found in by_lines.items():
            yield MissingLines(name, lines, f"values of {_listed(found)}")


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The members of a JSON object; a key may occur twice, and no value is dropped."""

    members: list[tuple[str, object]]


def _leaves(number: int, row: object) -> Iterator[tuple[int, str, str]]:
    """Yield the texts and numbers in a JSON value with their row and key. Rows of a list are numbered."""
    stack: list[tuple[int, str, object, bool]] = [(number, "a row", row, True)]
    while stack:
        at, key, value, is_top = stack.pop()
        if isinstance(value, _Pairs):
            stack += [(at, each, inner, is_top and isinstance(inner, list)) for each, inner in value.members]
        elif isinstance(value, list):
            rows = enumerate(value, 1)
            stack += [(place if is_top else at, key, inner, False) for place, inner in rows]
        elif isinstance(value, str):
            yield at, key, value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield at, key, str(value)


def _hashes(texts: Iterable[str]) -> set[int]:
    found: set[int] = set()
    for text in texts:
        found.add(hash(one_line(text)))
        for line in text.splitlines():
            flat = one_line(line)
            found |= {hash(flat), hash(_unmarked(flat))}
    return found


def _unmarked(flat: str) -> str:
    found = _MARKER.match(flat)
    return flat[found.end() :].strip() if found else flat


def _listed(keys: Iterable[str]) -> str:
    names = sorted({one_line(key)[:_KEY_CHARS] for key in keys})
    more = f" and {len(names) - _SHOWN_KEYS} more" if len(names) > _SHOWN_KEYS else ""
    return ", ".join(names[:_SHOWN_KEYS]) + more


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, such as `2-4, 7`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
