"""A workbench in a worker, which no argument ends, and the service that follows its protocol there."""

from __future__ import annotations

import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kit.confine.probe import nothing_left_open
from kit.memories import SCOPES, handles, make_roots, put, strict
from muniment.confine.cancel import Patience
from muniment.confine.wire import Channel, ProtocolViolation
from muniment.errors import WorkerLost
from muniment.names import FenceLayer
from muniment.policy.decide import dump
from muniment.testing.strategies import frame
from muniment.tools.remote import RemoteBench, greet
from muniment.tools.service import serve, warm


def patience():
    return Patience(time.monotonic() + 30)


def remote(worker):
    greet(worker, patience())
    return RemoteBench(worker, strict(), SCOPES, must_read=True, patience=patience)


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    put(roots["user"], "a.md", "one\ntwo\n")
    put(roots["user"], "topic/b.md", "b\r\n")
    put(roots["project"], "c.md", "é" * 300)
    return handles(roots)


def test_no_nesting_and_no_size_costs_the_worker_its_life(zygote):
    with zygote.spawn({}, deadline=patience().deadline) as worker:
        bench = remote(worker)
        for depth in (10, *range(990, 1000), 5000):
            value = []
            for _ in range(depth):
                value = [value]
            assert bench.call("ls", {"path": value}).code == "bad_arguments"
        assert bench.call("ls", {"path": "x" * 5000}).code == "bad_name"
        assert bench.call("ls", {"path": "", "more": "x" * (17 << 20)}).code == "too_large"
        for odd in ({1, 2}, object(), float("nan")):
            assert bench.call("ls", {"path": odd}).code == "bad_arguments"
        assert bench.call("ls", {"path": ""}).verdict == "allow"


NO_MESSAGES = {
    "a header of 2^31 bytes": struct.pack("!I", 2**31) + b"{}",
    "a body of 2^31 bytes": frame(b'{"t":"init","body":2147483648}'),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "nesting": frame(b'{"t":' + b"[" * 100_000),
}


def test_a_fenced_worker_that_hears_no_message_ends_with_a_code_of_its_own(zygote, subtests):
    for number, (name, sent) in enumerate(NO_MESSAGES.items()):
        with subtests.test(name), zygote.spawn({}, deadline=patience().deadline) as worker:
            _ = remote(worker) if number % 2 else greet(worker, patience())
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
