"""The writer: many changes in one durable transaction, each with its own result."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.catching import catch_error
from kit.fleet.engines import sqlite_only
from kit.threads import run_together
from muniment.errors import LaneError, ManagedMemoryUnavailable
from muniment.fleet.postgres import HomeLedger
from muniment.fleet.schema import ROLE
from muniment.server import writer as subject
from muniment.server.writer import MAX_GROUP, Writer
from muniment.store.database import Database

TIMEOUT = 30
ABORT = {
    "sqlite": "INSERT OR ROLLBACK INTO thing VALUES (3, NULL)",
    "postgres": "SELECT pg_terminate_backend(pg_backend_pid())",
}


TABLES = (
    "CREATE TABLE thing (number INTEGER PRIMARY KEY, data TEXT)",
    "CREATE TABLE owned (thing INTEGER REFERENCES thing DEFERRABLE INITIALLY DEFERRED)",
)


@pytest.fixture
def database(engine, request, tmp_path):
    """A ledger with two tables of this test."""
    if engine == "postgres":
        with open_shared(request.getfixturevalue("fleet")) as made:
            yield made
        return
    with closing(Database(tmp_path / "things.db", synchronous="FULL")) as made:
        with made.transaction() as connection:
            for table in TABLES:
                connection.execute(table)
        yield made


@contextmanager
def open_shared(fleet):
    """Open the ledger of a home, with tables that belong to no home."""
    with psycopg.connect(fleet.owner, autocommit=True, options="-c search_path=muniment") as owner:
        for table in (*TABLES, f"GRANT ALL ON thing, owned TO {ROLE}"):
            owner.execute(table)
        try:
            yield fleet.pool.home(fleet.create_home())
        finally:
            owner.execute("DROP TABLE owned, thing")


@pytest.fixture
def writer(database):
    with closing(Writer(database)) as made:
        yield made


@pytest.fixture
def commits(database, monkeypatch):
    """A word for each transaction that was to be committed."""
    seen = []

    def note(statement):
        if statement == "COMMIT":
            seen.append(statement)

    if isinstance(database, Database):
        with database.open_outside_transaction() as connection:
            connection.set_trace_callback(note)
        return seen
    real = psycopg.Connection.execute

    def execute(connection, statement, *values):
        note(statement)
        return real(connection, statement, *values)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    return seen


@contextmanager
def block_writer(writer):
    """Block a writer's thread in a first change, so that the following changes wait together."""
    entered, resumed = threading.Event(), threading.Event()
    first = writer.submit(lambda: (entered.set(), resumed.wait(TIMEOUT)))
    assert entered.wait(TIMEOUT)
    yield first
    resumed.set()
    assert first.result(TIMEOUT)[1]


def submit_group(writer, *changes):
    """Submit changes into one transaction and return their futures."""
    with block_writer(writer):
        return [writer.submit(change) for change in changes]


def make_insert(database, number, data=None):
    def add():
        with database.transaction() as connection:
            connection.execute("INSERT INTO thing VALUES (?, ?)", (number, data))
        return number

    return add


def make_execute(database, statement, error=None):
    def execute():
        with database.transaction() as connection:
            connection.execute(statement)
        if error is not None:
            raise error

    return execute


def read_numbers(database):
    return [number for (number,) in database.rows("SELECT number FROM thing ORDER BY number")]


def read_from_another_connection(database):
    if isinstance(database, HomeLedger):
        return read_numbers(database.with_epoch(0))
    with closing(Database(database.path, synchronous="FULL")) as other:
        return read_numbers(other)


