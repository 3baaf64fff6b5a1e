"""The writer: many changes in one durable transaction, each with its own end."""

from __future__ import annotations

import threading

import pytest

from muniment import lane as subject
from muniment.errors import ManagedMemoryUnavailable, WorkspaceDraining
from muniment.lane import MAX_GROUP, Writer
from muniment.store.database import Database

SCHEMA = (
    "CREATE TABLE thing (number INTEGER PRIMARY KEY, data TEXT)",
    "CREATE TABLE owned (thing INTEGER REFERENCES thing DEFERRABLE INITIALLY DEFERRED)",
)
PATIENCE = 30


@pytest.fixture
def path(tmp_path):
    return tmp_path / "things.db"


@pytest.fixture
def database(path):
    made = Database(path, synchronous="FULL")
    with made.transaction() as connection:
        for statement in SCHEMA:
            connection.execute(statement)
    yield made
    made.close()


@pytest.fixture
def writer(database):
    made = Writer(database)
    yield made
    made.close()


@pytest.fixture
def commits(database):
    """The statements that ended a transaction, as SQLite carried them out."""
    seen = []
    with database.bare() as connection:
        connection.set_trace_callback(
            lambda statement: seen.append(statement) if statement in {"COMMIT", "ROLLBACK"} else None
        )
    yield seen
    with database.bare() as connection:
        connection.set_trace_callback(None)


class Held:
    """A writer whose thread is kept in a first change, so that what follows comes to wait together."""

    def __init__(self, writer):
        self._writer, self._in, self._go = writer, threading.Event(), threading.Event()

    def __enter__(self):
        self.first = self._writer.submit(self._wait)
        assert self._in.wait(PATIENCE)

    def __exit__(self, *_exc):
        self._go.set()
        self.first.result(PATIENCE)

    def _wait(self):
        self._in.set()
        assert self._go.wait(PATIENCE)


def adding(database, number, data=None):
    def add():
        with database.transaction() as connection:
            connection.execute("INSERT INTO thing VALUES (?, ?)", (number, data))
        return number

    return add


def numbers(database):
    return [number for (number,) in database.rows("SELECT number FROM thing ORDER BY number")]


def seen_from_elsewhere(path):
    elsewhere = Database(path, synchronous="FULL")
    try:
        return numbers(elsewhere)
    finally:
        elsewhere.close()


def test_what_a_change_returns_is_told_once_it_is_durable(database, path, writer):
    assert writer.run(adding(database, 1)) == 1
    assert seen_from_elsewhere(path) == [1]


def test_a_change_that_raises_takes_back_only_itself(database, writer, commits):
    def half():
        adding(database, 2)()
        raise LookupError("half done")

    with Held(writer):
        before, broken, after = (
            writer.submit(change) for change in (adding(database, 1), half, adding(database, 3))
        )
    assert (before.result(PATIENCE), after.result(PATIENCE)) == (1, 3)
    with pytest.raises(LookupError, match="half done"):
        broken.result(PATIENCE)
    assert numbers(database) == [1, 3]
    assert commits == ["COMMIT", "COMMIT"]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_change_that_would_end_the_thread_takes_back_only_itself(database, writer, end):
    def leaving():
        adding(database, 2)()
        raise end

    with Held(writer):
        before, gone, after = (
            writer.submit(change) for change in (adding(database, 1), leaving, adding(database, 3))
        )
    assert isinstance(gone.exception(PATIENCE), end)
    assert (before.result(PATIENCE), after.result(PATIENCE)) == (1, 3)
    assert numbers(database) == [1, 3]
    assert writer.submit(adding(database, 4)).result(PATIENCE) == 4


def test_a_transaction_that_would_end_the_thread_is_told_to_all_of_its_group(database, writer):
    def leaving():
        with database.bare() as connection:
            connection.execute("ROLLBACK")
        raise SystemExit

    with Held(writer):
        futures = [writer.submit(change) for change in (adding(database, 1), leaving)]
    assert [type(future.exception(PATIENCE)) for future in futures] == [SystemExit, SystemExit]
    assert writer.submit(adding(database, 2)).result(PATIENCE) == 2
    assert numbers(database) == [2]


def test_a_commit_that_fails_fails_every_change_of_its_group_and_no_other(database, path, writer, commits):
    def orphan():
        with database.transaction() as connection:  # Looked at only when the transaction is committed.
            connection.execute("INSERT INTO owned VALUES (99)")

    with Held(writer):
        futures = [writer.submit(change) for change in (adding(database, 1), orphan, adding(database, 2))]
    for future in futures:
        with pytest.raises(ManagedMemoryUnavailable):
            future.result(PATIENCE)
    assert writer.run(adding(database, 3)) == 3
    assert seen_from_elsewhere(path) == [3]
    assert commits == ["COMMIT", "COMMIT", "ROLLBACK", "COMMIT"]


