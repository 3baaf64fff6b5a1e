"""The entries that a hook has already injected into each conversation, for tools that only call a hook.

- H1. A session is identified by a keyed digest of the id that the tool uses for the conversation, in any
  form. No text of the tool is stored.
- H2. Only paths and digests of entries are stored, never text. For each entry, the last injection counts.
- H3. A record expires `SESSION_DAYS` after the last injection into its session. A time in the future also
  counts as expired: the clock was set back. If an entry is injected a second time, that does no harm.
- H4. At most `MAX_SESSIONS` sessions are stored, with at most `MAX_INJECTED` entries each. The oldest are
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
"""Days after the last injection, after which a tool is assumed not to continue a conversation."""

MAX_SESSIONS: Final = 1_000
"""Maximum number of sessions: about thirty for each day.

A year of typical injections takes about 100 KB; the limit is about 100 MB.
"""

MAX_INJECTED: Final = 500
"""Maximum number of entries of one session: a hundred prompts that each found five new entries."""

_CLOCK_TOLERANCE: Final = timedelta(days=1)
"""Maximum time by which a clock may be set back without injecting entries a second time."""


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
    """A conversation of a tool, and the entries that were injected into it.

    Args:
        state: has the ledger; must stay open.
        unsafe_id: the id that the tool uses for the conversation: any text.
    """

    def __init__(self, state: State, unsafe_id: str) -> None:
        self._ledger = state.ledger
        self._id = state.mac(b"session", unsafe_id.encode("utf-8", "surrogatepass")).hex()

    def read_injected(self, now: datetime, deadline: Deadline) -> tuple[EntryKey, ...]:
        """Return the entries that were injected into the conversation, except expired ones.

        Args:
            now: the current time.
            deadline: checked before the query.

        Raises:
            ManagedMemoryUnavailable, Cancelled, DeadlineExceeded: as `Database.rows`.
        """
        deadline.check()
        return _ENTRIES.read(
            self._ledger, "WHERE session.id = ? AND at BETWEEN ? AND ?", (self._id, *_compute_valid_span(now))
        )

    def record_injected(self, entries: Iterable[EntryKey], now: datetime) -> None:
        """Record entries that were injected, and delete records that are too old or too many.

        Args:
            entries: the entries.
            now: the current time.

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
        """Delete the record of this conversation, because the conversation no longer contains the entries.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be written.
        """
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM session WHERE id = ?", (self._id,))


def delete_all_sessions(state: State) -> None:
    """Delete the records of all conversations, in the caller's transaction of the ledger.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    with state.ledger.transaction() as connection:
        connection.execute("DELETE FROM session")


def _compute_valid_span(now: datetime) -> tuple[str, str]:
    """Return the earliest and the latest time of an injection that still counts."""
    return timestamp(now - timedelta(days=SESSION_DAYS)), timestamp(now + _CLOCK_TOLERANCE)
