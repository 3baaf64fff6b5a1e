"""The chain of records: what happened, in order, so that a later edit shows.

Each record is MACed with the one before it, and the last one once more on its own row:

    body_mac = HMAC(key, body)
    mac_n    = HMAC(key, mac_{n-1}, seq, at, kind, task, body_mac)
    head     = HMAC(key, seq, mac_n)

Holds, against one who can edit `ledger.db` but lacks the key: an edited byte, a removed, inserted or moved
record and a cut tail are found by `verify`. A body may be gone only where a later record of the kind `erase`
names it.

Does not hold: anything against one who has the key; nor that the whole ledger was put back to an earlier
state, which only a head that was kept elsewhere shows (`Head`, `verify(…, kept=…)`); nor anything about the
other tables, though a commit record names the digests of what it changed.

Records hold digests and logical paths of what is or was in the memory, never content; of any other path that
a model named, its shape (`described`).
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
"""Kind of the records that name which bodies are gone."""

ALL: Final = 2**62
"""More records than there ever are."""

DIGEST_CHARS: Final = 16
"""Of a keyed digest of a path, for people to compare."""

_DOTS: Final = frozenset({"", ".", ".."})
_START: Final = bytes(32)
_HEAD: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the chain, to be kept elsewhere; as text `seq:mac`."""

    seq: int
    mac: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.mac.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The head that was written as `text`.

        Raises:
            ConfigInvalid: it is none.
        """
        found = _HEAD.fullmatch(text.strip())
        if found is None:
            raise ConfigInvalid("this is no head of an audit chain; it looks like 12:0a1b… (64 digits)")
        return cls(int(found[1]), bytes.fromhex(found[2]))


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        at: ISO-8601, UTC.
        kind: `commit`, `ended`, `review`, `recovery`, `erase`, …
        task: id of the task that it is about, if any.
        body: the rest; None once erased.
    """

    seq: int
    at: str
    kind: str
    task: str | None
    body: Mapping[str, Any] | None


class _Link(NamedTuple):
    """A record as its row keeps it."""

    seq: int
    at: str
    kind: str
    task: str | None
    body: str | None
    body_mac: bytes
    mac: bytes


class _MarkedEnd(NamedTuple):
    """The row that marks the end."""

    one: int
    seq: int
    mac: bytes


_LINKS: Final = Table("record", _Link)
_RECORDS: Final = Table(
    "record", Record, broken="record {} is not as it was written; run: muniment audit verify"
)
_HEADS: Final = Table("head", _MarkedEnd)


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found.

    Attributes:
        problems: each in one line; empty if the chain is whole.
        head: the end of the chain as it stands.
    """

    records: int
    problems: tuple[str, ...]
    head: Head


def timestamp(at: datetime | None = None) -> str:
    """`at`, or now, as the ledger writes it: ISO-8601, UTC, milliseconds."""
    return (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def described(requested: str, state: LedgerState, scopes: Collection[str]) -> str:
    """What is told of a path that a model asked for: its shape, and a keyed digest to know it again by.

    Such as `user/<12>/../../<14>.md #…`: only names of `scopes` stand in it.
    """
    first, *rest = requested.split("/")
    shape = "/".join([first if first in scopes else _length(first), *map(_length, rest)])
    return f"{shape} #{state.keyed(requested)[:DIGEST_CHARS]}"


def _length(segment: str) -> str:
    if segment in _DOTS:
        return segment
    stem = segment.removesuffix(FILE_SUFFIX)
    return f"<{len(stem)}>{segment[len(stem) :]}"


def append(state: LedgerState, at: str, kind: str, task: str | None, body: Mapping[str, Any]) -> None:
    """Add a record, inside the caller's transaction of the ledger or in one of its own.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        seq, before = _end(state)
        text = json.dumps(dict(body), ensure_ascii=False, sort_keys=True)
        body_mac = state.mac(b"body", text.encode())
        named = None if task is None else task.encode()
        mac = _mac(state, before, (seq, at.encode(), kind.encode(), named), body_mac)
        _LINKS.insert(connection, [_Link(seq, at, kind, task, text, body_mac, mac)])
        end = _MarkedEnd(1, seq, _head_mac(state, seq, mac))
        connection.executemany("DELETE FROM head WHERE one = ?", [(end.one,)])
        _HEADS.insert(connection, [end])


def records(state: LedgerState, *, task: str | None = None, latest: int = ALL) -> tuple[Record, ...]:
    """The records in order, all or those of one task.

    Args:
        state: whose ledger.
        task: its id.
        latest: how many at most, the last ones.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read, or somebody edited a record so that it cannot be.
    """
    which = "" if task is None else "WHERE task = ? "
    values = (latest,) if task is None else (task, latest)
    return _RECORDS.read(state.ledger, f"{which}ORDER BY seq DESC LIMIT ?", values)[::-1]


