"""Find the entries that share a word with a description, the best first.

Unlike `search.py`, this module returns an entry even if it shares only a common word with the description. A
row only proposes an entry: code that displays the entry must read its file. Withheld, expired and large
entries are never returned. Entries of trust `agent` or `external` take at most every second position, so that
they cannot displace the entries of the owner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Final

from muniment.kernel.names import RelPath, Trust
from muniment.recall.query import read_query
from muniment.recall.ranking import COLUMN_WEIGHTS
from muniment.recall.search import DISPLAYABLE_IN_ROOTS
from muniment.recall.stems import Stemmer
from muniment.store.catalog import View
from muniment.store.rows import normalize_for_index
from muniment.store.state import State
from muniment.types.keys import RootKey

_NEAREST_QUERY: Final = f"""
    SELECT entry.root, entry.rel FROM text CROSS JOIN entry ON entry.id = text.rowid
    WHERE text MATCH ? AND rank MATCH 'bm25({", ".join(map(str, COLUMN_WEIGHTS))})'
        AND {DISPLAYABLE_IN_ROOTS} AND entry.size <= {{size}} AND entry.trust IN ({{trusts}})
    ORDER BY rank, entry.root, entry.rel LIMIT ?
"""  # noqa: S608  constants of this package
MAX_BYTES: Final = 64 * 1024
"""Maximum size in bytes of an entry that is searched; entries written by hand are shorter."""

_GROUPS: Final = ((Trust.OWNER, Trust.WORKSPACE), (Trust.AGENT, Trust.EXTERNAL))
_QUERIES: Final = tuple(
    _NEAREST_QUERY.format(size=MAX_BYTES, trusts=", ".join(f"'{trust}'" for trust in group))
    for group in _GROUPS
)


class DescriptionQuery:
    """The significant words of a description, which are compared by their stems.

    Args:
        text: a description in the user's words.
        stemmer: cuts words and finds stems; the caller closes it.
    """

    def __init__(self, text: str, stemmer: Stemmer) -> None:
        self._stemmer = stemmer
        words = [word for word in read_query(text, stemmer) if not word.is_weak and not word.is_phrase]
        self._words, self._stems = [word.text for word in words], {word.stem for word in words}

    def find_words_in(self, text: str) -> frozenset[str]:
        """Return the stems of the description that occur in `text`. Cost: linear, 0.1 ms for a sentence."""
        return frozenset(
            self._stems.intersection(
                term.stem for term in self._stemmer.split_terms(normalize_for_index(text))
            )
        )

    def find_nearest(
        self,
        state: State,
        roots: Sequence[RootKey],
        now: str,
        limit: int,
        prefixes: Iterable[str] = (),
    ) -> tuple[tuple[RootKey, RelPath], ...]:
        """Return the entries that share a word with the description, the best first.

        Entries of trust `owner` or `workspace` alternate with entries of trust `agent` or `external`.

        Args:
            state: contains the catalog, which must be up to date.
            roots: the roots to search.
            now: the time, ISO-8601 UTC; entries that have expired by then are not returned.
            limit: maximum number of entries in each of the two groups of trust.
            prefixes: prefixes in letters and digits; an entry with a word that begins like one of them also
                matches.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be read.
        """
        expression = " OR ".join(
            [*(f'"{word}"' for word in self._words), *(f'"{each}" *' for each in prefixes)]
        )
        if not expression:
            return ()
        values = (expression, json.dumps(list(roots)), now, limit)
        found = zip_longest(*(state.catalog.rows(query, values) for query in _QUERIES))
        return tuple((RootKey(row[0]), RelPath(row[1])) for pair in found for row in pair if row is not None)


# -- finding -----------------------------------------------------------------------------------------
#
# Find entries that may contain certain words, by the full-text rows of the catalog; callers read the files.
#
# Every entry that contains all the words (`content.words`) is returned, if its row is up to date and it is
# not withheld; others may be returned too. Words that the table's tokenizer cuts differently do not narrow
# the result.

_SEARCHABLE: Final = re.compile(
    "[0-9a-z\u00c0-\u024f\u0370-\u0527]+"
    "|[\u1100-\u11ff\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003fffd]+"
)
"""Words that SQLite's tokenizer and the catalog cut in the same way as `content.words`.

These are words of Latin, Greek and Cyrillic letters, and pairs of Han, kana and Hangul. The tokenizer uses
the tables of Unicode 6.1.
"""

_MAX_WORD_CHARS: Final = 100


def find_candidates(state: State, view: View, words: Collection[str]) -> frozenset[RelPath] | None:
    """Return the entries of a root that may contain all of `words`; None if any entry may contain them.

    Args:
        state: contains the catalog.
        view: the rows of the root, up to date.
        words: words from `find_significant_words`.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    pieces = {
        piece for word in words if len(word) <= _MAX_WORD_CHARS for piece in normalize_for_index(word).split()
    }
    wanted = sorted(filter(_SEARCHABLE.fullmatch, pieces))
    if not wanted:
        return None
    rows = state.catalog.rows(
        "SELECT entry.rel FROM text JOIN entry ON entry.id = text.rowid "
        "WHERE text MATCH ? AND entry.root = ?",
        (" ".join(f'"{piece}"' for piece in wanted), view.key),
    )
    return frozenset(RelPath(rel) for (rel,) in rows)
