"""Work that runs ahead holds nobody up, is taken once, and is gone when it is not wanted any more.

That a call returns while the work is blocked is shown by events: what lets the work go on is set only behind
the call, so that a call that waited for it would wait for ever.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from muniment.errors import Cancelled
from muniment.recall import session as subject
from muniment.recall.session import Prefetch
from muniment.store.database import Database
from muniment.testing.minds import FakeClock

CANARY = "canary-51d0"
WAIT = 20.0


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No test leaves a thread or a descriptor."""
    gc.collect()
    threads, descriptors = set(map(id, threading.enumerate())), open_descriptors()
    yield
    assert [each for each in threading.enumerate() if id(each) not in threads] == []
    assert open_descriptors() == descriptors


@pytest.fixture
def told(monkeypatch):
    """The events so far."""
    seen = []
    monkeypatch.setattr(subject.events, "emit", lambda event, **fields: seen.append((event, fields)))
    return seen


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def prefetch(clock):
    with closing(Prefetch(clock=clock)) as prefetch:
        yield prefetch


def open_descriptors():
    return {each.name for each in Path("/proc/self/fd").iterdir()}


class Blocked:
    """Work that has begun, and goes on when it is let, whoever cancels it."""

    def __init__(self, result="fruit"):
        self.begun, self.go, self.result = threading.Event(), threading.Event(), result
        self.patience = None

    def __call__(self, patience):
        self.patience = patience
        self.begun.set()
        assert self.go.wait(WAIT)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


class Endless:
    """Work that ends only by its patience, as a query or a call of a model does."""

    def __init__(self):
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, patience):
        reader, writer = os.pipe()
        try:
            self.begun.set()
            patience.wait(reader, 1)
        finally:
            os.close(reader)
            os.close(writer)
            self.ended.set()


class Watched:
    """A lock: whoever comes to it once it is watched is noticed, before they have it."""

    def __init__(self, lock, noticed):
        self._lock, self._noticed = lock, noticed

    def __enter__(self):
        self._noticed.set()
        self._lock.acquire()

    def __exit__(self, *_exc):
        self._lock.release()


def settled(handle, prefetch):
    """The handle, once all threads of a prefetch have ended."""
    for thread in list(prefetch._threads):
        thread.join(WAIT)
    assert handle.settled_at is not None
    return handle


def raising(problem):
    def work(_patience):
        raise problem

    return work


# -- P1, never in the way


def test_everything_returns_while_the_work_is_blocked(prefetch):
    work = Blocked()
    handle = prefetch.begin(work)
    assert handle.take() is None
    assert (handle.settled_at, handle.consumed, handle.has_failed) == (None, False, False)
    handle.cancel()
    assert handle.is_cancelled
    assert handle.take() is None
    other = (
        prefetch.begin(Blocked.__call__.__get__(Blocked())) if False else prefetch.begin(lambda _: "other")
    )
    other.cancel()
    assert work.begun.wait(WAIT)
    work.go.set()


# -- P2, once


@pytest.mark.slow
def test_of_eight_threads_that_take_at_the_same_time_one_gets_it(prefetch):
    for _ in range(50):
        handle = settled(prefetch.begin(lambda _: "fruit"), prefetch)
        together, got = threading.Barrier(8), []

        def take(handle=handle, together=together, got=got):
            together.wait(WAIT)
            got.append(handle.take())

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert sorted(got, key=str) == [None] * 7 + ["fruit"]


# -- P3, cancelled


def test_a_late_result_of_cancelled_work_is_never_given(prefetch, told):
    work = Blocked()
    handle = prefetch.begin(work)
    assert work.begun.wait(WAIT)
    handle.cancel()
    handle.cancel()
    work.go.set()
    settled(handle, prefetch)
    assert handle.take() is None
    assert not handle.consumed
    assert told == []


def test_a_query_without_end_ends_when_its_handle_is_cancelled(prefetch, tmp_path, told):
    begun = threading.Event()
    endless = "WITH RECURSIVE n(i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with closing(Database(tmp_path / "some.db", synchronous="NORMAL")) as database:
        with database.bare() as connection:
            connection.create_function("begun", 0, lambda: begun.set() or 1)
        handle = prefetch.begin(lambda patience: database.rows(endless, patience=patience))
        assert begun.wait(WAIT)
        handle.cancel()
        settled(handle, prefetch)
        assert database.rows("SELECT 1") == [(1,)]
    assert told == []


