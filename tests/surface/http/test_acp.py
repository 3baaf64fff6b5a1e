"""The conversation with a host: order, cancellation, time, limits, and invalid messages.

The tests control the tasks; `tests/surface/cli/test_acp.py` has real ones, in a real process.
"""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace

import pytest

from kit.jsonrpc import INVALID_IDS
from muniment.errors import ManagedMemoryUnavailable
from muniment.server import acp
from muniment.server.acp import AVAILABILITY, BASE, CONTEXT, MAX_LINE_BYTES, HostSession, LineSplitter
from muniment.server.lane import MAX_PENDING
from muniment.server.lane_tasks import TaskOutcome

REMEMBER = f"{BASE}/remember"
SECONDS = 300.0
WAIT_SECONDS = 30


def make_completed(**result):
    return TaskOutcome("completed", result)


def raise_error(_):
    raise RuntimeError("a secret text")


class Host:
    """A host, and the tasks that a test reads (`begun`) and ends (`end`)."""

    def __init__(self):
        self.begun, self._ends, self._answers, self.now = *(queue.Queue() for _ in range(3)), 1000.0
        self.workspace = SimpleNamespace(scopes=lambda: {"key": "user"}, is_open=True, problem=lambda: None)
        options, self.end = {"clock": lambda: self.now, "seconds": SECONDS}, self._ends.put
        self.session = HostSession(self.workspace, self._work, self._answers.put, **options)

    def _work(self, task, cancel, notify):
        notify({})
        self.begun.put((task, cancel))
        end = self._ends.get(timeout=WAIT_SECONDS)
        return end(cancel) if callable(end) else end

    def next(self):
        return self.begun.get(timeout=WAIT_SECONDS)

    def line(self, **document):
        self.session.receive(json.dumps({"jsonrpc": "2.0", **document}).encode())

    def remember(self, request_id, content="We deploy on Thursdays", **params):
        self.line(id=request_id, method=REMEMBER, params={"content": content, **params})

    def cancel(self, request_id):
        self.line(method="$/cancel_request", params={"requestId": request_id})

    def answer(self):
        line = self._answers.get(timeout=WAIT_SECONDS)
        assert (line.find(b"\n"), line.isascii()) == (len(line) - 1, True)
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
        host.end(make_completed())
    host.session.close()


# -- requests ------------------------------------------------------------------------------------------


def test_unknown_method_and_invalid_parameters_have_codes(host):
    for method in ("session/new", "_initialize", f"__{REMEMBER}", "", "$/cancel_request"):
        host.line(id=1, method=method)
        assert host.error() == (1, -32601, "method_not_found")
    for method, params, code in (
        ("remember", {"content": "x" * 65_537}, "invalid_content"),
        ("remember", {"content": "x", "contextMode": "all"}, "invalid_context_mode"),
        ("remember", {"content": "x", "scope": "nowhere"}, "invalid_scope"),
        ("remember", [], "invalid_request"),
        ("forget", {"query": " "}, "invalid_query"),
        ("forget", {"query": "x", "dryrun": True}, "invalid_request"),
    ):
        host.line(id="x", method=f"{BASE}/{method}", params=params)
        assert host.error() == ("x", -32602, code), params
    assert host.begun.empty()


# -- ends of tasks -------------------------------------------------------------------------------------


def test_failed_task_answers_code_and_review_without_text(host):
    host.remember(1)
    host.end(TaskOutcome("failed", error={"code": "pending_review", "reviewId": "review-1"}))
    data = host.answer()["error"]["data"]
    assert data == {"errorKind": "pending_review", "code": "pending_review", "reviewId": "review-1"}
    # A cancelled task without a cancel request.
    for number, end in (2, raise_error), (3, TaskOutcome("cancelled")):
        host.remember(number)
        host.end(end)
        answer = host.answer()
        assert (answer["id"], answer["error"]["code"]) == (number, -32603)
        assert answer["error"]["data"]["code"] == "remember_failed"
        assert "secret" not in json.dumps(answer)
    host.workspace.problem = lambda: raise_error(None)
    host.line(id=4, method=AVAILABILITY)
    assert host.error() == (4, -32603, "remember_failed")


def test_context_returns_standing_text_and_tokens(host, open_memory):
    memory = open_memory()
    memory.remember("Always answer in British English", scope="user")
    host.workspace.get_recaller = lambda: memory.recaller
    for number, method in enumerate((CONTEXT, f"_{CONTEXT}")):
        host.line(id=number, method=method)
        result = host.answer()["result"]
        assert result.keys() == {"text", "tokens"}
        assert "\n- Always answer in British English" in result["text"]
        assert 0 < result["tokens"] <= 1_500


def test_context_of_unavailable_memory_is_an_error(host, open_memory):
    memory = open_memory()
    memory.remember("Always answer in British English", scope="user")

    def fail():
        raise ManagedMemoryUnavailable("/home/secret", "was replaced")

    for number, get_recaller in enumerate((fail, lambda: memory.recaller)):
        host.workspace.get_recaller = get_recaller
        memory.close()
        host.line(id=number, method=CONTEXT)
        answer = host.answer()
        code = answer["error"]["data"]["code"]
        assert (answer["id"], code) == (number, "managed_memory_unavailable")
        assert "secret" not in json.dumps(answer)


# -- order, cancellation, time -------------------------------------------------------------------------


def test_tasks_run_in_order_and_committed_one_completes(host):
    for number in range(3):
        host.remember(number, f"fact {number}")
    for number in range(3):
        task, _ = host.next()
        assert (task.arguments["content"], host.begun.empty()) == (f"fact {number}", True)
        host.cancel(number)
        host.end(make_completed(summary="saved"))
        assert host.answer() == {"jsonrpc": "2.0", "id": number, "result": {"summary": "saved"}}


