"""A node that was suspended too long changes nothing when it resumes: another node has taken over."""

from __future__ import annotations

import signal
import time
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.catching import catch_error
from kit.fleet.chaos import read_files
from kit.fleet.homes import KEY, read_home_rows
from kit.fleet.local_nodes import NodeRequests, wait_until
from kit.fleet.nodes import NodeProcess
from kit.interleave import act_at_call
from kit.memories import make_strict_policy
from kit.server.process import PausableModel
from kit.store.bench import StoreBench, make_run, propose_new
from muniment.errors import LeaseLost
from muniment.fleet import homes
from muniment.fleet.queue import choose_node
from muniment.fleet.working_copies import MEMORY_NAME, CopyOptions, WorkingCopy, build_copy_path
from muniment.kernel.cancel import Deadline
from muniment.store.journal import LedgerJournal


def deadline():
    return Deadline(time.monotonic() + 20)


@pytest.fixture
def copies(fleet, tmp_path):
    """Create two copies of one home, like two nodes."""
    home = fleet.create_home()
    return [
        WorkingCopy(
            tmp_path / name,
            fleet.pool.home(home),
            homes.derive_home_key(KEY, home),
            CopyOptions(make_strict_policy(), name),
        )
        for name in ("first", "second")
    ]


def test_commit_after_lost_lease_is_discarded(fleet, copies):
    first, second = copies
    with first.open_for_writing(deadline()) as (opened, place):
        expire_lease(fleet, opened.workspace.key)
        with second.open_for_writing(deadline()) as (_, other):
            commit_changes(second, other, propose_new("user/n.md", b"by the second\n"), task="remember-1")
            catch_error(
                LeaseLost,
                commit_changes,
                first,
                place,
                propose_new("user/n.md", b"by the first\n"),
                task="remember-2",
            )
    with first.open_for_reading(deadline()), second.open_for_reading(deadline()):
        files = [read_files(copy.directory / MEMORY_NAME) for copy in copies]
    assert files[0] == files[1]
    assert files[0]["user/n.md"] == b"by the second\n"


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_commit_with_lease_lost_during_step_is_discarded(fleet, copies, step):
    first, second = copies

    def commit_elsewhere():
        expire_lease(fleet, first._ledger.home)
        with second.open_for_writing(deadline()) as (_, other):
            commit_changes(second, other, propose_new("user/n.md", b"by the second\n"), task="remember-1")

    with (
        first.open_for_writing(deadline()) as (_, place),
        act_at_call(LedgerJournal, step, 1, commit_elsewhere),
    ):
        catch_error(
            LeaseLost,
            commit_changes,
            first,
            place,
            propose_new("user/n.md", b"by the first\n"),
            task="remember-2",
        )
    with first.open_for_reading(deadline()), second.open_for_reading(deadline()):
        files = [read_files(copy.directory / MEMORY_NAME) for copy in copies]
    assert files[0] == files[1]
    assert files[0]["user/n.md"] == b"by the second\n"
    left = fleet.pool.home(first._ledger.home).rows("SELECT task FROM change_set")
    assert left == [("remember-1",)]


def expire_lease(fleet, home):
    """Expire a lease, as if its node had been suspended."""
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as connection:
        connection.execute("UPDATE home SET until = '-infinity' WHERE home = %s", (home,))


def commit_changes(copy, place, *changes, task):
    ground = StoreBench(copy.directory / MEMORY_NAME, place.roots, place.state)
    return ground.commit(*changes, policy=place.policy, run=make_run(task))


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
    with PausableModel() as model, run_nodes(fleet, tmp_path, *model.flags) as nodes:
        home = fleet.create_home()
        token = homes.add_token(fleet.owner, KEY, home)
        model.pause()
        with closing(NodeRequests(nodes[0].url, token)) as at:
            task = at.remember("The user prefers tea over coffee.")
            model.wait_for_requests()
        (suspended,) = (each for each in nodes if each.name == lease_holder(fleet, home))
        (active,) = (each for each in nodes if each is not suspended)
        suspended.signal(signal.SIGSTOP)
        model.resume()
        with closing(NodeRequests(active.url, token)) as at:
            done = at.wait_for_task(task)
            assert done["status"] == "completed", done
            rows = read_home_rows(fleet, home)
            suspended.signal(signal.SIGCONT)
            wait_until(lambda: '"lease_lost"' in suspended.log or "lease" in suspended.log)
            with closing(NodeRequests(suspended.url, token)) as resumed:
                assert resumed.recall_texts("tea or coffee?") == at.recall_texts("tea or coffee?")
                assert resumed.read_task(task) == done
            # Only the recalls are new.
            assert changed_tables(rows, read_home_rows(fleet, home)) == {"record", "head"}
        files = [read_files(build_copy_path(each.copies, home) / MEMORY_NAME) for each in nodes]
        assert files[0] == files[1]
        ended = [
            data
            for (data,) in rows_in(fleet, home, "SELECT data FROM event WHERE home = %s AND type = 'task'")
            if '"completed"' in data
        ]
        assert len(ended) == 1


@pytest.mark.slow
def test_node_suspended_during_commit_is_rolled_back(fleet, tmp_path):
    home = fleet.create_home()
    token = homes.add_token(fleet.owner, KEY, home)
    with run_nodes(fleet, tmp_path) as nodes, psycopg.connect(fleet.superuser, autocommit=True) as connection:
        active, suspended = sorted(nodes, key=lambda each: each.name == choose_node(home, ("one", "two")))
        connection.execute(NOTIFY_INTENT.format("muniment.change_set"))
        connection.execute("LISTEN intent")
        try:
            for number in range(100):
                with closing(NodeRequests(nodes[0].url, token)) as at:
                    task = at.remember(f"The user keeps item number {number} in the cellar.")
                    for _ in connection.notifies(timeout=10, stop_after=1):
                        suspended.signal(signal.SIGSTOP)
                    if rows_in(fleet, home, "SELECT 1 FROM change_set WHERE home = %s AND done IS NULL"):
                        break
                    suspended.signal(signal.SIGCONT)
                    at.wait_for_task(task)
            else:
                pytest.fail("it was never stopped there")
        finally:
            connection.execute("DROP TRIGGER intent ON muniment.change_set")
        with closing(NodeRequests(active.url, token)) as at:
            assert at.wait_for_task(task)["status"] == "completed"
            suspended.signal(signal.SIGCONT)
            with closing(NodeRequests(suspended.url, token)) as resumed:
                query = f"item number {number} in the cellar"
                wait_until(lambda: resumed.get("/readyz").status_code == 200)
                assert resumed.recall_texts(query) == at.recall_texts(query)
        files = [read_files(build_copy_path(each.copies, home) / MEMORY_NAME) for each in nodes]
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
