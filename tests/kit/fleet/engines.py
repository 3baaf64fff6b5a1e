"""Ledger engines for tests over both: a SQLite file, or a home in a real PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from kit.fleet.homes import KEY, Base
from muniment.errors import ManagedMemoryUnavailable
from muniment.fleet import homes
from muniment.store.database import Database
from muniment.store.state import Shared, State

ENGINES = ("sqlite", "postgres")

over_both = pytest.mark.parametrize("engine", ENGINES, scope="module")
"""Run a test over both engines in a file whose other tests need one."""

of_sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True, scope="module")
"""Run a test only with SQLite, in a file whose other tests use both engines.

Indirect: otherwise module fixtures of another engine would remain in some orders.
"""

of_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True, scope="module")
"""Run a test only with PostgreSQL, in the same way."""


class Opening:
    """Opens states of one engine; each directory always has the same ledger.

    Args:
        base: of a fleet; None: ledgers are files.
        roots: the directory that contains all roots.
    """

    def __init__(self, base: Base | None, roots: Path = Path("/nonexistent")) -> None:
        self._base, self._roots, self._homes = base, roots, dict[Path, str]()

    @contextmanager
    def __call__(self, directory: Path | None = None) -> Iterator[State]:
        """Open the state of a directory; None: a new one."""
        if self._base is None:
            with State(directory) as state:
                yield state
            return
        home = self._homes.get(directory or Path()) or self._base.new_home()
        shared = Shared(self._base.pool.home(home), homes.key_of(KEY, home), self._roots)
        with State(directory, shared=shared) as state:
            self._homes[state.directory] = home
            yield state


def meanwhile(state: State, *statements: str) -> None:
    """Change a ledger as another process would, unless that would have to wait for a writer."""
    if isinstance(state.ledger, Database):
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(state.ledger.path, timeout=0)) as other,
            other,
        ):
            for statement in statements:
                other.execute(statement)
        return
    pool = state.ledger._pool
    with suppress(ManagedMemoryUnavailable), pool.connection() as connection, connection.transaction():
        connection.execute("SELECT set_config('muniment.home', %s, true)", (state.ledger.home,))
        connection.execute("SELECT epoch FROM home FOR NO KEY UPDATE NOWAIT")
        for statement in statements:
            connection.execute(statement)


def rows_of(state: State) -> Iterator[tuple[str, bytes]]:
    """Yield the PostgreSQL rows of a home, by table; for SQLite nothing, because its file can be read."""
    if isinstance(state.ledger, Database):
        return
    for (table,) in state.ledger.rows(
        "SELECT table_name::text FROM information_schema.columns "
        "WHERE table_schema = 'muniment' AND column_name = 'home' AND table_name NOT IN ('home', 'door')"
    ):
        for row in state.ledger.rows(f'SELECT * FROM "{table}"'):
            yield table, b"\0".join(each if isinstance(each, bytes) else str(each).encode() for each in row)
