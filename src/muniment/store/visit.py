"""Brings the catalog's rows of directories up to date, within a transaction, or several one after the other.

A visit lists a directory, asks what stands at each name that may be an entry's, reads what is not as
recorded, and drops what is gone, with everything beneath. Directories that are new are visited as well.

Holds, whatever other processes do to the tree meanwhile:

- V1. What is recorded of a directory or file was asked before its names or bytes were read (L2 of
  `muniment.confine.root`), and is recorded as proving nothing where it is too new for that. So what
  changes meanwhile, or within the same tick of the clock, is found by the next visit.
- V2. Each directory is visited once at most. Nothing but the database and `assess` raises.
- V3. Rows are handed to the database as they come: some megabytes of text wait at a time, however large the
  memory is.
- V4. With `save`, what was found is committed each time that `BATCH` files were read. A directory that is not
  done by then stays as it was recorded, or is recorded as missed, so that the next visit takes it up again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from muniment.confine.root import OpenDirectory, Root, Sighted
from muniment.errors import MunimentError, NotAFile, NotFound, PathEscape, TooLarge
from muniment.names import MAX_FILE_BYTES, joined
from muniment.store.fulltext import Columns
from muniment.store.looking import MAX_NAMES, Stamp, is_racy, named, stamp
from muniment.store.rows import Assess, Row, row_of, unreadable_row

PENDING_CHARS: Final = 4 << 20
"""Characters that wait for the database (V3)."""

BATCH: Final = 500
"""Files that are read between two commits (V4): some 0.2 s."""

_ROW_CHARS: Final = 1_000  # what a row counts for besides its text
_Record = tuple[Any, ...]
"""The row of a directory without its root: path, inode, both times, racy, names, odd, missed."""

_NO_STAMP: Final[Stamp] = (0, 0, 0, 0)

_STAMP: Final = ("inode", "size", "mtime_ns", "ctime_ns")
_LASTING: Final = Row._fields.index("digest")  # The columns before it follow from the path.
_INSERTED: Final = ("id", "root", *_STAMP, *Row._fields)
_UPDATED: Final = (*_STAMP, *Row._fields[_LASTING:])
_INSERT: Final = f"INSERT INTO entry ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"  # noqa: S608
_UPDATE: Final = f"UPDATE entry SET {', '.join(f'{name} = ?' for name in _UPDATED)} WHERE id = ?"  # noqa: S608

_ENTRIES_OF: Final = "FROM entry WHERE root = ? AND topic >= ? AND topic < ?"
_DROP: Final = (
    f"INSERT INTO relisted (root, topic, key) SELECT root, topic, key {_ENTRIES_OF}",
    f"DELETE FROM text WHERE rowid IN (SELECT id {_ENTRIES_OF})",  # noqa: S608
    f"DELETE {_ENTRIES_OF}",
    "DELETE FROM name WHERE root = ? AND directory >= ? AND directory < ?",
    "DELETE FROM directory WHERE root = ? AND path >= ? AND path < ?",
)


class Overtaken(Exception):
    """Another process wrote between two of our transactions: what was asked of the rows may not hold."""


@dataclass(slots=True)
class _Seen:
    """A directory as it is found to be.

    Attributes:
        path: inside the scope.
        racy: whether its times prove nothing.
        others: names that are no entry's, by their bytes: why they are odd if they are, and whether they are
            directories to be visited.
        missed: whether there may be entries in it that were not seen.
    """

    path: str
    racy: bool
    others: dict[bytes, tuple[str | None, int]]
    missed: bool = False


class Visit:
    """One visit of a root under way.

    Args:
        connection: inside a write transaction.
        key: of the root in the catalog.
        root: its handle.
        assess: asked for each file that is read.
        now_ns: the wall clock before the first look.
        save: commits, and begins the next transaction (V4); whether nobody else wrote in between. None: all
            is one transaction, the caller's.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        key: str,
        root: Root,
        assess: Assess,
        *,
        now_ns: int,
        save: Callable[[], bool] | None = None,
    ) -> None:
        self._database = connection
        self._key = key
        self._root = root
        self._assess = assess
        self._now_ns = now_ns
        self._save = save
        self._unsaved = 0
        self._unvisited: dict[str, None] = {}
        self._unrecorded: list[str] = []
        self._next_id = 0
        self._pending = 0
        self._inserts: list[tuple[Any, ...]] = []
        self._updates: list[tuple[Any, ...]] = []
        self._removals: list[tuple[int]] = []
        self._stale_texts: list[tuple[int]] = []
        self._texts: list[tuple[Any, ...]] = []
        self._relisted: list[tuple[str, str, str]] = []

    def run(self, directories: Iterable[str]) -> None:
        """Visit `directories`, as far as they are known or the root, and what is new beneath them.

        Raises:
            Overtaken: by another process, at a commit; what was committed stays.
        """
        for path in sorted(directories):  # What holds others stands before them, and may drop them.
            recorded = self._recorded(path)
            if path not in self._unvisited and (recorded is not None or not path):
                self._visit(path, recorded)
        while self._unvisited:
            self._visit(self._unvisited.popitem()[0], None)
        self._flush()

    def _visit(self, path: str, recorded: _Record | None) -> None:
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(OpenDirectory(self._root, path))
                listed = opened.entries()
            except PathEscape as escape:
                # A mount, or a link that took the directory's place: not part of this memory.
                reason = f"leads outside the memory ({escape.via})"
                self._pass_over(path, recorded, reason, missed=False)
                return
            except (MunimentError, OSError):
                self._pass_over(path, recorded, "this directory could not be listed", missed=True)
                return
            if self._is_too_much(path, recorded, len(listed)):
                reason = f"the memory holds more than {MAX_NAMES} names"
                self._pass_over(path, recorded, reason, missed=True)
                return
            seen = _Seen(path, is_racy(opened.status, self._now_ns), {})
            self._compare_entries(opened, listed, seen)
        self._compare_others(seen)
        inode, _, *times = stamp(opened.status)
        self._record(recorded, (path, inode, *times, int(seen.racy), len(listed), None, int(seen.missed)))

    # -- entries

    def _compare_entries(self, opened: OpenDirectory, listed: Sequence[Sighted], seen: _Seen) -> None:
        known: dict[str, tuple[int, Stamp]] = {
            rel: (number, (inode, size, mtime_ns, ctime_ns))
            for rel, number, inode, size, mtime_ns, ctime_ns in self._database.execute(
                "SELECT rel, id, inode, size, mtime_ns, ctime_ns FROM entry WHERE root = ? AND topic = ?",
                (self._key, seen.path),
            )
        }
        for item in listed:
            rel = joined(seen.path, item.name)
            if item.kind == "file" and rel in known:
                number, recorded = known.pop(rel)  # Its name is an entry's, as when it was read.
            else:
                what = named(self._root.scope, seen.path, item.name, item.kind)
                if not what.is_entry:
                    seen.others[item.raw] = (what.odd, int(what.is_directory))
                    continue
                number, recorded = 0, _NO_STAMP
            found = _NO_STAMP if item.status is None else stamp(item.status)
            if found != recorded or not number:
                self._read(opened, item, number, found, seen)
                self._unsaved += 1
                if self._save is not None and self._unsaved >= BATCH:
                    self._commit(self._save, seen.path)
        for number, _ in known.values():
            self._remove(number)

    def _read(self, opened: OpenDirectory, item: Sighted, number: int, found: Stamp, seen: _Seen) -> None:
        """Read the file `item`, an entry if it can be; `found` is what stood there just before."""
        rel = joined(seen.path, item.name)
        words: Columns | None = None
        try:
            data, status = opened.read(item.name)
        except TooLarge:
            row = unreadable_row(rel, f"the file is larger than {MAX_FILE_BYTES} bytes")
        except (PathEscape, NotFound, NotAFile) as problem:
            self._judge_missing(item.raw, number, problem, seen)
            return
        except (MunimentError, OSError):
            row, found = unreadable_row(rel, "the file cannot be read"), (*found[:3], 0)
        else:
            row, words = row_of(rel, data, self._assess)
            found = stamp(status)
            if is_racy(status, self._now_ns):
                found = (*found[:3], 0)
        if number:
            self._update(number, found, row, words)
        else:
            self._insert(found, row, words)

    def _judge_missing(self, raw: bytes, number: int, problem: MunimentError, seen: _Seen) -> None:
        """Take a name for what it was found to be when it was opened: no entry."""
        odd = None  # Where nothing is there any more, it is as if it had gone before.
        if isinstance(problem, PathEscape):
            odd = f"leads outside the memory ({problem.via})"
        elif isinstance(problem, NotAFile):
            odd = "became a directory while it was looked at"
            seen.missed = seen.racy = True
        seen.others[raw] = (odd, 0)
        if number:
            self._remove(number)

    def _insert(self, found: Stamp, row: Row, words: Columns | None) -> None:
        if not self._next_id:
            ((self._next_id,),) = self._database.execute("SELECT coalesce(max(id), 0) + 1 FROM entry")
        number = self._next_id
        self._next_id += 1
        self._inserts.append((number, self._key, *found, *row))
        self._relist(row.topic, row.key)
        self._put_words(number, words)

    def _update(self, number: int, found: Stamp, row: Row, words: Columns | None) -> None:
        ((digest, held, line),) = self._database.execute(
            "SELECT digest, held, line FROM entry WHERE id = ?", (number,)
        )
        self._updates.append((*found, *row[_LASTING:], number))
        if line != row.line:
            self._relist(row.topic, row.key)
        if (digest, held) != (row.digest, row.held):
            self._stale_texts.append((number,))
            self._put_words(number, words)

    def _put_words(self, number: int, words: Columns | None) -> None:
        if words is not None:
            self._texts.append((number, *words))
        self._pending += _ROW_CHARS + sum(map(len, words or ()))
        if self._pending > PENDING_CHARS:
            self._flush()

    def _remove(self, number: int) -> None:
        ((topic, key),) = self._database.execute("SELECT topic, key FROM entry WHERE id = ?", (number,))
        self._relist(topic, key)
        self._removals.append((number,))
        self._stale_texts.append((number,))

    def _relist(self, topic: str, key: str) -> None:
        self._relisted.append((self._key, topic, key))

    def _flush(self) -> None:
        """Hand over what waits: first what goes, so that nothing stands in the way of what comes."""
        execute = self._database.executemany
        execute("DELETE FROM text WHERE rowid = ?", self._stale_texts)
        execute("DELETE FROM entry WHERE id = ?", self._removals)
        execute(_UPDATE, self._updates)
        execute(_INSERT, self._inserts)
        execute(
            "INSERT INTO text (rowid, name, description, body, context) VALUES (?, ?, ?, ?, ?)", self._texts
        )
        execute("INSERT INTO relisted (root, topic, key) VALUES (?, ?, ?)", self._relisted)
        for waiting in (self._stale_texts, self._removals, self._updates, self._inserts, self._texts):
            waiting.clear()
        self._relisted.clear()
        self._pending = 0

    def _commit(self, save: Callable[[], bool], path: str) -> None:
        """Commit what was found up to the middle of a directory (V4)."""
        self._flush()
        self._database.executemany(
            "INSERT OR IGNORE INTO directory"
            " (root, path, inode, mtime_ns, ctime_ns, racy, names, odd, missed)"
            " VALUES (?, ?, 0, 0, 0, 1, 0, NULL, 1)",
            [(self._key, each) for each in (path, *self._unrecorded)],
        )
        self._unrecorded.clear()
        self._unsaved = self._next_id = 0
        if not save():
            raise Overtaken

    # -- names and directories

    def _compare_others(self, seen: _Seen) -> None:
        where = (self._key, seen.path)
        known = {
            name: (odd, walked)
            for name, odd, walked in self._database.execute(
                "SELECT name, odd, walked FROM name WHERE root = ? AND directory = ?", where
            )
        }
        walked_before = {name for name, (_, walked) in known.items() if walked}
        walked_now = {name for name, (_, walked) in seen.others.items() if walked}
        for name in walked_before - walked_now:
            self._drop(joined(seen.path, name.decode()))
        new = [joined(seen.path, name.decode()) for name in walked_now - walked_before]
        self._unvisited.update(dict.fromkeys(new))
        self._unrecorded += new
        self._database.executemany(
            "DELETE FROM name WHERE root = ? AND directory = ? AND name = ?",
            [(*where, name) for name in known.keys() - seen.others.keys()],
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO name (root, directory, name, odd, walked) VALUES (?, ?, ?, ?, ?)",
            [(*where, name, *what) for name, what in seen.others.items() - known.items()],
        )

    def _is_too_much(self, path: str, recorded: _Record | None, count: int) -> bool:
        if recorded is not None and count <= recorded[5]:
            return False
        ((others,),) = self._database.execute(
            "SELECT coalesce(sum(names), 0) FROM directory WHERE root = ? AND path <> ?", (self._key, path)
        )
        return bool(others + count > MAX_NAMES)

    def _pass_over(self, path: str, recorded: _Record | None, reason: str, *, missed: bool) -> None:
        """Record that a directory was not listed; it is tried again at each look."""
        record = (path, 0, 0, 0, 1, 0, reason, int(missed))
        if record != recorded:
            self._drop(path)
            self._record(recorded, record)

    def _drop(self, path: str) -> None:
        """Drop a directory and all beneath it."""
        for first, beyond in (
            ((path, f"{path}\0"), (f"{path}/", f"{path}0")) if path else (("", "\U0010ffff"),)
        ):
            span = (self._key, first, beyond)
            for statement in _DROP:
                self._database.execute(statement, span)

    def _recorded(self, path: str) -> _Record | None:
        found: _Record | None = self._database.execute(
            "SELECT path, inode, mtime_ns, ctime_ns, racy, names, odd, missed"
            " FROM directory WHERE root = ? AND path = ?",
            (self._key, path),
        ).fetchone()
        return found

    def _record(self, recorded: _Record | None, record: _Record) -> None:
        if record != recorded:
            self._database.execute(
                "INSERT OR REPLACE INTO directory"
                " (root, path, inode, mtime_ns, ctime_ns, racy, names, odd, missed)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (self._key, *record),
            )
