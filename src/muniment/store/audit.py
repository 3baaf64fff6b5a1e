"""The audit chain: records of all events, in order, so that a later edit is detected.

Each record is MACed with the one before it, and the last one once more in its own row:

    body_mac = HMAC(key, body)
    mac_n    = HMAC(key, mac_{n-1}, seq, at, kind, task, body_mac)
    head     = HMAC(key, seq, mac_n)

Guaranteed against an attacker who can edit `ledger.db` but does not have the key: `verify` finds an edited
byte, a removed, inserted or moved record, and a cut tail. A body may be missing only if a later record of the
kind `erase` lists it.

Not guaranteed: anything against an attacker who has the key. Replacing the complete ledger by an earlier
state is detected only with a head that was stored elsewhere (`Head`, `verify(…, kept=…)`). Other tables are
not covered, but a commit record contains the digests of its changes.

Records contain digests and logical paths of entries that are or were in the memory, never content. For any
other path that a model requested, they contain its shape (`describe_path`).
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
"""Kind of the records that list erased bodies."""

ALL: Final = 2**62
"""More records than there can be."""

DIGEST_CHARS: Final = 16
"""Characters of a keyed digest of a path, for people to compare."""

_DOTS: Final = frozenset({"", ".", ".."})
_FIRST_MAC: Final = bytes(32)
_HEAD: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the chain, to be stored elsewhere; as text `seq:mac`."""

    seq: int
    mac: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.mac.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a head from `text`.

        Raises:
            ConfigInvalid: the text is not a head.
        """
        found = _HEAD.fullmatch(text.strip())
        if found is None:
            raise ConfigInvalid(
                "invalid head of an audit chain: expected a number and 64 hex digits, such as 12:0a1b…"
            )
        return cls(int(found[1]), bytes.fromhex(found[2]))


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        at: ISO-8601, UTC.
        kind: `commit`, `ended`, `review`, `recovery`, `erase`, …
        task: id of the task that the record is about, if any.
        body: the data; None once erased.
    """

    seq: int
    at: str
    kind: str
    task: str | None
    body: Mapping[str, Any] | None


class _RecordRow(NamedTuple):
    """The row of a record."""

    seq: int
    at: str
    kind: str
    task: str | None
    body: str | None
    body_mac: bytes
    mac: bytes


class _HeadRow(NamedTuple):
    """The row that marks the end."""

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
        problems: each in one line; empty if the chain is valid.
        head: the current end of the chain.
    """

    records: int
    problems: tuple[str, ...]
    head: Head


def timestamp(at: datetime | None = None) -> str:
    """Return `at`, or now, in the ledger's format: ISO-8601, UTC, milliseconds."""
    return (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe_path(requested: str, state: LedgerState, scopes: Collection[str]) -> str:
    """Return the shape of a path that a model requested, and a keyed digest to recognise the path.

    Example: `user/<12>/../../<14>.md #…`. It contains only names of `scopes`.
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
    """Append a record, inside the caller's transaction of the ledger or in a new one.

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
    """Return the records in order, all or those of one task.

    Args:
        state: has the ledger.
        task: its id.
        latest: maximum number of records, the last ones.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read, or a record was edited and cannot be decoded.
    """
    which = "" if task is None else "WHERE task = ? "
    values = (latest,) if task is None else (task, latest)
    return _RECORDS.read(state.ledger, f"{which}ORDER BY seq DESC LIMIT ?", values)[::-1]


def read_head(state: LedgerState) -> Head:
    """Return the end of the chain, unverified; `0:0…` before the first record."""
    return _build_head(state.ledger.rows(_HEAD_ROW))


def read_copied_head(ledger: sqlite3.Connection) -> Head:
    """Return the end of the chain in a copy of a ledger, which may be where SQLite has no write-ahead log."""
    return _build_head(ledger.execute(_HEAD_ROW).fetchall())


_HEAD_ROW: Final = "SELECT head.seq, record.mac FROM head JOIN record USING (seq)"


def _build_head(found: Sequence[tuple[Any, ...]]) -> Head:
    return Head(*found[0]) if found else Head(0, _FIRST_MAC)


def verify(state: LedgerState, *, expected_head: Head | None = None) -> VerificationResult:
    """Check the complete chain.

    Args:
        state: has the ledger.
        expected_head: an earlier head, stored elsewhere; the chain must contain it.

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
            problems.append(f"record {seq}: its body is missing, and no later erasure lists it")
        if body is not None and state.mac(b"body", body) != body_mac:
            problems.append(f"record {seq}: its body was changed")
        if _mac(state, macs[-1], (seq, at, kind, task), body_mac) != mac:
            problems.append(f"record {seq}: it, or the one before it, was changed")
        macs.append(mac)
    else:
        problems += _check_head(state, len(macs) - 1, macs[-1])
    ((missing,),) = state.ledger.rows(
        "SELECT count(*) FROM change_set WHERE done IS NOT NULL AND task NOT IN "
        "(SELECT task FROM record WHERE kind = 'commit' AND task IS NOT NULL)"
    )
    if missing:
        problems.append(f"the records of {missing} of the commits are missing")
    if expected_head is not None and (
        expected_head.seq >= len(macs) or macs[expected_head.seq] != expected_head.mac
    ):
        problems.append(
            f"the head stored elsewhere ({expected_head.seq}) is not in this ledger: it was cut or replaced"
        )
    return VerificationResult(len(rows), tuple(problems), Head(len(macs) - 1, macs[-1]))


def _read_end(state: LedgerState) -> tuple[int, bytes]:
    """Return the number of the next record, and the MAC that it is chained to.

    If the end was tampered with, the next record must not repair it: it is chained to the start value, which
    `verify` always finds.
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
    """Return by record number the number of the last erasure that lists the record."""
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
