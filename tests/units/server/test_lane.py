"""What a lane over the ledger promises beside what `models/test_lane.py` holds to a list."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from kit.fleet.engines import of_sqlite
from kit.raising import raised
from kit.server.ledgered import (
    ASKED,
    BOT,
    CANCELLED,
    DONE,
    FAILED,
    OWNER,
    Clock,
    Ledgered,
    asked,
    begun,
    submit,
)
from kit.threads import together
from muniment.errors import IdempotencyMismatch, ManagedMemoryUnavailable, NotFound
from muniment.kernel.names import Trust
from muniment.server import lane as reading
from muniment.server import lane_tasks
from muniment.server.lane import MAX_ATTEMPTS, Lane
from muniment.server.lane_tasks import Ended
from muniment.store.state import State
from muniment.store.tasks import Originator


@pytest.fixture
def ledgered(state):
    return Ledgered(state)


@pytest.fixture
def lane(ledgered):
    return ledgered.lane()


def edit(factory, columns, task):
    with factory.state.ledger.transaction() as connection:
        connection.execute(f"UPDATE task SET {columns} WHERE id = ?", (task.id,))


@of_sqlite  # Of a fleet: units/fleet/test_plans.py.
def test_only_what_is_pending_is_looked_through_for_what_is_next(ledgered, lane, monkeypatch):
    begun(lane)
    ledger, queries = ledgered.state.ledger, []
    ask = ledger.rows
    monkeypatch.setattr(ledger, "rows", lambda query, values: (queries.append(query), ask(query, values))[1])
    lane_tasks.running(ledger, lane.workspace)
    lane_tasks.count_pending(ledger, lane.workspace)
    plans = [str(ask(f"EXPLAIN QUERY PLAN {query}", ("w",))) for query in queries]
    assert len(plans) == 2
    assert all("USING INDEX task_pending" in plan for plan in plans)


def test_what_waits_and_cannot_be_read_does_not_keep_what_ran_from_recovery(ledgered, lane):
    running, waiting = begun(lane), submit(lane)
    lane.cancel(running.id, OWNER)
    edit(ledgered, "arguments = '{'", waiting)
    assert [(task.id, task.status) for task in lane.recover()] == [(running.id, "cancelled")]


def test_exclusion_does_not_lean_on_the_order(ledgered, lane):
    submit(lane)
    edit(ledgered, "status = 'running'", submit(lane))
    assert lane.claim() is None


def test_a_row_that_somebody_edited_makes_the_ledger_unavailable(ledgered):
    edits = {"arguments": "{", "shown": "no JSON", "trust": "king", "cancelled_by": "[]"}
    for column, value in edits.items():
        lane = ledgered.lane(column)
        edit(ledgered, f"{column} = '{value}'", submit(lane))
        raised(ManagedMemoryUnavailable, lane.claim, match="was changed after it was written")


def test_an_end_that_no_reader_could_make_sense_of_is_refused_where_it_is_made():
    error, nan = {"code": "x"}, float("nan")
    for status, more in (
        *(("completed", {}), ("completed", {"result": {}, "error": error})),
        *(("completed", {"result": {"what": object()}}), ("completed", {"result": {"what": nan}})),
        *(("failed", {}), ("failed", {"error": {}}), ("failed", {"error": error, "result": {}})),
        *(("cancelled", {"result": {}}), ("cancelled", {"error": error})),
    ):
        raised((TypeError, ValueError), Ended, status, **more)


def test_who_sees_whose_tasks():
    tasks = [Originator(*name.split("/")) for name in ("owner", "bot", "bot/1", "bot/2", "other/3")]
    for viewer, seen in ("owner", tasks), ("bot", tasks[1:4]), ("bot/1", [BOT]), ("owner/1", [BOT]):
        assert [by for by in tasks if Originator(*viewer.split("/")).sees(by)] == seen, viewer


def sent_and_cancelled(factory, *whose):
    with factory.state.ledger.transaction():
        lane = factory.lane()
        return [lane.cancel(submit(lane, by=by).id, by).id for by in whose]


def test_the_newest_records_of_a_token_are_kept_and_what_is_pending_and_those_of_others(
    ledgered, lane, monkeypatch
):
    monkeypatch.setattr(reading, "MAX_RECORDS", 40)
    other = ledgered.lane("other")
    elsewhere = other.cancel(submit(other).id, OWNER)
    theirs = [lane.cancel(submit(lane, by=BOT).id, BOT).id for _ in range(3)]
    pending = [begun(lane).id, submit(lane).id]
    sent = sent_and_cancelled(ledgered, *[OWNER] * 45)
    kept = [task.id for task in ledgered.tasks()]
    assert (kept, len(kept)) == ([*theirs, *pending, *sent[10:]], 40)
    assert [task.id for task in ledgered.tasks("other")] == [elsewhere.id]


def test_tasks_are_read_page_by_page_the_newest_first(ledgered):
    sent = sent_and_cancelled(ledgered, *[OWNER] * 5)
    read = partial(lane_tasks.tasks, ledgered.state.ledger, ledgered.lane().workspace)
    first = read(limit=2)
    rest = read(before=first[-1].seq, limit=9)
    assert [task.id for task in (*first, *rest)] == sent[::-1]
    assert [task.id for task in first] == sent[:-3:-1]
    assert read(before=rest[-1].seq, limit=2) == ()


@pytest.mark.threat("T-API-06", control="kept_keys")
def test_a_key_names_its_task_for_a_day_whatever_is_sent_meanwhile_and_over_a_restart(
    opening, tmp_path, monkeypatch
):
    monkeypatch.setattr(reading, "MAX_RECORDS", 8)
    clock, sent = Clock(), asked(by=BOT, repeat="k")
    with opening(tmp_path / "state") as state:
        lane = Lane(state, "w", now=clock)
        first = lane.submit(sent).task
        done = lane.finish(lane.claim(), DONE)
        with state.ledger.transaction():
            others = [lane.cancel(submit(lane, by=BOT).id, BOT).id for _ in range(20)]
    clock.now += timedelta(hours=23, minutes=59)
    with opening(tmp_path / "state") as state:
        lane = Lane(state, "w", now=clock)
        again = lane.submit(sent)
        assert (again.repeated, again.task, lane.get(first.id)) == (True, done, done)
        assert (
            raised(IdempotencyMismatch, lane.submit, asked(text="y", by=BOT, repeat="k")).task_id == first.id
        )
        kept = [task.id for task in lane_tasks.tasks(state.ledger, "w")]
        assert kept == [*others[:-9:-1], first.id]
        clock.now += timedelta(minutes=1)
        assert not lane.submit(sent).repeated
        assert first.id not in [task.id for task in lane_tasks.tasks(state.ledger, "w")]


def test_many_keys_that_lapse_together_go_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 8)

    def steps_of_the_next(sent):
        clock, steps = Clock(), []
        with State(tmp_path / str(sent)) as state:
            lane = Lane(state, "w", now=clock)
            with state.ledger.transaction():
                for number in range(sent):
                    lane.cancel(submit(lane, by=BOT, repeat=f"k{number}").id, BOT)
            clock.now += timedelta(hours=25)
            with state.ledger.transaction() as connection:
                connection.set_progress_handler(lambda: steps.append(1), 100)
                submit(lane, by=BOT)
                connection.set_progress_handler(None, 0)
            assert len(lane_tasks.tasks(state.ledger, "w")) == 8
        return len(steps)

    assert steps_of_the_next(400) < 3 * steps_of_the_next(200)


def test_so_many_keys_that_no_day_has_them_are_forgotten_first_those_of_whom_sent_most(ledgered, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 2)
    monkeypatch.setattr(reading, "MAX_KEYED", 8)
    lane, sent = ledgered.lane(), []
    with ledgered.state.ledger.transaction():
        for number, by in enumerate([OWNER] * 2 + [BOT] * 10):
            sent.append(lane.cancel(submit(lane, by=by, repeat=f"k{number}").id, by).id)
    assert [task.id for task in ledgered.tasks()] == [*sent[:2], *sent[6:]]


def test_of_tokens_that_have_as_many_the_oldest_goes(ledgered, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 8)
    sent = sent_and_cancelled(ledgered, *[BOT] * 4, *[OWNER] * 4)
    last = submit(ledgered.lane(), by=Originator("third"))
    assert [task.id for task in ledgered.tasks()] == [*sent[1:], last.id]


def test_sending_and_cancelling_again_and_again_is_on_record_as_what_was_accepted_alone(ledgered, lane):
    task = submit(lane, by=BOT)
    lane.cancel(task.id, BOT)
    assert [kind for kind, _ in ledgered.recorded(task)] == ["accepted"]
    lane.requeue(again := begun(lane))
    lane.cancel(again.id, BOT)
    assert [kind for kind, _ in ledgered.recorded(again)] == ["accepted", "cancelled"]


def test_one_task_of_a_workspace_runs_at_a_time_however_many_threads_claim(ledgered, lane):
    for _ in range(3):
        submit(lane)
    (first,) = [task for task in together(8, lambda _: lane.claim()) if task is not None]
    assert lane.claim() is None
    other = begun(ledgered.lane("other"))
    raised(NotFound, lane.get, other.id)  # It is not there for this one.
    raised(NotFound, lane.cancel, other.id, OWNER)
    lane.finish(first, DONE)
    assert lane.claim() is not None


def test_another_process_sees_what_was_accepted_and_how_it_ended_and_no_more_what_was_asked(
    ledgered, lane, opening
):
    with opening(ledgered.state.directory) as state:
        elsewhere = Lane(state, lane.workspace)
        for ended in (DONE, FAILED, CANCELLED):
            task = submit(lane)
            found = elsewhere.get(task.id)
            assert (found.status, found.arguments) == ("queued", ASKED)
            over = lane.finish(lane.claim(), ended)
            assert (over.status, over.result, over.error) == (ended.status, ended.result, ended.error)
            assert (over.arguments, over.shown) == (None, {"contextMode": "workspace"})
            assert elsewhere.get(task.id) == lane.cancel(over.id, OWNER) == over


def test_an_attempt_that_was_given_up_changes_nothing_any_more(ledgered, lane):
    zombie = begun(lane)
    lane.recover()
    again, before = lane.claim(), ledgered.told()
    assert (lane.finish(zombie, DONE), lane.requeue(zombie)) == (None, None)
    lane.tell(zombie, {"status": "running", "turn": 7})
    assert (lane.get(again.id), ledgered.told()) == (again, before)
    assert lane.finish(again, FAILED).error == {"code": "x"}
    assert (lane.finish(again, DONE), lane.get(again.id).status) == (None, "failed")


def test_a_task_that_was_cut_short_too_often_is_interrupted_and_one_that_committed_completes(ledgered, lane):
    submit(lane)
    for _ in range(MAX_ATTEMPTS):
        assert lane.claim() is not None
        (task,) = lane.recover()
    assert (task.status, task.error, task.arguments) == ("failed", {"code": "interrupted"}, None)
    for cut_short in (lambda _: lane.recover()[0], lane.requeue):
        running = begun(lane)
        ledgered.committed(running)
        lane.cancel(running.id, OWNER)
        noted = cut_short(running)
        assert (noted.status, noted.cancelled_by, noted.arguments) == ("queued", OWNER, ASKED)
        assert lane.cancel(running.id, OWNER).status == "queued"
        assert lane.finish(lane.claim(), DONE).status == "completed"


def test_the_same_key_of_one_originator_with_another_request_is_refused(ledgered, lane):
    task = submit(lane, repeat="k")
    for other in asked(text="y"), asked("dream"), asked(ref="r"), asked(trust=Trust.EXTERNAL):
        assert raised(IdempotencyMismatch, lane.submit, replace(other, repeat="k")).task_id == task.id
    assert ledgered.pending() == 1
    for by in (Originator("bot"), BOT, Originator("bot", "2")):
        assert not lane.submit(asked(by=by, repeat="k")).repeated
    assert not ledgered.lane("other").submit(asked(repeat="k")).repeated
    arguments = {**ASKED, "scope": "user"}
    sent = replace(asked(repeat="other"), arguments=arguments)
    again = replace(sent, arguments=dict(reversed(arguments.items())))
    assert lane.submit(sent).task.id == lane.submit(again).task.id


def test_every_transition_is_an_event_and_what_was_accepted_or_cut_short_is_on_record(ledgered, lane):
    submit(lane, by=BOT, ref="message 7")
    running = lane.claim()
    lane.tell(running, {"status": "running", "turn": 1})
    lane.cancel(running.id, OWNER)
    lane.finish(running, Ended("failed", error={"code": "remember_failed"}))
    told = ledgered.told()
    assert [each.data["status"] for each in told] == ["queued", "running", "running", "failed"]
    assert (told[2].data["turn"], told[-1].data["code"]) == (1, "remember_failed")
    owners = {(each.type, each.token, each.client, each.task) for each in told}
    assert owners == {("task", "bot", "1", running.id)}
    times = [each.at for each in told]
    assert sorted(set(times)) == times
    accepted = {"kind": "remember", "token": "bot", "client": "1", "trust": "owner", "ref": "message 7"}
    cancelled = {"token": "owner", "client": None}
    assert ledgered.recorded(running) == [("accepted", accepted), ("cancelled", cancelled)]
