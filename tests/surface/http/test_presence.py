"""Where a daemon is found: its lock, its document, its sockets (N1 to N3)."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kit.daemon.raw import running
from muniment.daemon import service
from muniment.daemon.service import (
    ADDRESS_NAME,
    LOCK_NAME,
    alone,
    announce,
    listen_tcp,
    listen_unix,
)
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable

DOCUMENT = {"url": "http://127.0.0.1:1", "socket": None, "pid": 4242, "epoch": "0"}

HOLDER = """
import sys
from pathlib import Path
from muniment.daemon.service import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


# -- N1: the lock --------------------------------------------------------------------------------------


def test_the_second_daemon_of_a_directory_refuses_and_says_where_the_first_is(tmp_path):
    with alone(tmp_path):
        announce(tmp_path, DOCUMENT)
        with (
            pytest.raises(ManagedMemoryUnavailable, match=r"process 4242 at http://127\.0\.0\.1:1"),
            alone(tmp_path),
        ):
            pytest.fail("there were two")
    with alone(tmp_path):
        pass


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{}", b"[]", b"null", b"\xff", b'{"pid": "x", "url": 1}', b'{"pid": null, "url": 1}'],
)
def test_the_second_daemon_refuses_also_where_the_first_is_not_announced(tmp_path, content):
    if content is not None:
        (tmp_path / ADDRESS_NAME).write_bytes(content)
    with (
        alone(tmp_path),
        pytest.raises(ManagedMemoryUnavailable, match="it is starting or stopping"),
        alone(tmp_path),
    ):
        pytest.fail("there were two")


def test_a_lock_ends_with_the_process_that_held_it_however_it_ends(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ManagedMemoryUnavailable), alone(tmp_path):
            pytest.fail("there were two")
        holder.kill()
        holder.wait()
        with alone(tmp_path):
            pass


def test_of_many_who_start_at_once_one_serves(tmp_path):
    barrier, over, outcomes = threading.Barrier(8), threading.Event(), []
    refused = threading.Semaphore(0)

    def start():
        barrier.wait()
        try:
            with alone(tmp_path):
                outcomes.append("serves")
                over.wait(30)
        except ManagedMemoryUnavailable:
            outcomes.append("refuses")
            refused.release()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(7):
        assert refused.acquire(timeout=30)
    over.set()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refuses"] * 7 + ["serves"]


def test_the_lock_is_ours_alone_and_no_link_is_followed_to_it(tmp_path):
    with alone(tmp_path):
        assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o600
    (tmp_path / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManagedMemoryUnavailable), alone(tmp_path):
        pytest.fail("a link was followed")
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_is_not_inherited_by_what_the_daemon_starts(tmp_path):
    with alone(tmp_path):
        child = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
    with child:
        assert child.stdout.readline() == b"\n"
        with alone(tmp_path):
            pass
        child.stdin.write(b"\n")


# -- N2: the document ----------------------------------------------------------------------------------


def test_a_document_replaces_what_stands_there_and_writes_through_no_link(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    for name in (ADDRESS_NAME, f"{ADDRESS_NAME}.unfinished"):
        (tmp_path / name).symlink_to("elsewhere")
    announce(tmp_path, DOCUMENT)
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert not (tmp_path / ADDRESS_NAME).is_symlink()
    assert json.loads((tmp_path / ADDRESS_NAME).read_text()) == DOCUMENT


@pytest.mark.slow
def test_who_reads_the_document_meanwhile_sees_the_old_one_or_the_new_one(tmp_path):
    announce(tmp_path, DOCUMENT)
    over, seen = threading.Event(), []

    def read():
        while not over.is_set():
            seen.append(json.loads((tmp_path / ADDRESS_NAME).read_text())["pid"])

    reader = threading.Thread(target=read)
    reader.start()
    for pid in range(300):
        announce(tmp_path, {**DOCUMENT, "pid": pid})
    over.set()
    reader.join()
    assert seen
    assert set(seen) <= {4242, *range(300)}


# -- N3: the sockets -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    return tmp_path / "d.sock"


def test_a_socket_is_ours_alone_from_the_moment_that_it_has_a_name(place):
    seen = []
    real = socket.socket.bind

    def bind(self, address):
        real(self, address)
        seen.append(stat.S_IMODE(Path(address).stat().st_mode))

    before = os.umask(0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service.Listener, "bind", bind)
            listen_unix(place).close()
    finally:
        os.umask(before)
    assert seen == [0o600]


def test_a_socket_that_nobody_answers_on_any_more_is_replaced(place):
    listen_unix(place).close()
    assert place.is_socket()
    with listen_unix(place), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place))


def test_a_socket_that_somebody_answers_on_stays(place):
    with listen_unix(place) as first:
        with pytest.raises(ConfigInvalid, match="Address already in use; give another --socket"):
            listen_unix(place)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
            first.accept()[0].close()


def test_a_socket_whose_owner_is_too_busy_to_answer_stays(place):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(place))
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(place))
            with pytest.raises(ConfigInvalid, match="give another --socket"):
                listen_unix(place)
    assert place.is_socket()


def test_a_port_that_is_taken_and_a_host_that_is_not_ours_are_said_so():
    with listen_tcp("127.0.0.1", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigInvalid, match=f"127.0.0.1 port {listener.getsockname()[1]}: Address"):
            listen_tcp("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(ConfigInvalid, match="cannot listen on"):
        listen_tcp("no such host.invalid", 0)


def test_a_daemon_that_stopped_leaves_its_token_and_its_lock_and_no_address(tmp_path):
    with running(tmp_path) as daemon:
        state = daemon.state
        found = json.loads((state / ADDRESS_NAME).read_text())
        assert (found["url"], found["socket"], found["pid"]) == (daemon.daemon.url, daemon.unix, os.getpid())
        assert daemon.token not in (state / ADDRESS_NAME).read_text()
        with pytest.raises(ManagedMemoryUnavailable, match=f"process {os.getpid()} at"), alone(state):
            pytest.fail("there were two")
    assert not (state / ADDRESS_NAME).exists()
    assert not (tmp_path / "d.sock").exists()
    for name in ("token", LOCK_NAME):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
