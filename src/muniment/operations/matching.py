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

from muniment.content.entry import Entry, read_titles
from muniment.content.markdown import Item, build_outline
from muniment.content.negation import FindWords
from muniment.content.words import build_vocabulary, find_significant_words
from muniment.kernel.names import RelPath

MAX_NEAR_PARTS: Final = 5
"""Maximum number of parts of a near entry that a model sees."""

MAX_COMPARED_PARTS: Final = 200
"""Maximum number of parts of an entry among which `MAX_NEAR_PARTS` are chosen; about 0.2 ms for each."""


@dataclass(frozen=True, slots=True)
class ForgetMatch:
    """The parts of an entry that a query matches, if the entry contains all words of the query.

    Attributes:
        is_whole: whether the query matches the whole entry.
        items: if not, the matching parts in order; empty if only several parts together contain all words.
        is_labelled: whether name, description and keywords of the entry contain all words too. A removal of
            parts does not change them.
    """

    is_whole: bool
    items: tuple[Item, ...] = ()
    is_labelled: bool = False


def match_entry(entry: Entry, rel: RelPath, words: Sequence[str]) -> ForgetMatch | None:
    """Return the match of a query in an entry, or None if the entry does not contain all words of the query.

    Rules M1 to M4 in the module docstring define a match.

    Args:
        entry: the parsed file.
        rel: its path inside the scope; the name comes from it if the entry has none.
        words: the significant words of the query.
    """
    # A description that code generated from the body repeats one line; it does not describe the whole entry.
    label = build_vocabulary(
        "\n".join([read_titles(entry, rel).name, entry.description or "", *entry.keywords])
    )
    missing_words = [word for word in words if not label.contains_all([word])]
    if missing_words and not build_vocabulary(entry.body).contains_all(missing_words):
        return None
    parts = build_outline(entry.body).parts
    if is_one_passage(parts) or {*words}.issuperset(find_significant_words(entry.body) or "-"):
        return ForgetMatch(is_whole=True)
    if items := tuple(_find_matching_items(parts, words)):
        return ForgetMatch(is_whole=False, items=items, is_labelled=not missing_words)
    return (
        ForgetMatch(is_whole=True)
        if not missing_words
        else ForgetMatch(is_whole=False, items=tuple(_find_matching_items(parts, missing_words)))
    )


def find_near_parts(entry: Entry, find_words: FindWords) -> tuple[Item, ...] | None:
    """Return the parts of an entry that contain the most words of a query, in the order of the entry.

    At most `MAX_NEAR_PARTS` innermost parts are chosen, among the first `MAX_COMPARED_PARTS`. The result is
    None if the entry is one part, or if only its name contains the words.

    Args:
        entry: the parsed file.
        find_words: returns the words of the query that a text contains.
    """
    parts = build_outline(entry.body).parts
    if is_one_passage(parts):
        return None
    compared = list(islice(iterate_innermost(parts), MAX_COMPARED_PARTS + 1))
    ranked = [
        (-len(find_words(part.own_text)), number) for number, part in enumerate(compared[:MAX_COMPARED_PARTS])
    ]
    best = sorted(each for each in ranked if each[0])[:MAX_NEAR_PARTS]
    if not best and len(compared) <= MAX_COMPARED_PARTS:
        return None
    return tuple(compared[number] for number in sorted(number for _, number in best))


def is_one_passage(parts: Sequence[Item]) -> bool:
    """Return whether an entry has exactly one part, and this part is not an item of a list."""
    return len(parts) == 1 and not parts[0].is_item


def iterate_innermost(parts: Iterable[Item]) -> Iterator[Item]:
    """Yield the parts that have no items inside them, in order."""
    for part in parts:
        if part.items:
            yield from iterate_innermost(part.items)
        else:
            yield part


def _find_matching_items(items: Collection[Item], words: Collection[str]) -> Iterator[Item]:
    """Yield the parts that contain all of `words` (rule M3 in the module docstring)."""
    for item in items:
        if build_vocabulary(item.own_text).contains_all(words):
            yield item
        elif inner := tuple(_find_matching_items(item.items, words)):
            yield from inner
        elif build_vocabulary(item.text).contains_all(words):
            yield item
