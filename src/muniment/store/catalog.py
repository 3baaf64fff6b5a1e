"""The catalog: rows for every entry and name of a root, kept right by looking at what changed and no more.

On success of `refresh`, and of `View.look_again` for the directories that it is given:

- G1. The rows are what a walk of the whole root would find (N1, N2 below), as long as no file was
  edited in place: names that came, went or were replaced are found by the times of their directory, which is
  listed again if they are not as recorded, or were so new when it was last listed that a later change might
  bear the same time. A file is read again unless inode, size and both times are as recorded.
- G2. With `sweep`, files that were edited in place are found as well, and what else changes a file without
  its directory: its mode, its times, a second name.
- G3. Every entry whose line in the index came, went or changed is in `relisted`.
- G4. Text, name and description of a held entry are in no row. The full-text rows are those of the entries
  that can be read and are not held; no others have a vector.
- G5. A refresh commits what it found each time that it has read `visit.BATCH` files, and the rest at its
  end. One that fails or is given up leaves rows that are right of their files, and of the directories that it
  did not end with what has the next one look at them, so that each gets further. `look_again` commits
  everything or nothing.

`View.complete` is False if anything was not looked at that may hold entries: a directory that could not be
listed, or more than `MAX_NAMES` names. An index is not rebuilt from such a view, and a collision check on it
proves nothing. What could not be listed is tried again at each refresh.

What does not hold: that the tree is still so; nothing that is claimed of a file may rest on its row. Only a
sweep finds an edit in place, and a mount that covers a file. Nothing finds a change that falls into the same
tick of the clock as the one before it, on a file system whose clock runs behind this machine's.

Locks: `assess` runs inside the catalog's transaction and may read the ledger. So nobody may ask for the
catalog while holding a transaction of the ledger.

Attacked in tests/units/store/test_catalog*.py.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from muniment.errors import MunimentError, NotAFile, NotFound, PathEscape, TooLarge, printable
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import digest
from muniment.kernel.names import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_PATH_BYTES,
    Digest,
    RelPath,
    Scope,
    Trust,
    joined,
)
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, segment_problem
from muniment.kernel.root import Kind, OpenDirectory, Root, Sighted
from muniment.store.index import is_index_path
from muniment.store.rows import (
    Assess,
    Assessed,
    Embedder,
    Row,
    Text,
    drop_texts,
    put_texts,
    row_of,
    unreadable_row,
)
from muniment.store.state import Database
from muniment.store.table import Table

# -- looking -----------------------------------------------------------------------------------------
#
# What a name in a memory is, by its path and kind; and whether what stands there is what was seen before.
#
# - N1. Everything is reached by handle; no link is followed, and nothing but regular `.md` files is read.
# - N2. No entry is dropped silently: one that cannot be read is listed as unreadable, a name that is no
#   entry's
#   (outside the grammar, a link, a FIFO, a file with a second name, too deep) is odd, with the reason. Dot
#   names, files without `.md`, and the index are no entries and passed over, and nothing is seen of what is
#   in
#   dot directories, odd directories and `index/`.

MAX_NAMES: Final = 100_000
"""Names of one root that are looked at: five times the files that the default policy allows."""

Stamp = tuple[int, int, int, int]
"""By what a file is known to be the one that was read: inode, size, `mtime_ns`, `ctime_ns`."""

_SECOND: Final = 1_000_000_000
_RACY_NS: Final = 50_000_000
"""Within so many nanoseconds two changes may bear one time: a kernel takes it from a clock that ticks every 1
to 10 ms; the rest is for that clock's lag."""
_RACY_COARSE_NS: Final = 2 * _SECOND + _RACY_NS
"""Likewise where times are whole seconds: FAT counts in steps of two."""
_MASK: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Odd:
    """A name on disk that is no entry's though it may look like one.

    Attributes:
        path: the path inside the scope in printable form; not a path to open.
        reason: why, in a few words.
    """

    path: str
    reason: str


def odd(path: str, reason: str) -> Odd:
    """What is odd at `path`, any text inside a scope; "" is the root."""
    return Odd(printable(path or "."), reason)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """What a name is, judged without opening it.

    Attributes:
        is_entry: its file is an entry, if it can be opened as one.
        is_directory: it is to be walked.
        odd: why it is neither though it may look like it; None also for what is passed over.
    """

    is_entry: bool = False
    is_directory: bool = False
    odd: str | None = None


