"""The conversation with a host: order, cancellation, time, bounds, and what is no message.

Tasks here are held by the test; `tests/surface/cli/test_acp.py` has real ones, in a real process.
"""

from __future__ import annotations

import json
import queue
import select
import threading
import time
from types import SimpleNamespace

import pytest

from muniment.confine.cancel import Patience
from muniment.daemon import acp
from muniment.daemon.acp import AVAILABILITY, BASE, MAX_LINE_BYTES, HostSession, Lines
from muniment.lane import MAX_PENDING, Ended

REMEMBER = f"{BASE}/remember"
SECONDS = 300.0
PATIENCE = 30


def done(**result):
    return Ended("completed", result)


def breaks(_):
    raise RuntimeError("a secret text")


class Host:
    """The other side, and tasks that a test looks at (`begun`) and ends (`end`)."""

    def __init__(self):
        self.begun, self._ends, self._answers, self.now = *(queue.Queue() for _ in range(3)), 1000.0
        self.workspace = SimpleNamespace(scopes=lambda: {"key": "user"}, is_open=True, problem=lambda: None)
        terms = {"clock": lambda: self.now, "seconds": SECONDS}
        self.session, self.end = (
            HostSession(self.workspace, self._work, self._answers.put, **terms),
            self._ends.put,
        )

    def _work(self, task, cancel, tell):
        tell({})
        self.begun.put((task, cancel))
        end = self._ends.get(timeout=PATIENCE)
        return end(cancel) if callable(end) else end

    def next(self):
        return self.begun.get(timeout=PATIENCE)

    def line(self, **document):
        self.session.receive(json.dumps({"jsonrpc": "2.0", **document}).encode())

    def remember(self, request_id, content="We deploy on Thursdays", **params):
        self.line(id=request_id, method=REMEMBER, params={"content": content, **params})

    def cancel(self, request_id):
        self.line(method="$/cancel_request", params={"requestId": request_id})

    def answer(self):
        line = self._answers.get(timeout=PATIENCE)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert line.isascii()
        return json.loads(line)

    def error(self):
        answer = self.answer()
        error = answer["error"]
        assert error["data"]["errorKind"] == error["data"]["code"]
        return answer["id"], error["code"], error["data"]["code"]


@pytest.fixture
def host():
    host = Host()
    yield host
    for _ in range(MAX_PENDING):
        host.end(done())
    host.session.close()


# -- what a host asks ------------------------------------------------------------------------------------


def test_an_unknown_method_and_bad_parameters_are_refused_with_the_codes_of_the_contract(host):
    for method in ("session/new", "_initialize", f"__{REMEMBER}", "", "$/cancel_request"):
        host.line(id=1, method=method)
        assert host.error() == (1, -32601, "method_not_found")
    for method, params, code in (
        *(("remember", {"content": text}, "invalid_content") for text in ("\0", "x" * 65_537)),
        ("remember", {}, "invalid_content"),
        ("remember", {"content": "x", "contextMode": "all"}, "invalid_context_mode"),
        ("remember", {"content": "x", "scope": ""}, "invalid_scope"),
        ("remember", {"content": "x", "scope": "nowhere"}, "invalid_scope"),
        ("remember", {"content": "x", "dry_runn": True}, "invalid_request"),
        ("remember", [], "invalid_request"),
        ("forget", {"query": " "}, "invalid_query"),
        ("forget", {"query": "x", "dryrun": True}, "invalid_request"),
        ("dream", {"scope": "user"}, "invalid_request"),
    ):
        host.line(id="x", method=f"{BASE}/{method}", params=params)
        assert host.error() == ("x", -32602, code), params
    assert host.begun.empty()


# -- how a task ends -------------------------------------------------------------------------------------


