"""Read the directories of a memory, and update their rows in the catalog.

`catalog.py` selects the directories and queries the rows. Only this module reads files.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from stat import S_ISDIR, S_ISREG
from typing import Any, Final, NamedTuple

from muniment.errors import MunimentError, NotAFile, NotFound, PathEscape, StoreConflict, TooLarge, printable
from muniment.events import track_progress
from muniment.kernel.binding import BoundRoot
from muniment.kernel.change import digest
from muniment.kernel.listing import NameStatus, OpenDirectory
from muniment.kernel.names import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_PATH_BYTES,
    Digest,
    RelPath,
    Scope,
    join_path,
)
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, find_segment_problem
from muniment.kernel.root import Kind, Root
from muniment.store.index import is_index_path
from muniment.store.rows import (
    AssessFile,
    Assessment,
    Embedder,
    Row,
    Text,
    build_entry_row,
    build_unreadable_row,
    delete_texts,
    insert_texts,
)
from muniment.store.table import Table

# -- names ---------------------------------------------------------------------------------------------
#
# The classification of a name in a memory, by path and kind; and whether a file is the one that was read
# before.
#
# - N1. Everything is opened by handle; no link is followed, and only regular `.md` files are read.
# - N2. No entry is dropped silently: an unreadable one is listed as unreadable. A name that cannot be an
#   entry (outside the grammar, a link, a FIFO, a file with a second name, too deep) is odd, with the reason.
#   Dot names, files without `.md`, and the index are not entries and are skipped. The contents of dot
#   directories, odd directories and `index/` are not read.

MAX_NAMES: Final = 100_000
"""Maximum number of names in one root: five times the number of files that the default policy allows."""


class Stamp(NamedTuple):
    """The recorded state of a file that was read; if it is different now, the file is read again."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


SECOND_NS: Final = 1_000_000_000
_RACY_NS: Final = 50_000_000
"""Maximum nanoseconds between two changes that may have the same time.

A kernel takes the time of a change from a clock that ticks every 1 to 10 ms. The rest is for the lag of that
clock.
"""
_RACY_COARSE_NS: Final = 2 * SECOND_NS + _RACY_NS
"""The same maximum for file systems with times in whole seconds. FAT counts in steps of two seconds."""
_MASK: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class OddName:
    """A name on disk that resembles an entry but is not one.

    Attributes:
        path: path inside the scope, in printable form; it cannot be used to open the file.
        reason: why the name is not an entry, in a few words.
    """

    path: str
    reason: str


def build_odd_name(path: str, reason: str) -> OddName:
    """Return the `OddName` for a path.

    Args:
        path: any path inside a scope; "" is the root.
        reason: why the name is not an entry.
    """
    return OddName(printable(path or "."), reason)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """The classification of a name by its path and kind, without opening the file.

    Attributes:
        is_entry: the file is an entry, if it can be opened as one.
        is_directory: the directory must be visited.
        odd: why the name is neither, although it resembles an entry; None also for names that are skipped.
    """

    is_entry: bool = False
    is_directory: bool = False
    odd: str | None = None


_SKIPPED: Final = NamedFile()
_ENTRY_FILE: Final = NamedFile(is_entry=True)
_DIRECTORY: Final = NamedFile(is_directory=True)
_SPECIAL: Final = NamedFile(odd="a link or special file")


def classify_name(scope: Scope, directory: str, name: str, kind: Kind) -> NamedFile:
    """Return whether a name is an entry, a directory to visit, odd, or to be skipped.

    An odd name resembles an entry but is not one.

    Args:
        scope: scope of the directory.
        directory: path inside the scope; "" is the root.
        name: name in the directory.
        kind: kind of the file.
    """
    path = join_path(directory, name)
    if name.startswith(".") or is_index_path(path):
        return _SKIPPED
    if problem := _path_problem(scope, path, name):
        return NamedFile(odd=problem)
    if kind == "directory":
        return _DIRECTORY
    if kind == "other":
        return _SPECIAL
    return _ENTRY_FILE if name.endswith(FILE_SUFFIX) else _SKIPPED


