"""What is sent again, and when; without any I/O and by a clock that nobody waits for."""

from __future__ import annotations

import pytest

from kit.client.driving import BROKEN, GONE, carry_out
from kit.client.driving import said as answered
from muniment.client.core import FIRST_PAUSE, GRACE_SECONDS, LAST_PAUSE, Ask, HttpReply, exchange
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

OK = HttpReply(200, {}, b"{}")
UNDO = Ask("POST", "/undo", repeatable=False)
TOO_LONG = 10_000


def said(status, code="some_code", error="A sentence.", after=None, **fields):
    headers = {} if after is None else {"retry-after": after}
    return answered(status, {"code": code, "error": error, **fields}, **headers)


@pytest.fixture
def clock():
    return FakeClock()


def run(clock, *outcomes, ask=None, seconds=30.0):
    return carry_out(exchange(ask or Ask("GET", "/"), clock, clock() + seconds, 0.0), clock, *outcomes)


def caught(kind, clock, *outcomes, **terms):
    with pytest.raises(kind) as found:
        run(clock, *outcomes, **terms)
    return found.value


def test_an_answer_is_returned_at_once_and_a_try_given_what_is_left(clock):
    tries, reply = run(clock, OK)
    assert reply is OK
    assert [(step.pause, step.afresh, step.seconds) for step in tries] == [(0.0, False, 10.0)]
    assert run(clock, OK, ask=Ask("GET", "/", hold=20))[0][0].seconds == 30.0
    assert run(clock, OK, seconds=float("inf"))[0][0].seconds == 10.0
    tries, _ = run(clock, lambda _: clock.advance(9.9) or BROKEN, BROKEN, OK, seconds=10)
    assert [step.seconds for step in tries] == [10.0, GRACE_SECONDS, GRACE_SECONDS]


def test_a_lost_request_is_sent_again_after_pauses_that_double_up_to_a_bound_until_its_time_ends(clock):
    tries, _ = run(clock, *[GONE, BROKEN] * 5, OK)
    pauses = [step.pause for step in tries]
    assert pauses[:4] == [0.0, FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]
    assert max(pauses) == LAST_PAUSE == pauses[-1]
    assert len({id(step.ask) for step in tries}) == 1
    assert [step.afresh for step in tries] == [False] + [True] * 10
    begun = clock()
    error = caught(Unreachable, clock, *[GONE] * TOO_LONG)
    assert clock() - begun == pytest.approx(30)
    assert not error.may_have_arrived
    assert str(error) == "the daemon did not answer: nobody takes the connection"


def test_what_may_have_arrived_is_not_sent_again_unless_that_changes_nothing(clock):
    error = caught(Unreachable, clock, BROKEN, ask=UNDO)
    assert (error.may_have_arrived, "may have been carried out" in str(error)) == (True, True)
    assert run(clock, GONE, said(503, "busy"), OK, ask=UNDO)[1] is OK
    error = caught(Unreachable, clock, BROKEN, lambda _: clock.advance(60) or BROKEN)
    assert not error.may_have_arrived  # A read that was lost has done nothing.


def test_not_now_is_asked_again_after_what_it_says_up_to_a_bound(clock):
    for status in (429, 503):
        tries, _ = run(clock, said(status, after="7"), said(status), OK)
        assert [step.pause for step in tries] == [0.0, 7.0, FIRST_PAUSE * 2]
        assert not any(step.afresh for step in tries)
    no_numbers = ("soon", "-1", "1.5", "", "Wed, 21 Oct 2026 07:28:00 GMT", "٣")
    for told, obeyed in (
        *((each, FIRST_PAUSE) for each in no_numbers),
        *(("59", 59.0), ("61", 60.0), ("9" * 400, 60.0)),
    ):
        assert run(clock, said(429, after=told), OK, seconds=1000)[0][1].pause == obeyed, told


def test_not_now_beyond_the_deadline_or_for_ever_is_raised(clock):
    begun = clock()
    for after in ("31", "30"):
        error = caught(QueueFull, clock, said(429, "remember_queue_full", after=after))
        assert (error.status, error.retry_after) == (429, float(after))
    assert clock() == begun
    assert caught(NotNow, clock, *[said(503, "workspace_draining")] * TOO_LONG).code == "workspace_draining"


def test_no_other_refusal_is_asked_again(clock):
    for status in (400, 401, 404, 409, 413, 500, 502, 504):
        error = caught(Problem, clock, said(status))
        assert (error.status, error.code, type(error)) == (status, "some_code", Problem)


def test_a_problem_is_one_printable_line_with_its_code_and_its_fields(clock):
    fields = {"paths": ["user/a.md"], "title": "T", "type": "t"}
    error = caught(UndoOverlap, clock, said(409, "undo_overlap", "Later changes.", **fields))
    assert (str(error), error.paths) == ("Later changes. (undo_overlap)", ("user/a.md",))
    assert (dict(error.fields), isinstance(error, Conflict)) == ({"paths": ["user/a.md"]}, True)
    assert caught(Conflict, clock, said(409, "store_conflict", paths="user/a.md")).paths == ()
    for sent, read in ((7, None), ("r1", "r1")):
        error = caught(ReviewNeeded, clock, said(409, "pending_review", reviewId=sent))
        assert error.review_id == read
    error = str(caught(InvalidContent, clock, said(400, "invalid_content", "\x1b[2J\n" + "x" * 10_000)))
    assert (error.isprintable(), len(error) < 400) == (True, True)


def test_what_is_none_of_the_contract_says_so(clock):
    for status, body in (
        *((302, b""), (204, b""), (404, b"<html>"), (404, b"[]"), (404, b'{"error": "Not Found"}')),
        *((404, b'{"code": 7, "error": "Not Found"}'), (500, b"[" * 100_000)),
    ):
        assert str(status) in str(
            caught(BadAnswer, clock, HttpReply(status, {"location": "http://e/"}, body))
        )
