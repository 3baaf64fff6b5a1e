"""The tables of a fleet's database: their owner creates and migrates them, each node checks them.

M1 Migrations are numbered files; each runs once and completely, in one process at a time (an advisory lock).
M2 A node starts only with the version that it knows: an older node could not read the data of a newer one.
M3 A node's role is neither a superuser nor the owner of the tables. It cannot bypass row-level security,
   replicate, or read the server's files. It also cannot become such a role, for example by creating roles.
M4 All nodes have the same key. With another key, the tokens of a home would be unknown, and its records would
   look forged.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from muniment.errors import ConfigInvalid, LedgerUnreachable, StateTooNew, printable
from muniment.events import Progress, track_progress
from muniment.fleet.postgres import LedgerPool
from muniment.store.database import load_migrations

ROLE: Final = "muniment_node"
"""The default role of the nodes."""

MIN_SERVER: Final = 150_000
"""PostgreSQL 15. In earlier versions a view bypassed the row-level security of its user."""

_LOCK: Final = 0x6D756E69  # "muni"
_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS migration (
        of TEXT, name TEXT, at TIMESTAMPTZ DEFAULT now(), PRIMARY KEY (of, name)
    );
    CREATE TABLE IF NOT EXISTS fleet (one INTEGER PRIMARY KEY CHECK (one = 1), mark BYTEA);
"""
_FILE_ROLES: Final = ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
_QUEUE: Final = "procrastinate"
_PACKAGE: Final = "muniment"


def get_newest_version() -> int:
    """Return the newest version of the tables that this code knows."""
    return max(load_migrations("muniment.fleet"))


def migrate(url: str, key: bytes, role: str = ROLE) -> tuple[str, ...]:
    """Create or migrate the tables; return one line for each completed step.

    Args:
        url: URL for the role that owns the tables.
        key: key of the fleet.
        role: the nodes' role, which must exist.

    Raises:
        ConfigInvalid: the role does not exist, the server is too old, the role of `url` may not create
            tables, or `key` is not the key of the fleet.
        StateTooNew: a newer Muniment has migrated the tables.
        LedgerUnreachable: the database does not respond.
    """
    try:
        with (
            track_progress("migrating the database") as progress,
            psycopg.connect(url, autocommit=True) as connection,
        ):
            version = connection.info.server_version
            if version < MIN_SERVER:
                raise ConfigInvalid(f"PostgreSQL {version // 10_000} is too old; use 15 or newer")
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                raise ConfigInvalid(f"role {printable(role)} not found; create it first")
            # Held until the connection is closed.
            connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            return tuple(_run_migrations(connection, key, role, progress))
    except psycopg.OperationalError as error:
        raise LedgerUnreachable("the database") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigInvalid(
            f"this role may not create the tables; use their owner: {error.diag.message_primary}"
        ) from None


@contextmanager
def open_owner_transaction(url: str, home: str = "") -> Iterator[psycopg.Connection[Any]]:
    """Open a transaction of the role that owns the tables; commit it at the end of the block.

    Args:
        url: URL for the role that owns the tables.
        home: the home whose rows the transaction sees; empty: the rows of all homes in the tables `home` and
            `task`.

    Raises:
        ConfigInvalid: the tables are missing, or the role lacks permissions.
        LedgerUnreachable: the database does not respond.
    """
    try:
        with psycopg.connect(url, options="-c search_path=muniment") as connection:
            connection.execute("SELECT set_config('muniment.home', %s, true)", (home,))
            yield connection
    except psycopg.errors.UndefinedTable:
        raise ConfigInvalid("the database has no ledger yet; run: muniment fleet migrate") from None
    except psycopg.errors.InsufficientPrivilege:
        raise ConfigInvalid("this role lacks permissions; use the role that owns the tables") from None
    except psycopg.OperationalError as error:
        raise LedgerUnreachable("the database") from error


def _run_migrations(
    connection: psycopg.Connection[Any], key: bytes, role: str, progress: Progress
) -> Iterator[str]:
    connection.execute("CREATE SCHEMA IF NOT EXISTS muniment")
    connection.execute("SET search_path = muniment, pg_temp")
    connection.execute(_TABLES)
    _check_key(connection, key)
    done = {(of, name) for of, name in connection.execute("SELECT of, name FROM migration").fetchall()}
    versions = [int(name) for of, name in done if of == _PACKAGE]
    if versions and max(versions) > get_newest_version():
        raise StateTooNew("the database", max(versions), get_newest_version())
    own = [(_PACKAGE, f"{n:04}", text) for n, text in load_migrations("muniment.fleet").items()]
    steps = [each for each in (*_list_queue_migrations(done), *own) if each[:2] not in done]
    progress.unit, progress.total = "steps", len(steps)
    for of, name, script in steps:
        named = sql.Identifier(role).as_string(connection)
        with connection.transaction():
            if script:
                connection.execute(script.replace("{role}", named) if of == _PACKAGE else script)
            connection.execute("INSERT INTO migration (of, name) VALUES (%s, %s)", (of, name))
        progress.done += 1
        if script:
            yield f"{of} {name}"
    _grant_queue(connection, role)


