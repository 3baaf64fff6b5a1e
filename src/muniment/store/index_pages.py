"""The pages of a root's index: which pages exist, and how the catalog records them.

- P1. Every entry that has not expired is on exactly one page of its topic; a topic is a folder. If a page
  would exceed a limit, it is split by the next hexadecimal digit of the entries' keys. The key of an entry is
  the SHA-256 of its path.
- P2. The file of a page is `index/<topic>[-<prefix>].md`. `<topic>` is the first `TOPIC_DIGITS` digits of the
  topic's SHA-256, or all digits if topics share the first ones. `<prefix>` is the digits by which the page
  was split.
- P3. So the pages depend only on the set of entries. `rebuild_pages` computes the table `page` from it.
  `update_pages` computes the same result from the changes in the table `relisted`.

If the limits in `index.py` change, the table `page` changes, so the catalog needs a new version.

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
from muniment.store.index import digest_topic, fits_page
from muniment.store.table import Table

PAGES_PREFIX: Final = f"{INDEX_DIRECTORY}/"
"""Path prefix of every index file except `MEMORY.md`."""

TOPIC_DIGITS: Final = 12
"""Number of digits of a topic's SHA-256 in the file names of its pages."""

_IS_LISTED: Final = "line_bytes > 0"
"""SQL condition for an entry that has not expired, see `expire_lines`."""

BY_PATH: Final = "sort, rel"
BY_WEIGHT: Final = f"trust <> '{Trust.OWNER}', updated DESC, {BY_PATH}"
"""SQL for the two orders of entries in `MEMORY.md` (L3, L4 in `index_layout.py`); the catalog has an index
for
each.
"""

_RANGE_END: Final = "~"  # sorts after every text of digits, dashes and dots


class TopicPart(NamedTuple):
    """The entries of a topic whose keys begin with `prefix`: their number, and the bytes of their lines."""

    prefix: str
    entries: int
    size: int


class Page(NamedTuple):
    """A page of entries; a row of the table `page`.

    Attributes:
        root: key of the root.
        topic: folder of the entries.
        part: the entries on the page.
        rel: path of the page inside the scope.
        slot: SHA-256 of the file name of the page, hexadecimal.
    """

    root: str
    topic: str
    part: TopicPart
    rel: RelPath
    slot: str


_PAGES: Final = Table("page", Page, size="bytes")


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """The differences between the current pages and the last index that was written.

    Attributes:
        prefixes: path prefixes of all pages that may have been added or removed.
        pages: topic and prefix of each page whose entries changed.
    """

    prefixes: frozenset[str]
    pages: frozenset[tuple[str, str]]


def split_topic(parts: Sequence[TopicPart], depth: int = 0) -> Iterator[TopicPart]:
    """Yield the pages of a topic, sorted by prefix; a page that would be too large is split.

    Args:
        parts: the complete topic, sorted by prefix: entries with their full keys, and pages that may stay
            unchanged. No prefix is the beginning of another one.
        depth: number of digits that all prefixes share.
    """
    entries, size = sum(part.entries for part in parts), sum(part.size for part in parts)
    if not entries:
        return
    if fits_page(entries, size):
        yield TopicPart(parts[0].prefix[:depth], entries, size)
        return
    for _digit, group in groupby(parts, key=lambda part: part.prefix[depth]):
        yield from split_topic(tuple(group), depth + 1)


