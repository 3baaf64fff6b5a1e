"""Tells a ledger that was put back from a copy: it gives numbers of events that it gave before.

Beside the ledger stands an empty file, and the ledger knows when its status last changed (ctime), which no
program can set. Where the file is missing or another one, by a restore that removed all that is beside the
ledger, or one of the whole directory, the series of events gets a new epoch: no cursor of the old one counts.

Does not hold where the ledger alone was replaced, or a snapshot of the file system brought back both: then
remove the file too. To renew an epoch without need only makes followers look at everything again.
"""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Final

from muniment.store.database import Database, make_private, reporting

SUFFIX: Final = "-series"
"""What is added to the name of the ledger for the file beside it."""

_EPOCH_BYTES: Final = 4


def settle(ledger: Database) -> None:
    """Begin a new series of events, unless the ledger is the one that this file was made beside.

    No other process opens the ledger meanwhile.

    Raises:
        ManagedMemoryUnavailable: the ledger or its directory cannot be written.

    Cost: one query.
    """
    mark = ledger.path.with_name(ledger.path.name + SUFFIX)
    with reporting(mark):
        found = _changed_at(mark)
    ((known,),) = ledger.rows("SELECT marked FROM series")
    if known is not None and known == found:
        return
    with reporting(mark):
        mark.unlink(missing_ok=True)
        make_private(mark)
        found = _changed_at(mark)
    with ledger.transaction() as connection:
        connection.execute("UPDATE series SET epoch = ?, marked = ?", (token_hex(_EPOCH_BYTES), found))


def _changed_at(path: Path) -> int | None:
    """Nanoseconds since 1970; None: there is no such file."""
    try:
        return path.lstat().st_ctime_ns
    except FileNotFoundError:
        return None
