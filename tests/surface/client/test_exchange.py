"""What is sent again, and when; without any I/O and by a clock that nobody waits for."""

from __future__ import annotations

import json

import pytest

from kit.client.driving import carry_out
from muniment.client.core import FIRST_PAUSE, GRACE_SECONDS, LAST_PAUSE, Ask, HttpReply, Lost, exchange
from muniment.client.errors import (
    BadAnswer,
    Conflict,
    InvalidContent,
    NotNow,
    Problem,
    QueueFull,
    ReviewNeeded,
    UndoOverlap,
    Unreachable,
)
from muniment.testing.minds import FakeClock

REFUSED = Lost("nobody takes the connection", may_have_arrived=False)
BROKEN = Lost("the connection ended early", may_have_arrived=True)
OK = HttpReply(200, {}, b"{}")
TOO_LONG = 10_000


def said(status, code="some_code", error="A sentence.", headers=None, **fields):
    return HttpReply(status, headers or {}, json.dumps({"code": code, "error": error, **fields}).encode())


@pytest.fixture
def clock():
    return FakeClock()


def run(clock, *outcomes, ask=None, seconds=30.0, pause=0.0):
    plan = exchange(ask or Ask("GET", "/"), clock, clock() + seconds, pause)
    return carry_out(plan, clock, *outcomes)


def test_an_answer_is_returned_at_once(clock):
    tries, reply = run(clock, OK)
    assert reply is OK
    assert [(step.pause, step.afresh, step.seconds) for step in tries] == [(0.0, False, 10.0)]


def test_a_lost_request_is_sent_again_after_pauses_that_double_up_to_a_bound(clock):
    tries, _ = run(clock, *[REFUSED, BROKEN] * 5, OK)
    pauses = [step.pause for step in tries]
    assert pauses[:4] == [0.0, FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]
    assert max(pauses) == LAST_PAUSE == pauses[-1]
    assert len({id(step.ask) for step in tries}) == 1
    assert [step.afresh for step in tries] == [False] + [True] * 10


def test_a_request_that_nobody_takes_ends_with_its_time(clock):
    begun = clock()
    with pytest.raises(Unreachable) as caught:
        run(clock, *[REFUSED] * TOO_LONG)
    assert clock() - begun == pytest.approx(30)
    assert not caught.value.may_have_arrived
    assert str(caught.value) == "the daemon did not answer: nobody takes the connection"


def test_what_may_have_arrived_is_not_sent_again_unless_that_changes_nothing(clock):
    with pytest.raises(Unreachable) as caught:
        run(clock, BROKEN, ask=Ask("POST", "/undo", repeatable=False))
    assert caught.value.may_have_arrived
    assert "may have been carried out" in str(caught.value)


def test_what_has_not_arrived_is_sent_again_even_if_it_changes_something(clock):
    _, reply = run(clock, REFUSED, said(503, "busy"), OK, ask=Ask("POST", "/undo", repeatable=False))
    assert reply is OK


def test_a_read_that_was_lost_has_done_nothing(clock):
    with pytest.raises(Unreachable) as caught:
        run(clock, BROKEN, lambda _: (clock.advance(60), BROKEN)[1], ask=Ask("GET", "/"))
    assert not caught.value.may_have_arrived


@pytest.mark.parametrize("status", [429, 503])
def test_not_now_is_asked_again_after_what_it_says(clock, status):
    tries, _ = run(clock, said(status, headers={"retry-after": "7"}), said(status), OK)
    assert [step.pause for step in tries] == [0.0, 7.0, FIRST_PAUSE * 2]
    assert not any(step.afresh for step in tries)


@pytest.mark.parametrize("said_after", ["soon", "-1", "1.5", "", "Wed, 21 Oct 2026 07:28:00 GMT", "٣"])
def test_a_retry_after_that_is_no_number_of_seconds_is_ignored(clock, said_after):
    tries, _ = run(clock, said(503, headers={"retry-after": said_after}), OK)
    assert tries[1].pause == FIRST_PAUSE


