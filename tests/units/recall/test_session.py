"""One conversation's recalls: brought in once, at the first place at which they are there, and told if not.

That a method returns while a recall is blocked is shown by a gate that is opened only behind the call: one
that waited would wait for ever. Every scenario is carried out by a plain thread and by an event loop.
"""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.recall.places import (
    CANARY,
    WAIT,
    Gate,
    Slow,
    entry,
    ground,
    nothing_left_behind,
    paths,
    settle,
    telling,
)
from muniment.confine.cancel import Cancel
from muniment.errors import RecallFailed
from muniment.recall import session as subject
from muniment.recall.recaller import MAX_KEYS, Recalled, keys_as_json, keys_in
from muniment.recall.search import EntryKey
from muniment.recall.session import BroughtIn, Reason, RecallSession
from muniment.testing.minds import FakeClock

ENTRIES = {
    "user/editor.md": entry("Editor theme", "Wants dark mode in the editor."),
    "user/deploy.md": entry("Deploy day", "Deploys the billing service on Tuesdays."),
    "project/database.md": entry("Database", "Staging runs Postgres behind pgbouncer."),
}
DARK, DEPLOY, STAGING = (
    "dark mode for my editor?",
    "when do we deploy billing?",
    "postgres staging pgbouncer?",
)


class Stage:
    """A session over a memory, with gates before its recalls, and a clock that somebody moves."""

    def __init__(self, made, recaller, stack):
        self.ground, self.recaller, self._stack = made, recaller, stack
        self.clock = FakeClock(100.0)

    def session(self, **more):
        return self._stack.enter_context(RecallSession(self.recaller, clock=self.clock, **more))

    def gate(self, count=1):
        """Gates before the next recalls."""
        gates = [self._stack.enter_context(closing(Gate())) for _ in range(count)]
        self.recaller.gates += gates
        return gates[0] if count == 1 else gates


@contextmanager
def staged(base, entries=ENTRIES):
    with (
        nothing_left_behind(),
        ground(base, entries=entries) as made,
        made.recaller(Slow) as recaller,
        ExitStack() as stack,
    ):
        yield Stage(made, recaller, stack)


@pytest.fixture
def stage(tmp_path):
    with staged(tmp_path) as stage:
        yield stage


@pytest.fixture
def told(caplog):
    return telling(caplog)


def by_a_thread(scenario, session):
    """Each step of a scenario, and behind each the end of all that runs."""

    def work():
        for _ in scenario:
            settle(session)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(WAIT)


def by_a_loop(scenario, session):
    async def host():
        for _ in scenario:
            await asyncio.to_thread(settle, session)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(host())


HOSTS = pytest.mark.parametrize("host", [by_a_thread, by_a_loop])


# The table


@HOSTS
def test_settled_before_the_model_call_it_is_brought_in_at_the_user_turn(stage, host):
    session = stage.session()

    def scenario():
        session.on_user_turn(DARK)
        yield
        assert paths(session.take_for_user_turn()) == ["user/editor.md"]
        assert session.take_for_tool_results() is None

    host(scenario(), session)
    assert session.outcomes == {BroughtIn.USER_TURN: 1}


@HOSTS
def test_slow_it_is_skipped_at_the_user_turn_and_brought_in_behind_tool_results_however_late(stage, host):
    session, gate = stage.session(), stage.gate()

    def scenario():
        session.on_user_turn(DARK)
        handle, begun = session._handle, stage.clock()
        assert gate.reached.wait(WAIT)
        assert session.take_for_user_turn() is None
        assert session.take_for_tool_results() is None
        stage.clock.advance(1.5)
        gate.open()
        yield
        assert handle.settled_at - begun == 1.5
        assert paths(session.take_for_tool_results()) == ["user/editor.md"]
        assert session.take_for_tool_results() is None
        assert session.take_for_user_turn() is None

    host(scenario(), session)
    assert session.outcomes == {BroughtIn.TOOL_RESULTS: 1}


