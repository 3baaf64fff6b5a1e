"""The runner: one task at a time, whatever becomes of it, of the ledger or of the daemon."""

from __future__ import annotations

import errno
import queue
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from kit.fleet.engines import of_postgres, of_sqlite
from kit.raising import raised
from kit.server.ledgered import CANCELLED, DONE, OWNER, Ledgered, submit
from muniment import cancelling
from muniment.cancelling import Cancel
from muniment.errors import LaneError, ManagedMemoryUnavailable
from muniment.fleet.schema import ROLE
from muniment.server import runner
from muniment.server.runner import LaneRunner
from muniment.server.writer import Writer

PATIENCE = 30
"""Seconds after which something that should happen has not."""

READ_ONLY = {
    "it cannot be written: the file system is read-only",
    "the role lacks a permission; run: muniment fleet migrate",
}


class Attempt:
    """One call of the work, which the test ends, or its cancellation."""

    def __init__(self, task, cancel, tell):
        self.task, self.cancel, self.tell = task, cancel, tell
        self._said, self._outcome = Cancel(), CANCELLED

    def ends(self, outcome):
        """End it: an `Ended` is returned, an exception raised."""
        self._outcome = outcome
        self._said.set()

    def was_cancelled(self):
        """Wait until it is cancelled."""
        return bool(select.select([self.cancel], [], [], PATIENCE)[0])

    def carry_out(self, *, deaf):
        with self._said:
            assert select.select([self._said, *[self.cancel] * (not deaf)], [], [], PATIENCE)[0]
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class Workshop:
    """A lane, a writer and a runner, not started yet; where it is deaf, attempts heed no cancellation."""

    def __init__(self, state, *, deaf=False):
        self.factory, self.deaf = Ledgered(state), deaf
        self.lane, self._changed = self.factory.lane(), threading.Condition()
        self.writer = Writer(state.ledger, committed=self._notify)
        self.attempts = queue.SimpleQueue()
        self.runner = LaneRunner(self.lane, self.writer, self._work)

    def submit(self, count=1):
        """Submit tasks through the writer, and wake the runner."""
        tasks = [self.writer.run(lambda: submit(self.lane)) for _ in range(count)]
        self.runner.wake()
        return tasks

    def begins(self):
        """A task, and its attempt."""
        (task,) = self.submit()
        return task, self.attempt()

    def attempt(self):
        """The next attempt, once it has begun."""
        return self.attempts.get(timeout=PATIENCE)

    def when(self, task, status):
        """The task, once it has a status."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.lane.get(task.id).status == status, PATIENCE)
        return self.lane.get(task.id)

    def close(self):
        assert self.runner.stop(0)
        self.writer.close()

    def _notify(self):
        with self._changed:
            self._changed.notify_all()

    def _work(self, task, cancel, tell):
        self.attempts.put(attempt := Attempt(task, cancel, tell))
        return attempt.carry_out(deaf=self.deaf)


@pytest.fixture
def make(state, opened):
    """Makes workshops, and closes them."""

    def made(*, starts=True, deaf=False):
        shop = opened.enter_context(closing(Workshop(state, deaf=deaf)))
        if starts:
            shop.runner.start()
        return shop

    return made


@pytest.fixture
def shop(make):
    return make()


@pytest.fixture
def logged(monkeypatch):
    """The next event that is logged."""
    seen = queue.SimpleQueue()
    monkeypatch.setattr(runner.events, "emit", lambda event, **fields: seen.put((event, fields)))
    return lambda: seen.get(timeout=PATIENCE)


@pytest.fixture
def ledger(engine, state, request, monkeypatch):
    """Makes the ledger such that it can only be read, and writable again."""
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)

    def is_writable(wanted):
        if engine == "sqlite":
            with state.ledger.bare() as connection:
                connection.execute(f"PRAGMA query_only = {int(not wanted)}")
            return
        verb, to = ("GRANT", "TO") if wanted else ("REVOKE", "FROM")
        with psycopg.connect(request.getfixturevalue("fleet").owner, autocommit=True) as owner:
            owner.execute("SET search_path = muniment")
            owner.execute(f"{verb} INSERT, UPDATE ON task {to} {ROLE}")

    yield is_writable
    is_writable(True)


class Gate:
    """Keeps whoever calls a method of an object until the test lets it pass."""

    def __init__(self, monkeypatch, owner, name):
        self.reached, self._passes = threading.Event(), threading.Event()
        self._real = getattr(owner, name)
        monkeypatch.setattr(owner, name, self._gated)

    def _gated(self, *args):
        self.reached.set()
        assert self._passes.wait(PATIENCE)
        return self._real(*args)

    def open(self):
        self._passes.set()

    def wait(self):
        assert self.reached.wait(PATIENCE)

    def reached_by(self, shop):
        """The task with which a runner, once it is started, comes here."""
        shop.runner.start()
        (task,) = shop.submit()
        self.wait()
        return task


@contextmanager
def stopping(shop, seconds=0):
    """While the runner is being stopped, with so many seconds for what runs."""
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(shop.runner.stop, seconds)
        assert shop.runner._stopping.wait(PATIENCE)
        yield
        assert stopped.result(PATIENCE)


def lacking(monkeypatch, owner, name, times):
    """`owner.name` has no descriptor left for the first calls."""
    problems, real = [OSError(errno.EMFILE, "Too many open files")] * times, getattr(owner, name)

    def call(*given):
        if problems:
            raise problems.pop()
        return real(*given)

    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("problem", [LookupError, SystemExit])
def test_a_task_whose_work_breaks_has_failed_and_the_next_one_begins(shop, logged, problem):
    first, second, third = shop.submit(3)
    shop.attempt().ends(problem("secret"))
    shop.attempt().ends(CANCELLED)  # Which nobody asked for.
    shop.attempt().ends(DONE)
    shop.when(third, "completed")
    assert [shop.lane.get(each.id).error for each in (first, second)] == [{"code": "remember_failed"}] * 2
    assert logged() == ("task_broke", {"task_id": first.id, "problem": problem.__name__})


@of_postgres
def test_the_end_of_a_task_and_the_beginning_of_the_next_are_one_transaction_of_the_server(shop, state):
    first, second = shop.submit(2)
    shop.attempt().ends(DONE)
    assert shop.attempt().task.id == second.id
    written = state.ledger.rows(
        "SELECT DISTINCT xmin::text FROM task WHERE id IN (?, ?)", (first.id, second.id)
    )
    assert (shop.lane.get(first.id).status, len(written)) == ("completed", 1)


@of_sqlite
def test_the_end_of_a_task_and_the_beginning_of_the_next_are_one_transaction(shop, state):
    first, second = shop.submit(2)
    attempt, commits = shop.attempt(), []
    with state.ledger.bare() as connection:
        connection.set_trace_callback(lambda said: commits.append(said) if said == "COMMIT" else None)
    attempt.ends(DONE)
    assert shop.attempt().task.id == second.id
    with state.ledger.bare() as connection:
        connection.set_trace_callback(None)
    assert (shop.lane.get(first.id).status, commits) == ("completed", ["COMMIT"])


@pytest.mark.parametrize("moment", ["wait", "clear"])
def test_a_task_that_comes_while_the_runner_is_about_to_sleep_is_not_slept_over(make, monkeypatch, moment):
    shop = make(starts=False)
    gate = Gate(monkeypatch, shop.runner._wake, moment)
    shop.runner.start()
    gate.wait()
    (task,) = shop.submit()
    gate.open()
    shop.attempt().ends(DONE)
    shop.when(task, "completed")


# Cancelling


def test_a_task_that_is_cancelled_between_its_claim_and_its_start_is_cancelled(make, monkeypatch):
    shop = make(starts=False)
    gate = Gate(monkeypatch, shop.runner, "_begin")
    task = gate.reached_by(shop)
    assert shop.runner.cancel(task.id, OWNER).status == "running"
    gate.open()
    assert shop.when(task, "cancelled").cancelled_by == OWNER


def test_a_late_cancellation_does_not_hit_the_task_after_it(shop, monkeypatch):
    first, second = shop.submit(2)
    attempt = shop.attempt()
    gate = Gate(monkeypatch, shop.writer, "run")
    attempt.ends(DONE)
    gate.wait()  # Before the end of the first task is in the ledger …

    def late(change):
        noted = Writer.run(shop.writer, change)
        gate.open()
        following.append(shop.attempt())
        return noted

    following = []
    monkeypatch.setattr(shop.writer, "run", late)
    noted = shop.runner.cancel(first.id, OWNER)  # … it is cancelled, which is told once the second one runs.
    monkeypatch.undo()
    assert (noted.status, following[0].task.id) == ("running", second.id)
    assert not following[0].cancel.is_set()
    following[0].ends(DONE)
    shop.when(second, "completed")
    assert shop.lane.get(first.id).status == "completed"


def test_a_late_cancellation_does_not_undo_that_of_the_task_after_it(make, monkeypatch):
    shop = make(starts=False)
    first, second = shop.submit(2)
    begun, claimed = shop.lane.claim(), []

    def late(change):
        noted = Writer.run(shop.writer, change)
        monkeypatch.undo()
        shop.lane.finish(begun, DONE)
        claimed.append(shop.lane.claim())
        shop.runner.cancel(second.id, OWNER)
        return noted

    monkeypatch.setattr(shop.writer, "run", late)
    assert shop.runner.cancel(first.id, OWNER).id == first.id
    with Cancel() as cancel:
        shop.runner._begin(claimed[0], cancel)
        assert cancel.is_set()


def test_nothing_is_cancelled_where_the_ledger_cannot_be_written(shop, ledger):
    task, attempt = shop.begins()
    ledger(False)
    raised(ManagedMemoryUnavailable, shop.runner.cancel, task.id, OWNER)
    ledger(True)
    assert not attempt.cancel.is_set()
    attempt.ends(DONE)
    shop.when(task, "completed")


# Stopping


def test_what_does_not_end_in_time_is_put_back_and_does_not_count_as_begun(shop):
    sent = shop.submit(2)
    shop.attempt()
    assert shop.runner.is_alive
    assert shop.runner.stop(0)
    assert shop.runner.stop(0)
    assert not shop.runner.is_alive
    tasks = [shop.lane.get(task.id) for task in sent]
    assert [(task.status, task.attempt) for task in tasks] == [("queued", 0)] * 2
    assert shop.lane.recover() == ()


@pytest.mark.parametrize(
    ("cancelled", "ended", "status"),
    [
        ("never", DONE, "completed"),  # It is past its point of no return.
        ("before the stop", CANCELLED, "cancelled"),
        ("while it is being put back", CANCELLED, "cancelled"),
    ],
)
def test_what_ends_by_itself_while_a_stop_interrupts_it_has_ended_so(make, cancelled, ended, status):
    shop = make(deaf=True)
    task, attempt = shop.begins()
    if cancelled == "before the stop":
        shop.runner.cancel(task.id, OWNER)
    with stopping(shop):
        assert attempt.was_cancelled()
        if cancelled == "while it is being put back":
            shop.runner.cancel(task.id, OWNER)
        attempt.ends(ended)
    assert shop.lane.get(task.id).status == status


def test_a_stop_does_not_wait_for_ever_for_what_does_not_end(make, monkeypatch):
    monkeypatch.setattr(runner, "_LAST_SECONDS", 0.01)
    shop = make(deaf=True)
    _, attempt = shop.begins()
    assert not shop.runner.stop(0)
    monkeypatch.undo()
    attempt.ends(CANCELLED)


def test_a_task_that_is_claimed_when_the_stop_comes_is_not_begun(make, monkeypatch):
    shop = make(starts=False)
    gate = Gate(monkeypatch, shop.runner, "_begin")
    task = gate.reached_by(shop)
    with stopping(shop, PATIENCE):
        gate.open()
    assert shop.attempts.empty()
    again = shop.lane.get(task.id)
    assert (again.status, again.attempt) == ("queued", 0)


# What is lacking


@pytest.mark.threat("T-API-09", control="patient_lanes")
def test_a_task_waits_for_a_descriptor_and_the_lane_goes_on(shop, monkeypatch, logged):
    lacking(monkeypatch, shop.lane, "claim", 1)
    lacking(monkeypatch, cancelling.os, "eventfd", 2)
    first, second = shop.submit(2)
    for task in first, second:
        attempt = shop.attempt()
        assert (attempt.task.id, attempt.task.attempt) == (task.id, 1)
        attempt.ends(DONE)
    assert shop.when(second, "completed").result == {"summary": "done"}
    event, fields = logged()
    assert (event, fields["code"]) == ("ledger_unavailable", "no_descriptor")
    events = [logged() for _ in range(2)]
    assert [(event, fields["task_id"]) for event, fields in events] == [("no_descriptor", first.id)] * 2


def test_what_a_task_did_is_kept_until_the_ledger_can_be_written_again(shop, ledger, logged):
    first, second = shop.submit(2)
    attempt = shop.attempt()
    ledger(False)
    attempt.ends(DONE)
    event, fields = logged()
    assert (event, fields["code"]) == ("ledger_unavailable", "managed_memory_unavailable")
    assert fields["reason"] in READ_ONLY
    assert shop.lane.get(first.id).status == "running"
    assert shop.attempts.empty()
    ledger(True)
    assert (shop.attempt().task.id, shop.lane.get(first.id).result) == (second.id, {"summary": "done"})


def test_what_a_task_did_is_kept_although_the_next_one_cannot_be_read(shop, state, monkeypatch, logged):
    def write(arguments):
        with state.ledger.transaction() as connection:
            connection.execute("UPDATE task SET arguments = ? WHERE id = ?", (arguments, second.id))

    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    first, second = shop.submit(2)
    attempt = shop.attempt()
    write("{")
    attempt.ends(DONE)
    assert shop.when(first, "completed").result == {"summary": "done"}
    event, fields = logged()
    assert (event, fields["code"]) == ("ledger_unavailable", "managed_memory_unavailable")
    write("{}")
    again = shop.attempt()
    assert (again.task.id, again.task.attempt) == (second.id, 1)
    again.ends(DONE)
    shop.when(second, "completed")
    told = [event.data["status"] for event in shop.factory.told() if event.task == first.id]
    assert told == ["queued", "running", "completed"]


def test_a_stop_while_the_ledger_cannot_be_written_leaves_the_task_to_recovery(shop, ledger, logged):
    task, attempt = shop.begins()
    ledger(False)
    attempt.ends(DONE)
    logged()
    assert shop.runner.stop(PATIENCE)
    ledger(True)
    assert shop.lane.get(task.id).status == "running"
    assert [(each.status, each.attempt) for each in shop.lane.recover()] == [("queued", 1)]


def test_a_runner_whose_writer_was_closed_under_it_can_still_be_stopped(shop, logged):
    shop.writer.close()
    shop.runner.wake()
    assert logged()[1]["code"] == "workspace_draining"
    raised(LaneError, shop.runner.cancel, "remember-0", OWNER)
    assert shop.runner.stop(PATIENCE)


# Turns


def test_turns_are_told_while_a_task_runs_and_one_that_cannot_be_is_logged(shop, logged):
    task, attempt = shop.begins()
    attempt.tell({"status": "running", "turn": 1})
    attempt.tell({"status": object()})
    assert logged() == ("turn_event_failed", {"problem": "TypeError"})
    attempt.ends(DONE)
    shop.when(task, "completed")
    attempt.tell({"status": "running", "turn": 2})
    shop.writer.run(lambda: None)
    told = [(event.data["status"], event.data.get("turn")) for event in shop.factory.told()]
    assert told == [("queued", None), ("running", None), ("running", 1), ("completed", None)]
