"""A workbench in a worker answers exactly as one in this process, and the service as its protocol says."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.confine.probe import nothing_left_open
from kit.memories import SCOPES, handles, make_roots, put, strict
from muniment.confine.cancel import Patience
from muniment.confine.root import read_links
from muniment.confine.wire import Channel, ProtocolViolation
from muniment.errors import WorkerLost
from muniment.names import FenceLayer
from muniment.policy.decide import dump
from muniment.policy.grammar import NO_LINKS
from muniment.testing.strategies import frame
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
    user, secret = roots["user"], roots["user"].parent / "outside" / "secret.md"
    for rel, content in (
        ("a.md", "one\ntwo\n"),
        ("topic/b.md", "b\r\n"),
        ("bytes.md", b"\xff"),
        (".hidden.md", "x"),
    ):
        put(user, rel, content)
    put(roots["project"], "c.md", "é" * 300)
    for name, target in (
        ("link.md", secret),
        ("within.md", "topic/b.md"),
        ("odd.md", os.fsdecode(b"\xff\n.md")),
    ):
        (user / name).symlink_to(target)
    (user / "hard.md").hardlink_to(secret)
    return handles(roots)


IN_USER = [
    *("", "a.md", "A.md", "topic", "topic/b.md", "bytes.md", ".hidden.md", "link.md", "within.md", "odd.md"),
]
IN_USER += ["hard.md", "new.md", "a.md/x.md", "../a.md", "\ud800.md"]
PATHS = st.sampled_from(
    [
        *(f"user/{rel}" for rel in IN_USER),
        "",
        "user",
        "project/c.md",
        "/memories/user/a.md",
        "/etc/passwd",
        "a" * 1100,
    ]
)
TEXTS = st.sampled_from(["", "one", "two", "t", "é", "(", "\ud800", "\u202e", "\0", "x\ny\n", "x" * 140_000])
VALUES = PATHS | TEXTS | st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats()
NAMES = st.sampled_from(
    [
        *("path", "content", "pattern", "old_string", "new_string", "offset", "limit", "replace_all"),
        "ignore_case",
    ]
)
CALLS = {
    "read_file": ({"path": PATHS}, {"offset": st.integers(-1, 3)}),
    "ls": ({"path": PATHS}, {}),
    "grep": ({"pattern": TEXTS}, {"path": PATHS}),
    "write_file": ({"path": PATHS, "content": TEXTS}, {}),
    "edit": ({"path": PATHS, "old_string": TEXTS, "new_string": TEXTS}, {"replace_all": st.booleans()}),
}
PLAUSIBLE = st.one_of(
    st.tuples(st.just(tool), st.fixed_dictionaries(needed, optional=more))
    for tool, (needed, more) in CALLS.items()
)
ODD = st.tuples(
    st.sampled_from([*CALLS, "bash", ""]) | st.none() | st.just([]),
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
    fds = {scope: root.fd for scope, root in roots.items()}
    with zygote.spawn(fds, deadline=patience().deadline) as worker:
        there = remote(worker, policy, links)
        for tool, arguments in calls:
            ours, theirs = here.call(tool, arguments), there.call(tool, arguments)
            if "no JSON object" in theirs.text:  # NaN and the like never leave the broker.
                assert ours.code == theirs.code == "bad_arguments"
            else:
                assert ours == theirs
        assert here.change_set() == there.change_set()


def test_no_nesting_and_no_size_costs_the_worker_its_life(zygote):
    with zygote.spawn({}, deadline=patience().deadline) as worker:
        bench = remote(worker, strict())
        for depth in (10, 500, *range(970, 1000), 5000):
            value = []
            for _ in range(depth):
                value = [value]
            assert bench.call("ls", {"path": value}).code == "bad_arguments"
        assert bench.call("ls", {"path": "x" * 5000}).code == "bad_name"
        assert bench.call("ls", {"path": "", "more": "x" * (17 << 20)}).code == "too_large"
        assert bench.call("ls", {"path": {1, 2}}).code == "bad_arguments"
        assert bench.call("ls", {"path": object()}).code == "bad_arguments"
        assert bench.call("ls", {"path": ""}).verdict == "allow"


NO_MESSAGES = {
    "a header of 2^31 bytes": struct.pack("!I", 2**31) + b"{}",
    "a header of 2^32 - 1 bytes": b"\xff" * 64,
    "a body of 2^31 bytes": frame(b'{"t":"init","body":2147483648}'),
    "a piece of 2^31 bytes": frame(b'{"t":"init","body":2}') + struct.pack("!I", 2**31) + b"{}",
    "zeros": bytes(1 << 16),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "nesting": frame(b'{"t":' + b"[" * 100_000),
}


def test_a_fenced_worker_that_hears_no_message_ends_with_a_code_of_its_own(zygote, subtests):
    for number, (name, sent) in enumerate(NO_MESSAGES.items()):
        with subtests.test(name), zygote.spawn({}, deadline=patience().deadline) as worker:
            _ = remote(worker, strict()) if number % 2 else greet(worker, patience())
            worker._sock.send(sent)
            with pytest.raises(WorkerLost, match=r"exit code 65 .frame"):
                worker.receive(max_body=0, deadline=patience().deadline)


# -- the service on a thread of this process, spoken to as the broker does ---------------------------------


class Served:
    def __init__(self, sock):
        self.channel = Channel(sock)
        assert self.channel.receive(0) == ({"t": "hello", "missing": {"mdwe": 22}}, b"")

    def ask(self, header, body=b""):
        self.channel.send(header, body)
        return self.channel.receive(1 << 20)

    def begin(self, **more):
        terms = {"t": "init", "scopes": list(SCOPES), "must_read": True, **more}
        self.channel.send(terms, dump(strict()).encode())

    def call(self, number, tool, **arguments):
        header, text = self.ask({"t": "call", "n": number, "tool": tool}, json.dumps(arguments).encode())
        assert header["n"] == number
        return header, text.decode()


@contextmanager
def served(roots, failure=None):
    """Until it ends, as it should; by what."""
    ours, theirs = socket.socketpair()
    fds = {scope: root.fd for scope, root in roots.items()}
    with theirs, ThreadPoolExecutor(1) as thread:

        def run():
            with theirs:
                serve(theirs, fds, {FenceLayer.MDWE: 22})

        ended = thread.submit(run)
        with ours:
            yield Served(ours)
            if failure is not None:
                with pytest.raises(EOFError):
                    ours.recv(1) or Channel(ours).receive(0)
        assert type(ended.exception(10)) is (failure or type(None))


def test_the_service_follows_its_protocol_to_the_end(roots):
    with served(roots) as service:
        service.begin()
        assert service.channel.receive(0) == ({"t": "ready", "digest": strict().digest}, b"")
        header, text = service.call(1, "read_file", path="user/a.md")
        assert header == {"t": "result", "n": 1, "verdict": "allow", "code": None, "rule": None, "via": None}
        assert text == "1\tone\n2\ttwo"
        header, _ = service.ask({"t": "call", "n": 2, "tool": "ls"}, b"[" * 100_000)
        assert header["code"] == "bad_arguments"
        header, _ = service.call(3, "ls", path="user/..")
        assert (header["code"], header["via"]) == ("path_escape", "dotdot")
        assert service.call(4, "write_file", path="user/new.md", content="x")[0]["verdict"] == "allow"
        changed = ({"t": "change", "path": "user/new.md", "base": None}, b"x")
        assert service.ask({"t": "changes"}) == changed
        claims = [service.channel.receive(0)[0] for _ in range(2)]
        assert [claim["path"] for claim in claims] == ["user/a.md", "user/new.md"]
        assert service.channel.receive(0) == ({"t": "end"}, b"")


def test_the_service_takes_the_links_of_each_scope_in_turn(roots):
    with served(roots) as service:
        service.begin(links=list(SCOPES))
        for links in (b'{"l.md": "topic/b.md"}', b'{"l.md": "c.md"}'):
            service.channel.send({"t": "links"}, links)
        assert service.channel.receive(0)[0]["t"] == "ready"
        for number, path in enumerate(("user/l.md", "project/l.md")):
            header, text = service.call(number, "read_file", path=path)
            assert header["verdict"] == "allow"
            assert f"[{path} leads to " in text


def test_a_broker_that_leaves_the_protocol_is_left(roots):
    for header in ({"t": "call"}, {}, {"t": "changes"}):
        with served(roots, ProtocolViolation) as service:
            service.channel.send(header)
    with served(roots, ProtocolViolation) as service:
        service.begin(links=list(SCOPES))
        service.channel.send({"t": "links"}, b"{}")
        service.channel.send({"t": "changes"})
    with served(roots, ProtocolViolation) as service:
        service.begin()
        assert service.channel.receive(0)[0]["t"] == "ready"
        service.channel.send({"t": "shutdown"})


def test_warming_touches_no_file_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with nothing_left_open():
        warm()
    assert list(tmp_path.iterdir()) == []
