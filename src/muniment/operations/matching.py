"""Find the parts of an entry that a query matches: the whole entry, some of its parts, or none.

Pure. Separate from `forget.py`, which reads files and commits.

A part is an item of a list, or a passage, such as a paragraph (`content.markdown`).

M1 A text matches if it contains *every* significant word of the query, as a whole word (`content.words`).
M2 The whole entry matches in three cases: it is one passage; the query contains every word of its body; or
   its name, description and keywords contain all words of the query, and none of its parts does.
M3 Otherwise a part matches if it contains all words, or all words that the name, description and keywords of
   its entry do not contain. If an item and an item inside it match, the inner one is used, unless the outer
   one contains all words only in its own text.
M4 If only several parts together contain all words, no part matches: the combined text is not in the file.
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
"""Parts of an entry that a model sees."""

LOOKED_AT: Final = 200
"""Parts of an entry that are compared to choose these; about 0.2 ms each."""


@dataclass(frozen=True, slots=True)
class Meant:
    """The match of a query in an entry that contains all its words.

    Attributes:
        is_whole: whether the query matches the whole entry.
        items: otherwise the matching parts, in order; empty in case M4.
        is_labelled: whether name, description and keywords contain all words too; they stay in the entry.
    """

    is_whole: bool
    items: tuple[Item, ...] = ()
    is_labelled: bool = False


def meant(entry: Entry, rel: RelPath, words: Sequence[str]) -> Meant | None:
    """Return the match of a query in an entry (M1 to M4), or None if the entry does not contain all words.

    Args:
        entry: the parsed file.
        rel: its path inside the scope; the name comes from it if the entry has none.
        words: the significant words of the query.
    """
    # A description that code generated from the body repeats one line; it does not describe the whole entry.
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
    """Return the innermost parts of an entry that contain words of the query, at most `PARTS`, in order.

    The parts with the most words are chosen, among the first `LOOKED_AT`. The result is None if the entry is
    one part, or if only its name contains the words.
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
    """Return whether an entry has exactly one part and it is not an item of a list."""
    return len(parts) == 1 and not parts[0].is_item


def innermost(parts: Iterable[Item]) -> Iterator[Item]:
    """Return the parts without items inside them, in order."""
    for part in parts:
        if part.items:
            yield from innermost(part.items)
        else:
            yield part


def _items(items: Collection[Item], words: Collection[str]) -> Iterator[Item]:
    """Return the parts that contain all of `words` (M3)."""
    for item in items:
        if vocabulary(item.own).holds(words):
            yield item
        elif inner := tuple(_items(item.items, words)):
            yield from inner
        elif vocabulary(item.text).holds(words):
            yield item
