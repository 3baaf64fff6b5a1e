"""The recalls of one conversation: injected once, at the first opportunity after they end, or logged if not.

A gate that is opened only after the call shows that a method returns while a recall is blocked: a method
that waited would wait forever.
"""

import json
import threading
from itertools import chain
from operator import methodcaller
from unittest.mock import Mock

import pytest

from kit.recall.contexts import (
    CANARY,
    DARK,
    DEPLOY,
    STAGING,
    WAIT,
    format_entry,
    join_threads,
    list_paths,
    open_stage,
)
from muniment.cancelling import Cancel
from muniment.errors import build_recall_failure
from muniment.recall import session as subject
from muniment.recall.keys import MAX_KEYS
from muniment.recall.root_reader import RootReader
from muniment.recall.session import REPEAT_AFTER, InjectionMode, Reason, RecallSession
from muniment.types import Recalled

EDITOR, DATABASE, DAY = "user/editor.md", "project/database.md", "project/deploy.md"
ZEPPELINS, WINE = "what about zeppelins over antarctica?", "which riesling of the mosel?"


def run_turn(session, message, **more):
    """Return the recall that a turn injects."""
    session.on_user_turn(message, **more)
    join_threads(session)
    return session.take_result(InjectionMode.USER_TURN)


def make_wine_entries(count):
    """Make entries that answer a question about wine, the best first."""
    text = "Riesling from the Mosel, bottle {}. "
    return {f"user/wine-{n}.md": format_entry(f"Wine {n}", text.format(n) * 2) for n in range(count)}


TAKE_CALLS = tuple(
    methodcaller("take_result", where) for where in (InjectionMode.USER_TURN, InjectionMode.TOOL_RESULTS)
)


# -- the table of outcomes


def run_fast_recall(_stage, session):
    session.on_user_turn(DARK)
    yield
    handle = session._handle
    assert list_paths(session.take_result(InjectionMode.USER_TURN)) == [EDITOR]
    assert session.take_result(InjectionMode.TOOL_RESULTS) is None
    assert not handle.is_cancelled


def run_slow_recall_with_calls(stage, session):
    gate = stage.add_gate()
    session.on_user_turn(DARK)
    handle, begun = session._handle, stage.clock()
    assert gate.reached.wait(WAIT)
    assert [
        session.take_result(InjectionMode.USER_TURN),
        *(session.take_result(InjectionMode.TOOL_RESULTS) for _ in range(5)),
    ] == [None] * 6
    stage.clock.advance(1.5)
    gate.open()
    yield
    assert handle.settled_at - begun == 1.5
    assert list_paths(session.take_result(InjectionMode.TOOL_RESULTS)) == [EDITOR]
    assert [
        *(session.take_result(InjectionMode.TOOL_RESULTS) for _ in range(8)),
        session.take_result(InjectionMode.USER_TURN),
    ] == [None] * 9
    assert not handle.is_cancelled
    assert len(stage.recaller.asked) == 1


def run_slow_recall_without_calls(stage, session):
    gate = stage.add_gate()
    session.on_user_turn(DARK)
    assert session.take_result(InjectionMode.USER_TURN) is None
    gate.open()
    yield  # It ends, but no call takes it.
    assert list_paths(run_turn(session, DEPLOY)) == [DAY]


def run_superseded_recall(stage, session):
    gate = stage.add_gate()
    session.on_user_turn(DARK)
    first = session._handle
    assert gate.reached.wait(WAIT)
    session.on_user_turn(DEPLOY)
    assert first.is_cancelled
    yield  # The first recall ends although its gate stays closed.
    assert first.settled_at is not None
    assert list_paths(session.take_result(InjectionMode.USER_TURN)) == [DAY]


TABLE = {
    run_fast_recall: {InjectionMode.USER_TURN: 1},
    run_slow_recall_with_calls: {InjectionMode.TOOL_RESULTS: 1},
    run_slow_recall_without_calls: {Reason.SUPERSEDED: 1, InjectionMode.USER_TURN: 1},
    run_superseded_recall: {Reason.SUPERSEDED: 1, InjectionMode.USER_TURN: 1},
}


@pytest.mark.parametrize("scenario", TABLE)
def test_recall_is_injected_at_the_first_opportunity(recall_stage, scenario):
    session = recall_stage.open_session()
    for _ in scenario(recall_stage, session):
        join_threads(session)  # After each step, wait for all running work.
    assert session.outcomes == TABLE[scenario]


# -- records block no call


def test_close_waits_for_all_records_even_without_a_thread(monkeypatch, logged_events):
    """A thread that has written its last record may still run when the next one starts."""
    go, written = threading.Event(), []
    records = subject._RecordWriter(lambda *args: written.append(args))
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        records.add(Recalled(), "first")
    records._thread = before = threading.Thread(target=go.wait, args=(WAIT,))
    before.start()
    records.add(Recalled(), "second")
    with monkeypatch.context() as patched:
        patched.setattr(subject, "_RECORD_SECONDS", 0.0)
        records.close()
    assert [each["event"] for each in logged_events()] == ["injection_not_recorded", "recall_left_running"]
    go.set()
    records.close()
    assert not before.is_alive()
    assert written == [(Recalled(), "first"), (Recalled(), "second")]


