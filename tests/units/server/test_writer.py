"""The writer: many changes in one durable transaction, each with its own end."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.fleet.engines import of_sqlite
from kit.raising import raised
from kit.threads import together
from muniment.errors import LaneError, ManagedMemoryUnavailable
from muniment.fleet.postgres import HomeLedger
from muniment.fleet.schema import ROLE
from muniment.server import writer as subject
from muniment.server.writer import MAX_GROUP, Writer
from muniment.store.database import Database

PATIENCE = 30
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
    """A ledger with two tables of the test's own."""
    if engine == "postgres":
        with shared(request.getfixturevalue("fleet")) as made:
            yield made
        return
    with closing(Database(tmp_path / "things.db", synchronous="FULL")) as made:
        with made.transaction() as connection:
            for table in TABLES:
                connection.execute(table)
        yield made


@contextmanager
def shared(fleet):
    """The ledger of a home, with tables that belong to none."""
    with psycopg.connect(fleet.owner, autocommit=True, options="-c search_path=muniment") as owner:
        for table in (*TABLES, f"GRANT ALL ON thing, owned TO {ROLE}"):
            owner.execute(table)
        try:
            yield fleet.pool.home(fleet.new_home())
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

    def note(said):
        if said == "COMMIT":
            seen.append(said)

    if isinstance(database, Database):
        with database.bare() as connection:
            connection.set_trace_callback(note)
        return seen
    real = psycopg.Connection.execute

    def execute(connection, statement, *values):
        note(statement)
        return real(connection, statement, *values)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    return seen


@contextmanager
def held(writer):
    """Keep a writer's thread in a first change, so that what follows comes to wait together."""
    entered, goes_on = threading.Event(), threading.Event()
    first = writer.submit(lambda: (entered.set(), goes_on.wait(PATIENCE)))
    assert entered.wait(PATIENCE)
    yield first
    goes_on.set()
    assert first.result(PATIENCE)[1]


def grouped(writer, *changes):
    """The futures of changes that come into one transaction."""
    with held(writer):
        return [writer.submit(change) for change in changes]


def adding(database, number, data=None):
    def add():
        with database.transaction() as connection:
            connection.execute("INSERT INTO thing VALUES (?, ?)", (number, data))
        return number

    return add


def executing(database, statement, error=None):
    def execute():
        with database.transaction() as connection:
            connection.execute(statement)
        if error is not None:
            raise error

    return execute


def numbers(database):
    return [number for (number,) in database.rows("SELECT number FROM thing ORDER BY number")]


def seen_from_elsewhere(database):
    if isinstance(database, HomeLedger):
        return numbers(database.at(0))
    with closing(Database(database.path, synchronous="FULL")) as elsewhere:
        return numbers(elsewhere)