@HOSTS
def test_slow_and_without_tool_calls_it_is_a_miss(stage, host):
    session, gate = stage.session(), stage.gate()

    def scenario():
        session.on_user_turn(DARK)
        assert session.take_for_user_turn() is None
        gate.open()
        yield  # It settles, and nobody comes by for it.
        session.on_user_turn(DEPLOY)
        yield
        assert paths(session.take_for_user_turn()) == ["user/deploy.md"]

    host(scenario(), session)
    assert session.outcomes == {Reason.SUPERSEDED: 1, BroughtIn.USER_TURN: 1}


@HOSTS
def test_the_next_message_aborts_the_first_recall_when_it_fires(stage, host):
    session, gate = stage.session(), stage.gate()

    def scenario():
        session.on_user_turn(DARK)
        first = session._handle
        assert gate.reached.wait(WAIT)
        session.on_user_turn(DEPLOY)
        assert first.is_cancelled
        yield  # The first ends though its gate stays shut.
        assert first.settled_at is not None
        assert paths(session.take_for_user_turn()) == ["user/deploy.md"]

    host(scenario(), session)
    assert session.outcomes == {Reason.SUPERSEDED: 1, BroughtIn.USER_TURN: 1}


# Never in the way


@HOSTS
def test_a_recall_that_never_settles_delays_nothing(stage, host):
    session = stage.session()
    gates = stage.gate(count=3)

    def scenario():
        for gate in gates:
            session.on_user_turn(DARK)
            assert gate.reached.wait(WAIT)
            for _ in range(14):
                assert session.take_for_user_turn() is None
                assert session.take_for_tool_results() is None
            assert session.as_json() == {"shown": []}
            session.on_compaction()
        session.abort(Reason.HOST_SIGNAL)
        yield

    host(scenario(), session)
    assert session.outcomes == {Reason.SUPERSEDED: 2, Reason.HOST_SIGNAL: 1}


def test_a_ledger_that_hangs_delays_nothing_but_its_own_record(stage, monkeypatch):
    session, written = stage.session(), threading.Event()
    monkeypatch.setattr(session._records, "_write", lambda *_: written.wait(WAIT))
    for message in (DARK, DEPLOY):
        session.on_user_turn(message)
        settle(session)
        assert session.take_for_user_turn() is not None
    written.set()


def test_a_ledger_that_hangs_for_good_is_left_behind_and_told(stage, monkeypatch, told):
    session, written = stage.session(), threading.Event()
    monkeypatch.setattr(subject, "_RECORD_SECONDS", 0.0)
    monkeypatch.setattr(session._records, "_write", lambda *_: written.wait(WAIT))
    session.on_user_turn(DARK)
    settle(session)
    assert session.take_for_user_turn() is not None
    thread = session._records._thread
    session.close()
    assert [each["event"] for each in told()][-1] == "recall_left_running"
    written.set()
    thread.join(WAIT)


def test_whoever_waits_for_the_last_record_has_waited_for_all(monkeypatch, told):
    """A thread that has written its last one may not have ended when the next one begins."""
    go, written = threading.Event(), []
    records = subject._Records(lambda *given: written.append(given))
    records._thread = before = threading.Thread(target=go.wait, args=(WAIT,))
    before.start()
    records.add(Recalled(), "first")
    with monkeypatch.context() as hasty:
        hasty.setattr(subject, "_RECORD_SECONDS", 0.0)
        records.close()
    assert [each["event"] for each in told()] == ["recall_left_running"]
    go.set()
    records.close()
    assert not before.is_alive()
    assert written == [(Recalled(), "first")]


