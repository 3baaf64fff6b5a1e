"""Print facts: on a terminal as aligned columns, in a pipe as one line for each fact.

D1 On a terminal a line has the text of the fact, its age, its place (scope and topic), its trust unless that
   is the owner's, and its handle. Long texts are wrapped at words to the width of the terminal.
D2 In a pipe a line has the same fields in the same order, separated by tabs: text, time, place, trust,
   handle. The trust is always given, and the time is UTC. An entry without a handle, and every entry of
   `ls --long`, has its path as a sixth field.
D3 No field contains a control character: a tab in a text becomes a space.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from muniment.cli.terminal import color_text
from muniment.content.gates import clean_foreign_line
from muniment.errors import MunimentError

if TYPE_CHECKING:
    from muniment.operations.job_context import JobContext

MIN_TEXT_CELLS: Final = 24
"""Minimum width of the column with the text; a narrow terminal has no place, then no age and no trust.

Without a column for the trust, it follows the text in parentheses.
"""

MAX_LABEL_CHARS: Final = 30
"""Maximum length of a remark that follows a text on the same line."""

_GAP: Final = 2
"""Number of cells between two columns."""

_OWNER: Final = "owner"
_SIGN_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow"}


class FactLine(NamedTuple):
    """A fact in the output of a command.

    Attributes:
        text: the text or title of the entry; a terminal keeps its lines, a pipe joins them.
        at: the time of its last change, ISO-8601 in UTC; empty: unknown.
        place: scope and topic, see `format_place`; empty: not shown.
        trust: the trust of the text; empty: unknown.
        handle: the handle of the entry, task or review; empty: it has none.
        label: a remark, such as "expired"; it follows the text in parentheses.
        sign: `+` for a new fact, `-` for a removed one, `~` for a changed one, `=` for one that stays, a
            number for one that a person can choose; empty: none.
        path: the path of the file; empty: not shown.
    """

    text: str
    at: str = ""
    place: str = ""
    trust: str = ""
    handle: str = ""
    label: str = ""
    sign: str = ""
    path: str = ""


def format_place(path: str) -> str:
    """Return the scope and the topic of an entry with this path: `user/food/tea.md` becomes `user/food`."""
    return path.rpartition("/")[0]


def format_facts(lines: Iterable[FactLine]) -> Iterator[str]:
    """Yield the lines of text that show facts (rules D1 to D3 in the module docstring).

    Cost: on a terminal about 20 µs for each fact; texts that are not ASCII load `rich.cells`, 20 ms.
    """
    if not sys.stdout.isatty():
        yield from map(_format_record, lines)
        return
    rows = list(lines)
    yield from _Layout(rows).draw(rows)


def format_groups(groups: Iterable[tuple[str, Sequence[FactLine]]]) -> Iterator[str]:
    """Yield the lines that show groups of facts; on a terminal each group has a heading.

    Args:
        groups: the heading of each group, and its facts.
    """
    listed = list(groups)
    if not sys.stdout.isatty():
        yield from (_format_record(each) for _, facts in listed for each in facts)
        return
    layout = _Layout([each for _, facts in listed for each in facts], is_indented=True)
    for number, (heading, facts) in enumerate(listed):
        if number:
            yield ""
        yield from (color_text(each, "bold") for each in _wrap(heading, layout.width))
        yield from layout.draw(facts)


def wrap_words(text: str, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a text: on a terminal wrapped at words, in a pipe one line.

    Args:
        text: one line of text, without control characters.
        indent: the number of spaces before the second line and those after it.
    """
    if not sys.stdout.isatty():
        yield text
        return
    first, *rest = _wrap(text, _read_width(), indent)
    yield first
    yield from (" " * indent + each for each in rest)


def describe_entry(context: JobContext, path: str) -> str:
    """Return the title of an entry in quotes, with its place and handle; its path if it cannot be read."""
    from muniment.operations.listing import show_entry

    try:
        shown = show_entry(context, path)
    except MunimentError:
        return clean_foreign_line(path)
    return describe_fact(shown.title, path, shown.handle)


def describe_fact(title: str, path: str, handle: str, *others: str) -> str:
    """Return the title of an entry in quotation marks, with its place, its handle and other remarks."""
    remarks = filter(None, [clean_foreign_line(format_place(path)), handle, *others])
    return f"{quote_fact(title or path)} ({', '.join(remarks)})"


def quote_fact(text: str) -> str:
    """Return a text in quotation marks, on one line."""
    return f'"{clean_foreign_line(text)}"'


def _format_record(each: FactLine) -> str:
    text = " ".join(filter(None, [each.sign, each.text, each.label and f"({each.label})"]))
    fields = [clean_foreign_line(text), each.at, _clean_place(each.place), each.trust, each.handle]
    return "\t".join([*fields, clean_foreign_line(each.path)] if each.path else fields)


@lru_cache(maxsize=1_024)
def _clean_place(place: str) -> str:
    return clean_foreign_line(place)


