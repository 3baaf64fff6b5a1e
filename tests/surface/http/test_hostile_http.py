"""What no client sends: after each of these attacks the daemon still answers, and nothing broke in it."""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack

import pytest

from kit.daemon.raw import REMEMBER, chunked, running, start
from kit.memories import descriptors
from muniment.daemon import guard as protocol
from muniment.daemon import http

NO_HTTP = (400, "invalid_http")
EMPTY = b'{"content": ""}'
"""A body that is read whole, and then refused."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.fixture(autouse=True)
def well(daemon):
    daemon.until(lambda: daemon.connections() == 0)
    before = descriptors()
    yield
    daemon.check()
    daemon.until(lambda: daemon.connections() == 0)
    assert descriptors() <= before
    assert daemon.ask("GET", "/workspace/memory/tasks").json["tasks"] == []


# -- headers -------------------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "line",
    [
        b"X: a\x00b",
        b"X: a\rb",
        b"X\x00: a",
        b"X : a",
        b": a",
        b"X",
        "X\u00e9: a".encode(),
        b"Content-Length: +2",
        b"Content-Length: -1",
        b"Content-Length: 0x2",
        b"Content-Length: 2, 3",
        b"Content-Length: " + b"9" * 21,
        b"Content-Length: " + b"9" * 5000,
        b"Content-Length: \xb2",
        b"Content-Length: 2\r\nContent-Length: 3",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding:\x0bchunked",
    ],
)
def test_a_header_that_has_two_meanings_is_no_http(daemon, line):
    request = daemon.request("POST", REMEMBER, "Content-Type: application/json", "@").replace(b"@", line, 1)
    assert daemon.raw(request + b"0\r\n\r\n").code == NO_HTTP


@pytest.mark.parametrize(
    "lines", list(itertools.permutations(["Content-Length: 5", "Transfer-Encoding: chunked"]))
)
def test_a_body_of_two_lengths_is_refused_and_what_follows_is_no_request(daemon, lines):
    """Smuggling: what stands in front of the daemon would see one request, and the daemon two."""
    smuggled = daemon.request("GET", "/healthz")
    with daemon.line() as line:
        line.send(start(daemon, *lines) + b"0\r\n\r\n" + smuggled)
        assert line.answer().code == NO_HTTP
        assert line.is_closed()


def test_chunks_are_not_for_http_1_0(daemon):
    request = start(daemon, "Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with daemon.line() as line:
        line.send(request + chunked(EMPTY) + daemon.request("GET", "/healthz"))
        assert line.answer().code == NO_HTTP
        assert line.is_closed()


def test_a_folded_header_is_one_line_and_no_second_header(daemon):
    token = daemon.token.encode()
    folded = daemon.request("GET", "/healthz", "X: a@").replace(
        b"@", b"\r\n Authorization: Bearer " + token, 1
    )
    assert daemon.raw(folded.replace(b"\r\nAuthorization", b"\r\nNothing")).code == (401, "token_required")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kib", [33, 40, 60, 200, 1000])
@pytest.mark.parametrize("where", ["header", "target", "query", "many"])
def test_a_header_larger_than_the_limit_is_refused_however_it_arrives(daemon, kib, where):
    long = "a" * (kib * 1024)
    request = {
        "header": lambda: daemon.request("GET", "/healthz", f"X: {long}"),
        "target": lambda: daemon.request("GET", f"/{long}"),
        "query": lambda: daemon.request("GET", f"/healthz?{long}"),
        "many": lambda: daemon.request("GET", "/healthz", *(f"X{each}: a" for each in range(kib * 128))),
    }[where]()
    with daemon.line() as line:
        line.send(request)
        assert line.answer().code == NO_HTTP
    with daemon.line() as line:
        half = len(request) // 2
        assert line.send(request[:half])
        line.send(request[half:])
        answer = line.answer()
        assert answer is None or answer.code == NO_HTTP


@pytest.mark.parametrize("protocols", ["websocket", "h2c", "foo, websocket"])
def test_nothing_is_upgraded(daemon, protocols):
    headers = (
        "Connection: Upgrade",
        f"Upgrade: {protocols}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: eA==",
    )
    assert daemon.ask("GET", "/healthz", *headers).status == 200


# -- time and connections ------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nX"]
)
def test_a_header_that_never_ends_is_cut_off(daemon, monkeypatch, sent):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.05)
    with daemon.line() as line:
        line.send(sent)
        assert line.is_closed()


def test_a_second_header_that_never_ends_is_cut_off_as_well(daemon, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.05)
    with daemon.line() as line:
        line.send(daemon.request("GET", "/healthz"))
        assert line.answer().status == 200
        line.send(b"GET /healthz HT")
        assert line.is_closed()


@pytest.mark.slow
def test_a_header_that_drips_is_cut_off_however_often_it_drips(daemon, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)
    with daemon.line() as line:
        for byte in itertools.cycle(b"X"):
            if not line.send(bytes([byte])):
                break


@pytest.mark.parametrize("how", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_never_ends_is_told_so(daemon, monkeypatch, how):
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
    with daemon.line() as line:
        line.send(start(daemon, how))
        assert line.answer().code == (408, "request_timeout")
        assert line.is_closed()


def test_who_never_reads_its_answers_is_cut_off(daemon, monkeypatch):
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.05)
    with daemon.line() as line:
        line.socket.settimeout(30)
        requests = daemon.request("GET", "/openapi.json") * 50
        while line.send(requests):
            pass
    daemon.until(lambda: daemon.connections() == 0)


def test_what_is_sent_behind_a_refused_request_is_no_request(daemon):
    refused = daemon.request("POST", REMEMBER, body=daemon.request("GET", "/healthz"), token="")
    with daemon.line() as line:
        line.send(refused + daemon.request("GET", "/healthz"))
        assert line.answer().code == (401, "token_required")
        assert line.is_closed()


@pytest.mark.threat("T-API-03", control="idle_lines")
@pytest.mark.parametrize("address", ["tcp", "unix"])
def test_idle_lines_however_many_keep_nobody_out(daemon, monkeypatch, address):
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 40)
    with ExitStack() as opened:
        follower = opened.enter_context(daemon.line())
        follower.send(daemon.request("GET", "/workspace/memory/events"))
        assert follower.answer().status == 200
        idle = [opened.enter_context(daemon.line(getattr(daemon, address))) for _ in range(100)]
        for each in idle[::2]:
            each.send(b"GET /healthz HTTP/1.1\r\nX: y")
        answer = daemon.ask("GET", "/healthz")
        assert answer is not None
        assert answer.status == 200
        daemon.until(lambda: daemon.connections() <= 40)
        assert follower.line()


def test_the_line_that_has_been_idle_for_longest_makes_room(daemon, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    with ExitStack() as opened:
        lines = [opened.enter_context(daemon.line()) for _ in range(3)]
        for line in (lines[1], lines[2], lines[0]):
            line.send(daemon.request("GET", "/healthz"))
            assert line.answer().status == 200
        newest = opened.enter_context(daemon.line())
        assert lines[1].is_closed()
        for line in (newest, lines[2], lines[0]):
            line.send(daemon.request("GET", "/healthz"))
            assert line.answer().status == 200


def test_what_is_sent_while_the_last_answer_of_a_line_is_on_its_way_ends_it(daemon):
    """No second answer can be given there, not even that it is no HTTP."""
    with daemon.line() as line:
        line.send(daemon.request("GET", "/workspace/memory/events", "Connection: close"))
        assert line.answer().status == 200
        line.send(b"garbage")
        while b"HTTP/1.1" not in (text := line.line()) and text:
            pass
        assert text == b""


def test_lines_that_are_all_in_use_are_not_cut_off_for_another(daemon, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    with ExitStack() as opened:
        lines = [opened.enter_context(daemon.line()) for _ in range(3)]
        for line in lines:
            line.send(daemon.request("GET", "/workspace/memory/events"))
            assert line.answer().status == 200
        assert opened.enter_context(daemon.line()).is_closed()
        for line in lines:
            assert line.line()


@pytest.mark.slow
def test_nothing_of_an_attack_is_left_in_memory(daemon):
    """Ten thousand refused requests: no task of the loop and no descriptor stays."""
    with daemon.line() as line:
        for _ in range(200):
            line.send(daemon.request("GET", "/nothing") * 50)
            for _ in range(50):
                assert line.answer().status == 404
    daemon.until(lambda: daemon.connections() == 0)
    assert not daemon.daemon._server.server_state.tasks
    guard = daemon.guard
    assert [len(each) for each in (guard.answering, guard.waiting, guard.following)] == [0, 0, 0]


def test_an_answer_that_is_json_is_read_by_a_strict_reader(daemon):
    for path in ("/openapi.json", "/capabilities", "/readyz", "/nothing"):
        json.loads(daemon.ask("GET", path).body.decode("ascii"), parse_constant=pytest.fail)
