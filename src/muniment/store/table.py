"""Rows of a table as values of a class; a column has the name of its field.

M1 A field maps to the column of its name. A field whose type has fields maps to the columns of these.
M2 A value that is read has the annotated type: an enum, a bool, or a tuple, mapping or `Any` decoded from
JSON.
   NULL becomes None, for any annotation. A field that has fields and may be None is a JSON list of
   these.
M3 If a row cannot be converted, another program edited it: a `ManagedMemoryUnavailable` identifies the row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields, is_dataclass
from enum import Enum
from itertools import islice
from operator import attrgetter
from types import NoneType
from typing import Any, ClassVar, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

from muniment.store.database import Ledger, Transaction, unavailable

T = TypeVar("T")

_Columns = Mapping[str, str | None]
_JSON: Final = (tuple, Mapping)


class Table(Generic[T]):
    """The rows of a table, or of a join that is only read.

    Args:
        source: name of the table, or the text after FROM.
        kind: dataclass or named tuple of a row.
        given: the column to which the table assigns a value: the number of the row.
        by: SQL for that value; empty: the next unused number.
        broken: message about a row that cannot be converted, with a placeholder for its first column.
        columns: SQL for fields that have no column of their name; None: the field is not stored and has its
            default.
    """

    def __init__(
        self,
        source: str,
        kind: type[T],
        /,
        given: str = "",
        by: str = "",
        broken: str = "a row was changed after it was written",
        **columns: str | None,
    ) -> None:
        leaves = list(_leaves(kind, columns))
        self._columns, self._broken = ", ".join(sql for _, sql, _ in leaves), broken
        self._select = f"SELECT {self._columns} FROM {source} "  # noqa: S608
        self._loads = [(at, load) for at, (_, _, hint) in enumerate(leaves) if (load := _loader(hint))]
        self._make = _maker(kind, columns)
        kept = [leaf for leaf in leaves if leaf[1] != given]
        names, marks = [sql for _, sql, _ in kept], ["?"] * len(kept)
        if by:
            names, marks = [*names, given], [*marks, by]
        self._insert = f"INTO {source} ({', '.join(names)}) VALUES ({', '.join(marks)})"
        self._get = attrgetter(*(path for path, _, _ in kept))
        self._dumps = [at for at, (_, _, hint) in enumerate(kept) if _is_json(hint)]

    def insert(
        self, connection: Transaction, items: Iterable[T], how: str = "INSERT", more: str = ""
    ) -> None:
        """Insert rows with one statement.

        Args:
            connection: an open transaction.
            items: the rows.
            how: SQLite's verb, for tables outside a ledger.
            more: SQL after the values, for example what to do on a conflict.
        """
        connection.executemany(f"{how} {self._insert} {more}", map(self._row, items))

    def add(self, database: Ledger, item: T) -> T:
        """Insert a row and return it as stored, with its assigned number."""
        return self.changed(database, f"INSERT {self._insert}", self._row(item))[0]

    def changed(self, database: Ledger, statement: str, values: Sequence[object]) -> tuple[T, ...]:
        """Return the rows that a statement adds or changes, in their new state."""
        with database.transaction() as connection:
            rows = connection.execute(f"{statement} RETURNING {self._columns}", values).fetchall()
        return self._all(database, rows)

    def read(self, database: Ledger, rest: str = "", values: Sequence[object] = ()) -> tuple[T, ...]:
        """Return the selected rows, in their order.

        Args:
            database: that has the table.
            rest: SQL after FROM.
            values: of its parameters.
        """
        return self._all(database, database.rows(self._select + rest, values))

    def first(self, database: Ledger, rest: str, values: Sequence[object]) -> T | None:
        """Return the first selected row, or None."""
        return next(iter(self.read(database, rest, values)), None)

    def each(self, connection: Transaction, rest: str = "", values: Sequence[object] = ()) -> Iterator[T]:
        """Yield rows one by one, as `read`: for results that do not fit into memory."""
        return map(self._made, connection.execute(self._select + rest, values))

    def _all(self, database: Ledger, rows: Iterable[tuple[Any, ...]]) -> tuple[T, ...]:
        found: list[T] = []
        for row in rows:
            try:
                found.append(self._made(row))
            except (ValueError, TypeError) as error:
                raise unavailable(database.name, self._broken.format(row[0])) from error
        return tuple(found)

    def _row(self, item: T) -> Sequence[Any]:
        found = self._get(item)
        if not self._dumps:
            return found
        values = list(found)
        for at in self._dumps:
            values[at] = None if values[at] is None else json.dumps(values[at], default=_told)
        return values

    def _made(self, row: tuple[Any, ...]) -> T:
        values = list(row)
        for at, load in self._loads:
            if values[at] is not None:
                values[at] = load(values[at])
        return self._make(iter(values))  # type: ignore[no-any-return]


def _leaves(kind: type, columns: _Columns, above: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield for every column the path to its field, its SQL and its type."""
    for name, hint in _hints(kind):
        sql = columns.get(name, name)
        if sql is None:
            continue
        if _is_whole(hint):
            yield from _leaves(hint, columns, f"{above}{name}.")
        else:
            yield f"{above}{name}", sql, hint


def _maker(kind: Any, columns: _Columns) -> Callable[[Iterator[Any]], Any]:
    """Return a function that creates a value of a class from as many columns as the class needs."""
    names = [name for name, _ in _hints(kind) if columns.get(name, name) is not None]
    hints = [hint for name, hint in _hints(kind) if name in names]
    is_by_name = is_dataclass(kind) and any(each.kw_only for each in fields(kind))
    if is_by_name:
        return lambda values: kind(**dict(zip(names, values, strict=False)))
    if not any(map(_is_whole, hints)):
        count = len(hints)
        return lambda values: kind(*islice(values, count))
    parts = [_maker(hint, columns) if _is_whole(hint) else next for hint in hints]
    return lambda values: kind(*[part(values) for part in parts])


def _hints(kind: type) -> list[tuple[str, Any]]:
    """Return the fields of a class, each with its type."""
    return [each for each in get_type_hints(kind).items() if get_origin(each[1]) is not ClassVar]


def _is_whole(hint: Any) -> bool:
    """Return whether a type is a class with fields."""
    return is_dataclass(hint) or hasattr(hint, "_fields")


def _plain(hint: Any) -> Any:
    """Return the type of a field without None and without type arguments."""
    kinds = [each for each in get_args(hint) if each is not NoneType]
    hint = kinds[0] if NoneType in get_args(hint) and len(kinds) == 1 else hint
    return get_origin(hint) or hint


def _is_json(hint: Any) -> bool:
    return _plain(hint) in _JSON or _is_whole(_plain(hint))


def _told(value: Any) -> Any:
    """Convert a value for which JSON has no form."""
    return astuple(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def _loader(hint: Any) -> Callable[[Any], Any] | None:
    plain = _plain(hint)
    if _is_whole(plain):
        return lambda text: plain(*json.loads(text))
    if plain is tuple:
        return lambda text: tuple(json.loads(text))
    if plain is Any or plain is Mapping:
        return json.loads
    return plain if isinstance(plain, type) and issubclass(plain, Enum | bool) else None
