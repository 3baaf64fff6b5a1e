"""The audit chain: records of all events, in order, so that a later edit of the records is detected.

A MAC (message authentication code) links each record to the record before it. A separate row marks the last
record:

    body_mac = HMAC(key, body)
    mac_n    = HMAC(key, mac_{n-1}, seq, at, kind, task, body_mac)
    head     = HMAC(key, seq, mac_n)

Guaranteed against an attacker who can edit `ledger.db` but does not have the key: `verify` finds an edited
byte; a removed, inserted or moved record; and missing records at the end. A body may be missing only if a
later record of the kind `erase` lists it.

Not guaranteed: anything against an attacker who has the key. If the complete ledger is replaced by an earlier
state, only a head that was stored elsewhere reveals that (`Head`, `verify(…, expected_head=…)`). Other tables
are not covered, but a commit record contains the digests of its changes.

Records contain digests and logical paths of entries that are or were in the memory, never content. For any
other path that a model requested, a record contains only its shape (`describe_path`).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from muniment.errors import ConfigInvalid
from muniment.kernel.path import FILE_SUFFIX
from muniment.store.state import LedgerState
from muniment.store.table import Table

ERASE: Final = "erase"
"""Kind of the records that list records whose bodies were erased."""

ALL: Final = 2**62
"""Limit that returns all records: there cannot be so many."""

DIGEST_CHARS: Final = 16
"""Number of characters of a path's keyed digest in records; people compare them."""

_DOTS: Final = frozenset({"", ".", ".."})
_FIRST_MAC: Final = bytes(32)
_HEAD: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the audit chain, which a user can store elsewhere; its text form is `seq:mac`.

    Attributes:
        seq: number of the last record.
        mac: MAC of the last record.
    """

    seq: int
    mac: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.mac.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the head in `text`.

        Raises:
            ConfigInvalid: the text is not the head of a chain.
        """
        found = _HEAD.fullmatch(text.strip())
        if found is None:
            raise ConfigInvalid(
                "invalid head of an audit chain: expected a number and 64 hex digits, such as 12:0a1b…"
            )
        return cls(int(found[1]), bytes.fromhex(found[2]))


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the audit chain.

    Attributes:
        seq: number of the record.
        at: time, ISO-8601, UTC.
        kind: `commit`, `ended`, `review`, `recovery`, `erase`, …
        task: id of the task that the record is about, or None.
        body: the data; None after they were erased.
    """

    seq: int
    at: str
    kind: str
    task: str | None
    body: Mapping[str, Any] | None


class _RecordRow(NamedTuple):
    """The row of a record in the table `record`."""

    seq: int
    at: str
    kind: str
    task: str | None
    body: str | None
    body_mac: bytes
    mac: bytes


class _HeadRow(NamedTuple):
    """The row that marks the end of the chain."""

    one: int
    seq: int
    mac: bytes


_RECORD_ROWS: Final = Table("record", _RecordRow)
_RECORDS: Final = Table(
    "record", Record, invalid_message="record {} was changed after it was written; run: muniment audit verify"
)
_HEADS: Final = Table("head", _HeadRow)


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The result of `verify`.

    Attributes:
        records: number of records.
        problems: problems of the chain, each in one line; empty if the chain is valid.
        head: the current end of the chain.
    """

    records: int
    problems: tuple[str, ...]
    head: Head