def head(state: LedgerState) -> Head:
    """The end of the chain, unverified; `0:0…` before the first record."""
    return _head_of(state.ledger.rows(_HEAD_ROW))


def head_of_copy(ledger: sqlite3.Connection) -> Head:
    """Likewise, of a copy of a ledger, which may lie where SQLite has no write-ahead log."""
    return _head_of(ledger.execute(_HEAD_ROW).fetchall())


_HEAD_ROW: Final = "SELECT head.seq, record.mac FROM head JOIN record USING (seq)"


def _head_of(found: Sequence[tuple[Any, ...]]) -> Head:
    return Head(*found[0]) if found else Head(0, _START)


def verify(state: LedgerState, *, kept: Head | None = None) -> Verified:
    """Check the whole chain.

    Args:
        state: whose ledger.
        kept: a head from earlier, kept elsewhere; the chain must contain it.

    Cost: two HMACs a record, about 12 µs.
    """
    # As bytes: somebody may have put there what is no text.
    columns = ", ".join(f"CAST({name} AS BLOB)" for name in ("at", "kind", "task", "body", "body_mac", "mac"))
    rows = state.ledger.rows(f"SELECT seq, {columns} FROM record ORDER BY seq")  # noqa: S608  names from above
    problems: list[str] = []
    erased = _erased(rows)
    macs = [_START]
    for seq, at, kind, task, body, body_mac, mac in rows:
        if seq != len(macs):
            problems.append(f"record {len(macs)} is missing; nothing behind it can be checked")
            break
        if body is None and erased.get(seq, 0) <= seq:
            problems.append(f"record {seq}: its body is gone, and no later erasure says so")
        if body is not None and state.mac(b"body", body) != body_mac:
            problems.append(f"record {seq}: its body was changed")
        if _mac(state, macs[-1], (seq, at, kind, task), body_mac) != mac:
            problems.append(f"record {seq}: it, or the one before it, was changed")
        macs.append(mac)
    else:
        problems += _head_problems(state, len(macs) - 1, macs[-1])
    ((lost,),) = state.ledger.rows(
        "SELECT count(*) FROM change_set WHERE done IS NOT NULL AND task NOT IN "
        "(SELECT task FROM record WHERE kind = 'commit' AND task IS NOT NULL)"
    )
    if lost:
        problems.append(f"of {lost} of the commits the record is gone")
    if kept is not None and (kept.seq >= len(macs) or macs[kept.seq] != kept.mac):
        problems.append(f"the head kept elsewhere ({kept.seq}) is not in this ledger: it was cut or replaced")
    return Verified(len(rows), tuple(problems), Head(len(macs) - 1, macs[-1]))


def _end(state: LedgerState) -> tuple[int, bytes]:
    """The number of the next record, and the MAC that it follows.

    Where the end was tampered with, what comes next must not make it whole: it follows nothing, which
    `verify` finds for ever.
    """
    (found,) = state.ledger.rows(
        "SELECT coalesce((SELECT seq FROM head), 0), coalesce((SELECT max(seq) FROM record), 0), "
        "(SELECT mac FROM head), (SELECT record.mac FROM head JOIN record USING (seq))"
    )
    marked_last, last, marked, mac = found
    last = max(marked_last, last)
    is_whole = mac is not None and marked == _head_mac(state, last, mac)
    return last + 1, mac if is_whole else _START


def _head_problems(state: LedgerState, last: int, mac: bytes) -> list[str]:
    found = state.ledger.rows("SELECT CAST(seq AS INTEGER), CAST(mac AS BLOB) FROM head")
    if not found:
        return ["the end of the chain is not marked: records may be missing there"] if last else []
    seq, marked = found[0]
    if seq == last and _head_mac(state, seq, mac) == marked:
        return []
    return [
        f"the chain ends with record {last}, but that was not written last: records were removed or added"
    ]


def _erased(rows: list[tuple[Any, ...]]) -> dict[int, int]:
    """The number of the last erasure that names a record, by the record's number."""
    named: dict[int, int] = {}
    for seq, _, kind, _, body, _, _ in rows:
        if kind == ERASE.encode() and body is not None:
            try:
                named |= dict.fromkeys(json.loads(body)["records"], seq)
            except (ValueError, LookupError, TypeError):
                continue  # Not as it was written, which its own MAC tells.
    return named


def _mac(
    state: LedgerState, before: bytes, fields: tuple[int, bytes, bytes, bytes | None], body_mac: bytes
) -> bytes:
    seq, at, kind, task = fields
    # No task and an empty one must not look alike.
    named = b"" if task is None else b"task " + task
    return state.mac(b"record", before, b"%d" % seq, at, kind, named, body_mac)


def _head_mac(state: LedgerState, seq: int, mac: bytes) -> bytes:
    return state.mac(b"head", b"%d" % seq, mac)