def test_without_a_descriptor_left_a_turn_goes_on_without_its_recall(stage, monkeypatch, told):
    session = stage.session()

    def exhausted(_work):
        raise OSError(errno.EMFILE, CANARY)

    with monkeypatch.context() as scarce:
        scarce.setattr(session.prefetch, "begin", exhausted)
        session.on_user_turn(DARK)
        assert session.take_for_user_turn() is None
    assert session.outcomes == {Reason.FAILED: 1}
    assert [each["event"] for each in told()] == ["recall_not_begun", "recall_discarded"]
    assert CANARY not in str(told())
    session.on_user_turn(DARK)
    settle(session)
    assert paths(session.take_for_user_turn()) == ["user/editor.md"]


def test_without_a_thread_for_it_a_record_is_written_with_the_next_one(stage, monkeypatch, told):
    session = stage.session()
    session.on_user_turn(DARK)
    settle(session)

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refused)
        assert paths(session.take_for_user_turn()) == ["user/editor.md"]
    assert {"injection_not_recorded"} <= {each["event"] for each in told()}
    assert stage.ground.injections() == []
    session.on_user_turn(DEPLOY)
    settle(session)
    session.take_for_user_turn()
    session.close()
    assert [each["entries"][0]["path"] for each in stage.ground.injections()] == [
        "user/editor.md",
        "user/deploy.md",
    ]


# At most once, and each discard with its reason


def test_one_turn_of_fourteen_iterations_brings_in_once(stage):
    session, gate = stage.session(), stage.gate()
    session.on_user_turn(DARK)
    brought = [session.take_for_user_turn()]
    for iteration in range(14):
        if iteration == 5:
            gate.open()
            settle(session)
        brought.append(session.take_for_tool_results())
    assert [number for number, each in enumerate(brought) if each is not None] == [6]
    assert len(stage.recaller.asked) == 1


SITES = {
    Reason.RESET: lambda session: session.on_reset(),
    Reason.SHUTDOWN: lambda session: session.close(),
    **{
        reason: lambda session, reason=reason: session.abort(reason)
        for reason in (Reason.TURN_LIMIT, Reason.NO_TURNS_LEFT, Reason.TOKEN_LIMIT, Reason.HOST_SIGNAL)
    },
}


@pytest.mark.parametrize("reason", SITES)
@pytest.mark.parametrize("is_settled", [False, True])
def test_at_every_site_a_recall_is_aborted_with_its_reason_once(stage, told, reason, is_settled):
    session = stage.session()
    gate = stage.gate() if not is_settled else None
    session.on_user_turn(DARK)
    handle = session._handle
    if gate is None:
        settle(session)
    for _ in range(2):
        SITES[reason](session)
    assert handle.is_cancelled
    settle(session)
    assert session.take_for_user_turn() is None
    assert session.take_for_tool_results() is None
    session.close()
    assert session.outcomes == {reason: 1}
    assert [each["reason"] for each in told() if each["event"] == "recall_discarded"] == [reason]


@pytest.mark.parametrize("take", [RecallSession.take_for_user_turn, RecallSession.take_for_tool_results])
def test_a_consume_site_clears_without_abort(stage, take):
    session = stage.session()
    session.on_user_turn(DARK)
    settle(session)
    handle = session._handle
    assert take(session) is not None
    assert session._handle is None
    assert not handle.is_cancelled
    session.on_user_turn(DEPLOY)
    session.close()
    assert session.outcomes.total() == 2


def test_a_recall_that_raises_has_failed_and_says_so(stage, monkeypatch, told):
    session = stage.session()

    def broken(*_args, **_more):
        raise ValueError(CANARY)

    monkeypatch.setattr(stage.recaller, "recall", broken)
    session.on_user_turn(DARK)
    settle(session)
    assert session.take_for_user_turn() is None
    assert session.take_for_tool_results() is None
    assert session.outcomes == {Reason.FAILED: 1}
    assert CANARY not in str(told())