def timestamp(at: datetime | None = None) -> str:
    """Return `at`, or the current time, in the format of the ledger: ISO-8601, UTC, milliseconds."""
    return (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe_path(requested: str, state: LedgerState, scopes: Collection[str]) -> str:
    """Return the shape of a path that a model requested, and a keyed digest by which to recognize the path.

    Example: `user/<12>/../../<14>.md #…`. Here `<12>` replaces a name of 12 characters. Only names of
    `scopes` are shown.

    Args:
        requested: the path.
        state: has the key of the ledger.
        scopes: names of the scopes.
    """
    first, *rest = requested.split("/")
    shape = "/".join([first if first in scopes else _mask_segment(first), *map(_mask_segment, rest)])
    return f"{shape} #{state.compute_keyed_digest(requested)[:DIGEST_CHARS]}"


def _mask_segment(segment: str) -> str:
    if segment in _DOTS:
        return segment
    stem = segment.removesuffix(FILE_SUFFIX)
    return f"<{len(stem)}>{segment[len(stem) :]}"


def append(state: LedgerState, at: str, kind: str, task: str | None, body: Mapping[str, Any]) -> None:
    """Append a record to the chain, in the caller's transaction of the ledger or in a new one.

    Args:
        state: has ledger and key.
        at: time, as `timestamp` returns it.
        kind: kind of the record.
        task: id of the task that the record is about, or None.
        body: the data; JSON.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        seq, before = _read_end(state)
        text = json.dumps(dict(body), ensure_ascii=False, sort_keys=True)
        body_mac = state.mac(b"body", text.encode())
        named = None if task is None else task.encode()
        mac = _mac(state, before, (seq, at.encode(), kind.encode(), named), body_mac)
        _RECORD_ROWS.insert(connection, [_RecordRow(seq, at, kind, task, text, body_mac, mac)])
        end = _HeadRow(1, seq, _head_mac(state, seq, mac))
        connection.executemany("DELETE FROM head WHERE one = ?", [(end.one,)])
        _HEADS.insert(connection, [end])


def read_records(state: LedgerState, *, task: str | None = None, latest: int = ALL) -> tuple[Record, ...]:
    """Return the records of the chain in order: all, or those of one task.

    Args:
        state: has the ledger.
        task: id of the task; None: all records.
        latest: maximum number of records; the last ones are returned.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read, or a record was edited and cannot be decoded.
    """
    which = "" if task is None else "WHERE task = ? "
    values = (latest,) if task is None else (task, latest)
    return _RECORDS.read(state.ledger, f"{which}ORDER BY seq DESC LIMIT ?", values)[::-1]


def read_head(state: LedgerState) -> Head:
    """Return the end of the chain without verifying it; `0:0…` before the first record."""
    return _build_head(state.ledger.rows(_HEAD_ROW))


def read_copied_head(ledger: sqlite3.Connection) -> Head:
    """Return the end of the chain in a copy of a ledger, as `read_head`.

    Args:
        ledger: plain connection to the copy, which may be on a file system without support for `Database`.
    """
    return _build_head(ledger.execute(_HEAD_ROW).fetchall())


_HEAD_ROW: Final = "SELECT head.seq, record.mac FROM head JOIN record USING (seq)"


def _build_head(found: Sequence[tuple[Any, ...]]) -> Head:
    return Head(*found[0]) if found else Head(0, _FIRST_MAC)


def verify(state: LedgerState, *, expected_head: Head | None = None) -> VerificationResult:
    """Check the complete audit chain and return its problems.

    Args:
        state: has ledger and key.
        expected_head: an earlier head that was stored elsewhere; the chain must contain it.

    Cost: two HMACs for each record, about 12 µs.
    """
    # As bytes: an attacker may have stored values that are not text.
    columns = ", ".join(f"CAST({name} AS BLOB)" for name in ("at", "kind", "task", "body", "body_mac", "mac"))
    rows = state.ledger.rows(f"SELECT seq, {columns} FROM record ORDER BY seq")  # noqa: S608  names from above
    problems: list[str] = []
    erased = _find_erasures(rows)
    macs = [_FIRST_MAC]
    for seq, at, kind, task, body, body_mac, mac in rows:
        if seq != len(macs):
            problems.append(f"record {len(macs)} is missing; the records after it cannot be checked")
            break
        if body is None and erased.get(seq, 0) <= seq:
            problems.append(f"record {seq}: its body is missing, but no later erasure lists it")
        if body is not None and state.mac(b"body", body) != body_mac:
            problems.append(f"record {seq}: its body was changed")
        if _mac(state, macs[-1], (seq, at, kind, task), body_mac) != mac:
            problems.append(f"record {seq}: this record or the one before it was changed")
        macs.append(mac)
    else:
        problems += _check_head(state, len(macs) - 1, macs[-1])
    ((missing,),) = state.ledger.rows(
        "SELECT count(*) FROM change_set WHERE done IS NOT NULL AND task NOT IN "
        "(SELECT task FROM record WHERE kind = 'commit' AND task IS NOT NULL)"
    )
    if missing:
        problems.append(f"the records of {missing} commits are missing")
    if expected_head is not None and (
        expected_head.seq >= len(macs) or macs[expected_head.seq] != expected_head.mac
    ):
        problems.append(
            f"the expected head ({expected_head.seq}) is not in this ledger: records were removed or replaced"
        )
    return VerificationResult(len(rows), tuple(problems), Head(len(macs) - 1, macs[-1]))


def _read_end(state: LedgerState) -> tuple[int, bytes]:
    """Return the number of the next record, and the MAC of the last record, to which the next one is linked.

    If the end was manipulated, the next record must not hide that. It is then linked to the start value,
    which `verify` always reports.
    """
    (found,) = state.ledger.rows(
        "SELECT coalesce((SELECT seq FROM head), 0), coalesce((SELECT max(seq) FROM record), 0), "
        "(SELECT mac FROM head), (SELECT record.mac FROM head JOIN record USING (seq))"
    )
    marked_last, last, marked, mac = found
    last = max(marked_last, last)
    is_valid = mac is not None and marked == _head_mac(state, last, mac)
    return last + 1, mac if is_valid else _FIRST_MAC


def _check_head(state: LedgerState, last: int, mac: bytes) -> list[str]:
    found = state.ledger.rows("SELECT CAST(seq AS INTEGER), CAST(mac AS BLOB) FROM head")
    if not found:
        return ["the end of the chain is not marked: records may be missing there"] if last else []
    seq, marked = found[0]
    if seq == last and _head_mac(state, seq, mac) == marked:
        return []
    return [
        f"the chain ends with record {last}, but another one was written last: records were removed or added"
    ]


def _find_erasures(rows: list[tuple[Any, ...]]) -> dict[int, int]:
    """Return which records were erased, and by which record of the kind `erase`.

    Args:
        rows: all records.

    Returns:
        By number of an erased record: the number of the last `erase` record that lists it.
    """
    named: dict[int, int] = {}
    for seq, _, kind, _, body, _, _ in rows:
        if kind == ERASE.encode() and body is not None:
            try:
                named |= dict.fromkeys(json.loads(body)["records"], seq)
            except (ValueError, LookupError, TypeError):
                continue  # The record was changed, which its own MAC reveals.
    return named


def _mac(
    state: LedgerState, before: bytes, fields: tuple[int, bytes, bytes, bytes | None], body_mac: bytes
) -> bytes:
    seq, at, kind, task = fields
    # No task and an empty one must give different MACs.
    named = b"" if task is None else b"task " + task
    return state.mac(b"record", before, b"%d" % seq, at, kind, named, body_mac)


def _head_mac(state: LedgerState, seq: int, mac: bytes) -> bytes:
    return state.mac(b"head", b"%d" % seq, mac)