def test_where_sqlite_takes_back_everything_all_of_the_group_are_told_why(database, writer):
    def abort():
        with database.transaction() as connection:
            connection.execute("INSERT OR ROLLBACK INTO thing VALUES (1, NULL)")

    with Held(writer):
        futures = [writer.submit(change) for change in (adding(database, 1), abort, adding(database, 2))]
    for future in futures:
        with pytest.raises(ManagedMemoryUnavailable, match="UNIQUE constraint failed"):
            future.result(PATIENCE)
    assert numbers(database) == []
    assert writer.run(adding(database, 1)) == 1


def test_a_full_disk_leaves_exactly_what_was_told(database, writer):
    ((pages,),) = database.rows("PRAGMA page_count")
    database.rows(f"PRAGMA max_page_count = {pages + 8}")
    with Held(writer):
        futures = [writer.submit(adding(database, number, "x" * 8_000)) for number in range(20)]
    problems = [future.exception(PATIENCE) for future in futures]
    assert numbers(database) == [number for number, problem in enumerate(problems) if problem is None]
    told = [problem for problem in problems if problem is not None]
    assert told
    assert all(isinstance(problem, ManagedMemoryUnavailable) and "full" in problem.reason for problem in told)
    database.rows(f"PRAGMA max_page_count = {pages + 1_000}")
    assert writer.run(adding(database, 100)) == 100


def test_a_future_that_was_cancelled_in_time_takes_its_change_along(database, writer):
    with Held(writer):
        gone, stays = writer.submit(adding(database, 1)), writer.submit(adding(database, 2))
        assert gone.cancel()
    assert stays.result(PATIENCE) == 2
    assert gone.cancelled()
    assert numbers(database) == [2]


def test_a_change_that_has_begun_cannot_be_cancelled_and_the_thread_lives_on(database, writer):
    held = Held(writer)
    with held:
        assert not held.first.cancel()
    assert writer.run(adding(database, 1)) == 1


def test_close_carries_out_what_waits_and_refuses_what_comes_later(database):
    writer = Writer(database)
    with Held(writer):
        futures = [writer.submit(adding(database, number)) for number in range(MAX_GROUP + 5)]
        closing = threading.Thread(target=writer.close)
        closing.start()
    closing.join(PATIENCE)
    assert [future.result(0) for future in futures] == list(range(MAX_GROUP + 5))
    with pytest.raises(WorkspaceDraining):
        writer.submit(adding(database, 1_000))
    writer.close()


def test_of_threads_that_race_with_close_none_waits_for_ever(database):
    writer = Writer(database)
    together, done, refused = threading.Barrier(9), [], []

    def submit(number):
        together.wait()
        try:
            while True:
                number += 1_000
                done.append(writer.submit(adding(database, number)))
        except WorkspaceDraining:
            refused.append(number)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    together.wait()
    writer.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(refused) == 8
    assert len(numbers(database)) == len([future.result(0) for future in done])


def test_whoever_follows_is_called_after_each_durable_group_and_before_it_is_told(database, path):
    seen = []
    writer = Writer(
        database, committed=lambda: seen.append((seen_from_elsewhere(path), [*map(done, futures)]))
    )

    def done(future):
        return future.done()

    futures = []
    with Held(writer):
        futures += [writer.submit(adding(database, number)) for number in (1, 2)]
    for future in futures:
        future.result(PATIENCE)
    writer.close()
    assert seen == [([], [False, False]), ([1, 2], [False, False])]


def test_nobody_is_called_for_a_group_that_failed(database):
    calls = []
    writer = Writer(database, committed=lambda: calls.append(1))
    with pytest.raises(ManagedMemoryUnavailable):
        writer.run(lambda: database.rows("INSERT INTO owned VALUES (99)"))
    writer.close()
    assert calls == []


@pytest.mark.parametrize("problem", [LookupError, SystemExit])
def test_a_follower_that_raises_is_logged_and_harms_nobody(database, monkeypatch, problem):
    logged = []
    monkeypatch.setattr(subject.events, "emit", lambda event, **fields: logged.append((event, fields)))

    def broken():
        raise problem

    writer = Writer(database, committed=broken)
    futures = [writer.submit(adding(database, number)) for number in (1, 2)]
    assert [future.result(PATIENCE) for future in futures] == [1, 2]
    writer.close()
    assert set(map(str, logged)) == {str(("commit_untold", {"problem": problem.__name__}))}
