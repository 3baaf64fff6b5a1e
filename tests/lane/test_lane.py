"""What a lane promises, by a table of its promises; a lane over anything else has to pass this too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from muniment.errors import NotFound
from muniment.job_errors import IdempotencyMismatch, QueueFull
from muniment.lane.lane import MAX_ATTEMPTS, MAX_PENDING, MAX_RECORDS, MAX_TIDYING, Lane
from muniment.lane.task import Asked, Ended, Originator
from muniment.store import outbox
from muniment.store.state import State

OWNER = Originator("owner")
DONE = Ended("completed", result={"summary": "done"})


class Clock:
    def __init__(self):
        self.now = datetime(2026, 11, 22, tzinfo=UTC)

    def __call__(self):
        self.now += timedelta(milliseconds=1)
        return self.now


@pytest.fixture
def state(tmp_path):
    with State(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lane(state, clock):
    return Lane(state, "w", now=clock)


def asked(kind="remember", text="x", *, by=OWNER, repeat=None):
    return Asked(kind, {"content": text}, by, {"contextMode": "workspace"}, repeat=repeat)


def submit(lane, kind="remember", text="x", **more):
    return lane.submit(asked(kind, text, **more)).task


def fill(lane, count, kind="remember"):
    return [submit(lane, kind, f"{kind} {number}") for number in range(count)]


# L1 order


def test_tasks_begin_in_the_order_of_their_acceptance_whatever_their_kind(lane):
    sent = [submit(lane, kind).id for kind in ("dream", "remember", "forget", "remember", "dream")]
    begun = []
    while (task := lane.claim()) is not None:
        begun.append(task.id)
        lane.finish(task, DONE)
    assert begun == sent


def test_a_task_that_was_cut_short_keeps_its_place(lane):
    first, second = fill(lane, 2)
    lane.claim()
    assert [task.id for task in lane.recover()] == [first.id]
    begun = lane.claim()
    assert (begun.id, begun.attempt) == (first.id, 2)
    lane.finish(begun, DONE)
    assert lane.claim().id == second.id


# L2 exclusion


def test_no_second_task_begins_while_one_is_running(lane):
    fill(lane, 2)
    first = lane.claim()
    assert lane.claim() is None
    lane.finish(first, DONE)
    assert lane.claim() is not None


def test_lanes_of_other_workspaces_are_not_waited_for(state, lane):
    fill(lane, 1)
    lane.claim()
    other = Lane(state, "other")
    submit(other)
    assert other.claim() is not None


# L3 loss


def test_what_was_accepted_is_there_for_another_lane(state, lane, tmp_path):
    task = submit(lane, text="remember me")
    with State(state.directory) as again:
        found = Lane(again, "w").get(task.id)
    assert (found.status, found.arguments) == ("queued", {"content": "remember me"})


def test_what_was_asked_is_forgotten_once_a_task_is_over(lane):
    for ended in (DONE, Ended("failed", error={"code": "x"}), Ended("cancelled")):
        submit(lane)
        task = lane.finish(lane.claim(), ended)
        assert task.arguments is None
        assert task.shown == {"contextMode": "workspace"}


def test_an_empty_lane_has_nothing_to_begin(lane):
    assert lane.claim() is None
    assert lane.recover() == ()


# L4 zombies


def test_an_attempt_that_was_given_up_changes_nothing_any_more(lane):
    submit(lane)
    zombie = lane.claim()
    lane.recover()
    again = lane.claim()
    assert lane.finish(zombie, DONE) is None
    assert lane.requeue(zombie) is None
    assert lane.get(again.id).status == "running"
    assert lane.finish(again, Ended("failed", error={"code": "x"})).error == {"code": "x"}
    assert lane.finish(again, DONE) is None


def test_a_task_that_was_cut_short_too_often_is_interrupted(lane):
    submit(lane)
    for _ in range(MAX_ATTEMPTS):
        assert lane.claim() is not None
        (task,) = lane.recover()
    assert (task.status, task.error) == ("failed", {"code": "interrupted"})
    assert lane.claim() is None


def test_a_task_that_was_put_back_was_not_begun(lane):
    submit(lane)
    task = lane.requeue(lane.claim())
    assert (task.status, task.attempt) == ("queued", 0)


# L5 caps


def test_the_seventeenth_pending_task_is_refused(lane):
    fill(lane, MAX_PENDING)
    with pytest.raises(QueueFull):
        submit(lane)
    running = lane.claim()
    with pytest.raises(QueueFull):
        submit(lane)
    lane.finish(running, DONE)
    submit(lane)


def test_eight_that_tidy_leave_room_for_facts(lane):
    fill(lane, MAX_TIDYING // 2, "forget")
    fill(lane, MAX_TIDYING - MAX_TIDYING // 2, "dream")
    for kind in ("forget", "dream"):
        with pytest.raises(QueueFull):
            submit(lane, kind)
    fill(lane, MAX_PENDING - MAX_TIDYING)
    with pytest.raises(QueueFull):
        submit(lane)


def test_only_the_newest_records_are_kept_and_none_that_is_pending(lane):
    waiting = submit(lane)
    running = lane.claim()
    assert running.id == waiting.id
    for _ in range(MAX_RECORDS + 5):
        lane.cancel(submit(lane).id, OWNER)
    kept = lane.tasks()
    assert len(kept) == MAX_RECORDS
    assert kept[-1].id == waiting.id


# L6 repeats


def test_the_same_key_is_the_same_task_also_once_it_is_over(lane):
    first = lane.submit(asked(repeat="k"))
    assert not first.repeated
    assert lane.submit(asked(repeat="k")).task.id == first.task.id
    lane.finish(lane.claim(), DONE)
    again = lane.submit(asked(repeat="k"))
    assert again.repeated
    assert (again.task.id, again.task.status) == (first.task.id, "completed")


@pytest.mark.parametrize("other", [asked(text="y", repeat="k"), asked("dream", repeat="k")])
def test_the_same_key_with_another_request_is_refused(lane, other):
    lane.submit(asked(repeat="k"))
    with pytest.raises(IdempotencyMismatch):
        lane.submit(other)
    assert lane.pending() == 1


def test_a_key_belongs_to_its_originator(lane):
    for by in (OWNER, Originator("bot"), Originator("bot", "1"), Originator("bot", "2")):
        assert not lane.submit(asked(by=by, repeat="k")).repeated


def test_a_key_is_free_again_after_a_day(lane, clock):
    first = lane.submit(asked(repeat="k")).task
    clock.now += timedelta(hours=25)
    second = lane.submit(asked(text="y", repeat="k"))
    assert not second.repeated
    assert second.task.id != first.id


# Cancelling


def test_a_waiting_task_is_cancelled_at_once(lane):
    task = lane.cancel(submit(lane).id, Originator("bot", "1"))
    assert (task.status, task.cancelled_by, task.arguments) == ("cancelled", Originator("bot", "1"), None)
    assert lane.claim() is None


def test_a_running_task_is_noted_as_cancelled_and_may_still_complete(lane):
    submit(lane)
    running = lane.claim()
    assert lane.cancel(running.id, OWNER).status == "running"
    assert lane.get(running.id).cancelled_by == OWNER
    assert lane.finish(running, DONE).status == "completed"


def test_a_running_task_that_was_cancelled_does_not_begin_again_after_a_crash(lane):
    submit(lane)
    lane.cancel(lane.claim().id, OWNER)
    assert [task.status for task in lane.recover()] == ["cancelled"]


def test_a_task_that_is_over_stays_as_it_is(lane):
    submit(lane)
    done = lane.finish(lane.claim(), DONE)
    assert lane.cancel(done.id, OWNER) == done


def test_another_workspaces_task_is_not_there(state, lane):
    task = submit(Lane(state, "other"))
    for refused in (lambda: lane.get(task.id), lambda: lane.cancel(task.id, OWNER)):
        with pytest.raises(NotFound):
            refused()


# L7 events


def test_every_transition_is_an_event_to_its_originator(state, lane):
    by = Originator("bot", "1")
    submit(lane, by=by)
    lane.finish(lane.claim(), Ended("failed", error={"code": "remember_failed"}))
    told = outbox.read(state.ledger, 0, 100)
    assert [each.data["status"] for each in told] == ["queued", "running", "failed"]
    assert told[-1].data["code"] == "remember_failed"
    assert {(each.type, each.token, each.client, each.workspace) for each in told} == {
        ("task", "bot", "1", "w")
    }


def test_a_refused_task_leaves_no_event(state, lane):
    fill(lane, MAX_PENDING)
    before = outbox.span(state.ledger)
    with pytest.raises(QueueFull):
        submit(lane)
    assert outbox.span(state.ledger) == before


@pytest.mark.parametrize(
    ("viewer", "seen"),
    [
        (OWNER, {"owner", "bot", "bot/1", "bot/2", "other/3"}),
        (Originator("bot"), {"bot", "bot/1", "bot/2"}),
        (Originator("bot", "1"), {"bot/1"}),
        (Originator("owner", "1"), {"bot/1"}),
        (Originator("other"), {"other/3"}),
    ],
)
def test_who_sees_whose_tasks(viewer, seen):
    by = {
        "owner": OWNER,
        "bot": Originator("bot"),
        "bot/1": Originator("bot", "1"),
        "bot/2": Originator("bot", "2"),
        "other/3": Originator("other", "3"),
    }
    assert {name for name, each in by.items() if viewer.sees(each)} == seen
