"""The runner: one task at a time, for any failure of the task, the ledger or the daemon."""

from __future__ import annotations

import errno
import queue
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.catching import catch_error
from kit.fleet.engines import postgres_only, sqlite_only
from kit.server.lanes import CANCELLED, DONE, OWNER, LaneFactory, submit_task
from muniment import cancelling
from muniment.cancelling import Cancel
from muniment.errors import LaneError, ManagedMemoryUnavailable
from muniment.fleet.schema import ROLE
from muniment.server import runner
from muniment.server.runner import LaneRunner
from muniment.server.writer import Writer

TIMEOUT = 30
"""The time limit of every wait, in seconds."""

READ_ONLY = {
    "it cannot be written: the file system is read-only",
    "the role lacks a permission; run: muniment fleet migrate",
}


class Attempt:
    """One call of the work, which the test ends, or its cancellation."""

    def __init__(self, task, cancel, report):
        self.task, self.cancel, self.report = task, cancel, report
        self._ended, self._outcome = Cancel(), CANCELLED

    def end(self, outcome):
        """End the run with an outcome, or with an exception."""
        self._outcome = outcome
        self._ended.set()

    def was_cancelled(self):
        """Wait until it is cancelled."""
        return bool(select.select([self.cancel], [], [], TIMEOUT)[0])

    def run(self, *, deaf):
        with self._ended:
            assert select.select([self._ended, *[self.cancel] * (not deaf)], [], [], TIMEOUT)[0]
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class RunnerBench:
    """A lane, a writer and a runner, not started yet; if it is deaf, attempts ignore a cancellation."""

    def __init__(self, state, *, deaf=False):
        self.factory, self.deaf = LaneFactory(state), deaf
        self.lane, self._changed = self.factory.make_lane(), threading.Condition()
        self.writer = Writer(state.ledger, on_commit=self._notify)
        self.attempts = queue.SimpleQueue()
        self.runner = LaneRunner(self.lane, self.writer, self._work)

    def submit(self, count=1):
        """Submit tasks through the writer, and wake the runner."""
        tasks = [self.writer.run(lambda: submit_task(self.lane)) for _ in range(count)]
        self.runner.wake()
        return tasks

    def start_task(self):
        """Submit a task and return it with its attempt."""
        (task,) = self.submit()
        return task, self.next_attempt()

    def next_attempt(self):
        """Return the next attempt after it has started."""
        return self.attempts.get(timeout=TIMEOUT)

    def wait_for(self, task, status):
        """Return the task when it has a status."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.lane.get(task.id).status == status, TIMEOUT)
        return self.lane.get(task.id)

    def close(self):
        assert self.runner.stop(0)
        self.writer.close()

    def _notify(self):
        with self._changed:
            self._changed.notify_all()

    def _work(self, task, cancel, report):
        self.attempts.put(attempt := Attempt(task, cancel, report))
        return attempt.run(deaf=self.deaf)


@pytest.fixture
def make_bench(state, exit_stack):
    """Return a function that makes benches, and close them."""

    def make(*, starts=True, deaf=False):
        bench = exit_stack.enter_context(closing(RunnerBench(state, deaf=deaf)))
        if starts:
            bench.runner.start()
        return bench

    return make


@pytest.fixture
def bench(make_bench):
    return make_bench()


@pytest.fixture
def next_event(monkeypatch):
    """A function that returns the next logged event."""
    seen = queue.SimpleQueue()
    monkeypatch.setattr(runner.events, "emit", lambda event, **fields: seen.put((event, fields)))
    return lambda: seen.get(timeout=TIMEOUT)


@pytest.fixture
def ledger(engine, state, request, monkeypatch):
    """Return a function that makes the ledger read-only or writable."""
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)

    def is_writable(wanted):
        if engine == "sqlite":
            with state.ledger.open_outside_transaction() as connection:
                connection.execute(f"PRAGMA query_only = {int(not wanted)}")
            return
        verb, to = ("GRANT", "TO") if wanted else ("REVOKE", "FROM")
        with psycopg.connect(request.getfixturevalue("fleet").owner, autocommit=True) as owner:
            owner.execute("SET search_path = muniment")
            owner.execute(f"{verb} INSERT, UPDATE ON task {to} {ROLE}")

    yield is_writable
    is_writable(True)


class Gate:
    """Blocks every caller of a method of an object until the test lets it pass."""

    def __init__(self, monkeypatch, owner, name):
        self.reached, self._passes = threading.Event(), threading.Event()
        self._real = getattr(owner, name)
        monkeypatch.setattr(owner, name, self._wait_and_call)

    def _wait_and_call(self, *args):
        self.reached.set()
        assert self._passes.wait(TIMEOUT)
        return self._real(*args)

    def open(self):
        self._passes.set()

    def wait(self):
        assert self.reached.wait(TIMEOUT)

    def start_and_wait(self, bench):
        """Start a runner and return the task with which it arrives here."""
        bench.runner.start()
        (task,) = bench.submit()
        self.wait()
        return task


@contextmanager
def stop_in_background(bench, seconds=0):
    """Stop the runner, with this many seconds for the running task, while the block runs."""
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(bench.runner.stop, seconds)
        assert bench.runner._stopping.wait(TIMEOUT)
        yield
        assert stopped.result(TIMEOUT)


def fail_first_calls(monkeypatch, owner, name, times):
    """Make the first calls of `owner.name` fail for lack of a descriptor."""
    problems, real = [OSError(errno.EMFILE, "Too many open files")] * times, getattr(owner, name)

    def call(*args):
        if problems:
            raise problems.pop()
        return real(*args)

    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("problem", [LookupError, SystemExit])
def test_task_that_raises_has_failed_and_the_next_one_starts(bench, next_event, problem):
    first, second, third = bench.submit(3)
    bench.next_attempt().end(problem("secret"))
    bench.next_attempt().end(CANCELLED)  # Not requested by anybody.
    bench.next_attempt().end(DONE)
    bench.wait_for(third, "completed")
    assert [bench.lane.get(each.id).error for each in (first, second)] == [{"code": "remember_failed"}] * 2
    assert next_event() == ("task_broke", {"task_id": first.id, "problem": problem.__name__})


@postgres_only
def test_end_and_next_start_are_one_server_transaction(bench, state):
    first, second = bench.submit(2)
    bench.next_attempt().end(DONE)
    assert bench.next_attempt().task.id == second.id
    written = state.ledger.rows(
        "SELECT DISTINCT xmin::text FROM task WHERE id IN (?, ?)", (first.id, second.id)
    )
    assert (bench.lane.get(first.id).status, len(written)) == ("completed", 1)


@sqlite_only
def test_end_and_next_start_are_one_transaction(bench, state):
    first, second = bench.submit(2)
    attempt, commits = bench.next_attempt(), []
    with state.ledger.open_outside_transaction() as connection:
        connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    attempt.end(DONE)
    assert bench.next_attempt().task.id == second.id
    with state.ledger.open_outside_transaction() as connection:
        connection.set_trace_callback(None)
    assert (bench.lane.get(first.id).status, commits) == ("completed", ["COMMIT"])


@pytest.mark.parametrize("moment", ["wait", "clear"])
def test_task_submitted_before_the_runner_sleeps_wakes_it(make_bench, monkeypatch, moment):
    bench = make_bench(starts=False)
    gate = Gate(monkeypatch, bench.runner._wake, moment)
    bench.runner.start()
    gate.wait()
    (task,) = bench.submit()
    gate.open()
    bench.next_attempt().end(DONE)
    bench.wait_for(task, "completed")


# Cancelling


def test_task_cancelled_between_claim_and_start_is_cancelled(make_bench, monkeypatch):
    bench = make_bench(starts=False)
    gate = Gate(monkeypatch, bench.runner, "_mark_running")
    task = gate.start_and_wait(bench)
    assert bench.runner.cancel(task.id, OWNER).status == "running"
    gate.open()
    assert bench.wait_for(task, "cancelled").cancelled_by == OWNER


def test_late_cancellation_does_not_hit_the_next_task(bench, monkeypatch):
    first, second = bench.submit(2)
    attempt = bench.next_attempt()
    gate = Gate(monkeypatch, bench.writer, "run")
    attempt.end(DONE)
    gate.wait()  # Before the end of the first task is in the ledger …

    def cancel_late(change):
        noted = Writer.run(bench.writer, change)
        gate.open()
        following.append(bench.next_attempt())
        return noted

    following = []
    monkeypatch.setattr(bench.writer, "run", cancel_late)
    # … it is cancelled, which is reported when the second task runs.
    noted = bench.runner.cancel(first.id, OWNER)
    monkeypatch.undo()
    assert (noted.status, following[0].task.id) == ("running", second.id)
    assert not following[0].cancel.is_set()
    following[0].end(DONE)
    bench.wait_for(second, "completed")
    assert bench.lane.get(first.id).status == "completed"


def test_late_cancellation_keeps_that_of_the_next_task(make_bench, monkeypatch):
    bench = make_bench(starts=False)
    first, second = bench.submit(2)
    begun, claimed = bench.lane.claim(), []

    def cancel_late(change):
        noted = Writer.run(bench.writer, change)
        monkeypatch.undo()
        bench.lane.finish(begun, DONE)
        claimed.append(bench.lane.claim())
        bench.runner.cancel(second.id, OWNER)
        return noted

    monkeypatch.setattr(bench.writer, "run", cancel_late)
    assert bench.runner.cancel(first.id, OWNER).id == first.id
    with Cancel() as cancel:
        bench.runner._mark_running(claimed[0], cancel)
        assert cancel.is_set()


def test_failed_cancellation_does_not_cancel_the_attempt(bench, ledger):
    task, attempt = bench.start_task()
    ledger(False)
    catch_error(ManagedMemoryUnavailable, bench.runner.cancel, task.id, OWNER)
    ledger(True)
    assert not attempt.cancel.is_set()
    attempt.end(DONE)
    bench.wait_for(task, "completed")


# Stopping


def test_task_that_does_not_end_in_time_is_requeued_uncounted(bench):
    sent = bench.submit(2)
    bench.next_attempt()
    assert bench.runner.is_alive
    assert bench.runner.stop(0)
    assert bench.runner.stop(0)
    assert not bench.runner.is_alive
    tasks = [bench.lane.get(task.id) for task in sent]
    assert [(task.status, task.attempt) for task in tasks] == [("queued", 0)] * 2
    assert bench.lane.recover() == ()


@pytest.mark.parametrize(
    ("cancelled", "ended", "status"),
    [
        ("never", DONE, "completed"),  # It has passed its point of no return.
        ("before the stop", CANCELLED, "cancelled"),
        ("while it is requeued", CANCELLED, "cancelled"),
    ],
)
def test_task_that_ends_during_a_stop_keeps_its_status(make_bench, cancelled, ended, status):
    bench = make_bench(deaf=True)
    task, attempt = bench.start_task()
    if cancelled == "before the stop":
        bench.runner.cancel(task.id, OWNER)
    with stop_in_background(bench):
        assert attempt.was_cancelled()
        if cancelled == "while it is requeued":
            bench.runner.cancel(task.id, OWNER)
        attempt.end(ended)
    assert bench.lane.get(task.id).status == status


def test_stop_does_not_wait_forever_for_a_task(make_bench, monkeypatch):
    monkeypatch.setattr(runner, "_LAST_SECONDS", 0.01)
    bench = make_bench(deaf=True)
    _, attempt = bench.start_task()
    assert not bench.runner.stop(0)
    monkeypatch.undo()
    attempt.end(CANCELLED)


def test_task_claimed_during_a_stop_is_not_started(make_bench, monkeypatch):
    bench = make_bench(starts=False)
    gate = Gate(monkeypatch, bench.runner, "_mark_running")
    task = gate.start_and_wait(bench)
    with stop_in_background(bench, TIMEOUT):
        gate.open()
    assert bench.attempts.empty()
    retried = bench.lane.get(task.id)
    assert (retried.status, retried.attempt) == ("queued", 0)


# Missing resources


@pytest.mark.threat("T-API-09", control="patient_lanes")
def test_task_waits_for_a_descriptor_and_the_lane_continues(bench, monkeypatch, next_event):
    fail_first_calls(monkeypatch, bench.lane, "claim", 1)
    fail_first_calls(monkeypatch, cancelling.os, "eventfd", 2)
    first, second = bench.submit(2)
    for task in first, second:
        attempt = bench.next_attempt()
        assert (attempt.task.id, attempt.task.attempt) == (task.id, 1)
        attempt.end(DONE)
    assert bench.wait_for(second, "completed").result == {"summary": "done"}
    event, fields = next_event()
    assert (event, fields["code"]) == ("ledger_unavailable", "no_descriptor")
    events = [next_event() for _ in range(2)]
    assert [(event, fields["task_id"]) for event, fields in events] == [("no_descriptor", first.id)] * 2


def test_result_is_kept_until_the_ledger_is_writable_again(bench, ledger, next_event):
    first, second = bench.submit(2)
    attempt = bench.next_attempt()
    ledger(False)
    attempt.end(DONE)
    event, fields = next_event()
    assert (event, fields["code"]) == ("ledger_unavailable", "managed_memory_unavailable")
    assert fields["reason"] in READ_ONLY
    assert bench.lane.get(first.id).status == "running"
    assert bench.attempts.empty()
    ledger(True)
    assert (bench.next_attempt().task.id, bench.lane.get(first.id).result) == (second.id, {"summary": "done"})


def test_result_is_kept_although_the_next_task_is_unreadable(bench, state, monkeypatch, next_event):
    def write(arguments):
        with state.ledger.transaction() as connection:
            connection.execute("UPDATE task SET arguments = ? WHERE id = ?", (arguments, second.id))

    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    first, second = bench.submit(2)
    attempt = bench.next_attempt()
    write("{")
    attempt.end(DONE)
    assert bench.wait_for(first, "completed").result == {"summary": "done"}
    event, fields = next_event()
    assert (event, fields["code"]) == ("ledger_unavailable", "managed_memory_unavailable")
    write("{}")
    retried = bench.next_attempt()
    assert (retried.task.id, retried.task.attempt) == (second.id, 1)
    retried.end(DONE)
    bench.wait_for(second, "completed")
    statuses = [event.data["status"] for event in bench.factory.read_events() if event.task == first.id]
    assert statuses == ["queued", "running", "completed"]


def test_stop_with_a_read_only_ledger_defers_to_recovery(bench, ledger, next_event):
    task, attempt = bench.start_task()
    ledger(False)
    attempt.end(DONE)
    next_event()
    assert bench.runner.stop(TIMEOUT)
    ledger(True)
    assert bench.lane.get(task.id).status == "running"
    assert [(each.status, each.attempt) for each in bench.lane.recover()] == [("queued", 1)]


def test_runner_with_a_closed_writer_can_be_stopped(bench, next_event):
    bench.writer.close()
    bench.runner.wake()
    assert next_event()[1]["code"] == "workspace_draining"
    catch_error(LaneError, bench.runner.cancel, "remember-0", OWNER)
    assert bench.runner.stop(TIMEOUT)


# Turns


def test_turns_are_reported_and_a_failed_report_is_logged(bench, next_event):
    task, attempt = bench.start_task()
    attempt.report({"status": "running", "turn": 1})
    attempt.report({"status": object()})
    assert next_event() == ("turn_event_failed", {"problem": "TypeError"})
    attempt.end(DONE)
    bench.wait_for(task, "completed")
    attempt.report({"status": "running", "turn": 2})
    bench.writer.run(lambda: None)
    turns = [(event.data["status"], event.data.get("turn")) for event in bench.factory.read_events()]
    assert turns == [("queued", None), ("running", None), ("running", 1), ("completed", None)]
