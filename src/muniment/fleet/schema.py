"""The tables of a fleet's database: made, and brought up to date, by one who owns them; checked by each node.

M1 Migrations are numbered files, each carried out once and whole, one process at a time (an advisory lock).
M2 A node starts with the version that it knows, and with no other: an older node could not read what a newer
   one writes.
M3 A node's role is neither a superuser nor the owner, may not look past row-level security, replicate, or
   read the server's files, and cannot become one that is or may, as one that makes roles could.
M4 All nodes have one key: with another one a home's tokens would be unknown, and its records look forged.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from muniment.errors import ConfigInvalid, LedgerAway, StateTooNew, printable
from muniment.fleet.postgres import LedgerPool
from muniment.store.database import migrations

ROLE: Final = "muniment_node"
"""The nodes' role, unless another one is named."""

MIN_SERVER: Final = 150_000
"""PostgreSQL 15: before that a view looked past the row-level security of whoever asked."""

_LOCK: Final = 0x6D756E69  # "muni"
_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS migration (
        of TEXT, name TEXT, at TIMESTAMPTZ DEFAULT now(), PRIMARY KEY (of, name)
    );
    CREATE TABLE IF NOT EXISTS fleet (one INTEGER PRIMARY KEY CHECK (one = 1), mark BYTEA);
"""
_OF_FILES: Final = ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
_QUEUE: Final = "procrastinate"
_OURS: Final = "muniment"


def newest() -> int:
    """The version that this code knows."""
    return max(migrations("muniment.fleet"))


def migrate(url: str, key: bytes, role: str = ROLE) -> tuple[str, ...]:
    """Make the tables, or bring them up to date; what was done, a line each.

    Args:
        url: of the owner of the tables.
        key: of the fleet (M4).
        role: the nodes' role, which must be there.

    Raises:
        ConfigInvalid: there is no such role, the server is too old, or the key is not the fleet's.
        StateTooNew: a newer Muniment was here.
        LedgerAway: nobody answers.
    """
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            version = connection.info.server_version
            if version < MIN_SERVER:
                raise ConfigInvalid(f"PostgreSQL 15 is needed; this is {version // 10_000}")
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                raise ConfigInvalid(f"there is no role {printable(role)} for the nodes; make it first")
            connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))  # Held until it is closed.
            return tuple(_migrated(connection, key, role))
    except psycopg.OperationalError as error:
        raise LedgerAway("the database") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigInvalid(f"this role may not make the tables: {error.diag.message_primary}") from None


@contextmanager
def owning(url: str, home: str = "") -> Iterator[psycopg.Connection[Any]]:
    """A transaction of the owner of the tables, in a home.

    Raises:
        ConfigInvalid: there is no ledger, or the role may not.
        LedgerAway: nobody answers.
    """
    try:
        with psycopg.connect(url, options="-c search_path=muniment") as connection:
            connection.execute("SELECT set_config('muniment.home', %s, true)", (home,))
            yield connection
    except psycopg.errors.UndefinedTable:
        raise ConfigInvalid("the database has no ledger yet; run: muniment fleet migrate") from None
    except psycopg.errors.InsufficientPrivilege:
        raise ConfigInvalid("this role may not; name the one that owns the tables") from None
    except psycopg.OperationalError as error:
        raise LedgerAway("the database") from error


def _migrated(connection: psycopg.Connection[Any], key: bytes, role: str) -> Iterator[str]:
    connection.execute("CREATE SCHEMA IF NOT EXISTS muniment")
    connection.execute("SET search_path = muniment, pg_temp")
    connection.execute(_TABLES)
    _check_key(connection, key)
    done = {(of, name) for of, name in connection.execute("SELECT of, name FROM migration").fetchall()}
    ours = [int(name) for of, name in done if of == _OURS]
    if ours and max(ours) > newest():
        raise StateTooNew("the database", max(ours), newest())
    for of, name, script in (
        *_of_queue(done),
        *((_OURS, f"{n:04}", text) for n, text in migrations("muniment.fleet").items()),
    ):
        if (of, name) in done:
            continue
        named = sql.Identifier(role).as_string(connection)
        with connection.transaction():
            if script:
                connection.execute(script.replace("{role}", named) if of == _OURS else script)
            connection.execute("INSERT INTO migration (of, name) VALUES (%s, %s)", (of, name))
        if script:
            yield f"{of} {name}"
    _grant_queue(connection, role)


def _of_queue(done: set[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """The queue's own migrations: at first its whole schema, then what its later versions add."""
    from procrastinate.schema import SchemaManager, migrations_path

    names = sorted(each.name for each in Path(migrations_path).glob("*.sql"))
    if not any(of == _QUEUE for of, _ in done):
        whole = (_QUEUE, "schema", SchemaManager.get_schema())
        return [whole, *((_QUEUE, name, "") for name in names)]
    return [(_QUEUE, name, (Path(migrations_path) / name).read_text("utf-8")) for name in names]


