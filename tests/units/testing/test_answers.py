"""What a scripted server can say, as clients made of sockets and `http.client` receive it."""

from __future__ import annotations

import itertools
import json
import re
import zlib

import pytest

from kit.testing.raw_client import ask, asking, read_all, read_answer
from muniment.testing import chat_server as chat

CALLS, ALL = chat.odd_calls(), chat.misbehaviours()


def answered(answer):
    """(status, headers, JSON) of an answer."""
    with chat.ChatServer([answer]) as server:
        status, headers, body = ask(server, {})
        return status, headers, json.loads(body)


def test_calls_have_arguments_as_text():
    choice = answered(chat.tool_calls(chat.tool_call("ls", {"path": "user"}, "call-7")))[2]["choices"][0]
    call = {"id": "call-7", "type": "function", "function": {"name": "ls", "arguments": '{"path": "user"}'}}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": [call]}


def test_a_reset_comes_as_a_reset_and_a_late_answer_whole():
    with chat.ChatServer([chat.raw(reset=True), chat.late(0.05, chat.document({}))]) as server:
        with asking(server) as client, pytest.raises(ConnectionResetError):
            read_all(client)
        assert ask(server, {})[2] == b"{}"


def test_a_drip_comes_in_pieces_and_whole_and_an_endless_body_goes_on():
    response = chat.Response(b"a" * 7, headers={"connection": "close"})
    with chat.ChatServer([chat.drip(response, size=20, every=0.005), chat.endless(b"ab" * 500)]) as server:
        with asking(server) as client:
            received = [client.recv(65536)]
            while sum(map(len, received)) < len(response.encoded()):
                received.append(client.recv(65536))
        assert len(received[0]) == 20
        assert b"".join(received) == response.encoded()
        with asking(server) as client:
            assert sum(len(client.recv(65536)) for _ in range(200)) > 50_000
        assert server.requests[1].hung_up.wait(5)


@pytest.mark.parametrize("filler", [b" ", b"\0"])
def test_a_bomb_is_small_until_it_is_opened(filler):
    size = (3 << 20) + 5
    with (
        chat.ChatServer([chat.bomb(chat.document({}, 400), size, filler)]) as server,
        asking(server) as client,
    ):
        status, headers, body = read_answer(client)
    assert (status, headers["content-encoding"]) == (400, "gzip")
    assert len(body) < size / 500
    assert zlib.decompress(body, wbits=31) == filler * size + b"{}"


def test_redirections_lead_where_they_are_told():
    answers = chat.broken_transfers("http://127.0.0.1:1/elsewhere")
    for status in (301, 302, 303, 307, 308):
        with chat.ChatServer([answers[f"redirect {status}"]]) as server:
            told, headers, _ = ask(server, {})
        assert (told, headers["location"]) == (status, "http://127.0.0.1:1/elsewhere")


def test_misbehaviours_have_names_of_their_own_and_ask_to_write_to_one_place_alone():
    tables = [chat.stalls(), chat.broken_transfers(), chat.broken_bodies(), CALLS]
    refusals = [chat.OVERFLOWS, chat.NO_TOOLS, chat.NO_RESPONSE_FORMAT, chat.UNSUPPORTED]
    assert len(ALL) == sum(map(len, [*tables, *refusals]))
    bodies = [answer.body.decode("latin-1") for answer in ALL.values() if isinstance(answer, chat.Response)]
    written = [re.findall(r"write_file.*?(\w+/[\w/]+)", body) for body in bodies]
    places = set(itertools.chain.from_iterable(written))
    assert places
    assert all(place.startswith("user/never/") for place in places), places
    for name, count in (("parallel calls", 8), ("ten thousand calls", 10_000)):
        assert len(json.loads(CALLS[name].body)["choices"][0]["message"]["tool_calls"]) == count
