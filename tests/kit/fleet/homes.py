"""The database of a fleet on a real server, and homes in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psycopg
from psycopg import sql

from kit import postgres
from muniment.fleet import homes, schema
from muniment.fleet import postgres as store
from muniment.fleet.postgres import LedgerPool
from muniment.store.state import Shared, State

KEY = b"k" * 32
OWNING = "muniment_owner"
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Base:
    """A migrated database.

    Attributes:
        superuser, owner, node: its URLs, by role.
        pool: a shared pool of the node role.
    """

    superuser: str
    owner: str
    node: str
    pool: LedgerPool

    def new_home(self) -> str:
        """Create a home for a test; return its name."""
        name = f"home-{os.getpid()}-{next(_NUMBERS)}"
        homes.add_home(self.owner, name)
        return name

    @contextmanager
    def state(self, directory: Path | None = None, home: str | None = None) -> Iterator[State]:
        """Open the state of a home as a node does, without a working copy."""
        name = home or self.new_home()
        with closing(LedgerPool(self.node, 8)) as pool:
            base = directory or Path("/nonexistent")
            with State(directory, shared=Shared(pool.home(name), homes.key_of(KEY, name), base)) as state:
                yield state


@contextmanager
def base_on(superuser: str) -> Iterator[Base]:
    """Create and migrate a database on a server; drop it afterwards."""
    with postgres.database(superuser) as url:
        _, _, name = url.rpartition("/")
        with psycopg.connect(url, autocommit=True) as connection:
            for role in (OWNING, schema.ROLE):
                with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                    connection.execute(f"CREATE ROLE {role} LOGIN")
            connection.execute(f'GRANT CREATE ON DATABASE "{name}" TO {OWNING}')
        owner, node = as_role(url, OWNING), as_role(url, schema.ROLE)
        schema.migrate(owner, KEY)
        # Otherwise connections would be closed while other tests count descriptors.
        with mock.patch.object(store, "KEPT_SECONDS", 86_400), closing(LedgerPool(node, 16)) as pool:
            yield Base(url, owner, node, pool)


def as_role(url: str, role: str) -> str:
    """Return the URL of the same database for another role; servers with passwords are not supported."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.rpartition('@')[2]}"


def is_idle(base: Base, home: str) -> bool:
    """Return whether no task of a home is pending, no turn is queued, and no node has its lease.

    Then no node changes its rows without a request.
    """
    with psycopg.connect(base.superuser, options="-c search_path=muniment") as connection:
        found = connection.execute(
            "SELECT node IS NULL AND NOT EXISTS (SELECT FROM task WHERE task.home = home.home "
            "AND status IN ('queued', 'running')) AND NOT EXISTS (SELECT FROM procrastinate_jobs AS job "
            "WHERE lock = home.home AND job.status IN ('todo', 'doing')) FROM home WHERE home = %s",
            (home,),
        ).fetchone()
    return found == (True,)


def rows_of_home(base: Base, home: str) -> dict[str, list[str]]:
    """Return all rows of a home, read by the superuser."""
    with psycopg.connect(base.superuser, options="-c search_path=muniment") as connection:
        tables = connection.execute(
            "SELECT table_name::text FROM information_schema.columns JOIN information_schema.tables "
            "USING (table_schema, table_name) WHERE table_schema = 'muniment' AND column_name = 'home' "
            "AND table_type = 'BASE TABLE' ORDER BY 1"
        ).fetchall()
        return {
            table: sorted(
                row
                for (row,) in connection.execute(
                    sql.SQL("SELECT each::text FROM {} AS each WHERE home = %s").format(
                        sql.Identifier(table)
                    ),
                    (home,),
                )
            )
            for (table,) in tables
        }
