"""Anything that a worker may answer, a model may call and a peer may send: what comes of it is bounded."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.memories import CANARY, make_roots, strict
from muniment.confine.cancel import Patience
from muniment.confine.wire import Channel, FrameViolation
from muniment.errors import PathEscape, Refusal, ToolError, WorkerLost
from muniment.names import FenceLayer, Via
from muniment.sandbox import Sandbox
from muniment.testing.strategies import (
    any_calls,
    call_sequences,
    frame,
    frames,
    paths_in,
    plant,
    trees,
    unsafe_paths,
)
from muniment.testing.witness import differences, photograph, sightings
from muniment.tools.remote import MAX_ANSWER_BYTES, RemoteBench, greet

POLICY = strict(limits={"files_written": 2, "write_bytes": 64})
DIGEST = "0" * 64
WORDS = st.sampled_from(
    ["", "allow", "deny", "error", "path_escape", "A", "x" * 41, "a\nb", "symlink", "nul", "\ud800"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
PATHS = st.sampled_from(["user/a.md", "user/../x", "", "/etc/passwd", "x" * 4_097, "\ud800"]) | JSON
DIGESTS = st.sampled_from([None, DIGEST, "f" * 63, "F" * 64, DIGEST + "\n"]) | JSON


@st.composite
def bent(draw, header):
    """A header as drawn, or with one field lost, renamed, of another value, or one more."""
    change = draw(st.sampled_from([None, None, None, "lose", "rename", "value", "more"]))
    if change is None:
        return header
    name = draw(st.sampled_from(sorted(header)))
    changed = {key: value for key, value in header.items() if key != name}
    if change == "rename":
        changed[name.upper()] = header[name]
    elif change == "value":
        changed[name] = draw(JSON)
    elif change == "more":
        changed |= {name: header[name], draw(st.text(max_size=4)): draw(JSON)}
    return changed


def headers(**fields):
    return st.fixed_dictionaries(fields).flatmap(bent)


BODIES = st.sampled_from(
    [b"", b"text\n", b"\xff", b"x" * 40, b"x" * 65, b"\xed\xa0\x80", b"x" * (MAX_ANSWER_BYTES + 1)]
)
READY = headers(t=st.just("ready"), digest=st.sampled_from([POLICY.digest] * 9 + [DIGEST]))
RESULTS = headers(
    t=st.just("result"),
    n=st.sampled_from([1, 1, 2, 3]),
    verdict=WORDS | st.just("allow"),
    code=WORDS | st.none(),
    rule=st.none() | WORDS | st.just("x" * 101),
    via=st.none() | WORDS,
)
ITEMS = st.one_of(
    headers(t=st.just("change"), path=PATHS, base=DIGESTS),
    headers(t=st.just("claim"), path=PATHS, digest=DIGESTS),
    headers(t=st.just("end")),
    headers(t=st.sampled_from(["hello", "ready", "result", "", None])),
)
MISSING = st.dictionaries(
    st.sampled_from([*FenceLayer, "", "full"]) | st.text(max_size=3), st.integers() | JSON
)


class Liar:
    """Where `RemoteBench` expects a worker: says what was drawn, one message after the other."""

    pid = 2**30  # no process has it

    def __init__(self, messages):
        self.messages = deque(messages)
        self.dead = False

    def send(self, *_message, **_terms):
        self.check_alive()

    def receive(self, *, max_body, deadline, cancel):
        del deadline, cancel
        self.check_alive()
        if not self.messages:
            self.kill()
            raise WorkerLost("it left")
        header, body = self.messages.popleft()
        if len(body) > max_body:  # The channel's part: it takes no body above what is asked for.
            self.kill()
            raise WorkerLost("it said too much")
        return dict(header), body

    def request(self, _header, _body=b"", *, max_body, deadline, cancel):
        self.check_alive()
        return self.receive(max_body=max_body, deadline=deadline, cancel=cancel)

    def kill(self):
        self.dead = True

    def check_alive(self):
        if self.dead:
            raise WorkerLost("it is gone")


def lost(liar, action):
    """What the action comes to; None if the worker was lost by it, and then it is dead."""
    try:
        return action()
    except WorkerLost as gone:
        told = str(gone)
    assert liar.dead, told
    assert told.isprintable()
    return None


def patience():
    return Patience(time.monotonic() + 5)


def opened(liar):
    return RemoteBench(liar, POLICY, ("user",), must_read=False, patience=patience)


@given(st.tuples(READY, BODIES), st.lists(st.tuples(RESULTS, BODIES), max_size=3), st.data())
def test_any_answers_are_outcomes_or_the_end_of_the_worker(ready, results, data):
    liar = Liar([ready, *results])
    bench = lost(liar, lambda: opened(liar))
    if bench is None:
        return
    assert ready[0]["digest"] == POLICY.digest
    for number, (header, body) in enumerate(results, start=1):
        tool = data.draw(st.sampled_from(["ls", "write_file"]))
        call = partial(bench.call, tool, {"path": "user/a.md", "content": "x"})
        outcome = lost(liar, call)
        if outcome is None:
            return
        assert header["n"] == number
        assert outcome.verdict in {"allow", "deny", "error"}
        assert (outcome.verdict == "allow") == (outcome.code is None)
        assert outcome.code is None or re.fullmatch("[a-z_]{1,40}", outcome.code)
        assert outcome.text.encode() == body
        assert len(body) <= MAX_ANSWER_BYTES


@given(st.integers(0, 2), st.lists(st.tuples(ITEMS, BODIES), max_size=6))
@example(
    0,
    [({"t": "change", "path": f"user/{n}.md", "base": None}, b"x" * 40) for n in "ab"]
    + [({"t": "end"}, b"")],
)
def test_any_change_set_is_bounded_and_well_formed_or_the_end_of_the_worker(calls, items):
    ready = {"t": "ready", "digest": POLICY.digest}
    results = [
        {"t": "result", "n": number + 1, "verdict": "allow", "code": None, "rule": None, "via": None}
        for number in range(calls)
    ]
    liar = Liar([*((header, b"") for header in (ready, *results)), *items])
    bench = opened(liar)
    for _ in range(calls):
        assert bench.call("ls", {"path": ""}).verdict == "allow"
    proposed = lost(liar, bench.change_set)
    if proposed is None:
        return
    assert len(proposed.changes) <= POLICY.limits.files_written
    assert sum(len(item.content) for item in proposed.changes) <= POLICY.limits.write_bytes
    assert len(proposed.claims) <= calls
    claimed = [(item.unsafe_path, item.digest) for item in proposed.claims]
    for path, digest in [*((item.unsafe_path, item.base) for item in proposed.changes), *claimed]:
        assert isinstance(path, str)
        assert len(path) <= 4_096
        assert digest is None or re.fullmatch("[0-9a-f]{64}", digest)


@given(headers(t=st.just("hello"), missing=MISSING))
def test_any_greeting_is_believed_in_layers_that_are_missing_or_ends_the_worker(header):
    liar = Liar([(header, b"")])
    held = lost(liar, lambda: greet(liar, patience()))
    if held is not None:
        assert set(header["missing"]) <= set(held.missing) <= set(FenceLayer)
        # No such process: what only the kernel can tell is missing whatever the worker says.
        assert {FenceLayer.SECCOMP, FenceLayer.NO_NEW_PRIVS, FenceLayer.CAPABILITIES} <= set(held.missing)
        assert held.enforcement != "full"


def test_an_honest_worker_is_not_lost():
    liar = Liar([({"t": "ready", "digest": POLICY.digest}, b""), ({"t": "end"}, b"")])
    assert opened(liar).change_set().changes == ()


# -- any call of any shape to the five tools -----------------------------------------------------------


CODES = {error.code for kind in (Refusal, ToolError) for error in kind.__subclasses__()} | {PathEscape.code}


@st.composite
def scenes(draw):
    """A tree for the scope `user`, and calls that aim at it."""
    tree = draw(trees())
    paths = unsafe_paths([*paths_in(tree), "note.md", "topic", "a.md"])
    return tree, draw(call_sequences(paths) | st.lists(any_calls(paths), min_size=1, max_size=6))


def joined(value):
    """Two halves of a character side by side are one for JSON; so a model can send nothing else."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, dict):
        return {joined(key): joined(part) for key, part in value.items()}
    return [joined(part) for part in value] if isinstance(value, list) else value