# -- every discard has a reason

ABORTS = (Reason.TURN_LIMIT, Reason.NO_TURNS_LEFT, Reason.TOKEN_LIMIT, Reason.HOST_SIGNAL)
SITES = {
    Reason.RESET: RecallSession.on_reset,
    Reason.SHUTDOWN: RecallSession.close,
    **{reason: lambda session, reason=reason: session.abort(reason) for reason in ABORTS},
}


@pytest.mark.parametrize("is_settled", [False, True])
def test_aborted_recall_is_logged_once_with_its_reason(recall_stage, logged_events, is_settled):
    for reason, abort in SITES.items():
        session, _ = recall_stage.open_session(), None if is_settled else recall_stage.add_gate()
        session.on_user_turn(DARK)
        if is_settled:
            join_threads(session)
        handle = session._handle
        for _ in range(2):
            abort(session)
        assert handle.is_cancelled
        join_threads(session)
        assert (
            session.take_result(InjectionMode.USER_TURN)
            is session.take_result(InjectionMode.TOOL_RESULTS)
            is None
        )
        session.close()
        assert session.outcomes == {reason: 1}
    assert [each["reason"] for each in logged_events() if each["event"] == "recall_discarded"] == list(SITES)


def test_raising_recall_counts_as_failed_however_its_turn_ends(recall_stage, monkeypatch, logged_events):
    ends = (*TAKE_CALLS, RecallSession.on_reset, lambda session: session.on_user_turn(DEPLOY))
    failed = Recalled(error=build_recall_failure("a defect"))
    for broken, ways in (
        (Mock(side_effect=ValueError(CANARY)), ends),
        (lambda *_a, **_m: failed, TAKE_CALLS),
    ):
        for end in ways:
            session = recall_stage.open_session()
            with monkeypatch.context() as patched:
                patched.setattr(recall_stage.recaller, "recall", broken)
                session.on_user_turn(DARK)
                join_threads(session)
            assert end(session) is None
            assert session.outcomes == {Reason.FAILED: 1}
    assert CANARY not in str(logged_events())


# -- a cancelled parent


@pytest.mark.parametrize("when", ["before", "during", "after", "overtaken"])
def test_cancelled_parent_is_no_failure_of_the_recall(recall_stage, logged_events, when):
    with Cancel() as parent:
        recall_stage.open_session(parent=parent).close()
        session, is_slow = recall_stage.open_session(parent=parent), when in {"during", "overtaken"}
        gate = recall_stage.add_gate() if is_slow else None
        if when == "before":
            parent.set()
        session.on_user_turn(DARK)
        if gate is not None:
            assert gate.reached.wait(WAIT)
            parent.set()
        if when == "overtaken":
            session.on_user_turn(DEPLOY)
        join_threads(session)  # Although its gate stays closed.
        assert session._handle.is_cancelled == (when != "after")
        parent.set()
        assert (
            session.take_result(InjectionMode.USER_TURN)
            is session.take_result(InjectionMode.TOOL_RESULTS)
            is None
        )
        session.close()
    assert session.outcomes == {Reason.PARENT_CANCELLED: 1 + (when == "overtaken")}
    assert {each["event"] for each in logged_events()} == {"recall_discarded"}


# -- nothing is injected twice


def test_each_turn_injects_new_entries_until_repeats_are_allowed(tmp_path):
    with open_stage(tmp_path, make_wine_entries(12)) as stage:
        session = stage.open_session(repeat_after=1_000)
        brought = [list_paths(run_turn(session, WINE)) for _ in range(3)]
        assert [len(each) for each in brought] == [5, 5, 2]
        assert len(set(chain(*brought))) == 12
        session.count_tokens(999)
        assert run_turn(session, WINE) is None
        resumed = stage.open_session(repeat_after=1_000, state=json.loads(json.dumps(session.as_json())))
        resumed.count_tokens(1)
        repeated = run_turn(resumed, WINE)
        # The set and the count start again with the repeated entries.
        assert {f"user/{key.rel}" for key in resumed.injected} == set(list_paths(repeated))
        assert set(list_paths(run_turn(resumed, WINE))).isdisjoint(list_paths(repeated))


def test_injected_entry_is_not_repeated_before_all_were_injected(recall_stage, monkeypatch):
    session = recall_stage.open_session(repeat_after=0)
    assert list_paths(run_turn(session, DARK)) == [EDITOR]
    assert run_turn(session, DARK) is run_turn(session, DARK) is None
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    assert list_paths(run_turn(session, DARK)) == [EDITOR]  # Now all three were injected.
    recall_stage.bench.write_files("user/new.md", format_entry("Tea", "Likes tea."))
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    assert run_turn(session, DARK) is None
    with monkeypatch.context() as policy:
        policy.setattr(RootReader, "can_display", lambda _self, _root, rel: rel != "new.md")
        assert list_paths(run_turn(session, DARK)) == [EDITOR]  # It does not wait for hidden entries.
    broken = recall_stage.open_session(
        state={"shown": [list(key) for key in session.injected]}, repeat_after=0
    )
    monkeypatch.setattr(subject.Recaller, "has_injected_all", lambda *_: False)
    assert run_turn(broken, DARK) is None


