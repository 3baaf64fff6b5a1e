"""A workbench in a worker, which no argument ends, and the service that follows its protocol."""

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pytest

from kit.descriptors import assert_descriptors_closed
from kit.memories import SCOPES, make_roots, make_strict_policy, open_roots
from kit.strategies.frames import frame
from muniment.errors import WorkerLost
from muniment.kernel.cancel import Deadline
from muniment.sandbox.fence.wire import Channel, ProtocolViolation
from muniment.sandbox.tools.remote import RemoteExecutor, receive_hello
from muniment.sandbox.tools.service import serve, warm


def make_deadline():
    return Deadline(time.monotonic() + 30)


def make_remote(worker):
    receive_hello(worker, make_deadline())
    return RemoteExecutor(worker, make_strict_policy(), SCOPES, must_read=True, get_deadline=make_deadline)


def test_nested_or_huge_arguments_do_not_end_the_worker(zygote):
    with zygote.spawn_worker({}, make_deadline()) as worker:
        bench = make_remote(worker)
        for depth in (10, *range(990, 1000), 5000):
            nested = reduce(lambda inner, _: [inner], range(depth), [])
            assert bench.call("ls", {"path": nested}).code == "bad_arguments"
        assert bench.call("ls", {"path": "x" * 5000}).code == "bad_name"
        assert bench.call("ls", {"path": "", "more": "x" * (17 << 20)}).code == "too_large"
        for odd in ({1, 2}, object(), float("nan")):
            assert bench.call("ls", {"path": odd}).code == "bad_arguments"
        assert bench.call("ls", {"path": ""}).verdict == "allow"


INVALID_FRAMES = {
    "a header of 2^31 bytes": struct.pack("!I", 2**31) + b"{}",
    "a body of 2^31 bytes": frame(b'{"t":"init","body":2147483648}'),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "nesting": frame(b'{"t":' + b"[" * 100_000),
}


def test_fenced_worker_that_receives_no_message_exits_with_65(zygote, subtests):
    for number, (name, sent) in enumerate(INVALID_FRAMES.items()):
        with subtests.test(name), zygote.spawn_worker({}, make_deadline()) as worker:
            _ = make_remote(worker) if number % 2 else receive_hello(worker, make_deadline())
            worker._sock.send(sent)
            with pytest.raises(WorkerLost, match=r"exit code 65 .frame"):
                worker.receive(max_body=0, deadline=make_deadline())


# -- the service on a thread of this process, called as the broker does ---------------------------------


def test_service_ends_when_the_broker_breaks_the_protocol(tmp_path):
    def init(**more):
        return {
            "t": "init",
            "policy": "p",
            "scopes": list(SCOPES),
            "must_read": True,
            **more,
        }, make_strict_policy().text.encode()

    linked, roots = init(links=list(SCOPES)), open_roots(make_roots(tmp_path))
    for messages in (
        *([({"t": "call"}, b"")], [({}, b"")], [({"t": "changes"}, b"")]),
        *([linked, ({"t": "links"}, b"{}"), ({"t": "changes"}, b"")], [init(), ({"t": "shutdown"}, b"")]),
    ):
        local_socket, peer_socket = socket.socketpair()
        with local_socket, peer_socket, ThreadPoolExecutor(1) as thread:
            ended = thread.submit(serve, peer_socket, {scope: root.fd for scope, root in roots.items()}, {})
            for header, body in messages:
                Channel(local_socket).send(header, body)
            assert type(ended.exception(10)) is ProtocolViolation


def test_warm_up_touches_no_file_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with assert_descriptors_closed():
        warm()
    assert list(tmp_path.iterdir()) == []
