"""A lease that is released while it is renewed."""

from __future__ import annotations

from contextlib import closing

from muniment.fleet import lease
from muniment.fleet.postgres import LedgerPool


def test_renewal_after_release_does_not_block_home(fleet):
    with closing(LedgerPool(fleet.node, 2)) as pool:
        ledger = pool.home(fleet.create_home())
        epoch = lease.acquire(ledger, "one", 15.0)
        lease.release(ledger.with_epoch(epoch))
        lease.renew(ledger.with_epoch(epoch), 15.0)
        assert lease.acquire(ledger, "two", 15.0) == epoch + 1
