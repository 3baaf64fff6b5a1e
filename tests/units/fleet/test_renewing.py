"""A lease that is let go while it is being renewed."""

from __future__ import annotations

from contextlib import closing

from kit.fleet.homes import base_on
from kit.postgres import server
from muniment.fleet import lease
from muniment.store.postgres import LedgerPool


def test_a_renewal_that_comes_after_the_lease_was_let_go_keeps_nobody_from_the_home():
    with server() as found, base_on(found.url) as base, closing(LedgerPool(base.node, 2)) as pool:
        ledger = pool.home(base.new_home())
        epoch = lease.take(ledger, "one", 15.0)
        lease.release(ledger.at(epoch))
        lease.renew(ledger.at(epoch), 15.0)
        assert lease.take(ledger, "two", 15.0) == epoch + 1
