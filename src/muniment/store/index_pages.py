"""The pages of a root's entries: which pages exist, and how the catalog tracks them.

- P1 Every entry that has not expired is on exactly one page of its topic, which is its directory. A page
  that would exceed a limit is split by the next hexadecimal digit of the entries' keys, SHA-256 of the path.
- P2 The file of a page is `index/<topic>[-<prefix>].md`: the first `TOPIC_DIGITS` digits of SHA-256 of the
  topic (all digits if topics share the first ones), and the digits by which it was split.
- P3 So the pages are a function of the set of entries. `renew` computes the table `page` from it. `follow`
  computes the same result from the changes in `relisted`.

The limits of `index.py` influence the table `page`, and therefore the catalog's version.

Attacked in tests/units/store/test_pages.py, with pages built from this definition.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

from muniment.kernel.change import digest
from muniment.kernel.names import INDEX_DIRECTORY, RelPath, Trust
from muniment.kernel.path import FILE_SUFFIX
from muniment.store.index import fits_page, topic_digest
from muniment.store.table import Table

PAGES: Final = f"{INDEX_DIRECTORY}/"
"""Path prefix of every index file except `MEMORY.md`."""

TOPIC_DIGITS: Final = 12
"""Digits of a topic's SHA-256 in the names of its pages."""

_IS_LISTED: Final = "line_bytes > 0"
"""True for an entry that has not expired, see `expire`."""

BY_PATH: Final = "sort, rel"
BY_WEIGHT: Final = f"trust <> '{Trust.OWNER}', updated DESC, {BY_PATH}"
"""The order of entries in `MEMORY.md` (L3, L4); the catalog has an index for each."""

_LAST: Final = "~"  # sorts after every text of digits, dashes and dots


class TopicPart(NamedTuple):
    """Some entries of a topic whose keys share a prefix; `size` is the bytes of their lines."""

    prefix: str
    entries: int
    size: int


class Page(NamedTuple):
    """A page of entries; `slot` is SHA-256 of the name of its file, hexadecimal."""

    root: str
    topic: str
    part: TopicPart
    rel: RelPath
    slot: str


_PAGES: Final = Table("page", Page, size="bytes")


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """The differences from the last index.

    Attributes:
        begins: path prefixes of all pages that may have been added or removed.
        pages: topics and prefixes of pages whose entries changed.
    """

    begins: frozenset[str]
    pages: frozenset[tuple[str, str]]


def split(parts: Sequence[TopicPart], depth: int = 0) -> Iterator[TopicPart]:
    """Yield the pages of a topic (P1), by prefix.

    Args:
        parts: the complete topic, by prefix: entries with their full keys, and pages that may stay unchanged.
            No prefix begins another.
        depth: digits that all prefixes share.
    """
    entries, size = sum(part.entries for part in parts), sum(part.size for part in parts)
    if not entries:
        return
    if fits_page(entries, size):
        yield TopicPart(parts[0].prefix[:depth], entries, size)
        return
    for _digit, together in groupby(parts, key=lambda part: part.prefix[depth]):
        yield from split(tuple(together), depth + 1)


