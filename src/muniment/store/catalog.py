"""The catalog: rows for every entry and name of a root, kept right by looking at what changed and no more.

On success of `refresh`, and of `View.look_again` for the directories that it is given:

- G1. The rows are what a walk of the whole root would find (`looking.py`: N1, N2), as long as no file was
  edited in place: names that came, went or were replaced are found by the times of their directory, which is
  listed again if they are not as recorded, or were so new when it was last listed that a later change might
  bear the same time. A file is read again unless inode, size and both times are as recorded.
- G2. With `sweep`, files that were edited in place are found as well, and what else changes a file without
  its directory: its mode, its times, a second name.
- G3. Every entry whose line in the index came, went or changed is in `relisted`.
- G4. Text, name and description of a held entry are in no row. The full-text rows are those of the entries
  that can be read and are not held.
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

Attacked in tests/store/test_catalog*.py.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from muniment.confine.binding import BoundRoot
from muniment.confine.root import OpenDirectory, Root
from muniment.errors import MunimentError
from muniment.names import Digest, RelPath, Scope, Trust, joined
from muniment.store.looking import Odd, odd, stamp
from muniment.store.rows import Assess
from muniment.store.state import Database
from muniment.store.visit import Overtaken, Visit

Clock = Callable[[], int]
"""The wall clock: nanoseconds since 1970."""

_Recorded = tuple[int, ...]
"""Of a directory: inode, `mtime_ns`, `ctime_ns`, and whether these prove nothing."""

_UNKNOWN: Final[_Recorded] = (0, 0, 0, 1)

_TRIES: Final = 3
"""Refreshes that may be overtaken by another process before one keeps it out to its end."""

_ENTRY: Final = (
    "SELECT rel, size, digest, name, description, type, keywords, trust, expires, readable, held, note"
    " FROM entry WHERE root = ?"
)


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


@dataclass(frozen=True, slots=True)
class Usage:
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
        self, catalog: Database, key: str, bound: BoundRoot, assess: Assess, *, clock: Clock
    ) -> None:
        self.scope: Scope = bound.scope
        self.key = key
        self._catalog = catalog
        self._bound = bound
        self._assess = assess
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

    def usage(self, accepts: Callable[[RelPath], bool] | None = None) -> Usage:
        """How much the entries take that `accepts` is true of; None: all of them."""
        if accepts is None:
            found = self._rows("SELECT files, bytes FROM total WHERE root = ?")
            return Usage(*found[0]) if found else Usage(0, 0)
        sizes = [
            size
            for rel, size in self._rows("SELECT rel, size FROM entry WHERE root = ?")
            if accepts(RelPath(rel))
        ]
        return Usage(len(sizes), sum(sizes))

    def entry(self, rel: RelPath) -> CatalogEntry | None:
        """The entry at `rel`, if there is one."""
        found = self._rows(f"{_ENTRY} AND rel = ?", rel)
        return _entry(found[0]) if found else None

    def entries(self) -> tuple[CatalogEntry, ...]:
        """All entries, unreadable and held ones too, sorted by path."""
        return tuple(map(_entry, self._rows(f"{_ENTRY} ORDER BY rel")))

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
            visit = Visit(connection, self.key, self._bound.root, self._assess, now_ns=now_ns)
            visit.run({*stale, *wanted})

    def bring_up_to_date(self, basis: str, *, sweep: bool) -> None:
        """What `refresh` does."""
        left = _TRIES
        while True:
            left -= 1
            if self._basis() != basis:
                self._begin_anew(basis)
            known = self._known()
            stale = list(known) if sweep else _stale(self._bound.root, known)
            if not stale:
                return
            save = self._catalog.save if left > 0 else None
            with suppress(Overtaken), self._catalog.transaction() as connection:
                now_ns = self._clock()
                visit = Visit(connection, self.key, self._bound.root, self._assess, now_ns=now_ns, save=save)
                visit.run(stale)
                return

    def _begin_anew(self, basis: str) -> None:
        """Have every file read again: nothing that is recorded proves anything on another basis.

        Until then nobody is told of an entry: it might have expired.
        """
        with self._catalog.transaction() as connection:
            connection.execute("UPDATE entry SET ctime_ns = 0, expires = '' WHERE root = ?", (self.key,))
            connection.execute("UPDATE directory SET racy = 1 WHERE root = ?", (self.key,))
            connection.execute("INSERT OR REPLACE INTO root (id, basis) VALUES (?, ?)", (self.key, basis))

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


def refresh(
    catalog: Database,
    key: str,
    bound: BoundRoot,
    assess: Assess,
    *,
    basis: str,
    sweep: bool = False,
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
        sweep: look at every file (G2).
        clock: the wall clock.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read or written. Nothing that the tree does.
        Whatever `assess` does; what was committed until then stays (G5).

    Cost: with nothing changed, a `newfstatat` a directory and one query, nothing written.
    """
    view = View(catalog, key, bound, assess, clock=clock)
    view.bring_up_to_date(basis, sweep=sweep)
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
            opened = OpenDirectory(root, parent)
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


def _is_as_recorded(status: os.stat_result | None, recorded: _Recorded) -> bool:
    inode, mtime_ns, ctime_ns, racy = recorded
    if status is None or racy:
        return False
    now = stamp(status)
    return (now[0], now[2], now[3]) == (inode, mtime_ns, ctime_ns)


def _entry(row: tuple[Any, ...]) -> CatalogEntry:
    rel, size, digest, name, description, type_, keywords, trust, expires, readable, held, note = row
    return CatalogEntry(
        rel=RelPath(rel),
        size=size,
        digest=Digest(digest) if digest else None,
        name=name,
        description=description,
        type=type_,
        keywords=tuple(json.loads(keywords)),
        trust=Trust(trust),
        expires=expires,
        readable=bool(readable),
        held=held,
        note=note,
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