def test_a_failure_is_told_by_its_code_and_review_and_a_defect_without_its_text(host):
    host.remember(1)
    host.end(Ended("failed", error={"code": "pending_review", "reviewId": "review-1"}))
    data = host.answer()["error"]["data"]
    assert data == {"errorKind": "pending_review", "code": "pending_review", "reviewId": "review-1"}
    host.remember(2)
    host.end(breaks)
    answer = host.answer()
    assert answer["error"]["data"]["code"] == "remember_failed"
    assert "secret" not in json.dumps(answer)
    host.remember(3)
    host.end(Ended("cancelled"))  # Though nobody asked.
    assert host.error() == (3, -32603, "remember_failed")
    host.workspace.problem = lambda: breaks(None)
    host.line(id=4, method=AVAILABILITY)
    assert host.error() == (4, -32603, "remember_failed")
    host.remember(5)
    host.end(done())
    assert host.answer()["id"] == 5


# -- order, cancellation, time ---------------------------------------------------------------------------


def test_tasks_run_one_at_a_time_in_the_order_of_their_requests(host):
    for number in range(4):
        host.remember(number, f"fact {number}")
    for number in range(4):
        task, _ = host.next()
        assert task.arguments["content"] == f"fact {number}"
        assert host.begun.empty()
        host.end(done())
        assert host.answer()["id"] == number


def cancelled(cancel):
    return Ended("cancelled") if cancel.is_set() else done()


def test_what_has_committed_although_it_was_cancelled_has_completed(host):
    host.remember(1)
    host.next()
    host.cancel(1)
    host.end(done(summary="saved"))
    assert host.answer()["result"] == {"summary": "saved"}


def test_a_request_is_given_up_once_its_host_has_given_it_up_and_never_begun_if_it_still_waits(host):
    host.remember(1)
    _, cancel = host.next()
    assert host.session.deadline == host.now + SECONDS
    host.now += 100
    host.line(id=2, method=f"{BASE}/dream")
    assert host.session.deadline == host.now + SECONDS - 100
    host.now += 200
    host.session.expire()
    assert cancel.is_set()
    assert host.session.deadline == host.now + 100  # Of the second; the first is not given up twice.
    host.cancel(1)
    host.now += 100
    host.session.expire()
    assert host.error() == (2, -32000, "dream_timeout")
    host.end(cancelled)
    assert host.error() == (1, -32000, "remember_timeout")  # The first reason counts.
    assert host.begun.empty()
    assert host.session.deadline == float("inf")


def test_the_end_cancels_everything_and_answers_it():
    host = Host()
    for number in range(3):
        host.remember(number)
    _, cancel = host.next()
    closing = threading.Thread(target=host.session.close)
    closing.start()
    assert [host.error() for _ in range(2)] == [(2, -32800, "cancelled"), (1, -32800, "cancelled")]
    assert Patience(time.monotonic() + PATIENCE).wait(cancel.fileno(), select.POLLIN)
    host.end(cancelled)
    assert host.error() == (0, -32800, "cancelled")
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert host.begun.empty()


@pytest.fixture
def hung(host):
    """Looks of the host hang: set once the first has begun, and to be set for them to end."""
    began, free = threading.Event(), threading.Event()

    def problem():
        began.set()
        assert free.wait(PATIENCE)

    host.workspace.problem = problem
    yield began, free
    free.set()


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_look_that_hangs_is_cancelled_and_given_up_at_once_even_if_it_breaks_later(host, hung, is_broken):
    began, free = hung
    hang = host.workspace.problem
    host.workspace.problem = lambda: (hang(), breaks(None) if is_broken else None)[1]
    host.line(id=1, method=AVAILABILITY)
    assert began.wait(PATIENCE)
    host.line(id=2, method=AVAILABILITY)
    host.cancel(1)
    assert host.error() == (1, -32800, "cancelled")
    host.now += SECONDS
    host.session.expire()
    assert host.error() == (2, -32000, "remember_timeout")
    host.workspace.problem = lambda: None
    host.line(id=3, method=AVAILABILITY)
    free.set()
    assert host.answer() == {"jsonrpc": "2.0", "id": 3, "result": {"available": True}}


