"""The lane over the ledger keeps what a lane promises, alone and through a writer."""

from __future__ import annotations

import pytest

from kit.lane.conformance import BOT, OWNER, Conformance, asked, begun, submit
from kit.lane.ledgered import Grouped, Ledgered
from muniment import lane as reading
from muniment.errors import ManagedMemoryUnavailable
from muniment.lane import MAX_RECORDS, Ended, Originator, Writer
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


def test_only_what_is_pending_is_looked_through_for_what_is_next(ledgered, monkeypatch):
    lane = ledgered.lane()
    begun(lane)
    queries = []
    ask = ledgered.state.ledger.rows
    monkeypatch.setattr(
        ledgered.state.ledger, "rows", lambda query, values: (queries.append(query), ask(query, values))[1]
    )
    reading.foremost(ledgered.state.ledger, lane.workspace)
    reading.count_pending(ledgered.state.ledger, lane.workspace)
    plans = [str(ask(f"EXPLAIN QUERY PLAN {query}", ("w",))) for query in queries]
    assert len(plans) == 2
    assert all("USING INDEX task_pending" in plan for plan in plans)


def test_what_waits_and_cannot_be_read_does_not_keep_what_ran_from_recovery(ledgered):
    lane = ledgered.lane()
    running, waiting = begun(lane), submit(lane)
    lane.cancel(running.id, OWNER)
    with ledgered.state.ledger.transaction() as connection:
        connection.execute("UPDATE task SET arguments = '{' WHERE id = ?", (waiting.id,))
    assert [(task.id, task.status) for task in lane.recover()] == [(running.id, "cancelled")]


def test_exclusion_does_not_lean_on_the_order(ledgered):
    lane = ledgered.lane()
    submit(lane)
    second = submit(lane)
    with ledgered.state.ledger.transaction() as connection:
        connection.execute("UPDATE task SET status = 'running' WHERE id = ?", (second.id,))
    assert lane.claim() is None


@pytest.mark.parametrize(
    ("column", "value"), [("arguments", "{"), ("shown", "no JSON"), ("trust", "king"), ("cancelled_by", "[]")]
)
def test_a_row_that_somebody_edited_makes_the_ledger_unavailable(ledgered, column, value):
    lane = ledgered.lane()
    task = submit(lane)
    with ledgered.state.ledger.transaction() as connection:
        connection.execute(f"UPDATE task SET {column} = ? WHERE id = ?", (value, task.id))
    with pytest.raises(ManagedMemoryUnavailable, match="not as it was written"):
        lane.claim()


@pytest.mark.parametrize(
    "ended",
    [
        {"status": "completed"},
        {"status": "completed", "result": {}, "error": {"code": "x"}},
        {"status": "completed", "result": {"what": object()}},
        {"status": "completed", "result": {"what": float("nan")}},
        {"status": "failed"},
        {"status": "failed", "error": {}},
        {"status": "failed", "error": {"code": "x"}, "result": {}},
        {"status": "cancelled", "result": {}},
        {"status": "cancelled", "error": {"code": "x"}},
    ],
)
def test_an_end_that_no_reader_could_make_sense_of_is_refused_where_it_is_made(ended):
    with pytest.raises((TypeError, ValueError)):
        Ended(**ended)


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


def test_no_token_crowds_out_what_others_asked_for(ledgered):
    lane = ledgered.lane()
    theirs = [lane.cancel(submit(lane, by=BOT, repeat=f"k{each}").id, BOT).id for each in range(3)]

    def many(lane):
        return [lane.cancel(submit(lane).id, OWNER).id for _ in range(MAX_RECORDS + 5)]

    sent = ledgered.at_once(many)
    kept = [task.id for task in ledgered.tasks()]
    assert kept == [*theirs, *sent[8:]]
    assert lane.submit(asked(by=BOT, repeat="k0")).task.id == theirs[0]


def test_of_tokens_that_have_as_many_the_oldest_goes(ledgered):
    lane = ledgered.lane()
    half = MAX_RECORDS // 2

    def each(lane):
        return [lane.cancel(submit(lane, by=by).id, by).id for by in [BOT] * half + [OWNER] * half]

    sent = ledgered.at_once(each)
    last = submit(lane, by=Originator("third"))
    assert [task.id for task in ledgered.tasks()] == [*sent[1:], last.id]


def test_sending_and_cancelling_again_and_again_is_on_record_as_what_was_accepted_alone(ledgered):
    lane = ledgered.lane()
    task = submit(lane, by=BOT)
    lane.cancel(task.id, BOT)
    assert [kind for kind, _ in ledgered.recorded(task)] == ["accepted"]
    lane.requeue(again := begun(lane))
    lane.cancel(again.id, BOT)
    assert [kind for kind, _ in ledgered.recorded(again)] == ["accepted", "cancelled"]
