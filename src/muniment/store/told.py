"""What conversations of hosts were told that keep none of it themselves: those that only call a hook.

H1 A session is known by a keyed digest of what its host calls it, whatever that is; no text of a host is
   kept.
H2 Of each entry counts what was told last. Paths and digests alone are kept, never text.
H3 What a session was told counts for `SESSION_DAYS` from when it was told something last; a time that lies
   ahead, because the clock went back since, counts as long ago. To be told twice does no harm.
H4 Kept are `MAX_SESSIONS`, and of each `MAX_TOLD` entries: what was told longest ago goes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from muniment.kernel.cancel import Patience
from muniment.store.audit import timestamp
from muniment.store.state import State
from muniment.store.table import Table
from muniment.types.keys import EntryKey

SESSION_DAYS: Final = 30
"""Days after which no host goes on with a conversation."""

MAX_SESSIONS: Final = 1_000
"""Some thirty a day; with what each is told in a year of days some 100 KB, and never more than 100 MB."""

MAX_TOLD: Final = 500
"""Entries of one session: those of a hundred prompts that each found five new ones."""

_AHEAD: Final = timedelta(days=1)
"""By so much a clock may be set back without anything being told twice."""


class _Session(NamedTuple):
    id: str
    at: str


class _ToldRow(NamedTuple):
    session: str
    entry: EntryKey


_SESSIONS: Final = Table("session", _Session)
_ENTRIES: Final = Table("told JOIN session ON session.id = told.session", EntryKey)
_TOLD: Final = Table("told", _ToldRow)


class HookSession:
    """A conversation of a host, and what it was told.

    Args:
        state: whose ledger; stays the caller's.
        unsafe_id: what the host calls it: any text.
    """

    def __init__(self, state: State, unsafe_id: str) -> None:
        self._ledger = state.ledger
        self._id = state.mac(b"session", unsafe_id.encode("utf-8", "surrogatepass")).hex()

    def told(self, now: datetime, patience: Patience) -> tuple[EntryKey, ...]:
        """What it was told (H2, H3).

        Raises:
            ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.
        """
        patience.check()
        return _ENTRIES.read(
            self._ledger, "WHERE session.id = ? AND at BETWEEN ? AND ?", (self._id, *_span(now))
        )

    def tell(self, entries: Iterable[EntryKey], now: datetime) -> None:
        """Keep what it is told, and let go of what is too old or too much (H3, H4).

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing of it holds.

        Cost: a durable transaction.
        """
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM session WHERE at NOT BETWEEN ? AND ?", _span(now))
            told_now = (timestamp(now), self._id)
            if not connection.execute("UPDATE session SET at = ? WHERE id = ?", told_now).rowcount:
                _SESSIONS.insert(connection, [_Session(self._id, timestamp(now))])
            told = [_ToldRow(self._id, entry) for entry in entries]
            again = "DELETE FROM told WHERE session = ? AND root = ? AND rel = ?"
            connection.executemany(again, [(self._id, *each.entry[:2]) for each in told])
            _TOLD.insert(connection, told)
            connection.execute(
                "DELETE FROM told WHERE session = ?1 AND number NOT IN "
                "(SELECT number FROM told WHERE session = ?1 ORDER BY number DESC LIMIT ?2)",
                (self._id, MAX_TOLD),
            )
            connection.execute(
                "DELETE FROM session WHERE id NOT IN "
                "(SELECT id FROM session ORDER BY at DESC, id = ? DESC LIMIT ?)",
                (self._id, MAX_SESSIONS),
            )

    def clear(self) -> None:
        """It lost what it was told.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written.
        """
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM session WHERE id = ?", (self._id,))


def forget_all(state: State) -> None:
    """Let go of what every session was told, inside the caller's transaction of the ledger.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        connection.execute("DELETE FROM session")


def _span(now: datetime) -> tuple[str, str]:
    """From when until when a session was told something that still counts."""
    return timestamp(now - timedelta(days=SESSION_DAYS)), timestamp(now + _AHEAD)
