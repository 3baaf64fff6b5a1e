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


def test_a_stream_at_once_gives_its_frames():
    assert read([STREAM]) == (FRAMES, "")


def test_a_stream_byte_by_byte_gives_the_same_frames():
    assert read(STREAM[i : i + 1] for i in range(len(STREAM))) == (FRAMES, "")


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same_frames(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read(STREAM[a:b] for a, b in pairwise(edges)) == (FRAMES, "")


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_cut_anywhere_give_the_same_frames(data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert read(data[a:b] for a, b in pairwise(edges)) == read([data])


def test_the_last_id_is_that_of_a_frame_that_came_as_a_whole():
    frames, last = read([b"id: a-1\ndata: 1\n\nid: a-2\ndata: 2\n"])
    assert [frame.id for frame in frames] == ["a-1"]
    assert last == "a-1"


def test_an_id_without_data_says_where_the_stream_stands():
    assert read([b": \nid: a-7\n\n"], "a-1") == ([Frame("a-7", "", None)], "a-7")
    assert read([b": \nid: a-7\n\n"], "a-7") == ([], "a-7")


def test_bytes_that_are_no_utf_8_are_replaced():
    assert read([b"data: \xff\n\n"])[0] == [Frame("", "message", "\ufffd")]


@pytest.mark.parametrize("endless", [b"x" * 64, b"data: x\n" * 8, b": x"])
def test_an_event_without_end_is_refused(endless, monkeypatch):
    monkeypatch.setattr(core, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(BadAnswer, match="1000"):
        read(endless for _ in range(400))


def test_what_is_refused_is_not_kept(monkeypatch):
    monkeypatch.setattr(core, "MAX_FRAME_BYTES", 1000)
    frames = Frames()
    list(frames.feed(b"data: 1"))
    with pytest.raises(BadAnswer):
        list(frames.feed(b"x" * 3_000_000))
    assert len(frames._line) == len(b"data: 1")


def test_comments_and_events_without_end_are_no_reason_to_refuse(monkeypatch):
    monkeypatch.setattr(core, "MAX_FRAME_BYTES", 100)
    frames, _ = read(b": heartbeat\n\ndata: 1\n\n" for _ in range(400))
    assert len(frames) == 400
