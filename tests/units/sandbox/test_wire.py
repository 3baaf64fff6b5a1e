"""Framing against hostile bytes: `muniment.sandbox.fence.wire`; any stream: `test_fuzzed_answers.py`."""

import json
import select
import socket
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.raising import raised
from kit.strategies.frames import frame
from muniment.sandbox.fence import wire
from muniment.sandbox.fence.wire import Channel, FrameViolation, ProtocolViolation, Unsendable

MAX_BODY = 1 << 20


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def received(raw, max_body=MAX_BODY):
    """What a channel makes of these bytes and the end of file behind them."""
    ours, theirs = socket.socketpair()

    def feed():
        with theirs, suppress(OSError):
            theirs.sendall(raw)

    with ThreadPoolExecutor(1) as feeder, ours:
        feeder.submit(feed)
        return Channel(ours).receive(max_body)


def sent(header, body=b""):
    """The bytes that a channel makes of a message, read by plain socket calls."""
    ours, theirs = socket.socketpair()
    with theirs, ThreadPoolExecutor(1) as reader:
        chunks = reader.submit(lambda: [*iter(lambda: theirs.recv(1 << 20), b"")])
        with ours:
            Channel(ours).send(header, body)
        return b"".join(chunks.result())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
headers = st.dictionaries(st.text().filter(lambda key: key != "body"), json_values, max_size=4)


@given(headers, st.binary(max_size=300))
def test_whatever_is_sent_is_received(header, body):
    assert received(sent(header, body)) == (header, body)


def test_a_header_may_be_nested_to_the_limit():
    deep = []
    for _ in range(wire.MAX_NESTING - 2):
        deep = [deep]
    assert received(sent({"a": deep})) == ({"a": deep}, b"")


HOSTILE = {
    "a length of 2^31": struct.pack("!I", 2**31) + b"{}",
    "a length just above the limit": frame(b'{"a":"' + b"x" * wire.MAX_FRAME_BYTES + b'"}'),
    "an empty header": frame(b""),
    "an array": frame(b"[{}]"),
    "no JSON": frame(b"\xff{]"),
    "NaN": frame(b'{"a":NaN}'),
    "infinity by exponent": frame(b'{"a":1e999}'),
    "an integer of 5000 digits": frame(b'{"a":' + b"9" * 5000 + b"}"),
    "a key twice": frame(b'{"a":1,"a":2}'),
    "a key twice, once escaped": frame(b'{"a":1,"\\u0061":2}'),
    "nested too deep": frame(b'{"a":' + b"[" * wire.MAX_NESTING + b"]" * wire.MAX_NESTING + b"}"),
    "arrays without end": frame(b'{"a":' + b"[" * 200_000),
    "a body of true": frame(b'{"body":true}') + frame(b"x"),
    "a body of a float": frame(b'{"body":1.0}') + frame(b"x"),
    "an empty body announced": frame(b'{"body":0}'),
    "a body above the bound": frame(json.dumps({"body": MAX_BODY + 1}).encode()) + frame(b"x" * 65536),
    "an empty piece": frame(b'{"body":2}') + frame(b""),
    "a piece too short": frame(b'{"body":3}') + frame(b"xx") + frame(b"x"),
    "a piece too long": frame(b'{"body":3}') + frame(b"xxxx"),
    "a piece above its limit": frame(b'{"body":70000}') + frame(b"x" * 70000),
    "a piece of 2^31": frame(b'{"body":3}') + struct.pack("!I", 2**31) + b"xxx",
}


@pytest.mark.threat("T-RUN-10", control="strict_headers")
def test_hostile_bytes_are_a_violation():
    assert issubclass(FrameViolation, ProtocolViolation)
    for name, raw in HOSTILE.items():
        with pytest.raises(FrameViolation):
            pytest.fail(f"{name}: {received(raw)}")


@pytest.mark.threat("T-RUN-10", control="bounded_frames")
def test_memory_is_spent_on_what_arrived_and_not_on_what_was_announced():
    for name, raw in {
        "a header of any size": struct.pack("!I", wire.MAX_FRAME_BYTES) + b"{}",
        "a header above its size": struct.pack("!I", 1 << 24) + b"{}",
        "a piece above its size": frame(b'{"body":16777216}') + struct.pack("!I", 1 << 24) + b"x",
    }.items():
        tracemalloc.start()
        tracemalloc.clear_traces()  # Whoever left it on before this test has a peak of his own.
        try:
            raised((EOFError, FrameViolation), received, raw, 1 << 30)
            assert tracemalloc.get_traced_memory()[1] < 1 << 17, name
        finally:
            tracemalloc.stop()


def test_what_the_format_cannot_carry_is_refused_before_a_byte_is_sent(pair):
    cycle, deep = {}, []
    cycle["a"] = cycle
    for _ in range(wire.MAX_NESTING + 1):
        deep = [deep]
    unfit = (float("nan"), object(), b"bytes", "x" * wire.MAX_FRAME_BYTES, deep)
    for header in ({"body": 3}, {1: 1, "1": 2}, cycle, *({"a": each} for each in unfit)):
        raised(Unsendable, Channel(pair[0]).send, header, b"body")
    pair[0].close()
    assert pair[1].recv(1) == b""


def test_a_peer_that_left_also_with_bytes_unread_is_an_end_of_file(pair):
    ours, theirs = pair
    ours.send(b"never read")
    theirs.close()
    with pytest.raises(EOFError):
        Channel(ours).receive(0)
    with pytest.raises(EOFError):
        Channel(ours).send({"a": 1})


def test_every_read_asks_first_and_an_untimely_answer_is_asked_again(pair):
    ours, theirs = pair
    ours.setblocking(False)
    asked = []

    def ready(mask):
        asked.append(mask)
        if len(asked) == 3:  # two answers came too early
            theirs.sendall(frame(b"{}") + frame(b'{"n":2}'))

    assert Channel(ours).receive(0, ready=ready) == ({}, b"")
    assert asked == [select.POLLIN] * 4
    assert ours.recv(100) == frame(b'{"n":2}'), "the next message is left to the kernel"


def test_every_write_asks_first_and_a_full_socket_is_asked_again(pair):
    ours, theirs = pair
    ours.setblocking(False)
    body, taken, asked = b"x" * (1 << 20), bytearray(), []

    def ready(mask):
        asked.append(mask)
        if len(asked) % 50 == 0:
            taken.extend(theirs.recv(1 << 20))

    Channel(ours).send({}, body, ready=ready)
    ours.close()
    while chunk := theirs.recv(1 << 20):
        taken += chunk
    assert set(asked) == {select.POLLOUT}
    assert received(bytes(taken)) == ({}, body)