def check_outcome(outcome):
    assert (outcome.verdict == "allow") == (outcome.code is None)
    assert outcome.code is None or outcome.code in CODES
    assert (outcome.code == "path_escape") == (outcome.via is not None)
    assert outcome.via is None or outcome.via in set(Via)
    if outcome.verdict != "allow":
        assert outcome.text.isprintable()
        assert len(outcome.text) < 3_000
    outcome.text.encode()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(scenes())
@settings(max_examples=200)
def test_any_calls_over_any_tree_come_to_the_same_outcomes_with_a_worker_and_without(scene):
    tree, calls = scene
    with tempfile.TemporaryDirectory() as base:
        roots = make_roots(Path(base))
        plant(tree, roots["user"], outside=Path(base) / "outside")
        trees_before = {name: Path(base) / name for name in ("outside", "user", "project")}
        before = photograph(trees_before)
        policy = strict(on_escape="refuse", require="none")
        with Sandbox(policy, roots) as behind, Sandbox(policy, roots, in_process=True) as here:
            for tool, arguments in calls:
                tool, arguments = joined(tool), joined(arguments)  # noqa: PLW2901 - what a model can really send
                outcome = here.call(tool, arguments)
                check_outcome(outcome)
                assert behind.call(tool, arguments) == outcome
                assert CANARY not in outcome.text
                assert str(base) not in outcome.text
            changes = here.changes()
            assert behind.changes() == changes
        after = photograph(trees_before)
        assert differences(before, after, reads=False) == []
        assert [line for line in differences(before, after) if line.startswith("'outside")] == []
        assert sightings(CANARY, {"changes": changes}) == []


# -- the reader of frames against a second one, written from the description ---------------------------


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
    bare = re.sub(r'"(?:\\.|[^"\\])*"?', "", text, flags=re.DOTALL)
    steps = ({"[": 1, "{": 1, "]": -1, "}": -1}.get(char, 0) for char in bare)
    return max(itertools.accumulate(steps), default=0)


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
