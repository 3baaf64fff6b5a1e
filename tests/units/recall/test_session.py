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

from kit.recall.places import CANARY, DARK, DEPLOY, STAGING, WAIT, entry_of, paths, settle, staged
from muniment.cancelling import Cancel
from muniment.errors import recall_failed
from muniment.recall import session as subject
from muniment.recall.keys import MAX_KEYS
from muniment.recall.session import REPEAT_AFTER, BroughtIn, Reason, RecallSession
from muniment.recall.shelf import Shelf
from muniment.types import Recalled

EDITOR, DATABASE, DAY = "user/editor.md", "project/database.md", "project/deploy.md"
ZEPPELINS, WINE = "what about zeppelins over antarctica?", "which riesling of the mosel?"


def run_turn(session, message, **more):
    """Return the recall that a turn injects."""
    session.on_user_turn(message, **more)
    settle(session)
    return session.take(BroughtIn.USER_TURN)


def make_wine_entries(count):
    """Make entries that answer a question about wine, the best first."""
    text = "Riesling from the Mosel, bottle {}. "
    return {f"user/wine-{n}.md": entry_of(f"Wine {n}", text.format(n) * 2) for n in range(count)}


TAKE_CALLS = tuple(methodcaller("take", where) for where in (BroughtIn.USER_TURN, BroughtIn.TOOL_RESULTS))


# -- the table of outcomes


def run_fast_recall(_stage, session):
    session.on_user_turn(DARK)
    yield
    handle = session._handle
    assert paths(session.take(BroughtIn.USER_TURN)) == [EDITOR]
    assert session.take(BroughtIn.TOOL_RESULTS) is None
    assert not handle.is_cancelled


def run_slow_recall_with_calls(stage, session):
    gate = stage.gate()
    session.on_user_turn(DARK)
    handle, begun = session._handle, stage.clock()
    assert gate.reached.wait(WAIT)
    assert [session.take(BroughtIn.USER_TURN), *(session.take(BroughtIn.TOOL_RESULTS) for _ in range(5))] == [
        None
    ] * 6
    stage.clock.advance(1.5)
    gate.open()
    yield
    assert handle.settled_at - begun == 1.5
    assert paths(session.take(BroughtIn.TOOL_RESULTS)) == [EDITOR]
    assert [*(session.take(BroughtIn.TOOL_RESULTS) for _ in range(8)), session.take(BroughtIn.USER_TURN)] == [
        None
    ] * 9
    assert not handle.is_cancelled
    assert len(stage.recaller.asked) == 1


def run_slow_recall_without_calls(stage, session):
    gate = stage.gate()
    session.on_user_turn(DARK)
    assert session.take(BroughtIn.USER_TURN) is None
    gate.open()
    yield  # It ends, but no call takes it.
    assert paths(run_turn(session, DEPLOY)) == [DAY]


def run_superseded_recall(stage, session):
    gate = stage.gate()
    session.on_user_turn(DARK)
    first = session._handle
    assert gate.reached.wait(WAIT)
    session.on_user_turn(DEPLOY)
    assert first.is_cancelled
    yield  # The first recall ends although its gate stays closed.
    assert first.settled_at is not None
    assert paths(session.take(BroughtIn.USER_TURN)) == [DAY]


TABLE = {
    run_fast_recall: {BroughtIn.USER_TURN: 1},
    run_slow_recall_with_calls: {BroughtIn.TOOL_RESULTS: 1},
    run_slow_recall_without_calls: {Reason.SUPERSEDED: 1, BroughtIn.USER_TURN: 1},
    run_superseded_recall: {Reason.SUPERSEDED: 1, BroughtIn.USER_TURN: 1},
}


@pytest.mark.parametrize("scenario", TABLE)
def test_recall_is_injected_at_the_first_opportunity(stage, scenario):
    session = stage.session()
    for _ in scenario(stage, session):
        settle(session)  # After each step, wait for all running work.
    assert session.outcomes == TABLE[scenario]


# -- records block no call