def build_stamp(status: os.stat_result) -> Stamp:
    """Return the part of a file status that the catalog records, as integers that the database can store."""
    times = status.st_mtime_ns & _MASK, status.st_ctime_ns & _MASK
    return Stamp(status.st_ino & _MASK, status.st_size, *times)


def is_racy(status: os.stat_result, now_ns: int) -> bool:
    """Return whether a file or directory may still change without a change of its times.

    Args:
        status: its status, read just before its content.
        now_ns: time of the wall clock, not later than the status was read.

    Not guaranteed for a file system whose clock is slower than this machine's.
    """
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    return newest > now_ns - (_RACY_NS if newest % SECOND_NS else _RACY_COARSE_NS)


def _path_problem(scope: Scope, path: str, name: str) -> str | None:
    if problem := find_segment_problem(name):
        return problem
    if path.count("/") + 2 > MAX_DEPTH:
        return f"deeper than {MAX_DEPTH} levels"
    if len(f"{scope}/{path}".encode()) > MAX_PATH_BYTES:
        return f"a path longer than {MAX_PATH_BYTES} bytes"
    return None


# -- visit ---------------------------------------------------------------------------------------------
#
# Updates the catalog's rows of directories, in one transaction, or in several consecutive ones.
#
# A visit lists a directory, checks each name that may be an entry, reads files that differ from their record,
# and drops the rows of deleted ones, with everything under them. New directories are visited also.
#
# Guaranteed, also if other processes change the tree meanwhile:
#
# - V1. The recorded state of a directory or file was read before its names or bytes (L2 of
#   `muniment.kernel.root`). It is recorded as proving nothing if it is too recent. So a change during the
#   visit, or within the same clock tick, is found by the next visit.
# - V2. Each directory is visited at most once. Only the database and `assess` can raise.
# - V3. Rows are passed to the database continuously: only a few megabytes of text are pending, for a memory
#   of any size.
# - V4. With `save`, the results are committed after every `BATCH` files. A directory that is unfinished then
#   keeps its old record, or is recorded as missed, so that the next visit continues with it.
# - V5. If only some names are checked, the directory is recorded as proving nothing, so that a process
#   without notifications lists it.

PENDING_CHARS: Final = 4 << 20
"""Maximum characters of rows that wait to be passed to the database."""

BATCH: Final = 500
"""Number of files that are read between two commits; this takes about 0.2 s."""

_ROW_CHARS: Final = 1_000  # the size of a row without its text


class _DirectoryRow(NamedTuple):
    """The row of a directory in the catalog.

    Attributes:
        racy: 1 if the recorded times prove nothing, so that the directory is listed again.
        names: number of names in the directory.
        odd: why the directory was not listed; None if it was.
        missed: 1 if the directory may contain entries that have no rows.
    """

    root: str
    path: str
    inode: int
    mtime_ns: int
    ctime_ns: int
    racy: int
    names: int
    odd: str | None
    missed: int


class _NameRow(NamedTuple):
    """The row of a name that is not an entry.

    Attributes:
        odd: why the name is not an entry, although it resembles one; else None.
        walked: 1 if it is a directory that is visited.
    """

    root: str
    directory: str
    name: bytes
    odd: str | None
    walked: int


class _EntryRow(NamedTuple):
    """The row of an entry in the catalog."""

    id: int
    root: str
    stamp: Stamp
    row: Row


class _ReadRow(NamedTuple):
    """The state of a file when it was read last, and its assessment."""

    stamp: Stamp
    digest: Digest
    assessed: Assessment


class _Relisted(NamedTuple):
    """An entry whose line in the index is outdated.

    Attributes:
        root: key of the root.
        topic: folder of the entry.
        key: SHA-256 of the path of the entry.
    """

    root: str
    topic: str
    key: str


_READ_ROWS: Final = Table("entry", _ReadRow)
_DIRECTORIES: Final = Table("directory", _DirectoryRow)
_NAMES: Final = Table("name", _NameRow)
_ENTRIES: Final = Table("entry", _EntryRow)
_RELISTED: Final = Table("relisted", _Relisted)

