"""Rows of a table as objects of a class; a column has the name of its field.

- M1. A field corresponds to the column with its name. If the type of a field is a class with fields, each of
  these fields corresponds to a column.
- M2. A value that is read has the annotated type: an enum, a bool, or a tuple, mapping or `Any` that is
  decoded from JSON. NULL becomes None, for any annotation. If a field may be None and its type has fields, it
  is stored as a JSON list of these fields.
- M3. If a row cannot be converted, another program edited it. Then a `ManagedMemoryUnavailable` identifies
  the row.
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

from muniment.store.database import Ledger, Transaction, build_unavailable_error

T = TypeVar("T")

_Columns = Mapping[str, str | None]
_JSON: Final = (tuple, Mapping)


class Table(Generic[T]):
    """Converts the rows of a table, or of a join that is only read, to objects and back.

    Args:
        source: name of the table, or the text after FROM.
        kind: dataclass or named tuple of a row.
        generated_column: the column to which the table assigns a value: the number of the row.
        generated_sql: SQL for that value; empty: the next unused number.
        invalid_message: message about a row that cannot be converted; `{}` is replaced by the first column.
        columns: SQL for fields that have no column of their name; None: the field is not stored and has its
            default.
    """

    def __init__(
        self,
        source: str,
        kind: type[T],
        /,
        generated_column: str = "",
        generated_sql: str = "",
        invalid_message: str = "a row was changed after it was written",
        **columns: str | None,
    ) -> None:
        columns_found = list(_list_columns(kind, columns))
        self._columns, self._invalid_message = ", ".join(sql for _, sql, _ in columns_found), invalid_message
        self._select = f"SELECT {self._columns} FROM {source} "  # noqa: S608
        self._loads = [
            (index, load) for index, (_, _, hint) in enumerate(columns_found) if (load := _find_decoder(hint))
        ]
        self._make = _build_constructor(kind, columns)
        stored = [leaf for leaf in columns_found if leaf[1] != generated_column]
        names, marks = [sql for _, sql, _ in stored], ["?"] * len(stored)
        if generated_sql:
            names, marks = [*names, generated_column], [*marks, generated_sql]
        self._insert = f"INTO {source} ({', '.join(names)}) VALUES ({', '.join(marks)})"
        self._get = attrgetter(*(path for path, _, _ in stored))
        self._dumps = [index for index, (_, _, hint) in enumerate(stored) if _is_json(hint)]

    def insert(
        self, connection: Transaction, items: Iterable[T], verb: str = "INSERT", suffix: str = ""
    ) -> None:
        """Insert rows with one statement.

        Args:
            connection: an open transaction.
            items: the rows, as objects.
            verb: SQL verb. A ledger accepts only `INSERT`; SQLite has others, such as `INSERT OR IGNORE`.
            suffix: SQL after the values, for example what to do on a conflict.
        """
        connection.executemany(f"{verb} {self._insert} {suffix}", map(self._encode_row, items))

    def add(self, database: Ledger, item: T) -> T:
        """Insert a row and return it as it is stored, with the number that the table assigned."""
        return self.change_rows(database, f"INSERT {self._insert}", self._encode_row(item))[0]

    def change_rows(self, database: Ledger, statement: str, values: Sequence[object]) -> tuple[T, ...]:
        """Execute a statement that adds or changes rows, and return these rows in their new state.

        Args:
            database: the database that contains the table.
            statement: SQL without RETURNING.
            values: values for its parameters.
        """
        with database.transaction() as connection:
            rows = connection.execute(f"{statement} RETURNING {self._columns}", values).fetchall()
        return self._decode_rows(database, rows)

    def read(self, database: Ledger, clause: str = "", values: Sequence[object] = ()) -> tuple[T, ...]:
        """Return the selected rows as objects, in the order of the query.

        Args:
            database: the database that contains the table.
            clause: SQL after FROM.
            values: values for its parameters.
        """
        return self._decode_rows(database, database.rows(self._select + clause, values))

    def read_first(self, database: Ledger, clause: str, values: Sequence[object]) -> T | None:
        """Return the first selected row as an object, or None; the arguments are those of `read`."""
        return next(iter(self.read(database, clause, values)), None)

    def iterate_rows(
        self, connection: Transaction, clause: str = "", values: Sequence[object] = ()
    ) -> Iterator[T]:
        """Yield the selected rows one by one, as `read`, for results that do not fit into memory."""
        return map(self._decode_row, connection.execute(self._select + clause, values))

    def _decode_rows(self, database: Ledger, rows: Iterable[tuple[Any, ...]]) -> tuple[T, ...]:
        found: list[T] = []
        for row in rows:
            try:
                found.append(self._decode_row(row))
            except (ValueError, TypeError) as error:
                raise build_unavailable_error(database.name, self._invalid_message.format(row[0])) from error
        return tuple(found)

    def _encode_row(self, item: T) -> Sequence[Any]:
        found = self._get(item)
        if not self._dumps:
            return found
        values = list(found)
        for index in self._dumps:
            values[index] = (
                None if values[index] is None else json.dumps(values[index], default=_encode_object)
            )
        return values

    def _decode_row(self, row: tuple[Any, ...]) -> T:
        values = list(row)
        for position, load in self._loads:
            if values[position] is not None:
                values[position] = load(values[position])
        return self._make(iter(values))  # type: ignore[no-any-return]


def _list_columns(kind: type, columns: _Columns, path_prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield, for every column of a class: the attribute path of its field, its SQL, and its type.

    Args:
        kind: the class.
        columns: SQL for fields that have no column of their name, as in `Table`.
        path_prefix: attribute path of an outer field, with a dot.
    """
    for name, hint in _list_fields(kind):
        sql = columns.get(name, name)
        if sql is None:
            continue
        if _has_fields(hint):
            yield from _list_columns(hint, columns, f"{path_prefix}{name}.")
        else:
            yield f"{path_prefix}{name}", sql, hint


