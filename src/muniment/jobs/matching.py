"""What of an entry a query means: all of it, some of its list items, or nothing. Pure.

M1 Something is meant if it holds *every* significant word of the query, as a whole word (`content.words`).
M2 The entry is meant where a passage of its own says it all, or else, as long as no item does, its name,
   description and keywords.
M3 An item of a list is meant where it says it all, or what the name, description and keywords of its entry
   leave to be said. Of an item and the items in it the innermost is meant, unless the outer one says it all
   by itself.
M4 Where there are items and only several of them together say it, nothing is meant: what a list says in
   different places nobody said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from muniment.content.entry import Entry, titled
from muniment.content.markdown import Item, outline
from muniment.content.words import vocabulary
from muniment.names import RelPath


@dataclass(frozen=True, slots=True)
class Meant:
    """What a query means of an entry that holds all its words.

    Attributes:
        is_whole: whether it means the entry.
        items: else the items that it means, in order; none: M4.
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
    body = outline(entry.body)
    if any(vocabulary(passage).holds(words) for passage in body.passages):
        return Meant(is_whole=True)
    if items := tuple(_items(body.items, words)):
        return Meant(is_whole=False, items=items, is_labelled=not unsaid)
    if not unsaid or not body.items or any(vocabulary(each).holds(unsaid) for each in body.passages):
        return Meant(is_whole=True)
    return Meant(is_whole=False, items=tuple(_items(body.items, unsaid)))


def _items(items: Collection[Item], words: Collection[str]) -> Iterator[Item]:
    """The items that hold all of some words (M3)."""
    for item in items:
        if vocabulary(item.own).holds(words):
            yield item
        elif inner := tuple(_items(item.items, words)):
            yield from inner
        elif vocabulary(item.text).holds(words):
            yield item
