"""What goes wrong between the broker and its zygote: `muniment.confine.pool`, and what a request is."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys

import pytest

from kit.confine.probe import SERVICES, descriptors, look, soon, source
from muniment.confine import pool, zygote
from muniment.confine.pool import Zygote, import_directories
from muniment.confine.wire import FrameViolation
from muniment.errors import WorkerLost


@pytest.fixture
def fresh():
    with source() as zygote:
        zygote.wait_ready(soon())
        yield zygote


@pytest.fixture(scope="module")
def steady():
    with source() as zygote:
        zygote.wait_ready(soon())
        yield zygote


@pytest.mark.parametrize(
    ("service", "told"),
    [
        ("broken_service:serve", "broken on purpose"),
        ("no_such_service:serve", "no_such_service"),
        ("probe_service:no_such_function", "no_such_function"),
    ],
)
def test_a_service_that_cannot_be_loaded_is_told(service, told):
    with Zygote(service, directories=[*import_directories(), SERVICES]) as zygote:
        with pytest.raises(WorkerLost, match=told):
            zygote.wait_ready(soon())
        with pytest.raises(WorkerLost, match=r"failed|died"):
            zygote.spawn({}, deadline=soon())


def test_an_interpreter_that_cannot_import_us_is_a_dead_zygote():
    with Zygote(directories=[]) as zygote:
        with pytest.raises(WorkerLost, match="the zygote died"):
            zygote.wait_ready(soon())
        with pytest.raises(WorkerLost):
            zygote.spawn({}, deadline=soon())


def test_a_missing_interpreter_is_told(monkeypatch):
    before = descriptors()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with source() as zygote, pytest.raises(WorkerLost, match="could not be started"):
        zygote.start()
    assert descriptors() == before


@pytest.mark.parametrize("descriptors", [1, 2], ids=["for a whole request", "for a pidfd"])
def test_a_zygote_without_free_descriptors_says_so_and_lives(fresh, descriptors):
    standard = 3
    limits = resource.prlimit(fresh.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(fresh.pid, resource.RLIMIT_NOFILE, (standard + descriptors, limits[1]))
    with pytest.raises(WorkerLost, match="Too many open files"):
        fresh.spawn({}, deadline=soon())
    resource.prlimit(fresh.pid, resource.RLIMIT_NOFILE, limits)
    pid = fresh.pid
    with fresh.spawn({}, deadline=soon()) as worker:
        assert look(worker)["parent"] == pid


def test_a_zygote_that_cannot_fork_says_so(fresh, monkeypatch):
    monkeypatch.setattr(pool, "receive_report", lambda _: ({"errno": errno.EAGAIN}, []))
    with pytest.raises(WorkerLost, match="could not fork"):
        fresh.spawn({}, deadline=soon())


def test_a_report_that_makes_no_sense_is_a_dead_zygote_and_keeps_no_descriptor(fresh, monkeypatch):
    strays = [os.open("/dev/null", os.O_RDONLY)]
    monkeypatch.setattr(pool, "receive_report", lambda _: ({"pid": "x"}, list(strays)))
    with pytest.raises(WorkerLost, match="died"):
        fresh.spawn({}, deadline=soon())
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(strays[0])


@pytest.mark.parametrize("message", [b"}{", b"[]", b""])
def test_a_garbled_report_counts_as_none(message):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(message)
        assert pool.receive_report(ours) == ({}, [])
        ours.setblocking(False)
        assert pool.receive_report(ours) == ({}, [])


def test_too_many_roots_are_refused_before_anything_is_asked(steady):
    root = os.open("/", os.O_PATH)
    with pytest.raises(WorkerLost, match="at most"):
        steady.spawn({f"s{number}": root for number in range(100)}, deadline=soon())
    with pytest.raises(WorkerLost, match="at most"):
        steady.spawn({"s" * 20_000: root}, deadline=soon())
    os.close(root)


def test_a_descriptor_that_is_none_is_told(steady):
    with pytest.raises(WorkerLost, match="could not be asked"):
        steady.spawn({"user": 10_000}, deadline=soon())


def test_a_control_socket_that_broke_is_a_dead_zygote(fresh, monkeypatch):
    fresh._current._control.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(pool.ZygoteProcess, "is_gone", lambda _: False)
    with pytest.raises(WorkerLost, match="died"):
        fresh.spawn({}, deadline=soon())


def test_a_full_control_socket_is_asked_again(fresh, monkeypatch):
    refusals = [BlockingIOError()]
    send = pool.send_with_fds

    def reluctant(*arguments):
        if refusals:
            raise refusals.pop()
        return send(*arguments)

    monkeypatch.setattr(pool, "send_with_fds", reluctant)
    with fresh.spawn({}, deadline=soon()) as worker:
        assert look(worker)["parent"] == fresh.pid


def test_a_broker_without_free_descriptors_is_told(steady, monkeypatch):
    def full(*_):
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(socket, "socketpair", full)
    with pytest.raises(WorkerLost, match="no socket"):
        steady.spawn({}, deadline=soon())


def test_a_request_names_its_scopes_in_the_order_of_its_descriptors():
    assert zygote.parse_request(b'{"scopes":["user","project"]}', [3, 4, 5, 6]) == zygote.ForkRequest(
        report=3, sock=4, roots={"user": 5, "project": 6}
    )


@pytest.mark.parametrize(
    ("message", "fds"),
    [
        (b"}{", [3, 4]),
        (b"{}", [3, 4]),
        (b'{"scopes":"user"}', [3, 4, 5]),
        (b'{"scopes":[1]}', [3, 4, 5]),
        (b'{"scopes":["a","a"]}', [3, 4, 5, 6]),
        (b'{"scopes":["a"]}', [3, 4]),
        (b'{"scopes":[]}', [3]),
        (b'{"scopes":[]}', [3, 4, 5]),
        (b'{"scopes":[],"more":1}', [3, 4]),
    ],
)
def test_a_request_that_is_none_is_a_violation(message, fds):
    with pytest.raises(FrameViolation):
        zygote.parse_request(message, fds)


def test_importing_the_pool_is_light():
    script = (
        "import sys; import muniment.confine.pool; "
        "sys.exit(bool({'pydantic', 'asyncio', 'ssl'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