@pytest.mark.parametrize(("told", "obeyed"), [("59", 59.0), ("61", 60.0), ("9" * 400, 60.0)])
def test_a_retry_after_is_obeyed_up_to_a_bound(clock, told, obeyed):
    tries, _ = run(clock, said(429, headers={"retry-after": told}), OK, seconds=1000)
    assert tries[1].pause == obeyed


def test_not_now_beyond_the_deadline_is_raised_at_once(clock):
    begun = clock()
    with pytest.raises(QueueFull) as caught:
        run(clock, said(429, "remember_queue_full", headers={"retry-after": "31"}))
    assert clock() == begun
    assert (caught.value.status, caught.value.retry_after) == (429, 31.0)


def test_not_now_until_the_deadline_is_raised_at_once_too(clock):
    begun = clock()
    with pytest.raises(QueueFull):
        run(clock, said(429, "remember_queue_full", headers={"retry-after": "30"}))
    assert clock() == begun


def test_not_now_for_ever_is_raised_with_its_code(clock):
    with pytest.raises(NotNow) as caught:
        run(clock, *[said(503, "workspace_draining")] * TOO_LONG)
    assert caught.value.code == "workspace_draining"


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 500, 502, 504])
def test_no_other_refusal_is_asked_again(clock, status):
    with pytest.raises(Problem) as caught:
        run(clock, said(status))
    assert (caught.value.status, caught.value.code, type(caught.value)) == (status, "some_code", Problem)


def test_a_try_is_given_what_is_left_but_never_nothing(clock):
    tries, _ = run(clock, lambda _: (clock.advance(9.9), BROKEN)[1], BROKEN, OK, seconds=10)
    assert [step.seconds for step in tries] == [10.0, GRACE_SECONDS, GRACE_SECONDS]


def test_a_try_that_is_held_is_given_more(clock):
    (step,), _ = run(clock, OK, ask=Ask("GET", "/", hold=20))
    assert step.seconds == 30.0


def test_a_deadline_that_never_comes_is_one(clock):
    (step,), _ = run(clock, OK, seconds=float("inf"))
    assert step.seconds == 10.0


def test_a_problem_carries_its_code_its_sentence_and_its_fields(clock):
    with pytest.raises(UndoOverlap) as caught:
        run(clock, said(409, "undo_overlap", "Later changes.", paths=["user/a.md"], title="T", type="t"))
    error = caught.value
    assert (str(error), error.paths) == ("Later changes. (undo_overlap)", ("user/a.md",))
    assert dict(error.fields) == {"paths": ["user/a.md"]}
    assert isinstance(error, Conflict)


def test_fields_of_another_type_are_left_out(clock):
    with pytest.raises(Conflict) as caught:
        run(clock, said(409, "store_conflict", paths="user/a.md"))
    assert caught.value.paths == ()
    with pytest.raises(ReviewNeeded) as caught:
        run(clock, said(409, "pending_review", reviewId=7))
    assert caught.value.review_id is None
    with pytest.raises(ReviewNeeded) as caught:
        run(clock, said(409, "pending_review", reviewId="r1"))
    assert caught.value.review_id == "r1"


def test_what_a_problem_says_is_one_printable_line(clock):
    with pytest.raises(InvalidContent) as caught:
        run(clock, said(400, "invalid_content", "\x1b[2J\n" + "x" * 10_000))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "reply",
    [
        HttpReply(302, {"location": "http://evil.example/"}, b""),
        HttpReply(204, {}, b""),
        HttpReply(404, {}, b"<html>"),
        HttpReply(404, {}, b"[]"),
        HttpReply(404, {}, b'{"error": "Not Found"}'),
        HttpReply(404, {}, b'{"code": 7, "error": "Not Found"}'),
        HttpReply(500, {}, b"[" * 100_000),
    ],
)
def test_what_is_none_of_the_contract_says_so(clock, reply):
    with pytest.raises(BadAnswer, match=str(reply.status)):
        run(clock, reply)
