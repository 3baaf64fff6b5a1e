"""Whoever connects without a token takes no descriptor that work needs: real daemons with few of them."""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import ExitStack

import httpx2
import pytest

from kit.daemon.process import BASE
from muniment.client import Client
from muniment.daemon import service

DESCRIPTORS = 160
BURST = 400


def lines(daemon, *events):
    return [line for line in daemon.log.splitlines() if any(event in line for event in events)]


@pytest.mark.threat("T-API-09", control="descriptors_left")
def test_a_fact_is_remembered_while_others_hold_all_connections(start_daemon):
    daemon = start_daemon()
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    address = ("127.0.0.1", int(daemon.url.rpartition(":")[2]))
    with ExitStack() as held:
        for turn in "first", "second":
            for number in range(BURST):
                line = held.enter_context(socket.socket())
                line.setblocking(False)
                line.connect_ex(address)
                if number % 2:
                    other = held.enter_context(socket.socket(socket.AF_UNIX))
                    other.setblocking(False)
                    other.connect_ex(str(daemon.socket))
            with Client(daemon.url, token=daemon.token, workspace=daemon.key) as client:
                assert client.remember(f"The {turn} burst changes nothing").wait(timeout=20).files_touched
        assert len(daemon.children()) < 10
    daemon.http.close()
    daemon.http = httpx2.Client(base_url=daemon.url, trust_env=False, timeout=60)
    assert daemon.get("/readyz").status_code == 200
    assert daemon.wait(daemon.remember("The user prefers calm after a burst"))["status"] == "completed"
    assert not lines(daemon, "lane_broke", "task_broke", "no_descriptor")
    assert len(lines(daemon, "foreign_log")) < 10
    assert daemon.get(f"{BASE}/tasks").json()["tasks"]


def test_connections_are_taken_a_few_at_a_time_and_nothing_is_tried_where_none_can_be(monkeypatch):
    with service.listen_tcp("127.0.0.1", 0) as listener, ExitStack() as held:
        listener.setblocking(False)
        for _ in range(service.ACCEPTED_AT_ONCE + 3):
            held.enter_context(socket.create_connection(listener.getsockname()))
        taken = []
        for _ in range(3):
            count = 0
            while True:
                try:
                    connection, _address = listener.accept()
                except BlockingIOError:
                    break
                held.enter_context(connection)
                count += 1
            taken.append(count)
        assert taken == [service.ACCEPTED_AT_ONCE, 3, 0]

        def lacking(_):
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", lacking)
            kinds = []
            for _ in range(4):
                try:
                    listener.accept()
                except OSError as error:
                    kinds.append(type(error))
        assert kinds == [OSError, BlockingIOError, OSError, BlockingIOError]
