"""Bodies that no client sends: after each the daemon still answers, and nothing broke in it."""

from __future__ import annotations

import pytest

from kit.daemon.raw import REMEMBER, chunked, running, start
from kit.memories import descriptors
from muniment.daemon import http
from muniment.daemon.contract import MAX_BODY_BYTES

NO_HTTP = (400, "invalid_http")
NO_JSON = (400, "invalid_json")
TOO_LARGE = (413, "body_too_large")
EMPTY = b'{"content": ""}'
"""A body that is read whole, and then refused."""

READ = (400, "invalid_content")


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


# -- bodies --------------------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize("size", [1, 2, 7, 4096])
@pytest.mark.parametrize(
    "end", [b"0\r\n\r\n", b"0;x=y\r\n\r\n", b"000\r\nAuthorization: x\r\nHost: y\r\n\r\n"]
)
def test_chunks_of_any_size_are_one_body_and_trailers_mean_nothing(daemon, size, end):
    with daemon.line() as line:
        line.send(start(daemon, "Transfer-Encoding: chunked") + chunked(EMPTY + b" " * 3000, size, end))
        assert line.answer().code == READ
        line.send(daemon.request("GET", "/healthz"))
        assert line.answer().status == 200


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "bad",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b"\r\n",
        b" 1\r\na\r\n",
        b"1\r\nab\r\n",
        b"1\na\n\r\n",
        b"F" * 21 + b"\r\n",
        b"1" * 40_000,
        b"1;" + b"x" * 40_000,
        b"0\r\nX\x00: a\r\n\r\n",
        b"0\r\n" + b"X: a\r\n" * 10_000,
    ],
)
@pytest.mark.parametrize("path", [REMEMBER, "/nothing", "/workspace/memory/tasks"])
def test_a_chunk_that_is_none_ends_the_request(daemon, bad, path):
    """Also where nobody reads the body and the answer is on its way."""
    with daemon.line() as line:
        line.send(start(daemon, "Transfer-Encoding: chunked", path=path) + b'5\r\n{"con\r\n' + bad)
        first = line.answer()
        assert first is None or first.code in {NO_HTTP, (404, "not_found"), (405, "method_not_allowed")}
        assert first is not None or len(bad) > 30_000
        assert line.is_closed()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("path", ["/nothing", "/workspace/memory/tasks"])
@pytest.mark.parametrize("how", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_body_that_nobody_wants_is_not_taken_for_long(daemon, path, how):
    with daemon.line() as line:
        line.send(start(daemon, how, path=path))
        answer = line.answer()
        assert answer.status in {404, 405}
        assert answer.values("connection") == ["close"]
        assert line.is_closed()


def test_who_sends_without_end_to_where_nobody_reads_is_cut_off(daemon):
    with daemon.line() as line:
        line.send(start(daemon, "Transfer-Encoding: chunked", path="/nothing"))
        block = chunked(b" " * 65_536, 65_536, b"")
        while line.send(block):
            pass


@pytest.mark.sweep(3)
@pytest.mark.threat("T-API-03", control="body_caps")
@pytest.mark.parametrize("where", ["tcp", "unix"])
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 600 * 1024, 7_000_000])
@pytest.mark.parametrize("how", ["declared", "chunked"])
def test_who_sends_too_much_gets_to_read_why(daemon, where, size, how):
    data = b'{"content": "' + b"x" * (size - 15) + b'"}'
    if how == "declared":
        request = daemon.request("POST", REMEMBER, body=data)
    else:
        request = start(daemon, "Transfer-Encoding: chunked") + chunked(data)
    with daemon.line(getattr(daemon, where)) as line:
        assert line.send(request)
        assert line.answer().code == TOO_LARGE
        assert line.is_closed()


def test_who_declares_very_much_is_told_so_at_once(daemon):
    with daemon.line() as line:
        line.send(start(daemon, "Content-Length: 12000000"))
        assert line.answer().code == TOO_LARGE
        assert line.is_closed()


