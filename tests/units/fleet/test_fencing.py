"""Fencing at the ledger: where another node has the lease since, nothing lands any more (P2, P3)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.fleet.engines import rows_of
from kit.fleet.homes import KEY
from kit.meanwhile import nth
from kit.raising import raised
from kit.server.ledgered import DONE, OWNER, submit
from kit.store.ground import STRICT, by, laid_out, new, patience
from muniment.errors import LeaseLost, ManagedMemoryUnavailable
from muniment.fleet.postgres import LedgerPool
from muniment.kernel.names import Trust
from muniment.server.lane import Lane
from muniment.server.tokens import Tokens
from muniment.server.writer import Writer
from muniment.store import audit, tasks
from muniment.store.journal import LedgerJournal
from muniment.store.state import Shared, State
from muniment.store.upkeep import recover_all

PATIENCE = 30


@contextmanager
def a_transaction(fenced):
    """Of another node."""
    with fenced.fleet.pool.connection() as connection, connection.transaction():
        yield connection


class Fenced:
    """A home, as a node has it that took the lease, and lost it if it is said so."""

    def __init__(self, fleet, base):
        self.fleet, self.name, self.base = fleet, fleet.new_home(), base
        self.epoch = 0

    @contextmanager
    def opening(self, directory):
        """The state of whoever has the lease now; it goes on with that epoch."""
        ledger = self.fleet.pool.home(self.name, self.epoch)
        with State(directory, shared=Shared(ledger, KEY, self.base)) as state:
            yield state

    def taken_over(self, wait="30s"):
        """Another node takes the lease."""
        with a_transaction(self) as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{wait}'")
            self.take(connection)

    def take(self, connection):
        self.epoch += 1
        connection.execute("SELECT set_config('muniment.home', %s, true)", (self.name,))
        assert connection.execute("UPDATE home SET epoch = %s", (self.epoch,)).rowcount == 1

    def rows(self, state):
        return sorted(rows_of(state.under(self.fleet.pool.home(self.name))))


@pytest.fixture
def fenced(fleet, tmp_path):
    return Fenced(fleet, tmp_path)


@pytest.fixture
def ground(fenced, tmp_path):
    with laid_out(tmp_path, fenced.opening) as ground:
        yield ground


@pytest.mark.threat("T-FLT-02", control="epochs")
def test_who_has_the_lease_no_more_changes_nothing_by_anything(fenced, ground):
    lane, state = Lane(ground.state, "w"), ground.state
    ground.commit(new("user/first.md"), run=by("task-1"))
    submit(lane)
    running = lane.claim()
    token = Tokens(state).add("editor", [], Trust.AGENT)
    fenced.taken_over()
    before, files = fenced.rows(state), ground.photograph()
    for act in (
        lambda: ground.commit(new("user/n.md"), run=by("task-2")),
        lambda: submit(lane),
        lane.claim,
        lambda: lane.finish(running, DONE),
        lambda: lane.requeue(running),
        lambda: lane.tell(running, {"turn": 1}),
        lambda: lane.cancel(running.id, OWNER),
        lane.recover,
        lambda: audit.append(state, "", "kind", None, {}),
        lambda: tasks.append(state, tasks.OutboxEvent("task", "", "t", {})),
        lambda: Tokens(state).revoke("editor"),
        lambda: Writer(state.ledger).run(lambda: lane.finish(running, DONE)),
    ):
        raised(LeaseLost, act, match="another node has taken it over")
    assert (fenced.rows(state), ground.photograph()) == (before, files)
    assert lane.get(running.id) == running  # To read is not to change.
    assert Tokens(state).principal(token, "o" * 43) is not None
    with fenced.opening(None) as of_another:
        Lane(of_another, "w").finish(running, DONE)
    assert lane.get(running.id).status == "completed"


@pytest.mark.threat("T-FLT-02", control="epochs")
@pytest.mark.parametrize("step", ["begin", "finish"])
def test_a_commit_whose_lease_was_taken_meanwhile_leaves_no_trace_but_an_intent_that_the_next_node_ends(
    fenced, ground, step
):
    ground.commit(new("user/first.md"))
    before = ground.contents()
    with nth(LedgerJournal, step, 1, fenced.taken_over):
        raised(LeaseLost, ground.commit, new("user/n.md"), ground.edit("user/a.md"), run=by("task-1"))
    seen = ground.state.ledger.rows("SELECT done FROM change_set WHERE task = 'task-1'")
    assert seen == ([] if step == "begin" else [(None,)])
    with fenced.opening(None) as of_another:
        recover_all(of_another, ground.roots, STRICT, patience())
        assert of_another.ledger.rows("SELECT 1 FROM change_set WHERE task = 'task-1'") == []
    assert {path: of for path, of in ground.contents().items() if "MEMORY" not in path} == {
        path: of for path, of in before.items() if "MEMORY" not in path
    }


def test_a_lease_is_taken_before_a_transaction_or_after_it_and_never_while_it_is_open(fenced, ground):
    with ground.state.ledger.transaction() as connection:
        connection.execute("UPDATE series SET last = 40")
        raised(ManagedMemoryUnavailable, fenced.taken_over, "1ms")
        fenced.epoch -= 1
    assert ground.state.ledger.rows("SELECT last FROM series") == [(40,)]


@pytest.mark.threat("T-FLT-02", control="epochs")
@pytest.mark.threat("T-FLT-03", control="home_lock")
def test_who_waits_while_a_lease_is_taken_finds_it_lost(fenced, ground):
    """It has asked before, and is let in after."""

    def late():
        with ground.state.ledger.transaction() as connection:
            connection.execute("UPDATE series SET last = 40")

    with ThreadPoolExecutor(1) as threads:
        with a_transaction(fenced) as other:
            fenced.take(other)
            waiting = threads.submit(late)
            until_somebody_waits(other)
        raised(LeaseLost, waiting.result, PATIENCE)
    assert ground.state.ledger.rows("SELECT last FROM series") != [(40,)]


def until_somebody_waits(connection):
    """Until the server says that a connection waits for the transaction of this one."""
    asked = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )
    for _ in range(10_000):
        if connection.execute(asked).fetchone() != (0,):
            return
    raise AssertionError("nobody waits")


@pytest.mark.threat("T-FLT-03", control="home_lock")
@pytest.mark.threat("T-FLT-03", control="read_committed")
def test_transactions_of_a_home_follow_one_another_whatever_the_server_takes_for_the_default(fenced, ground):
    """By threads that each read and write one number: none is lost."""
    with psycopg.connect(fenced.fleet.superuser, autocommit=True) as owner:
        (name,) = owner.execute("SELECT current_database()").fetchone()
        default = f'ALTER DATABASE "{name}" {{}} default_transaction_isolation'
        owner.execute(default.format("SET") + " = 'serializable'")
    try:
        with closing(LedgerPool(fenced.fleet.node, 4)) as pool:

            def add(_):
                ledger = pool.home(fenced.name)
                for _ in range(10):
                    with ledger.transaction() as connection:
                        ((last,),) = ledger.rows("SELECT last FROM series")
                        connection.execute("UPDATE series SET last = ?", (last + 1,))

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(add, range(4)))
    finally:
        with psycopg.connect(fenced.fleet.superuser, autocommit=True) as owner:
            owner.execute(default.format("RESET"))
    assert ground.state.ledger.rows("SELECT last FROM series") == [(40,)]
