"""A workbench in a worker, which no argument ends, and the service that follows its protocol there."""

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pytest

from kit.descriptors import nothing_left_open
from kit.memories import SCOPES, handles, make_roots, strict
from kit.strategies.frames import frame
from muniment.errors import WorkerLost
from muniment.kernel.cancel import Patience
from muniment.sandbox.fence.wire import Channel, ProtocolViolation
from muniment.sandbox.tools.remote import RemoteBench, greet
from muniment.sandbox.tools.service import serve, warm


def patience():
    return Patience(time.monotonic() + 30)


def remote(worker):
    greet(worker, patience())
    return RemoteBench(worker, strict(), SCOPES, must_read=True, patience=patience)


def test_no_nesting_and_no_size_costs_the_worker_its_life(zygote):
    with zygote.spawn({}, patience()) as worker:
        bench = remote(worker)
        for depth in (10, *range(990, 1000), 5000):
            nested = reduce(lambda inner, _: [inner], range(depth), [])
            assert bench.call("ls", {"path": nested}).code == "bad_arguments"
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
        with subtests.test(name), zygote.spawn({}, patience()) as worker:
            _ = remote(worker) if number % 2 else greet(worker, patience())
            worker._sock.send(sent)
            with pytest.raises(WorkerLost, match=r"exit code 65 .frame"):
                worker.receive(max_body=0, patience=patience())


# -- the service on a thread of this process, spoken to as the broker does ---------------------------------


def test_a_broker_that_leaves_the_protocol_is_left(tmp_path):
    def init(**more):
        return {
            "t": "init",
            "policy": "p",
            "scopes": list(SCOPES),
            "must_read": True,
            **more,
        }, strict().text.encode()

    linked, roots = init(links=list(SCOPES)), handles(make_roots(tmp_path))
    for messages in (
        *([({"t": "call"}, b"")], [({}, b"")], [({"t": "changes"}, b"")]),
        *([linked, ({"t": "links"}, b"{}"), ({"t": "changes"}, b"")], [init(), ({"t": "shutdown"}, b"")]),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs, ThreadPoolExecutor(1) as thread:
            ended = thread.submit(serve, theirs, {scope: root.fd for scope, root in roots.items()}, {})
            for header, body in messages:
                Channel(ours).send(header, body)
            assert type(ended.exception(10)) is ProtocolViolation


def test_warming_touches_no_file_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with nothing_left_open():
        warm()
    assert list(tmp_path.iterdir()) == []
