"""The entries that a hook already injected into a conversation, for hosts that only call a hook.

H1 A session is identified by a keyed digest of the host's id for it, in any form. No text of a host is
   stored.
H2 Only paths and digests of entries are stored, never text. For each entry the last injection counts.
H3 A record expires `SESSION_DAYS` after the last injection into its session. A time in the future, because
   the clock was set back, counts as expired. A second injection does no harm.
H4 At most `MAX_SESSIONS` sessions are stored, with at most `MAX_INJECTED` entries each. The oldest are
   removed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from muniment.kernel.cancel import Deadline
from muniment.store.audit import timestamp
from muniment.store.state import State
from muniment.store.table import Table
from muniment.types.keys import EntryKey

SESSION_DAYS: Final = 30
"""Days after which a host is assumed not to continue a conversation."""

MAX_SESSIONS: Final = 1_000
"""About thirty a day. A year of typical injections takes about 100 KB; the limit is 100 MB."""

MAX_INJECTED: Final = 500
"""Entries of one session: a hundred prompts that each found five new ones."""

_CLOCK_TOLERANCE: Final = timedelta(days=1)
"""A clock may be set back by this much without a second injection."""


class _Session(NamedTuple):
    id: str
    at: str


class _InjectedRow(NamedTuple):
    session: str
    entry: EntryKey


_SESSIONS: Final = Table("session", _Session)
_ENTRIES: Final = Table("told JOIN session ON session.id = told.session", EntryKey)
_INJECTED: Final = Table("told", _InjectedRow)


class HookSession:
    """A conversation of a host, and the entries injected into it.

    Args:
        state: has the ledger; stays open.
        unsafe_id: the host's id of the conversation: any text.
    """

    def __init__(self, state: State, unsafe_id: str) -> None:
        self._ledger = state.ledger
        self._id = state.mac(b"session", unsafe_id.encode("utf-8", "surrogatepass")).hex()

    def read_injected(self, now: datetime, deadline: Deadline) -> tuple[EntryKey, ...]:
        """Return the injected entries (H2, H3).

        Raises:
            ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.
        """
        deadline.check()
        return _ENTRIES.read(
            self._ledger, "WHERE session.id = ? AND at BETWEEN ? AND ?", (self._id, *_compute_valid_span(now))
        )

    def record_injected(self, entries: Iterable[EntryKey], now: datetime) -> None:
        """Record injected entries, and delete records that are too old or too many (H3, H4).

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written. Nothing is recorded.

        Cost: a durable transaction.
        """
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM session WHERE at NOT BETWEEN ? AND ?", _compute_valid_span(now))
            update_values = (timestamp(now), self._id)
            if not connection.execute("UPDATE session SET at = ? WHERE id = ?", update_values).rowcount:
                _SESSIONS.insert(connection, [_Session(self._id, timestamp(now))])
            injected = [_InjectedRow(self._id, entry) for entry in entries]
            delete_previous = "DELETE FROM told WHERE session = ? AND root = ? AND rel = ?"
            connection.executemany(delete_previous, [(self._id, *each.entry[:2]) for each in injected])
            _INJECTED.insert(connection, injected)
            connection.execute(
                "DELETE FROM told WHERE session = ?1 AND number NOT IN "
                "(SELECT number FROM told WHERE session = ?1 ORDER BY number DESC LIMIT ?2)",
                (self._id, MAX_INJECTED),
            )
            connection.execute(
                "DELETE FROM session WHERE id NOT IN "
                "(SELECT id FROM session ORDER BY at DESC, id = ? DESC LIMIT ?)",
                (self._id, MAX_SESSIONS),
            )

    def clear(self) -> None:
        """Delete the record of the session: the conversation lost the injected entries.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written.
        """
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM session WHERE id = ?", (self._id,))


def delete_all_sessions(state: State) -> None:
    """Delete the records of all sessions, inside the caller's transaction of the ledger.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        connection.execute("DELETE FROM session")


def _compute_valid_span(now: datetime) -> tuple[str, str]:
    """Return the first and the last time of an injection that still counts."""
    return timestamp(now - timedelta(days=SESSION_DAYS)), timestamp(now + _CLOCK_TOLERANCE)
