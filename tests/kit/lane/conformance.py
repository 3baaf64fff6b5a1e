"""What a lane promises, asked of whatever a factory makes: `test_lane.py` hands two of them in.

A factory has `lane(workspace="w")`, always with the same ledger, `reopened(workspace="w")`, the same lane as
another process would open it, `at_once(change)`, which calls `change(lane)` quickly with the lane of "w",
`tasks(workspace="w")`, all of them, the oldest first, `pending(workspace="w")`, how many wait or run,
`told()`, the events of "w", `recorded(task)`, what is on record about a task, `trace()`, where both end,
`committed(task)`, which makes it look as if the task had committed, and `clock`, a `Clock` for all of them.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from muniment.errors import IdempotencyMismatch, NotFound, QueueFull
from muniment.lane import MAX_ATTEMPTS, MAX_PENDING, MAX_RECORDS, MAX_TIDYING, Ended, NewTask, Originator
from muniment.names import Trust

OWNER = Originator("owner")
BOT = Originator("bot", "1")
DONE = Ended("completed", result={"summary": "done"})
FAILED = Ended("failed", error={"code": "x"})


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


class Conformance:
    """A subclass has a fixture `factory`; its lanes are fresh."""

    @pytest.fixture
    def lane(self, factory):
        return factory.lane()

    # L1 order

    def test_tasks_begin_in_the_order_of_their_acceptance_whatever_their_kind(self, lane):
        sent = [submit(lane, kind).id for kind in ("dream", "remember", "forget", "remember", "dream")]
        order = []
        while (task := lane.claim()) is not None:
            order.append(task.id)
            lane.finish(task, DONE)
        assert order == sent

    def test_a_task_that_was_cut_short_keeps_its_place(self, lane):
        first, second = fill(lane, 2)
        lane.claim()
        assert [task.id for task in lane.recover()] == [first.id]
        again = lane.claim()
        assert (again.id, again.attempt) == (first.id, 2)
        lane.finish(again, DONE)
        assert lane.claim().id == second.id

    # L2 exclusion

    def test_no_second_task_begins_while_one_is_running(self, lane):
        fill(lane, 2)
        first = lane.claim()
        assert lane.claim() is None
        lane.finish(first, DONE)
        assert lane.claim() is not None

    def test_of_threads_that_claim_at_the_same_time_one_gets_the_task(self, lane):
        fill(lane, 3)
        together, got = threading.Barrier(8), []

        def claim():
            together.wait()
            got.append(lane.claim())

        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len([task for task in got if task is not None]) == 1
        assert len(got) == 8

    def test_lanes_of_other_workspaces_are_not_waited_for(self, factory, lane):
        begun(lane)
        assert begun(factory.lane("other")) is not None

    # L3 loss

    def test_what_was_accepted_is_there_for_another_lane(self, factory, lane):
        task = submit(lane, text="remember me")
        found = factory.reopened().get(task.id)
        assert (found.status, found.arguments) == ("queued", {"content": "remember me"})

    def test_how_it_ended_is_there_for_another_lane(self, factory, lane):
        task = lane.finish(begun(lane), DONE)
        assert factory.reopened().get(task.id) == task

    def test_what_was_asked_is_forgotten_once_a_task_is_over(self, lane):
        for ended in (DONE, FAILED, Ended("cancelled")):
            task = lane.finish(begun(lane), ended)
            assert (task.status, task.result, task.error) == (ended.status, ended.result, ended.error)
            assert task.arguments is None
            assert task.shown == {"contextMode": "workspace"}

    def test_an_empty_lane_has_nothing_to_begin(self, lane):
        assert lane.claim() is None
        assert lane.recover() == ()

    # L4 zombies

    def test_an_attempt_that_was_given_up_changes_nothing_any_more(self, factory, lane):
        zombie = begun(lane)
        lane.recover()
        again = lane.claim()
        before = factory.told()
        assert lane.finish(zombie, DONE) is None
        assert lane.requeue(zombie) is None
        lane.tell(zombie, {"status": "running", "turn": 7})
        assert lane.get(again.id) == again
        assert factory.told() == before
        assert lane.finish(again, FAILED).error == {"code": "x"}
        assert lane.finish(again, DONE) is None
        assert lane.get(again.id).status == "failed"

    def test_an_attempt_that_was_put_back_does_not_end_the_one_after_it(self, lane):
        zombie = begun(lane)
        lane.requeue(zombie)
        again = lane.claim()
        assert again.attempt == zombie.attempt
        assert lane.finish(zombie, DONE) is None
        assert lane.requeue(zombie) is None
        assert lane.get(again.id) == again

    def test_attempts_within_one_millisecond_are_told_apart(self, factory, lane):
        factory.clock.step = timedelta(0)
        zombies = [begun(lane)]
        for _ in range(3):
            lane.requeue(zombies[-1])
            zombies.append(lane.claim())
        *zombies, running = zombies
        for zombie in zombies:
            assert (zombie.attempt, zombie.updated) == (running.attempt, running.updated)
            assert lane.finish(zombie, DONE) is None
            assert lane.requeue(zombie) is None
        assert lane.finish(running, FAILED).status == "failed"

    def test_a_task_that_was_cut_short_too_often_is_interrupted(self, lane):
        submit(lane)
        for _ in range(MAX_ATTEMPTS):
            assert lane.claim() is not None
            (task,) = lane.recover()
        assert (task.status, task.error, task.arguments) == ("failed", {"code": "interrupted"}, None)
        assert lane.claim() is None

    def test_one_that_has_committed_is_begun_once_more_to_find_out_and_not_for_ever(self, factory, lane):
        task = submit(lane)
        for _ in range(MAX_ATTEMPTS):
            lane.claim()
            factory.committed(task)
            assert [each.status for each in lane.recover()] == ["queued"]
        assert lane.claim().attempt == MAX_ATTEMPTS + 1
        assert [each.status for each in lane.recover()] == ["failed"]

    def test_a_task_that_was_put_back_was_not_begun(self, lane):
        task = lane.requeue(begun(lane))
        assert (task.status, task.attempt, task.arguments) == ("queued", 0, {"content": "x"})
        assert lane.claim().attempt == 1

    # L5 caps

    def test_the_seventeenth_pending_task_is_refused(self, factory, lane):
        fill(lane, MAX_PENDING)
        with pytest.raises(QueueFull):
            submit(lane)
        running = lane.claim()
        with pytest.raises(QueueFull):
            submit(lane)
        assert factory.pending() == MAX_PENDING
        lane.finish(running, DONE)
        submit(lane)

    def test_eight_that_tidy_leave_room_for_facts(self, lane):
        fill(lane, MAX_TIDYING // 2, "forget")
        fill(lane, MAX_TIDYING - MAX_TIDYING // 2, "dream")
        for kind in ("forget", "dream"):
            with pytest.raises(QueueFull):
                submit(lane, kind)
        fill(lane, MAX_PENDING - MAX_TIDYING)
        with pytest.raises(QueueFull):
            submit(lane)

    def test_only_the_newest_records_are_kept_and_none_that_is_pending(self, factory, lane):
        running = begun(lane)
        waiting = submit(lane)

        def many(lane):
            return [lane.cancel(submit(lane).id, OWNER).id for _ in range(MAX_RECORDS + 5)]

        sent = factory.at_once(many)
        kept = [task.id for task in factory.tasks()]
        assert kept == [running.id, waiting.id, *sent[7:]]
        assert len(kept) == MAX_RECORDS

    def test_records_of_another_workspace_are_not_what_has_to_go(self, factory):
        other = submit(factory.lane("other"))
        factory.lane("other").cancel(other.id, OWNER)
        factory.at_once(lambda lane: [lane.cancel(submit(lane).id, OWNER) for _ in range(MAX_RECORDS + 1)])
        assert [task.id for task in factory.tasks("other")] == [other.id]

    # L6 repeats

    def test_the_same_key_is_the_same_task_also_once_it_is_over(self, lane):
        first = lane.submit(asked(repeat="k"))
        assert not first.repeated
        assert lane.submit(asked(repeat="k")).task.id == first.task.id
        lane.finish(lane.claim(), DONE)
        again = lane.submit(asked(repeat="k"))
        assert again.repeated
        assert (again.task.id, again.task.status) == (first.task.id, "completed")

    def test_a_repeated_task_is_found_in_a_full_lane_too(self, lane):
        task = submit(lane, repeat="k")
        fill(lane, MAX_PENDING - 1)
        assert lane.submit(asked(repeat="k")).task.id == task.id

    @pytest.mark.parametrize(
        "other",
        [
            asked(text="y", repeat="k"),
            asked("dream", repeat="k"),
            asked(repeat="k", ref="r"),
            asked(repeat="k", trust=Trust.EXTERNAL),
        ],
    )
    def test_the_same_key_with_another_request_is_refused(self, factory, lane, other):
        task = submit(lane, repeat="k")
        with pytest.raises(IdempotencyMismatch) as refused:
            lane.submit(other)
        assert refused.value.task_id == task.id
        assert factory.pending() == 1

    def test_the_same_request_is_so_in_whatever_order_its_arguments_stand(self, lane):
        arguments = {"content": "x", "scope": "user"}
        sent = replace(asked(repeat="k"), arguments=arguments)
        again = replace(sent, arguments=dict(reversed(arguments.items())))
        assert lane.submit(sent).task.id == lane.submit(again).task.id

    def test_a_key_belongs_to_its_originator_and_workspace(self, factory, lane):
        for by in (OWNER, Originator("bot"), BOT, Originator("bot", "2")):
            assert not lane.submit(asked(by=by, repeat="k")).repeated
        assert not factory.lane("other").submit(asked(repeat="k")).repeated

    def test_without_a_key_the_same_request_is_another_task(self, lane):
        assert submit(lane).id != submit(lane).id

    def test_a_key_is_free_again_after_a_day(self, factory, lane):
        first = submit(lane, repeat="k")
        factory.clock.now += timedelta(hours=25)
        second = lane.submit(asked(text="y", repeat="k"))
        assert not second.repeated
        assert second.task.id != first.id
        assert lane.submit(asked(text="y", repeat="k")).task.id == second.task.id

    # Cancelling

    def test_a_waiting_task_is_cancelled_at_once(self, lane):
        task = lane.cancel(submit(lane).id, BOT)
        assert (task.status, task.cancelled_by, task.arguments) == ("cancelled", BOT, None)
        assert lane.claim() is None

    def test_a_running_task_is_noted_as_cancelled_and_may_still_complete(self, lane):
        running = begun(lane)
        assert lane.cancel(running.id, OWNER).status == "running"
        assert lane.get(running.id).cancelled_by == OWNER
        assert lane.finish(running, DONE).status == "completed"

    def test_who_cancelled_first_did_so_and_a_second_time_leaves_no_trace(self, factory, lane):
        running = begun(lane)
        noted = lane.cancel(running.id, BOT)
        before = factory.trace()
        assert lane.cancel(running.id, OWNER) == noted
        assert factory.trace() == before

    def test_a_running_task_that_was_cancelled_does_not_begin_again_after_a_crash(self, lane):
        lane.cancel(begun(lane).id, OWNER)
        (task,) = lane.recover()
        assert (task.status, task.arguments) == ("cancelled", None)

    def test_a_running_task_that_was_cancelled_is_not_put_back(self, lane):
        running = begun(lane)
        lane.cancel(running.id, OWNER)
        task = lane.requeue(running)
        assert (task.status, task.arguments) == ("cancelled", None)
        assert lane.claim() is None

    def test_what_has_committed_before_a_crash_is_not_called_cancelled(self, factory, lane):
        task = begun(lane)
        factory.committed(task)
        lane.cancel(task.id, OWNER)
        assert [each.status for each in lane.recover()] == ["queued"]
        assert lane.cancel(task.id, OWNER).status == "queued"
        assert lane.finish(lane.claim(), DONE).status == "completed"

    def test_what_has_committed_and_is_put_back_is_not_called_cancelled(self, factory, lane):
        task = begun(lane)
        factory.committed(task)
        lane.cancel(task.id, OWNER)
        noted = lane.requeue(task)
        assert (noted.status, noted.cancelled_by, noted.arguments) == ("queued", OWNER, {"content": "x"})
        assert lane.finish(lane.claim(), DONE).status == "completed"

    def test_what_has_committed_and_waits_is_not_called_cancelled(self, factory, lane):
        task = begun(lane)
        factory.committed(task)
        lane.recover()
        noted = lane.cancel(task.id, OWNER)
        assert (noted.status, noted.cancelled_by) == ("queued", OWNER)

    def test_a_task_that_is_over_stays_as_it_is(self, lane):
        done = lane.finish(begun(lane), DONE)
        assert lane.cancel(done.id, OWNER) == done

    def test_another_workspaces_task_is_not_there(self, factory, lane):
        task = submit(factory.lane("other"))
        for refused in (lambda: lane.get(task.id), lambda: lane.cancel(task.id, OWNER)):
            with pytest.raises(NotFound):
                refused()
        assert factory.lane("other").get(task.id) == task

    # L7 events

    def test_every_transition_is_an_event_to_its_originator(self, factory, lane):
        submit(lane, by=BOT)
        running = lane.claim()
        lane.tell(running, {"status": "running", "turn": 1})
        lane.finish(running, Ended("failed", error={"code": "remember_failed"}))
        told = factory.told()
        assert [each.data["status"] for each in told] == ["queued", "running", "running", "failed"]
        assert told[2].data["turn"] == 1
        assert told[-1].data["code"] == "remember_failed"
        assert {(each.type, each.token, each.client, each.task) for each in told} == {
            ("task", "bot", "1", running.id)
        }
        times = [each.at for each in told]
        assert sorted(set(times)) == times

    def test_who_cancelled_is_told_to_those_who_may_know(self, factory, lane):
        lane.cancel(submit(lane).id, BOT)
        assert factory.told()[-1].data["cancelled_by"] == ["bot", "1"]

    def test_a_refused_task_leaves_no_event(self, factory, lane):
        fill(lane, MAX_PENDING)
        before = factory.trace()
        with pytest.raises(QueueFull):
            submit(lane)
        assert factory.trace() == before

    def test_what_was_accepted_and_cancelled_once_it_had_begun_is_on_record(self, factory, lane):
        task = submit(lane, by=BOT, ref="message 7")
        lane.claim()
        lane.cancel(task.id, OWNER)
        assert factory.recorded(task) == [
            (
                "accepted",
                {"kind": "remember", "token": "bot", "client": "1", "trust": "owner", "ref": "message 7"},
            ),
            ("cancelled", {"token": "owner", "client": None}),
        ]
