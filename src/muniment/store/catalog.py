"""The catalog: rows for every entry and name of a root, updated by reading only what changed.

`View.refresh` guarantees the following for the complete root, and `View.rescan` for the directories that it
is given:

- G1. The rows are the same as after a walk of the complete root (N1, N2 in `visit.py`), except for files that
  were edited in place. New, deleted and replaced names are found by the times of their directory. A directory
  is listed again if its times differ from the record, or if the record is so recent that a later change might
  have the same time. A file is read again if its inode, its size or one of its times differs from the record.
- G2. With `sweep`, files that were edited in place are also found, and so are changes of a file that do not
  change its directory: of its mode, its times, or its second name.
- G3. Every entry whose line in the index was added, removed or changed is in the table `relisted`.
- G4. No row contains text, name or description of a withheld entry. Full-text rows and vectors exist only for
  entries that are readable and not withheld.
- G5. A refresh commits after every `visit.BATCH` files that it read, and at its end. If it fails or is
  interrupted, the rows that it leaves are correct for their files. The rows of unfinished directories make
  the next refresh read them, so that each refresh makes progress. `rescan` commits everything or nothing.

`View.is_complete` is False if a part that may contain entries was not read: a directory that could not be
listed, or names beyond `MAX_NAMES`. With such a view, an index is not rebuilt, and a check for name
collisions proves nothing. A directory that could not be listed is tried again at each refresh.

Not guaranteed: that the files are still the same. No security decision about a file may rely on its row. Only
a sweep finds an edit in place, or a mount that covers a file. If the clock of a file system is slower than
that of this machine, a change in the same clock tick as the change before it is never found.

Locks: `assess` runs inside the catalog's transaction and may read the ledger. So no code may use the catalog
during a transaction of the ledger.

Attacked in tests/units/store/test_catalog*.py.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from muniment.errors import MunimentError, StoreConflict
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import (
    Digest,
    RelPath,
    Scope,
    Trust,
    join_path,
)
from muniment.kernel.path import fold
from muniment.kernel.root import Root
from muniment.store.rows import AssessFile, Embedder, digest_statement, normalize_for_index
from muniment.store.state import Database
from muniment.store.table import Table
from muniment.store.visit import (
    SECOND_NS,
    OddName,
    StaleDirectories,
    Visit,
    build_odd_name,
    build_stamp,
    open_directory,
)

# -- catalog -----------------------------------------------------------------------------------------

Clock = Callable[[], int]
"""The wall clock: nanoseconds since 1970."""

_RecordedStamp = tuple[int, ...]
"""The recorded state of a directory: inode, `mtime_ns`, `ctime_ns`, and whether it must be read again anyway.
"""

_UNKNOWN_STAMP: Final[_RecordedStamp] = (0, 0, 0, 1)

_UNPROVEN: Final = """
    SELECT path FROM directory INDEXED BY directory_unproven
    WHERE root = ? AND racy AND (missed OR odd IS NOT NULL) UNION ALL
    SELECT '' WHERE NOT EXISTS (SELECT 1 FROM directory WHERE root = ? AND path = '')
"""
_STAMPS_AFTER: Final = """
    SELECT topic, rel, inode, size, mtime_ns, ctime_ns FROM entry
    WHERE root = ? AND (readable OR ctime_ns) AND (topic, rel) > (?, ?) ORDER BY topic, rel LIMIT 2000