def _list_queue_migrations(done: set[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return the migrations of the queue; for a new database, its complete schema instead.

    Returns:
        Package, name and SQL script of each migration; the script is empty if the complete schema contains
        it.
    """
    from procrastinate.schema import SchemaManager, migrations_path

    names = sorted(each.name for each in Path(migrations_path).glob("*.sql"))
    if not any(of == _QUEUE for of, _ in done):
        whole = (_QUEUE, "schema", SchemaManager.get_schema())
        return [whole, *((_QUEUE, name, "") for name in names)]
    return [(_QUEUE, name, (Path(migrations_path) / name).read_text("utf-8")) for name in names]


def _grant_queue(connection: psycopg.Connection[Any], role: str) -> None:
    """Grant the nodes access to the queue. Its migrations may have added tables since the last grant."""
    to = sql.Identifier(role)
    tables = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'muniment' AND tablename LIKE 'procrastinate%%'"
    ).fetchall()
    for (table,) in tables:
        grant = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}")
        connection.execute(grant.format(sql.Identifier(table), to))
    functions = connection.execute(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'muniment'::regnamespace "
        "AND proname LIKE 'procrastinate%%'"
    ).fetchall()
    for (function,) in functions:
        connection.execute(sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(sql.SQL(function), to))
    connection.execute(sql.SQL("GRANT USAGE ON ALL SEQUENCES IN SCHEMA muniment TO {}").format(to))
    connection.execute(sql.SQL("GRANT SELECT ON fleet TO {}").format(to))


def _check_key(connection: psycopg.Connection[Any], key: bytes) -> None:
    connection.execute("INSERT INTO fleet VALUES (1, %s) ON CONFLICT DO NOTHING", (_compute_mark(key),))
    _require_key(connection.execute("SELECT mark FROM fleet").fetchone(), key)


def _require_key(found: tuple[Any, ...] | None, key: bytes) -> None:
    if found is None or not hmac.compare_digest(bytes(found[0]), _compute_mark(key)):
        raise ConfigInvalid(
            "audit.key in the state directory is not the key of this fleet; copy it from the node that ran "
            "muniment fleet migrate first"
        )


def check_key(pool: LedgerPool, key: bytes) -> None:
    """Check that `key` is the key of the fleet.

    With another key, tokens would be unknown, and audit records would look forged.

    Raises:
        ConfigInvalid: `key` is not the key of the fleet.
        ManagedMemoryUnavailable: the tables are missing, or the database does not respond.
    """
    with pool.connection() as connection:
        found = connection.execute("SELECT mark FROM fleet").fetchone()
    _require_key(found, key)


def _compute_mark(key: bytes) -> bytes:
    return hmac.digest(key, b"muniment fleet", "sha256")


def check_database(pool: LedgerPool, key: bytes) -> None:
    """Check that a node can use the database: its version, the permissions of the node's role, and the key.

    Raises:
        ConfigInvalid: the tables are missing or older, the role has too many permissions, or the key differs.
        StateTooNew: the tables are newer.
        LedgerUnreachable: the database does not respond.
    """
    with pool.connection() as connection:
        _check_role(connection)
        _check_version(connection)
        _require_key(connection.execute("SELECT mark FROM fleet").fetchone(), key)


def _check_role(connection: psycopg.Connection[Any]) -> None:
    may = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE (rolsuper OR rolbypassrls OR rolcreaterole "
        "OR rolreplication OR rolname = ANY (%s)) AND pg_has_role(oid, 'MEMBER')), "
        "EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = 'muniment' "
        "AND pg_has_role(tableowner, 'MEMBER'))",
        (list(_FILE_ROLES),),
    ).fetchone()
    if may is None or any(may):
        raise ConfigInvalid(
            "this database role could access all homes: it is a superuser, owns the tables, "
            "bypasses row-level security, creates roles, replicates, or reads the server's files; use "
            f"the nodes' role, such as {ROLE}"
        )


def _check_version(connection: psycopg.Connection[Any]) -> None:
    there = connection.execute(
        "SELECT CASE WHEN has_schema_privilege(to_regnamespace('muniment'), 'USAGE') "
        "THEN to_regclass('muniment.migration') END IS NOT NULL"
    ).fetchone()
    if there is None or not there[0]:
        raise ConfigInvalid("the database has no ledger for this role yet; run: muniment fleet migrate")
    version = connection.execute(
        "SELECT coalesce(max(name::integer), 0) FROM migration WHERE of = 'muniment'"
    ).fetchone()
    found = 0 if version is None else int(version[0])
    if found > get_newest_version():
        raise StateTooNew("the database", found, get_newest_version())
    if found < get_newest_version():
        raise ConfigInvalid(
            f"the database has version {found}, this node needs {get_newest_version()}; "
            "run: muniment fleet migrate"
        )


def read_status(url: str) -> dict[str, Any]:
    """Return the output of `muniment fleet status`: nodes, homes, leases, and pending tasks.

    Raises:
        ConfigInvalid: the tables are missing.
        LedgerUnreachable: the database does not respond.
    """
    with open_owner_transaction(url) as connection:
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        nodes = cursor.execute(
            "SELECT name, version, running, problem, extract(epoch FROM now() - seen)::float AS seconds "
            "FROM node ORDER BY name"
        ).fetchall()
        waiting = cursor.execute("SELECT * FROM count_tasks() ORDER BY status").fetchall()
        (counts,) = cursor.execute("SELECT * FROM count_homes()").fetchall()
    return {**counts, "tasks": waiting, "nodes": nodes}
