"""Read titles and handles of entries and tasks as they are recorded, for the completion of a shell.

Separate from `catalog.py`, because a key press must be cheap and change nothing: the databases are opened for
reading only, no file of a root is checked, and only small modules are imported.

- C1 Nothing is created or written, and no lock is awaited longer than `_BUSY_SECONDS`.
- C2 No row is returned that the catalog records as withheld or unreadable, or that was computed for another
  policy or version (`basis.compute_basis`).
- C3 The rows can be outdated. Visibility by the policy and by the expiry date is for the caller to check.

Attacked in tests/surface/cli/test_completion.py.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from muniment.store.database import CATALOG_NAME, LEDGER_NAME, distrust_schema

_BUSY_SECONDS: Final = 0.1

_SHOWN: Final = "root = ? AND readable AND held IS NULL AND handle <> ''"
_ENTRY: Final = f"SELECT rel, handle, name, expires FROM entry WHERE {_SHOWN} AND rel = ?"  # noqa: S608
_ENTRIES: Final = (
    f"SELECT rel, handle, name, expires FROM entry WHERE {_SHOWN} AND handle >= ? AND handle < ? "  # noqa: S608
    "ORDER BY mtime_ns DESC"
)
_PATHS: Final = (
    f"SELECT rel, handle, name, expires FROM entry WHERE {_SHOWN} AND rel >= ? AND rel < ? "  # noqa: S608
    "ORDER BY rel"
)
_FOLDERS: Final = (
    f"SELECT min(rel), handle, name, expires FROM entry WHERE {_SHOWN} AND topic >= ? AND topic < ? "  # noqa: S608
    "AND topic <> '' GROUP BY topic ORDER BY topic"
)
_AFTER_ALL_TEXTS: Final = "\U0010ffff"


class RecordedEntry(NamedTuple):
    """An entry as the catalog records it.

    Attributes:
        rel: path inside the scope.
        handle: the handle.
        title: the title, not cleaned.
        expires: as `CatalogEntry.expires`.
    """

    rel: str
    handle: str
    title: str
    expires: str | None


class RecordedRoot:
    """A root in the databases of a state directory.

    Args:
        connection: the catalog, with the ledger attached.
        key: the key of the root.

    Attributes:
        key: the key of the root.
    """

    def __init__(self, connection: sqlite3.Connection, key: str) -> None:
        self._connection, self.key = connection, key

    def find_at(self, rel: str) -> Iterator[RecordedEntry]:
        """Yield the entry at a path inside the scope, if it exists."""
        return map(RecordedEntry._make, self._connection.execute(_ENTRY, (self.key, rel)))

    def find_by_handle(self, prefix: str) -> Iterator[RecordedEntry]:
        """Yield the entries whose handle begins with `prefix`, the newest file first."""
        return self._select(_ENTRIES, prefix)

    def find_by_path(self, prefix: str) -> Iterator[RecordedEntry]:
        """Yield the entries whose path inside the scope begins with `prefix`, sorted."""
        return self._select(_PATHS, prefix)

    def find_by_folder(self, prefix: str) -> Iterator[RecordedEntry]:
        """Yield the first entry of each folder whose path begins with `prefix`, sorted."""
        return self._select(_FOLDERS, prefix)

    def _select(self, query: str, prefix: str) -> Iterator[RecordedEntry]:
        found = self._connection.execute(query, (self.key, prefix, prefix + _AFTER_ALL_TEXTS))
        return map(RecordedEntry._make, found)


class RecordedTask(NamedTuple):
    """A finished task as the ledger records it.

    Attributes:
        task: the id.
        kind: the kind, such as `remember`.
        root: the key of the root of its first change.
        rel: the path of its first change inside the scope.
    """

    task: str
    kind: str
    root: str
    rel: str


class RecordedMemory:
    """The databases of a state directory, opened by `open_recorded_memory`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find_root(self, path: Path, basis: str) -> RecordedRoot | None:
        """Return the rows of a root; None if it has none, or if they were computed from another basis.

        Args:
            path: the real path of the root.
            basis: the result of `compute_basis` for the policy and the scope.
        """
        query = "SELECT id FROM root WHERE basis = ? AND id = (SELECT id FROM ledger.root WHERE path = ?)"
        found = self._connection.execute(query, (basis, os.fsencode(path))).fetchone()
        return None if found is None else RecordedRoot(self._connection, found[0])

    def find_tasks(self, limit: int, *, is_undo: bool) -> list[RecordedTask]:
        """Return the newest finished tasks that were not undone, newest first.

        Args:
            limit: maximum number of tasks.
            is_undo: return only undos; otherwise changes and redos.
        """
        from muniment.store.ledger import REVERSALS, select_redos

        redos = select_redos(self._connection.execute(REVERSALS.format("ledger.change_set")))
        query = """
            SELECT task, kind, root, rel, undoes IS NOT NULL FROM ledger.change_set
            JOIN ledger.change ON change_set = id AND position = 0
            WHERE done IS NOT NULL AND kind <> 'erase' AND task NOT IN
                (SELECT undoes FROM ledger.change_set WHERE undoes IS NOT NULL AND done IS NOT NULL)
            ORDER BY id DESC
        """
        found = (
            RecordedTask(task, kind, root, rel)
            for task, kind, root, rel, is_reversal in self._connection.execute(query)
            if (bool(is_reversal) and task not in redos) == is_undo
        )
        return [*islice(found, limit)]


@contextmanager
def open_recorded_memory(directory: Path) -> Iterator[RecordedMemory]:
    """Open the databases of a state directory for reading, for the block.

    Raises:
        sqlite3.Error: a database is missing, damaged, locked, or of another version; also in the block.
    """
    with closing(
        sqlite3.connect(_build_address(directory / CATALOG_NAME), uri=True, timeout=_BUSY_SECONDS)
    ) as connection:
        distrust_schema(connection)
        connection.execute("ATTACH ? AS ledger", (_build_address(directory / LEDGER_NAME),))
        yield RecordedMemory(connection)


def _build_address(path: Path) -> str:
    """Return the address of a database that is only read.

    Without a write-ahead log the file is complete and unused. Then SQLite must not create a log, which would
    remain after it is closed.
    """
    has_log = path.with_name(f"{path.name}-wal").exists()
    return f"{path.absolute().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"
