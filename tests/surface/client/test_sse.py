"""A stream of events means the same however its bytes are cut, and cannot take memory without end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.client import core
from muniment.client.core import Frame, Frames
from muniment.client.errors import BadAnswer

STREAM = (
    "\ufeffid: 0badcafe-1\nretry: 1000\n: \n\n"
    "id: 0badcafe-2\r\nevent: task\r\ndata: {\r\ndata: é 記憶 🗝\r\ndata:}\r\n\r\n"
    ": heartbeat\r\r"
    "data\rdata: \r\r"
    "event: lost\nid: bad\0id\n\n"
    "nonsense: 1\nid\ndata:  two spaces\n\n"
    "data: never ended"
).encode()
FRAMES = [
    Frame("0badcafe-1", "", None),
    Frame("0badcafe-2", "task", "{\né 記憶 🗝\n}"),
    Frame("0badcafe-2", "message", "\n"),
    Frame("", "message", " two spaces"),
]


def read(chunks, last_id=""):
    frames = Frames(last_id)
    return [frame for chunk in chunks for frame in frames.feed(chunk)], frames.last_id


def cut(data, cuts):
    return read(
        data[a:b] for a, b in pairwise([0, *sorted(min(each, len(data)) for each in cuts), len(data)])
    )


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.binary(max_size=200))
def test_a_stream_cut_anywhere_gives_the_same_frames(cuts, data):
    assert cut(STREAM, cuts) == cut(STREAM, []) == cut(STREAM, range(len(STREAM))) == (FRAMES, "")
    assert cut(data, cuts) == cut(data, [])


def test_the_last_id_is_that_of_a_frame_that_came_as_a_whole_or_says_where_the_stream_stands():
    frames, last = read([b"id: a-1\ndata: 1\n\nid: a-2\ndata: 2\n"])
    assert ([frame.id for frame in frames], last) == (["a-1"], "a-1")
    assert read([b": \nid: a-7\n\n"], "a-1") == ([Frame("a-7", "", None)], "a-7")
    assert read([b": \nid: a-7\n\n"], "a-7") == ([], "a-7")
    assert read([b"data: \xff\n\n"])[0] == [Frame("", "message", "\ufffd")]


def test_an_event_without_end_is_refused_and_not_kept_and_events_without_end_are_not(monkeypatch):
    monkeypatch.setattr(core, "MAX_FRAME_BYTES", 1000)
    for endless in (b"x" * 64, b"data: x\n" * 8, b": x"):
        with pytest.raises(BadAnswer, match="1000"):
            read(endless for _ in range(400))
    frames = Frames()
    list(frames.feed(b"data: 1"))
    with pytest.raises(BadAnswer):
        list(frames.feed(b"x" * 3_000_000))
    assert len(frames._line) == len(b"data: 1")
    assert len(read(b": heartbeat\n\ndata: 1\n\n" for _ in range(400))[0]) == 400
