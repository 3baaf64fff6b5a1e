"""A node that was suspended too long changes nothing when it resumes: another node has taken over."""

from __future__ import annotations

import signal
import time
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.fleet.chaos import files_below
from kit.fleet.homes import KEY, rows_of_home
from kit.fleet.nodes import NodeProcess
from kit.fleet.pair import AtNode, until
from kit.meanwhile import nth
from kit.memories import strict
from kit.raising import raised
from kit.server.process import HeldModel
from kit.store.ground import Ground, by, new
from muniment.errors import LeaseLost
from muniment.fleet import homes
from muniment.fleet.copies import MEMORY, CopyTerms, WorkingCopy, directory_of
from muniment.fleet.queue import node_for
from muniment.kernel.cancel import Patience
from muniment.store.journal import LedgerJournal


def deadline():
    return Patience(time.monotonic() + 20)


@pytest.fixture
def copies(fleet, tmp_path):
    """Create two copies of one home, like two nodes."""
    home = fleet.new_home()
    return [
        WorkingCopy(
            tmp_path / name, fleet.pool.home(home), homes.key_of(KEY, home), CopyTerms(strict(), name)
        )
        for name in ("first", "second")
    ]


def test_commit_after_lost_lease_is_discarded(fleet, copies):
    first, second = copies
    with first.holding(deadline()) as (opened, place):
        expire_lease(fleet, opened.workspace.key)
        with second.holding(deadline()) as (_, other):
            commit_changes(second, other, new("user/n.md", b"by the second\n"), task="remember-1")
            raised(
                LeaseLost,
                commit_changes,
                first,
                place,
                new("user/n.md", b"by the first\n"),
                task="remember-2",
            )
    with first.reading(deadline()), second.reading(deadline()):
        files = [files_below(copy.directory / MEMORY) for copy in copies]
    assert files[0] == files[1]
    assert files[0]["user/n.md"] == b"by the second\n"


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_commit_with_lease_lost_during_step_is_discarded(fleet, copies, step):
    first, second = copies

    def commit_elsewhere():
        expire_lease(fleet, first._ledger.home)
        with second.holding(deadline()) as (_, other):
            commit_changes(second, other, new("user/n.md", b"by the second\n"), task="remember-1")

    with first.holding(deadline()) as (_, place), nth(LedgerJournal, step, 1, commit_elsewhere):
        raised(
            LeaseLost, commit_changes, first, place, new("user/n.md", b"by the first\n"), task="remember-2"
        )
    with first.reading(deadline()), second.reading(deadline()):
        files = [files_below(copy.directory / MEMORY) for copy in copies]
    assert files[0] == files[1]
    assert files[0]["user/n.md"] == b"by the second\n"
    left = fleet.pool.home(first._ledger.home).rows("SELECT task FROM change_set")
    assert left == [("remember-1",)]


def expire_lease(fleet, home):
    """Expire a lease, as if its node had been suspended."""
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as connection:
        connection.execute("UPDATE home SET until = '-infinity' WHERE home = %s", (home,))


def commit_changes(copy, place, *changes, task):
    ground = Ground(copy.directory / MEMORY, place.roots, place.state)
    return ground.commit(*changes, policy=place.policy, run=by(task))


# -- processes -----------------------------------------------------------------------------------------


@contextmanager
def run_nodes(fleet, directory, *flags):
    nodes = [NodeProcess(directory / name, fleet.node, name, flags=flags) for name in ("one", "two")]
    try:
        for each in nodes:
            each.start()
        for each in nodes:
            each.wait()
        yield nodes
    finally:
        for each in nodes:
            each.kill()


