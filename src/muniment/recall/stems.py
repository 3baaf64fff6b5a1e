"""Cut text into words and stems with SQLite's own tokenizer.

An empty full-text table in memory uses the tokenizer of the catalog. Therefore the words of a query are
always cut in the same way as the words of the entries.

Attacked in tests/units/recall/test_query.py.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_CACHED_STEMS: Final = 20_000
"""Maximum number of cached stems, about 4 MB; the least recently used are removed first."""

_TABLES: Final = """
    CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'unicode61');
    CREATE VIRTUAL TABLE word USING fts5vocab (words, instance);
    CREATE VIRTUAL TABLE stems USING fts5 (text, tokenize = 'porter unicode61');
    CREATE VIRTUAL TABLE stem USING fts5vocab (stems, instance);
"""
_CUTS: Final = (("words", "word"), ("stems", "stem"))
"""Pairs of names: a full-text table that cuts a text, and the view that lists the resulting words."""

_ACCENTS: Final = tuple(map(chr, range(0x300, 0x370)))
_ACCENTED: Final = tuple(
    char
    for char in map(chr, (*range(0xC0, 0x528), *range(0x1E00, 0x2000)))
    if char.isalpha() and char.islower()
)


class Term(NamedTuple):
    """A word without case and accents, and the stem of the word."""

    word: str
    stem: str


class Stemmer:
    """Cuts text into words and stems. Threads may share one; close it when done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bases: dict[int, str] | None = None
        self._cache: OrderedDict[str, str] = OrderedDict()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(_TABLES)

    def split_terms(self, folded: str) -> tuple[Term, ...]:
        """Return the words of a text in their order, with their stems.

        Args:
            folded: a text from `store.rows.normalize_for_index`. An invalid surrogate character separates
                words.

        Cost: 90 µs and about 1 µs per word.
        """
        with self._lock:
            return self._split(folded)

    def find_stems(self, words: Iterable[str]) -> dict[str, str]:
        """Return the stem of each word; skip a text that the tokenizer does not treat as one word.

        Cost: as `split_terms` for the words that are not cached.
        """
        wanted = set(words)
        with self._lock:
            unknown = [word for word in wanted if word not in self._cache]
            if unknown:
                self._cache.update(self._split(" ".join(unknown)))
            found = {word: self._cache[word] for word in wanted if word in self._cache}
            for word in found:
                self._cache.move_to_end(word)
            while len(self._cache) > MAX_CACHED_STEMS:
                self._cache.popitem(last=False)
        return found

    def strip_accents(self, folded: str) -> str:
        """Return a text without accents, as the tokenizer reads it.

        Args:
            folded: a text from `store.rows.normalize_for_index`.

        Cost: linear; the first text that is not ASCII takes 1 ms more.
        """
        return folded if folded.isascii() else folded.translate(self.load_accent_table())

    def load_accent_table(self) -> dict[int, str]:
        """Return a table for `str.translate` that removes accents in the same way as the tokenizer."""
        with self._lock:
            if self._bases is None:
                self._bases = self._find_bases()
            return self._bases

    def close(self) -> None:
        """Close the tables in memory."""
        with self._lock:
            self._connection.close()

    def _find_bases(self) -> dict[int, str]:
        """Return the replacement of each letter with an accent, and of each separate combining accent."""
        cut = self._split(" ".join(_ACCENTED))
        bases = dict(zip(_ACCENTED, (term.word for term in cut), strict=True))
        words = iter(term.word for term in self._split(" ".join(f"a{accent}b" for accent in _ACCENTS)))
        for accent in _ACCENTS:
            if next(words) == "ab":
                bases[accent] = ""
            else:
                next(words)  # It separates words.
        return str.maketrans(bases)

    def _split(self, text: str) -> tuple[Term, ...]:
        text = text.encode("utf-8", "replace").decode()  # SQLite rejects half of a surrogate pair.
        cut = []
        for table, view in _CUTS:
            self._connection.execute(f"INSERT INTO {table} (rowid, text) VALUES (1, ?)", (text,))  # noqa: S608
            rows = self._connection.execute(f"SELECT offset, term FROM {view}").fetchall()  # noqa: S608
            self._connection.execute(f"DELETE FROM {table}")  # noqa: S608
            cut.append([term for _, term in sorted(rows)])
        return tuple(map(Term, *cut))
