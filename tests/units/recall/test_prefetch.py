"""Work that runs ahead holds nobody up, is taken once, and is gone when it is not wanted any more.

That a call returns while the work is blocked is shown by events: what lets the work go on is set only behind
the call, so that a call that waited for it would wait for ever.
"""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import pytest

from kit.clock import FakeClock
from kit.memories import descriptors
from kit.recall.places import CANARY, WAIT, Gate, nothing_left_behind, settle
from muniment.errors import Cancelled
from muniment.recall import prefetch as subject
from muniment.recall.prefetch import Prefetch
from muniment.store.database import Database


@pytest.fixture(autouse=True)
def no_descriptor_left():
    """No test leaves a thread or a descriptor."""
    gc.collect()
    before = descriptors()
    with nothing_left_behind():
        yield
    assert descriptors() == before


@pytest.fixture
def prefetch():
    with closing(Prefetch(clock=FakeClock(100.0))) as prefetch:
        yield prefetch


class Blocked:
    """Work that has begun, and goes on when it is let, whoever cancels it."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, _patience):
        self.begun.set()
        assert self.go.wait(WAIT)
        return "fruit"


class Endless:
    """Work that ends only by its patience, as a query or a call of a model does."""

    def __init__(self):
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, patience):
        with closing(Gate()) as gate:
            self.begun.set()
            try:
                gate.wait(patience)
            finally:
                self.ended.set()


def settled(handle, prefetch):
    """The handle, once all threads of a prefetch have ended."""
    settle(prefetch)
    assert handle.settled_at is not None
    return handle


def test_all_returns_while_the_work_is_blocked_and_gives_once_what_came_and_nothing_late(prefetch, told):
    work = Blocked()
    handle = prefetch.begin(work)
    assert handle.take() is None
    assert handle.settled_at is None
    assert (handle.consumed, handle.has_failed) == (False, False)
    assert work.begun.wait(WAIT)
    for _ in range(2):
        handle.cancel()
        assert handle.is_cancelled
        assert handle.take() is None
    work.go.set()
    assert settled(handle, prefetch).take() is None
    assert not handle.consumed
    other = settled(prefetch.begin(lambda _: "fruit"), prefetch)
    assert [other.take(), other.take(), other.consumed] == ["fruit", None, True]
    assert told() == []


@pytest.mark.slow
def test_of_eight_threads_that_take_at_the_same_time_one_gets_it(prefetch):
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            handle, together = settled(prefetch.begin(lambda _: "fruit"), prefetch), threading.Barrier(8)
            takes = pool.map(lambda _, it=handle, by=together: by.wait(WAIT) * 0 or it.take(), range(8))
            assert sorted(takes, key=str) == [None] * 7 + ["fruit"]
    prefetch.begin(lambda _: None).cancel()
    settle(prefetch)
    assert prefetch._cancel._children == set()  # Nothing is left behind.
    assert len(prefetch._threads) < 50


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
    assert told() == []


def test_work_that_is_thrown_out_or_gives_up_by_itself_was_not_cancelled_but_failed(prefetch, told):
    thrown = (SystemExit(CANARY), KeyboardInterrupt(CANARY), GeneratorExit(CANARY), Cancelled("of its own"))
    for problem in thrown:
        handle = settled(prefetch.begin(Mock(side_effect=problem)), prefetch)
        assert (handle.has_failed, handle.is_cancelled) == (True, False)
    assert [each["problem"] for each in told()] == [type(problem).__name__ for problem in thrown]
    assert CANARY not in str(told())


def test_where_the_system_has_no_thread_left_the_handle_has_failed(prefetch, told, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    handle = prefetch.begin(lambda _: "fruit")
    assert (handle.settled_at, handle.has_failed, handle.is_cancelled) == (100.0, True, False)
    assert handle.take() is None
    assert [each["event"] for each in told()] == ["prefetch_failed"]


# -- the end


def test_closing_cancels_and_waits_until_every_thread_has_ended(prefetch, told):
    before, works = threading.active_count(), [Endless() for _ in range(8)]
    handles = [prefetch.begin(each) for each in works]
    assert all(each.begun.wait(WAIT) for each in works)
    assert threading.active_count() == before + 8
    prefetch.close()
    assert threading.active_count() == before
    assert all(each.ended.is_set() for each in works)
    assert all(each.settled_at is not None and each.is_cancelled for each in handles)
    prefetch.close()
    assert told() == []


def test_closing_waits_for_work_whose_thread_is_about_to_start(prefetch, monkeypatch):
    work, there, at_end, lock = Endless(), threading.Event(), [], prefetch._lock

    def close():
        prefetch.close()
        at_end.append(work.ended.is_set())
        there.set()

    closing_it = threading.Thread(target=close)

    class Watched:
        """The lock: whoever comes to it is noticed, before they have it."""

        __enter__, __exit__ = (lambda _: there.set() or lock.acquire()), (lambda *_: lock.release())

    class Late(threading.Thread):
        def start(self):
            prefetch._lock = Watched()
            closing_it.start()
            assert there.wait(WAIT)  # It waits for the lock, or has closed.
            super().start()

    monkeypatch.setattr(subject.threading, "Thread", Late)
    handle = prefetch.begin(work)
    closing_it.join(WAIT)
    assert settled(handle, prefetch).is_cancelled
    assert at_end == [True]


def test_work_that_takes_no_notice_is_left_and_told_and_work_may_close_its_own(told, monkeypatch):
    monkeypatch.setattr(subject, "END_SECONDS", 0.0)
    prefetch, work = Prefetch(), Blocked()
    handle = prefetch.begin(work)
    assert work.begun.wait(WAIT)
    prefetch.close()
    assert [each["event"] for each in told()] == ["recall_left_running"]
    assert handle.is_cancelled
    work.go.set()
    assert settled(handle, prefetch).take() is None
    other = Prefetch()
    handle = settled(other.begin(lambda _: other.close()), other)
    assert (handle.has_failed, handle.is_cancelled) == (False, True)
