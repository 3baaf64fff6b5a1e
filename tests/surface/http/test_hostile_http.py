"""What no client sends: after each of these attacks the daemon still answers, and nothing broke in it."""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack

import pytest

from kit.daemon.process import BASE
from kit.daemon.raw import REMEMBER, chunked, start
from muniment.daemon import guard as protocol
from muniment.daemon import http
from muniment.daemon.contract import MAX_BODY_BYTES

TASKS = f"{BASE}/tasks"
NO_HTTP, NO_JSON, TOO_LARGE = (400, "invalid_http"), (400, "invalid_json"), (413, "body_too_large")
EMPTY, READ = b'{"content": ""}', (400, "invalid_content")
"""A body that is read whole, and what it is refused with then."""


# -- headers -------------------------------------------------------------------------------------------


def test_a_header_that_has_two_meanings_is_no_http(quiet):
    length, encoding = b"Content-Length: ", b"Transfer-Encoding: "
    codings = (b"gzip", b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked")
    for line in (
        *(b"X: a\x00b", b"X: a\rb", b"X\x00: a", b"X : a", b": a", b"X", "X\u00e9: a".encode()),
        *(length + value for value in (b"+2", b"-1", b"0x2", b"2, 3", b"9" * 21, b"9" * 5000, b"\xb2")),
        *(length + b"2\r\n" + length + b"3", encoding + b"chunked\r\n" + encoding + b"chunked"),
        *(b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked"),
        *(encoding + each for each in codings),
    ):
        request = start(quiet, "@").replace(b"@", line, 1)
        assert quiet.raw(request + b"0\r\n\r\n").code == NO_HTTP, line


def test_what_follows_a_request_of_two_lengths_or_one_that_is_refused_is_no_request(quiet):
    """Smuggling: what stands in front of the daemon would see one request, and the daemon two."""
    smuggled, both = quiet.request("GET", "/healthz"), ["Content-Length: 5", "Transfer-Encoding: chunked"]
    old = start(quiet, both[1]).replace(b"HTTP/1.1", b"HTTP/1.0", 1)  # Chunks are not for HTTP/1.0.
    for request, code in (
        *((start(quiet, *lines) + b"0\r\n\r\n", NO_HTTP) for lines in itertools.permutations(both)),
        (old + chunked(EMPTY), NO_HTTP),
        (quiet.request("POST", REMEMBER, body=smuggled, token=""), (401, "token_required")),
    ):
        with quiet.line() as line:
            line.send(request + smuggled)
            assert line.answer().code == code
            assert line.is_closed()


def test_a_folded_header_is_one_line_and_no_second_header(quiet):
    folded = quiet.request("GET", "/healthz", f"X: a\r\n Authorization: Bearer {quiet.token}", token="")
    assert quiet.raw(folded).code == (401, "token_required")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kib", [33, 60, 1000])
@pytest.mark.parametrize("where", ["header", "target", "query", "many"])
def test_a_header_larger_than_the_limit_is_refused_however_it_arrives(quiet, kib, where):
    long = "a" * (kib * 1024)
    request = {
        "header": lambda: quiet.request("GET", "/healthz", f"X: {long}"),
        "target": lambda: quiet.request("GET", f"/{long}"),
        "query": lambda: quiet.request("GET", f"/healthz?{long}"),
        "many": lambda: quiet.request("GET", "/healthz", *(f"X{each}: a" for each in range(kib * 128))),
    }[where]()
    with quiet.line() as line:
        line.send(request)
        assert line.answer().code == NO_HTTP
    with quiet.line() as line:
        half = len(request) // 2
        assert line.send(request[:half])
        line.send(request[half:])
        answer = line.answer()
        assert answer is None or answer.code == NO_HTTP


def test_nothing_is_upgraded(quiet):
    more = ("Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA==")
    for protocols in "websocket", "h2c", "foo, websocket":
        assert quiet.ask("GET", "/healthz", f"Upgrade: {protocols}", *more).status == 200


# -- time and connections ------------------------------------------------------------------------------


def test_a_header_or_a_body_that_never_ends_is_cut_off_also_behind_another_request(quiet, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.05)
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
    whole = quiet.request("GET", "/healthz")
    sent = (b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nX", whole)
    bodies = [start(quiet, how) for how in ("Content-Length: 100", "Transfer-Encoding: chunked")]
    with ExitStack() as opened:
        lines = [opened.enter_context(quiet.line()) for _ in range(7)]
        for line, data in zip(lines, (*sent, *bodies), strict=True):
            line.send(data)
        assert lines[4].answer().status == 200
        lines[4].send(b"GET /healthz HT")
        for line in lines[5:]:
            assert line.answer().code == (408, "request_timeout")
        assert all(line.is_closed() for line in lines)


@pytest.mark.slow
def test_a_header_that_drips_is_cut_off_however_often_it_drips(quiet, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)
    with quiet.line() as line:
        while line.send(b"X"):
            pass


def test_who_never_reads_its_answers_is_cut_off(quiet, monkeypatch):
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.05)
    with quiet.line() as line:
        requests = quiet.request("GET", "/openapi.json") * 50
        while line.send(requests):
            pass
    quiet.until(lambda: quiet.connections() == 0)


def asks(daemon, line, path="/healthz", *headers):
    line.send(daemon.request("GET", path, *headers))
    return line.answer().status


@pytest.mark.threat("T-API-03", control="idle_lines")
@pytest.mark.parametrize("address", ["tcp", "unix"])
def test_idle_lines_however_many_keep_nobody_out(quiet, monkeypatch, address):
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 40)
    with ExitStack() as opened:
        follower = opened.enter_context(quiet.line())
        assert asks(quiet, follower, f"{BASE}/events") == 200
        idle = [opened.enter_context(quiet.line(getattr(quiet, address))) for _ in range(100)]
        for each in idle[::2]:
            each.send(b"GET /healthz HTTP/1.1\r\nX: y")
        answer = quiet.ask("GET", "/healthz")
        assert answer is not None
        assert answer.status == 200
        quiet.until(lambda: quiet.connections() <= 40)
        assert follower.line()


def test_the_line_that_was_idle_for_longest_makes_room_and_none_that_is_in_use(quiet, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    with ExitStack() as opened:
        lines = [opened.enter_context(quiet.line()) for _ in range(3)]
        for line in (lines[1], lines[2], lines[0]):
            assert asks(quiet, line) == 200
        newest = opened.enter_context(quiet.line())
        assert lines[1].is_closed()
        for line in (newest, lines[2], lines[0]):
            assert asks(quiet, line) == 200
            assert asks(quiet, line, f"{BASE}/events") == 200
        assert opened.enter_context(quiet.line()).is_closed()
        assert all(line.line() for line in (newest, lines[2], lines[0]))


def test_what_is_sent_while_the_last_answer_of_a_line_is_on_its_way_ends_it(quiet):
    """No second answer can be given there, not even that it is no HTTP."""
    with quiet.line() as line:
        assert asks(quiet, line, f"{BASE}/events", "Connection: close") == 200
        line.send(b"garbage")
        while b"HTTP/1.1" not in (text := line.line()) and text:
            pass
        assert text == b""


@pytest.mark.slow
def test_nothing_of_an_attack_is_left_in_memory(quiet):
    """Ten thousand refused requests: no task of the loop and no descriptor stays."""
    with quiet.line() as line:
        for _ in range(200):
            line.send(quiet.request("GET", "/nothing") * 50)
            for _ in range(50):
                assert line.answer().status == 404
    quiet.until(lambda: quiet.connections() == 0)
    assert not quiet.daemon._server.server_state.tasks
    guard = quiet.guard
    assert [len(each) for each in (guard.answering, guard.waiting, guard.following)] == [0, 0, 0]


# -- bodies --------------------------------------------------------------------------------------------


def test_chunks_of_any_size_are_one_body_and_trailers_mean_nothing(quiet):
    for size in (1, 7, 4096):
        for end in (b"0\r\n\r\n", b"0;x=y\r\n\r\n", b"000\r\nAuthorization: x\r\nHost: y\r\n\r\n"):
            with quiet.line() as line:
                line.send(start(quiet, "Transfer-Encoding: chunked") + chunked(EMPTY + b" " * 500, size, end))
                assert line.answer().code == READ
                assert asks(quiet, line) == 200


def test_a_chunk_that_is_none_ends_the_request(quiet):
    """Also where nobody reads the body and the answer is on its way."""
    long = (b"1" * 40_000, b"1;" + b"x" * 40_000, b"0\r\n" + b"X: a\r\n" * 10_000)
    short = (
        b"zz\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b"\r\n",
        b" 1\r\na\r\n",
        b"1\r\nab\r\n",
        b"F" * 21 + b"\r\n",
    )
    gone, other = (404, "not_found"), (405, "method_not_allowed")
    for path, code in (REMEMBER, NO_HTTP), ("/nothing", gone), (TASKS, other):
        for bad in (*short, b"1\na\n\r\n", b"0\r\nX\x00: a\r\n\r\n", *long):
            with quiet.line() as line:
                line.send(start(quiet, "Transfer-Encoding: chunked", path=path) + b'5\r\n{"con\r\n' + bad)
                first = line.answer()
                assert first.code in {NO_HTTP, code} if first is not None else bad in long
                assert line.is_closed()


def test_a_body_that_nobody_wants_is_not_taken_for_long(quiet):
    for path, status in ("/nothing", 404), (TASKS, 405):
        for how in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
            with quiet.line() as line:
                line.send(start(quiet, how, path=path))
                answer = line.answer()
                assert (answer.status, answer.values("connection")) == (status, ["close"])
                assert line.is_closed()


def test_who_sends_without_end_is_cut_off_long_before_the_time_is_over(quiet, monkeypatch):
    monkeypatch.setattr(http, "BODY_SECONDS", 600.0)
    block = chunked(b" " * 65_536, 65_536, b"")
    for path in REMEMBER, "/nothing":
        with quiet.line() as line:
            line.send(start(quiet, "Transfer-Encoding: chunked", path=path))
            while line.send(block):
                pass


@pytest.mark.sweep(4)
@pytest.mark.threat("T-API-03", control="body_caps")
@pytest.mark.parametrize("where", ["tcp", "unix"])
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 600 * 1024, 7_000_000])
@pytest.mark.parametrize("how", ["declared", "chunked"])
def test_who_sends_too_much_gets_to_read_why(quiet, where, size, how):
    data = b'{"content": "' + b"x" * (size - 15) + b'"}'
    if how == "declared":
        request = quiet.request("POST", REMEMBER, body=data)
    else:
        request = start(quiet, "Transfer-Encoding: chunked") + chunked(data)
    with quiet.line(getattr(quiet, where)) as line:
        assert line.send(request)
        assert line.answer().code == TOO_LARGE
        assert line.is_closed()


