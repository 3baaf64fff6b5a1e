"""The schema that a database of the state directory must have: the result of the SQL scripts of its version.

A database file can come from an attacker: in a backup, or in a home directory that was copied. Its triggers
and views would run with the statements of this program. So would an index with an expression, or a CHECK.

- C1. The schema must be, object by object, the result of running the scripts in an empty database. Otherwise
  the database is rejected before any statement of this program uses its tables. Comments and white space do
  not count, because versions of SQLite copy them differently.
- C2. Encoding and `auto_vacuum`, which are stored in the file, must be those of a new database.

Not guaranteed: anything about rows. A restore calls `check_rows`, which runs SQLite's own checks of them.

Separate from `state.py` because of its length: this module only reads an open connection.
Source: sqlite.org/schematab.html; sqlite.org/pragma.html, `trusted_schema`, `integrity_check`.
"""

from __future__ import annotations

import base64
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Final, NamedTuple

from muniment.errors import printable
from muniment.kernel.cancel import Deadline
from muniment.store.database import Database, build_unavailable_error, split_statements

MAX_COUNTER: Final = 2**53
"""The largest row number that SQLite may have assigned in a valid ledger: JSON has no larger integers."""

_MAX_DISPLAYED_CHARS: Final = 60

_PIECE: Final = re.compile(
    r"""(?P<kept>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])|--[^\n]*|/\*.*?(?:\*/|\Z)|\s+""",
    re.DOTALL,
)
"""Pattern of a quoted token, or of a comment or white space between tokens."""


class SchemaObject(NamedTuple):
    """One row of `sqlite_schema`, without the number of the object's first page."""

    type: str
    name: str
    table: str
    sql: str | None


def require_schema(database: Database, scripts: Sequence[str]) -> None:
    """Check that the schema of a database is the result of its scripts.

    Args:
        database: open, and not used before.
        scripts: the scripts that created the database, in order; without scripts, it must be empty.

    Raises:
        ManagedMemoryUnavailable: the schema is different, or the database is damaged.

    Cost: 0.1 ms, and once a process 2 to 6 ms for the scripts.
    """
    if difference := _find_difference(database, scripts):
        raise build_unavailable_error(database.path, f"{difference}; restore it from a backup that you made")


def has_schema(database: Database, scripts: Sequence[str]) -> bool:
    """Return whether a database has the schema that its scripts create, as `require_schema` checks.

    Raises:
        ManagedMemoryUnavailable: the database is damaged.
    """
    return _find_difference(database, scripts) is None


def check_rows(database: Database, deadline: Deadline) -> None:
    """Check the rows of a database with SQLite's own checks. Call `require_schema` first.

    If `deadline` ends, also after this call, every statement of the connection fails.

    Raises:
        ManagedMemoryUnavailable: the rows are damaged, or `deadline` ended.

    Cost: reads the complete file.
    """
    database.limit_statements(deadline)
    problem = database.rows("PRAGMA integrity_check(1)")[0][0]
    if problem == "ok" and database.rows("PRAGMA foreign_key_check"):
        problem = "a row refers to a missing row"
    counters = "SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'"
    if problem == "ok" and database.rows(counters):
        bad = "SELECT count(*) FROM sqlite_sequence WHERE typeof(seq) <> 'integer' OR seq NOT BETWEEN 0 AND ?"
        problem = "ok" if database.rows(bad, (MAX_COUNTER,)) == [(0,)] else "a counter is out of range"
    if problem != "ok":
        detail = printable(str(problem))[:_MAX_DISPLAYED_CHARS]
        raise build_unavailable_error(
            database.path, f"is damaged ({detail}); restore it from a backup that you made"
        )


class _Expected(NamedTuple):
    """The schema of a new database after the scripts were run.

    Attributes:
        stored: values of the pragmas in `_STORED`.
        objects: rows of `sqlite_schema`.
    """

    stored: tuple[object, ...]
    objects: Counter[SchemaObject]


_OBJECTS: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
_STORED: Final = ("PRAGMA encoding", "PRAGMA auto_vacuum", "PRAGMA application_id")


@cache
def _build_expected(scripts: tuple[str, ...]) -> _Expected:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.create_function("from_base64", 1, base64.b64decode)
        database.execute("BEGIN")
        for script in scripts:
            for statement in split_statements(script):
                database.execute(statement)
        stored = tuple(database.execute(pragma).fetchone()[0] for pragma in _STORED)
        return _Expected(stored, Counter(map(SchemaObject._make, database.execute(_OBJECTS))))


def _find_difference(database: Database, scripts: Sequence[str]) -> str | None:
    """Return the first difference between the schema of a database and the result of its scripts, or None."""
    expected = _build_expected(tuple(scripts))
    for pragma, wanted in zip(_STORED, expected.stored, strict=True):
        ((found,),) = database.rows(pragma)
        if found != wanted:
            return f"has {pragma.removeprefix('PRAGMA ')} {printable(str(found))} instead of {wanted}"
    rows = Counter(map(SchemaObject._make, database.rows(_OBJECTS)))
    if rows == expected.objects:
        return None
    found, wanted = _remove_comments(rows), _remove_comments(expected.objects)
    if unexpected := found - wanted:
        first = _format_object(min(unexpected, key=_sort_key))
        return f"contains an object that no version of Muniment creates ({first})"
    if missing := wanted - found:
        return f"lacks an object that its version has ({_format_object(min(missing, key=_sort_key))})"
    return None


def _remove_comments(objects: Counter[SchemaObject]) -> Counter[SchemaObject]:
    """Return the same objects with normalized SQL statements."""
    return Counter(
        each._replace(sql=each.sql and _normalize_statement(each.sql)) for each in objects.elements()
    )


def _normalize_statement(sql: str) -> str:
    """Return a statement without comments, and with one space between separated tokens."""
    return _PIECE.sub(lambda found: found["kept"] or " ", sql).strip()


def _sort_key(each: SchemaObject) -> tuple[str, ...]:
    return tuple(map(str, each))


def _format_object(each: SchemaObject) -> str:
    return " ".join(printable(str(part))[:_MAX_DISPLAYED_CHARS] for part in (each.type, each.name))
