"""What a scripted server can say, as clients made of sockets and `http.client` receive it."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import time
import zlib

import pytest

from muniment.testing.chat_server import (
    NO_RESPONSE_FORMAT,
    NO_TOOLS,
    OVERFLOWS,
    UNSUPPORTED,
    ChatServer,
    Response,
    always,
    bomb,
    broken_bodies,
    broken_transfers,
    completion,
    document,
    drip,
    endless,
    failure,
    late,
    misbehaviours,
    odd_calls,
    raw,
    redirect,
    stalls,
    tool_call,
    tool_calls,
)
from testing.raw_client import ask, asking, read_all, read_answer

STALLS, TRANSFERS, BODIES, CALLS = stalls(every=0.01), broken_transfers(), broken_bodies(), odd_calls()
ALL = misbehaviours()


def answered(answer):
    """(status, headers, JSON) of an answer."""
    with ChatServer([answer]) as server:
        status, headers, body = ask(server, {})
        return status, headers, json.loads(body)


# -- honest answers ------------------------------------------------------------------------------------


def test_a_completion_has_the_shape_that_the_reference_gives_it():
    status, headers, body = answered(completion({"content": "Saved."}, "stop", (7, 5)))
    assert (status, headers["content-type"]) == (200, "application/json")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Saved."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }


def test_a_server_may_keep_its_count_of_tokens_to_itself():
    assert "usage" not in answered(completion({"content": ""}, usage=None))[2]


def test_calls_have_arguments_as_text():
    choice = answered(tool_calls(tool_call("ls", {"path": "user"}, "call-7")))[2]["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call-7",
                "type": "function",
                "function": {"name": "ls", "arguments": '{"path": "user"}'},
            }
        ],
    }


def test_a_document_has_the_status_and_headers_that_it_is_given():
    status, headers, body = answered(document([1], 418, {"x-tea": "green", "content-type": "text/tea"}))
    assert (status, headers["x-tea"], headers["content-type"], body) == (418, "green", "text/tea", [1])


@pytest.mark.parametrize(("status", "kind"), [(429, "invalid_request_error"), (503, "server_error")])
def test_a_failure_says_what_when_and_why(status, kind):
    answer = failure(status, "slow down", code="busy", param="n", retry_after=1.5)
    told, headers, body = answered(answer)
    assert (told, headers["retry-after"]) == (status, "1.5")
    assert body == {"error": {"message": "slow down", "type": kind, "param": "n", "code": "busy"}}


def test_a_redirection_leads_where_it_is_told():
    with ChatServer([redirect("http://127.0.0.1:9/", 308)]) as server:
        status, headers, _ = ask(server, {})
    assert (status, headers["location"]) == (308, "http://127.0.0.1:9/")


# -- dishonest ones ------------------------------------------------------------------------------------


def test_raw_bytes_come_as_they_are_and_then_the_end():
    with ChatServer([raw(b"SSH-2.0", 0.0, b"-x\r\n")]) as server, asking(server) as client:
        assert read_all(client) == b"SSH-2.0-x\r\n"


def test_a_reset_comes_as_a_reset():
    with (
        ChatServer([raw(reset=True)]) as server,
        asking(server) as client,
        pytest.raises(ConnectionResetError),
    ):
        read_all(client)


def test_a_late_answer_is_whole_and_not_early():
    started = time.monotonic()
    assert answered(late(0.05, document({})))[2] == {}
    assert time.monotonic() - started >= 0.05


def test_a_drip_comes_in_pieces_and_whole():
    response = Response(b"a" * 7, headers={"connection": "close"})
    pieces = len(response.encoded()) // 20
    started = time.monotonic()
    with ChatServer([drip(response, size=20, every=0.005)]) as server, asking(server) as client:
        received = b""
        while len(received) < len(response.encoded()):
            piece = client.recv(65536)
            assert received or len(piece) == 20
            received += piece
    assert received == response.encoded()
    assert time.monotonic() - started >= pieces * 0.005


def test_an_endless_body_goes_on():
    with ChatServer([endless(b"ab" * 500)]) as server, asking(server) as client:
        assert sum(len(client.recv(65536)) for _ in range(200)) > 50_000
        client.close()
        assert server.requests[0].hung_up.wait(5)


@pytest.mark.parametrize("filler", [b" ", b"\0"])
def test_a_bomb_is_small_until_it_is_opened(filler):
    size = (3 << 20) + 5
    with ChatServer([bomb(document({}, 400), size, filler)]) as server, asking(server) as client:
        status, headers, body = read_answer(client)
    assert (status, headers["content-encoding"]) == (400, "gzip")
    assert len(body) < size / 500
    assert zlib.decompress(body, wbits=31) == filler * size + b"{}"


# -- tables --------------------------------------------------------------------------------------------


def test_every_misbehaviour_has_a_name_of_its_own():
    refusals = [OVERFLOWS, NO_TOOLS, NO_RESPONSE_FORMAT, UNSUPPORTED]
    assert len(ALL) == sum(map(len, [STALLS, TRANSFERS, BODIES, CALLS, *refusals]))


@pytest.mark.parametrize("name", STALLS)
def test_a_stall_never_comes_to_an_end(name):
    with ChatServer([STALLS[name]]) as server, asking(server) as client:
        received = bytearray()
        client.settimeout(0.1)
        end = time.monotonic() + 0.3
        try:
            while time.monotonic() < end:
                received += client.recv(65536)
                assert not received.endswith((b"\r\n\r\n0\r\n\r\n", b"}"))
        except TimeoutError:
            pass
        assert not server.requests[0].hung_up.is_set()


@pytest.mark.parametrize("name", TRANSFERS)
def test_a_broken_transfer_yields_no_completion(name):
    with ChatServer(always(TRANSFERS[name])) as server:
        try:
            status, headers, body = ask(server, {})
            if headers.get("content-encoding") == "gzip":
                body = zlib.decompressobj(wbits=31).decompress(body, 1 << 20)
        except (http.client.HTTPException, OSError, zlib.error):
            return
    if status == 200:
        with pytest.raises(ValueError, match=r"Expecting|Unterminated|decode|Extra"):
            json.loads(body)


def test_redirections_lead_where_they_are_told():
    answers = broken_transfers("http://127.0.0.1:1/elsewhere")
    for status in (301, 302, 303, 307, 308):
        with ChatServer([answers[f"redirect {status}"]]) as server:
            told, headers, _ = ask(server, {})
        assert (told, headers["location"]) == (status, "http://127.0.0.1:1/elsewhere")


def words_in(body):
    """The words of a completion, as strictly as can be."""

    def refuse(*_):
        raise ValueError("not strict JSON")

    def unique(pairs):
        assert len(pairs) == len({key for key, _ in pairs})
        return dict(pairs)

    value = json.loads(body.decode(), parse_constant=refuse, object_pairs_hook=unique, parse_float=refuse)
    text = value["choices"][0]["message"]["content"]
    text.encode()
    assert text.strip()
    assert value["choices"][0]["finish_reason"] == "stop"
    assert isinstance(value["usage"]["prompt_tokens"], int)


@pytest.mark.parametrize("name", BODIES)
def test_a_broken_body_holds_no_words_to_believe(name):
    with ChatServer([BODIES[name]]) as server, asking(server) as client:
        status, headers, body = read_answer(client)
    assert (status, headers["content-type"]) == (200, "application/json")
    with pytest.raises(
        (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError, RecursionError)
    ):
        words_in(body)


@pytest.mark.parametrize("name", CALLS)
def test_an_odd_call_stands_in_an_ordinary_completion(name):
    with ChatServer([CALLS[name]]) as server, asking(server) as client:
        status, _, body = read_answer(client)
    choice = json.loads(body)["choices"][0]
    assert status == 200
    assert choice["message"].keys() & {"tool_calls", "function_call"}


def test_there_are_many_calls_where_many_are_promised():
    counts = [
        len(json.loads(CALLS[name].body)["choices"][0]["message"]["tool_calls"])
        for name in ("parallel calls", "ten thousand calls")
    ]
    assert counts == [8, 10_000]


def test_nothing_of_the_tables_asks_to_write_anywhere_but_to_one_place():
    written = itertools.chain.from_iterable(
        re.findall(r"write_file.*?(\w+/[\w/]+)", answer.body.decode("latin-1"))
        for answer in ALL.values()
        if isinstance(answer, Response)
    )
    places = set(written)
    assert places
    assert all(place.startswith("user/never/") for place in places), places


# The bodies as they stand in the issue trackers of the servers, ours apart from numbers and names.
SEEN = {
    ("context overflow: openai", 400): {
        "error": {
            "message": "This model's maximum context length is 4096 tokens. However, your messages resulted "
            "in 5172 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    },
    ("context overflow: llama-server", 400): {
        "error": {
            "code": 400,
            "message": "request (5172 tokens) exceeds the available context size (4096 tokens), "
            "try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 5172,
            "n_ctx": 4096,
        }
    },
    ("context overflow: vllm before 0.10.1", 400): {
        "object": "error",
        "message": "This model's maximum context length is 4096 tokens. However, you requested 5172 tokens "
        "(4148 in the messages, 1024 in the completion). Please reduce the length of the messages or "
        "completion.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    ("no tools: ollama", 400): {
        "error": {
            "message": "registry.ollama.ai/library/gemma3:4b does not support tools",
            "type": "api_error",
            "param": None,
            "code": None,
        }
    },
    ("no tools: llama-server without --jinja", 500): {
        "error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}
    },
    ("no tools: vllm", 400): {
        "error": {
            "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be '
            "set",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    },
    ("no response_format: openai", 400): {
        "error": {
            "message": "Invalid parameter: 'response_format' of type 'json_schema' is not supported with "
            "this model.",
            "type": "invalid_request_error",
            "param": "response_format",
            "code": None,
        }
    },
    ("unsupported: max_tokens", 400): {
        "error": {
            "message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "unsupported_parameter",
        }
    },
    ("unsupported: temperature", 400): {
        "error": {
            "message": "Unsupported value: 'temperature' does not support 0 with this model. Only the "
            "default (1) value is supported.",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": "unsupported_value",
        }
    },
}


@pytest.mark.parametrize(("name", "status"), SEEN)
def test_servers_refuse_in_their_own_words(name, status):
    told, _, body = answered(ALL[name])
    assert (told, body) == (status, SEEN[name, status])
