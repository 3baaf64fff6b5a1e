"""Whoever asks a database with a patience is let go when it ends, and takes nobody else's query along."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from kit.store.ground import STRICT
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable
from muniment.store.database import Database
from muniment.store.upkeep import view_of

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
LONG = ENDLESS.replace("FROM n)", "FROM n LIMIT 50000)")
KEPT = "SELECT word FROM kept ORDER BY word"
WAIT = 20.0
FOREVER = Patience(math.inf)


@pytest.fixture
def database(tmp_path):
    with closing(Database(tmp_path / "some.db", synchronous="NORMAL")) as database:
        with database.transaction() as connection:
            connection.execute("CREATE TABLE kept (word TEXT)")
            connection.execute("INSERT INTO kept VALUES ('there')")
        yield database


def when_begun(database, act):
    """Have the queries above call `act` as they begin."""
    with database.bare() as connection:
        connection.create_function("begun", 0, lambda: (act(), 1)[1])


def asking(database, query, patience=None):
    """A query on a thread of its own; what ends it: its rows, or the error that it met."""
    pool = ThreadPoolExecutor(1)
    asked = pool.submit(database.rows, query, patience=patience)
    pool.shutdown(wait=False)
    return asked


class Counted:
    """A patience that ends at its `last` look."""

    def __init__(self, last, reason=Cancelled):
        self.looks, self._last, self._reason = 0, last, reason

    def check(self):
        self.looks += 1
        if self.looks >= self._last:
            raise self._reason("enough")


def is_usable(database):
    with database.transaction() as connection:
        connection.execute("INSERT INTO kept VALUES ('and more')")
    when_begun(database, int)
    assert database.rows(KEPT) == [("and more",), ("there",)]
    return database.rows(LONG) == [(50_000,)]


@pytest.mark.parametrize("patience", [None, FOREVER])
def test_a_query_without_end_ends_once_it_is_cancelled_and_who_waits_for_it_is_answered(database, patience):
    begun = threading.Event()
    when_begun(database, begun.set)
    with Cancel() as cancel:
        first = asking(database, ENDLESS, Patience(math.inf, cancel))
        assert begun.wait(WAIT)
        second = asking(database, LONG, patience)
        assert not first.done()
        cancel.set()
        assert isinstance(first.exception(WAIT), Cancelled)
        assert second.result(WAIT) == [(50_000,)]
    assert is_usable(database)


def test_a_query_that_is_cancelled_within_a_transaction_takes_nothing_of_that_back(database):
    with Cancel() as cancel, database.transaction() as connection:
        when_begun(database, cancel.set)
        connection.execute("INSERT INTO kept VALUES ('written before')")
        with pytest.raises(Cancelled):
            database.rows(ENDLESS, patience=Patience(math.inf, cancel))
        connection.execute("INSERT INTO kept VALUES ('written behind')")
    assert len(database.rows(KEPT)) == 3


def test_a_query_of_another_thread_goes_on_when_one_that_waits_for_it_ends(database):
    """What `sqlite3_interrupt` would end, since it is what runs on the connection."""
    begun, go = threading.Event(), threading.Event()
    when_begun(database, lambda: (begun.set(), go.wait(WAIT)))
    with Cancel() as cancel:
        other = asking(database, LONG)
        assert begun.wait(WAIT)
        waiting = asking(database, KEPT, Patience(math.inf, cancel))
        with pytest.raises(DeadlineExceeded):
            database.rows(KEPT, patience=Patience(time.monotonic() + 0.01))
        cancel.set()
        assert isinstance(waiting.exception(WAIT), Cancelled)
        assert not other.done()
        go.set()
        assert other.result(WAIT) == [(50_000,)]
    assert is_usable(database)


def test_ctrl_c_or_a_failure_in_a_query_is_told_as_that_though_somebody_waits(database):
    when_begun(database, int)
    with pytest.raises(KeyboardInterrupt):
        database.rows(ENDLESS, patience=Counted(3, KeyboardInterrupt))
    with pytest.raises(ManagedMemoryUnavailable):
        database.rows("SELECT word FROM nowhere", patience=FOREVER)
    assert is_usable(database)


@pytest.mark.parametrize("last", [2, 3])
def test_a_look_that_is_cancelled_in_the_middle_changes_no_row(ground, last):
    def rows():
        tables = ("entry", "name", "directory", "root", "relisted", "total")
        return [ground.state.catalog.rows(f"SELECT * FROM {table}") for table in tables]

    def look(patience):
        return view_of(ground.state, ground.roots["user"], STRICT, patience=patience)

    look(FOREVER)
    for name, text in {"new.md": b"# New\n", "newer.md": b"# Newer\n"}.items():
        (ground.user / name).write_bytes(text)
    (ground.user / "a.md").unlink()
    (ground.user / "topic" / "t.md").unlink()
    (ground.user / "topic" / "t.md").write_bytes(b"# T\nanother\n")
    before, patience = rows(), Counted(last)
    with pytest.raises(Cancelled):
        look(patience)
    assert patience.looks == last
    assert rows() == before
    assert [entry.rel for entry in look(FOREVER).entries()] == ["new.md", "newer.md", "topic/t.md"]
    assert rows() != before
