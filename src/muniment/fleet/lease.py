"""The lease of a home: the one node that may change its memory now, and until when.

Whoever takes it bumps the epoch of the home. A transaction of the holder names its epoch and holds only while
that is the home's (`fleet.postgres`, P3): a node that was stopped past its lease, and wakes, changes nothing.
All times are those of the database. A lease is of the home and not of one workspace in it, since workspaces
of a home share its memory of the user.
"""

from __future__ import annotations

from typing import Final

from muniment.fleet.postgres import HomeLedger

LEASE_SECONDS: Final = 15.0
"""Seconds for which it is taken, and renewed thrice in that time."""

_TAKE: Final = (
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


def take(ledger: HomeLedger, node: str, seconds: float) -> int | None:
    """The epoch of a lease of a home; None: another node has one.

    Raises:
        ManagedMemoryUnavailable: there is no such home, or nobody answers.
    """
    with ledger.transaction() as connection:
        found = connection.execute(_TAKE, (node, float(seconds))).fetchone()
    return None if found is None else int(found[0])


def renew(held: HomeLedger, seconds: float) -> None:
    """Have a lease that is held last longer; one that was let go meanwhile stays so.

    Raises:
        LeaseLost: another node has taken it since.
        ManagedMemoryUnavailable: nobody answers.
    """
    with held.transaction() as connection:
        connection.execute(_RENEW, (float(seconds),))


def release(held: HomeLedger) -> None:
    """Let others have it at once; raises as `renew`."""
    with held.transaction() as connection:
        connection.execute(_RELEASE)
