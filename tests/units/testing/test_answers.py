"""What a scripted server can say, as clients made of sockets and `http.client` receive it."""

from __future__ import annotations

import itertools
import json
import re
import time
import zlib

import pytest

from kit.testing.raw_client import ask, asking, read_all, read_answer
from muniment.testing.chat_server import (
    NO_RESPONSE_FORMAT,
    NO_TOOLS,
    OVERFLOWS,
    UNSUPPORTED,
    ChatServer,
    Response,
    bomb,
    broken_bodies,
    broken_transfers,
    document,
    drip,
    endless,
    late,
    misbehaviours,
    odd_calls,
    raw,
    stalls,
    tool_call,
    tool_calls,
)

STALLS, TRANSFERS, BODIES, CALLS = stalls(every=0.01), broken_transfers(), broken_bodies(), odd_calls()
ALL = misbehaviours()


def answered(answer):
    """(status, headers, JSON) of an answer."""
    with ChatServer([answer]) as server:
        status, headers, body = ask(server, {})
        return status, headers, json.loads(body)


# -- honest answers ------------------------------------------------------------------------------------


def test_calls_have_arguments_as_text():
    choice = answered(tool_calls(tool_call("ls", {"path": "user"}, "call-7")))[2]["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call-7", "type": "function", "function": {"name": "ls", "arguments": '{"path": "user"}'}}
        ],
    }


# -- dishonest ones ------------------------------------------------------------------------------------


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


def test_redirections_lead_where_they_are_told():
    answers = broken_transfers("http://127.0.0.1:1/elsewhere")
    for status in (301, 302, 303, 307, 308):
        with ChatServer([answers[f"redirect {status}"]]) as server:
            told, headers, _ = ask(server, {})
        assert (told, headers["location"]) == (status, "http://127.0.0.1:1/elsewhere")


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