class _Layout:
    """The widths of the columns on the present terminal.

    Args:
        rows: all facts that are drawn in these columns.
        is_indented: whether the facts are below a heading.
    """

    def __init__(self, rows: Sequence[FactLine], *, is_indented: bool = False) -> None:
        self.width = _read_width()
        sign_cells = max((len(each.sign) for each in rows), default=0) or int(is_indented)
        self._indent = sign_cells + 1 if sign_cells else 0
        self._ages = {each.at: _format_age(each.at) for each in rows}
        shows_trust = any(each.trust not in {"", _OWNER} for each in rows)
        places = {_clean_place(each.place) for each in rows}
        widths = {
            "age": max(map(len, self._ages.values()), default=0),
            "place": min(max(map(_count_cells, places), default=0), self.width // 3),
            "trust": max((len(each.trust) for each in rows), default=0) if shows_trust else 0,
            "handle": max((len(each.handle) for each in rows), default=0),
        }
        for name in ("place", "age", "trust"):
            if self._measure_text(widths) < MIN_TEXT_CELLS:
                widths[name] = 0
        self._widths = {name: width for name, width in widths.items() if width}
        self._text_width = max(1, self._measure_text(widths))

    def _measure_text(self, widths: Mapping[str, int]) -> int:
        return self.width - self._indent - sum(width + _GAP for width in widths.values() if width)

    def draw(self, rows: Iterable[FactLine]) -> Iterator[str]:
        """Yield the lines of the rows."""
        for each in rows:
            columns = self._draw_text(each), *self._draw_columns(each)
            for number in range(max(map(len, columns))):
                cells = [column[number] if number < len(column) else ("", "") for column in columns]
                yield self._join(each.sign if number == 0 else "", cells)
            for line in _wrap(clean_foreign_line(each.path), self.width - self._indent) if each.path else ():
                yield " " * self._indent + color_text(line, "dim")

    def _draw_text(self, each: FactLine) -> list[tuple[str, str]]:
        """Return the lines of the column with the text, each with its colour.

        All lines but the first are indented, so that no text can imitate the line of another entry.
        """
        width, lines = self._text_width, list[str]()
        indent = _GAP if width > 4 * _GAP else 0
        *texts, last = [clean_foreign_line(line) for line in each.text.splitlines() or [""]]
        has_column = "trust" in self._widths or each.trust == _OWNER
        remarks = ", ".join(filter(None, ["" if has_column else each.trust, clean_foreign_line(each.label)]))
        label = f" ({remarks})" if remarks else ""
        if len(label) > MAX_LABEL_CHARS:
            texts, last, label = [*texts, last], label.strip(), ""
        for text in (*texts, last + label):
            lines += _wrap(text, width - indent) if lines else _wrap(text, width, indent)
        return [(" " * indent + line if number else line, "") for number, line in enumerate(lines)]

    def _draw_columns(self, each: FactLine) -> Iterator[list[tuple[str, str]]]:
        values = {
            "age": (self._ages[each.at], "dim"),
            "place": (_clean_place(each.place), "dim"),
            "trust": ("" if each.trust == _OWNER else each.trust, "yellow"),
            "handle": (each.handle, "cyan"),
        }
        for name, width in self._widths.items():
            text, color = values[name]
            yield [(line, color) for line in _wrap(text, width)]

    def _join(self, sign: str, cells: Sequence[tuple[str, str]]) -> str:
        widths = [self._text_width, *self._widths.values()]
        padded = [
            (color_text(text, color) if text and color else text) + " " * (width - _count_cells(text))
            for (text, color), width in zip(cells, widths, strict=True)
        ]
        color = _SIGN_COLOURS.get(sign)
        start = (color_text(sign, color) if color else sign) + " " * (self._indent - len(sign))
        return (start + (" " * _GAP).join(padded)).rstrip()


def _read_width() -> int:
    return shutil.get_terminal_size().columns


def _wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Return the lines of a text: broken at spaces, and inside words that are longer than a line.

    Args:
        text: the text; its spaces at the beginning stay.
        width: the width of a line, in cells.
        indent: the number of cells that the caller puts before each line but the first.
    """
    if _count_cells(text) <= width:
        return [text]
    from rich.cells import chop_cells

    lines, line = list[str](), ""
    for number, word in enumerate(text.split(" ")):
        room = max(1, width - (indent if lines else 0))
        joined = f"{line} {word}" if number else word
        if _count_cells(joined) <= room:
            line = joined
            continue
        if line.strip():
            lines.append(line)
        room = max(1, width - (indent if lines else 0))
        *parts, line = chop_cells(word, room) or [word]
        lines += parts
    return [*lines, line]


def _count_cells(text: str) -> int:
    """Return the number of cells that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _format_age(at: str) -> str:
    from datetime import UTC, datetime

    from muniment.content.moments import format_age

    return format_age(at, datetime.now(UTC)) if at else ""