# -- failing


@pytest.mark.parametrize("problem", [SystemExit(CANARY), KeyboardInterrupt(CANARY), GeneratorExit(CANARY)])
def test_a_thread_that_is_thrown_out_leaves_no_handle_that_never_settles(prefetch, told, problem):
    handle = settled(prefetch.begin(raising(problem)), prefetch)
    assert handle.has_failed
    assert [fields["problem"] for _, fields in told] == [type(problem).__name__]


def test_work_that_gives_up_by_itself_was_not_cancelled_but_failed(prefetch, told):
    handle = settled(prefetch.begin(raising(Cancelled("a token of its own"))), prefetch)
    assert not handle.is_cancelled
    assert [fields["problem"] for _, fields in told] == ["Cancelled"]


def test_where_the_system_has_no_thread_left_the_handle_has_failed(prefetch, told, monkeypatch, clock):
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subject.threading, "Thread", Refused)
    handle = prefetch.begin(lambda _: "fruit")
    assert (handle.settled_at, handle.has_failed, handle.is_cancelled) == (clock(), True, False)
    assert handle.take() is None
    assert [event for event, _ in told] == ["prefetch_failed"]


# -- P4, the end


def test_closing_cancels_and_waits_until_every_thread_has_ended(clock, told):
    before = set(map(id, threading.enumerate()))
    prefetch, works = Prefetch(clock=clock), [Endless() for _ in range(8)]
    handles = [prefetch.begin(each) for each in works]
    assert all(each.begun.wait(WAIT) for each in works)
    assert len([each for each in threading.enumerate() if id(each) not in before]) == 8
    prefetch.close()
    assert [each for each in threading.enumerate() if id(each) not in before] == []
    assert all(each.ended.is_set() for each in works)
    assert all(each.settled_at is not None and each.is_cancelled for each in handles)
    prefetch.close()
    assert told == []


def test_closing_waits_for_work_whose_thread_is_about_to_start(clock, monkeypatch):
    prefetch, work, there, at_end = Prefetch(clock=clock), Endless(), threading.Event(), []

    def close():
        prefetch.close()
        at_end.append(work.ended.is_set())
        there.set()

    closing_it = threading.Thread(target=close)

    class Late(threading.Thread):
        def start(self):
            prefetch._lock = Watched(prefetch._lock, there)
            closing_it.start()
            assert there.wait(WAIT)  # It waits for the lock, or has closed.
            super().start()

    monkeypatch.setattr(subject.threading, "Thread", Late)
    handle = prefetch.begin(work)
    closing_it.join(WAIT)
    settled(handle, prefetch)
    assert at_end == [True]
    assert handle.is_cancelled


def test_work_that_takes_no_notice_is_left_behind_and_told(clock, told, monkeypatch):
    monkeypatch.setattr(subject, "END_SECONDS", 0.0)
    prefetch, work = Prefetch(clock=clock), Blocked()
    handle = prefetch.begin(work)
    assert work.begun.wait(WAIT)
    prefetch.close()
    assert [event for event, _ in told] == ["recall_left_running"]
    assert handle.is_cancelled
    work.go.set()
    settled(handle, prefetch)
    assert handle.take() is None


def test_work_may_close_what_it_runs_on(clock):
    prefetch = Prefetch(clock=clock)
    handle = settled(prefetch.begin(lambda _: prefetch.close()), prefetch)
    assert not handle.has_failed
    assert handle.is_cancelled


@pytest.mark.slow
def test_a_thousand_pieces_of_work_leave_nothing_behind(prefetch):
    descriptors = open_descriptors()
    for number in range(1_000):
        handle = prefetch.begin(lambda _, number=number: number)
        if number % 2:
            handle.cancel()
        else:
            assert settled(handle, prefetch).take() == number
    for thread in prefetch._threads:
        thread.join(WAIT)
    assert prefetch._cancel._children == set()
    assert len(prefetch._threads) < 1_000
    assert open_descriptors() == descriptors