def end_if_cancelled(cancel):
    return TaskOutcome("cancelled") if cancel.is_set() else make_completed()


def test_requests_time_out_after_their_deadline(host):
    host.remember(1)
    _, cancel = host.next()
    assert host.session.deadline == host.now + SECONDS
    host.now += 100
    host.line(id=2, method=f"{BASE}/dream")
    assert host.session.deadline == host.now + SECONDS - 100
    host.now += 200
    host.session.expire()
    assert cancel.is_set()
    # Deadline of the second request; the first one is not cancelled twice.
    assert host.session.deadline == host.now + 100
    host.cancel(1)
    host.now += 100
    host.session.expire()
    assert host.error() == (2, -32000, "dream_timeout")
    host.end(end_if_cancelled)
    assert host.error() == (1, -32000, "remember_timeout")  # The first reason counts.
    assert host.begun.empty()
    assert host.session.deadline == float("inf")


def test_hanging_availability_is_cancelled_or_times_out(host, monkeypatch):
    started, released, results = (
        threading.Semaphore(0),
        threading.Event(),
        iter([raise_error, lambda _: None]),
    )

    def block():
        started.release()
        assert released.wait(WAIT_SECONDS)
        return next(results)(None)

    host.workspace.problem = block
    host.line(id=1, method=AVAILABILITY)
    assert started.acquire(timeout=WAIT_SECONDS)
    host.line(id=2, method=AVAILABILITY)
    host.cancel(1)
    assert host.error() == (1, -32800, "cancelled")
    host.now += SECONDS
    host.session.expire()
    assert host.error() == (2, -32000, "remember_timeout")
    host.workspace.problem = lambda: None
    host.line(id=3, method=AVAILABILITY)
    released.set()
    assert host.answer() == {"jsonrpc": "2.0", "id": 3, "result": {"available": True}}
    released.clear()
    late = threading.Event()
    host.workspace.problem = lambda: (late.set(), released.wait(WAIT_SECONDS))
    host.line(id=4, method=AVAILABILITY)
    assert late.wait(WAIT_SECONDS)
    assert Host().session.close()  # It returns whether all tasks have ended.
    monkeypatch.setattr(acp, "LOOKUP_END_SECONDS", 0.0)
    assert not host.session.close()
    assert host.error() == (4, -32800, "cancelled")
    released.set()


# -- limits --------------------------------------------------------------------------------------------


def test_pending_requests_are_limited_and_ids_unique(host):
    for number in range(MAX_PENDING):
        host.remember(number)
    host.remember(0)
    assert host.error() == (None, -32600, "invalid_request")
    host.remember("late")
    assert host.error() == ("late", -32000, "remember_queue_full")
    host.line(id="look", method=AVAILABILITY)
    assert host.answer()["result"] == {"available": True}
    host.end(make_completed())
    assert host.answer()["id"] == 0
    host.remember(0)  # Its id and its place are free.
    assert host._answers.empty()


def test_invalid_message_is_answered_without_id(host):
    start = b'{"jsonrpc":"2.0",'
    for line in (
        *(b"{", b"\xff", b"[" * 100_000, start + b'"id":1,"id":2,"method":"initialize"}'),
        *(start + b'"id":%b,"method":"initialize"}' % each for each in (b'"\\ud800"', b"NaN", b"9" * 5000)),
    ):
        host.session.receive(line)
        assert host.error() == (None, -32700, "invalid_json"), line[:60]
    for line in (
        *(
            b"null",
            b"[]",
            b"[" + start + b'"id":1,"method":"initialize"}]',
            b'{"id":1,"method":"initialize"}',
        ),
        *(b'{"jsonrpc":2.0,"id":1,"method":"initialize"}', start + b'"id":1}', start + b'"id":1,"method":1}'),
        *(start + b'"id":%b,"method":"initialize"}' % each for each in (b"null", b"true", b"1.5")),
    ):
        host.session.receive(line)
        assert host.error() == (None, -32600, "invalid_request"), line[:60]
    host.session.receive(None)
    assert host.error() == (None, -32700, "body_too_large")


def test_notification_gets_no_answer(host):
    notification = {"method": REMEMBER, "params": {"content": "nobody would learn of it"}}
    for document in notification, {"method": "session/cancel", "params": []}, {"id": 1, "result": {}}:
        host.line(**document)
    host.session.receive(b"  ")
    host.line(id=1, method="initialize", result={}, error=None, more=[1])
    answer = host.answer()
    assert (answer["id"], answer["result"]["protocolVersion"]) == (1, 1)
    assert host.begun.empty()


def test_lines_do_not_depend_on_chunk_borders():
    lines = LineSplitter()
    found = [line for piece in (b"on", b"e\ntwo\n\nth", b"ree", b"\nrest") for line in lines.feed(piece)]
    assert found == [b"one", b"two", b"", b"three"]
    lines, longest = LineSplitter(), b"x" * MAX_LINE_BYTES
    assert lines.feed(longest + b"\n") == [longest]
    for _ in range(3):
        assert lines.feed(longest) == []
    assert len(lines._line) <= MAX_LINE_BYTES
    assert lines.feed(b"\nnext\n") == [None, b"next"]


def test_acp_request_with_invalid_id_gets_error(host):
    for text in INVALID_IDS:
        host.session.receive(f'{{"jsonrpc": "2.0", "id": {text}, "method": "initialize"}}'.encode())
        answer = host.answer()
        assert (answer["id"], answer["error"]["code"] in {-32600, -32700}) == (None, True), text