class Rows:
    """The rows of one root inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, key: str) -> None:
        self._connection, self.key = connection, key

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query whose first parameter is the root."""
        return self._connection.execute(query, (self.key, *values)).fetchall()

    def newest_relisted(self) -> int:
        """Return the last row of `relisted`, or 0."""
        ((newest,),) = self.rows("SELECT coalesce(max(id), 0) FROM relisted WHERE root = ?")
        return int(newest)

    def total(self) -> tuple[int, int]:
        """Return the number of entries, and the bytes of their lines."""
        ((entries, size),) = self.rows(
            "SELECT coalesce(sum(entries), 0), coalesce(sum(bytes), 0) FROM page WHERE root = ?"
        )
        return entries, size

    def count(self, prefix: str) -> tuple[int, int]:
        """Return the number of pages whose slots begin with a prefix, and the number of entries on them."""
        ((pages, entries),) = self.rows(
            "SELECT count(*), coalesce(sum(entries), 0) FROM page WHERE root = ? AND slot BETWEEN ? AND ?",
            *(prefix, prefix + _LAST),
        )
        return pages, entries

    def pages(self, column: Literal["rel", "slot"], begin: str) -> list[Page]:
        """Return the pages whose path or slot begins with a text."""
        values = (self.key, begin, begin + _LAST)
        return list(_PAGES.each(self._connection, f"WHERE root = ? AND {column} BETWEEN ? AND ?", values))

    def written(self, begin: str) -> set[RelPath]:
        """Return the files of the last index whose paths begin with a text."""
        found = self.rows(
            "SELECT rel FROM written WHERE root = ? AND rel BETWEEN ? AND ?", begin, begin + _LAST
        )
        return {rel for (rel,) in found}

    def has_written_pages(self) -> bool:
        """Return whether the last index had more files than `MEMORY.md`."""
        return bool(self.rows("SELECT 1 FROM written WHERE root = ? AND rel > ? LIMIT 1", PAGES))

    def first_lines(self, order: str, count: int) -> list[str]:
        """Return the lines of the first entries in an order: `BY_PATH`, `BY_WEIGHT`."""
        query = f"SELECT line FROM entry WHERE root = ? AND {_IS_LISTED} ORDER BY {order} LIMIT ?"  # noqa: S608
        return [line for (line,) in self.rows(query, count)]

    def counted(self, topic: str, prefix: str) -> TopicPart:
        """Return the total of all entries on a page."""
        ((entries, size),) = self._on_page("count(*), coalesce(sum(line_bytes), 0)", topic, prefix)
        return TopicPart(prefix, entries, size)

    def entries(self, topic: str, prefix: str) -> list[TopicPart]:
        """Return the entries on a page, each by its full key."""
        return list(map(TopicPart._make, self._on_page("key, 1, line_bytes", topic, prefix, "ORDER BY key")))

    def lines(self, topic: str, prefix: str) -> list[str]:
        """Return the lines of the entries on a page, in order."""
        return [line for (line,) in self._on_page("line", topic, prefix, f"ORDER BY {BY_PATH}")]

    def _on_page(self, columns: str, topic: str, prefix: str, order: str = "") -> list[tuple[Any, ...]]:
        """Return columns of the entries on a page."""
        on_it = f"root = ? AND topic = ? AND key BETWEEN ? AND ? AND {_IS_LISTED}"
        query = f"SELECT {columns} FROM entry WHERE {on_it} {order}"  # noqa: S608
        return self.rows(query, topic, prefix, prefix + _LAST)

    def parts(self, topic: str) -> list[TopicPart]:
        """Return the pages of a topic."""
        found = self.rows("SELECT prefix, entries, bytes FROM page WHERE root = ? AND topic = ?", topic)
        return list(map(TopicPart._make, found))

    def replace_pages(self, topic: str, before: Collection[TopicPart], after: Collection[TopicPart]) -> None:
        """Replace the pages of a topic by `after`; new ones have short names at first."""
        kept, known = {part.prefix for part in after}, set(before)
        digits = topic_digest(topic)[:TOPIC_DIGITS]
        self._connection.executemany(
            "DELETE FROM page WHERE root = ? AND topic = ? AND prefix = ?",
            [(self.key, topic, part.prefix) for part in before if part.prefix not in kept],
        )
        new = [
            Page(self.key, topic, part, *_file(digits, part.prefix)) for part in after if part not in known
        ]
        counted = "ON CONFLICT DO UPDATE SET entries = excluded.entries, bytes = excluded.bytes"
        _PAGES.insert(self._connection, new, more=counted)

    def name_pages(self, begin: str) -> None:
        """Give unique names to the pages of all topics whose paths share a prefix (P2)."""
        named = self.rows(
            "SELECT topic, min(rel), max(rel) FROM page WHERE root = ? AND rel BETWEEN ? AND ?"
            " GROUP BY topic",
            *(begin, begin + _LAST),
        )
        for topic, first, last in named:
            wanted = topic_digest(topic) if len(named) > 1 else topic_digest(topic)[:TOPIC_DIGITS]
            names = {rel.removesuffix(FILE_SUFFIX).partition("-")[0] for rel in (first, last)}
            if names != {PAGES + wanted}:
                self._connection.executemany(
                    "UPDATE page SET rel = ?, slot = ? WHERE root = ? AND topic = ? AND prefix = ?",
                    [
                        (*_file(wanted, part.prefix), self.key, topic, part.prefix)
                        for part in self.parts(topic)
                    ],
                )


EXPIRES_AT: Final = (
    "CASE length(entry.expires) WHEN 10 THEN"
    " coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', entry.expires, '+1 day', 'utc'), entry.expires)"
    " ELSE entry.expires END"
)
"""SQL for the time when an entry expires, as `content.expiry.expiry_time`: SQLite uses the same time zone."""


def expire(rows: Rows, now: str) -> None:
    """Remove the lines of expired entries from the index.

    Args:
        rows: of a root.
        now: ISO-8601 UTC.
    """
    over = f"WHERE root = ? AND expires > '' AND {_IS_LISTED} AND {EXPIRES_AT} <= ?"
    if rows.rows(f"SELECT 1 FROM entry {over} LIMIT 1", now):  # noqa: S608
        relisted = "INSERT INTO relisted (root, topic, key) SELECT root, topic, key FROM entry"
        rows.rows(f"{relisted} {over}", now)
        rows.rows(f"UPDATE entry SET line = '', line_bytes = 0 {over}", now)  # noqa: S608


def renew(rows: Rows) -> None:
    """Rebuild the table `page`."""
    rows.rows("DELETE FROM page WHERE root = ?")
    topics = rows.rows(
        f"SELECT topic, count(*), sum(line_bytes) FROM entry WHERE root = ? AND {_IS_LISTED} GROUP BY topic"  # noqa: S608
    )
    for topic, entries, size in topics:
        fits = fits_page(entries, size)
        parts = [TopicPart("", entries, size)] if fits else split(rows.entries(topic, ""))
        rows.replace_pages(topic, (), tuple(parts))
    for begin in {_begin(topic) for topic, _, _ in topics}:
        rows.name_pages(begin)


def follow(rows: Rows) -> IndexChanges | None:
    """Update the table `page` from `relisted`; return None if the last index had no pages."""
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
    return IndexChanges(begins, frozenset(changed)) if rows.has_written_pages() else None


def _opened(rows: Rows, topic: str, keys: Sequence[str], before: Iterable[TopicPart]) -> list[TopicPart]:
    """Return the parts of a topic for `split`, counted again for the pages of `keys`."""
    parts = {part.prefix: part for part in before}
    # A key that no page covers is a new entry, or a removed one.
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
    """Return path and slot of a page."""
    name = f"{digits}-{prefix}{FILE_SUFFIX}" if prefix else f"{digits}{FILE_SUFFIX}"
    rel = RelPath(PAGES + name)
    return rel, slot_of(rel)


def slot_of(rel: RelPath) -> str:
    """Return the slot of the page with that path."""
    return digest(rel.removeprefix(PAGES).encode())


def _begin(topic: str) -> str:
    """Return the common path prefix of a topic's pages and of all topics that share its first digits."""
    return PAGES + topic_digest(topic)[:TOPIC_DIGITS]
