"""The list items of an entry's body, and their removal to the byte. Pure.

What an item is, is CommonMark's business: blocks are read here by the two phases of its specification, as far
as they decide to which item a line belongs. Holds, for every text:

- B1. `outline` is total, and linear in the text but for the depth of its nesting.
- B2. An item has whole lines: from its marker to its last line that is not blank, nested blocks and lazy
  continuation lines included. What looks like an item in code, in HTML or behind other text is none.
- B3. `without` gives the text less one run of characters, nothing else: line breaks, tabs and a missing last
  one stay. Where the lines above and below would otherwise run together, the item's last line break stays
  too, as an empty line.
- B4. What is left reads as it did: every other line belongs to the same items and is the same kind of block.
  Where that cannot be had, `without` refuses.

What does not hold: items in block quotes, and items that begin on the line of another one, are not offered;
the quote or the outer item is one piece. Link reference definitions are read as paragraphs.

Source: CommonMark 0.31.2, "Appendix: A parsing strategy". Attacked in tests/content/test_bullets.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muniment.content.blocks import QUOTE, Line, read_lines


@dataclass(frozen=True, slots=True)
class Item:
    """A list item that can be removed.

    Attributes:
        start: offset in the body of its first line, indentation included.
        end: offset behind its last line that is not blank.
        own: its text without that of the items in it and without their markers.
        items: the items in it that can be removed on their own.
    """

    start: int
    end: int
    own: str
    items: tuple[Item, ...]

    @property
    def text(self) -> str:
        """All that it says, the items in it included."""
        return "\n".join([self.own, *(item.text for item in self.items)])


@dataclass(frozen=True, slots=True)
class Outline:
    """A body as its list items and the rest.

    Attributes:
        items: the outermost items, in order.
        passages: what else there is, in order: runs of lines between blank lines, headings and items.
    """

    items: tuple[Item, ...]
    passages: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the body says nothing: it holds headings, rules and blank lines at most."""
        return not self.items and not self.passages


class NotSeparable(ValueError):
    """Without the item the rest would read differently."""


def outline(body: str) -> Outline:
    """The items of `body` and what stands beside them (B1, B2)."""
    lines = read_lines(body)
    builders: dict[int, _Builder] = {}
    outermost: list[_Builder] = []
    passages: list[list[str]] = [[]]
    for line in lines:
        if line.kind == "blank":
            passages.append([])
            continue
        owner: _Builder | None = None
        for first in _offered(line.path):
            if first not in builders:
                builders[first] = _Builder(lines[first].start)
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
            passages[-1].append(body[line.start : line.end])
    return Outline(tuple(item.built() for item in outermost), tuple("".join(run) for run in passages if run))


def without(body: str, item: Item) -> str:
    """`body` without one of the items of its outline (B3, B4).

    Raises:
        NotSeparable: another line would belong to other items or be another kind of block.
    """
    removed = body[item.start : item.end]
    line_break = len(removed) - len(removed.rstrip("\r\n"))
    before = read_lines(body)
    for kept in dict.fromkeys((0, line_break)):
        shorter = body[: item.start] + body[item.end - kept :]
        if _reads_alike(before, read_lines(shorter), item):
            return shorter
    raise NotSeparable("without this item the rest of the file would read differently")


def _offered(path: tuple[int, ...]) -> Iterator[int]:
    """The items of a path up to the first quote, or item that begins on the line of another."""
    for place, first in enumerate(path):
        if first == QUOTE or first in path[:place]:
            return
        yield first


@dataclass(slots=True)
class _Builder:
    start: int
    end: int
    own: list[str]
    items: list[_Builder]

    def __init__(self, start: int) -> None:
        self.start, self.end, self.own, self.items = start, start, [], []

    def built(self) -> Item:
        return Item(self.start, self.end, "".join(self.own), tuple(item.built() for item in self.items))


def _reads_alike(before: Sequence[Line], after: Sequence[Line], item: Item) -> bool:
    """Whether the lines of `after` are those of `before` without those of `item`, blank ones aside."""
    kept = [(number, line) for number, line in enumerate(before) if not item.start <= line.start < item.end]
    old = [(number, line) for number, line in kept if line.kind != "blank"]
    new = [(number, line) for number, line in enumerate(after) if line.kind != "blank"]
    if len(old) != len(new):
        return False
    moved = {QUOTE: QUOTE} | {number: place for (number, _), (place, _) in zip(old, new, strict=True)}
    return all(
        ours.kind == theirs.kind and tuple(map(moved.get, ours.path)) == theirs.path
        for (_, ours), (_, theirs) in zip(old, new, strict=True)
    )