@pytest.mark.parametrize("error", [LookupError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_change_that_raises_whatever_it_is_takes_back_only_itself(database, writer, commits, error):
    half = executing(database, "INSERT INTO thing VALUES (2, NULL)", error("half done"))
    before, broken, after = grouped(writer, adding(database, 1), half, adding(database, 3))
    assert (before.result(PATIENCE), after.result(PATIENCE)) == (1, 3)
    assert isinstance(broken.exception(PATIENCE), error)
    assert (seen_from_elsewhere(database), commits) == ([1, 3], ["COMMIT", "COMMIT"])
    assert writer.run(adding(database, 4)) == 4


def test_a_commit_that_fails_fails_every_change_of_its_group_and_no_other(engine, database, writer, commits):
    orphan = executing(database, "INSERT INTO owned VALUES (99)")  # Looked at when it is committed.
    for future in grouped(writer, adding(database, 1), orphan, adding(database, 2)):
        raised(ManagedMemoryUnavailable, future.result, PATIENCE)
    assert (writer.run(adding(database, 3)), seen_from_elsewhere(database)) == (3, [3])
    assert commits == ["COMMIT"] * 3
    # So does one that takes back everything, or would end the thread.
    abort = executing(database, ABORT[engine])
    leaving = executing(database, "ROLLBACK", SystemExit())
    for number, (broken, kind) in enumerate(((abort, ManagedMemoryUnavailable), (leaving, SystemExit)), 4):
        futures = grouped(writer, adding(database, 9), broken)
        assert [isinstance(future.exception(PATIENCE), kind) for future in futures] == [True, True]
        assert writer.run(adding(database, number)) == number
    assert numbers(database) == [3, 4, 5]


@of_sqlite
def test_a_full_disk_leaves_exactly_what_was_told(database, writer):
    ((pages,),) = database.rows("PRAGMA page_count")
    database.rows(f"PRAGMA max_page_count = {pages + 8}")
    futures = grouped(writer, *[adding(database, number, "x" * 8_000) for number in range(20)])
    problems = [future.exception(PATIENCE) for future in futures]
    assert numbers(database) == [number for number, problem in enumerate(problems) if problem is None]
    told = [problem for problem in problems if problem is not None]
    assert told
    assert all(isinstance(problem, ManagedMemoryUnavailable) and "full" in problem.reason for problem in told)
    database.rows(f"PRAGMA max_page_count = {pages + 1_000}")
    assert writer.run(adding(database, 100)) == 100


def test_a_future_takes_its_change_along_that_was_cancelled_before_the_change_began(database, writer):
    with held(writer) as begun:
        assert not begun.cancel()
        gone, stays = writer.submit(adding(database, 1)), writer.submit(adding(database, 2))
        assert gone.cancel()
    assert stays.result(PATIENCE) == 2
    assert gone.cancelled()
    assert numbers(database) == [2]


def test_close_carries_out_what_waits_and_refuses_what_comes_later(database):
    writer = Writer(database)
    with held(writer):
        futures = [writer.submit(adding(database, number)) for number in range(MAX_GROUP + 5)]
        closing = threading.Thread(target=writer.close)
        closing.start()
    closing.join(PATIENCE)
    assert [future.result(0) for future in futures] == list(range(MAX_GROUP + 5))
    raised(LaneError, writer.submit, adding(database, 1_000))
    writer.close()


@of_sqlite  # It is about the queue alone.
def test_of_threads_that_race_with_close_none_waits_for_ever(database):
    writer = Writer(database)
    done, refused = [], []

    def submit(number):
        try:
            while True:
                number += 1_000
                done.append(writer.submit(adding(database, number)))
        except LaneError:
            refused.append(number)

    together(9, lambda number: submit(number) if number else writer.close())
    assert (len(refused), len(numbers(database))) == (8, len([future.result(0) for future in done]))


def test_whoever_follows_is_called_after_each_durable_group_that_did_not_fail_before_it_is_told(database):
    def told():
        seen.append((seen_from_elsewhere(database), [future.done() for future in futures]))

    seen, futures = [], []
    with closing(Writer(database, committed=told)) as writer:
        with held(writer):
            futures += [writer.submit(adding(database, number)) for number in (1, 2)]
        assert [future.result(PATIENCE) for future in futures] == [1, 2]
        raised(ManagedMemoryUnavailable, writer.run, executing(database, "INSERT INTO owned VALUES (99)"))
    assert seen == [([], [False, False]), ([1, 2], [False, False])]


@pytest.mark.parametrize("problem", [LookupError, SystemExit])
def test_a_follower_that_raises_is_logged_and_harms_nobody(database, monkeypatch, problem):
    def broken():
        raise problem

    logged = []
    monkeypatch.setattr(subject.events, "emit", lambda event, **fields: logged.append((event, fields)))
    with closing(Writer(database, committed=broken)) as writer:
        futures = [writer.submit(adding(database, number)) for number in (1, 2)]
        assert [future.result(PATIENCE) for future in futures] == [1, 2]
    assert set(map(str, logged)) == {str(("commit_callback_failed", {"problem": problem.__name__}))}
