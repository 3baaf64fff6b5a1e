"""Requests to the daemon, retries and the parsing of answers; without any I/O."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.catching import catch_error
from kit.client.scripted import DONE as DOCUMENT
from kit.client.scripted import make_task
from kit.client.shells import INTERRUPTED, UNREACHABLE, make_reply, run_plan
from kit.clock import FakeClock
from muniment import errors as library
from muniment.client import errors, exchange
from muniment.client.core import ClientCore
from muniment.client.exchange import FIRST_PAUSE, LAST_PAUSE, Frame, FrameParser, HttpRequest, HttpResponse
from muniment.client.follower import Follower
from muniment.errors import ConfigInvalid
from muniment.types import Recalled

DONE = make_reply(200, DOCUMENT)
RUNNING = make_reply(200, make_task("running"))
BUSY = make_reply(503, {"code": "busy", "error": "Busy."}, **{"retry-after": "31"})
ABSENT = make_reply(404, {"code": "remember_task_not_found", "error": "Not found."})


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def core(clock):
    return make_core(clock)


def make_core(clock, **options):
    keys = iter(f"key-{number}" for number in range(100))
    return ClientCore(new_key=lambda: next(keys), clock=clock, **options)


def test_requests_contain_only_given_arguments(core, clock):
    options = {"scope": "user", "context": "clean", "trust": "agent", "ref": "mail 7"}
    everything = core.remember("é", **options, task_id="mine")
    sent = {"scope": "user", "contextMode": "clean", "source": {"trust": "agent", "ref": "mail 7"}}
    dry = {"query": "x", "scope": "user", "dryRun": True}
    rows = (
        (everything, "mine", "remember", {"content": "é", **sent}),
        (core.forget("x"), "key-0", "forget", {"query": "x"}),
        (core.forget("x", scope="user", dry_run=True), "key-1", "forget", dry),
        (core.dream(), "key-2", "dream", {}),
    )
    for number, (plan, key, path, body) in enumerate(rows):
        replayed = {"idempotency-replayed": "true"} if number % 2 else {}
        (step,), accepted = run_plan(plan, clock, make_reply(202, make_task(kind=path), **replayed))
        assert (step.request.method, step.request.path) == ("POST", f"/workspace/memory/{path}")
        headers = step.request.headers["content-type"], step.request.headers["idempotency-key"]
        assert (json.loads(step.request.body), *headers) == (body, "application/json", key)
        assert (accepted.task.task_id, accepted.is_replayed) == (f"{path}-1", bool(number % 2))


def test_requests_carry_client_id_and_workspace_path(clock):
    core = make_core(clock, client_id="web-1")
    requests = [next(plan).request for plan in (core.get("dream-1"), core.capabilities(), core.audit_head())]
    assert {ask.headers["x-muniment-client-id"] for ask in (*requests, core.build_follow_request(""))} == {
        "web-1"
    }
    for workspace, encoded in ("app-12ab", "app-12ab"), ("/w/项目 1", "%2Fw%2F%E9%A1%B9%E7%9B%AE%201"):
        assert (
            make_core(clock, workspace=workspace).build_follow_request("").path
            == f"/workspaces/{encoded}/memory/events"
        )


def test_invalid_options_and_ids_are_rejected(core, clock):
    invalid = {"client_id": ("two words", "a\r\nhost: b"), "workspace": ("", "..", "half \ud800")}
    for name, values in (invalid | {"timeout": (0, nan)}).items():
        for value in values:
            catch_error(ConfigInvalid, make_core, clock, **{name: value})
    for unsafe in ("", "..", "undo-1", "remembered-1"):
        catch_error(ConfigInvalid, core.get, unsafe)
    catch_error(ConfigInvalid, core.remember, "A fact.", task_id="a\nb")
    catch_error(ConfigInvalid, core.build_follow_request, "a b")
    for plan, path in (
        (core.get("remember-1/../../x?y#z"), "remember/remember-1%2F..%2F..%2Fx%3Fy%23z"),
        (core.get_workspace_memory_forget_task("remember-1"), "forget/remember-1"),  # The kind differs.
        (core.review("r 1"), "review/r%201"),
        (core.explain("read", "user/a&b.md"), "policy/explain?verb=read&path=user%2Fa%26b.md"),
    ):
        assert next(plan).request.path == f"/workspace/memory/{path}"


def test_cancel_and_recall_are_retried(core, clock):
    tries, found = run_plan(
        core.cancel("remember-1"), clock, INTERRUPTED, make_reply(200, make_task("cancelled"))
    )
    requests = [(step.request.method, step.request.path) for step in tries]
    assert requests == [("DELETE", "/workspace/memory/remember/remember-1")] * 2
    assert found.status == "cancelled"
    failed = {"entries": [], "text": "", "tokens": 0, "abstained": False, "error": "deadline"}
    replies = INTERRUPTED, UNREACHABLE, make_problem(503, after="1"), make_reply(200, failed)
    tries, found = run_plan(core.recall("x"), clock, *replies)
    assert (len({step.request.body for step in tries}), tries[-1].pause) == (1, 1)
    assert json.loads(tries[0].request.body) == {"query": "x"}
    assert "idempotency-key" not in tries[0].request.headers
    assert replace(found, error=None) == Recalled()  # A failed recall returns its error.
    assert (type(found.error), found.error.code) == (library.MunimentError, "deadline")


# -- waiting -------------------------------------------------------------------------------------------


def test_wait_is_long_polled_until_task_ends(core, clock):
    long_polls = [lambda _: clock.advance(20) or RUNNING] * 5
    tries, result = run_plan(core.wait("remember-1", None), clock, *long_polls, DONE)
    assert [step.request.headers["prefer"] for step in tries] == ["wait=20"] * 6
    assert [step.pause for step in tries] == [0.0, *[FIRST_PAUSE] * 5]
    assert {step.seconds for step in tries} == {30}
    assert result.files_touched == ("user/editor.md",)
    # This daemon does not support long polls.
    tries, _ = run_plan(core.wait("remember-1", None), clock, *[RUNNING] * 8, DONE)
    assert [round(step.pause, 2) for step in tries] == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1]
    cancelled = make_reply(200, make_task("cancelled"))
    for reply, kind in ((ABSENT, errors.Problem), (cancelled, library.Cancelled)):
        for timeout in (None, 10):
            catch_error(kind, run_plan, core.wait("remember-1", timeout), clock, reply)


def test_wait_stops_at_its_timeout(core, clock):
    start, tries = clock(), []

    def hold_and_reply(step):
        tries.append(step)
        clock.advance(float(step.request.headers.get("prefer", "wait=0").removeprefix("wait=")))
        return RUNNING

    error = catch_error(
        errors.WaitTimeout, run_plan, core.wait("remember-1", 30.5), clock, *[hold_and_reply] * 50
    )
    assert clock() - start == pytest.approx(30.5)
    assert [step.request.headers.get("prefer") for step in tries[:3]] == ["wait=20", "wait=10", None]
    assert (error.task_id, error.status) == ("remember-1", "running")
    (step,), result = run_plan(core.wait("remember-1", 0), clock, DONE)
    assert (bool(result.summary), "prefer" in step.request.headers) == (True, False)
    catch_error(errors.WaitTimeout, run_plan, core.wait("remember-1", 0), clock, make_reply(200, make_task()))


def test_wait_survives_absent_daemon_until_its_timeout(core, clock):
    tries, _ = run_plan(core.wait("remember-1", 300), clock, RUNNING, INTERRUPTED, *[UNREACHABLE] * 40, DONE)
    assert all(step.should_rediscover for step in tries[2:])
    assert sum(step.pause for step in tries) > 60
    start = clock()  # Without a limit it ends after the timeout of a call.
    brief = make_core(clock, timeout=5).wait("remember-1", None)
    catch_error(errors.Unreachable, run_plan, brief, clock, RUNNING, *[UNREACHABLE] * 1000)
    assert clock() - start < 5 + 20 + 1
    full = make_reply(429, {"code": "remember_queue_full", "error": "Full."})
    for outcome, cause in ((UNREACHABLE, errors.Unreachable), (full, library.QueueFull)):
        error = catch_error(
            errors.WaitTimeout, run_plan, core.wait("remember-1", 10), clock, *[outcome] * 1000
        )
        assert (error.status, isinstance(error.__cause__, cause)) == (None, True)


def test_wait_with_late_retry_checks_once_at_its_end(core, clock):
    tries, result = run_plan(core.wait("remember-1", 30), clock, BUSY, DONE)
    assert [(step.pause, step.request.headers.get("prefer")) for step in tries] == [
        (0, "wait=20"),
        (30, None),
    ]
    assert result.summary
    start = clock()
    catch_error(errors.WaitTimeout, run_plan, core.wait("remember-1", 30), clock, RUNNING, BUSY, BUSY)
    assert clock() - start == pytest.approx(30)


# -- recalls, lists and owner operations ---------------------------------------------------------------


def test_list_reads_all_pages_and_skips_unknown_tasks(core, clock):
    first = make_reply(
        200,
        {"tasks": [make_task(number=2), make_task(kind="tidy"), make_task("sleeping")], "nextCursor": "2"},
    )
    last = make_reply(200, {"tasks": [make_task(kind="dream")], "nextCursor": None})
    tries, found = run_plan(core.tasks("queued"), clock, first, last)
    path = "/workspace/memory/tasks?status=queued"
    assert [step.request.path for step in tries] == [path, f"{path}&cursor=2"]
    assert [each.task_id for each in found] == ["remember-2", "dream-1"]
    for bad in ({}, {"tasks": {}}, {"tasks": [1]}, {"tasks": [], "nextCursor": 7}):
        catch_error(errors.BadAnswer, run_plan, core.tasks(None), clock, make_reply(200, bad))
    catch_error(errors.BadAnswer, run_plan, core.tasks(None), clock, *[first] * 100, match="100 pages")


def test_owner_operations_have_long_timeout_and_no_retry(core, clock):
    done = {"taskId": "undo-1", "undone": "remember-1", "filesTouched": [], "touchedScopes": [], "notes": []}
    (step,), undone = run_plan(core.undo("remember-1"), clock, make_reply(200, done))
    assert (step.request.path, json.loads(step.request.body)) == (
        "/workspace/memory/undo",
        {"taskId": "remember-1"},
    )
    assert (step.seconds, undone.task_id) == (70, "undo-1")
    catch_error(errors.Unreachable, run_plan, core.reject("r/1"), clock, INTERRUPTED)


# -- retries -------------------------------------------------------------------------------------------

OK = HttpResponse(200, {}, b"{}")
UNDO = HttpRequest("POST", "/undo", is_repeatable=False)
TOO_LONG = 10_000


def make_problem(status, code="some_code", error="A sentence.", after=None, **fields):
    headers = {} if after is None else {"retry-after": after}
    return make_reply(status, {"code": code, "error": error, **fields}, **headers)


def run_exchange(clock, *outcomes, request=None, seconds=30.0):
    return run_plan(
        exchange.exchange(request or HttpRequest("GET", "/"), clock, clock() + seconds, 0.0), clock, *outcomes
    )


def test_answer_is_returned_and_attempt_has_remaining_time(clock):
    tries, reply = run_exchange(clock, OK)
    assert reply is OK
    assert [(step.pause, step.should_rediscover, step.seconds) for step in tries] == [(0.0, False, 10.0)]
    assert run_exchange(clock, OK, request=HttpRequest("GET", "/", long_poll=20))[0][0].seconds == 30.0
    assert run_exchange(clock, OK, seconds=inf)[0][0].seconds == 10.0
    tries, _ = run_exchange(clock, lambda _: clock.advance(9.9) or INTERRUPTED, INTERRUPTED, OK, seconds=10)
    assert [step.seconds for step in tries] == [10.0, exchange.GRACE_SECONDS, exchange.GRACE_SECONDS]


def test_lost_request_is_retried_with_bounded_backoff(clock):
    tries, _ = run_exchange(clock, *[UNREACHABLE, INTERRUPTED] * 5, OK)
    pauses = [step.pause for step in tries]
    assert pauses[:4] == [0.0, FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]
    assert max(pauses) == LAST_PAUSE == pauses[-1]
    assert len({id(step.request) for step in tries}) == 1
    assert [step.should_rediscover for step in tries] == [False] + [True] * 10
    start = clock()
    error = catch_error(errors.Unreachable, run_exchange, clock, *[UNREACHABLE] * TOO_LONG)
    assert clock() - start == pytest.approx(30)
    assert not error.may_have_arrived
    assert str(error) == "the daemon did not respond: the connection was refused or timed out"


def test_possibly_arrived_request_is_retried_only_if_repeatable(clock):
    error = catch_error(errors.Unreachable, run_exchange, clock, INTERRUPTED, request=UNDO)
    assert (error.may_have_arrived, "may have been processed" in str(error)) == (True, True)
    assert run_exchange(clock, UNREACHABLE, make_problem(503, "busy"), OK, request=UNDO)[1] is OK
    error = catch_error(
        errors.Unreachable, run_exchange, clock, INTERRUPTED, lambda _: clock.advance(60) or INTERRUPTED
    )
    assert not error.may_have_arrived  # A lost read had no effect.


def test_retry_after_is_respected_up_to_a_limit(clock):
    for status in (429, 503):
        tries, _ = run_exchange(clock, make_problem(status, after="7"), make_problem(status), OK)
        assert [step.pause for step in tries] == [0.0, 7.0, FIRST_PAUSE * 2]
        assert not any(step.should_rediscover for step in tries)
    invalid = ("soon", "-1", "1.5", "", "Wed, 21 Oct 2026 07:28:00 GMT", "٣")
    bounded = ("59", 59.0), ("61", 60.0), ("9" * 400, 60.0)
    for value, pause in (*((each, FIRST_PAUSE) for each in invalid), *bounded):
        assert run_exchange(clock, make_problem(429, after=value), OK, seconds=1000)[0][1].pause == pause, (
            value
        )


def test_busy_is_raised_at_deadline_and_other_problems_at_once(clock):
    start = clock()
    for after in ("31", "30"):
        error = catch_error(
            library.QueueFull, run_exchange, clock, make_problem(429, "remember_queue_full", after=after)
        )
        assert (error.status, error.retry_after) == (429, float(after))
    for status in (400, 401, 404, 409, 413, 500, 502, 504):
        error = catch_error(errors.Problem, run_exchange, clock, make_problem(status))
        assert (error.status, error.code, type(error)) == (status, "some_code", errors.Problem)
    assert clock() == start
    endless = [make_problem(503, "workspace_draining")] * TOO_LONG
    assert catch_error(errors.Problem, run_exchange, clock, *endless).code == "workspace_draining"


def test_problem_is_one_printable_line_with_fields(clock):
    fields = {"paths": ["user/a.md"], "title": "T", "type": "t"}
    error = catch_error(
        library.UndoOverlap,
        run_exchange,
        clock,
        make_problem(409, "undo_overlap", "Later changes.", **fields),
    )
    assert (str(error), error.paths) == ("Later changes.", ("user/a.md",))
    assert (dict(error.fields), isinstance(error, errors.Problem)) == ({"paths": ["user/a.md"]}, True)
    assert (
        catch_error(
            library.StoreConflict, run_exchange, clock, make_problem(409, "store_conflict", paths="user/a")
        ).paths
        == ()
    )
    for sent, expected in ((7, None), ("r1", "r1")):
        error = catch_error(
            library.PendingReview, run_exchange, clock, make_problem(409, "pending_review", reviewId=sent)
        )
        assert error.review_id == expected
    hostile = make_problem(400, "invalid_content", "\x1b[2J\n" + "x" * 10_000)
    error = str(catch_error(library.InvalidContent, run_exchange, clock, hostile))
    assert (error.isprintable(), len(error) < 400) == (True, True)


def test_unexpected_answer_raises_bad_answer(clock):
    problem = b'{"code": 7, "error": "Not Found"}', b'{"error": "Not Found"}', b"<html>", b"[]"
    for status, body in ((302, b""), (204, b""), *((404, each) for each in problem), (500, b"[" * 100_000)):
        reply = HttpResponse(status, {"location": "http://e/"}, body)
        assert str(status) in str(catch_error(errors.BadAnswer, run_exchange, clock, reply))


# -- events --------------------------------------------------------------------------------------------


@pytest.fixture
def follower(clock):
    return Follower(ClientCore(new_key=str, clock=clock, timeout=10), None)


def test_event_stream_gives_up_after_call_timeout(clock, follower):
    busy = make_problem(503, "busy", after="5")
    assert not follower.accept_response(busy)
    step = follower.build_attempt()
    assert (step.pause, step.should_rediscover) == (5.0, False)
    list(follower.feed(b": \n\n"))
    pauses = []
    for _ in range(8):
        follower.record_loss(UNREACHABLE)
        pauses.append(follower.build_attempt().pause)
    assert pauses[:3] == [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]
    assert pauses[-1] == LAST_PAUSE
    for _ in range(4):
        list(follower.feed(b": \n\n"))
        follower.record_loss(UNREACHABLE)
        assert follower.build_attempt().pause == FIRST_PAUSE
        clock.advance(3)
    clock.advance(6.9)
    follower.record_loss(UNREACHABLE)
    clock.advance(0.1)
    catch_error(errors.Unreachable, follower.record_loss, UNREACHABLE)
    list(follower.feed(b": \n\n"))
    assert not follower.accept_response(busy)
    clock.advance(10)
    catch_error(errors.Problem, follower.accept_response, busy)


def test_invalid_stream_or_event_raises_bad_answer(follower):
    assert follower.accept_response(
        HttpResponse(200, {"content-type": "text/event-stream; charset=utf-8"}, b"")
    )
    for status, kind in ((200, "text/html"), (200, ""), (202, "text/event-stream"), (302, "text/plain")):
        catch_error(
            errors.BadAnswer, follower.accept_response, HttpResponse(status, {"content-type": kind}, b"")
        )
    for data in ("no JSON", "[" * 100_000, "[]", '{"type": "task"}'):
        catch_error(errors.BadAnswer, list, follower.feed(f"data: {data}\n\n".encode()))


STREAM = (
    "\ufeffid: 0badcafe-1\nretry: 1000\n: \n\n"
    "id: 0badcafe-2\r\nevent: task\r\ndata: {\r\ndata: é 記憶 🗝\r\ndata:}\r\n\r\n"
    ": heartbeat\r\r"
    "data\rdata: \r\r"
    "event: lost\nid: bad\0id\n\n"
    "nonsense: 1\nid\ndata:  two spaces\n\n"
    "data: never ended"
).encode()
FRAMES = [Frame("0badcafe-1", "", None), Frame("0badcafe-2", "task", "{\né 記憶 🗝\n}")]
FRAMES += [Frame("0badcafe-2", "message", "\n"), Frame("", "message", " two spaces")]


def read_frames(chunks, last_id=""):
    frames = FrameParser(last_id)
    return [frame for chunk in chunks for frame in frames.feed(chunk)], frames.last_id


def read_in_pieces(data, cuts):
    at = [0, *sorted(min(each, len(data)) for each in cuts), len(data)]
    return read_frames(data[a:b] for a, b in pairwise(at))


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.binary(max_size=200))
def test_frames_do_not_depend_on_chunk_borders(cuts, data):
    assert (
        read_in_pieces(STREAM, cuts)
        == read_in_pieces(STREAM, [])
        == read_in_pieces(STREAM, range(len(STREAM)))
        == (FRAMES, "")
    )
    assert read_in_pieces(data, cuts) == read_in_pieces(data, [])


def test_last_id_is_that_of_last_complete_frame():
    frames, last = read_frames([b"id: a-1\ndata: 1\n\nid: a-2\ndata: 2\n"])
    assert ([frame.id for frame in frames], last) == (["a-1"], "a-1")
    assert read_frames([b": \nid: a-7\n\n"], "a-1") == ([Frame("a-7", "", None)], "a-7")
    assert read_frames([b": \nid: a-7\n\n"], "a-7") == ([], "a-7")
    assert read_frames([b"data: \xff\n\n"])[0] == [Frame("", "message", "\ufffd")]


def test_endless_event_is_rejected_and_endless_stream_is_not(monkeypatch):
    monkeypatch.setattr(exchange, "MAX_FRAME_BYTES", 1000)
    for endless in (b"x" * 64, b"data: x\n" * 8, b": x"):
        catch_error(errors.BadAnswer, read_frames, [endless] * 400, match="1000")
    frames = FrameParser()
    list(frames.feed(b"data: 1"))
    catch_error(errors.BadAnswer, list, frames.feed(b"x" * 3_000_000))
    assert len(frames._line) == len(b"data: 1")
    assert len(read_frames(b": heartbeat\n\ndata: 1\n\n" for _ in range(400))[0]) == 400
