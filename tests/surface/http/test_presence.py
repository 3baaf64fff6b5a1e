"""Where a daemon is found: its lock, its document, its sockets (N1 to N4)."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.daemon.raw import running
from muniment.daemon import service
from muniment.daemon.service import ADDRESS_NAME, LOCK_NAME, alone, announce, listen_tcp, listen_unix
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable

DOCUMENT = {"url": "http://127.0.0.1:1", "socket": None, "pid": 4242, "epoch": "0"}
PROGRAM = """
import sys
from pathlib import Path
from muniment.daemon.service import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def refused(directory, match=None):
    """Somebody serves the directory: whoever comes second is told so."""
    with pytest.raises(ManagedMemoryUnavailable, match=match), alone(directory):
        pytest.fail("there were two")


# -- N1: the lock --------------------------------------------------------------------------------------


def test_the_second_daemon_of_a_directory_refuses_and_says_where_the_first_is_if_it_is_announced(tmp_path):
    with alone(tmp_path):
        refused(tmp_path, "it is starting or stopping")
        wrong = (b'{"pid": "x", "url": 1}', b'{"pid": null, "url": 1}')
        for content in (b"", b"{}", b"[]", b"null", b"\xff", *wrong):
            (tmp_path / ADDRESS_NAME).write_bytes(content)
            refused(tmp_path, "it is starting or stopping")
        announce(tmp_path, DOCUMENT)
        refused(tmp_path, r"process 4242 at http://127\.0\.0\.1:1")
        assert mode_of(tmp_path / LOCK_NAME) == 0o600
    with alone(tmp_path):
        pass


def test_a_lock_ends_with_the_process_that_held_it_and_is_not_inherited_by_what_that_starts(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], **pipes) as holder:
        assert holder.stdout.readline() == b"held\n"
        refused(tmp_path)
        holder.kill()
        holder.wait()
    with alone(tmp_path):
        child = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"], **pipes, close_fds=False
        )
    with child:
        assert child.stdout.readline() == b"\n"
        with alone(tmp_path):
            child.stdin.write(b"\n")


# -- N2: the document ----------------------------------------------------------------------------------


def test_no_link_is_followed_to_the_lock_nor_to_the_document(tmp_path):
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "nowhere")
    refused(tmp_path)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "elsewhere").write_text("mine")
    for name in (ADDRESS_NAME, f"{ADDRESS_NAME}.unfinished"):
        (tmp_path / name).symlink_to("elsewhere")
    announce(tmp_path, DOCUMENT)
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert not (tmp_path / ADDRESS_NAME).is_symlink()
    assert json.loads((tmp_path / ADDRESS_NAME).read_text()) == DOCUMENT


def test_a_daemon_that_stopped_leaves_its_token_and_its_lock_and_no_address(tmp_path):
    with running(tmp_path) as daemon:
        state = daemon.state
        found = json.loads((state / ADDRESS_NAME).read_text())
        assert (found["url"], found["socket"], found["pid"]) == (daemon.url, daemon.unix, os.getpid())
        assert daemon.token not in (state / ADDRESS_NAME).read_text()
        refused(state, f"process {os.getpid()} at")
    assert not (state / ADDRESS_NAME).exists()
    assert not (tmp_path / "d.sock").exists()
    assert [mode_of(state / name) for name in ("token", LOCK_NAME)] == [0o600] * 2


# -- N3, N4: the sockets -------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    return tmp_path / "d.sock"


def test_a_socket_is_ours_alone_from_the_moment_that_it_has_a_name(place, monkeypatch):
    seen = []

    def bind(self, address):
        socket.socket.bind(self, address)
        seen.append(mode_of(Path(address)))

    before = os.umask(0)
    try:
        monkeypatch.setattr(service.Listener, "bind", bind)
        listen_unix(place).close()
    finally:
        os.umask(before)
    assert seen == [0o600]


def test_a_socket_is_replaced_where_nobody_answers_on_it_any_more_and_stays_where_somebody_does(place):
    listen_unix(place).close()
    assert place.is_socket()
    with listen_unix(place) as first:
        with pytest.raises(ConfigInvalid, match="Address already in use; give another --socket"):
            listen_unix(place)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
            first.accept()[0].close()
    place.unlink()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(place))  # Its owner is too busy to answer.
        busy.listen(0)
        waiting.connect(str(place))
        with pytest.raises(ConfigInvalid, match="give another --socket"):
            listen_unix(place)
    assert place.is_socket()


def test_a_port_that_is_taken_and_a_host_that_is_not_ours_are_said_so():
    with listen_tcp("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(ConfigInvalid, match=f"127.0.0.1 port {port}: Address"):
            listen_tcp("127.0.0.1", port)
    with pytest.raises(ConfigInvalid, match="cannot listen on"):
        listen_tcp("no such host.invalid", 0)


def test_connections_are_taken_a_few_at_a_time_and_nothing_is_tried_where_none_can_be(monkeypatch):
    with listen_tcp("127.0.0.1", 0) as listener, ExitStack() as held:
        listener.setblocking(False)
        for _ in range(service.ACCEPTED_AT_ONCE + 3):
            held.enter_context(socket.create_connection(listener.getsockname()))

        def take():
            try:
                held.enter_context(listener.accept()[0])
            except OSError as error:
                return type(error)
            return None

        assert [len(list(iter(take, BlockingIOError))) for _ in range(3)] == [service.ACCEPTED_AT_ONCE, 3, 0]

        def lacking(_):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket.socket, "accept", lacking)
        assert [take() for _ in range(4)] == [OSError, BlockingIOError] * 2