@pytest.mark.parametrize("ending", [RecallSession.on_reset, lambda session: session.on_user_turn(DEPLOY)])
def test_a_recall_that_had_failed_before_its_turn_ended_is_told_as_failed(stage, monkeypatch, ending):
    session = stage.session()
    with monkeypatch.context() as broken:
        broken.setattr(stage.recaller, "recall", lambda *_args, **_more: 1 // 0)
        session.on_user_turn(DARK)
        settle(session)
    ending(session)
    assert session.outcomes == {Reason.FAILED: 1}


def test_a_recall_that_came_back_with_an_error_has_failed(stage, monkeypatch):
    session = stage.session()
    failed = Recalled(error=RecallFailed("a defect"))
    monkeypatch.setattr(stage.recaller, "recall", lambda *_args, **_more: failed)
    assert asked(session, DARK) is None
    assert session.outcomes == {Reason.FAILED: 1}


def test_a_recall_that_finds_nothing_is_told_as_that(stage):
    session = stage.session()
    session.on_user_turn("what about zeppelins over antarctica?")
    settle(session)
    assert session.take_for_user_turn() is None
    assert session.outcomes == {Reason.NOTHING_FOUND: 1}


# A parent that is cancelled


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_cancelled_parent_cancels_the_recall_and_that_is_no_failure(stage, told, when):
    with Cancel() as parent:
        session = stage.session(parent=parent)
        gate = stage.gate() if when == "during" else None
        if when == "before":
            parent.set()
        session.on_user_turn(DARK)
        if gate is not None:
            assert gate.reached.wait(WAIT)
            parent.set()
        settle(session)  # Though its gate stays shut.
        parent.set()
        assert session.take_for_user_turn() is None
        assert session.take_for_tool_results() is None
        session.close()
    assert session.outcomes == {Reason.PARENT_CANCELLED: 1}
    assert {each["event"] for each in told()} == {"recall_discarded"}


def test_a_turn_that_ends_after_its_parent_was_cancelled_is_told_as_cancelled(stage):
    with Cancel() as parent:
        session = stage.session(parent=parent)
        stage.gate()
        session.on_user_turn(DARK)
        parent.set()
        session.on_user_turn(DEPLOY)
        session.close()
    assert session.outcomes == {Reason.PARENT_CANCELLED: 2}


def test_the_parent_stays_the_callers_and_another_session_of_it_goes_on(stage):
    with Cancel() as parent:
        first, second = stage.session(parent=parent), stage.session(parent=parent)
        first.close()
        second.on_user_turn(DARK)
        settle(second)
        assert paths(second.take_for_user_turn()) == ["user/editor.md"]
        assert not parent.is_set()


def test_close_ends_a_recall_that_hangs_and_leaves_no_thread(stage):
    before = threading.active_count()
    session, gate = stage.session(), stage.gate()
    session.on_user_turn(DARK)
    assert gate.reached.wait(WAIT)
    session.close()
    assert threading.active_count() == before
    session.close()
    session.on_user_turn(DARK)  # Nothing begins any more, and nothing is raised.
    assert session.take_for_user_turn() is None
    session.close()
    assert threading.active_count() == before


# Nothing twice


def asked(session, message, **more):
    """What a turn brings in."""
    session.on_user_turn(message, **more)
    settle(session)
    return session.take_for_user_turn()


def themed(count):
    """Entries that a question about wine is answered by, the first ones best."""
    return {
        f"user/wine-{number}.md": entry(f"Wine {number}", f"Riesling from the Mosel, bottle {number}. " * 2)
        for number in range(count)
    }


WINE = "which riesling of the mosel?"


def test_each_turn_brings_what_is_new_until_nothing_else_is_left_and_then_all_may_come(tmp_path):
    with staged(tmp_path, themed(12)) as stage:
        session = stage.session()
        brought = [paths(asked(session, WINE)) for _ in range(4)]
        assert [len(each) for each in brought] == [5, 5, 2, 5]
        assert len(set(chain(*brought[:3]))) == 12
        # The set begins anew with what came again.
        assert {f"user/{key.rel}" for key in session.shown} == set(brought[3])
        assert set(paths(asked(session, WINE))).isdisjoint(brought[3])


def test_what_was_brought_in_is_left_out_inside_the_query(stage):
    session = stage.session()
    asked(session, DARK)
    asked(session, DEPLOY)
    assert stage.recaller.asked[1] == (DEPLOY, {stage.ground.key("user/editor.md")})


def test_a_message_about_nothing_does_not_begin_the_set_anew(stage):
    session = stage.session()
    asked(session, DARK)
    shown = session.shown
    assert asked(session, "what about zeppelins over antarctica?") is None
    assert session.shown == shown
    assert len(stage.recaller.asked) == 3  # One retry, which found nothing either.


def test_without_anything_shown_nothing_is_tried_again(stage):
    session = stage.session()
    assert asked(session, "what about zeppelins over antarctica?") is None
    assert len(stage.recaller.asked) == 1


def test_a_retry_that_fails_leaves_the_set_as_it_was(stage, monkeypatch):
    session = stage.session()
    asked(session, DARK)
    shown, recall = session.shown, stage.recaller.recall

    def failing(query, *, exclude=(), **more):
        return recall(query, exclude=exclude, **more) if exclude else Recalled(error=RecallFailed("a defect"))

    monkeypatch.setattr(stage.recaller, "recall", failing)
    assert asked(session, DARK) is None
    assert session.shown == shown
    assert session.outcomes == {BroughtIn.USER_TURN: 1, Reason.NOTHING_FOUND: 1}


def test_after_a_compaction_or_a_reset_all_may_come_again(stage):
    session = stage.session()
    for again in (session.on_compaction, session.on_reset):
        assert paths(asked(session, DARK)) == ["user/editor.md"]
        again()
        assert session.shown == frozenset()
    assert paths(asked(session, DARK)) == ["user/editor.md"]
    assert [exclude for _, exclude in stage.recaller.asked] == [frozenset()] * 3


def test_an_entry_that_was_edited_since_returns_and_others_do_not(stage):
    session = stage.session()
    stage.ground.put("user/light.md", entry("Editor theme by day", "Wants light mode in the editor at noon."))
    assert len(paths(asked(session, "mode of the editor theme?"))) == 2
    stage.ground.put("user/editor.md", entry("Editor theme", "Wants solarized mode in the editor."))
    recalled = asked(session, "mode of the editor theme?")
    assert paths(recalled) == ["user/editor.md"]
    assert "solarized" in recalled.text


def test_what_was_told_otherwise_since_the_recall_began_is_not_told_again(tmp_path):
    with staged(tmp_path, themed(3)) as stage:
        session, gate = stage.session(), stage.gate()
        session.on_user_turn(WINE)
        gate.open()
        settle(session)
        other = stage.ground.key("user/wine-1.md")
        recalled = session.take_for_user_turn(told={other})
        assert sorted(paths(recalled)) == ["user/wine-0.md", "user/wine-2.md"]
        assert "wine-1" not in recalled.text
        assert "bottle 1" not in recalled.text
        assert recalled.tokens == stage.recaller.count(recalled.text)
        assert other not in session.shown


def test_a_recall_of_nothing_but_what_was_told_since_brings_in_nothing(stage):
    session, gate = stage.session(), stage.gate()
    session.on_user_turn(DARK)
    gate.open()
    settle(session)
    assert session.take_for_user_turn(told={stage.ground.key("user/editor.md")}) is None
    assert session.outcomes == {Reason.NOTHING_NEW: 1}
    assert session.shown == frozenset()


def test_a_repeat_that_was_told_meanwhile_does_not_empty_the_set(stage):
    session = stage.session()
    asked(session, DARK)
    key = stage.ground.key("user/editor.md")
    session.on_user_turn(DARK)
    settle(session)
    assert session.take_for_user_turn(told={key}) is None
    assert session.shown == {key}


def test_what_the_conversation_has_otherwise_is_not_recalled_even_where_nothing_else_is_left(stage):
    session = stage.session()
    asked(session, DEPLOY)
    key = stage.ground.key("user/editor.md")
    assert asked(session, DARK, told=[key]) is None
    assert all(key in exclude for _, exclude in stage.recaller.asked[1:])


# Records


def test_what_is_brought_in_is_on_record_by_path_and_digest_in_its_order_and_never_as_text(stage):
    session = stage.session()
    for message in (STAGING, DARK, DEPLOY):
        asked(session, message)
    session.close()
    names = ["project/database.md", "user/editor.md", "user/deploy.md"]
    found = stage.ground.injections()
    assert [each["entries"] for each in found] == [
        [{"path": name, "digest": stage.ground.key(name).digest}] for name in names
    ]
    assert [each["where"] for each in found] == ["user_turn"] * 3
    assert all(each["tokens"] > 0 for each in found)
    assert not any(word in json.dumps(found) for word in ("dark", "Postgres", "billing"))


def test_what_is_not_brought_in_is_not_on_record(stage):
    session = stage.session()
    session.on_user_turn(DARK)
    settle(session)
    session.close()
    assert stage.ground.injections() == []


# State


def test_the_state_goes_through_json_and_a_later_session_knows_what_was_shown(stage):
    session = stage.session()
    asked(session, DARK)
    state = json.loads(json.dumps(session.as_json()))
    later = stage.session(state=state)
    assert later.shown == session.shown
    assert later.as_json() == session.as_json()
    assert paths(asked(later, STAGING)) == ["project/database.md"]
    assert stage.recaller.asked[-1] == (STAGING, session.shown)


HOSTILE = [
    None,
    7,
    "shown",
    ["shown"],
    {"shown": None},
    {"shown": 7},
    {"shown": "abc"},
    {"shown": {"a": "b"}},
    {"shown": ["abc", 7, None, [], ["a"], ["a", "b", "c", "d"], ["a", "b", 7], [["a"], "b", "c"], {}]},
    {"shown": [["a", "b", None]]},
    {"shown": [[b"a", "b", "c"]]},
]


@pytest.mark.parametrize("state", HOSTILE)
def test_a_hostile_state_is_no_state(stage, state):
    session = stage.session(state=state)
    assert session.shown == frozenset()
    assert session.as_json() == {"shown": []}
    assert paths(asked(session, DARK)) == ["user/editor.md"]


@pytest.mark.parametrize("part", ["\0", "\ud800", "' OR 1=1 --", '"]', "x" * 100_000, "\u202e"])
def test_a_hostile_key_of_a_state_leaves_nothing_out_but_itself(stage, part):
    session = stage.session(state={"shown": [[part, part, part]]})
    assert len(session.shown) == 1
    assert paths(asked(session, DARK)) == ["user/editor.md"]
    json.dumps(session.as_json())


def test_of_an_endless_state_no_more_is_taken_than_a_search_can_leave_out(stage):
    state = {"shown": [["root", f"{number}.md", "digest"] for number in range(MAX_KEYS + 1_000)]}
    session = stage.session(state=state)
    assert len(session.shown) == MAX_KEYS
    assert paths(asked(session, DARK)) == ["user/editor.md"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_whatever_json_keys_are_read_from_they_can_be_written_again(value):
    keys = keys_in(value)
    assert all(isinstance(key, EntryKey) and all(isinstance(part, str) for part in key) for key in keys)
    assert keys_in(json.loads(json.dumps(keys_as_json(keys)))) == keys


@given(st.sets(st.tuples(st.text(), st.text(), st.text()).map(EntryKey._make), max_size=20))
def test_keys_go_through_json(keys):
    assert keys_in(json.loads(json.dumps(keys_as_json(keys)))) == keys
