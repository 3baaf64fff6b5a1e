"""The pages of the entries of a root: which there are, and how the catalog keeps track of them.

- P1 Every entry is on exactly one page of its topic, which is its directory. A page that would pass a limit
  is split by the next hexadecimal digit of the entries' keys, SHA-256 of the path.
- P2 The file of a page is `index/<topic>[-<prefix>].md`: the first `TOPIC_DIGITS` digits of SHA-256 of the
  topic, or all of them where topics share those, and the digits that it was split by.
- P3 So the pages are a function of the set of entries. `renew` makes the table `page` from it, and `follow`
  arrives at the same from what was relisted since.

The limits of `index.py` are part of what the table `page` holds, and so of the catalog's version.

Attacked in tests/store/test_pages.py, by pages made from this definition.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

from muniment.names import INDEX_DIRECTORY, RelPath
from muniment.policy.grammar import FILE_SUFFIX
from muniment.store.index import fits_page, topic_digest

PAGES: Final = f"{INDEX_DIRECTORY}/"
"""How the path of every index file begins but that of `MEMORY.md`."""

TOPIC_DIGITS: Final = 12
"""Digits of a topic's SHA-256 in the names of its pages."""

_LAST: Final = "~"  # sorts behind every text of digits, dashes and dots


class Part(NamedTuple):
    """Some entries of a topic whose keys share a prefix; `size` is the bytes of their lines."""

    prefix: str
    entries: int
    size: int


