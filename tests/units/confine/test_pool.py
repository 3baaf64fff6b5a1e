"""When a zygote is started, replaced and shared, and what goes wrong with it: `muniment.confine.pool`."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.confine.probe import SERVICES, Watched, ask, look, nothing_left_open, ready, soon, source
from muniment.confine import pool, zygote
from muniment.confine.pool import Zygote, import_directories, shared_zygote
from muniment.confine.wire import FrameViolation
from muniment.errors import ConfinementUnavailable, WorkerLost


@pytest.fixture
def fresh():
    with ready() as zygote:
        yield zygote


@pytest.fixture(scope="module")
def steady():
    with ready() as zygote:
        yield zygote


def crash(worker):
    with pytest.raises(WorkerLost, match="SIGSEGV"):
        ask(worker, "signal", number=signal.SIGSEGV)
    worker.close()


def test_a_zygote_is_replaced_once_after_crashes_of_its_workers_and_not_for_those_that_we_killed(fresh):
    old = fresh.pid
    for how in ("close", "lie", "exit"):
        worker = fresh.spawn({}, deadline=soon())
        if how != "close":
            with pytest.raises(WorkerLost):
                ask(worker, "raw" if how == "lie" else how, b"\xff" * 8, code=70)
        worker.close()
    fresh.start()
    assert fresh.pid == old
    neighbour, first, second = (fresh.spawn({}, deadline=soon()) for _ in range(3))
    crash(first)
    with fresh.spawn({}, deadline=soon()) as worker:
        replacement = fresh.pid
        assert replacement != old
        assert look(worker)["parent"] == replacement
    crash(second)
    assert fresh.pid == replacement
    assert look(neighbour)["parent"] == old
    neighbour.close()


def test_a_zygote_rests_without_a_process_until_the_next_worker_but_not_while_one_of_them_lives():
    with source() as zygote:
        zygote.rest()
        assert zygote.pid is None
        first, second = (zygote.spawn({}, deadline=soon()) for _ in range(2))
        old = zygote.pid
        zygote.rest()
        first.close()
        zygote.rest()
        assert zygote.pid == old
        assert ask(second, "echo", b"still", say=1) == ({"said": 1}, b"still")
        with Watched(old) as over:
            second.close()
            zygote.rest()
            assert over.ended()
        zygote.rest()
        assert zygote.pid is None
        with zygote.spawn({}, deadline=soon()) as worker:
            assert look(worker)["parent"] == zygote.pid != old


def test_a_zygote_that_rests_leaves_a_retired_process_to_its_workers():
    with source(runs=1) as zygote:
        first = zygote.spawn({}, deadline=soon())
        retired = zygote.pid
        zygote.spawn({}, deadline=soon()).close()
        assert zygote.pid != retired
        zygote.rest()
        assert zygote.pid is None
        assert look(first)["parent"] == retired
        with Watched(retired) as over:
            first.close()
            assert over.ended()


def test_threads_spawn_at_once_and_each_gets_its_own_worker(steady):
    def run(number):
        with steady.spawn({}, deadline=soon()) as worker:
            assert ask(worker, "echo", b"x" * number, say=number) == ({"said": number}, b"x" * number)
            return worker.pid

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(run, range(1, 33)))) == 32


def test_a_fork_of_the_broker_has_a_zygote_of_its_own_and_leaves_the_parents_alone():
    script = f"""
        import os, sys, time
        from muniment.confine.pool import Zygote, import_directories, shared_zygote
        soon = lambda: time.monotonic() + 20
        zygote = Zygote("probe_service:serve", directories=[*import_directories(), {SERVICES!r}])
        shared = shared_zygote()
        echo = lambda worker: worker.request({{"do": "echo", "say": 1}}, max_body=0, deadline=soon())
        worker = zygote.spawn({{}}, deadline=soon())
        parents = zygote.pid
        zygote._lock.acquire()  # as another thread might at the moment of the fork
        child = os.fork()
        if child == 0:
            assert zygote.pid is None and shared_zygote() is shared
            with zygote.spawn({{}}, deadline=soon()) as own:
                assert echo(own)[0] == {{"said": 1}}
                assert zygote.pid not in (None, parents)
            zygote.close()
            os._exit(0)
        zygote._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert zygote.pid == parents and echo(worker)[0] == {{"said": 1}}
        worker.close(); zygote.close()
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script)], check=True, timeout=50)


def test_forgetting_in_a_fork_lets_go_of_the_process_without_a_signal(monkeypatch):
    zygote = source()
    monkeypatch.setattr(pool, "_ALIVE", {zygote})
    monkeypatch.setattr(pool, "_SHARED", pool._Shared())
    zygote.wait_ready(soon())
    process = zygote._current
    pool._after_fork()
    assert zygote.pid is None
    process._popen.wait(20)  # here the control socket was the last one, so it leaves by itself
    assert process._popen.returncode == 0
    zygote.close()


def test_one_zygote_is_shared_by_a_process_and_not_started_for_it(monkeypatch):
    monkeypatch.setattr(pool, "_SHARED", pool._Shared())
    zygote = shared_zygote()
    assert shared_zygote() is zygote
    assert zygote.pid is None
    zygote.close()


# -- what it imports -------------------------------------------------------------------------------------


