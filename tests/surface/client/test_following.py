"""Events come once each over any number of connections; without any I/O."""

from __future__ import annotations

import pytest

from kit.client.driving import GONE, said
from kit.client.scripted import event
from muniment.client.core import (
    FIRST_PAUSE,
    LAST_PAUSE,
    MARK,
    QUIET_SECONDS,
    ClientCore,
    Following,
    HttpReply,
)
from muniment.client.errors import BadAnswer, NotNow, TokenRequired, Unreachable
from muniment.testing.minds import FakeClock

SSE = {"content-type": "text/event-stream"}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def following(clock):
    return Following(ClientCore(new_key=str, clock=clock, timeout=10), None)


def test_each_connection_goes_on_after_the_newest_whole_event_or_mark(clock, following):
    step = following.again()
    assert (step.pause, step.afresh, step.seconds) == (0.0, False, QUIET_SECONDS)
    assert (step.ask.path, "last-event-id" in step.ask.headers) == ("/workspace/memory/events", False)
    after = Following(ClientCore(new_key=str, clock=clock), "0badcafe-7").again()
    assert after.ask.headers["last-event-id"] == "0badcafe-7"
    assert following.answered(HttpReply(200, {"content-type": "text/event-stream; charset=utf-8"}, b""))
    chunk = event(1) + event(2) + event(3)[:-1]
    assert [each.id for each in following.feed(chunk)] == ["0badcafe-1", "0badcafe-2"]
    following.lost(GONE)
    step = following.again()
    assert step.ask.headers["last-event-id"] == "0badcafe-2"
    assert (step.pause, step.afresh) == (FIRST_PAUSE, True)
    # What was left of the third one is not put before what comes now.
    assert [each.id for each in following.feed(event(3))] == ["0badcafe-3"]
    (mark,) = following.feed(b"retry: 1000\n: \nid: 0badcafe-9\n\n")
    assert (mark.id, mark.type) == ("0badcafe-9", MARK)
    following.lost(GONE)
    assert following.again().ask.headers["last-event-id"] == "0badcafe-9"


def test_pauses_double_until_something_comes(following):
    pauses = []
    for _ in range(8):
        following.lost(GONE)
        pauses.append(following.again().pause)
    assert pauses[:3] == [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]
    assert pauses[-1] == LAST_PAUSE
    list(following.feed(b": heartbeat\n\n"))
    following.lost(GONE)
    assert following.again().pause == FIRST_PAUSE


def test_a_daemon_that_is_away_for_the_time_of_a_call_ends_it(clock, following):
    for _ in range(3):
        following.lost(GONE)
        clock.advance(3)
        list(following.feed(b": \n\n"))
    following.lost(GONE)
    clock.advance(9.9)
    following.lost(GONE)
    clock.advance(0.1)
    with pytest.raises(Unreachable):
        following.lost(GONE)


def test_a_busy_daemon_is_asked_again_for_as_long(clock, following):
    busy = said(503, {"code": "busy", "error": "Busy."}, **{"retry-after": "5"})
    assert not following.answered(busy)
    step = following.again()
    assert (step.pause, step.afresh) == (5.0, False)
    clock.advance(10)
    with pytest.raises(NotNow):
        following.answered(busy)


def test_a_refusal_or_what_is_no_stream_or_no_event_ends_it(following):
    with pytest.raises(TokenRequired):
        following.answered(said(401, {"code": "token_required", "error": "Send the token."}))
    for status, headers in ((200, {"content-type": "text/html"}), (200, {}), (202, SSE), (302, {})):
        with pytest.raises(BadAnswer):
            following.answered(HttpReply(status, headers, b""))
    for data in ("no JSON", "[" * 100_000, "[]", '{"type": "task"}'):
        with pytest.raises(BadAnswer):
            list(following.feed(f"data: {data}\n\n".encode()))
