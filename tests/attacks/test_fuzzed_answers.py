"""Any answer of a worker, call of a model and message of a peer has a bounded effect."""

import re
from collections import deque
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.memories import make_strict_policy
from kit.store.bench import make_deadline
from kit.strategies.frames import frames
from muniment.errors import PathEscape, Refusal, WorkerLost
from muniment.kernel.path import CanonicalPath
from muniment.sandbox.fence.wire import Channel, FrameViolation
from muniment.sandbox.tools.remote import MAX_RESULT_BYTES, RemoteExecutor

POLICY = make_strict_policy(limits={"files_written": 2, "write_bytes": 64})
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
def mutate_header(draw, header):
    """Return the header as drawn, or with one field removed, renamed, changed or added."""
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


def make_headers(**fields):
    return st.fixed_dictionaries(fields).flatmap(mutate_header)


BODIES = st.sampled_from(
    [b"", b"text\n", b"\xff", b"x" * 40, b"x" * 65, b"\xed\xa0\x80", b"x" * (MAX_RESULT_BYTES + 1)]
)
READY = make_headers(t=st.just("ready"), digest=st.sampled_from([POLICY.digest] * 9 + [DIGEST]))
OUTCOMES = {"verdict": WORDS | st.just("allow"), "code": WORDS | st.none(), "via": st.none() | WORDS}
RULES = st.none() | WORDS | st.just("x" * 101)
RESULTS = make_headers(t=st.just("result"), n=st.sampled_from([1, 1, 2, 3]), rule=RULES, **OUTCOMES)
ITEMS = st.one_of(
    make_headers(t=st.just("change"), path=PATHS, base=DIGESTS),
    make_headers(t=st.just("claim"), path=PATHS, digest=DIGESTS),
    make_headers(t=st.just("end")),
    make_headers(t=st.sampled_from(["hello", "ready", "result", "", None])),
)


END = ({"t": "end"}, b"")


class Liar:
    """A substitute for the worker of `RemoteExecutor`: returns the drawn messages one after the other."""

    pid = 2**30  # no process has it

    def __init__(self, messages):
        self.messages = deque(messages)
        self.dead = False

    def send(self, *_message, **_terms):
        self.check_alive()

    def receive(self, *, max_body, deadline):
        del deadline
        self.check_alive()
        if not self.messages:
            self.kill()
            raise WorkerLost("it left")
        header, body = self.messages.popleft()
        if len(body) > max_body:  # The real channel rejects a larger body.
            self.kill()
            raise WorkerLost("the answer is too large")
        return dict(header), body

    def request(self, _header, _body=b"", *, max_body, deadline):
        self.check_alive()
        return self.receive(max_body=max_body, deadline=deadline)

    def kill(self):
        self.dead = True

    def check_alive(self):
        if self.dead:
            raise WorkerLost("it is gone")


def run_or_lose(liar, action):
    """Return the result of the action, or None if it lost the worker, which is then dead."""
    try:
        return action()
    except WorkerLost as gone:
        message = str(gone)
    assert liar.dead, message
    assert message.isprintable()
    return None


def open_bench(liar):
    return RemoteExecutor(liar, POLICY, ("user",), must_read=False, get_deadline=make_deadline)


@given(st.tuples(READY, BODIES), st.lists(st.tuples(RESULTS, BODIES), max_size=3), st.data())
def test_any_answer_is_an_outcome_or_loses_the_worker(ready, results, data):
    liar = Liar([ready, *results])
    bench = run_or_lose(liar, lambda: open_bench(liar))
    if bench is None:
        return
    assert ready[0]["digest"] == POLICY.digest
    for number, (header, body) in enumerate(results, start=1):
        tool = data.draw(st.sampled_from(["ls", "write_file"]))
        call = partial(bench.call, tool, {"path": "user/a.md", "content": "x"})
        outcome = run_or_lose(liar, call)
        if outcome is None:
            return
        assert header["n"] == number
        assert outcome.verdict in {"allow", "deny", "error"}
        assert (outcome.verdict == "allow") == (outcome.code is None)
        assert outcome.code is None or re.fullmatch("[a-z_]{1,40}", outcome.code)
        assert outcome.text.encode() == body
        assert len(body) <= MAX_RESULT_BYTES


