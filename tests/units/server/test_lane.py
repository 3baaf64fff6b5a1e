"""A lane over the ledger: its promises that `models/test_lane.py` does not check against a list."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from kit.catching import catch_error
from kit.fleet.engines import sqlite_only
from kit.server.lanes import (
    ARGUMENTS,
    BOT,
    CANCELLED,
    DONE,
    FAILED,
    OWNER,
    LaneFactory,
    StepClock,
    make_new_task,
    start_task,
    submit_task,
)
from kit.threads import run_together
from muniment.errors import IdempotencyMismatch, ManagedMemoryUnavailable, NotFound
from muniment.kernel.names import Trust
from muniment.server import lane as reading
from muniment.server import lane_tasks
from muniment.server.lane import MAX_ATTEMPTS, Lane
from muniment.server.lane_tasks import TaskOutcome
from muniment.store.state import State
from muniment.store.tasks import Originator


@pytest.fixture
def lane_factory(state):
    return LaneFactory(state)


@pytest.fixture
def lane(lane_factory):
    return lane_factory.make_lane()


def edit_task(factory, columns, task):
    with factory.state.ledger.transaction() as connection:
        connection.execute(f"UPDATE task SET {columns} WHERE id = ?", (task.id,))


@sqlite_only  # For a fleet: units/fleet/test_plans.py.
def test_next_task_is_found_by_an_index_of_pending_tasks(lane_factory, lane, monkeypatch):
    start_task(lane)
    ledger, queries = lane_factory.state.ledger, []
    real_rows = ledger.rows
    monkeypatch.setattr(
        ledger, "rows", lambda query, values: (queries.append(query), real_rows(query, values))[1]
    )
    lane_tasks.list_running(ledger, lane.workspace)
    lane_tasks.count_pending(ledger, lane.workspace)
    plans = [str(real_rows(f"EXPLAIN QUERY PLAN {query}", ("w",))) for query in queries]
    assert len(plans) == 2
    assert all("USING INDEX task_pending" in plan for plan in plans)


def test_unreadable_waiting_task_does_not_block_recovery(lane_factory, lane):
    running, waiting = start_task(lane), submit_task(lane)
    lane.cancel(running.id, OWNER)
    edit_task(lane_factory, "arguments = '{'", waiting)
    assert [(task.id, task.status) for task in lane.recover()] == [(running.id, "cancelled")]


def test_exclusion_does_not_depend_on_the_order(lane_factory, lane):
    submit_task(lane)
    edit_task(lane_factory, "status = 'running'", submit_task(lane))
    assert lane.claim() is None


def test_edited_row_makes_the_ledger_unavailable(lane_factory):
    edits = {"arguments": "{", "shown": "no JSON", "trust": "king", "cancelled_by": "[]"}
    for column, value in edits.items():
        lane = lane_factory.make_lane(column)
        edit_task(lane_factory, f"{column} = '{value}'", submit_task(lane))
        catch_error(ManagedMemoryUnavailable, lane.claim, match="was changed after it was written")


def test_invalid_end_is_rejected_when_it_is_created():
    error, nan = {"code": "x"}, float("nan")
    for status, more in (
        *(("completed", {}), ("completed", {"result": {}, "error": error})),
        *(("completed", {"result": {"what": object()}}), ("completed", {"result": {"what": nan}})),
        *(("failed", {}), ("failed", {"error": {}}), ("failed", {"error": error, "result": {}})),
        *(("cancelled", {"result": {}}), ("cancelled", {"error": error})),
    ):
        catch_error((TypeError, ValueError), TaskOutcome, status, **more)


def test_originator_sees_its_own_tasks():
    tasks = [Originator(*name.split("/")) for name in ("owner", "bot", "bot/1", "bot/2", "other/3")]
    for viewer, seen in ("owner", tasks), ("bot", tasks[1:4]), ("bot/1", [BOT]), ("owner/1", [BOT]):
        assert [by for by in tasks if Originator(*viewer.split("/")).can_see(by)] == seen, viewer


def submit_and_cancel(factory, *originators):
    with factory.state.ledger.transaction():
        lane = factory.make_lane()
        return [lane.cancel(submit_task(lane, by=by).id, by).id for by in originators]


def test_old_records_are_removed_per_token_but_not_pending_ones(lane_factory, lane, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 40)
    other = lane_factory.make_lane("other")
    other_task = other.cancel(submit_task(other).id, OWNER)
    bot_tasks = [lane.cancel(submit_task(lane, by=BOT).id, BOT).id for _ in range(3)]
    pending = [start_task(lane).id, submit_task(lane).id]
    sent = submit_and_cancel(lane_factory, *[OWNER] * 45)
    remaining = [task.id for task in lane_factory.list_tasks()]
    assert (remaining, len(remaining)) == ([*bot_tasks, *pending, *sent[10:]], 40)
    assert [task.id for task in lane_factory.list_tasks("other")] == [other_task.id]


def test_tasks_are_read_page_by_page_newest_first(lane_factory):
    sent = submit_and_cancel(lane_factory, *[OWNER] * 5)
    read = partial(lane_tasks.list_tasks, lane_factory.state.ledger, lane_factory.make_lane().workspace)
    first = read(limit=2)
    rest = read(before=first[-1].seq, limit=9)
    assert [task.id for task in (*first, *rest)] == sent[::-1]
    assert [task.id for task in first] == sent[:-3:-1]
    assert read(before=rest[-1].seq, limit=2) == ()


@pytest.mark.threat("T-API-06", control="kept_keys")
def test_idempotency_key_lasts_a_day_and_survives_a_restart(open_state, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 8)
    clock, sent = StepClock(), make_new_task(by=BOT, repeat="k")
    with open_state(tmp_path / "state") as state:
        lane = Lane(state, "w", now=clock)
        first = lane.submit(sent).task
        done = lane.finish(lane.claim(), DONE)
        with state.ledger.transaction():
            others = [lane.cancel(submit_task(lane, by=BOT).id, BOT).id for _ in range(20)]
    clock.now += timedelta(hours=23, minutes=59)
    with open_state(tmp_path / "state") as state:
        lane = Lane(state, "w", now=clock)
        retried = lane.submit(sent)
        assert (retried.is_repeated, retried.task, lane.get(first.id)) == (True, done, done)
        assert (
            catch_error(IdempotencyMismatch, lane.submit, make_new_task(text="y", by=BOT, repeat="k")).task_id
            == first.id
        )
        remaining = [task.id for task in lane_tasks.list_tasks(state.ledger, "w")]
        assert remaining == [*others[:-9:-1], first.id]
        clock.now += timedelta(minutes=1)
        assert not lane.submit(sent).is_repeated
        assert first.id not in [task.id for task in lane_tasks.list_tasks(state.ledger, "w")]


def test_many_keys_that_expire_together_are_removed_together(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 8)

    def count_steps(sent):
        clock, steps = StepClock(), []
        with State(tmp_path / str(sent)) as state:
            lane = Lane(state, "w", now=clock)
            with state.ledger.transaction():
                for number in range(sent):
                    lane.cancel(submit_task(lane, by=BOT, repeat=f"k{number}").id, BOT)
            clock.now += timedelta(hours=25)
            with state.ledger.transaction() as connection:
                connection.set_progress_handler(lambda: steps.append(1), 100)
                submit_task(lane, by=BOT)
                connection.set_progress_handler(None, 0)
            assert len(lane_tasks.list_tasks(state.ledger, "w")) == 8
        return len(steps)

    assert count_steps(400) < 3 * count_steps(200)


def test_excess_keys_are_removed_from_the_largest_sender_first(lane_factory, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 2)
    monkeypatch.setattr(reading, "MAX_KEYED", 8)
    lane, sent = lane_factory.make_lane(), []
    with lane_factory.state.ledger.transaction():
        for number, by in enumerate([OWNER] * 2 + [BOT] * 10):
            sent.append(lane.cancel(submit_task(lane, by=by, repeat=f"k{number}").id, by).id)
    assert [task.id for task in lane_factory.list_tasks()] == [*sent[:2], *sent[6:]]


def test_oldest_record_is_removed_among_equal_tokens(lane_factory, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 8)
    sent = submit_and_cancel(lane_factory, *[BOT] * 4, *[OWNER] * 4)
    last = submit_task(lane_factory.make_lane(), by=Originator("third"))
    assert [task.id for task in lane_factory.list_tasks()] == [*sent[1:], last.id]


def test_only_accepted_tasks_and_cancellations_are_recorded(lane_factory, lane):
    task = submit_task(lane, by=BOT)
    lane.cancel(task.id, BOT)
    assert [kind for kind, _ in lane_factory.read_records(task)] == ["accepted"]
    lane.requeue(retried := start_task(lane))
    lane.cancel(retried.id, BOT)
    assert [kind for kind, _ in lane_factory.read_records(retried)] == ["accepted", "cancelled"]


def test_one_task_runs_at_a_time_for_many_threads(lane_factory, lane):
    for _ in range(3):
        submit_task(lane)
    (first,) = [task for task in run_together(8, lambda _: lane.claim()) if task is not None]
    assert lane.claim() is None
    other = start_task(lane_factory.make_lane("other"))
    catch_error(NotFound, lane.get, other.id)  # This lane does not contain it.
    catch_error(NotFound, lane.cancel, other.id, OWNER)
    lane.finish(first, DONE)
    assert lane.claim() is not None


def test_another_process_sees_the_result_without_the_request(lane_factory, lane, open_state):
    with open_state(lane_factory.state.directory) as state:
        other_lane = Lane(state, lane.workspace)
        for ended in (DONE, FAILED, CANCELLED):
            task = submit_task(lane)
            found = other_lane.get(task.id)
            assert (found.status, found.arguments) == ("queued", ARGUMENTS)
            over = lane.finish(lane.claim(), ended)
            assert (over.status, over.result, over.error) == (ended.status, ended.result, ended.error)
            assert (over.arguments, over.shown) == (None, {"contextMode": "workspace"})
            assert other_lane.get(task.id) == lane.cancel(over.id, OWNER) == over


def test_abandoned_attempt_changes_nothing(lane_factory, lane):
    zombie = start_task(lane)
    lane.recover()
    retried, before = lane.claim(), lane_factory.read_events()
    assert (lane.finish(zombie, DONE), lane.requeue(zombie)) == (None, None)
    lane.add_event(zombie, {"status": "running", "turn": 7})
    assert (lane.get(retried.id), lane_factory.read_events()) == (retried, before)
    assert lane.finish(retried, FAILED).error == {"code": "x"}
    assert (lane.finish(retried, DONE), lane.get(retried.id).status) == (None, "failed")


def test_often_interrupted_task_fails_unless_it_committed(lane_factory, lane):
    submit_task(lane)
    for _ in range(MAX_ATTEMPTS):
        assert lane.claim() is not None
        (task,) = lane.recover()
    assert (task.status, task.error, task.arguments) == ("failed", {"code": "interrupted"}, None)
    for interrupt in (lambda _: lane.recover()[0], lane.requeue):
        running = start_task(lane)
        lane_factory.record_commit(running)
        lane.cancel(running.id, OWNER)
        noted = interrupt(running)
        assert (noted.status, noted.cancelled_by, noted.arguments) == ("queued", OWNER, ARGUMENTS)
        assert lane.cancel(running.id, OWNER).status == "queued"
        assert lane.finish(lane.claim(), DONE).status == "completed"


def test_idempotency_key_with_another_request_is_rejected(lane_factory, lane):
    task = submit_task(lane, repeat="k")
    for other in (
        make_new_task(text="y"),
        make_new_task("dream"),
        make_new_task(ref="r"),
        make_new_task(trust=Trust.EXTERNAL),
    ):
        assert (
            catch_error(IdempotencyMismatch, lane.submit, replace(other, idempotency_key="k")).task_id
            == task.id
        )
    assert lane_factory.count_pending() == 1
    for by in (Originator("bot"), BOT, Originator("bot", "2")):
        assert not lane.submit(make_new_task(by=by, repeat="k")).is_repeated
    assert not lane_factory.make_lane("other").submit(make_new_task(repeat="k")).is_repeated
    arguments = {**ARGUMENTS, "scope": "user"}
    sent = replace(make_new_task(repeat="other"), arguments=arguments)
    retried = replace(sent, arguments=dict(reversed(arguments.items())))
    assert lane.submit(sent).task.id == lane.submit(retried).task.id


def test_every_transition_is_an_event_and_the_rest_is_recorded(lane_factory, lane):
    submit_task(lane, by=BOT, ref="message 7")
    running = lane.claim()
    lane.add_event(running, {"status": "running", "turn": 1})
    lane.cancel(running.id, OWNER)
    lane.finish(running, TaskOutcome("failed", error={"code": "remember_failed"}))
    events = lane_factory.read_events()
    assert [each.data["status"] for each in events] == ["queued", "running", "running", "failed"]
    assert (events[2].data["turn"], events[-1].data["code"]) == (1, "remember_failed")
    owners = {(each.type, each.token, each.client, each.task) for each in events}
    assert owners == {("task", "bot", "1", running.id)}
    times = [each.at for each in events]
    assert sorted(set(times)) == times
    accepted = {"kind": "remember", "token": "bot", "client": "1", "trust": "owner", "ref": "message 7"}
    cancelled = {"token": "owner", "client": None}
    assert lane_factory.read_records(running) == [("accepted", accepted), ("cancelled", cancelled)]