class IndexRows:
    """The rows of one root in the catalog, inside a transaction.

    Args:
        connection: the transaction.
        key: key of the root.
    """

    def __init__(self, connection: sqlite3.Connection, key: str) -> None:
        self._connection, self.key = connection, key

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query whose first parameter is the key of the root."""
        return self._connection.execute(query, (self.key, *values)).fetchall()

    def newest_relisted(self) -> int:
        """Return the number of the last row of the table `relisted`, or 0."""
        ((newest,),) = self.rows("SELECT coalesce(max(id), 0) FROM relisted WHERE root = ?")
        return int(newest)

    def read_total(self) -> tuple[int, int]:
        """Return the number of entries in the root, and the bytes of their lines."""
        ((entries, size),) = self.rows(
            "SELECT coalesce(sum(entries), 0), coalesce(sum(bytes), 0) FROM page WHERE root = ?"
        )
        return entries, size

    def count_pages(self, prefix: str) -> tuple[int, int]:
        """Return the number of pages whose slots begin with `prefix`, and the number of entries on them."""
        ((pages, entries),) = self.rows(
            "SELECT count(*), coalesce(sum(entries), 0) FROM page WHERE root = ? AND slot BETWEEN ? AND ?",
            *(prefix, prefix + _RANGE_END),
        )
        return pages, entries

    def pages(self, column: Literal["rel", "slot"], begin: str) -> list[Page]:
        """Return the pages of which the path (`rel`) or the slot begins with a text.

        Args:
            column: `rel` or `slot`.
            begin: the text.
        """
        values = (self.key, begin, begin + _RANGE_END)
        return list(
            _PAGES.iterate_rows(self._connection, f"WHERE root = ? AND {column} BETWEEN ? AND ?", values)
        )

    def list_written(self, begin: str) -> set[RelPath]:
        """Return the files of the last index whose paths begin with `begin`."""
        found = self.rows(
            "SELECT rel FROM written WHERE root = ? AND rel BETWEEN ? AND ?", begin, begin + _RANGE_END
        )
        return {rel for (rel,) in found}

    def has_written_pages(self) -> bool:
        """Return whether the last index had pages, in addition to `MEMORY.md`."""
        return bool(self.rows("SELECT 1 FROM written WHERE root = ? AND rel > ? LIMIT 1", PAGES_PREFIX))

    def read_first_lines(self, order: str, count: int) -> list[str]:
        """Return the lines of the first `count` entries.

        Args:
            order: `BY_PATH` or `BY_WEIGHT`.
            count: maximum number of lines.
        """
        query = f"SELECT line FROM entry WHERE root = ? AND {_IS_LISTED} ORDER BY {order} LIMIT ?"  # noqa: S608
        return [line for (line,) in self.rows(query, count)]

    def count_entries(self, topic: str, prefix: str) -> TopicPart:
        """Return the number of entries on a page, and the bytes of their lines.

        Args:
            topic: topic of the page.
            prefix: prefix of the page.
        """
        ((entries, size),) = self._on_page("count(*), coalesce(sum(line_bytes), 0)", topic, prefix)
        return TopicPart(prefix, entries, size)

    def entries(self, topic: str, prefix: str) -> list[TopicPart]:
        """Return the entries on a page.

        Args:
            topic: topic of the page.
            prefix: prefix of the page.

        Returns:
            One part for each entry; its prefix is the full key of the entry.
        """
        return list(map(TopicPart._make, self._on_page("key, 1, line_bytes", topic, prefix, "ORDER BY key")))

    def lines(self, topic: str, prefix: str) -> list[str]:
        """Return the lines of the entries on a page, sorted by path.

        Args:
            topic: topic of the page.
            prefix: prefix of the page.
        """
        return [line for (line,) in self._on_page("line", topic, prefix, f"ORDER BY {BY_PATH}")]

    def _on_page(self, columns: str, topic: str, prefix: str, order: str = "") -> list[tuple[Any, ...]]:
        """Return some columns of the entries on a page.

        Args:
            columns: SQL for the columns.
            topic: topic of the page.
            prefix: prefix of the page.
            order: SQL for the order; empty: any order.
        """
        on_it = f"root = ? AND topic = ? AND key BETWEEN ? AND ? AND {_IS_LISTED}"
        query = f"SELECT {columns} FROM entry WHERE {on_it} {order}"  # noqa: S608
        return self.rows(query, topic, prefix, prefix + _RANGE_END)

    def parts(self, topic: str) -> list[TopicPart]:
        """Return the recorded pages of a topic."""
        found = self.rows("SELECT prefix, entries, bytes FROM page WHERE root = ? AND topic = ?", topic)
        return list(map(TopicPart._make, found))

    def replace_pages(self, topic: str, before: Collection[TopicPart], after: Collection[TopicPart]) -> None:
        """Replace the pages of a topic in the table `page`; new pages have short names at first.

        Args:
            topic: the topic.
            before: its recorded pages.
            after: its new pages.
        """
        remaining_prefixes, previous = {part.prefix for part in after}, set(before)
        digits = digest_topic(topic)[:TOPIC_DIGITS]
        self._connection.executemany(
            "DELETE FROM page WHERE root = ? AND topic = ? AND prefix = ?",
            [(self.key, topic, part.prefix) for part in before if part.prefix not in remaining_prefixes],
        )
        new = [
            Page(self.key, topic, part, *_build_page_path(digits, part.prefix))
            for part in after
            if part not in previous
        ]
        on_conflict = "ON CONFLICT DO UPDATE SET entries = excluded.entries, bytes = excluded.bytes"
        _PAGES.insert(self._connection, new, suffix=on_conflict)

    def name_pages(self, prefix: str) -> None:
        """Give unique file names to the pages of all topics whose paths begin with `prefix`."""
        topics = self.rows(
            "SELECT topic, min(rel), max(rel) FROM page WHERE root = ? AND rel BETWEEN ? AND ?"
            " GROUP BY topic",
            *(prefix, prefix + _RANGE_END),
        )
        for topic, first, last in topics:
            file_prefix = digest_topic(topic) if len(topics) > 1 else digest_topic(topic)[:TOPIC_DIGITS]
            names = {rel.removesuffix(FILE_SUFFIX).partition("-")[0] for rel in (first, last)}
            if names != {PAGES_PREFIX + file_prefix}:
                self._connection.executemany(
                    "UPDATE page SET rel = ?, slot = ? WHERE root = ? AND topic = ? AND prefix = ?",
                    [
                        (*_build_page_path(file_prefix, part.prefix), self.key, topic, part.prefix)
                        for part in self.parts(topic)
                    ],
                )


EXPIRES_AT: Final = (
    "CASE length(entry.expires) WHEN 10 THEN"
    " coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', entry.expires, '+1 day', 'utc'), entry.expires)"
    " ELSE entry.expires END"
)
"""SQL for the time when an entry expires, computed as by `content.expiry.compute_expiry_time`.