@pytest.mark.parametrize("error", [LookupError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_change_that_raises_rolls_back_only_itself(database, writer, commits, error):
    half = make_execute(database, "INSERT INTO thing VALUES (2, NULL)", error("half done"))
    before, broken, after = submit_group(writer, make_insert(database, 1), half, make_insert(database, 3))
    assert (before.result(TIMEOUT), after.result(TIMEOUT)) == (1, 3)
    assert isinstance(broken.exception(TIMEOUT), error)
    assert (read_from_another_connection(database), commits) == ([1, 3], ["COMMIT", "COMMIT"])
    assert writer.run(make_insert(database, 4)) == 4


def test_failing_commit_fails_every_change_of_its_group(engine, database, writer, commits):
    orphan = make_execute(database, "INSERT INTO owned VALUES (99)")  # Checked when it is committed.
    for future in submit_group(writer, make_insert(database, 1), orphan, make_insert(database, 2)):
        catch_error(ManagedMemoryUnavailable, future.result, TIMEOUT)
    assert (writer.run(make_insert(database, 3)), read_from_another_connection(database)) == (3, [3])
    assert commits == ["COMMIT"] * 3
    # The same for a change that rolls back everything, or would end the thread.
    abort = make_execute(database, ABORT[engine])
    leaving = make_execute(database, "ROLLBACK", SystemExit())
    for number, (broken, kind) in enumerate(((abort, ManagedMemoryUnavailable), (leaving, SystemExit)), 4):
        futures = submit_group(writer, make_insert(database, 9), broken)
        assert [isinstance(future.exception(TIMEOUT), kind) for future in futures] == [True, True]
        assert writer.run(make_insert(database, number)) == number
    assert read_numbers(database) == [3, 4, 5]


@sqlite_only
def test_full_disk_leaves_exactly_the_reported_changes(database, writer):
    ((pages,),) = database.rows("PRAGMA page_count")
    database.rows(f"PRAGMA max_page_count = {pages + 8}")
    futures = submit_group(writer, *[make_insert(database, number, "x" * 8_000) for number in range(20)])
    problems = [future.exception(TIMEOUT) for future in futures]
    assert read_numbers(database) == [number for number, problem in enumerate(problems) if problem is None]
    reported = [problem for problem in problems if problem is not None]
    assert reported
    assert all(
        isinstance(problem, ManagedMemoryUnavailable) and "full" in problem.reason for problem in reported
    )
    database.rows(f"PRAGMA max_page_count = {pages + 1_000}")
    assert writer.run(make_insert(database, 100)) == 100


def test_cancelled_future_drops_its_change(database, writer):
    with block_writer(writer) as begun:
        assert not begun.cancel()
        cancelled, kept = writer.submit(make_insert(database, 1)), writer.submit(make_insert(database, 2))
        assert cancelled.cancel()
    assert kept.result(TIMEOUT) == 2
    assert cancelled.cancelled()
    assert read_numbers(database) == [2]


def test_close_runs_waiting_changes_and_rejects_later_ones(database):
    writer = Writer(database)
    with block_writer(writer):
        futures = [writer.submit(make_insert(database, number)) for number in range(MAX_GROUP + 5)]
        closing = threading.Thread(target=writer.close)
        closing.start()
    closing.join(TIMEOUT)
    assert [future.result(0) for future in futures] == list(range(MAX_GROUP + 5))
    catch_error(LaneError, writer.submit, make_insert(database, 1_000))
    writer.close()


@sqlite_only  # Tests only the queue.
def test_threads_that_race_with_close_never_wait_forever(database):
    writer = Writer(database)
    done, refused = [], []

    def submit(number):
        try:
            while True:
                number += 1_000
                done.append(writer.submit(make_insert(database, number)))
        except LaneError:
            refused.append(number)

    run_together(9, lambda number: submit(number) if number else writer.close())
    assert (len(refused), len(read_numbers(database))) == (8, len([future.result(0) for future in done]))


def test_commit_callback_runs_after_each_durable_group(database):
    def record_commit():
        seen.append((read_from_another_connection(database), [future.done() for future in futures]))

    seen, futures = [], []
    with closing(Writer(database, on_commit=record_commit)) as writer:
        with block_writer(writer):
            futures += [writer.submit(make_insert(database, number)) for number in (1, 2)]
        assert [future.result(TIMEOUT) for future in futures] == [1, 2]
        catch_error(
            ManagedMemoryUnavailable, writer.run, make_execute(database, "INSERT INTO owned VALUES (99)")
        )
    assert seen == [([], [False, False]), ([1, 2], [False, False])]


@pytest.mark.parametrize("problem", [LookupError, SystemExit])
def test_raising_commit_callback_is_logged_and_harmless(database, monkeypatch, problem):
    def raise_problem():
        raise problem

    logged = []
    monkeypatch.setattr(subject.events, "emit", lambda event, **fields: logged.append((event, fields)))
    with closing(Writer(database, on_commit=raise_problem)) as writer:
        futures = [writer.submit(make_insert(database, number)) for number in (1, 2)]
        assert [future.result(TIMEOUT) for future in futures] == [1, 2]
    assert set(map(str, logged)) == {str(("commit_callback_failed", {"problem": problem.__name__}))}