_PASSED_OVER: Final = NamedFile()
_ENTRY_FILE: Final = NamedFile(is_entry=True)
_DIRECTORY: Final = NamedFile(is_directory=True)
_SPECIAL: Final = NamedFile(odd="a link or special file")


def named(scope: Scope, directory: str, name: str, kind: Kind) -> NamedFile:
    """What `name` in `directory` is (N2)."""
    path = joined(directory, name)
    if name.startswith(".") or is_index_path(path):
        return _PASSED_OVER
    if problem := _path_problem(scope, path, name):
        return NamedFile(odd=problem)
    if kind == "directory":
        return _DIRECTORY
    if kind == "other":
        return _SPECIAL
    return _ENTRY_FILE if name.endswith(FILE_SUFFIX) else _PASSED_OVER


def stamp(status: os.stat_result) -> Stamp:
    """What of a status is recorded, as integers that a database takes: times may lie in any year."""
    return (
        status.st_ino & _MASK,
        status.st_size,
        status.st_mtime_ns & _MASK,
        status.st_ctime_ns & _MASK,
    )


def is_racy(status: os.stat_result, now_ns: int) -> bool:
    """Whether what was looked at may still change without its times telling.

    Args:
        status: as it was just before it was looked at.
        now_ns: the wall clock, no later than `status`.

    Does not hold for a file system whose clock is not this machine's and runs behind it.
    """
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    return newest > now_ns - (_RACY_NS if newest % _SECOND else _RACY_COARSE_NS)


def _path_problem(scope: Scope, path: str, name: str) -> str | None:
    if problem := segment_problem(name):
        return problem
    if path.count("/") + 2 > MAX_DEPTH:
        return f"deeper than {MAX_DEPTH} levels"
    if len(f"{scope}/{path}".encode()) > MAX_PATH_BYTES:
        return f"a path longer than {MAX_PATH_BYTES} bytes"
    return None


# -- visit -------------------------------------------------------------------------------------------
#
# Brings the catalog's rows of directories up to date, within a transaction, or several one after the other.
#
# A visit lists a directory, asks what stands at each name that may be an entry's, reads what is not as
# recorded, and drops what is gone, with everything beneath. Directories that are new are visited as well.
#
# Holds, whatever other processes do to the tree meanwhile:
#
# - V1. What is recorded of a directory or file was asked before its names or bytes were read (L2 of
#   `muniment.kernel.root`), and is recorded as proving nothing where it is too new for that. So what
#   changes meanwhile, or within the same tick of the clock, is found by the next visit.
# - V2. Each directory is visited once at most. Nothing but the database and `assess` raises.
# - V3. Rows are handed to the database as they come: some megabytes of text wait at a time, however large
#   the
#   memory is.
# - V4. With `save`, what was found is committed each time that `BATCH` files were read. A directory that is
#   not
#   done by then stays as it was recorded, or is recorded as missed, so that the next visit takes it up
#   again.

PENDING_CHARS: Final = 4 << 20
"""Characters that wait for the database (V3)."""

BATCH: Final = 500
"""Files that are read between two commits (V4): some 0.2 s."""

_ROW_CHARS: Final = 1_000  # what a row counts for besides its text


class _Directory(NamedTuple):
    """The row of a directory."""

    root: str
    path: str
    inode: int
    mtime_ns: int
    ctime_ns: int
    racy: int
    names: int
    odd: str | None
    missed: int


class _Name(NamedTuple):
    """The row of a name that is no entry's."""

    root: str
    directory: str
    name: bytes
    odd: str | None
    walked: int


class _Entry(NamedTuple):
    """The row of an entry."""

    id: int
    root: str
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    row: Row


