"""Print facts: on a terminal as aligned columns, in a pipe as one line for each fact.

D1 On a terminal a line has the text of the fact, its age, its place (scope and topic), its trust unless that
   is the owner's, and its handle. Long texts are wrapped at words to the width of the terminal.
D2 In a pipe a line has the same fields in the same order, separated by tabs: text, time, place, trust,
   handle. The trust is always given, and the time is UTC.
D3 No field contains a control character: a tab in a text becomes a space.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from muniment.cli.terminal import has_color
from muniment.content.gates import clean_foreign_line
from muniment.errors import MunimentError

if TYPE_CHECKING:
    from rich.console import Console

    from muniment.operations.job_context import JobContext

MIN_TEXT_CELLS: Final = 24
"""Minimum width of the column with the text; on a narrower terminal, the place is left out."""

_GAP: Final = 2
"""Number of cells between two columns."""
_OWNER: Final = "owner"
_SIGN_STYLES: Final = {"+": "green", "-": "red", "~": "yellow"}


@dataclass(frozen=True, slots=True)
class FactLine:
    """A fact in the output of a command.

    Attributes:
        text: the text or title of the entry; a terminal keeps its lines, a pipe joins them.
        at: the time of its last change, ISO-8601 in UTC; empty: unknown.
        place: scope and topic, see `format_place`; empty: not shown.
        trust: the trust of the text; empty: unknown.
        handle: the handle of the entry, task or review; empty: it has none.
        label: a remark, such as "expired"; it follows the text in parentheses.
        sign: `+` for a new fact, `-` for a removed one, `~` for a changed one; empty: none.
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

    Cost: on a terminal about 60 ms to load `rich`, and 0.5 ms for each fact.
    """
    if not sys.stdout.isatty():
        for each in lines:
            yield _format_record(each)
        return
    rows = list(lines)
    yield from _draw_rows(rows, _Layout(rows))


def format_groups(groups: Iterable[tuple[str, Sequence[FactLine]]]) -> Iterator[str]:
    """Yield the lines that show groups of facts; on a terminal each group has a heading.

    Args:
        groups: the heading of each group, and its facts.
    """
    listed = list(groups)
    if not sys.stdout.isatty():
        yield from format_facts(each for _, facts in listed for each in facts)
        return
    layout = _Layout([each for _, facts in listed for each in facts], is_indented=True)
    for number, (heading, facts) in enumerate(listed):
        if number:
            yield ""
        yield from layout.render(heading, "bold")
        yield from _draw_rows(facts, layout)


def wrap_words(text: str, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a text: on a terminal wrapped at words, in a pipe one line.

    Args:
        text: one line of text, without control characters.
        indent: the number of spaces before the second line and those after it.
    """
    if not sys.stdout.isatty():
        yield text
        return
    from rich.cells import cell_len

    layout = _Layout(())
    if cell_len(text) <= layout.width:
        yield text
        return
    first, *rest = layout.wrap(text, layout.width - indent)
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
    fields = [text, each.at, each.place, each.trust, each.handle, *([each.path] if each.path else [])]
    return "\t".join(map(clean_foreign_line, fields))


class _Layout:
    """The widths of the columns on the present terminal, and the console that draws them.

    Args:
        rows: all facts that are drawn in these columns.
        is_indented: whether the facts are below a heading.
    """

    def __init__(self, rows: Sequence[FactLine], *, is_indented: bool = False) -> None:
        from rich.console import Console

        self.console: Console = Console(
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=False,
            force_terminal=True,
            no_color=not has_color(),
            color_system="standard" if has_color() else None,
        )
        self.width = self.console.width
        self.indent = 1 + _GAP if is_indented or any(each.sign for each in rows) else 0
        self.ages = {each.at: _format_age(each.at) for each in rows}
        shows_trust = any(each.trust not in {"", _OWNER} for each in rows)
        columns = {
            "age": max(map(len, self.ages.values()), default=0),
            "place": max((_count_cells(each.place) for each in rows), default=0),
            "trust": max((len(each.trust) for each in rows), default=0) if shows_trust else 0,
            "handle": max((len(each.handle) for each in rows), default=0),
        }
        columns["place"] = min(columns["place"], self.width // 3)
        if self._measure_text(columns) < MIN_TEXT_CELLS:
            columns["place"] = 0
        self.columns = {name: width for name, width in columns.items() if width}

    def _measure_text(self, columns: dict[str, int]) -> int:
        return self.width - self.indent - sum(width + _GAP for width in columns.values() if width)

    def measure_text(self) -> int:
        """Return the width of the column with the text, in cells."""
        return max(1, self._measure_text(self.columns))

    def render(self, item: Any, style: str = "") -> Iterator[str]:
        """Yield the lines that the console prints for an item."""
        with self.console.capture() as captured:
            self.console.print(item, style=style or None)
        yield from captured.get().removesuffix("\n").split("\n")

    def wrap(self, text: str, width: int) -> list[str]:
        """Return the lines of a text, wrapped at words."""
        from rich.text import Text

        return [each.plain.rstrip() for each in Text(text).wrap(self.console, max(1, width))]


def _draw_rows(rows: Sequence[FactLine], layout: _Layout) -> Iterator[str]:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table.grid(padding=(0, _GAP, 0, 0))
    if layout.indent:
        table.add_column(width=layout.indent - _GAP, no_wrap=True)
    table.add_column(width=layout.measure_text(), overflow="fold")
    for name, width in layout.columns.items():
        table.add_column(width=width, overflow="fold", no_wrap=name in {"age", "handle"})
    for each in rows:
        sign = [Text(each.sign, _SIGN_STYLES.get(each.sign, ""))] if layout.indent else []
        text = Text("\n".join(map(clean_foreign_line, each.text.splitlines())))
        if each.label:
            text.append(f" ({clean_foreign_line(each.label)})", "yellow")
        if each.path:
            text.append(f"\n{clean_foreign_line(each.path)}", "dim")
        values = {
            "age": Text(layout.ages[each.at], "dim"),
            "place": Text(clean_foreign_line(each.place), "dim"),
            "trust": Text("" if each.trust == _OWNER else each.trust, "yellow"),
            "handle": Text(each.handle, "cyan"),
        }
        table.add_row(*sign, text, *(values[name] for name in layout.columns))
    yield from (each.rstrip() for each in layout.render(table))


def _count_cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(clean_foreign_line(text))


def _format_age(at: str) -> str:
    from datetime import UTC, datetime

    from muniment.content.moments import format_age

    return format_age(at, datetime.now(UTC)) if at else ""