class Page(NamedTuple):
    """A page of entries; `slot` is SHA-256 of the name of its file, hexadecimal."""

    topic: str
    prefix: str
    entries: int
    rel: RelPath
    slot: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What is not as it was in the last index.

    Attributes:
        begins: how the paths begin of all pages that may have come or gone.
        pages: topics and prefixes of pages whose entries changed.
    """

    begins: frozenset[str]
    pages: frozenset[tuple[str, str]]


def split(parts: Sequence[Part], depth: int = 0) -> Iterator[Part]:
    """The pages of a topic (P1), by prefix.

    Args:
        parts: all of the topic, by prefix: entries with their whole keys, and pages that may be left as they
            are. No prefix begins another.
        depth: digits that all prefixes share.
    """
    entries, size = sum(part.entries for part in parts), sum(part.size for part in parts)
    if not entries:
        return
    if fits_page(entries, size):
        yield Part(parts[0].prefix[:depth], entries, size)
        return
    for _digit, together in groupby(parts, key=lambda part: part.prefix[depth]):
        yield from split(tuple(together), depth + 1)


class Rows:
    """The rows of one root inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, key: str) -> None:
        self._connection, self.key = connection, key

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query whose first parameter is the root."""
        return self._connection.execute(query, (self.key, *values)).fetchall()

    def newest_relisted(self) -> int:
        """The last row of `relisted`; 0 if there is none."""
        ((newest,),) = self.rows("SELECT coalesce(max(id), 0) FROM relisted WHERE root = ?")
        return int(newest)

    def total(self) -> tuple[int, int]:
        """How many entries there are, and the bytes of their lines."""
        ((entries, size),) = self.rows(
            "SELECT coalesce(sum(entries), 0), coalesce(sum(bytes), 0) FROM page WHERE root = ?"
        )
        return entries, size

    def count(self, prefix: str) -> tuple[int, int]:
        """How many pages have slots that begin so, and how many entries they list."""
        ((pages, entries),) = self.rows(
            "SELECT count(*), coalesce(sum(entries), 0) FROM page WHERE root = ? AND slot BETWEEN ? AND ?",
            *(prefix, prefix + _LAST),
        )
        return pages, entries

    def pages(self, column: Literal["rel", "slot"], begin: str) -> list[Page]:
        """The pages whose path or slot begins so."""
        found = self.rows(
            f"SELECT topic, prefix, entries, rel, slot FROM page WHERE root = ? AND {column} BETWEEN ? AND ?",  # noqa: S608  one of two
            *(begin, begin + _LAST),
        )
        return list(map(Page._make, found))

    def written(self, begin: str) -> set[RelPath]:
        """The files of the last index whose paths begin so."""
        found = self.rows(
            "SELECT rel FROM written WHERE root = ? AND rel BETWEEN ? AND ?", begin, begin + _LAST
        )
        return {rel for (rel,) in found}

    def has_written_pages(self) -> bool:
        """Whether the last index had more files than `MEMORY.md`."""
        return bool(self.rows("SELECT 1 FROM written WHERE root = ? AND rel > ? LIMIT 1", PAGES))

    def first_lines(self, count: int) -> list[str]:
        """The lines of the first entries, in order."""
        found = self.rows("SELECT line FROM entry WHERE root = ? ORDER BY sort, rel LIMIT ?", count)
        return [line for (line,) in found]

    def counted(self, topic: str, prefix: str) -> Part:
        """All entries on a page."""
        ((entries, size),) = self.rows(
            "SELECT count(*), coalesce(sum(line_bytes), 0) FROM entry"
            " WHERE root = ? AND topic = ? AND key BETWEEN ? AND ?",
            *(topic, prefix, prefix + _LAST),
        )
        return Part(prefix, entries, size)

    def entries(self, topic: str, prefix: str) -> list[Part]:
        """The entries on a page, each by its whole key."""
        found = self.rows(
            "SELECT key, 1, line_bytes FROM entry"
            " WHERE root = ? AND topic = ? AND key BETWEEN ? AND ? ORDER BY key",
            *(topic, prefix, prefix + _LAST),
        )
        return list(map(Part._make, found))

    def lines(self, topic: str, prefix: str) -> list[str]:
        """The lines of the entries on a page, in order."""
        found = self.rows(
            "SELECT line FROM entry WHERE root = ? AND topic = ? AND key BETWEEN ? AND ? ORDER BY sort, rel",
            *(topic, prefix, prefix + _LAST),
        )
        return [line for (line,) in found]

    def parts(self, topic: str) -> list[Part]:
        """The pages of a topic."""
        found = self.rows("SELECT prefix, entries, bytes FROM page WHERE root = ? AND topic = ?", topic)
        return list(map(Part._make, found))

    def replace_pages(self, topic: str, before: Collection[Part], after: Collection[Part]) -> None:
        """Make `after` the pages of a topic; new ones have short names for now."""
        kept, known = {part.prefix for part in after}, set(before)
        digits = topic_digest(topic)[:TOPIC_DIGITS]
        self._connection.executemany(
            "DELETE FROM page WHERE root = ? AND topic = ? AND prefix = ?",
            [(self.key, topic, part.prefix) for part in before if part.prefix not in kept],
        )
        self._connection.executemany(
            "INSERT INTO page (root, topic, prefix, entries, bytes, rel, slot) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET entries = excluded.entries, bytes = excluded.bytes",
            [(self.key, topic, *part, *_file(digits, part.prefix)) for part in after if part not in known],
        )

    def name_pages(self, begin: str) -> None:
        """Give the pages of all topics whose paths begin so the names that tell them apart (P2)."""
        named = self.rows(
            "SELECT topic, min(rel), max(rel) FROM page WHERE root = ? AND rel BETWEEN ? AND ?"
            " GROUP BY topic",
            *(begin, begin + _LAST),
        )
        for topic, *names in named:
            wanted = topic_digest(topic) if len(named) > 1 else topic_digest(topic)[:TOPIC_DIGITS]
            if any(rel.removesuffix(FILE_SUFFIX).partition("-")[0] != PAGES + wanted for rel in names):
                self._connection.executemany(
                    "UPDATE page SET rel = ?, slot = ? WHERE root = ? AND topic = ? AND prefix = ?",
                    [
                        (*_file(wanted, part.prefix), self.key, topic, part.prefix)
                        for part in self.parts(topic)
                    ],
                )


def renew(rows: Rows) -> None:
    """Make the table `page` anew."""
    rows.rows("DELETE FROM page WHERE root = ?")
    topics = rows.rows("SELECT topic, count(*), sum(line_bytes) FROM entry WHERE root = ? GROUP BY topic")
    for topic, entries, size in topics:
        fits = fits_page(entries, size)
        parts = [Part("", entries, size)] if fits else split(rows.entries(topic, ""))
        rows.replace_pages(topic, (), tuple(parts))
    for begin in {_begin(topic) for topic, _, _ in topics}:
        rows.name_pages(begin)


def follow(rows: Rows) -> Changes | None:
    """Bring the table `page` up to date with what was relisted; None if the last index had no pages."""
    relisted = rows.rows("SELECT topic, key FROM relisted WHERE root = ? ORDER BY topic, key")
    changed: set[tuple[str, str]] = set()
    for topic, together in groupby(relisted, key=itemgetter(0)):
        keys = [key for _, key in together]
        before = rows.parts(topic)
        after = {part.prefix: part for part in split(_opened(rows, topic, keys, before))}
        rows.replace_pages(topic, before, after.values())
        changed |= {(topic, prefix) for key in keys if (prefix := _covering(key, after)) is not None}
    begins = frozenset(_begin(topic) for topic, _ in relisted)
    for begin in begins:
        rows.name_pages(begin)
    return Changes(begins, frozenset(changed)) if rows.has_written_pages() else None


def _opened(rows: Rows, topic: str, keys: Sequence[str], before: Iterable[Part]) -> list[Part]:
    """What the pages of a topic are to be made of, for `split`; counted anew where one of `keys` is."""
    parts = {part.prefix: part for part in before}
    # What no page covers is an entry of its own, if it is there at all.
    for prefix in {key if (found := _covering(key, parts)) is None else found for key in keys}:
        parts.pop(prefix, None)
        counted = rows.counted(topic, prefix)
        fits = fits_page(counted.entries, counted.size)
        for part in [counted] if fits and counted.entries else rows.entries(topic, prefix):
            parts[part.prefix] = part
    return sorted(parts.values())


def _covering(key: str, prefixes: Collection[str]) -> str | None:
    return next((key[:depth] for depth in range(len(key) + 1) if key[:depth] in prefixes), None)


def _file(digits: str, prefix: str) -> tuple[RelPath, str]:
    """Path and slot of a page."""
    name = f"{digits}-{prefix}{FILE_SUFFIX}" if prefix else f"{digits}{FILE_SUFFIX}"
    rel = RelPath(PAGES + name)
    return rel, slot_of(rel)


def slot_of(rel: RelPath) -> str:
    """The slot of the page with that path."""
    return hashlib.sha256(rel.removeprefix(PAGES).encode()).hexdigest()


def _begin(topic: str) -> str:
    """How the paths of a topic's pages begin, and of all that share its first digits."""
    return PAGES + topic_digest(topic)[:TOPIC_DIGITS]
