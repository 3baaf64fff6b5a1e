"""A lease that is let go while it is being renewed."""

from __future__ import annotations

from contextlib import closing

from muniment.fleet import lease
from muniment.fleet.postgres import LedgerPool


def test_a_renewal_that_comes_after_the_lease_was_let_go_keeps_nobody_from_the_home(fleet):
    with closing(LedgerPool(fleet.node, 2)) as pool:
        ledger = pool.home(fleet.new_home())
        epoch = lease.take(ledger, "one", 15.0)
        lease.release(ledger.at(epoch))
        lease.renew(ledger.at(epoch), 15.0)
        assert lease.take(ledger, "two", 15.0) == epoch + 1
