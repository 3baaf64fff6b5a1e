"""The lane over the ledger keeps what a lane promises, alone and through a writer."""

from __future__ import annotations

import pytest

from kit.lane.conformance import BOT, OWNER, Conformance, asked, begun, submit
from kit.lane.ledgered import Grouped, Ledgered
from muniment import lane as reading
from muniment.errors import ManagedMemoryUnavailable
from muniment.lane import Ended, Originator, Writer
from muniment.store.audit import verify
from muniment.store.state import State


@pytest.fixture(scope="module")
def state():
    with State(None) as opened:
        yield opened
        assert verify(opened).problems == ()


@pytest.fixture
def ledgered(state):
    factory = Ledgered(state)
    yield factory
    factory.close()


class TestLane(Conformance):
    @pytest.fixture
    def factory(self, ledgered):
        return ledgered


class TestLaneThroughAWriter(Conformance):
    @pytest.fixture
    def factory(self, state):
        writer = Writer(state.ledger)
        factory = Grouped(state, writer)
        yield factory
        factory.close()
        writer.close()


def edit(factory, columns, task):
    with factory.state.ledger.transaction() as connection:
        connection.execute(f"UPDATE task SET {columns} WHERE id = ?", (task.id,))


def test_only_what_is_pending_is_looked_through_for_what_is_next(ledgered, monkeypatch):
    lane = ledgered.lane()
    begun(lane)
    ledger, queries = ledgered.state.ledger, []
    ask = ledger.rows
    monkeypatch.setattr(ledger, "rows", lambda query, values: (queries.append(query), ask(query, values))[1])
    reading.foremost(ledger, lane.workspace)
    reading.count_pending(ledger, lane.workspace)
    plans = [str(ask(f"EXPLAIN QUERY PLAN {query}", ("w",))) for query in queries]
    assert len(plans) == 2
    assert all("USING INDEX task_pending" in plan for plan in plans)


def test_what_waits_and_cannot_be_read_does_not_keep_what_ran_from_recovery(ledgered):
    lane = ledgered.lane()
    running, waiting = begun(lane), submit(lane)
    lane.cancel(running.id, OWNER)
    edit(ledgered, "arguments = '{'", waiting)
    assert [(task.id, task.status) for task in lane.recover()] == [(running.id, "cancelled")]


def test_exclusion_does_not_lean_on_the_order(ledgered):
    lane = ledgered.lane()
    submit(lane)
    edit(ledgered, "status = 'running'", submit(lane))
    assert lane.claim() is None


def test_a_row_that_somebody_edited_makes_the_ledger_unavailable(ledgered):
    for column, value in {
        "arguments": "{",
        "shown": "no JSON",
        "trust": "king",
        "cancelled_by": "[]",
    }.items():
        lane = ledgered.lane(column)
        edit(ledgered, f"{column} = '{value}'", submit(lane))
        with pytest.raises(ManagedMemoryUnavailable, match="not as it was written"):
            lane.claim()


def test_an_end_that_no_reader_could_make_sense_of_is_refused_where_it_is_made():
    error, nan = {"code": "x"}, float("nan")
    for status, more in (
        *(("completed", {}), ("completed", {"result": {}, "error": error})),
        *(("completed", {"result": {"what": object()}}), ("completed", {"result": {"what": nan}})),
        *(("failed", {}), ("failed", {"error": {}}), ("failed", {"error": error, "result": {}})),
        *(("cancelled", {"result": {}}), ("cancelled", {"error": error})),
    ):
        with pytest.raises((TypeError, ValueError)):
            pytest.fail(f"{Ended(status, **more)}")


def test_who_sees_whose_tasks():
    names = ("owner", "bot", "bot/1", "bot/2", "other/3")
    by = {name: Originator(*name.split("/")) for name in names}
    for viewer, seen in (
        (OWNER, {*names}),
        (Originator("bot"), {"bot", "bot/1", "bot/2"}),
        (Originator("bot", "1"), {"bot/1"}),
        (Originator("owner", "1"), {"bot/1"}),
        (Originator("other"), {"other/3"}),
    ):
        assert {name for name, each in by.items() if viewer.sees(each)} == seen, viewer


def sent_and_cancelled(factory, *whose):
    with factory.state.ledger.transaction():
        lane = factory.lane()
        return [lane.cancel(submit(lane, by=by).id, by).id for by in whose]


def test_only_the_newest_records_are_kept_none_that_is_pending_and_no_token_crowds_out_the_others(
    ledgered, monkeypatch
):
    assert reading.MAX_RECORDS == 1_000
    monkeypatch.setattr(reading, "MAX_RECORDS", 40)
    lane, other = ledgered.lane(), ledgered.lane("other")
    elsewhere = other.cancel(submit(other).id, OWNER)
    theirs = [lane.cancel(submit(lane, by=BOT, repeat=f"k{each}").id, BOT).id for each in range(3)]
    pending = [begun(lane).id, submit(lane).id]
    sent = sent_and_cancelled(ledgered, *[OWNER] * 45)
    kept = [task.id for task in ledgered.tasks()]
    assert kept == [*theirs, *pending, *sent[10:]]
    assert len(kept) == 40
    assert lane.submit(asked(by=BOT, repeat="k0")).task.id == theirs[0]
    assert [task.id for task in ledgered.tasks("other")] == [elsewhere.id]


def test_of_tokens_that_have_as_many_the_oldest_goes(ledgered, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORDS", 8)
    sent = sent_and_cancelled(ledgered, *[BOT] * 4, *[OWNER] * 4)
    last = submit(ledgered.lane(), by=Originator("third"))
    assert [task.id for task in ledgered.tasks()] == [*sent[1:], last.id]


def test_sending_and_cancelling_again_and_again_is_on_record_as_what_was_accepted_alone(ledgered):
    lane = ledgered.lane()
    task = submit(lane, by=BOT)
    lane.cancel(task.id, BOT)
    assert [kind for kind, _ in ledgered.recorded(task)] == ["accepted"]
    lane.requeue(again := begun(lane))
    lane.cancel(again.id, BOT)
    assert [kind for kind, _ in ledgered.recorded(again)] == ["accepted", "cancelled"]