_NO_STAMP: Final = Stamp(0, 0, 0, 0)
_FIRST_CHANGING: Final = Row._fields.index("digest")  # The columns before it depend only on the path.
_UPDATED: Final = (*Stamp._fields, *Row._fields[_FIRST_CHANGING:])
_UPDATE: Final = f"UPDATE entry SET {', '.join(f'{name} = ?' for name in _UPDATED)} WHERE id = ?"  # noqa: S608

_RESTAMP: Final = f"UPDATE entry SET {', '.join(f'{name} = ?' for name in Stamp._fields)} WHERE id = ?"  # noqa: S608
_LACKS: Final = "UPDATE root SET lacks = 1 WHERE id = ? AND model <> '' AND NOT lacks"

_ENTRIES_OF: Final = "FROM entry WHERE root = ? AND topic >= ? AND topic < ?"
_DELETE_DIRECTORY: Final = (
    f"INSERT INTO relisted (root, topic, key) SELECT root, topic, key {_ENTRIES_OF}",
    f"DELETE FROM text WHERE rowid IN (SELECT id {_ENTRIES_OF})",  # noqa: S608
    f"DELETE {_ENTRIES_OF}",
    "DELETE FROM name WHERE root = ? AND directory >= ? AND directory < ?",
    "DELETE FROM directory WHERE root = ? AND path >= ? AND path < ?",
)


StaleDirectories = Mapping[str, Collection[str] | None]
"""The directories to visit. For each one: the names that changed in it, or None if it must be listed."""

_Others = dict[bytes, tuple[str | None, int]]
"""Names that are not entries. For each one: why it is odd, or None; and 1 if it is a directory to visit."""


@dataclass(slots=True)
class _DirectoryState:
    """The state of a directory, as it was found by a visit.

    Attributes:
        path: path inside the scope.
        is_racy: whether the times of the directory prove nothing.
        others: the names that are not entries, as bytes. For each one: why it is odd, or None; and 1 if it is
            a directory to visit.
        has_missed: whether the directory may contain entries that were not found.
    """

    path: str
    is_racy: bool
    others: _Others
    has_missed: bool = False


@dataclass(slots=True)
class _PendingRows:
    """Changes that wait to be passed to the database, and their size in characters."""

    chars: int = 0
    inserts: list[_EntryRow] = field(default_factory=list)
    updates: list[tuple[Any, ...]] = field(default_factory=list)
    removals: list[tuple[int]] = field(default_factory=list)
    stamps: list[tuple[int, ...]] = field(default_factory=list)
    stale_texts: list[tuple[int]] = field(default_factory=list)
    texts: list[tuple[int, Text]] = field(default_factory=list)
    relisted: list[_Relisted] = field(default_factory=list)


