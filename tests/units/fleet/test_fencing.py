"""Fencing at the ledger: after another node has acquired the lease, nothing is written (P2, P3)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.catching import catch_error
from kit.fleet.engines import read_rows
from kit.fleet.homes import KEY
from kit.interleave import act_at_call
from kit.server.lanes import DONE, OWNER, submit_task
from kit.store.bench import STRICT, create_store_bench, make_deadline, make_run, propose_new
from muniment.errors import LeaseLost, ManagedMemoryUnavailable
from muniment.fleet.postgres import LedgerPool
from muniment.kernel.names import Trust
from muniment.server.lane import Lane
from muniment.server.tokens import Tokens
from muniment.server.writer import Writer
from muniment.store import audit, tasks
from muniment.store.journal import LedgerJournal
from muniment.store.recovery import recover_roots
from muniment.store.state import SharedLedger, State

TIMEOUT_SECONDS = 30


@contextmanager
def open_other_transaction(leased_home):
    """Yield a transaction of another node."""
    with leased_home.fleet.pool.connection() as connection, connection.transaction():
        yield connection


class LeasedHome:
    """A home whose lease a node has, until another node takes it over."""

    def __init__(self, fleet, base):
        self.fleet, self.name, self.base = fleet, fleet.create_home(), base
        self.epoch = 0

    @contextmanager
    def open_state(self, directory):
        """Yield the state of the node that has the lease now, with its epoch."""
        ledger = self.fleet.pool.home(self.name, self.epoch)
        with State(directory, shared=SharedLedger(ledger, KEY, self.base)) as state:
            yield state

    def take_over(self, wait="30s"):
        """Let another node acquire the lease."""
        with open_other_transaction(self) as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{wait}'")
            self.acquire(connection)

    def acquire(self, connection):
        self.epoch += 1
        connection.execute("SELECT set_config('muniment.home', %s, true)", (self.name,))
        assert connection.execute("UPDATE home SET epoch = %s", (self.epoch,)).rowcount == 1

    def rows(self, state):
        return sorted(read_rows(state.with_ledger(self.fleet.pool.home(self.name))))


@pytest.fixture
def leased_home(fleet, tmp_path):
    return LeasedHome(fleet, tmp_path)


@pytest.fixture
def ground(leased_home, tmp_path):
    with create_store_bench(tmp_path, leased_home.open_state) as ground:
        yield ground


@pytest.mark.threat("T-FLT-02", control="epochs")
def test_node_without_lease_changes_nothing(leased_home, ground):
    lane, state = Lane(ground.state, "w"), ground.state
    ground.commit(propose_new("user/first.md"), run=make_run("task-1"))
    submit_task(lane)
    running = lane.claim()
    token = Tokens(state).add("editor", [], Trust.AGENT)
    leased_home.take_over()
    before, files = leased_home.rows(state), ground.take_snapshot()
    for act in (
        lambda: ground.commit(propose_new("user/n.md"), run=make_run("task-2")),
        lambda: submit_task(lane),
        lane.claim,
        lambda: lane.finish(running, DONE),
        lambda: lane.requeue(running),
        lambda: lane.add_event(running, {"turn": 1}),
        lambda: lane.cancel(running.id, OWNER),
        lane.recover,
        lambda: audit.append(state, "", "kind", None, {}),
        lambda: tasks.append_event(state, tasks.OutboxEvent("task", "", "t", {})),
        lambda: Tokens(state).revoke("editor"),
        lambda: Writer(state.ledger).run(lambda: lane.finish(running, DONE)),
    ):
        catch_error(LeaseLost, act, match="another node has taken it over")
    assert (leased_home.rows(state), ground.take_snapshot()) == (before, files)
    assert lane.get(running.id) == running  # Reading is still possible.
    assert Tokens(state).find_principal(token, "o" * 43) is not None
    with leased_home.open_state(None) as other_state:
        Lane(other_state, "w").finish(running, DONE)
    assert lane.get(running.id).status == "completed"


@pytest.mark.threat("T-FLT-02", control="epochs")
@pytest.mark.parametrize("step", ["begin", "finish"])
def test_commit_after_lost_lease_leaves_only_recoverable_intent(leased_home, ground, step):
    ground.commit(propose_new("user/first.md"))
    before = ground.read_contents()
    with act_at_call(LedgerJournal, step, 1, leased_home.take_over):
        catch_error(
            LeaseLost,
            ground.commit,
            propose_new("user/n.md"),
            ground.propose_edit("user/a.md"),
            run=make_run("task-1"),
        )
    seen = ground.state.ledger.rows("SELECT done FROM change_set WHERE task = 'task-1'")
    assert seen == ([] if step == "begin" else [(None,)])
    with leased_home.open_state(None) as other_state:
        recover_roots(other_state, ground.roots, STRICT, make_deadline())
        assert other_state.ledger.rows("SELECT 1 FROM change_set WHERE task = 'task-1'") == []
    assert {path: of for path, of in ground.read_contents().items() if "MEMORY" not in path} == {
        path: of for path, of in before.items() if "MEMORY" not in path
    }


def test_lease_is_not_acquired_during_open_transaction(leased_home, ground):
    with ground.state.ledger.transaction() as connection:
        connection.execute("UPDATE series SET last = 40")
        catch_error(ManagedMemoryUnavailable, leased_home.take_over, "1ms")
        leased_home.epoch -= 1
    assert ground.state.ledger.rows("SELECT last FROM series") == [(40,)]


@pytest.mark.threat("T-FLT-02", control="epochs")
@pytest.mark.threat("T-FLT-03", control="home_lock")
def test_transaction_blocked_by_takeover_raises_lease_lost(leased_home, ground):
    """Start the transaction before the takeover, and let it continue afterwards."""

    def update_late():
        with ground.state.ledger.transaction() as connection:
            connection.execute("UPDATE series SET last = 40")

    with ThreadPoolExecutor(1) as threads:
        with open_other_transaction(leased_home) as other:
            leased_home.acquire(other)
            waiting = threads.submit(update_late)
            wait_for_blocked_connection(other)
        catch_error(LeaseLost, waiting.result, TIMEOUT_SECONDS)
    assert ground.state.ledger.rows("SELECT last FROM series") != [(40,)]


def wait_for_blocked_connection(connection):
    """Wait until a connection is blocked by the transaction of this one."""
    query = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )
    for _ in range(10_000):
        if connection.execute(query).fetchone() != (0,):
            return
    raise AssertionError("no connection is blocked")


@pytest.mark.threat("T-FLT-03", control="home_lock")
@pytest.mark.threat("T-FLT-03", control="read_committed")
def test_transactions_of_home_are_serial_with_any_default(leased_home, ground):
    """Let threads read and write one number; no update is lost."""
    with psycopg.connect(leased_home.fleet.superuser, autocommit=True) as owner:
        (name,) = owner.execute("SELECT current_database()").fetchone()
        default = f'ALTER DATABASE "{name}" {{}} default_transaction_isolation'
        owner.execute(default.format("SET") + " = 'serializable'")
    try:
        with closing(LedgerPool(leased_home.fleet.node, 4)) as pool:

            def add(_):
                ledger = pool.home(leased_home.name)
                for _ in range(10):
                    with ledger.transaction() as connection:
                        ((last,),) = ledger.rows("SELECT last FROM series")
                        connection.execute("UPDATE series SET last = ?", (last + 1,))

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(add, range(4)))
    finally:
        with psycopg.connect(leased_home.fleet.superuser, autocommit=True) as owner:
            owner.execute(default.format("RESET"))
    assert ground.state.ledger.rows("SELECT last FROM series") == [(40,)]
