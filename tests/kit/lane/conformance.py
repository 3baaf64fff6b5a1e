"""What a lane promises, asked of whatever a factory makes: `ledgered.py` has two.

A factory has `lane(workspace="w")`, always with the same ledger, `reopened(workspace="w")`, the same lane as
another process would open it, `tasks(workspace="w")`, the oldest first, `pending(workspace="w")`, how many
wait or run, `told()`, the events of "w", `recorded(task)`, what is on record about a task, `trace()`, where
both end, `committed(task)`, which makes it look as if the task had committed, and `clock`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from muniment.errors import IdempotencyMismatch, NotFound, QueueFull
from muniment.lane import MAX_ATTEMPTS, MAX_PENDING, MAX_TIDYING, Ended, NewTask, Originator
from muniment.names import Trust

OWNER = Originator("owner")
BOT = Originator("bot", "1")
DONE = Ended("completed", result={"summary": "done"})
FAILED = Ended("failed", error={"code": "x"})
CANCELLED = Ended("cancelled")
ASKED = {"content": "x"}


class Clock:
    """The time of day, later by `step` at each look."""

    def __init__(self):
        self.now, self.step = datetime(2026, 11, 22, tzinfo=UTC), timedelta(milliseconds=1)

    def __call__(self):
        self.now += self.step
        return self.now


def asked(kind="remember", text="x", *, by=OWNER, repeat=None, ref=None, trust=Trust.OWNER):
    shown = {"contextMode": "workspace"}
    return NewTask(kind, {"content": text}, by, shown, trust=trust, repeat=repeat, ref=ref)


def submit(lane, kind="remember", text="x", **more):
    return lane.submit(asked(kind, text, **more)).task


def fill(lane, count, kind="remember"):
    return [submit(lane, kind, f"{kind} {number}") for number in range(count)]


def begun(lane):
    submit(lane)
    return lane.claim()


def together(act, count=8):
    """What `act` returns in so many threads that begin it at the same time."""
    ready = threading.Barrier(count)

    def one():
        ready.wait()
        return act()

    with ThreadPoolExecutor(count) as pool:
        return [each.result() for each in [pool.submit(one) for _ in range(count)]]


def is_refused(lane, kind="remember"):
    with pytest.raises(QueueFull):
        submit(lane, kind)
    return True


class Conformance:
    """A subclass has a fixture `factory`; its lanes are fresh."""

    @pytest.fixture
    def lane(self, factory):
        return factory.lane()

    # L1 order, L2 exclusion

    def test_tasks_begin_in_the_order_of_their_acceptance_and_one_that_was_cut_short_keeps_its_place(
        self, lane
    ):
        assert (lane.claim(), lane.recover()) == (None, ())
        sent = [submit(lane, kind).id for kind in ("dream", "remember", "forget", "remember", "dream")]
        lane.claim()
        assert [task.id for task in lane.recover()] == sent[:1]
        order = []
        while (task := lane.claim()) is not None:
            order.append((task.id, task.attempt))
            lane.finish(task, DONE)
        assert order == [(sent[0], 2), *((each, 1) for each in sent[1:])]

    def test_one_task_of_a_workspace_runs_at_a_time_however_many_threads_claim(self, factory, lane):
        fill(lane, 3)
        (first,) = [task for task in together(lane.claim) if task is not None]
        assert lane.claim() is None
        assert begun(factory.lane("other")) is not None
        lane.finish(first, DONE)
        assert lane.claim() is not None

    # L3 loss

    def test_another_process_sees_what_was_accepted_and_how_it_ended_and_no_more_what_was_asked(
        self, factory, lane
    ):
        for ended in (DONE, FAILED, CANCELLED):
            task = submit(lane)
            found = factory.reopened().get(task.id)
            assert (found.status, found.arguments) == ("queued", ASKED)
            over = lane.finish(lane.claim(), ended)
            assert (over.status, over.result, over.error) == (ended.status, ended.result, ended.error)
            assert (over.arguments, over.shown) == (None, {"contextMode": "workspace"})
            assert factory.reopened().get(task.id) == lane.cancel(over.id, OWNER) == over

    # L4 zombies

    def test_an_attempt_that_was_given_up_changes_nothing_any_more(self, factory, lane):
        zombie = begun(lane)
        lane.recover()
        again = lane.claim()
        before = factory.told()
        assert (lane.finish(zombie, DONE), lane.requeue(zombie)) == (None, None)
        lane.tell(zombie, {"status": "running", "turn": 7})
        assert lane.get(again.id) == again
        assert factory.told() == before
        assert lane.finish(again, FAILED).error == {"code": "x"}
        assert lane.finish(again, DONE) is None
        assert lane.get(again.id).status == "failed"

    def test_attempts_that_were_put_back_within_a_millisecond_were_not_begun_and_are_told_apart(
        self, factory, lane
    ):
        factory.clock.step = timedelta(0)
        attempts = [begun(lane)]
        for _ in range(3):
            task = lane.requeue(attempts[-1])
            assert (task.status, task.attempt, task.arguments) == ("queued", 0, ASKED)
            attempts.append(lane.claim())
        *zombies, running = attempts
        for zombie in zombies:
            assert (zombie.attempt, zombie.updated) == (1, running.updated)
            assert (lane.finish(zombie, DONE), lane.requeue(zombie)) == (None, None)
            assert lane.get(running.id) == running
        assert lane.finish(running, FAILED).status == "failed"

    def test_a_task_that_was_cut_short_too_often_is_interrupted_and_one_that_committed_once_later(
        self, factory, lane
    ):
        submit(lane)
        for _ in range(MAX_ATTEMPTS):
            assert lane.claim() is not None
            (task,) = lane.recover()
        assert (task.status, task.error, task.arguments) == ("failed", {"code": "interrupted"}, None)
        assert lane.claim() is None
        committed = submit(lane)
        for _ in range(MAX_ATTEMPTS):
            lane.claim()
            factory.committed(committed)
            assert [each.status for each in lane.recover()] == ["queued"]
        assert lane.claim().attempt == MAX_ATTEMPTS + 1
        assert [each.status for each in lane.recover()] == ["failed"]

    # L5 caps

    def test_the_seventeenth_pending_task_is_refused_without_a_trace(self, factory, lane):
        fill(lane, MAX_PENDING)
        before = factory.trace()
        assert is_refused(lane)
        assert factory.trace() == before
        running = lane.claim()
        assert is_refused(lane)
        assert factory.pending() == MAX_PENDING
        lane.finish(running, DONE)
        submit(lane)

    def test_eight_that_tidy_leave_room_for_facts(self, lane):
        fill(lane, MAX_TIDYING // 2, "forget")
        fill(lane, MAX_TIDYING - MAX_TIDYING // 2, "dream")
        assert is_refused(lane, "forget")
        assert is_refused(lane, "dream")
        fill(lane, MAX_PENDING - MAX_TIDYING)
        assert is_refused(lane)

    # L6 repeats

    def test_the_same_key_is_the_same_task_also_in_a_full_lane_and_once_it_is_over(self, lane):
        first = lane.submit(asked(repeat="k"))
        assert not first.repeated
        fill(lane, MAX_PENDING - 1)
        assert lane.submit(asked(repeat="k")).task.id == first.task.id
        lane.finish(lane.claim(), DONE)
        again = lane.submit(asked(repeat="k"))
        assert again.repeated
        assert (again.task.id, again.task.status) == (first.task.id, "completed")

    def test_the_same_key_with_another_request_is_refused_in_whatever_order_its_arguments_stand(
        self, factory, lane
    ):
        task = submit(lane, repeat="k")
        for other in (
            asked(text="y", repeat="k"),
            asked("dream", repeat="k"),
            asked(repeat="k", ref="r"),
            asked(repeat="k", trust=Trust.EXTERNAL),
        ):
            with pytest.raises(IdempotencyMismatch) as refused:
                lane.submit(other)
            assert refused.value.task_id == task.id
        assert factory.pending() == 1
        arguments = {**ASKED, "scope": "user"}
        sent = replace(asked(repeat="other"), arguments=arguments)
        again = replace(sent, arguments=dict(reversed(arguments.items())))
        assert lane.submit(sent).task.id == lane.submit(again).task.id

    def test_a_key_belongs_to_its_originator_and_workspace_and_is_free_again_after_a_day(self, factory, lane):
        assert submit(lane).id != submit(lane).id  # Without a key.
        for by in (OWNER, Originator("bot"), BOT, Originator("bot", "2")):
            assert not lane.submit(asked(by=by, repeat="k")).repeated
        assert not factory.lane("other").submit(asked(repeat="k")).repeated
        factory.clock.now += timedelta(hours=25)
        second = lane.submit(asked(text="y", repeat="k"))
        assert not second.repeated
        assert lane.submit(asked(text="y", repeat="k")).task.id == second.task.id

    # Cancelling

    def test_a_waiting_task_is_cancelled_at_once_and_a_running_one_may_still_complete(self, factory, lane):
        task = lane.cancel(submit(lane).id, BOT)
        assert (task.status, task.cancelled_by, task.arguments) == ("cancelled", BOT, None)
        assert factory.told()[-1].data["cancelled_by"] == ["bot", "1"]
        assert lane.claim() is None
        running = begun(lane)
        noted = lane.cancel(running.id, BOT)
        assert (noted.status, lane.get(running.id).cancelled_by) == ("running", BOT)
        before = factory.trace()
        assert lane.cancel(running.id, OWNER) == noted  # Who was first did so.
        assert factory.trace() == before
        assert lane.finish(running, DONE).status == "completed"

    @pytest.mark.parametrize("how", ["crash", "put back"])
    def test_what_was_cancelled_does_not_begin_again_unless_it_had_committed(self, factory, lane, how):
        def cut_short(running):
            return lane.recover()[0] if how == "crash" else lane.requeue(running)

        running = begun(lane)
        lane.cancel(running.id, OWNER)
        task = cut_short(running)
        assert (task.status, task.arguments) == ("cancelled", None)
        assert lane.claim() is None
        running = begun(lane)
        factory.committed(running)
        lane.cancel(running.id, OWNER)
        noted = cut_short(running)
        assert (noted.status, noted.cancelled_by, noted.arguments) == ("queued", OWNER, ASKED)
        assert lane.cancel(running.id, OWNER).status == "queued"
        assert lane.finish(lane.claim(), DONE).status == "completed"
        running = begun(lane)
        factory.committed(running)
        cut_short(running)
        noted = lane.cancel(running.id, OWNER)
        assert (noted.status, noted.cancelled_by) == ("queued", OWNER)

    def test_another_workspaces_task_is_not_there(self, factory, lane):
        task = submit(factory.lane("other"))
        for refused in (lambda: lane.get(task.id), lambda: lane.cancel(task.id, OWNER)):
            with pytest.raises(NotFound):
                refused()
        assert factory.lane("other").get(task.id) == task

    # L7 events and records

    def test_every_transition_is_an_event_to_its_originator(self, factory, lane):
        submit(lane, by=BOT)
        running = lane.claim()
        lane.tell(running, {"status": "running", "turn": 1})
        lane.finish(running, Ended("failed", error={"code": "remember_failed"}))
        told = factory.told()
        assert [each.data["status"] for each in told] == ["queued", "running", "running", "failed"]
        assert (told[2].data["turn"], told[-1].data["code"]) == (1, "remember_failed")
        assert {(each.type, each.token, each.client, each.task) for each in told} == {
            ("task", "bot", "1", running.id)
        }
        times = [each.at for each in told]
        assert sorted(set(times)) == times

    def test_what_was_accepted_and_cancelled_once_it_had_begun_is_on_record(self, factory, lane):
        task = submit(lane, by=BOT, ref="message 7")
        lane.claim()
        lane.cancel(task.id, OWNER)
        accepted = {"kind": "remember", "token": "bot", "client": "1", "trust": "owner", "ref": "message 7"}
        assert factory.recorded(task) == [
            ("accepted", accepted),
            ("cancelled", {"token": "owner", "client": None}),
        ]