def test_who_sends_without_end_is_cut_off_long_before_the_time_is_over(daemon, monkeypatch):
    monkeypatch.setattr(http, "BODY_SECONDS", 600.0)
    block = chunked(b" " * 65_536, 65_536, b"")
    with daemon.line() as line:
        line.send(start(daemon, "Transfer-Encoding: chunked"))
        while line.send(block):
            pass


@pytest.mark.sweep(2)
@pytest.mark.parametrize("data", [b"", b" \r\n\t"])
@pytest.mark.parametrize("media_type", ["application/json", "text/plain", ""])
def test_an_empty_body_is_an_empty_object_whatever_it_says_that_it_is(daemon, data, media_type):
    header = f"Content-Type: {media_type}"
    assert daemon.post("remember", data, header).code == READ
    reject = daemon.ask("POST", "/workspace/memory/review/none/reject", header, body=data)
    assert reject.code == (404, "review_not_found")


BIG = 10**4000


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "document",
    [
        b'{"content": "a", "content": "b"}',
        b'{"content": "a", "source": {"trust": "agent", "trust": "owner"}}',
        b'{"content": "a", "c\\u006fntent": "b"}',
        b'{"content": "\\ud800"}',
        b'{"content": "\\udc00\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"content": NaN}',
        b'{"content": Infinity}',
        b'{"content": -Infinity}',
        b'{"content": 1e999}',
        b'{"content": -1e999}',
        b'{"content": ' + b"1" * 5000 + b"}",
        b'{"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'\xef\xbb\xbf{"content": "a"}',
        '{"content": "a"}'.encode("utf-16"),
        '{"content": "a"}'.encode("utf-16-le"),
        '{"content": "a"}'.encode("utf-32"),
        b'{"content": "\xff"}',
        b'{"content": "\xed\xa0\x80"}',
        b'{"content": "\xc0\xaf"}',
        b'{"content": "a"} {}',
        b'{"content": "a"}\x00',
        b"{'content': 'a'}",
        b'{"content": "a",}',
        b'{"content": "a\nb"}',
        b'{"content": "\\x41"}',
        b'{"content": 0x1}',
        b'{"content": 01}',
        b"{",
        b"nul",
        b"\x00",
        b'"',
    ],
)
@pytest.mark.parametrize("path", [REMEMBER, "/workspace/memory/erase"])
def test_json_that_others_would_read_otherwise_is_refused(daemon, document, path):
    assert daemon.ask("POST", path, body=document).code == NO_JSON


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "document", [b"1", b"[]", b'"a"', b"null", b"true", b"1.5", b"[[]]", b"-0", b"1" * 4000]
)
def test_json_that_is_no_object_is_refused(daemon, document):
    assert daemon.post("remember", document).code == READ
    assert daemon.post("forget", document).code == (400, "invalid_query")
    assert daemon.post("dream", document).code == (400, "invalid_request")


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "content",
    [None, 1, True, [], {}, "", " \n\t", "\u0000" * 3, "a" * 65_537, "\U0001f600" * 16_385, ["a"], 1.5, BIG],
)
def test_a_content_that_is_no_text_within_bounds_is_refused(daemon, content):
    expected = (202, 400) if content == "\u0000" * 3 else (400,)
    answer = daemon.post("remember", {"content": content})
    assert answer.status in expected
    assert answer.json["code"] == "invalid_content"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["Content", "text", "dryRun", "contextmode", "__class__", "", "a" * 100_000])
def test_a_field_that_is_not_known_is_refused_before_anything_is_accepted(daemon, name):
    answer = daemon.post("remember", {"content": "The user prefers light mode", name: 1})
    assert answer.code == (400, "invalid_request")
    assert len(answer.body) < 1000


@pytest.mark.sweep(2)
@pytest.mark.parametrize("key", ["", "a b", "\x7f", "\xe9", "a" * 256])
def test_a_key_of_repeats_that_cannot_be_one_is_refused(daemon, key):
    sent = daemon.post("remember", {"content": "x"}, f"Idempotency-Key: {key}")
    assert sent.code in {(400, "invalid_request"), NO_HTTP}