def test_close_waits_for_all_records_even_without_a_thread(monkeypatch, told):
    """A thread that has written its last record may still run when the next one starts."""
    go, written = threading.Event(), []
    records = subject._Records(lambda *args: written.append(args))
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        records.add(Recalled(), "first")
    records._thread = before = threading.Thread(target=go.wait, args=(WAIT,))
    before.start()
    records.add(Recalled(), "second")
    with monkeypatch.context() as patched:
        patched.setattr(subject, "_RECORD_SECONDS", 0.0)
        records.close()
    assert [each["event"] for each in told()] == ["injection_not_recorded", "recall_left_running"]
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
def test_aborted_recall_is_logged_once_with_its_reason(stage, told, is_settled):
    for reason, abort in SITES.items():
        session, _ = stage.session(), None if is_settled else stage.gate()
        session.on_user_turn(DARK)
        if is_settled:
            settle(session)
        handle = session._handle
        for _ in range(2):
            abort(session)
        assert handle.is_cancelled
        settle(session)
        assert session.take(BroughtIn.USER_TURN) is session.take(BroughtIn.TOOL_RESULTS) is None
        session.close()
        assert session.outcomes == {reason: 1}
    assert [each["reason"] for each in told() if each["event"] == "recall_discarded"] == list(SITES)


def test_raising_recall_counts_as_failed_however_its_turn_ends(stage, monkeypatch, told):
    ends = (*TAKE_CALLS, RecallSession.on_reset, lambda session: session.on_user_turn(DEPLOY))
    failed = Recalled(error=recall_failed("a defect"))
    for broken, ways in (
        (Mock(side_effect=ValueError(CANARY)), ends),
        (lambda *_a, **_m: failed, TAKE_CALLS),
    ):
        for end in ways:
            session = stage.session()
            with monkeypatch.context() as patched:
                patched.setattr(stage.recaller, "recall", broken)
                session.on_user_turn(DARK)
                settle(session)
            assert end(session) is None
            assert session.outcomes == {Reason.FAILED: 1}
    assert CANARY not in str(told())


# -- a cancelled parent


@pytest.mark.parametrize("when", ["before", "during", "after", "overtaken"])
def test_cancelled_parent_is_no_failure_of_the_recall(stage, told, when):
    with Cancel() as parent:
        stage.session(parent=parent).close()
        session, is_slow = stage.session(parent=parent), when in {"during", "overtaken"}
        gate = stage.gate() if is_slow else None
        if when == "before":
            parent.set()
        session.on_user_turn(DARK)
        if gate is not None:
            assert gate.reached.wait(WAIT)
            parent.set()
        if when == "overtaken":
            session.on_user_turn(DEPLOY)
        settle(session)  # Although its gate stays closed.
        assert session._handle.is_cancelled == (when != "after")
        parent.set()
        assert session.take(BroughtIn.USER_TURN) is session.take(BroughtIn.TOOL_RESULTS) is None
        session.close()
    assert session.outcomes == {Reason.PARENT_CANCELLED: 1 + (when == "overtaken")}
    assert {each["event"] for each in told()} == {"recall_discarded"}


# -- nothing is injected twice


def test_each_turn_injects_new_entries_until_repeats_are_allowed(tmp_path):
    with staged(tmp_path, make_wine_entries(12)) as stage:
        session = stage.session(repeat_after=1_000)
        brought = [paths(run_turn(session, WINE)) for _ in range(3)]
        assert [len(each) for each in brought] == [5, 5, 2]
        assert len(set(chain(*brought))) == 12
        session.heard(999)
        assert run_turn(session, WINE) is None
        resumed = stage.session(repeat_after=1_000, state=json.loads(json.dumps(session.as_json())))
        resumed.heard(1)
        repeated = run_turn(resumed, WINE)
        # The set and the count start again with the repeated entries.
        assert {f"user/{key.rel}" for key in resumed.shown} == set(paths(repeated))
        assert set(paths(run_turn(resumed, WINE))).isdisjoint(paths(repeated))


def test_injected_entry_is_not_repeated_before_all_were_injected(stage, monkeypatch):
    session = stage.session(repeat_after=0)
    assert paths(run_turn(session, DARK)) == [EDITOR]
    assert run_turn(session, DARK) is run_turn(session, DARK) is None
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    assert paths(run_turn(session, DARK)) == [EDITOR]  # Now all three were injected.
    stage.made.put("user/new.md", entry_of("Tea", "Likes tea."))
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    assert run_turn(session, DARK) is None
    with monkeypatch.context() as policy:
        policy.setattr(Shelf, "accepts", lambda _self, _root, rel: rel != "new.md")
        assert paths(run_turn(session, DARK)) == [EDITOR]  # It does not wait for hidden entries.
    broken = stage.session(state={"shown": [list(key) for key in session.shown]}, repeat_after=0)
    monkeypatch.setattr(subject.Recaller, "has_told_all", lambda *_: False)
    assert run_turn(broken, DARK) is None


