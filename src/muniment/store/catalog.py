"""The catalog: rows for every entry and name of a root, kept right by looking at what changed and no more.

On success of `View.refresh`, and of `View.look_again` for the directories that it is given:

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
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from muniment.errors import MunimentError, StoreConflict
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.names import (
    Digest,
    RelPath,
    Scope,
    Trust,
    joined,
)
from muniment.kernel.path import fold
from muniment.kernel.root import Root
from muniment.store.rows import Assess, Embedder, saying_digest
from muniment.store.state import Database
from muniment.store.table import Table
from muniment.store.visit import SECOND_NS, Odd, Stale, Visit, odd, opened_directory, stamp

# -- catalog -----------------------------------------------------------------------------------------

Clock = Callable[[], int]
"""The wall clock: nanoseconds since 1970."""

_Recorded = tuple[int, ...]
"""Of a directory: inode, `mtime_ns`, `ctime_ns`, and whether these prove nothing."""

_UNKNOWN: Final[_Recorded] = (0, 0, 0, 1)

_UNPROVEN: Final = """
    SELECT path FROM directory INDEXED BY directory_unproven
    WHERE root = ? AND racy AND (missed OR odd IS NOT NULL) UNION ALL
    SELECT '' WHERE NOT EXISTS (SELECT 1 FROM directory WHERE root = ? AND path = '')
"""
_STAMPS_BEHIND: Final = """
    SELECT topic, rel, inode, size, mtime_ns, ctime_ns FROM entry
    WHERE root = ? AND (readable OR ctime_ns) AND (topic, rel) > (?, ?) ORDER BY topic, rel LIMIT 2000
