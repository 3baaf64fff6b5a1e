"""The lease of a home: which node may change its memory, and until when.

Acquiring it increments the epoch of the home. A transaction of the holder contains its epoch and commits only
while that is the home's (`fleet.postgres`, P3): a node that was paused past the end of its lease changes
nothing when it resumes. All times are those of the database. A lease is for the home and not for one
workspace in it, since the workspaces of a home share its user memory.
"""

from __future__ import annotations

from typing import Final

from muniment.fleet.postgres import HomeLedger

LEASE_SECONDS: Final = 15.0
"""Seconds of a lease; it is renewed three times in that time."""

_ACQUIRE: Final = (
    "UPDATE home SET epoch = epoch + 1, node = ?, until = clock_timestamp() + make_interval(secs => ?) "
    "WHERE home = current_setting('muniment.home') AND until <= clock_timestamp() RETURNING epoch"
)
_RENEW: Final = (
    "UPDATE home SET until = clock_timestamp() + make_interval(secs => ?) "
    "WHERE home = current_setting('muniment.home') AND node IS NOT NULL"
)
_RELEASE: Final = (
    "UPDATE home SET node = NULL, until = '-infinity' WHERE home = current_setting('muniment.home')"
)


def acquire(ledger: HomeLedger, node: str, seconds: float) -> int | None:
    """Acquire the lease of a home and return its epoch, or None if another node has it.

    Raises:
        ManagedMemoryUnavailable: the home does not exist, or the database does not respond.
    """
    with ledger.transaction() as connection:
        found = connection.execute(_ACQUIRE, (node, float(seconds))).fetchone()
    return None if found is None else int(found[0])


def renew(leased_ledger: HomeLedger, seconds: float) -> None:
    """Extend a lease; a lease that was released in the meantime stays released.

    Raises:
        LeaseLost: another node has acquired it since.
        ManagedMemoryUnavailable: the database does not respond.
    """
    with leased_ledger.transaction() as connection:
        connection.execute(_RENEW, (float(seconds),))


def release(leased_ledger: HomeLedger) -> None:
    """Release a lease, so that other nodes can acquire it at once; raises as `renew`."""
    with leased_ledger.transaction() as connection:
        connection.execute(_RELEASE)
