"""No home uses up the resources that all homes of a node share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from kit.catching import catch_error
from kit.fleet.local_nodes import wait_until
from kit.server.process import BASE
from muniment.kernel.names import Trust
from muniment.server.contract import HttpProblem
from muniment.server.core import MAX_OWNER_OPERATIONS
from muniment.server.tokens import Principal, SlotShares

REQUESTS = 2 * MAX_OWNER_OPERATIONS


@contextmanager
def lease_to_other_node(nodes, home):
    """Give the lease of a home to a node outside this process, which never releases it."""
    with psycopg.connect(
        nodes.base.superuser, autocommit=True, options="-c search_path=muniment"
    ) as connection:
        connection.execute(
            "UPDATE home SET until = 'infinity', epoch = epoch + 1 WHERE home = %s", (home.name,)
        )
        yield
        connection.execute("UPDATE home SET until = '-infinity' WHERE home = %s", (home.name,))


def test_owner_of_leased_home_leaves_places_to_others(two_nodes):
    home, other = two_nodes.create_home(), two_nodes.create_home()
    done = home.nodes[0].run_task("remember", {"content": "The user prefers tea over coffee."})
    core = two_nodes.nodes[0].node

    def undo():
        client = two_nodes.open_requests(0, home.token)
        return client.request_problem("POST", f"{BASE}/undo", {"taskId": done["taskId"]})

    with ThreadPoolExecutor(REQUESTS) as threads:
        with lease_to_other_node(two_nodes, home):
            answers = [threads.submit(undo) for _ in range(REQUESTS)]
            wait_until(lambda: sum(each.done() for each in answers) >= REQUESTS - MAX_OWNER_OPERATIONS // 2)
            assert len(core._operations) == MAX_OWNER_OPERATIONS // 2
            assert other.nodes[0].get(f"{BASE}/review").status_code == 200
        found = [each.result()[0] for each in answers]
    assert sorted(found)[:1] == [200]  # After the home is free, one request succeeds, once.
    assert found.count(503) == REQUESTS - MAX_OWNER_OPERATIONS // 2


@pytest.mark.parametrize("cap", [8, 128, 256])
def test_home_has_half_and_client_a_quarter_of_places(cap):
    shares = SlotShares(cap, 1, 2)

    def take_all(name, home="h"):
        share = Principal(name, Trust.AGENT, frozenset(), home=home).share
        for count in range(cap + 1):
            try:
                shares.acquire(share)
            except HttpProblem:
                return count
        raise AssertionError(cap)

    assert [take_all("one"), take_all("two"), take_all("three")] == [cap // 4, cap // 4, 0]
    assert take_all("owner") == 0
    shares.release("h/one")
    assert take_all("owner") == 1
    assert take_all("owner", "other") == cap // 2 - 2  # The rest is reserved for the operator of the node.
    catch_error(HttpProblem, shares.acquire, "h/owner")
    shares.acquire("owner")