"""

_MAX_TURNS: Final = 20
"""Looks one after the other; what comes later is left to the next."""

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
        expires: the last day on which it is shown, or a time in UTC; None if never.
        ends: the last day on which it holds, as its words say; None if they do not.
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
    ends: str | None
    readable: bool
    held: str | None
    note: str


class _RootBasis(NamedTuple):
    """What the rows of a root depend on besides its files."""

    id: str
    basis: str = ""
    model: str = ""
    lacks: int = 0

    def is_meant(self, embedder: Embedder) -> bool:
        """Whether a model made the vectors of all entries that may have one."""
        return (self.model, self.lacks) == (embedder.identity, 0)


_LISTED: Final = Table("entry", CatalogEntry, digest="nullif(digest, '')")
_ROOTS: Final = Table("root", _RootBasis)


class ScopeUsage(NamedTuple):
    """How much entries take: how many files, and their bytes."""

    files: int
    bytes: int


class View:
    """The rows of one root. Every answer is a query; see the module's docstring for what it means.

    Args:
        catalog: the database.
        key: of the root in it.
        bound: the root.
        assess: asked for each file that is read, inside the catalog's transaction.
        embedder: makes the vectors of entries, once for each model. None: those that there are stay.
        clock: the wall clock.

    Attributes:
        scope: whose root it is.
        root: its handle.
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
        self._told: tuple[str, Look] | None = None  # How it was brought up to date.

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

    def has_written(self, of: Digest) -> bool:
        """Return whether an index file of the root with that digest was written, or was about to be."""
        found = self._rows("SELECT digest FROM written WHERE root = ? AND digest = ?", of)
        return bool(found or self._rows("SELECT digest FROM planned WHERE root = ? AND digest = ?", of))

    def alike(self, directory: str, name: str) -> frozenset[str]:
        """The names in a directory that are `name`, but for case and normalisation.

        Cost: that of the names in it which are no entry's.
        """
        folded = fold(name)
        entries = self._rows(
            # The plus keeps SQLite from going through all of the topic.
            "SELECT rel FROM entry WHERE root = ? AND sort = ? AND +topic = ?",
            fold(joined(directory, name)),
            directory,
        )
        others = self._rows("SELECT name FROM name WHERE root = ? AND directory = ?", directory)
        found = [rel.rpartition("/")[2] for (rel,) in entries]
        found += [other for (raw,) in others if fold(other := _text(raw)) == folded]
        return frozenset(found)

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

    def has_withheld(self) -> bool:
        """Return whether an entry is withheld or cannot be read."""
        query = "SELECT 1 FROM entry WHERE root = ? AND (held IS NOT NULL OR NOT readable) LIMIT 1"
        return bool(self._rows(query))

    def entry(self, rel: RelPath) -> CatalogEntry | None:
        """The entry at `rel`, if there is one."""
        return _LISTED.first(self._catalog, "WHERE root = ? AND rel = ?", (self.key, rel))

    def entries(self) -> tuple[CatalogEntry, ...]:
        """All entries, unreadable and held ones too, sorted by path."""
        return _LISTED.read(self._catalog, "WHERE root = ? ORDER BY rel", (self.key,))

    def topics(self) -> tuple[tuple[str, int], ...]:
        """The folders that hold entries, sorted, each with how many; the root is the empty text."""
        query = "SELECT topic, count(*) FROM entry WHERE root = ? GROUP BY topic ORDER BY topic"
        return tuple(self._rows(query))

    def entries_after(self, rel: str, limit: int, topic: str | None = None) -> tuple[CatalogEntry, ...]:
        """As `entries`, those of one folder or all, behind a path; at most `limit`."""
        which = "WHERE root = ? AND rel > ?" + ("" if topic is None else " AND topic = ?")
        values = (self.key, rel, *(() if topic is None else (topic,)), limit)
        return _LISTED.read(self._catalog, f"{which} ORDER BY rel LIMIT ?", values)

    def saying(self, said: str) -> tuple[CatalogEntry, ...]:
        """The entries that say something, as `content.words.comparable` has it."""
        which = "WHERE +root = ? AND id IN (SELECT entry FROM saying WHERE digest = ?)"  # as in `alike`
        return _LISTED.read(self._catalog, which, (self.key, saying_digest(said)))

    def idents(self) -> frozenset[str]:
        """The ids that entries tell of themselves, which proves nothing."""
        return frozenset(ident for (ident,) in self._rows("SELECT ident FROM entry WHERE root = ?") if ident)

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
            known = self.known(f"AND path IN ({', '.join('?' * len(above))})", *above)
            stale = _stale(self._bound.root, known)
            self._visit(connection).run(dict.fromkeys({*stale, *wanted}))

    def follow(self, directories: Iterable[str]) -> None:
        """Bring the rows up to date after the caller's own writes in some directories.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.

        Cost: that of `look_again`; where the system tells what changed, that of the names alone.
        """
        if self._told is not None and self._told[1].is_told:
            self.refresh(*self._told)
        else:
            self.look_again(directories)

    def stale(self) -> Collection[str]:
        """The directories that are not as recorded, or were recorded when nothing proved anything.

        Cost: a `newfstatat` a directory, and one query.
        """
        return _stale(self._bound.root, self.known())

    def unproven(self) -> Collection[str]:
        """Those alone that could not be listed: the system may tell of no change there."""
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
                with opened_directory(self._bound.root, directory) as opened:
                    found_now = [(opened.status_of(name), mark) for name, mark in names]
                    is_same = all(now and stamp(now) == (*mark,) for now, mark in found_now)
            except MunimentError:
                is_same = False
            if not is_same:
                found.add(directory)
        return found

    def is_swept(self, seconds: int) -> bool:
        """Whether every file was asked in the last `seconds`, by any process."""
        rows = self._rows("SELECT swept FROM root WHERE id = ?")
        return bool(rows and 0 <= self._clock() // SECOND_NS - rows[0][0] < seconds)

    def note_sweep(self) -> None:
        """Keep that every file was asked just now.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
        """
        with self._catalog.transaction() as connection:
            connection.execute(
                "UPDATE root SET swept = ? WHERE id = ?", (self._clock() // SECOND_NS, self.key)
            )

    def refresh(self, basis: str, look: Look) -> Self:
        """Bring the rows up to date (G1 to G5); the view itself.

        Whoever is about to write holds the lock of the root; readers may call without it.

        Args:
            basis: what rows depend on besides their files, such as a policy's digest; where it is not the one
                of the refresh before, every file is read again.
            look: says where to look.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be read or written. Nothing that the tree does.
            Whatever `assess` does; what was committed until then stays (G5).

        Cost: with nothing changed, a `newfstatat` a directory and one query, nothing written.
        """
        self._told = basis, look
        left = _TRIES
        with look.lock:
            for _ in range(_MAX_TURNS):  # Somebody may make directories faster than they are looked at.
                of_root = self._of_root()
                if of_root.basis != basis:
                    self._begin_anew(basis)
                    look.begin_anew()
                if self._embedder is not None and not of_root.is_meant(self._embedder):
                    self._have_vectors_made(self._embedder)
                    look.begin_anew()
                stale = look.stale(self)
                if stale and not self._visited(stale, self._catalog.save if left > 1 else None):
                    left -= 1
                elif look.has_done(self, stale):
                    break
        return self

    def _visited(self, stale: Stale, save: Callable[[], bool] | None) -> bool:
        """Whether directories were visited, without being overtaken."""
        with suppress(StoreConflict), self._catalog.transaction() as connection:
            self._visit(connection, save).run(stale)
            return True
        return False

    def _visit(self, connection: sqlite3.Connection, save: Callable[[], bool] | None = None) -> Visit:
        of, now_ns = (connection, self.key, self._bound.root, self._assess), self._clock()
        return Visit(*of, embedder=self._embedder, now_ns=now_ns, save=save)

    def _begin_anew(self, basis: str) -> None:
        """Have every file read again: nothing that is recorded proves anything on another basis.

        Until then nobody is told of an entry: it might have expired.
        """
        with self._catalog.transaction() as connection:
            if (of_root := self._of_root()).basis == basis:
                return  # Somebody else was first, and may have read everything by now.
            connection.execute("UPDATE entry SET ctime_ns = 0, expires = '' WHERE root = ?", (self.key,))
            connection.execute("UPDATE directory SET racy = 1 WHERE root = ?", (self.key,))
            _ROOTS.insert(connection, [of_root._replace(basis=basis)], "INSERT OR REPLACE")

    def _have_vectors_made(self, embedder: Embedder) -> None:
        """Have each file read again whose entry has no vector of a model; until then it is found by words."""
        with self._catalog.transaction() as connection:
            of_root = self._of_root()
            if of_root.model != embedder.identity:
                vectors = "DELETE FROM vector WHERE entry IN (SELECT id FROM entry WHERE root = ?)"
                connection.execute(vectors, (self.key,))
            lacking = "root = ? AND id NOT IN (SELECT entry FROM vector)"
            topics = f"SELECT topic FROM entry WHERE {lacking}"  # noqa: S608
            again = f"UPDATE directory SET racy = 1 WHERE root = ? AND path IN ({topics})"  # noqa: S608
            connection.execute(again, (self.key, self.key))
            connection.execute(f"UPDATE entry SET ctime_ns = 0 WHERE {lacking}", (self.key,))  # noqa: S608
            made = of_root._replace(model=embedder.identity, lacks=0)
            _ROOTS.insert(connection, [made], "INSERT OR REPLACE")

    def _of_root(self) -> _RootBasis:
        return _ROOTS.first(self._catalog, "WHERE id = ?", (self.key,)) or _RootBasis(self.key)

    def known(self, condition: str = "", *values: str) -> dict[str, _Recorded]:
        """What is recorded of the directories that meet the condition, and of the root in any case."""
        query = f"SELECT path, inode, mtime_ns, ctime_ns, racy FROM directory WHERE root = ? {condition}"  # noqa: S608
        rows = self._rows(query, *values)
        return {"": _UNKNOWN, **{row[0]: row[1:] for row in rows}}

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._catalog.rows(query, (self.key, *values))


class Look:
    """Says where to look: at every directory, and in those that changed; who is told of changes knows better.

    Args:
        sweep: list all of them, so that every file is asked.

    Attributes:
        lock: held meanwhile.
    """

    lock: AbstractContextManager[object] = nullcontext()

    def __init__(self, *, sweep: bool = False) -> None:
        self._sweep = sweep

    @property
    def is_told(self) -> bool:
        """Whether it is told of all that changes."""
        return False

    def begin_anew(self) -> None:
        """Told that files are to be read again which did not change."""

    def stale(self, view: View) -> Stale:
        """The directories that are to be looked at."""
        return dict.fromkeys(view.known() if self._sweep else view.stale())

    def has_done(self, _view: View, _listed: Stale) -> bool:
        """Told that these were; whether nothing is left."""
        return True


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
        found: list[str] = []
        try:
            with opened_directory(root, parent) as opened:
                if not parent and not _is_as_recorded(opened.status, known[""]):
                    found.append("")
                found += [
                    path
                    for name in names
                    if not _is_as_recorded(opened.status_of(name), known[path := joined(parent, name)])
                ]
        except MunimentError:
            found = [parent, *(joined(parent, name) for name in names)]
        stale += found
    return stale


def _is_as_recorded(status: os.stat_result | None, recorded: _Recorded) -> bool:
    inode, mtime_ns, ctime_ns, racy = recorded
    if status is None or racy:
        return False
    now = stamp(status)
    return (now[0], now[2], now[3]) == (inode, mtime_ns, ctime_ns)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