"""

_MAX_SCANS: Final = 20
"""Maximum number of scans in one refresh; the next refresh finds later changes."""

_MAX_INTERRUPTED: Final = 3
"""Number of times that another process may interrupt a refresh, before the refresh locks the catalog until
its
end.
"""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One entry, as its row in the catalog describes it.

    Attributes:
        rel: canonical path inside the scope.
        size: size of the file in bytes; 0 if unknown.
        digest: digest of the file; None if it cannot be read.
        name: from the front matter, the first heading or the file name; never empty, not cleaned.
        description: from the front matter or the text; empty for an entry that is unreadable or withheld.
        type: from the front matter, or None.
        keywords: from the front matter.
        trust: trust of the entry; for an unreadable one, the lowest trust.
        expires: the last day on which the entry is shown, or a time in UTC; None if it never expires.
        ends: the last day on which the entry is valid, according to its text; None if the text has no such
            date.
        readable: whether the file could be read.
        held: name of the check that withholds the text; None if the text may be shown.
        note: the part that could not be parsed, or why the file could not be read; otherwise empty.
        handle: the handle of the entry (`handles.build_handle`); empty if its text is withheld.
        at: the time of the last change: from the front matter, which proves nothing, or else from the file.
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
    ends: str | None
    readable: bool
    held: str | None
    note: str
    handle: str
    at: str


class _RootBasis(NamedTuple):
    """The inputs, other than files, from which the rows of a root were computed.

    Attributes:
        id: key of the root.
        basis: description of the policy and version that the rows depend on.
        model: identity of the model that computed the vectors; empty without vectors.
        lacks: 1 if entries may lack a vector.
    """

    id: str
    basis: str = ""
    model: str = ""
    lacks: int = 0

    def has_vectors(self, embedder: Embedder) -> bool:
        """Return whether the model of `embedder` computed the vectors of all entries that may have one."""
        return (self.model, self.lacks) == (embedder.identity, 0)


_CATALOG_ENTRIES: Final = Table(
    "entry",
    CatalogEntry,
    digest="nullif(digest, '')",
    at="coalesce(nullif(updated, ''), strftime('%Y-%m-%dT%H:%M:%SZ', mtime_ns / 1000000000, 'unixepoch'))",
)
_ROOTS: Final = Table("root", _RootBasis)


class ScopeUsage(NamedTuple):
    """The number of entries in a scope, and the sum of their sizes in bytes."""

    files: int
    bytes: int


class View:
    """The rows of one root in the catalog. The guarantees are in the module docstring.

    Args:
        catalog: the database.
        key: key of the root in the catalog.
        bound: the root.
        assess: called for each file that is read, inside the catalog's transaction; returns trust and expiry.
        embedder: computes the vectors of entries, once for each model. None: existing vectors stay.
        clock: the wall clock.

    Attributes:
        scope: the scope of the root.
        root: handle of the root.
        key: key of the root in the catalog.
    """

    def __init__(
        self,
        catalog: Database,
        key: str,
        bound: BoundRoot,
        assess: AssessFile,
        *,
        embedder: Embedder | None = None,
        clock: Clock = time.time_ns,
    ) -> None:
        self.scope: Scope = bound.scope
        self.root = bound.root
        self.key = key
        self._catalog = catalog
        self._bound = bound
        self._assess = assess
        self._embedder = embedder
        self._clock = clock
        self._last_refresh: tuple[str, ScanPlan] | None = None  # How it was refreshed last.

    @property
    def is_complete(self) -> bool:
        """Return whether all directories and names that may contain entries were read."""
        ((listed, missed),) = self._rows("SELECT count(*), total(missed) FROM directory WHERE root = ?")
        return bool(listed and not missed)

    def directories(self) -> tuple[str, ...]:
        """Return every directory of the root that was listed, sorted; the root itself is the empty string."""
        return tuple(
            path
            for (path,) in self._rows(
                "SELECT path FROM directory WHERE root = ? AND odd IS NULL ORDER BY path"
            )
        )

    def names(self, directory: str) -> frozenset[str] | None:
        """Return all names in a directory of the root; None if the directory was not listed.

        A name that is not UTF-8 contains surrogate characters.
        """
        listed = "SELECT 1 FROM directory WHERE root = ? AND path = ? AND odd IS NULL"
        if not self._rows(listed, directory):
            return None
        entries = self._rows("SELECT rel FROM entry WHERE root = ? AND topic = ?", directory)
        others = self._rows("SELECT name FROM name WHERE root = ? AND directory = ?", directory)
        above = len(join_path(directory, ""))
        return frozenset([rel[above:] for (rel,) in entries] + [_decode_name(name) for (name,) in others])

    def has_written(self, content_digest: Digest) -> bool:
        """Return whether an index file with this digest was written in the root, or was planned."""
        found = self._rows("SELECT digest FROM written WHERE root = ? AND digest = ?", content_digest)
        return bool(
            found or self._rows("SELECT digest FROM planned WHERE root = ? AND digest = ?", content_digest)
        )

    def find_aliases(self, directory: str, name: str) -> frozenset[str]:
        """Return the names in a directory that differ from `name` at most by case and Unicode normalization.

        Cost: proportional to the number of names in the directory that are not entries.
        """
        folded = fold(name)
        entries = self._rows(
            # The plus prevents SQLite from scanning the complete topic.
            "SELECT rel FROM entry WHERE root = ? AND sort = ? AND +topic = ?",
            fold(join_path(directory, name)),
            directory,
        )
        others = self._rows("SELECT name FROM name WHERE root = ? AND directory = ?", directory)
        found = [rel.rpartition("/")[2] for (rel,) in entries]
        found += [other for (raw,) in others if fold(other := _decode_name(raw)) == folded]
        return frozenset(found)

    def usage(self, is_counted: Callable[[RelPath], bool] | None = None) -> ScopeUsage:
        """Return number and size of the entries for which `is_counted` is True; None: of all entries."""
        if is_counted is None:
            found = self._rows("SELECT files, bytes FROM total WHERE root = ?")
            return ScopeUsage(*found[0]) if found else ScopeUsage(0, 0)
        sizes = [
            size
            for rel, size in self._rows("SELECT rel, size FROM entry WHERE root = ?")
            if is_counted(RelPath(rel))
        ]
        return ScopeUsage(len(sizes), sum(sizes))

    def has_withheld(self) -> bool:
        """Return whether an entry of the root is withheld or unreadable."""
        query = "SELECT 1 FROM entry WHERE root = ? AND (held IS NOT NULL OR NOT readable) LIMIT 1"
        return bool(self._rows(query))

    def entry(self, rel: RelPath) -> CatalogEntry | None:
        """Return the entry at the path `rel`, or None."""
        return _CATALOG_ENTRIES.read_first(self._catalog, "WHERE root = ? AND rel = ?", (self.key, rel))

    def entries(self) -> tuple[CatalogEntry, ...]:
        """Return all entries of the root, sorted by path; unreadable and withheld ones are included."""
        return _CATALOG_ENTRIES.read(self._catalog, "WHERE root = ? ORDER BY rel", (self.key,))

    def topics(self) -> tuple[tuple[str, int], ...]:
        """Return the folders with entries, sorted, and the number of entries in each; the root is ""."""
        query = "SELECT topic, count(*) FROM entry WHERE root = ? GROUP BY topic ORDER BY topic"
        return tuple(self._rows(query))

    def entries_after(self, rel: str, limit: int, topic: str | None = None) -> tuple[CatalogEntry, ...]:
        """Return at most `limit` entries whose path sorts after `rel`, sorted by path.

        Args:
            rel: a path; it need not exist.
            limit: maximum number of entries.
            topic: the folder of the entries; None: any folder.
        """
        which = "WHERE root = ? AND rel > ?" + ("" if topic is None else " AND topic = ?")
        values = (self.key, rel, *(() if topic is None else (topic,)), limit)
        return _CATALOG_ENTRIES.read(self._catalog, f"{which} ORDER BY rel LIMIT ?", values)

    def find_statement(self, statement: str) -> tuple[CatalogEntry, ...]:
        """Return the entries that contain `statement`; two statements are equal if their comparison keys are.

        See `content.words.build_comparison_key`.
        """
        # `+root` as in `find_aliases`.
        condition = "WHERE +root = ? AND id IN (SELECT entry FROM saying WHERE digest = ?)"
        return _CATALOG_ENTRIES.read(self._catalog, condition, (self.key, digest_statement(statement)))

    def count_mentions(self, name: str) -> int:
        """Return the number of entries whose text contains a file name, for example in a link.

        Args:
            name: the name of a file, with suffix.
        """
        text = normalize_for_index(name)
        phrase = " ".join(re.findall(r"\w+", text))
        query = (
            "SELECT count(*) FROM text CROSS JOIN entry ON entry.id = text.rowid "
            "WHERE entry.root = ? AND text MATCH ? AND instr(text.body, ?)"
        )
        ((count,),) = self._rows(query, f'body : "{phrase}"', text)
        return int(count)

    def find_by_handle(self, prefix: str) -> tuple[CatalogEntry, ...]:
        """Return all entries whose handle begins with `prefix`, sorted by path.

        Args:
            prefix: the result of `handles.parse_handle`.
        """
        condition = "WHERE root = ? AND handle <> '' AND handle >= ? AND handle < ? ORDER BY rel"
        return _CATALOG_ENTRIES.read(self._catalog, condition, (self.key, prefix, f"{prefix}~"))

    def read_claimed_ids(self) -> frozenset[str]:
        """Return the ids in the front matter of all entries.

        They prove nothing: every author can write any id.
        """
        return frozenset(ident for (ident,) in self._rows("SELECT ident FROM entry WHERE root = ?") if ident)

    def list_odd_names(self) -> tuple[OddName, ...]:
        """Return names that resemble an entry but are not one, and directories that could not be listed."""
        names = self._rows("SELECT directory, name, odd FROM name WHERE root = ? AND odd IS NOT NULL")
        directories = self._rows("SELECT path, odd FROM directory WHERE root = ? AND odd IS NOT NULL")
        found = [
            *(
                build_odd_name(join_path(directory, _decode_name(name)), reason)
                for directory, name, reason in names
            ),
            *(build_odd_name(path, reason) for path, reason in directories),
        ]
        return tuple(sorted(found, key=lambda item: (item.path, item.reason)))

    def rescan(self, directories: Iterable[str]) -> None:
        """Update the rows of some directories after the caller wrote there.

        Args:
            directories: paths inside the scope, existing or not. New and removed directories above and under
                them are also found.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.

        Cost: one `newfstatat` for each file in them, and reading the changed files.
        """
        wanted = set(directories)
        if not wanted:
            return
        above = {path[:end] for path in wanted for end, char in enumerate(path) if char == "/"} | {""}
        with self._catalog.transaction() as connection:
            known = self.read_recorded(f"AND path IN ({', '.join('?' * len(above))})", *above)
            stale = _find_stale(self._bound.root, known)
            self._visit(connection).run(dict.fromkeys({*stale, *wanted}))

    def update_after_write(self, directories: Iterable[str]) -> None:
        """Update the rows after the caller wrote in `directories`.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.

        Cost: as `rescan`; if the system reports changes, proportional only to the number of changed names.
        """
        if self._last_refresh is not None and self._last_refresh[1].is_notified:
            self.refresh(*self._last_refresh)
        else:
            self.rescan(directories)

    def find_stale(self) -> Collection[str]:
        """Return the directories of the root that must be listed again to find changes.

        These are the directories whose times differ from the record, or whose record is too recent to prove
        anything.

        Cost: one `newfstatat` for each directory, and one query.
        """
        return _find_stale(self._bound.root, self.read_recorded())

    def find_unlisted(self) -> Collection[str]:
        """Return the directories that could not be listed; the system may not report a change in them."""
        rows = self._catalog.rows(_UNPROVEN, (self.key, self.key))
        return [path for (path,) in rows]

    def find_edited(self, deadline: Deadline) -> set[str]:
        """Return the directories that contain a file whose inode, size or times differ from its row.

        Raises:
            Cancelled, DeadlineExceeded: `deadline` ended.

        Cost: one `newfstatat` for each file, about 5 µs in all; no transaction.
        """
        found: set[str] = set()
        last: tuple[str, str] = ("", "")
        while rows := self._rows(_STAMPS_AFTER, *last):
            found |= self.find_edited_among([(rel, mark) for _, rel, *mark in rows], deadline)
            last = rows[-1][:2]
        return found

    def find_edited_among(self, rows: Iterable[tuple[str, Sequence[int]]], deadline: Deadline) -> set[str]:
        """Return the directories of those files in `rows` that changed; otherwise as `find_edited`.

        Args:
            rows: path and recorded stamp of each file, see `visit.Stamp`.
            deadline: ends the check.

        Raises:
            Cancelled, DeadlineExceeded: `deadline` ended.
        """
        found: set[str] = set()
        of: defaultdict[str, list[tuple[str, Sequence[int]]]] = defaultdict(list)
        for rel, mark in rows:
            directory, _, name = rel.rpartition("/")
            of[directory].append((name, mark))
        for directory, names in of.items():
            deadline.check()
            try:
                with open_directory(self._bound.root, directory) as opened:
                    found_now = [(opened.read_status(name), mark) for name, mark in names]
                    is_same = all(now and build_stamp(now) == (*mark,) for now, mark in found_now)
            except MunimentError:
                is_same = False
            if not is_same:
                found.add(directory)
        return found

    def is_swept(self, seconds: int) -> bool:
        """Return whether any process checked every file of the root within the last `seconds`."""
        rows = self._rows("SELECT swept FROM root WHERE id = ?")
        return bool(rows and 0 <= self._clock() // SECOND_NS - rows[0][0] < seconds)

    def record_sweep(self) -> None:
        """Record that every file of the root was checked just now.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
        """
        with self._catalog.transaction() as connection:
            connection.execute(
                "UPDATE root SET swept = ? WHERE id = ?", (self._clock() // SECOND_NS, self.key)
            )

    def refresh(self, basis: str, scan_plan: ScanPlan) -> Self:
        """Update the rows of the root so that they match its files, and return this view.

        The exact guarantees are G1 to G5 in the module docstring.

        A caller that is about to write holds the lock of the root; a reader needs no lock.

        Args:
            basis: describes all inputs of the rows that are not files, such as a policy's digest. If it
                differs from the basis of the previous refresh, every file is read again.
            scan_plan: selects the directories to read.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be read or written. The state of the files never
                raises it.
            Exception: any error of `assess`; rows that were committed before stay.

        Cost: if nothing changed, one `newfstatat` for each directory and one query; nothing is written.
        """
        self._last_refresh = basis, scan_plan
        attempts_left = _MAX_INTERRUPTED
        with scan_plan.lock:
            for _ in range(_MAX_SCANS):  # Another process may create directories faster than they are read.
                root_basis = self._read_basis()
                if root_basis.basis != basis:
                    self._invalidate_rows(basis)
                    scan_plan.mark_all_stale()
                if self._embedder is not None and not root_basis.has_vectors(self._embedder):
                    self._invalidate_missing_vectors(self._embedder)
                    scan_plan.mark_all_stale()
                stale = scan_plan.find_stale(self)
                if stale and not self._try_visit(stale, self._catalog.save if attempts_left > 1 else None):
                    attempts_left -= 1
                elif scan_plan.confirm_scanned(self, stale):
                    break
        return self

    def _try_visit(self, stale: StaleDirectories, save: Callable[[], bool] | None) -> bool:
        """Visit directories and update their rows; return False if another process interrupted that.

        Args:
            stale: the directories to visit.
            save: commits while the visit is running; None: commit only at the end.
        """
        with suppress(StoreConflict), self._catalog.transaction() as connection:
            self._visit(connection, save).run(stale)
            return True
        return False

    def _visit(self, connection: sqlite3.Connection, save: Callable[[], bool] | None = None) -> Visit:
        of, now_ns = (connection, self.key, self._bound, self._assess), self._clock()
        return Visit(*of, embedder=self._embedder, now_ns=now_ns, save=save)

    def _invalidate_rows(self, basis: str) -> None:
        """Mark every file of the root to be read again, because the rows depend on `basis`.

        Until a file was read, its entry is not shown: it may have expired.
        """
        with self._catalog.transaction() as connection:
            if (root_basis := self._read_basis()).basis == basis:
                return  # Another process was first, and may have read everything by now.
            connection.execute("UPDATE entry SET ctime_ns = 0, expires = '' WHERE root = ?", (self.key,))
            connection.execute("UPDATE directory SET racy = 1 WHERE root = ?", (self.key,))
            _ROOTS.insert(connection, [root_basis._replace(basis=basis)], "INSERT OR REPLACE")

    def _invalidate_missing_vectors(self, embedder: Embedder) -> None:
        """Mark the files of entries without a vector to be read again.

        Until a file was read, only a search by words finds its entry.
        """
        with self._catalog.transaction() as connection:
            root_basis = self._read_basis()
            if root_basis.model != embedder.identity:
                vectors = "DELETE FROM vector WHERE entry IN (SELECT id FROM entry WHERE root = ?)"
                connection.execute(vectors, (self.key,))
            lacking = "root = ? AND id NOT IN (SELECT entry FROM vector)"
            topics = f"SELECT topic FROM entry WHERE {lacking}"  # noqa: S608
            mark_directories = f"UPDATE directory SET racy = 1 WHERE root = ? AND path IN ({topics})"  # noqa: S608
            connection.execute(mark_directories, (self.key, self.key))
            connection.execute(f"UPDATE entry SET ctime_ns = 0 WHERE {lacking}", (self.key,))  # noqa: S608
            new_basis = root_basis._replace(model=embedder.identity, lacks=0)
            _ROOTS.insert(connection, [new_basis], "INSERT OR REPLACE")

    def _read_basis(self) -> _RootBasis:
        return _ROOTS.read_first(self._catalog, "WHERE id = ?", (self.key,)) or _RootBasis(self.key)

    def read_recorded(self, condition: str = "", *values: str) -> dict[str, _RecordedStamp]:
        """Return the recorded states of the root and of the directories that match an SQL condition.

        Args:
            condition: begins with AND; empty for all directories.
            values: parameters of the condition.
        """
        query = f"SELECT path, inode, mtime_ns, ctime_ns, racy FROM directory WHERE root = ? {condition}"  # noqa: S608
        rows = self._rows(query, *values)
        return {"": _UNKNOWN_STAMP, **{row[0]: row[1:] for row in rows}}

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._catalog.rows(query, (self.key, *values))


class ScanPlan:
    """Selects the directories that a refresh reads: here, by comparing all directories with their records.

    A subclass may use notifications of the system instead.

    Args:
        sweep: select all directories, so that every file is checked.

    Attributes:
        lock: held during a refresh.
    """

    lock: AbstractContextManager[object] = nullcontext()

    def __init__(self, *, sweep: bool = False) -> None:
        self._sweep = sweep

    @property
    def is_notified(self) -> bool:
        """Return whether the system notifies this object of all changes in the root."""
        return False

    def mark_all_stale(self) -> None:
        """Note that the rows of all files are outdated, although the files did not change."""

    def find_stale(self, view: View) -> StaleDirectories:
        """Return the directories that the refresh must read."""
        return dict.fromkeys(view.read_recorded() if self._sweep else view.find_stale())

    def confirm_scanned(self, _view: View, _listed: StaleDirectories) -> bool:
        """Note that directories were read; return False if there are more to read.

        Args:
            _view: the view whose rows were updated.
            _listed: the directories that were read.
        """
        return True


def _find_stale(root: Root, recorded: Mapping[str, _RecordedStamp]) -> list[str]:
    """Return the known directories that must be listed.

    A directory must be listed if its state differs from the record, or if the record proves nothing. Each one
    is checked by its name in the parent directory, which is opened without following a link.

    Args:
        root: handle of the root.
        recorded: the recorded states of directories, at least of the root.
    """
    children: defaultdict[str, list[str]] = defaultdict(list, {"": []})
    for path in recorded:
        parent, _, name = path.rpartition("/")
        if name:
            children[parent].append(name)
    stale: list[str] = []
    for parent, names in children.items():
        found: list[str] = []
        try:
            with open_directory(root, parent) as opened:
                if not parent and not _is_unchanged(opened.status, recorded[""]):
                    found.append("")
                found += [
                    path
                    for name in names
                    if not _is_unchanged(opened.read_status(name), recorded[path := join_path(parent, name)])
                ]
        except MunimentError:
            found = [parent, *(join_path(parent, name) for name in names)]
        stale += found
    return stale


def _is_unchanged(status: os.stat_result | None, recorded: _RecordedStamp) -> bool:
    inode, mtime_ns, ctime_ns, racy = recorded
    if status is None or racy:
        return False
    now = build_stamp(status)
    return (now[0], now[2], now[3]) == (inode, mtime_ns, ctime_ns)


def _decode_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
