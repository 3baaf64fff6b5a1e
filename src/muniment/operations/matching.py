"""The parts of an entry that a query means: all of it, some of its parts, or nothing.

Pure. Apart from `forget.py`, which reads files and commits.

A part is an item of a list, or a passage, such as a paragraph (`content.markdown`).

M1 Something is meant if it holds *every* significant word of the query, as a whole word (`content.words`).
M2 The entry is meant if it is one passage; if the query has every word of its body; and if its name,
   description and keywords say it all, and no part does.
M3 Otherwise a part is meant that says it all, or what the name, description and keywords of its entry leave
   to be said. Of an item and the items in it the innermost is meant, unless the outer one says it all by
   itself.
M4 If only several parts together say it, nothing is meant: what a file says in different places nobody
   said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from muniment.content.entry import Entry, titled
from muniment.content.markdown import Item, outline
from muniment.content.negation import Says
from muniment.content.words import significant, vocabulary
from muniment.kernel.names import RelPath

PARTS: Final = 5
"""Parts of an entry that a model is shown."""

LOOKED_AT: Final = 200
"""Parts of one that are looked at for these, some 0.2 ms each."""


@dataclass(frozen=True, slots=True)
class Meant:
    """What a query means of an entry that holds all its words.

    Attributes:
        is_whole: whether it means the entry.
        items: else the parts that it means, in order; none: M4.
        is_labelled: whether name, description and keywords say it too, which stay behind with the entry.
    """

    is_whole: bool
    items: tuple[Item, ...] = ()
    is_labelled: bool = False


def meant(entry: Entry, rel: RelPath, words: Sequence[str]) -> Meant | None:
    """What `words` mean of an entry (M1 to M4); None: it does not hold them all.

    Args:
        entry: the file, parsed.
        rel: its path inside the scope, of which its name is made where it has none.
        words: the significant words of a query.
    """
    # A description that is made of the body tells what one of its lines says, not what all of them are about.
    label = vocabulary("\n".join([titled(entry, rel).name, entry.description or "", *entry.keywords]))
    unsaid = [word for word in words if not label.holds([word])]
    if unsaid and not vocabulary(entry.body).holds(unsaid):
        return None
    parts = outline(entry.body).parts
    if is_one_passage(parts) or {*words}.issuperset(significant(entry.body) or "-"):
        return Meant(is_whole=True)
    if items := tuple(_items(parts, words)):
        return Meant(is_whole=False, items=items, is_labelled=not unsaid)
    return Meant(is_whole=True) if not unsaid else Meant(is_whole=False, items=tuple(_items(parts, unsaid)))


def near_parts(entry: Entry, says: Says) -> tuple[Item, ...] | None:
    """The innermost parts of an entry that say something of what is asked for, at most `PARTS`, in order.

    Those that say most of it, of the first `LOOKED_AT`. None: it is one part, or its name alone says it.
    """
    parts = outline(entry.body).parts
    if is_one_passage(parts):
        return None
    looked_at = list(islice(innermost(parts), LOOKED_AT + 1))
    said = [(-len(says(part.own)), number) for number, part in enumerate(looked_at[:LOOKED_AT])]
    best = sorted(each for each in said if each[0])[:PARTS]
    if not best and len(looked_at) <= LOOKED_AT:
        return None
    return tuple(looked_at[number] for number in sorted(number for _, number in best))


def is_one_passage(parts: Sequence[Item]) -> bool:
    """Return whether the parts of an entry are one that is no item of a list."""
    return len(parts) == 1 and not parts[0].is_item


def innermost(parts: Iterable[Item]) -> Iterator[Item]:
    """Return the parts that have no items of their own, in order."""
    for part in parts:
        if part.items:
            yield from innermost(part.items)
        else:
            yield part


def _items(items: Collection[Item], words: Collection[str]) -> Iterator[Item]:
    """The parts that hold all of some words (M3)."""
    for item in items:
        if vocabulary(item.own).holds(words):
            yield item
        elif inner := tuple(_items(item.items, words)):
            yield from inner
        elif vocabulary(item.text).holds(words):
            yield item
