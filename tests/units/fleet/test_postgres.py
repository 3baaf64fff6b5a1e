"""A home's ledger in PostgreSQL: who asks is answered after a restart too, and told when nobody answers."""

from __future__ import annotations

import time
from contextlib import closing

import psycopg
import pytest

from kit.raising import raised
from muniment.errors import DeadlineExceeded, LedgerAway, ManagedMemoryUnavailable
from muniment.fleet.postgres import LedgerPool, _Bounded
from muniment.kernel.cancel import Patience

PID = "SELECT pg_backend_pid()"


@pytest.fixture
def pool(fleet):
    with closing(LedgerPool(fleet.node, 1)) as made:
        yield made


def ended(fleet, pid):
    """A session that the server ends, and that is over."""
    with psycopg.connect(fleet.superuser, autocommit=True) as superuser:
        assert superuser.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,)).fetchone() == (True,)


def test_a_connection_that_was_cut_while_nobody_used_it_is_another_one_the_next_time(fleet, pool):
    ledger = pool.home(fleet.new_home())
    ((pid,),) = ledger.rows(PID)
    ended(fleet, pid)
    ((other,),) = ledger.rows(PID)
    assert other != pid
    with pool.connection() as connection:
        pass
    connection.close()
    with ledger.transaction():
        assert ledger.rows(PID) != [(other,)]


def test_a_transaction_whose_connection_is_cut_holds_nothing_and_says_that_nobody_answers(fleet, pool):
    ledger = pool.home(fleet.new_home())

    def cut():
        with ledger.transaction() as connection:
            connection.execute("UPDATE series SET last = 40")
            ended(fleet, ledger.rows(PID)[0][0])
            ledger.rows("SELECT 1")

    raised(LedgerAway, cut)
    assert ledger.rows("SELECT last FROM series") == [(0,)]


def test_where_nobody_answers_or_there_is_no_such_home_it_is_said_so(pool):
    with closing(LedgerPool("postgresql://muniment@127.0.0.1:1/none", 1)) as nowhere:
        raised(LedgerAway, nowhere.home("ana").rows, "SELECT 1")
    raised(
        ManagedMemoryUnavailable,
        pool.home("nobodys").transaction().__enter__,
        match="the home does not exist",
    )
    assert pool.home("nobodys").rows("SELECT last FROM series") == []


def test_whoever_has_no_time_left_asks_nothing(fleet, pool):
    ledger = pool.home(fleet.new_home())
    raised(DeadlineExceeded, ledger.rows, "SELECT 1", patience=Patience(time.monotonic() - 1))
    assert ledger.rows("SELECT 1", patience=Patience(time.monotonic() + 9)) == [(1,)]


def test_an_error_ends_a_transaction_and_no_more_unless_the_line_is_cut(fleet, pool):
    ledger = pool.home(fleet.new_home())
    assert not ledger.is_lasting()

    def fail():
        with ledger.transaction():
            raised(ManagedMemoryUnavailable, ledger.rows, "SELECT 1 / 0", match="division by zero")
            assert ledger.is_lasting()
            ledger.rows("SELECT 1")

    def fail_between_rows():
        with ledger.each("SELECT home FROM series") as rows:
            assert [*rows] == [(ledger.home,)]
            ledger.rows("SELECT 1 FROM nowhere")

    raised(ManagedMemoryUnavailable, fail)
    raised(ManagedMemoryUnavailable, fail_between_rows, match="run: muniment fleet migrate")
    assert ledger.rows("SELECT 1") == [(1,)]


def test_what_a_file_needs_and_a_server_does_by_itself_is_nothing(fleet, pool):
    ledger = pool.home(fleet.new_home())
    with ledger.transaction() as connection:
        connection.executemany("UPDATE series SET last = ?", [])
    assert (ledger.tidy(), ledger.scrub(), ledger.version(), ledger.is_lost()) == (True, None, 0, False)
    ledger.close()
    assert ledger.rows("SELECT last FROM series") == [(0,)]  # The connections are the pool's.


def test_a_server_that_hangs_is_waited_for_no_longer_than_was_said_and_its_connection_is_given_up(
    fleet, pool, monkeypatch
):
    ledger = pool.home(fleet.new_home())
    ((pid,),) = ledger.rows(PID)
    monkeypatch.setattr(_Bounded, "seconds", 0.1)
    raised(LedgerAway, ledger.rows, "SELECT pg_sleep(20)")
    monkeypatch.undo()
    assert ledger.rows(PID) != [(pid,)]


def test_whoever_only_reads_has_the_same_ledger_where_machines_share_it(fleet):
    with fleet.state() as state:
        assert state.reads() is state.ledger