def test_edited_entry_is_injected_each_time(stage):
    session, before = stage.session(), stage.made.file(EDITOR).read_text()
    for text in (before, before.replace("dark", "light"), before):
        stage.made.put(EDITOR, text)
        assert paths(run_turn(session, "which mode does the editor want?")) == [EDITOR]
        assert run_turn(session, "which mode does the editor want?") is None
    assert len(session.shown) == 1


def test_empty_result_or_failed_retry_keeps_the_injected_set(stage, monkeypatch):
    session, recall = stage.session(), stage.recaller.recall
    assert run_turn(session, ZEPPELINS) is None
    run_turn(session, DARK)
    injected = session.shown
    assert injected == {stage.made.key(EDITOR)}
    assert run_turn(session, ZEPPELINS) is None
    assert stage.recaller.asked == [(ZEPPELINS, set()), (DARK, set()), (ZEPPELINS, injected)]
    session.heard(REPEAT_AFTER)
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    session.heard(REPEAT_AFTER)
    injected = session.shown
    assert run_turn(session, ZEPPELINS) is None
    assert stage.recaller.asked[-2:] == [(ZEPPELINS, injected), (ZEPPELINS, set())]  # One retry, of all.

    def fail_on_retry(query, *, exclude=(), **more):
        return (
            recall(query, exclude=exclude, **more) if exclude else Recalled(error=recall_failed("a defect"))
        )

    monkeypatch.setattr(stage.recaller, "recall", fail_on_retry)
    assert run_turn(session, DARK) is None
    assert session.shown == injected
    assert session.outcomes == {BroughtIn.USER_TURN: 3, Reason.NOTHING_FOUND: 4}


def test_entry_injected_by_another_part_is_not_repeated(tmp_path):
    with staged(tmp_path, make_wine_entries(3)) as stage:
        session, other = stage.session(), stage.made.key("user/wine-1.md")
        session.on_user_turn(WINE)
        settle(session)
        recalled = session.take(BroughtIn.USER_TURN, told={other})
        assert sorted(paths(recalled)) == ["user/wine-0.md", "user/wine-2.md"]
        assert not any(text in recalled.text for text in ("wine-1", "bottle 1"))
        assert recalled.tokens == stage.recaller.count(recalled.text)
        assert other not in session.shown


def test_recall_of_only_injected_entries_injects_nothing(stage):
    session, key = stage.session(repeat_after=0), stage.made.key(EDITOR)
    run_turn(session, DEPLOY)
    run_turn(session, STAGING)
    others = session.shown
    for injected in (others, {*others, key}):
        session.on_user_turn(DARK)
        settle(session)
        assert session.take(BroughtIn.USER_TURN, told={key}) is None
        assert session.shown == injected
        run_turn(session, DARK)  # When it is shown, the result is a repeat.
    assert session.outcomes == {Reason.NOTHING_NEW: 2, BroughtIn.USER_TURN: 4}
    session.on_compaction()
    run_turn(session, DEPLOY)
    count = len(stage.recaller.asked)
    assert run_turn(session, DARK, told=[key]) is None  # It is not recalled either if nothing else is left.
    assert all(key in exclude for _, exclude in stage.recaller.asked[count:])


# -- records and state


LISTED = ["abc", 7, None, [], ["a"], ["a", "b", 7], ["a", "b", None], [["a"], "b", "c"], {}, [*"abcd"]]
HOSTILE = [None, 7, "shown", ["shown"], *({"shown": each} for each in (None, 7, "abc", {"a": "b"}, LISTED))]


def test_hostile_state_is_ignored_and_its_keys_are_bounded(stage):
    parts = ["\0", "\ud800", "' OR 1=1 --", '"]', "x" * 100_000, "\u202e"]
    states = [(state, 0) for state in (*HOSTILE, {"shown": [[b"a", "b", "c"]]})]
    endless = {"shown": [["root", f"{number}.md", "digest"] for number in range(MAX_KEYS + 1_000)]}
    for state, count in (*states, *(({"shown": [[part] * 3]}, 1) for part in parts), (endless, MAX_KEYS)):
        session = stage.session(state=state)
        assert len(session.shown) == len(session.as_json()["shown"]) == count, state
        json.dumps(session.as_json())
        assert paths(run_turn(session, DARK)) == [EDITOR], state