class _ReadRow(NamedTuple):
    """How a file stood when it was read last, and what was thought of it."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    digest: Digest
    assessed: Assessed


class _Relisted(NamedTuple):
    """An entry whose line is not in the index as it is."""

    root: str
    topic: str
    key: str


_READ_ROWS: Final = Table("entry", _ReadRow)
_DIRECTORIES: Final = Table("directory", _Directory)
_NAMES: Final = Table("name", _Name)
_ENTRIES: Final = Table("entry", _Entry)
_RELISTED: Final = Table("relisted", _Relisted)

_NO_STAMP: Final[Stamp] = (0, 0, 0, 0)

_STAMP: Final = ("inode", "size", "mtime_ns", "ctime_ns")
_LASTING: Final = Row._fields.index("digest")  # The columns before it follow from the path.
_UPDATED: Final = (*_STAMP, *Row._fields[_LASTING:])
_UPDATE: Final = f"UPDATE entry SET {', '.join(f'{name} = ?' for name in _UPDATED)} WHERE id = ?"  # noqa: S608

_RESTAMP: Final = f"UPDATE entry SET {', '.join(f'{name} = ?' for name in _STAMP)} WHERE id = ?"  # noqa: S608

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
        embedder: makes the vectors of those that may be told; None: nobody does.
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
        embedder: Embedder | None,
        now_ns: int,
        save: Callable[[], bool] | None = None,
    ) -> None:
        self._database = connection
        self._key = key
        self._root = root
        self._assess = assess
        self._embedder = embedder
        self._now_ns = now_ns
        self._save = save
        self._unsaved = 0
        self._unvisited: dict[str, None] = {}
        self._unrecorded: list[str] = []
        self._next_id = 0
        self._pending = 0
        self._inserts: list[_Entry] = []
        self._updates: list[tuple[Any, ...]] = []
        self._removals: list[tuple[int]] = []
        self._stamps: list[tuple[int, ...]] = []
        self._stale_texts: list[tuple[int]] = []
        self._texts: list[tuple[int, Text]] = []
        self._relisted: list[_Relisted] = []

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

    def _visit(self, path: str, recorded: _Directory | None) -> None:
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(_opened(self._root, path))
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
        inode, _, mtime_ns, ctime_ns = stamp(opened.status)
        racy, missed = int(seen.racy), int(seen.missed)
        found = _Directory(self._key, path, inode, mtime_ns, ctime_ns, racy, len(listed), None, missed)
        self._record(recorded, found)

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
        text: Text | None = None
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
            found = stamp(status)
            if is_racy(status, self._now_ns):
                found = (*found[:3], 0)
            of = digest(data)
            assessed = self._assess(rel, of, data)
            if number and self._says_the_same(number, found, of, assessed):
                return
            row, text = row_of(rel, data, of, assessed, self._embedder)
        if number:
            self._update(number, found, row, text)
        else:
            self._insert(found, row, text)

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

    def _says_the_same(self, number: int, found: Stamp, of: Digest, assessed: Assessed) -> bool:
        """Whether a row stays but for its stamp: the bytes are the same, and what is thought of them."""
        (known,) = _READ_ROWS.each(self._database, "WHERE id = ?", (number,))
        if (known.digest, known.assessed) != (of, assessed) or self._lacks_vector(number):
            return False
        if known != (*found, of, assessed):
            self._stamps.append((*found, number))
        return True

    def _lacks_vector(self, number: int) -> bool:
        """Whether an entry has none that may have one: what it had was of another model."""
        query = "SELECT 1 FROM vector WHERE entry = ?"
        return self._embedder is not None and self._database.execute(query, (number,)).fetchone() is None

    def _insert(self, found: Stamp, row: Row, text: Text | None) -> None:
        if not self._next_id:
            ((self._next_id,),) = self._database.execute("SELECT coalesce(max(id), 0) + 1 FROM entry")
        number = self._next_id
        self._next_id += 1
        self._inserts.append(_Entry(number, self._key, *found, row))
        self._relist(row.topic, row.key)
        self._put_text(number, text)

    def _update(self, number: int, found: Stamp, row: Row, text: Text | None) -> None:
        ((digest, held, line),) = self._database.execute(
            "SELECT digest, held, line FROM entry WHERE id = ?", (number,)
        )
        self._updates.append((*found, *row[_LASTING:], number))
        if line != row.line:
            self._relist(row.topic, row.key)
        if (digest, held) != (row.digest, row.held) or self._lacks_vector(number):
            self._stale_texts.append((number,))
            self._put_text(number, text)

    def _put_text(self, number: int, text: Text | None) -> None:
        self._pending += _ROW_CHARS
        if text is not None:
            self._texts.append((number, text))
            self._pending += sum(map(len, text.words))
        if self._pending > PENDING_CHARS:
            self._flush()

    def _remove(self, number: int) -> None:
        ((topic, key),) = self._database.execute("SELECT topic, key FROM entry WHERE id = ?", (number,))
        self._relist(topic, key)
        self._removals.append((number,))
        self._stale_texts.append((number,))

    def _relist(self, topic: str, key: str) -> None:
        self._relisted.append(_Relisted(self._key, topic, key))

    def _flush(self) -> None:
        """Hand over what waits: first what goes, so that nothing stands in the way of what comes."""
        execute = self._database.executemany
        drop_texts(self._database, self._stale_texts)
        execute("DELETE FROM entry WHERE id = ?", self._removals)
        execute(_UPDATE, self._updates)
        execute(_RESTAMP, self._stamps)
        _ENTRIES.insert(self._database, self._inserts)
        put_texts(self._database, self._texts)
        _RELISTED.insert(self._database, self._relisted)
        for waiting in (self._stale_texts, self._removals, self._updates, self._stamps):
            waiting.clear()
        self._inserts.clear()
        self._texts.clear()
        self._relisted.clear()
        self._pending = 0

    def _commit(self, save: Callable[[], bool], path: str) -> None:
        """Commit what was found up to the middle of a directory (V4)."""
        self._flush()
        missed = [self._not_listed(each, None, missed=True) for each in (path, *self._unrecorded)]
        _DIRECTORIES.insert(self._database, missed, "INSERT OR IGNORE")
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
        new_or_other = [_Name(*where, name, *what) for name, what in seen.others.items() - known.items()]
        _NAMES.insert(self._database, new_or_other, "INSERT OR REPLACE")

    def _is_too_much(self, path: str, recorded: _Directory | None, count: int) -> bool:
        if recorded is not None and count <= recorded.names:
            return False
        ((others,),) = self._database.execute(
            "SELECT coalesce(sum(names), 0) FROM directory WHERE root = ? AND path <> ?", (self._key, path)
        )
        return bool(others + count > MAX_NAMES)

    def _not_listed(self, path: str, reason: str | None, *, missed: bool) -> _Directory:
        return _Directory(self._key, path, 0, 0, 0, 1, 0, reason, int(missed))

    def _pass_over(self, path: str, recorded: _Directory | None, reason: str, *, missed: bool) -> None:
        """Record that a directory was not listed; it is tried again at each look."""
        record = self._not_listed(path, reason, missed=missed)
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

    def _recorded(self, path: str) -> _Directory | None:
        return next(_DIRECTORIES.each(self._database, "WHERE root = ? AND path = ?", (self._key, path)), None)

    def _record(self, recorded: _Directory | None, record: _Directory) -> None:
        if record != recorded:
            _DIRECTORIES.insert(self._database, [record], "INSERT OR REPLACE")


# -- catalog -----------------------------------------------------------------------------------------

Clock = Callable[[], int]
"""The wall clock: nanoseconds since 1970."""

_Recorded = tuple[int, ...]
"""Of a directory: inode, `mtime_ns`, `ctime_ns`, and whether these prove nothing."""

_UNKNOWN: Final[_Recorded] = (0, 0, 0, 1)

_UNPROVEN: Final = """
    SELECT path FROM directory INDEXED BY directory_unproven WHERE root = ? AND racy UNION ALL
    SELECT '' WHERE NOT EXISTS (SELECT 1 FROM directory WHERE root = ? AND path = '')