def _grant_queue(connection: psycopg.Connection[Any], role: str) -> None:
    """Let the nodes use the queue, which a migration of it may have given new tables."""
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
    connection.execute("INSERT INTO fleet VALUES (1, %s) ON CONFLICT DO NOTHING", (_mark(key),))
    _require_key(connection.execute("SELECT mark FROM fleet").fetchone(), key)


def _require_key(found: tuple[Any, ...] | None, key: bytes) -> None:
    if found is None or not hmac.compare_digest(bytes(found[0]), _mark(key)):
        raise ConfigInvalid(
            "audit.key in the state directory is not the key of this fleet; copy that of the node that ran "
            "muniment fleet migrate first"
        )


def check_key(pool: LedgerPool, key: bytes) -> None:
    """Check that a key is the fleet's (M4): with another one tokens would be nobody's, and records forged.

    Raises:
        ConfigInvalid: it is another one.
        ManagedMemoryUnavailable: there is no ledger, or nobody answers.
    """
    with pool.connection() as connection:
        found = connection.execute("SELECT mark FROM fleet").fetchone()
    _require_key(found, key)


def _mark(key: bytes) -> bytes:
    return hmac.digest(key, b"muniment fleet", "sha256")


def check(pool: LedgerPool, key: bytes) -> None:
    """Refuse a database that a node cannot serve from (M2 to M4).

    Raises:
        ConfigInvalid: the tables are missing or older, the role may see too much, or the key is another one.
        StateTooNew: they are newer.
        LedgerAway: nobody answers.
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
        (list(_OF_FILES),),
    ).fetchone()
    if may is None or any(may):
        raise ConfigInvalid(
            "this role of the database could see every home at once: it is a superuser, owns the tables, "
            "bypasses row-level security, makes roles, replicates, or reads the server's files; serve as "
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
    if found > newest():
        raise StateTooNew("the database", found, newest())
    if found < newest():
        raise ConfigInvalid(
            f"the database has version {found}, this node knows {newest()}; run: muniment fleet migrate"
        )


def status(url: str) -> dict[str, Any]:
    """What `muniment fleet status` prints: nodes, homes, leases, and what waits.

    Raises:
        ConfigInvalid: the database has no ledger.
        LedgerAway: nobody answers.
    """
    with owning(url) as connection:
        asked = connection.cursor(row_factory=psycopg.rows.dict_row)
        nodes = asked.execute(
            "SELECT name, version, running, problem, extract(epoch FROM now() - seen)::float AS seconds "
            "FROM node ORDER BY name"
        ).fetchall()
        waiting = asked.execute("SELECT * FROM count_tasks() ORDER BY status").fetchall()
        (counts,) = asked.execute("SELECT * FROM count_homes()").fetchall()
    return {**counts, "tasks": waiting, "nodes": nodes}