@pytest.mark.slow
def test_node_suspended_during_model_call_changes_nothing(fleet, tmp_path):
    with HeldModel() as model, run_nodes(fleet, tmp_path, *model.flags) as nodes:
        home = fleet.new_home()
        token = homes.add_token(fleet.owner, KEY, home)
        model.hold()
        with closing(AtNode(nodes[0].url, token)) as at:
            task = at.remember("The user prefers tea over coffee.")
            model.wait_until_asked()
        (suspended,) = (each for each in nodes if each.name == lease_holder(fleet, home))
        (active,) = (each for each in nodes if each is not suspended)
        suspended.signal(signal.SIGSTOP)
        model.release()
        with closing(AtNode(active.url, token)) as at:
            done = at.wait(task)
            assert done["status"] == "completed", done
            rows = rows_of_home(fleet, home)
            suspended.signal(signal.SIGCONT)
            until(lambda: '"lease_lost"' in suspended.log or "lease" in suspended.log)
            with closing(AtNode(suspended.url, token)) as resumed:
                assert resumed.recalled("tea or coffee?") == at.recalled("tea or coffee?")
                assert resumed.look(task) == done
            # Only the recalls are new.
            assert changed_tables(rows, rows_of_home(fleet, home)) == {"record", "head"}
        files = [files_below(directory_of(each.copies, home) / MEMORY) for each in nodes]
        assert files[0] == files[1]
        ended = [
            data
            for (data,) in rows_in(fleet, home, "SELECT data FROM event WHERE home = %s AND type = 'task'")
            if '"completed"' in data
        ]
        assert len(ended) == 1


@pytest.mark.slow
def test_node_suspended_during_commit_is_rolled_back(fleet, tmp_path):
    home = fleet.new_home()
    token = homes.add_token(fleet.owner, KEY, home)
    with run_nodes(fleet, tmp_path) as nodes, psycopg.connect(fleet.superuser, autocommit=True) as connection:
        active, suspended = sorted(nodes, key=lambda each: each.name == node_for(home, ("one", "two")))
        connection.execute(NOTIFY_INTENT.format("muniment.change_set"))
        connection.execute("LISTEN intent")
        try:
            for number in range(100):
                with closing(AtNode(nodes[0].url, token)) as at:
                    task = at.remember(f"The user keeps item number {number} in the cellar.")
                    for _ in connection.notifies(timeout=10, stop_after=1):
                        suspended.signal(signal.SIGSTOP)
                    if rows_in(fleet, home, "SELECT 1 FROM change_set WHERE home = %s AND done IS NULL"):
                        break
                    suspended.signal(signal.SIGCONT)
                    at.wait(task)
            else:
                pytest.fail("it was never stopped there")
        finally:
            connection.execute("DROP TRIGGER intent ON muniment.change_set")
        with closing(AtNode(active.url, token)) as at:
            assert at.wait(task)["status"] == "completed"
            suspended.signal(signal.SIGCONT)
            with closing(AtNode(suspended.url, token)) as resumed:
                query = f"item number {number} in the cellar"
                until(lambda: resumed.get("/readyz").status_code == 200)
                assert resumed.recalled(query) == at.recalled(query)
        files = [files_below(directory_of(each.copies, home) / MEMORY) for each in nodes]
        assert files[0] == files[1]
        done = rows_in(fleet, home, "SELECT count(*) FROM change_set WHERE home = %s AND done IS NULL")
        assert done == [(0,)]


NOTIFY_INTENT = """
    CREATE OR REPLACE FUNCTION public.intent() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN PERFORM pg_notify('intent', NEW.home); RETURN NULL; END $$;
    CREATE TRIGGER intent AFTER INSERT ON {} FOR EACH ROW EXECUTE FUNCTION public.intent()
"""


def lease_holder(fleet, home):
    """Return the name of the node that has the lease of a home."""
    return rows_in(fleet, home, "SELECT node FROM home WHERE home = %s")[0][0]


def rows_in(fleet, home, query):
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as connection:
        return connection.execute(query, (home,)).fetchall()


def changed_tables(before, after):
    return {table for table in before if before[table] != after[table]}