class Visit:
    """Reads directories of one root and updates their rows; V1 to V5 above are its guarantees.

    Args:
        connection: connection inside a write transaction.
        key: key of the root in the catalog.
        bound: the root.
        assess: called for each file that is read; returns its trust and expiry.
        embedder: computes the vectors of entries that may be shown; None: no vectors.
        now_ns: time of the wall clock before the first check.
        save: commits and begins the next transaction; returns whether no other process wrote in between.
            None: everything is in the caller's transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        key: str,
        bound: BoundRoot,
        assess: AssessFile,
        *,
        embedder: Embedder | None,
        now_ns: int,
        save: Callable[[], bool] | None = None,
    ) -> None:
        self._database = connection
        self._key = key
        self._root = bound.root
        self._scope = bound.scope
        self._assess = assess
        self._embedder = embedder
        self._now_ns = now_ns
        self._save = save
        self._unsaved = 0
        self._waiting: list[tuple[str, Collection[str] | None]] = []
        self._to_visit: dict[str, None] = {}
        self._names_listed = 0
        self._unrecorded: list[str] = []
        self._next_id = 0
        self._pending_rows = _PendingRows()

    def run(self, stale: StaleDirectories) -> None:
        """Visit the directories in `stale`, and all new directories under them; update their rows.

        Raises:
            StoreConflict: another process wrote rows while this visit committed; earlier commits stay.
        """
        with track_progress("reading files") as self._progress:
            # A parent directory comes before its children, and may drop them.
            self._waiting = sorted(stale.items(), reverse=True)
            while self._waiting:
                path, names = self._waiting.pop()
                recorded = self._read_directory(path)
                if path in self._to_visit or (recorded is None and path):
                    continue
                if names is None or recorded is None or not self._visit_names(path, recorded, names):
                    self._visit(path, recorded)
            while self._to_visit:
                self._visit(self._to_visit.popitem()[0], None)
            self._flush()

    def _visit(self, path: str, recorded: _DirectoryRow | None) -> None:
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(open_directory(self._root, path))
                listed = opened.entries()
            except PathEscape as escape:
                # A mount, or a link that replaced the directory: not part of this memory.
                reason = f"points outside the memory ({escape.via})"
                self._record_unlisted(path, recorded, reason, has_missed=False)
                return
            except (MunimentError, OSError):
                self._record_unlisted(path, recorded, "this directory could not be listed", has_missed=True)
                return
            if self._exceeds_limit(path, recorded, len(listed)):
                reason = f"the memory contains more than {MAX_NAMES} names"
                self._record_unlisted(path, recorded, reason, has_missed=True)
                return
            seen = _DirectoryState(path, is_racy(opened.status, self._now_ns), {})
            self._compare_entries(opened, listed, self._read_entries(path), seen)
        self._compare_others(seen, self._read_others(path))
        inode, _, mtime_ns, ctime_ns = build_stamp(opened.status)
        racy, missed = int(seen.is_racy), int(seen.has_missed)
        found = _DirectoryRow(self._key, path, inode, mtime_ns, ctime_ns, racy, len(listed), None, missed)
        self._write_directory(recorded, found)

    def _visit_names(self, path: str, recorded: _DirectoryRow, names: Collection[str]) -> bool:
        """Check only some names of a directory; return False if it must be listed completely instead.

        Args:
            path: the directory.
            recorded: its row.
            names: the names that changed.
        """
        try:
            opened = open_directory(self._root, path)
        except (MunimentError, OSError):
            return False
        with opened:
            if recorded.odd is not None or recorded.missed or opened.status.st_ino & _MASK != recorded.inode:
                return False
            try:
                listed = [item for item in (_read_name(opened, name) for name in names) if item is not None]
            except MunimentError:
                return False
            entries, others = self._read_entries(path, names), self._read_others(path, names)
            before = len(entries) + len(others)
            is_of_files = all(item.kind != "directory" for item in listed)
            if not is_of_files or any(walked for _, walked in others.values()):
                return False
            count = recorded.names + len(listed) - before
            if self._exceeds_limit(path, recorded, count):
                return False
            seen = _DirectoryState(path, is_racy=True, others={})
            self._compare_entries(opened, listed, entries, seen)
        self._compare_others(seen, others)
        self._write_directory(recorded, recorded._replace(racy=1, names=count, missed=int(seen.has_missed)))
        return True

    def _read_entries(self, path: str, names: Collection[str] | None = None) -> dict[str, tuple[int, Stamp]]:
        """Return the recorded id and stamp of each entry in a directory, by path.

        Args:
            path: the directory.
            names: names to return; None: all.
        """
        query = "SELECT rel, id, inode, size, mtime_ns, ctime_ns FROM entry WHERE root = ? AND topic = ?"
        values: tuple[str, ...] = (self._key, path)
        if names is not None:
            query += " AND rel IN (SELECT value FROM json_each(?))"
            values = (*values, json.dumps([join_path(path, name) for name in names if _is_utf8(name)]))
        return {
            rel: (number, Stamp(inode, size, mtime_ns, ctime_ns))
            for rel, number, inode, size, mtime_ns, ctime_ns in self._database.execute(query, values)
        }

    def _read_others(self, path: str, names: Collection[str] | None = None) -> _Others:
        """Return the recorded names in a directory that are not entries.

        Args:
            path: the directory.
            names: names to return; None: all.
        """
        query = "SELECT name, odd, walked FROM name WHERE root = ? AND directory = ?"
        found = {
            name: (odd, walked) for name, odd, walked in self._database.execute(query, (self._key, path))
        }
        wanted = None if names is None else {name.encode("utf-8", "surrogateescape") for name in names}
        return {name: what for name, what in found.items() if wanted is None or name in wanted}

    # -- entries

    def _compare_entries(
        self,
        opened: OpenDirectory,
        listed: Sequence[NameStatus],
        known: dict[str, tuple[int, Stamp]],
        seen: _DirectoryState,
    ) -> None:
        self._names_listed += len(listed)
        for item in listed:
            self._progress.done += 1
            if self._progress.is_shown and self._progress.total is None:
                self._progress.total = self._names_listed + self._count_unlisted_names(seen.path, listed)
            rel = join_path(seen.path, item.name)
            if item.kind == "file" and rel in known:
                number, recorded = known.pop(rel)  # The name has the form of an entry, as when it was read.
            else:
                what = classify_name(self._root.scope, seen.path, item.name, item.kind)
                if not what.is_entry:
                    seen.others[item.raw] = (what.odd, int(what.is_directory))
                    continue
                number, recorded = 0, _NO_STAMP
            found = _NO_STAMP if item.status is None else build_stamp(item.status)
            if found != recorded or not number:
                self._read(opened, item, number, found, seen)
                self._unsaved += 1
                if self._save is not None and self._unsaved >= BATCH:
                    self._commit(self._save, seen.path)
        for number, _ in known.values():
            self._remove(number)

    def _count_unlisted_names(self, path: str, listed: Iterable[NameStatus]) -> int:
        """Return the number of names in the directories that this visit must still list; an estimate.

        Args:
            path: the current directory.
            listed: the names in it.

        Cost: lists these directories.
        """
        unlisted = [*(each for each, _ in self._waiting), *self._to_visit]
        unlisted += self._find_new_directories(path, listed)
        count, counted = 0, set[str]()
        while unlisted and count < MAX_NAMES:
            directory = unlisted.pop()
            if directory not in counted:
                counted.add(directory)
                with suppress(MunimentError, OSError), open_directory(self._root, directory) as opened:
                    names = opened.entries()
                    count += len(names)
                    unlisted += self._find_new_directories(directory, names)
        return count

    def _find_new_directories(self, path: str, listed: Iterable[NameStatus]) -> Iterator[str]:
        """Yield the directories among the names in the directory `path` that have no row."""
        for item in listed:
            if (
                item.kind == "directory"
                and classify_name(self._scope, path, item.name, item.kind).is_directory
            ):
                below = join_path(path, item.name)
                if self._read_directory(below) is None:
                    yield below

    def _read(
        self, opened: OpenDirectory, item: NameStatus, number: int, found: Stamp, seen: _DirectoryState
    ) -> None:
        """Read one file, and queue its new row.

        Args:
            opened: the directory of the file.
            item: name and status of the file.
            number: id of its row; 0 if it has none.
            found: stamp of the file just before it was read.
            seen: found state of the directory.
        """
        rel = join_path(seen.path, item.name)
        text: Text | None = None
        try:
            data, status = opened.read(item.name)
        except TooLarge:
            row = build_unreadable_row(rel, f"the file is larger than {MAX_FILE_BYTES} bytes")
        except (PathEscape, NotFound, NotAFile) as problem:
            self._record_as_other(item.raw, number, problem, seen)
            return
        except (MunimentError, OSError):
            row, found = build_unreadable_row(rel, "the file cannot be read"), found._replace(ctime_ns=0)
        else:
            found = build_stamp(status)
            if is_racy(status, self._now_ns):
                found = found._replace(ctime_ns=0)
            of = digest(data)
            assessed = self._assess(rel, of, data)
            if number and self._is_row_current(number, found, of, assessed):
                return
            row, text = build_entry_row(self._scope, rel, data, of, assessed, self._embedder)
        if number:
            self._update(number, found, row, text)
        else:
            self._insert(found, row, text)

    def _record_as_other(
        self, raw: bytes, number: int, problem: MunimentError, seen: _DirectoryState
    ) -> None:
        """Record that a name is not an entry, and delete its row.

        Args:
            raw: the name as bytes.
            number: id of its row; 0 if it has none.
            problem: the error when the file was opened.
            seen: found state of the directory.
        """
        odd = None  # A missing file is treated as if it had been deleted before.
        if isinstance(problem, PathEscape):
            odd = f"points outside the memory ({problem.via})"
        elif isinstance(problem, NotAFile):
            odd = "became a directory while it was read"
            seen.has_missed = seen.is_racy = True
        seen.others[raw] = (odd, 0)
        if number:
            self._remove(number)

    def _is_row_current(self, number: int, found: Stamp, of: Digest, assessed: Assessment) -> bool:
        """Return whether bytes and assessment of a file are as in its row; if so, update only the stamp.

        Args:
            number: id of the row.
            found: new stamp of the file.
            of: new digest of the file.
            assessed: new assessment of the file.
        """
        (recorded,) = _READ_ROWS.iterate_rows(self._database, "WHERE id = ?", (number,))
        if (recorded.digest, recorded.assessed) != (of, assessed) or self._lacks_vector(number):
            return False
        if recorded.stamp != found:
            self._pending_rows.stamps.append((*found, number))
        return True

    def _lacks_vector(self, number: int) -> bool:
        """Return whether an entry has no vector although `embedder` computes vectors."""
        query = "SELECT 1 FROM vector WHERE entry = ?"
        return self._embedder is not None and self._database.execute(query, (number,)).fetchone() is None

    def _insert(self, found: Stamp, row: Row, text: Text | None) -> None:
        if not self._next_id:
            ((self._next_id,),) = self._database.execute("SELECT coalesce(max(id), 0) + 1 FROM entry")
        number = self._next_id
        self._next_id += 1
        self._pending_rows.inserts.append(_EntryRow(number, self._key, found, row))
        self._queue_relisting(row.topic, row.key)
        self._queue_text(number, text)

    def _update(self, number: int, found: Stamp, row: Row, text: Text | None) -> None:
        ((digest, withheld_by, line),) = self._database.execute(
            "SELECT digest, held, line FROM entry WHERE id = ?", (number,)
        )
        self._pending_rows.updates.append((*found, *row[_FIRST_CHANGING:], number))
        if line != row.line:
            self._queue_relisting(row.topic, row.key)
        if (digest, withheld_by) != (row.digest, row.held) or self._lacks_vector(number):
            self._pending_rows.stale_texts.append((number,))
            self._queue_text(number, text)

    def _queue_text(self, number: int, text: Text | None) -> None:
        self._pending_rows.chars += _ROW_CHARS
        if text is not None:
            self._pending_rows.texts.append((number, text))
            self._pending_rows.chars += sum(map(len, text.columns))
        if self._pending_rows.chars > PENDING_CHARS:
            self._flush()

    def _remove(self, number: int) -> None:
        ((topic, key),) = self._database.execute("SELECT topic, key FROM entry WHERE id = ?", (number,))
        self._queue_relisting(topic, key)
        self._pending_rows.removals.append((number,))
        self._pending_rows.stale_texts.append((number,))

    def _queue_relisting(self, topic: str, key: str) -> None:
        self._pending_rows.relisted.append(_Relisted(self._key, topic, key))

    def _flush(self) -> None:
        """Write the pending changes: removals first, so that they do not conflict with additions."""
        database, waiting = self._database, self._pending_rows
        self._pending_rows = _PendingRows()
        if self._embedder is None and (waiting.stamps or waiting.updates or waiting.texts):
            database.execute(_LACKS, (self._key,))
        delete_texts(database, waiting.stale_texts)
        database.executemany("DELETE FROM entry WHERE id = ?", waiting.removals)
        database.executemany(_UPDATE, waiting.updates)
        database.executemany(_RESTAMP, waiting.stamps)
        _ENTRIES.insert(database, waiting.inserts)
        insert_texts(database, waiting.texts)
        _RELISTED.insert(database, waiting.relisted)

    def _commit(self, save: Callable[[], bool], path: str) -> None:
        """Commit the results so far, in the middle of a directory.

        Unfinished directories are recorded as incomplete, so that the next visit continues with them.

        Args:
            save: commits; returns whether no other process wrote in between.
            path: the unfinished directory.
        """
        self._flush()
        missed = [self._build_unlisted_row(each, None, has_missed=True) for each in (path, *self._unrecorded)]
        _DIRECTORIES.insert(self._database, missed, "INSERT OR IGNORE")
        self._unrecorded.clear()
        self._unsaved = self._next_id = 0
        if not save():
            raise StoreConflict((path,))

    # -- names and directories

    def _compare_others(self, seen: _DirectoryState, known: _Others) -> None:
        key_and_path = (self._key, seen.path)
        walked_before = {name for name, (_, walked) in known.items() if walked}
        walked_now = {name for name, (_, walked) in seen.others.items() if walked}
        for name in walked_before - walked_now:
            self._delete_directory(join_path(seen.path, name.decode()))
        new = [join_path(seen.path, name.decode()) for name in walked_now - walked_before]
        self._to_visit.update(dict.fromkeys(new))
        self._unrecorded += new
        self._database.executemany(
            "DELETE FROM name WHERE root = ? AND directory = ? AND name = ?",
            [(*key_and_path, name) for name in known.keys() - seen.others.keys()],
        )
        new_or_other = [
            _NameRow(*key_and_path, name, *what) for name, what in seen.others.items() - known.items()
        ]
        _NAMES.insert(self._database, new_or_other, "INSERT OR REPLACE")

    def _exceeds_limit(self, path: str, recorded: _DirectoryRow | None, count: int) -> bool:
        if recorded is not None and count <= recorded.names:
            return False
        ((others,),) = self._database.execute(
            "SELECT coalesce(sum(names), 0) FROM directory WHERE root = ? AND path <> ?", (self._key, path)
        )
        return bool(others + count > MAX_NAMES)

    def _build_unlisted_row(self, path: str, reason: str | None, *, has_missed: bool) -> _DirectoryRow:
        return _DirectoryRow(self._key, path, 0, 0, 0, 1, 0, reason, int(has_missed))

    def _record_unlisted(
        self, path: str, recorded: _DirectoryRow | None, reason: str, *, has_missed: bool
    ) -> None:
        """Record that a directory was not listed; each later visit tries to list it again.

        Args:
            path: the directory.
            recorded: its row; None if it has none.
            reason: why it was not listed.
            has_missed: whether it may contain entries.
        """
        record = self._build_unlisted_row(path, reason, has_missed=has_missed)
        if record != recorded:
            self._delete_directory(path)
            self._write_directory(recorded, record)

    def _delete_directory(self, path: str) -> None:
        """Delete the rows of a directory and of everything under it."""
        for first, end in ((path, f"{path}\0"), (f"{path}/", f"{path}0")) if path else (("", "\U0010ffff"),):
            span = (self._key, first, end)
            for statement in _DELETE_DIRECTORY:
                self._database.execute(statement, span)

    def _read_directory(self, path: str) -> _DirectoryRow | None:
        return next(
            _DIRECTORIES.iterate_rows(self._database, "WHERE root = ? AND path = ?", (self._key, path)), None
        )

    def _write_directory(self, recorded: _DirectoryRow | None, record: _DirectoryRow) -> None:
        if record != recorded:
            _DIRECTORIES.insert(self._database, [record], "INSERT OR REPLACE")


def open_directory(root: Root, directory: str) -> OpenDirectory:
    """Open a directory of a root by its path inside the scope; raise as `OpenDirectory`."""
    return OpenDirectory(root, CanonicalPath(root.scope, RelPath(directory)))


def _read_name(opened: OpenDirectory, name: str) -> NameStatus | None:
    """Return kind and status of a name in an open directory, or None if the name does not exist."""
    status = opened.read_status(name)
    if status is None:
        return None
    kind: Kind = "file" if S_ISREG(status.st_mode) else "directory" if S_ISDIR(status.st_mode) else "other"
    raw = name.encode("utf-8", "surrogateescape")
    return NameStatus(raw, name, kind, status if kind == "file" else None)


def _is_utf8(name: str) -> bool:
    """Return whether a name is valid UTF-8. Only such a name can be an entry."""
    return name.isprintable() or not any("\ud800" <= char <= "\udfff" for char in name)
