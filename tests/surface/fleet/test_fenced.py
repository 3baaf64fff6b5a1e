"""A node that was stopped too long changes nothing when it wakes: another one has gone on meanwhile."""

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


def patience():
    return Patience(time.monotonic() + 20)


@pytest.fixture
def copies(fleet, tmp_path):
    """Two copies of one home, as two nodes have them."""
    home = fleet.new_home()
    return [
        WorkingCopy(
            tmp_path / name, fleet.pool.home(home), homes.key_of(KEY, home), CopyTerms(strict(), name)
        )
        for name in ("first", "second")
    ]


def test_commit_after_lost_lease_is_discarded(fleet, copies):
    first, second = copies
    with first.holding(patience()) as (opened, place):
        lapse(fleet, opened.workspace.key)
        with second.holding(patience()) as (_, other):
            committed(second, other, new("user/n.md", b"by the second\n"), task="remember-1")
            raised(LeaseLost, committed, first, place, new("user/n.md", b"by the first\n"), task="remember-2")
    with first.reading(patience()), second.reading(patience()):
        files = [files_below(copy.directory / MEMORY) for copy in copies]
    assert files[0] == files[1]
    assert files[0]["user/n.md"] == b"by the second\n"


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_commit_with_lease_lost_during_step_is_discarded(fleet, copies, step):
    first, second = copies

    def meanwhile():
        lapse(fleet, first._ledger.home)
        with second.holding(patience()) as (_, other):
            committed(second, other, new("user/n.md", b"by the second\n"), task="remember-1")

    with first.holding(patience()) as (_, place), nth(LedgerJournal, step, 1, meanwhile):
        raised(LeaseLost, committed, first, place, new("user/n.md", b"by the first\n"), task="remember-2")
    with first.reading(patience()), second.reading(patience()):
        files = [files_below(copy.directory / MEMORY) for copy in copies]
    assert files[0] == files[1]
    assert files[0]["user/n.md"] == b"by the second\n"
    left = fleet.pool.home(first._ledger.home).rows("SELECT task FROM change_set")
    assert left == [("remember-1",)]


def lapse(fleet, home):
    """The time of a lease is over, as if its node had slept."""
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as asked:
        asked.execute("UPDATE home SET until = '-infinity' WHERE home = %s", (home,))


def committed(copy, place, *changes, task):
    ground = Ground(copy.directory / MEMORY, place.roots, place.state)
    return ground.commit(*changes, policy=place.policy, run=by(task))


# -- processes -------------------------------------------------------------------------------------------


@contextmanager
def processes(fleet, directory, *flags):
    made = [NodeProcess(directory / name, fleet.node, name, flags=flags) for name in ("one", "two")]
    try:
        for each in made:
            each.start()
        for each in made:
            each.wait()
        yield made
    finally:
        for each in made:
            each.kill()


@pytest.mark.slow
def test_node_suspended_during_model_call_changes_nothing(fleet, tmp_path):
    with HeldModel() as model, processes(fleet, tmp_path, *model.flags) as made:
        home = fleet.new_home()
        token = homes.add_token(fleet.owner, KEY, home)
        model.hold()
        with closing(AtNode(made[0].url, token)) as at:
            task = at.remember("The user prefers tea over coffee.")
            model.wait_until_asked()
        (asleep,) = (each for each in made if each.name == holder(fleet, home))
        (awake,) = (each for each in made if each is not asleep)
        asleep.signal(signal.SIGSTOP)
        model.release()
        with closing(AtNode(awake.url, token)) as at:
            done = at.wait(task)
            assert done["status"] == "completed", done
            rows = rows_of_home(fleet, home)
            asleep.signal(signal.SIGCONT)
            until(lambda: '"lease_lost"' in asleep.log or "lease" in asleep.log)
            with closing(AtNode(asleep.url, token)) as late:
                assert late.recalled("tea or coffee?") == at.recalled("tea or coffee?")
                assert late.look(task) == done
            assert changed(rows, rows_of_home(fleet, home)) == {"record", "head"}  # The recalls alone.
        files = [files_below(directory_of(each.copies, home) / MEMORY) for each in made]
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
    with processes(fleet, tmp_path) as made, psycopg.connect(fleet.superuser, autocommit=True) as asked:
        awake, asleep = sorted(made, key=lambda each: each.name == node_for(home, ("one", "two")))
        asked.execute(TELLS.format("muniment.change_set"))
        asked.execute("LISTEN intent")
        try:
            for number in range(100):
                with closing(AtNode(made[0].url, token)) as at:
                    task = at.remember(f"The user keeps item number {number} in the cellar.")
                    for _ in asked.notifies(timeout=10, stop_after=1):
                        asleep.signal(signal.SIGSTOP)
                    if rows_in(fleet, home, "SELECT 1 FROM change_set WHERE home = %s AND done IS NULL"):
                        break
                    asleep.signal(signal.SIGCONT)
                    at.wait(task)
            else:
                pytest.fail("it was never stopped there")
        finally:
            asked.execute("DROP TRIGGER intent ON muniment.change_set")
        with closing(AtNode(awake.url, token)) as at:
            assert at.wait(task)["status"] == "completed"
            asleep.signal(signal.SIGCONT)
            with closing(AtNode(asleep.url, token)) as late:
                query = f"item number {number} in the cellar"
                until(lambda: late.get("/readyz").status_code == 200)
                assert late.recalled(query) == at.recalled(query)
        files = [files_below(directory_of(each.copies, home) / MEMORY) for each in made]
        assert files[0] == files[1]
        done = rows_in(fleet, home, "SELECT count(*) FROM change_set WHERE home = %s AND done IS NULL")
        assert done == [(0,)]


TELLS = """
    CREATE OR REPLACE FUNCTION public.intent() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN PERFORM pg_notify('intent', NEW.home); RETURN NULL; END $$;
    CREATE TRIGGER intent AFTER INSERT ON {} FOR EACH ROW EXECUTE FUNCTION public.intent()
"""


def holder(fleet, home):
    """The name of the node that has the lease of a home."""
    return rows_in(fleet, home, "SELECT node FROM home WHERE home = %s")[0][0]


def rows_in(fleet, home, query):
    with psycopg.connect(fleet.superuser, options="-c search_path=muniment") as asked:
        return asked.execute(query, (home,)).fetchall()


def changed(before, after):
    return {table for table in before if before[table] != after[table]}
