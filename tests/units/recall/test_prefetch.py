"""Prefetched work blocks no caller, is taken once, and is discarded when it is no longer needed.

Events show that a call returns while the work is blocked: the event that lets the work continue is set only
after the call, so a call that waited for it would wait forever.
"""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import pytest

from kit.clock import FakeClock
from kit.memories import count_descriptors
from kit.recall.contexts import CANARY, WAIT, Gate, assert_threads_ended, join_threads
from muniment.errors import Cancelled
from muniment.recall import prefetch as subject
from muniment.recall.prefetch import Prefetch
from muniment.store.database import Database


@pytest.fixture(autouse=True)
def check_for_leaks():
    """Require that no test leaves a thread or a descriptor."""
    gc.collect()
    before = count_descriptors()
    with assert_threads_ended():
        yield
    assert count_descriptors() <= before  # Fewer if an object of an earlier test was released meanwhile.


@pytest.fixture
def prefetch():
    with closing(Prefetch(clock=FakeClock(100.0))) as prefetch:
        yield prefetch


class BlockedWork:
    """Work that has started, and continues only when it is allowed to, even after a cancellation."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, _patience):
        self.begun.set()
        assert self.go.wait(WAIT)
        return "fruit"


class EndlessWork:
    """Work that ends only by its deadline, like a query or a model call."""

    def __init__(self):
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, patience):
        with closing(Gate()) as gate:
            self.begun.set()
            try:
                gate.wait(patience)
            finally:
                self.ended.set()


def wait_until_settled(handle, prefetch):
    """Return the handle after all threads of a prefetch have ended."""
    join_threads(prefetch)
    assert handle.settled_at is not None
    return handle


def test_blocked_work_blocks_no_call_and_is_taken_once(prefetch, logged_events):
    work = BlockedWork()
    handle = prefetch.begin(work)
    assert handle.take_result() is None
    assert handle.settled_at is None
    assert (handle.is_consumed, handle.has_failed) == (False, False)
    assert work.begun.wait(WAIT)
    for _ in range(2):
        handle.cancel()
        assert handle.is_cancelled
        assert handle.take_result() is None
    work.go.set()
    assert wait_until_settled(handle, prefetch).take_result() is None
    assert not handle.is_consumed
    other = wait_until_settled(prefetch.begin(lambda _: "fruit"), prefetch)
    assert [other.take_result(), other.take_result(), other.is_consumed] == ["fruit", None, True]
    assert logged_events() == []


@pytest.mark.slow
def test_only_one_of_eight_threads_takes_the_result(prefetch):
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            handle, together = (
                wait_until_settled(prefetch.begin(lambda _: "fruit"), prefetch),
                threading.Barrier(8),
            )
            results = pool.map(
                lambda _, it=handle, by=together: by.wait(WAIT) * 0 or it.take_result(), range(8)
            )
            assert sorted(results, key=str) == [None] * 7 + ["fruit"]
    prefetch.begin(lambda _: None).cancel()
    join_threads(prefetch)
    assert prefetch._cancel._children == set()  # No child is left.
    assert len(prefetch._threads) < 50


def test_endless_query_ends_when_its_handle_is_cancelled(prefetch, tmp_path, logged_events):
    begun = threading.Event()
    endless = "WITH RECURSIVE n(i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with closing(Database(tmp_path / "some.db", synchronous="NORMAL")) as database:
        with database.open_outside_transaction() as connection:
            connection.create_function("begun", 0, lambda: begun.set() or 1)
        handle = prefetch.begin(lambda patience: database.rows(endless, deadline=patience))
        assert begun.wait(WAIT)
        handle.cancel()
        wait_until_settled(handle, prefetch)
        assert database.rows("SELECT 1") == [(1,)]
    assert logged_events() == []


def test_work_that_raises_has_failed_and_is_not_cancelled(prefetch, logged_events):
    thrown = (SystemExit(CANARY), KeyboardInterrupt(CANARY), GeneratorExit(CANARY), Cancelled("of its own"))
    for problem in thrown:
        handle = wait_until_settled(prefetch.begin(Mock(side_effect=problem)), prefetch)
        assert (handle.has_failed, handle.is_cancelled) == (True, False)
    assert [each["problem"] for each in logged_events()] == [type(problem).__name__ for problem in thrown]
    assert CANARY not in str(logged_events())


def test_missing_thread_makes_the_handle_fail(prefetch, logged_events, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    handle = prefetch.begin(lambda _: "fruit")
    assert (handle.settled_at, handle.has_failed, handle.is_cancelled) == (100.0, True, False)
    assert handle.take_result() is None
    assert [each["event"] for each in logged_events()] == ["prefetch_failed"]


# -- closing


def test_close_cancels_and_waits_for_every_thread(prefetch, logged_events):
    before, works = threading.active_count(), [EndlessWork() for _ in range(8)]
    handles = [prefetch.begin(each) for each in works]
    assert all(each.begun.wait(WAIT) for each in works)
    assert threading.active_count() == before + 8
    prefetch.close()
    assert threading.active_count() == before
    assert all(each.ended.is_set() for each in works)
    assert all(each.settled_at is not None and each.is_cancelled for each in handles)
    prefetch.close()
    assert logged_events() == []


def test_close_waits_for_work_while_its_thread_starts(prefetch, monkeypatch):
    work, reached, at_end, lock = EndlessWork(), threading.Event(), [], prefetch._lock

    def close():
        prefetch.close()
        at_end.append(work.ended.is_set())
        reached.set()

    closing_it = threading.Thread(target=close)

    class WatchedLock:
        """A lock that reports every attempt to acquire it."""

        __enter__, __exit__ = (lambda _: reached.set() or lock.acquire()), (lambda *_: lock.release())

    class LateThread(threading.Thread):
        def start(self):
            prefetch._lock = WatchedLock()
            closing_it.start()
            assert reached.wait(WAIT)  # The other thread waits for the lock, or has closed.
            super().start()

    monkeypatch.setattr(subject.threading, "Thread", LateThread)
    handle = prefetch.begin(work)
    closing_it.join(WAIT)
    assert wait_until_settled(handle, prefetch).is_cancelled
    assert at_end == [True]


def test_work_that_ignores_its_cancellation_is_logged(logged_events, monkeypatch):
    monkeypatch.setattr(subject, "END_SECONDS", 0.0)
    prefetch, work = Prefetch(), BlockedWork()
    handle = prefetch.begin(work)
    assert work.begun.wait(WAIT)
    prefetch.close()
    assert [each["event"] for each in logged_events()] == ["recall_left_running"]
    assert handle.is_cancelled
    work.go.set()
    assert wait_until_settled(handle, prefetch).take_result() is None
    other = Prefetch()
    handle = wait_until_settled(other.begin(lambda _: other.close()), other)
    assert (handle.has_failed, handle.is_cancelled) == (False, True)