def test_who_declares_very_much_is_told_so_at_once(quiet):
    with quiet.line() as line:
        line.send(start(quiet, "Content-Length: 12000000"))
        assert line.answer().code == TOO_LARGE
        assert line.is_closed()


@pytest.mark.parametrize("path", [REMEMBER, f"{BASE}/erase"])
def test_json_that_others_would_read_otherwise_is_refused(quiet, path):
    fact, deep = '{"content": "a"}', b"[" * 100_000
    texts = (b"\\ud800", b"\\udc00\\ud800", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"a\nb", b"\\x41")
    values = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"01", b"0x1", b"1" * 5000)
    values += (deep + b"]" * 100_000,)
    for document in (
        *(b'{"content": %b}' % value for value in (*(b'"%b"' % text for text in texts), *values)),
        *(b'{"content": "a", "content": "b"}', b'{"content": "a", "c\\u006fntent": "b"}', b'{"\\ud800": 1}'),
        b'{"content": "a", "source": {"trust": "agent", "trust": "owner"}}',
        *(
            b"\xef\xbb\xbf" + fact.encode(),
            *(fact.encode(each) for each in ("utf-16", "utf-16-le", "utf-32")),
        ),
        *(b'{"content": "a"} {}', b'{"content": "a"}\x00', b"{'content': 'a'}", b'{"content": "a",}'),
        *(b"{", b"nul", b"\x00", b'"', deep, b'{"a":' * 100_000),
    ):
        assert quiet.ask("POST", path, body=document).code == NO_JSON, document[:40]


def test_an_answer_that_is_json_is_read_by_a_strict_reader(quiet):
    for path in ("/openapi.json", "/capabilities", "/readyz", "/nothing"):
        json.loads(quiet.ask("GET", path).body.decode("ascii"), parse_constant=pytest.fail)
