"""Compare the source of an import with the memory: no line of the source is lost without a report.

The check does not use the reason why a text was left out, so it also covers unexpected formats and bugs. A
line counts as imported if an entry has it as a line or as a value of its front matter. White space and list
markers are ignored. For JSON, the strings and numbers count instead of lines.

Separate from `importing.py`, which creates the entries: this module only compares the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from muniment.content.entry import parse
from muniment.content.gates import clean_line
from muniment.transfer.formats import STRUCTURE, read_json_rows
from muniment.transfer.source_text import FrontValue, is_text_name, parse_end, parse_text

_MARKER: Final = re.compile(
    r"(?:[-*+>\u2022]|#{1,6}|[0-9]{1,9}[.)])?\s*(?:\[[ xX]\]\s+)?(?:\[[0-9-]{10}\]\.?\s*)?"
)
_MAX_LISTED_KEYS: Final = 12
"""Maximum number of keys that one line of the report lists."""

_KEY_CHARS: Final = 40


class MissingLines(NamedTuple):
    """Lines of a source file that are neither in the memory nor in a reported item.

    Attributes:
        name: the name of the file.
        lines: the numbers of the lines, such as `2-4, 7`; for a JSON list, the numbers of its members.
        reason: the kind of lines, for the report, such as `separators`.
    """

    name: str
    lines: str
    reason: str


class ImportedText:
    """The lines that an import wrote to the memory, and the lines of the items that it reported."""

    def __init__(self) -> None:
        self._imported: set[int] = set()
        self._reported: dict[str, set[int]] = {}

    def add(self, *texts: str) -> None:
        """Count each text, and each line of it, as imported."""
        self._imported |= _hash_lines(texts)

    def add_reported(self, name: str, *texts: str) -> None:
        """Count the texts of an item in the report as reported, only for the file of the item.

        Args:
            name: the name of the item: a file and a number, such as `a.md:3`; for JSON, it can be any other
                name.
            texts: the texts of the item.
        """
        numbered = re.fullmatch(r"(.+):[0-9]+", name, re.DOTALL)
        self._reported.setdefault(numbered[1] if numbered else "", set()).update(_hash_lines(texts))

    def add_entry(self, data: bytes | str) -> None:
        """Count the body and the front matter of an entry as imported.

        Args:
            data: the file of the entry.
        """
        entry = parse(data)
        self.add(
            "---", entry.body, *entry.keywords, *filter(None, (entry.name, entry.description, entry.type))
        )
        self.add(*(str(end) for end in (entry.expires, entry.ends) if end is not None))

    def is_covered(self, text: str, name: str) -> bool:
        """Return whether a text of a file was imported or reported, as a whole or each of its lines.

        Args:
            text: the text.
            name: the name of its file.
        """
        flat = clean_line(text)
        named = self._reported.get(name, set())
        if not flat or any(
            each in self._imported or each in named for each in (hash(flat), hash(_strip_marker(flat)))
        ):
            return True
        lines = text.splitlines()
        return len(lines) > 1 and all(self.is_covered(line, name) for line in lines)

    def find_missing(
        self, files: Mapping[str, bytes], reported: Iterable[str] = ()
    ) -> Iterator[MissingLines]:
        """Yield the lines of the source files that were neither imported nor reported.

        Args:
            files: the bytes of each file, by name.
            reported: the names of files that the report lists as a whole; they are not compared.

        Cost: linear.
        """
        skipped = set(reported)
        for name, data in files.items():
            if name in skipped:
                continue
            text = data.decode("utf-8", "replace").removeprefix("\ufeff")
            yield from (
                self._find_missing_lines(name, text)
                if is_text_name(name)
                else self._find_missing_json(name, text)
            )

    def _find_missing_lines(self, name: str, text: str) -> Iterator[MissingLines]:
        lines = [line.replace("\0", "") for line in re.split("\r\n|\n|\r", text)]
        missing = {number for number, line in enumerate(lines, 1) if not self.is_covered(line, name)}
        keys: dict[str, list[int]] = {}
        for value in parse_text(text).values:
            numbers = missing.intersection(range(value.line, value.last + 1))
            missing -= numbers
            if numbers and not self._has_value(value, name):
                keys.setdefault(value.key, []).extend(sorted(numbers))
        if keys:
            numbers = {number for each in keys.values() for number in each}
            yield MissingLines(name, format_ranges(numbers), f"front matter: {_list_keys(keys)}")
        if wordless := {number for number in missing if not re.search(r"\w", lines[number - 1])}:
            yield MissingLines(name, format_ranges(wordless), "separators")
        if missing := missing - wordless:
            yield MissingLines(name, format_ranges(missing), "not in an entry")

    def _has_value(self, value: FrontValue, name: str) -> bool:
        tags = [word.lstrip("#") for word in value.items if value.key in {"keywords", "tags"}]
        has_tags = bool(tags) and all(self.is_covered(word, name) for word in tags)
        return re.search(r"\w", value.text) is not None and (
            has_tags or self.is_covered(parse_end(value.text) or value.text, name)
        )

    def _find_missing_json(self, name: str, text: str) -> Iterator[MissingLines]:
        keys: dict[str, dict[int, None]] = {}
        for row_name, row in read_json_rows(name, text, hook=_Pairs):
            for number, key, leaf in _collect_leaves(int(row_name.rpartition(":")[2]), row):
                if (
                    not self.is_covered(leaf, name)
                    and not self.is_covered(leaf, "")
                    and (key, leaf) not in STRUCTURE
                ):
                    keys.setdefault(key, {})[number] = None
        by_lines: dict[str, list[str]] = {}
        for key, numbers in keys.items():
            by_lines.setdefault(format_ranges(numbers), []).append(key)
        for lines, found in by_lines.items():
            yield MissingLines(name, lines, f"values of {_list_keys(found)}")


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The members of a JSON object as a list, so that a key that occurs twice loses no value."""

    members: list[tuple[str, object]]


def _collect_leaves(number: int, row: object) -> Iterator[tuple[int, str, str]]:
    """Yield each string and number in a JSON row, with the number of the row and its key.

    If the row contains a list of rows, those rows are numbered instead.
    """
    stack: list[tuple[int, str, object, bool]] = [(number, "a row", row, True)]
    while stack:
        row_number, key, value, is_top = stack.pop()
        if isinstance(value, _Pairs):
            stack += [
                (row_number, each, inner, is_top and isinstance(inner, list)) for each, inner in value.members
            ]
        elif isinstance(value, list):
            rows = enumerate(value, 1)
            stack += [(index if is_top else row_number, key, inner, False) for index, inner in rows]
        elif isinstance(value, str):
            yield row_number, key, value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield row_number, key, str(value)


def _hash_lines(texts: Iterable[str]) -> set[int]:
    found: set[int] = set()
    for text in texts:
        found.add(hash(clean_line(text)))
        for line in text.splitlines():
            flat = clean_line(line)
            found |= {hash(flat), hash(_strip_marker(flat))}
    return found


def _strip_marker(flat: str) -> str:
    found = _MARKER.match(flat)
    return flat[found.end() :].strip() if found else flat


def _list_keys(keys: Iterable[str]) -> str:
    names = sorted({clean_line(key)[:_KEY_CHARS] for key in keys})
    more = f" and {len(names) - _MAX_LISTED_KEYS} more" if len(names) > _MAX_LISTED_KEYS else ""
    return ", ".join(names[:_MAX_LISTED_KEYS]) + more


def format_ranges(numbers: Iterable[int]) -> str:
    """Return line numbers as text with ranges, such as `2-4, 7`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