def test_importing_the_pool_and_finding_the_directories_imports_none_of_the_packages():
    heavy = {"pydantic", "asyncio", "ssl", "pathspec", "re2", "typing_extensions"}
    script = (
        "import sys; from muniment.confine.pool import import_directories; import_directories(); "
        f"sys.exit(bool({heavy} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.threat("T-SUP-02", control="trusted_imports")
def test_what_everybody_may_write_to_is_relative_or_is_not_there_is_imported_from_by_no_worker(
    tmp_path, monkeypatch
):
    (tmp_path / "planted_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert import_directories(["planted_module", "planted_module"]) == (str(tmp_path),)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfinementUnavailable, match="writable by everybody"):
        import_directories(["planted_module"])
    tmp_path.chmod(0o700)
    for name in ("no_such_package_anywhere", "sys"):
        with pytest.raises(ConfinementUnavailable, match="not installed"):
            import_directories([name])
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "_directory", lambda _: Path("lib"))
    with pytest.raises(ConfinementUnavailable, match="relative"):
        import_directories(["planted_relative"])


# -- what goes wrong between the broker and its zygote ----------------------------------------------------


def test_a_zygote_that_cannot_start_is_dead_and_says_why(monkeypatch):
    ours = [*import_directories(), SERVICES]
    for service, directories, told in (
        ("broken_service:serve", ours, "broken on purpose"),
        ("no_such_service:serve", ours, "no_such_service"),
        ("probe_service:no_such_function", ours, "no_such_function"),
        ("probe_service:serve", [], "the zygote died"),
    ):
        with Zygote(service, directories=directories) as zygote:
            with pytest.raises(WorkerLost, match=told):
                zygote.wait_ready(soon())
            with pytest.raises(WorkerLost, match=r"failed|died"):
                zygote.spawn({}, deadline=soon())
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with nothing_left_open(), source() as zygote, pytest.raises(WorkerLost, match="could not be started"):
        zygote.start()


def test_a_zygote_without_free_descriptors_says_so_and_lives(fresh):
    """Whether they do not suffice for a whole request or only for a pidfd."""
    pid, limits = fresh.pid, resource.prlimit(fresh.pid, resource.RLIMIT_NOFILE)
    for free in (1, 2):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3 + free, limits[1]))
        with pytest.raises(WorkerLost, match="Too many open files"):
            fresh.spawn({}, deadline=soon())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        with fresh.spawn({}, deadline=soon()) as worker:
            assert look(worker)["parent"] == pid


def test_a_report_that_tells_no_worker_or_makes_no_sense_is_told_and_leaves_no_descriptor(fresh, monkeypatch):
    monkeypatch.setattr(pool, "receive_report", lambda _: ({"errno": errno.EAGAIN}, []))
    with pytest.raises(WorkerLost, match="could not fork"):
        fresh.spawn({}, deadline=soon())
    stray = os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(pool, "receive_report", lambda _: ({"pid": "x"}, [stray]))
    with pytest.raises(WorkerLost, match="died"):
        fresh.spawn({}, deadline=soon())
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(stray)
    monkeypatch.undo()
    for message in (b"}{", b"[]", b""):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            theirs.send(message)
            assert pool.receive_report(ours) == ({}, []), message
            ours.setblocking(False)
            assert pool.receive_report(ours) == ({}, []), message


def test_a_control_socket_that_broke_is_a_dead_zygote(fresh, monkeypatch):
    fresh._current._control.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(pool.ZygoteProcess, "is_gone", lambda _: False)
    with pytest.raises(WorkerLost, match="died"):
        fresh.spawn({}, deadline=soon())


def test_what_cannot_be_asked_is_told_and_a_full_control_socket_is_asked_again(steady, monkeypatch):
    root = os.open("/", os.O_PATH)
    for roots, told in (
        ({f"s{number}": root for number in range(100)}, "at most"),
        ({"s" * 20_000: root}, "at most"),
        ({"user": 10_000}, "could not be asked"),
    ):
        with pytest.raises(WorkerLost, match=told):
            steady.spawn(roots, deadline=soon())
    os.close(root)
    refusals, send = [BlockingIOError()], pool.send_with_fds

    def reluctant(*arguments):
        if refusals:
            raise refusals.pop()
        return send(*arguments)

    def full(*_):
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(pool, "send_with_fds", reluctant)
    with steady.spawn({}, deadline=soon()) as worker:
        assert look(worker)["parent"] == steady.pid
    monkeypatch.setattr(socket, "socketpair", full)
    with pytest.raises(WorkerLost, match="no socket"):
        steady.spawn({}, deadline=soon())


def test_a_request_names_its_scopes_in_the_order_of_its_descriptors_or_is_a_violation():
    request = zygote.parse_request(b'{"scopes":["user","project"]}', [3, 4, 5, 6])
    assert request == zygote.ForkRequest(report=3, sock=4, roots={"user": 5, "project": 6})
    for message, fds in (
        (b"}{", [3, 4]),
        (b"{}", [3, 4]),
        (b'{"scopes":"user"}', [3, 4, 5]),
        (b'{"scopes":[1]}', [3, 4, 5]),
        (b'{"scopes":["a","a"]}', [3, 4, 5, 6]),
        (b'{"scopes":["a"]}', [3, 4]),
        (b'{"scopes":[]}', []),
        (b'{"scopes":[]}', [3]),
        (b'{"scopes":[]}', [3, 4, 5]),
        (b'{"scopes":[],"more":1}', [3, 4]),
    ):
        with pytest.raises(FrameViolation):
            zygote.parse_request(message, fds)
