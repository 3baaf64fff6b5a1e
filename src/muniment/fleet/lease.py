"""The lease of a home: which node may change its memory, and until when.

Acquiring the lease increments the epoch of the home. A transaction of the holder contains this epoch, and
commits only while it is still the epoch of the home (rule P3 in `fleet.postgres`). So a node that was paused
past the end of its lease changes nothing when it resumes. All times are those of the database. A lease is for
the home and not for one workspace in it, because the workspaces of a home share its user memory.
"""

from __future__ import annotations

from typing import Final

from muniment.fleet.postgres import HomeLedger

LEASE_SECONDS: Final = 15.0
"""Duration of a lease in seconds; its holder renews it three times in that time."""

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
    """Acquire the lease of a home and return its epoch, or None if another node has the lease.

    Args:
        ledger: ledger of the home.
        node: name of this node.
        seconds: duration of the lease.

    Raises:
        ManagedMemoryUnavailable: the home does not exist, or the database does not respond.
    """
    with ledger.transaction() as connection:
        found = connection.execute(_ACQUIRE, (node, float(seconds))).fetchone()
    return None if found is None else int(found[0])


def renew(leased_ledger: HomeLedger, seconds: float) -> None:
    """Extend a lease by `seconds` from now; a lease that was released in the meantime stays released.

    Args:
        leased_ledger: the ledger with the epoch of the lease.
        seconds: new duration of the lease.

    Raises:
        LeaseLost: another node has acquired the lease since.
        ManagedMemoryUnavailable: the database does not respond.
    """
    with leased_ledger.transaction() as connection:
        connection.execute(_RENEW, (float(seconds),))


def release(leased_ledger: HomeLedger) -> None:
    """Release a lease, so that other nodes can acquire it immediately.

    Args:
        leased_ledger: the ledger with the epoch of the lease.

    Raises:
        LeaseLost: another node has acquired the lease since.
        ManagedMemoryUnavailable: the database does not respond.
    """
    with leased_ledger.transaction() as connection:
        connection.execute(_RELEASE)
