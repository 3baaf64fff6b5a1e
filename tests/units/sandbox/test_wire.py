"""Framing against hostile bytes: `muniment.sandbox.fence.wire`; random streams: `test_fuzzed_answers.py`."""

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

from kit.catching import catch_error
from kit.strategies.frames import frame
from muniment.sandbox.fence import wire
from muniment.sandbox.fence.wire import Channel, FrameViolation, ProtocolViolation, Unsendable

MAX_BODY = 1 << 20


@pytest.fixture
def pair():
    local_socket, peer_socket = socket.socketpair()
    with local_socket, peer_socket:
        yield local_socket, peer_socket


def receive(raw, max_body=MAX_BODY):
    """Return what a channel receives from these bytes and the following end of file."""
    local_socket, peer_socket = socket.socketpair()

    def feed():
        with peer_socket, suppress(OSError):
            peer_socket.sendall(raw)

    with ThreadPoolExecutor(1) as feeder, local_socket:
        feeder.submit(feed)
        return Channel(local_socket).receive(max_body)


def encode(header, body=b""):
    """Return the bytes that a channel sends for a message, read by plain socket calls."""
    local_socket, peer_socket = socket.socketpair()
    with peer_socket, ThreadPoolExecutor(1) as reader:
        chunks = reader.submit(lambda: [*iter(lambda: peer_socket.recv(1 << 20), b"")])
        with local_socket:
            Channel(local_socket).send(header, body)
        return b"".join(chunks.result())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
headers = st.dictionaries(st.text().filter(lambda key: key != "body"), json_values, max_size=4)


@given(headers, st.binary(max_size=300))
def test_sent_message_is_received_unchanged(header, body):
    assert receive(encode(header, body)) == (header, body)


def test_header_may_be_nested_to_the_limit():
    deep = []
    for _ in range(wire.MAX_NESTING - 2):
        deep = [deep]
    assert receive(encode({"a": deep})) == ({"a": deep}, b"")


HOSTILE = {
    "a length of 2^31": struct.pack("!I", 2**31) + b"{}",
    "a length just above the limit": frame(b'{"a":"' + b"x" * wire.MAX_FRAME_BYTES + b'"}'),
    "an empty header": frame(b""),
    "an array": frame(b"[{}]"),
    "not JSON": frame(b"\xff{]"),
    "NaN": frame(b'{"a":NaN}'),
    "infinity by exponent": frame(b'{"a":1e999}'),
    "an integer of 5000 digits": frame(b'{"a":' + b"9" * 5000 + b"}"),
    "a duplicate key": frame(b'{"a":1,"a":2}'),
    "a duplicate key, once escaped": frame(b'{"a":1,"\\u0061":2}'),
    "nested too deep": frame(b'{"a":' + b"[" * wire.MAX_NESTING + b"]" * wire.MAX_NESTING + b"}"),
    "endless arrays": frame(b'{"a":' + b"[" * 200_000),
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
            pytest.fail(f"{name}: {receive(raw)}")


@pytest.mark.threat("T-RUN-10", control="bounded_frames")
def test_memory_is_spent_only_on_bytes_that_arrived():
    for name, raw in {
        "a header of any size": struct.pack("!I", wire.MAX_FRAME_BYTES) + b"{}",
        "a header above its size": struct.pack("!I", 1 << 24) + b"{}",
        "a piece above its size": frame(b'{"body":16777216}') + struct.pack("!I", 1 << 24) + b"x",
    }.items():
        tracemalloc.start()
        tracemalloc.clear_traces()  # Discard allocations that were traced before this test.
        try:
            catch_error((EOFError, FrameViolation), receive, raw, 1 << 30)
            assert tracemalloc.get_traced_memory()[1] < 1 << 17, name
        finally:
            tracemalloc.stop()


def test_unsendable_message_is_rejected_before_a_byte_is_sent(pair):
    cycle, deep = {}, []
    cycle["a"] = cycle
    for _ in range(wire.MAX_NESTING + 1):
        deep = [deep]
    unfit = (float("nan"), object(), b"bytes", "x" * wire.MAX_FRAME_BYTES, deep)
    for header in ({"body": 3}, {1: 1, "1": 2}, cycle, *({"a": each} for each in unfit)):
        catch_error(Unsendable, Channel(pair[0]).send, header, b"body")
    pair[0].close()
    assert pair[1].recv(1) == b""


def test_closed_peer_is_an_end_of_file_even_with_unread_bytes(pair):
    local_socket, peer_socket = pair
    local_socket.send(b"never read")
    peer_socket.close()
    with pytest.raises(EOFError):
        Channel(local_socket).receive(0)
    with pytest.raises(EOFError):
        Channel(local_socket).send({"a": 1})


def test_every_read_waits_and_is_retried_after_a_false_wakeup(pair):
    local_socket, peer_socket = pair
    local_socket.setblocking(False)
    waits = []

    def ready(mask):
        waits.append(mask)
        if len(waits) == 3:  # two wakeups came too early
            peer_socket.sendall(frame(b"{}") + frame(b'{"n":2}'))

    assert Channel(local_socket).receive(0, ready=ready) == ({}, b"")
    assert waits == [select.POLLIN] * 4
    assert local_socket.recv(100) == frame(b'{"n":2}'), "the next message is left to the kernel"


def test_every_write_waits_first_and_is_retried_on_a_full_socket(pair):
    local_socket, peer_socket = pair
    local_socket.setblocking(False)
    body, received, waits = b"x" * (1 << 20), bytearray(), []

    def ready(mask):
        waits.append(mask)
        if len(waits) % 50 == 0:
            received.extend(peer_socket.recv(1 << 20))

    Channel(local_socket).send({}, body, ready=ready)
    local_socket.close()
    while chunk := peer_socket.recv(1 << 20):
        received += chunk
    assert set(waits) == {select.POLLOUT}
    assert receive(bytes(received)) == ({}, body)