def _build_constructor(kind: Any, columns: _Columns) -> Callable[[Iterator[Any]], Any]:
    """Return a function that creates an object of a class from the next values of an iterator.

    Args:
        kind: the class.
        columns: as in `Table`; fields without a column have their default.
    """
    names = [name for name, _ in _list_fields(kind) if columns.get(name, name) is not None]
    hints = [hint for name, hint in _list_fields(kind) if name in names]
    is_by_name = is_dataclass(kind) and any(each.kw_only for each in fields(kind))
    if is_by_name:
        return lambda values: kind(**dict(zip(names, values, strict=False)))
    if not any(map(_has_fields, hints)):
        count = len(hints)
        return lambda values: kind(*islice(values, count))
    parts = [_build_constructor(hint, columns) if _has_fields(hint) else next for hint in hints]
    return lambda values: kind(*[part(values) for part in parts])


def _list_fields(kind: type) -> list[tuple[str, Any]]:
    """Return the names of the fields of a class, each with its type."""
    return [each for each in get_type_hints(kind).items() if get_origin(each[1]) is not ClassVar]


def _has_fields(hint: Any) -> bool:
    """Return whether a type is a class with fields."""
    return is_dataclass(hint) or hasattr(hint, "_fields")


def _unwrap_type(hint: Any) -> Any:
    """Return the type in an annotation, without `None` and without type arguments."""
    kinds = [each for each in get_args(hint) if each is not NoneType]
    hint = kinds[0] if NoneType in get_args(hint) and len(kinds) == 1 else hint
    return get_origin(hint) or hint


def _is_json(hint: Any) -> bool:
    return _unwrap_type(hint) in _JSON or _has_fields(_unwrap_type(hint))


def _encode_object(value: Any) -> Any:
    """Return a form of a value that JSON can encode: a list for a dataclass, else a dict."""
    return astuple(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def _find_decoder(hint: Any) -> Callable[[Any], Any] | None:
    base_type = _unwrap_type(hint)
    if _has_fields(base_type):
        return lambda text: base_type(*json.loads(text))
    if base_type is tuple:
        return lambda text: tuple(json.loads(text))
    if base_type is Any or base_type is Mapping:
        return json.loads
    return base_type if isinstance(base_type, type) and issubclass(base_type, Enum | bool) else None