def test_edited_entry_is_injected_each_time(recall_stage):
    session, before = recall_stage.open_session(), recall_stage.bench.get_file_path(EDITOR).read_text()
    for text in (before, before.replace("dark", "light"), before):
        recall_stage.bench.write_files(EDITOR, text)
        assert list_paths(run_turn(session, "which mode does the editor want?")) == [EDITOR]
        assert run_turn(session, "which mode does the editor want?") is None
    assert len(session.injected) == 1


def test_empty_result_or_failed_retry_keeps_the_injected_set(recall_stage, monkeypatch):
    session, recall = recall_stage.open_session(), recall_stage.recaller.recall
    assert run_turn(session, ZEPPELINS) is None
    run_turn(session, DARK)
    injected = session.injected
    assert injected == {recall_stage.bench.read_key(EDITOR)}
    assert run_turn(session, ZEPPELINS) is None
    assert recall_stage.recaller.asked == [(ZEPPELINS, set()), (DARK, set()), (ZEPPELINS, injected)]
    session.count_tokens(REPEAT_AFTER)
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    session.count_tokens(REPEAT_AFTER)
    injected = session.injected
    assert run_turn(session, ZEPPELINS) is None
    assert recall_stage.recaller.asked[-2:] == [
        (ZEPPELINS, injected),
        (ZEPPELINS, set()),
    ]  # One retry, of all.

    def fail_on_retry(query, *, exclude=(), **more):
        return (
            recall(query, exclude=exclude, **more)
            if exclude
            else Recalled(error=build_recall_failure("a defect"))
        )

    monkeypatch.setattr(recall_stage.recaller, "recall", fail_on_retry)
    assert run_turn(session, DARK) is None
    assert session.injected == injected
    assert session.outcomes == {InjectionMode.USER_TURN: 3, Reason.NOTHING_FOUND: 4}


def test_entry_injected_by_another_part_is_not_repeated(tmp_path):
    with open_stage(tmp_path, make_wine_entries(3)) as stage:
        session, other = stage.open_session(), stage.bench.read_key("user/wine-1.md")
        session.on_user_turn(WINE)
        join_threads(session)
        recalled = session.take_result(InjectionMode.USER_TURN, injected={other})
        assert sorted(list_paths(recalled)) == ["user/wine-0.md", "user/wine-2.md"]
        assert not any(text in recalled.text for text in ("wine-1", "bottle 1"))
        assert recalled.tokens == stage.recaller.count(recalled.text)
        assert other not in session.injected


def test_recall_of_only_injected_entries_injects_nothing(recall_stage):
    session, key = recall_stage.open_session(repeat_after=0), recall_stage.bench.read_key(EDITOR)
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    others = session.injected
    for injected in (others, {*others, key}):
        session.on_user_turn(DARK)
        join_threads(session)
        assert session.take_result(InjectionMode.USER_TURN, injected={key}) is None
        assert session.injected == injected
        run_turn(session, DARK)  # When it is shown, the result is a repeat.
    assert session.outcomes == {Reason.NOTHING_NEW: 2, InjectionMode.USER_TURN: 4}
    session.on_compaction()
    run_turn(session, DEPLOY)
    count = len(recall_stage.recaller.asked)
    assert (
        run_turn(session, DARK, injected=[key]) is None
    )  # It is not recalled either if nothing else is left.
    assert all(key in exclude for _, exclude in recall_stage.recaller.asked[count:])


# -- records and state


LISTED = ["abc", 7, None, [], ["a"], ["a", "b", 7], ["a", "b", None], [["a"], "b", "c"], {}, [*"abcd"]]
HOSTILE = [None, 7, "shown", ["shown"], *({"shown": each} for each in (None, 7, "abc", {"a": "b"}, LISTED))]


def test_hostile_state_is_ignored_and_its_keys_are_bounded(recall_stage):
    parts = ["\0", "\ud800", "' OR 1=1 --", '"]', "x" * 100_000, "\u202e"]
    states = [(state, 0) for state in (*HOSTILE, {"shown": [[b"a", "b", "c"]]})]
    endless = {"shown": [["root", f"{number}.md", "digest"] for number in range(MAX_KEYS + 1_000)]}
    for state, count in (*states, *(({"shown": [[part] * 3]}, 1) for part in parts), (endless, MAX_KEYS)):
        session = recall_stage.open_session(state=state)
        assert len(session.injected) == len(session.as_json()["shown"]) == count, state
        json.dumps(session.as_json())
        assert list_paths(run_turn(session, DARK)) == [EDITOR], state
