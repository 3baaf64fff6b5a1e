"""A workbench in a worker answers exactly as one in this process, and the service as its protocol says."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.memories import SCOPES, descriptors, handles, make_roots, put, strict
from muniment.confine.cancel import Patience
from muniment.confine.root import read_links
from muniment.confine.wire import Channel, ProtocolViolation
from muniment.errors import WorkerLost
from muniment.names import FenceLayer
from muniment.policy.decide import dump
from muniment.policy.grammar import NO_LINKS
from muniment.tools.remote import RemoteBench, greet
from muniment.tools.service import serve, warm
from muniment.tools.workbench import Workbench


def patience():
    return Patience(time.monotonic() + 30)


def remote(worker, policy, links=NO_LINKS):
    greet(worker, patience())
    return RemoteBench(worker, policy, SCOPES, must_read=True, patience=patience, links=links)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    roots = make_roots(tmp_path_factory.mktemp("memory"))
    put(roots["user"], "a.md", "one\ntwo\n")
    put(roots["user"], "topic/b.md", "b\r\n")
    put(roots["user"], "bytes.md", b"\xff")
    put(roots["user"], ".hidden.md")
    put(roots["project"], "c.md", "é" * 300)
    (roots["user"] / "link.md").symlink_to(roots["user"].parent / "outside" / "secret.md")
    (roots["user"] / "within.md").symlink_to("topic/b.md")
    (roots["user"] / "odd.md").symlink_to(os.fsdecode(b"\xff\n.md"))
    (roots["user"] / "hard.md").hardlink_to(roots["user"].parent / "outside" / "secret.md")
    return handles(roots)


PATHS = st.sampled_from(
    [
        "",
        "user",
        "user/",
        "user/a.md",
        "user/A.md",
        "user/topic",
        "user/topic/b.md",
        "user/bytes.md",
        "user/.hidden.md",
        "user/link.md",
        "user/within.md",
        "user/odd.md",
        "user/hard.md",
        "user/new.md",
        "user/a.md/x.md",
        "project/c.md",
        "/memories/user/a.md",
        "user/../a.md",
        "/etc/passwd",
        "user/\ud800.md",
        "a" * 1100,
    ]
)
TEXTS = st.sampled_from(["", "one", "two", "t", "é", "(", "\ud800", "\u202e", "\0", "x\ny\n", "x" * 140_000])
VALUES = PATHS | TEXTS | st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats()
NAMES = st.sampled_from(
    [
        "path",
        "content",
        "pattern",
        "old_string",
        "new_string",
        "offset",
        "limit",
        "replace_all",
        "ignore_case",
    ]
)
PLAUSIBLE = st.one_of(
    st.tuples(
        st.just("read_file"), st.fixed_dictionaries({"path": PATHS}, optional={"offset": st.integers(-1, 3)})
    ),
    st.tuples(st.just("ls"), st.fixed_dictionaries({"path": PATHS})),
    st.tuples(st.just("grep"), st.fixed_dictionaries({"pattern": TEXTS}, optional={"path": PATHS})),
    st.tuples(st.just("write_file"), st.fixed_dictionaries({"path": PATHS, "content": TEXTS})),
    st.tuples(
        st.just("edit"),
        st.fixed_dictionaries(
            {"path": PATHS, "old_string": TEXTS, "new_string": TEXTS}, optional={"replace_all": st.booleans()}
        ),
    ),
)
ODD = st.tuples(
    st.sampled_from(["read_file", "ls", "grep", "write_file", "edit", "bash", ""]) | st.none() | st.just([]),
    st.dictionaries(NAMES | st.text(max_size=3), VALUES, max_size=3)
    | VALUES
    | st.recursive(st.none(), st.lists, max_leaves=3)
    | st.dictionaries(st.integers(), st.integers(), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(calls=st.lists(PLAUSIBLE | ODD, max_size=12), beneath=st.booleans())
def test_both_benches_answer_alike_and_propose_the_same(zygote, roots, calls, beneath):
    policy = strict()
    links = {scope: read_links(root) for scope, root in roots.items()} if beneath else {}
    here = Workbench(policy, SCOPES, roots, must_read=True, links=links)
    with zygote.spawn(
        {scope: root.fd for scope, root in roots.items()}, deadline=patience().deadline
    ) as worker:
        there = remote(worker, policy, links)
        for tool, arguments in calls:
            ours, theirs = here.call(tool, arguments), there.call(tool, arguments)
            if "no JSON object" in theirs.text:  # NaN and the like never leave the broker.
                assert ours.code == theirs.code == "bad_arguments"
            else:
                assert ours == theirs
        assert here.change_set() == there.change_set()


@pytest.mark.parametrize("depth", [10, 500, *range(970, 1000), 5000])
def test_no_nesting_costs_the_worker_its_life(zygote, depth):
    value = []
    for _ in range(depth):
        value = [value]
    with zygote.spawn({}, deadline=patience().deadline) as worker:
        bench = remote(worker, strict())
        assert bench.call("ls", {"path": value}).code == "bad_arguments"
        assert bench.call("ls", {"path": ""}).verdict == "allow"


def test_what_is_too_large_to_send_is_answered_by_the_broker(zygote):
    with zygote.spawn({}, deadline=patience().deadline) as worker:
        bench = remote(worker, strict())
        assert bench.call("ls", {"path": "x" * 5000}).code == "bad_name"
        assert bench.call("ls", {"path": "", "more": "x" * (17 << 20)}).code == "too_large"
        assert bench.call("ls", {"path": {1, 2}}).code == "bad_arguments"
        assert bench.call("ls", {"path": object()}).code == "bad_arguments"


def framed(data):
    return struct.pack("!I", len(data)) + data


NO_MESSAGES = {
    "a header of 2^31 bytes": struct.pack("!I", 2**31) + b"{}",
    "a header of 2^32 - 1 bytes": b"\xff" * 64,
    "a body of 2^31 bytes": framed(b'{"t":"init","body":2147483648}'),
    "a piece of 2^31 bytes": framed(b'{"t":"init","body":2}') + struct.pack("!I", 2**31) + b"{}",
    "zeros": bytes(1 << 16),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "nesting": framed(b'{"t":' + b"[" * 100_000),
}


@pytest.mark.parametrize("is_set_up", [False, True], ids=["first", "among calls"])
@pytest.mark.parametrize("sent", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_a_fenced_worker_that_hears_no_message_ends_with_a_code_of_its_own(zygote, sent, is_set_up):
    with zygote.spawn({}, deadline=patience().deadline) as worker:
        if is_set_up:
            remote(worker, strict())
        else:
            greet(worker, patience())
        worker._sock.send(sent)
        with pytest.raises(WorkerLost, match=r"exit code 65 .frame"):
            worker.receive(max_body=0, deadline=patience().deadline)


class Served:
    """The service on a thread of this process, spoken to as the broker does."""

    def __init__(self, roots):
        ours, theirs = socket.socketpair()
        self.ours, self.channel, self.failure = ours, Channel(ours), None
        self._thread = threading.Thread(target=self._serve, args=(theirs, roots))
        self._thread.start()
        assert self.channel.receive(0) == ({"t": "hello", "missing": {"mdwe": 22}}, b"")

    def _serve(self, sock, roots):
        with sock:
            try:
                serve(sock, roots, {FenceLayer.MDWE: 22})
            except (ProtocolViolation, KeyError) as failure:
                self.failure = failure

    def ask(self, header, body=b""):
        self.channel.send(header, body)
        return self.channel.receive(1 << 20)

    def end(self):
        self.ours.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.failure


@pytest.fixture
def served(roots):
    return Served({scope: root.fd for scope, root in roots.items()})


def begin(served):
    terms = {"t": "init", "scopes": list(SCOPES), "must_read": True}
    return served.ask(terms, dump(strict()).encode())


def test_the_service_follows_its_protocol_to_the_end(served):
    assert begin(served) == ({"t": "ready", "digest": strict().digest}, b"")
    header, text = served.ask(
        {"t": "call", "n": 1, "tool": "read_file"}, json.dumps({"path": "user/a.md"}).encode()
    )
    assert header == {"t": "result", "n": 1, "verdict": "allow", "code": None, "rule": None, "via": None}
    assert text == b"1\tone\n2\ttwo"
    header, _ = served.ask({"t": "call", "n": 2, "tool": "ls"}, b"[" * 100_000)
    assert header["code"] == "bad_arguments"
    header, _ = served.ask({"t": "call", "n": 3, "tool": "ls"}, b'{"path": "user/.."}')
    assert (header["code"], header["via"]) == ("path_escape", "dotdot")
    new = json.dumps({"path": "user/new.md", "content": "x"}).encode()
    assert served.ask({"t": "call", "n": 4, "tool": "write_file"}, new)[0]["verdict"] == "allow"
    assert served.ask({"t": "changes"}) == ({"t": "change", "path": "user/new.md", "base": None}, b"x")
    claims = [served.channel.receive(0)[0] for _ in range(2)]
    assert [claim["path"] for claim in claims] == ["user/a.md", "user/new.md"]
    assert served.channel.receive(0) == ({"t": "end"}, b"")
    assert served.end() is None


def begin_with_links(served, *messages):
    terms = {"t": "init", "scopes": list(SCOPES), "must_read": True, "links": list(SCOPES)}
    served.channel.send(terms, dump(strict()).encode())
    for header, body in messages:
        served.channel.send(header, body)


def test_the_service_takes_the_links_of_each_scope_in_turn(served):
    begin_with_links(
        served, ({"t": "links"}, b'{"l.md": "topic/b.md"}'), ({"t": "links"}, b'{"l.md": "c.md"}')
    )
    assert served.channel.receive(0)[0]["t"] == "ready"
    for path in ("user/l.md", "project/l.md"):
        header, text = served.ask(
            {"t": "call", "n": 1, "tool": "read_file"}, json.dumps({"path": path}).encode()
        )
        assert header["verdict"] == "allow"
        assert f"[{path} leads to " in text.decode()
    assert served.end() is None


def test_a_broker_that_promises_links_and_goes_on_without_is_left(served):
    begin_with_links(served, ({"t": "links"}, b"{}"), ({"t": "changes"}, b""))
    with pytest.raises(EOFError):
        served.channel.receive(0)
    assert isinstance(served.end(), ProtocolViolation)


@pytest.mark.parametrize("header", [{"t": "call"}, {}, {"t": "changes"}])
def test_a_broker_that_does_not_begin_with_the_terms_is_left(served, header):
    served.channel.send(header)
    with pytest.raises(EOFError):
        served.channel.receive(0)
    assert isinstance(served.end(), ProtocolViolation)


def test_a_broker_that_asks_for_something_unknown_is_left(served):
    begin(served)
    served.channel.send({"t": "shutdown"})
    with pytest.raises(EOFError):
        served.channel.receive(0)
    assert isinstance(served.end(), ProtocolViolation)


def test_warming_touches_no_file_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = descriptors()
    warm()
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []
