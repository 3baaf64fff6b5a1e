"""One conversation's recalls: brought in once, at the first place at which they are there, and told if not.

That a method returns while a recall is blocked is shown by a gate that is opened only behind the call: one
that waited would wait for ever.
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


def asked(session, message, **more):
    """What a turn brings in."""
    session.on_user_turn(message, **more)
    settle(session)
    return session.take(BroughtIn.USER_TURN)


def themed(count):
    """Entries that a question about wine is answered by, the first ones best."""
    text = "Riesling from the Mosel, bottle {}. "
    return {f"user/wine-{n}.md": entry_of(f"Wine {n}", text.format(n) * 2) for n in range(count)}


TAKES = tuple(methodcaller("take", where) for where in (BroughtIn.USER_TURN, BroughtIn.TOOL_RESULTS))


# -- the table


def settled_at_once(_stage, session):
    session.on_user_turn(DARK)
    yield
    handle = session._handle
    assert paths(session.take(BroughtIn.USER_TURN)) == [EDITOR]
    assert session.take(BroughtIn.TOOL_RESULTS) is None
    assert not handle.is_cancelled


def slow_with_calls(stage, session):
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


def slow_without_calls(stage, session):
    gate = stage.gate()
    session.on_user_turn(DARK)
    assert session.take(BroughtIn.USER_TURN) is None
    gate.open()
    yield  # It settles, and nobody comes by for it.
    assert paths(asked(session, DEPLOY)) == [DAY]


def overtaken(stage, session):
    gate = stage.gate()
    session.on_user_turn(DARK)
    first = session._handle
    assert gate.reached.wait(WAIT)
    session.on_user_turn(DEPLOY)
    assert first.is_cancelled
    yield  # The first ends though its gate stays shut.
    assert first.settled_at is not None
    assert paths(session.take(BroughtIn.USER_TURN)) == [DAY]


TABLE = {
    settled_at_once: {BroughtIn.USER_TURN: 1},
    slow_with_calls: {BroughtIn.TOOL_RESULTS: 1},
    slow_without_calls: {Reason.SUPERSEDED: 1, BroughtIn.USER_TURN: 1},
    overtaken: {Reason.SUPERSEDED: 1, BroughtIn.USER_TURN: 1},
}


@pytest.mark.parametrize("scenario", TABLE)
def test_a_recall_comes_at_the_first_place_at_which_it_is_there_and_holds_nobody_up(stage, scenario):
    session = stage.session()
    for _ in scenario(stage, session):
        settle(session)  # Behind each step, the end of all that runs.
    assert session.outcomes == TABLE[scenario]


# -- never in the way


def test_who_waits_for_the_last_record_has_waited_for_all_also_those_without_a_thread(monkeypatch, told):
    """A thread that has written its last one may not have ended when the next one begins."""
    go, written = threading.Event(), []
    records = subject._Records(lambda *given: written.append(given))
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        records.add(Recalled(), "first")
    records._thread = before = threading.Thread(target=go.wait, args=(WAIT,))
    before.start()
    records.add(Recalled(), "second")
    with monkeypatch.context() as hasty:
        hasty.setattr(subject, "_RECORD_SECONDS", 0.0)
        records.close()
    assert [each["event"] for each in told()] == ["injection_not_recorded", "recall_left_running"]
    go.set()
    records.close()
    assert not before.is_alive()
    assert written == [(Recalled(), "first"), (Recalled(), "second")]


# -- each discard with its reason

ABORTS = (Reason.TURN_LIMIT, Reason.NO_TURNS_LEFT, Reason.TOKEN_LIMIT, Reason.HOST_SIGNAL)
SITES = {
    Reason.RESET: RecallSession.on_reset,
    Reason.SHUTDOWN: RecallSession.close,
    **{reason: lambda session, reason=reason: session.abort(reason) for reason in ABORTS},
}


@pytest.mark.parametrize("is_settled", [False, True])
def test_at_every_site_a_recall_is_aborted_with_its_reason_once(stage, told, is_settled):
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


def test_a_recall_that_raises_or_has_an_error_has_failed_whatever_ends_its_turn(stage, monkeypatch, told):
    ends = (*TAKES, RecallSession.on_reset, lambda session: session.on_user_turn(DEPLOY))
    failed = Recalled(error=recall_failed("a defect"))
    for broken, ways in ((Mock(side_effect=ValueError(CANARY)), ends), (lambda *_a, **_m: failed, TAKES)):
        for end in ways:
            session = stage.session()
            with monkeypatch.context() as patched:
                patched.setattr(stage.recaller, "recall", broken)
                session.on_user_turn(DARK)
                settle(session)
            assert end(session) is None
            assert session.outcomes == {Reason.FAILED: 1}
    assert CANARY not in str(told())


# -- a parent that is cancelled


@pytest.mark.parametrize("when", ["before", "during", "after", "overtaken"])
def test_a_cancelled_parent_stays_the_callers_and_makes_no_recall_a_failure(stage, told, when):
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
        settle(session)  # Though its gate stays shut.
        assert session._handle.is_cancelled == (when != "after")
        parent.set()
        assert session.take(BroughtIn.USER_TURN) is session.take(BroughtIn.TOOL_RESULTS) is None
        session.close()
    assert session.outcomes == {Reason.PARENT_CANCELLED: 1 + (when == "overtaken")}
    assert {each["event"] for each in told()} == {"recall_discarded"}


# -- nothing twice


def test_each_turn_brings_what_is_new_until_nothing_is_left_and_long_after_all_may_come(tmp_path):
    with staged(tmp_path, themed(12)) as stage:
        session = stage.session(repeat_after=1_000)
        brought = [paths(asked(session, WINE)) for _ in range(3)]
        assert [len(each) for each in brought] == [5, 5, 2]
        assert len(set(chain(*brought))) == 12
        session.heard(999)
        assert asked(session, WINE) is None
        resumed = stage.session(repeat_after=1_000, state=json.loads(json.dumps(session.as_json())))
        resumed.heard(1)
        again = asked(resumed, WINE)
        # The set begins anew with what came again, and so does the count.
        assert {f"user/{key.rel}" for key in resumed.shown} == set(paths(again))
        assert set(paths(asked(resumed, WINE))).isdisjoint(paths(again))


def test_what_was_told_stays_told_as_long_as_anything_that_may_be_shown_was_not(stage, monkeypatch):
    session = stage.session(repeat_after=0)
    assert paths(asked(session, DARK)) == [EDITOR]
    assert asked(session, DARK) is asked(session, DARK) is None
    asked(session, DEPLOY)
    asked(session, STAGING)
    assert paths(asked(session, DARK)) == [EDITOR]  # Now all three were told.
    stage.made.put("user/new.md", entry_of("Tea", "Likes tea."))
    asked(session, DEPLOY)
    asked(session, STAGING)
    assert asked(session, DARK) is None
    with monkeypatch.context() as policy:
        policy.setattr(Shelf, "accepts", lambda _self, _root, rel: rel != "new.md")
        assert paths(asked(session, DARK)) == [EDITOR]  # What nobody may see is not waited for.
    broken = stage.session(state={"shown": [list(key) for key in session.shown]}, repeat_after=0)
    monkeypatch.setattr(subject.Recaller, "has_told_all", lambda *_: False)
    assert asked(broken, DARK) is None


def test_an_entry_that_is_edited_and_edited_back_is_told_each_time(stage):
    session, before = stage.session(), stage.made.file(EDITOR).read_text()
    for text in (before, before.replace("dark", "light"), before):
        stage.made.put(EDITOR, text)
        assert paths(asked(session, "which mode does the editor want?")) == [EDITOR]
        assert asked(session, "which mode does the editor want?") is None
    assert len(session.shown) == 1


def test_a_message_about_nothing_or_a_retry_that_fails_leaves_the_set_as_it_was(stage, monkeypatch):
    session, recall = stage.session(), stage.recaller.recall
    assert asked(session, ZEPPELINS) is None
    asked(session, DARK)
    shown = session.shown
    assert shown == {stage.made.key(EDITOR)}
    assert asked(session, ZEPPELINS) is None
    assert stage.recaller.asked == [(ZEPPELINS, set()), (DARK, set()), (ZEPPELINS, shown)]
    session.heard(REPEAT_AFTER)
    asked(session, DEPLOY)
    asked(session, STAGING)
    session.heard(REPEAT_AFTER)
    shown = session.shown
    assert asked(session, ZEPPELINS) is None
    assert stage.recaller.asked[-2:] == [(ZEPPELINS, shown), (ZEPPELINS, set())]  # One retry, of all.

    def failing(query, *, exclude=(), **more):
        return (
            recall(query, exclude=exclude, **more) if exclude else Recalled(error=recall_failed("a defect"))
        )

    monkeypatch.setattr(stage.recaller, "recall", failing)
    assert asked(session, DARK) is None
    assert session.shown == shown
    assert session.outcomes == {BroughtIn.USER_TURN: 3, Reason.NOTHING_FOUND: 4}


def test_what_was_told_otherwise_since_the_recall_began_is_not_told_again(tmp_path):
    with staged(tmp_path, themed(3)) as stage:
        session, other = stage.session(), stage.made.key("user/wine-1.md")
        session.on_user_turn(WINE)
        settle(session)
        recalled = session.take(BroughtIn.USER_TURN, told={other})
        assert sorted(paths(recalled)) == ["user/wine-0.md", "user/wine-2.md"]
        assert not any(text in recalled.text for text in ("wine-1", "bottle 1"))
        assert recalled.tokens == stage.recaller.count(recalled.text)
        assert other not in session.shown


def test_where_all_was_told_otherwise_nothing_is_brought_in_and_the_set_stays(stage):
    session, key = stage.session(repeat_after=0), stage.made.key(EDITOR)
    asked(session, DEPLOY)
    asked(session, STAGING)
    others = session.shown
    for shown in (others, {*others, key}):
        session.on_user_turn(DARK)
        settle(session)
        assert session.take(BroughtIn.USER_TURN, told={key}) is None
        assert session.shown == shown
        asked(session, DARK)  # And once it is shown, what comes is a repeat.
    assert session.outcomes == {Reason.NOTHING_NEW: 2, BroughtIn.USER_TURN: 4}
    session.on_compaction()
    asked(session, DEPLOY)
    count = len(stage.recaller.asked)
    assert asked(session, DARK, told=[key]) is None  # Nor is it recalled where nothing else is left.
    assert all(key in exclude for _, exclude in stage.recaller.asked[count:])


# -- records and state


LISTED = ["abc", 7, None, [], ["a"], ["a", "b", 7], ["a", "b", None], [["a"], "b", "c"], {}, [*"abcd"]]
HOSTILE = [None, 7, "shown", ["shown"], *({"shown": each} for each in (None, 7, "abc", {"a": "b"}, LISTED))]


def test_a_hostile_state_is_no_state_and_a_hostile_key_leaves_nothing_out_but_itself(stage):
    parts = ["\0", "\ud800", "' OR 1=1 --", '"]', "x" * 100_000, "\u202e"]
    states = [(state, 0) for state in (*HOSTILE, {"shown": [[b"a", "b", "c"]]})]
    endless = {"shown": [["root", f"{number}.md", "digest"] for number in range(MAX_KEYS + 1_000)]}
    for state, count in (*states, *(({"shown": [[part] * 3]}, 1) for part in parts), (endless, MAX_KEYS)):
        session = stage.session(state=state)
        assert len(session.shown) == len(session.as_json()["shown"]) == count, state
        json.dumps(session.as_json())
        assert paths(asked(session, DARK)) == [EDITOR], state