def test_the_end_answers_a_look_that_hangs_does_not_wait_for_it_and_says_whether_all_is_at_rest(
    host, hung, monkeypatch
):
    assert Host().session.close()
    monkeypatch.setattr(acp, "REST_SECONDS", 0.0)
    host.line(id=1, method=AVAILABILITY)
    assert hung[0].wait(PATIENCE)
    assert not host.session.close()
    assert host.error() == (1, -32800, "cancelled")


# -- bounds ----------------------------------------------------------------------------------------------


def test_one_task_more_than_may_be_pending_is_refused_and_the_others_go_on(host):
    for number in range(MAX_PENDING):
        host.remember(number)
    host.remember("late")
    assert host.error() == ("late", -32000, "remember_queue_full")
    host.line(id="look", method=AVAILABILITY)
    assert host.answer()["result"] == {"available": True}
    host.end(done())
    assert host.answer()["id"] == 0
    host.remember("again")
    assert host._answers.empty()


def test_an_id_that_is_pending_is_refused_without_its_name_and_may_be_used_again_later(host):
    host.remember("x")
    host.remember("x")
    assert host.error() == (None, -32600, "invalid_request")
    host.end(done())
    assert host.answer() == {"jsonrpc": "2.0", "id": "x", "result": {}}
    host.remember("x")
    host.end(done())
    assert host.answer()["id"] == "x"


def test_what_is_no_message_is_answered_without_an_id(host):
    a = b'{"jsonrpc":"2.0",'
    for line in (
        *(b"{", b"\xff", b"[" * 100_000, a + b'"id":1,"id":2,"method":"initialize"}'),
        *(a + b'"id":%b,"method":"initialize"}' % each for each in (b'"\\ud800"', b"NaN", b"9" * 5000)),
    ):
        host.session.receive(line)
        assert host.error() == (None, -32700, "invalid_json"), line[:60]
    for line in (
        *(b"null", b"[]", b"[" + a + b'"id":1,"method":"initialize"}]', b'{"id":1,"method":"initialize"}'),
        *(b'{"jsonrpc":2.0,"id":1,"method":"initialize"}', a + b'"id":1}', a + b'"id":1,"method":1}'),
        *(a + b'"id":%b,"method":"initialize"}' % each for each in (b"null", b"true", b"1.5")),
    ):
        host.session.receive(line)
        assert host.error() == (None, -32600, "invalid_request"), line[:60]
    host.session.receive(None)
    assert host.error() == (None, -32700, "body_too_large")


def test_what_wants_no_answer_gets_none_and_does_nothing_and_a_request_stays_one_whatever_it_holds(host):
    for document in (
        {"method": REMEMBER, "params": {"content": "nobody would learn of it"}},
        {"method": "session/cancel", "params": []},
        {"id": 1, "result": {}},
        {"id": 1, "error": {"code": 1, "message": "no"}},
    ):
        host.line(**document)
    host.session.receive(b"  ")
    host.line(id=1, method="initialize", result={}, error=None, more=[1])
    answer = host.answer()
    assert (answer["id"], answer["result"]["protocolVersion"]) == (1, 1)
    assert host.begun.empty()


def test_lines_are_cut_wherever_the_bytes_come_in_pieces_and_one_that_never_ends_is_not_kept():
    lines = Lines()
    cut = [line for piece in (b"on", b"e\ntwo\n\nth", b"ree", b"\nrest") for line in lines.feed(piece)]
    assert cut == [b"one", b"two", b"", b"three"]
    lines, longest = Lines(), b"x" * MAX_LINE_BYTES
    assert lines.feed(longest + b"\n") == [longest]
    for _ in range(3):
        assert lines.feed(longest) == []
    assert len(lines._line) <= MAX_LINE_BYTES
    assert lines.feed(b"\nnext\n") == [None, b"next"]