SQLite uses the same time zone as Python.
"""


def expire_lines(rows: IndexRows, now: str) -> None:
    """Remove the lines of expired entries from the catalog, so that the index does not list these entries.

    Args:
        rows: rows of a root.
        now: current time, ISO-8601 UTC.
    """
    expired = f"WHERE root = ? AND expires > '' AND {_IS_LISTED} AND {EXPIRES_AT} <= ?"
    if rows.rows(f"SELECT 1 FROM entry {expired} LIMIT 1", now):  # noqa: S608
        relisted = "INSERT INTO relisted (root, topic, key) SELECT root, topic, key FROM entry"
        rows.rows(f"{relisted} {expired}", now)
        rows.rows(f"UPDATE entry SET line = '', line_bytes = 0 {expired}", now)  # noqa: S608


def rebuild_pages(rows: IndexRows) -> None:
    """Compute the table `page` of a root again, from all entries."""
    rows.rows("DELETE FROM page WHERE root = ?")
    topics = rows.rows(
        f"SELECT topic, count(*), sum(line_bytes) FROM entry WHERE root = ? AND {_IS_LISTED} GROUP BY topic"  # noqa: S608
    )
    for topic, entries, size in topics:
        fits = fits_page(entries, size)
        parts = [TopicPart("", entries, size)] if fits else split_topic(rows.entries(topic, ""))
        rows.replace_pages(topic, (), tuple(parts))
    for begin in {_build_topic_prefix(topic) for topic, _, _ in topics}:
        rows.name_pages(begin)


def update_pages(rows: IndexRows) -> IndexChanges | None:
    """Update the table `page` from `relisted`; return the changes, or None if the last index had no pages."""
    relisted = rows.rows("SELECT topic, key FROM relisted WHERE root = ? ORDER BY topic, key")
    changed: set[tuple[str, str]] = set()
    for topic, group in groupby(relisted, key=itemgetter(0)):
        keys = [key for _, key in group]
        before = rows.parts(topic)
        after = {part.prefix: part for part in split_topic(_list_parts(rows, topic, keys, before))}
        rows.replace_pages(topic, before, after.values())
        changed |= {
            (topic, prefix) for key in keys if (prefix := _find_covering_prefix(key, after)) is not None
        }
    prefixes = frozenset(_build_topic_prefix(topic) for topic, _ in relisted)
    for begin in prefixes:
        rows.name_pages(begin)
    return IndexChanges(prefixes, frozenset(changed)) if rows.has_written_pages() else None


def _list_parts(
    rows: IndexRows, topic: str, keys: Sequence[str], before: Iterable[TopicPart]
) -> list[TopicPart]:
    """Return the parts of a topic for `split_topic`; the pages that contain one of `keys` are counted again.

    Args:
        rows: rows of the root.
        topic: the topic.
        keys: keys of the entries that changed.
        before: the recorded pages of the topic.
    """
    parts = {part.prefix: part for part in before}
    # A key that no page covers is a new entry, or a removed one.
    for prefix in {key if (found := _find_covering_prefix(key, parts)) is None else found for key in keys}:
        parts.pop(prefix, None)
        total = rows.count_entries(topic, prefix)
        fits = fits_page(total.entries, total.size)
        for part in [total] if fits and total.entries else rows.entries(topic, prefix):
            parts[part.prefix] = part
    return sorted(parts.values())


def _find_covering_prefix(key: str, prefixes: Collection[str]) -> str | None:
    return next((key[:depth] for depth in range(len(key) + 1) if key[:depth] in prefixes), None)


def _build_page_path(digits: str, prefix: str) -> tuple[RelPath, str]:
    """Return path and slot of a page.

    Args:
        digits: digits of the SHA-256 of the topic.
        prefix: prefix of the page.
    """
    name = f"{digits}-{prefix}{FILE_SUFFIX}" if prefix else f"{digits}{FILE_SUFFIX}"
    rel = RelPath(PAGES_PREFIX + name)
    return rel, compute_slot(rel)


def compute_slot(rel: RelPath) -> str:
    """Return the slot of the page with the path `rel`: the SHA-256 of its file name."""
    return digest(rel.removeprefix(PAGES_PREFIX).encode())


def _build_topic_prefix(topic: str) -> str:
    """Return the common path prefix of the pages of a topic, and of topics with the same first digits."""
    return PAGES_PREFIX + digest_topic(topic)[:TOPIC_DIGITS]
