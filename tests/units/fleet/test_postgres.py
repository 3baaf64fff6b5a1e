"""The ledger of a home in PostgreSQL: queries survive a restart of the server and fail if it is away."""

from __future__ import annotations

import time
from contextlib import closing

import psycopg
import pytest

from kit.catching import catch_error
from muniment.errors import DeadlineExceeded, LedgerUnreachable, ManagedMemoryUnavailable
from muniment.fleet.postgres import LedgerPool, _TimedConnection
from muniment.kernel.cancel import Deadline

PID = "SELECT pg_backend_pid()"


@pytest.fixture
def pool(fleet):
    with closing(LedgerPool(fleet.node, 1)) as made:
        yield made


def end_session(fleet, pid):
    """End a session of the server and wait for its end."""
    with psycopg.connect(fleet.superuser, autocommit=True) as superuser:
        assert superuser.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,)).fetchone() == (True,)


def test_connection_cut_while_idle_is_replaced(fleet, pool):
    ledger = pool.home(fleet.create_home())
    ((pid,),) = ledger.rows(PID)
    end_session(fleet, pid)
    ((other,),) = ledger.rows(PID)
    assert other != pid
    with pool.connection() as connection:
        pass
    connection.close()
    with ledger.transaction():
        assert ledger.rows(PID) != [(other,)]


def test_transaction_of_cut_connection_is_rolled_back(fleet, pool):
    ledger = pool.home(fleet.create_home())

    def cut_connection():
        with ledger.transaction() as connection:
            connection.execute("UPDATE series SET last = 40")
            end_session(fleet, ledger.rows(PID)[0][0])
            ledger.rows("SELECT 1")

    catch_error(LedgerUnreachable, cut_connection)
    assert ledger.rows("SELECT last FROM series") == [(0,)]


def test_unreachable_server_or_unknown_home_raises(pool):
    with closing(LedgerPool("postgresql://muniment@127.0.0.1:1/none", 1)) as unreachable:
        catch_error(LedgerUnreachable, unreachable.home("ana").rows, "SELECT 1")
    catch_error(
        ManagedMemoryUnavailable,
        pool.home("nobodys").transaction().__enter__,
        match="home not found",
    )
    assert pool.home("nobodys").rows("SELECT last FROM series") == []


def test_expired_deadline_sends_no_query(fleet, pool):
    ledger = pool.home(fleet.create_home())
    catch_error(DeadlineExceeded, ledger.rows, "SELECT 1", deadline=Deadline(time.monotonic() - 1))
    assert ledger.rows("SELECT 1", deadline=Deadline(time.monotonic() + 9)) == [(1,)]


def test_error_ends_only_its_transaction(fleet, pool):
    ledger = pool.home(fleet.create_home())
    assert not ledger.is_transaction_open()

    def fail():
        with ledger.transaction():
            catch_error(ManagedMemoryUnavailable, ledger.rows, "SELECT 1 / 0", match="division by zero")
            assert ledger.is_transaction_open()
            ledger.rows("SELECT 1")

    def fail_between_rows():
        with ledger.iterate_rows("SELECT home FROM series") as rows:
            assert [*rows] == [(ledger.home,)]
            ledger.rows("SELECT 1 FROM nowhere")

    catch_error(ManagedMemoryUnavailable, fail)
    catch_error(ManagedMemoryUnavailable, fail_between_rows, match="run: muniment fleet migrate")
    assert ledger.rows("SELECT 1") == [(1,)]


def test_file_maintenance_does_nothing_on_server(fleet, pool):
    ledger = pool.home(fleet.create_home())
    with ledger.transaction() as connection:
        connection.executemany("UPDATE series SET last = ?", [])
    assert (ledger.try_truncate_log(), ledger.scrub(), ledger.read_data_version(), ledger.is_lost()) == (
        True,
        None,
        0,
        False,
    )
    ledger.close()
    assert ledger.rows("SELECT last FROM series") == [(0,)]  # The connections belong to the pool.


def test_hanging_server_times_out_and_connection_is_dropped(fleet, pool, monkeypatch):
    ledger = pool.home(fleet.create_home())
    ((pid,),) = ledger.rows(PID)
    monkeypatch.setattr(_TimedConnection, "seconds", 0.1)
    catch_error(LedgerUnreachable, ledger.rows, "SELECT pg_sleep(20)")
    monkeypatch.undo()
    assert ledger.rows(PID) != [(pid,)]


def test_reads_use_same_ledger_if_machines_share_it(fleet):
    with fleet.open_state() as state:
        assert state.open_reader() is state.ledger
