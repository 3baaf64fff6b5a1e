"""Any bytes in any pieces: the reader of frames against a second one, written from the description."""

from __future__ import annotations

import json
import math
import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st

from muniment.confine.wire import Channel, FrameViolation
from muniment.testing.strategies import frame, frames

HEADER_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024
DEPTH = 64


class Trickle:
    """The receiving half of a socket: given bytes, at most so many at a time, then the end of file."""

    def __init__(self, data, sizes):
        self.data, self.sizes = data, sizes
        self.taken = 0
        self.asked = []

    def recv(self, size):
        self.asked.append(size)
        most = self.sizes[len(self.asked) % len(self.sizes)] if self.sizes else size
        piece = self.data[self.taken : self.taken + min(size, most)]
        self.taken += len(piece)
        return piece


def depth_of(text):
    deepest = depth = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def is_plain(value):
    """No infinity anywhere: an exponent can make one that is not spelled so."""
    if isinstance(value, float):
        return math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(is_plain, inner))


def header_of(data):
    """The header that these bytes are, or None."""
    seen_twice = []

    def pairs_of(pairs):
        if len({key for key, _ in pairs}) != len(pairs):
            seen_twice.append(pairs)
        return dict(pairs)

    def no(constant):
        raise ValueError(constant)

    try:
        text = data.decode()
        if depth_of(text) > DEPTH:
            return None
        value = json.JSONDecoder(object_pairs_hook=pairs_of, parse_constant=no).decode(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and not seen_twice and is_plain(value) else None


def reference(stream, max_body):
    """What the first message is, (header, body) or why there is none; and how many bytes it takes."""
    at = 0

    def take(size):
        nonlocal at
        piece = stream[at : at + size]
        at += len(piece)
        if len(piece) < size:
            raise EOFError
        return piece

    try:
        (length,) = struct.unpack("!I", take(4))
        if not 2 <= length <= HEADER_BYTES:
            return "violation", at
        header = header_of(take(length))
        if header is None:
            return "violation", at
        if "body" not in header:
            return (header, b""), at
        size = header.pop("body")
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= max_body:
            return "violation", at
        body = b""
        while len(body) < size:
            (length,) = struct.unpack("!I", take(4))
            if length != min(size - len(body), PIECE_BYTES):
                return "violation", at
            body += take(length)
    except EOFError:
        return "end", at
    return (header, body), at


def subject(stream, sizes, max_body):
    feed = Trickle(stream, sizes)
    try:
        told = Channel(feed).receive(max_body)
    except FrameViolation:
        told = "violation"
    except EOFError:
        told = "end"
    assert max(feed.asked, default=0) <= PIECE_BYTES
    return told, feed.taken


CHUNKS = st.lists(st.integers(1, 9) | st.sampled_from([63, 4096, 65_535, 65_536]), max_size=4)


@settings(max_examples=max(100, settings().max_examples))
@given(frames() | frames() | st.binary(max_size=300), CHUNKS, st.sampled_from([0, 3, 1 << 20]))
@example(frame(b'{"body":null}'), [], 0)
@example(frame(b'{"a":"\\""}'), [1], 0)
def test_any_stream_is_read_as_the_description_says_and_no_byte_further(stream, sizes, max_body):
    assert subject(stream, sizes, max_body) == reference(stream, max_body)