"""
_STAMPS_BEHIND: Final = """
    SELECT topic, rel, inode, size, mtime_ns, ctime_ns FROM entry
    WHERE root = ? AND (readable OR ctime_ns) AND (topic, rel) > (?, ?) ORDER BY topic, rel LIMIT 2000
"""

_TRIES: Final = 3
"""Refreshes that may be overtaken by another process before one keeps it out to its end."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One entry as its row says.

    Attributes:
        rel: canonical path inside the scope.
        size: bytes; 0 where even that could not be found out.
        digest: of the file; None if it cannot be read.
        name: by front matter, heading or file name; never empty, not cleaned.
        description: likewise; empty for an entry that cannot be read or is held.
        type: by front matter, or None.
        keywords: by front matter.
        trust: who it comes from; the least for one that cannot be read.
        expires: when it is no longer to be told, ISO-8601 UTC; None if never.
        readable: whether the file could be read.
        held: the gate that holds its text back; None if it may be told.
        note: what was not understood or why it could not be read; empty if nothing.
    """

    rel: RelPath
    size: int
    digest: Digest | None
    name: str
    description: str
    type: str | None
    keywords: tuple[str, ...]
    trust: Trust
    expires: str | None
    readable: bool
    held: str | None
    note: str


class _Root(NamedTuple):
    """What the rows of a root depend on besides its files."""

    id: str
    basis: str


_LISTED: Final = Table("entry", CatalogEntry, digest="nullif(digest, '')")
_ROOTS: Final = Table("root", _Root)


@dataclass(frozen=True, slots=True)
class ScopeUsage:
    """How much entries take: how many files, and their bytes."""

    files: int
    bytes: int


class View:
    """The rows of one root. Every answer is a query; see the module's docstring for what it means.

    Attributes:
        scope: whose root it is.
        key: of the root in the catalog.
    """

    def __init__(
        self,
        catalog: Database,
        key: str,
        bound: BoundRoot,
        assess: Assess,
        *,
        embedder: Embedder | None = None,
        clock: Clock,
    ) -> None:
        self.scope: Scope = bound.scope
        self.key = key
        self._catalog = catalog
        self._bound = bound
        self._assess = assess
        self._embedder = embedder
        self._clock = clock

    @property
    def complete(self) -> bool:
        """Whether everything was looked at that may hold entries."""
        ((listed, missed),) = self._rows("SELECT count(*), total(missed) FROM directory WHERE root = ?")
        return bool(listed and not missed)

    def directories(self) -> tuple[str, ...]:
        """Every directory that was listed, sorted; the root is the empty text."""
        return tuple(
            path
            for (path,) in self._rows(
                "SELECT path FROM directory WHERE root = ? AND odd IS NULL ORDER BY path"
            )
        )

    def names(self, directory: str) -> frozenset[str] | None:
        """All names in a directory; None if it was not listed. Names that are not UTF-8 hold surrogates."""
        listed = "SELECT 1 FROM directory WHERE root = ? AND path = ? AND odd IS NULL"
        if not self._rows(listed, directory):
            return None
        entries = self._rows("SELECT rel FROM entry WHERE root = ? AND topic = ?", directory)
        others = self._rows("SELECT name FROM name WHERE root = ? AND directory = ?", directory)
        above = len(joined(directory, ""))
        return frozenset([rel[above:] for (rel,) in entries] + [_text(name) for (name,) in others])

    def usage(self, accepts: Callable[[RelPath], bool] | None = None) -> ScopeUsage:
        """How much the entries take that `accepts` is true of; None: all of them."""
        if accepts is None:
            found = self._rows("SELECT files, bytes FROM total WHERE root = ?")
            return ScopeUsage(*found[0]) if found else ScopeUsage(0, 0)
        sizes = [
            size
            for rel, size in self._rows("SELECT rel, size FROM entry WHERE root = ?")
            if accepts(RelPath(rel))
        ]
        return ScopeUsage(len(sizes), sum(sizes))

    def entry(self, rel: RelPath) -> CatalogEntry | None:
        """The entry at `rel`, if there is one."""
        found = _LISTED.read(self._catalog, "WHERE root = ? AND rel = ?", (self.key, rel))
        return found[0] if found else None

    def entries(self) -> tuple[CatalogEntry, ...]:
        """All entries, unreadable and held ones too, sorted by path."""
        return _LISTED.read(self._catalog, "WHERE root = ? ORDER BY rel", (self.key,))

    def odd(self) -> tuple[Odd, ...]:
        """Names that are no entry's though they may look like one, and directories that were not listed."""
        names = self._rows("SELECT directory, name, odd FROM name WHERE root = ? AND odd IS NOT NULL")
        directories = self._rows("SELECT path, odd FROM directory WHERE root = ? AND odd IS NOT NULL")
        found = [
            *(odd(joined(directory, _text(name)), reason) for directory, name, reason in names),
            *(odd(path, reason) for path, reason in directories),
        ]
        return tuple(sorted(found, key=lambda item: (item.path, item.reason)))

    def look_again(self, directories: Iterable[str]) -> None:
        """Bring the rows of some directories up to date: after the caller's own writes there.

        Args:
            directories: inside the scope, existing or not; what was made or removed above and beneath them is
                found as well.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.

        Cost: a `newfstatat` a file in each of them, besides reading what changed.
        """
        wanted = set(directories)
        if not wanted:
            return
        above = {path[:end] for path in wanted for end, char in enumerate(path) if char == "/"} | {""}
        with self._catalog.transaction() as connection:
            now_ns = self._clock()
            known = self._known(f"AND path IN ({', '.join('?' * len(above))})", *above)
            stale = _stale(self._bound.root, known)
            visit = self._visit(connection, now_ns)
            visit.run({*stale, *wanted})

    def stale(self) -> Collection[str]:
        """The directories that are not as recorded, or were recorded when nothing proved anything.

        Cost: a `newfstatat` a directory, and one query.
        """
        return _stale(self._bound.root, self._known())

    def unproven(self) -> Collection[str]:
        """Those alone of which the record proves nothing, whatever stands there now."""
        rows = self._catalog.rows(_UNPROVEN, (self.key, self.key))
        return [path for (path,) in rows]

    def edited(self, patience: Patience) -> set[str]:
        """The directories that hold a file which is not as its row says, by inode, size and times.

        Raises:
            Cancelled, DeadlineExceeded: the patience ended.

        Cost: a `newfstatat` a file, 5 µs in all; no transaction.
        """
        found: set[str] = set()
        last: tuple[str, str] = ("", "")
        while rows := self._rows(_STAMPS_BEHIND, *last):
            found |= self.edited_of([(rel, mark) for _, rel, *mark in rows], patience)
            last = rows[-1][:2]
        return found

    def edited_of(self, rows: Iterable[tuple[str, Sequence[int]]], patience: Patience) -> set[str]:
        """Likewise of some files, each with what is recorded of it, see `Stamp`."""
        found: set[str] = set()
        of: defaultdict[str, list[tuple[str, Sequence[int]]]] = defaultdict(list)
        for rel, mark in rows:
            directory, _, name = rel.rpartition("/")
            of[directory].append((name, mark))
        for directory, names in of.items():
            patience.check()
            try:
                with _opened(self._bound.root, directory) as opened:
                    is_same = all(_is_stamped(opened.status_of(name), mark) for name, mark in names)
            except MunimentError:
                is_same = False
            if not is_same:
                found.add(directory)
        return found

    def is_swept(self, seconds: int) -> bool:
        """Whether every file was asked in the last `seconds`, by any process."""
        rows = self._rows("SELECT swept FROM root WHERE id = ?")
        return bool(rows and 0 <= self._clock() // _SECOND - rows[0][0] < seconds)

    def note_sweep(self) -> None:
        """Keep that every file was asked just now.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
        """
        with self._catalog.transaction() as connection:
            connection.execute("UPDATE root SET swept = ? WHERE id = ?", (self._clock() // _SECOND, self.key))

    def all_known(self) -> Collection[str]:
        """Every directory that is recorded, and the root."""
        return self._known()

    def bring_up_to_date(self, basis: str, look: Look) -> None:
        """What `refresh` does."""
        left = _TRIES
        while True:
            if self._basis() != basis:
                self._begin_anew(basis)
            stale = look.stale(self)
            if stale and not self._visited(stale, self._catalog.save if left > 1 else None):
                left -= 1
            elif look.has_done(self, stale):
                return

    def _visited(self, stale: Iterable[str], save: Callable[[], bool] | None) -> bool:
        """Whether directories were visited, without being overtaken."""
        with suppress(Overtaken), self._catalog.transaction() as connection:
            now_ns = self._clock()
            visit = self._visit(connection, now_ns, save)
            visit.run(stale)
            return True
        return False

    def _visit(
        self, connection: sqlite3.Connection, now_ns: int, save: Callable[[], bool] | None = None
    ) -> Visit:
        root = self._bound.root
        return Visit(
            connection, self.key, root, self._assess, embedder=self._embedder, now_ns=now_ns, save=save
        )

    def _begin_anew(self, basis: str) -> None:
        """Have every file read again: nothing that is recorded proves anything on another basis.

        Until then nobody is told of an entry: it might have expired.
        """
        with self._catalog.transaction() as connection:
            if self._basis() == basis:
                return  # Somebody else was first, and may have read everything by now.
            connection.execute("UPDATE entry SET ctime_ns = 0, expires = '' WHERE root = ?", (self.key,))
            connection.execute("UPDATE directory SET racy = 1 WHERE root = ?", (self.key,))
            vectors = "DELETE FROM vector WHERE entry IN (SELECT id FROM entry WHERE root = ?)"
            connection.execute(vectors, (self.key,))
            _ROOTS.insert(connection, [_Root(self.key, basis)], "INSERT OR REPLACE")

    def _basis(self) -> str | None:
        found = self._rows("SELECT basis FROM root WHERE id = ?")
        return found[0][0] if found else None

    def _known(self, condition: str = "", *values: str) -> dict[str, _Recorded]:
        """What is recorded of the directories that meet the condition, and of the root in any case."""
        query = f"SELECT path, inode, mtime_ns, ctime_ns, racy FROM directory WHERE root = ? {condition}"  # noqa: S608
        rows = self._rows(query, *values)
        return {"": _UNKNOWN, **{row[0]: row[1:] for row in rows}}

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._catalog.rows(query, (self.key, *values))


class Look(Protocol):
    """Says where to look."""

    def stale(self, view: View) -> Collection[str]:
        """The directories that are to be listed."""

    def has_done(self, view: View, listed: Collection[str]) -> bool:
        """Told that these were; whether nothing is left."""


class _Everywhere:
    """Looks at every directory, and lists those that changed.

    Args:
        sweep: lists all of them, so that every file is asked.
    """

    def __init__(self, *, sweep: bool) -> None:
        self._sweep = sweep

    def stale(self, view: View) -> Collection[str]:
        return view.all_known() if self._sweep else view.stale()

    def has_done(self, _view: View, _listed: Collection[str]) -> bool:
        return True


def refresh(  # noqa: PLR0913  by keyword
    catalog: Database,
    key: str,
    bound: BoundRoot,
    assess: Assess,
    *,
    basis: str,
    embedder: Embedder | None = None,
    sweep: bool = False,
    look: Look | None = None,
    clock: Clock = time.time_ns,
) -> View:
    """Bring the rows of a root up to date (G1 to G5).

    Whoever is about to write holds the lock of the root; readers may call without it.

    Args:
        catalog: the database.
        key: of the root in it.
        bound: the root.
        assess: asked for each file that is read, inside the catalog's transaction.
        basis: what rows depend on besides their files, such as a policy's digest; where it is not the one of
            the refresh before, every file is read again.
        embedder: makes the vectors of entries; the basis names its model. None: there are none.
        sweep: look at every file (G2).
        look: says where to look instead; None: everywhere.
        clock: the wall clock.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read or written. Nothing that the tree does.
        Whatever `assess` does; what was committed until then stays (G5).

    Cost: with nothing changed, a `newfstatat` a directory and one query, nothing written.
    """
    view = View(catalog, key, bound, assess, embedder=embedder, clock=clock)
    view.bring_up_to_date(basis, look or _Everywhere(sweep=sweep))
    return view


def _stale(root: Root, known: Mapping[str, _Recorded]) -> list[str]:
    """Those of the known directories that are to be listed: racy, or not what stands at their path now.

    Asked by name in the directory that holds them, which is reached without following a link.

    Args:
        root: its handle.
        known: what is recorded, of the root at least.
    """
    children: defaultdict[str, list[str]] = defaultdict(list, {"": []})
    for path in known:
        parent, _, name = path.rpartition("/")
        if name:
            children[parent].append(name)
    stale: list[str] = []
    for parent, names in children.items():
        try:
            opened = _opened(root, parent)
        except MunimentError:
            stale += [parent, *(joined(parent, name) for name in names)]
            continue
        with opened:
            if not parent and not _is_as_recorded(opened.status, known[""]):
                stale.append("")
            stale += [
                path
                for name in names
                if not _is_as_recorded(opened.status_of(name), known[path := joined(parent, name)])
            ]
    return stale


def _opened(root: Root, directory: str) -> OpenDirectory:
    return OpenDirectory(root, CanonicalPath(root.scope, RelPath(directory)))


def _is_as_recorded(status: os.stat_result | None, recorded: _Recorded) -> bool:
    inode, mtime_ns, ctime_ns, racy = recorded
    if status is None or racy:
        return False
    now = stamp(status)
    return (now[0], now[2], now[3]) == (inode, mtime_ns, ctime_ns)


def _is_stamped(status: os.stat_result | None, recorded: Sequence[int]) -> bool:
    return status is not None and stamp(status) == (*recorded,)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