RESULT = {"t": "result", "n": 1, "verdict": "deny", "code": "a", "rule": None, "via": "symlink"}
CHANGE = {"t": "change", "path": "user/a.md", "base": DIGEST}
LONG_PATH = "user/" + "x" * 16_400
INVALID = (
    *(RESULT | each for each in ({"n": True}, {"n": 1.0}, {"n": "1"}, {"verdict": "ALLOW"}, {"more": 1})),
    *(RESULT | {"code": each} for each in ("", "A", "a\n", "x" * 41, 1)),
    *(RESULT | {"rule": each} for each in ("x" * 101, "\ud800", [])),
    *(RESULT | {"via": each} for each in ("", "SYMLINK", "symlink\n", {})),
    *({name: value for name, value in RESULT.items() if name != lost} for lost in RESULT),
    *(CHANGE | {"base": each} for each in (DIGEST + "\n", "F" * 64, "0" * 63, "", False)),
    *(CHANGE | {"path": each} for each in (LONG_PATH, "user/\ud800.md", None, ["user/a.md"])),
    *({**CHANGE, "t": each} for each in ("claim", "end", "result", None, [], {})),
)


@pytest.mark.parametrize("header", INVALID, ids=map(str, range(len(INVALID))))
def test_invalid_member_of_a_message_loses_the_worker(header):
    liar = Liar([({"t": "ready", "digest": POLICY.digest}, b""), (header, b"")])
    bench = open_bench(liar)
    is_result = "path" not in header
    action = partial(bench.call, "ls", {"path": ""}) if is_result else bench.change_set
    assert run_or_lose(liar, action) is None
    assert liar.dead


@given(st.integers(0, 2), st.lists(st.tuples(ITEMS, BODIES), max_size=6))
@example(0, [*(({"t": "change", "path": f"user/{n}.md", "base": None}, b"x" * 40) for n in "ab"), END])
def test_any_change_set_is_valid_or_loses_the_worker(calls, items):
    ready = {"t": "ready", "digest": POLICY.digest}
    allowed = {"t": "result", "verdict": "allow", "code": None, "rule": None, "via": None}
    results = (allowed | {"n": number + 1} for number in range(calls))
    liar = Liar([*((header, b"") for header in (ready, *results)), *items])
    bench = open_bench(liar)
    for _ in range(calls):
        assert bench.call("ls", {"path": ""}).verdict == "allow"
    try:
        proposed = run_or_lose(liar, bench.change_set)
    except (PathEscape, Refusal):
        return
    if proposed is None:
        return
    assert len(proposed.changes) <= POLICY.limits.files_written
    assert sum(item.size for item in proposed.changes) <= POLICY.limits.write_bytes
    assert len(proposed.claims) <= calls
    claimed = [(item.path, item.digest) for item in proposed.claims]
    for path, digest in [*((item.path, item.base) for item in proposed.changes), *claimed]:
        assert isinstance(path, CanonicalPath)
        assert len(path) <= 4_096
        assert digest is None or re.fullmatch("[0-9a-f]{64}", digest)


PIECE_BYTES = 64 * 1024
BODY_BYTES = st.sampled_from([0, 3, 1 << 20])


class Feed:
    """The receiving half of a socket: it returns the bytes in small pieces, then the end of file."""

    def __init__(self, data, most):
        self.data, self.most = data, most

    def recv(self, size):
        assert size <= PIECE_BYTES
        piece, self.data = self.data[: min(size, self.most)], self.data[min(size, self.most) :]
        return piece


@settings(max_examples=max(100, settings().max_examples))
@given(frames() | st.binary(max_size=300), st.sampled_from([1, 7, 4096, 1 << 20]), BODY_BYTES)
def test_any_stream_is_a_bounded_message_or_a_violation(stream, most, max_body):
    feed = Feed(stream, most)
    try:
        header, body = Channel(feed).receive(max_body)
    except (FrameViolation, EOFError):
        return
    assert isinstance(header, dict)
    assert len(body) <= max_body
    rest = Feed(stream[: len(stream) - len(feed.data)], 1 << 20)
    assert (Channel(rest).receive(max_body), rest.data) == ((header, body), b"")
