"""When a zygote is started, replaced and shared, and how it fails."""

import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.catching import catch_error
from kit.descriptors import assert_descriptors_closed
from kit.sandbox.probe import (
    SERVICES,
    WatchedProcess,
    inspect_worker,
    make_deadline,
    make_zygote,
    make_zygote_fixture,
    send_command,
)
from muniment.cancelling import Cancel
from muniment.errors import Cancelled, ConfinementUnavailable, DeadlineExceeded, WorkerLost
from muniment.kernel.cancel import Deadline
from muniment.sandbox.fence import pool, zygote
from muniment.sandbox.fence.pool import Zygote, find_import_directories
from muniment.sandbox.fence.wire import FrameViolation

fresh_zygote, module_zygote = make_zygote_fixture(scope="function"), make_zygote_fixture()
silent_zygote = make_zygote_fixture("probe_service:silent", scope="function")
"""A zygote whose workers never notice that their connection was closed."""


def crash(worker):
    catch_error(WorkerLost, send_command, worker, "signal", number=signal.SIGSEGV, match="SIGSEGV")
    worker.close()


def test_zygote_is_replaced_once_after_crashes_of_its_workers(fresh_zygote):
    old = fresh_zygote.pid
    for how in ("close", "lie", "exit"):
        worker = fresh_zygote.spawn_worker({}, make_deadline())
        if how != "close":
            catch_error(
                WorkerLost, send_command, worker, "raw" if how == "lie" else how, b"\xff" * 8, code=70
            )
        worker.close()
    fresh_zygote.start()
    assert fresh_zygote.pid == old
    neighbour, first, second = (fresh_zygote.spawn_worker({}, make_deadline()) for _ in range(3))
    crash(first)
    with fresh_zygote.spawn_worker({}, make_deadline()) as worker:
        replacement = fresh_zygote.pid
        assert replacement != old
        assert inspect_worker(worker)["parent"] == replacement
    crash(second)
    assert fresh_zygote.pid == replacement
    assert inspect_worker(neighbour)["parent"] == old
    neighbour.close()


def test_idle_zygote_rests_without_a_process():
    with make_zygote() as zygote:
        zygote.stop_if_idle()
        assert zygote.pid is None
        first, second = (zygote.spawn_worker({}, make_deadline()) for _ in range(2))
        old = zygote.pid
        first.close()
        zygote.stop_if_idle()
        assert zygote.pid == old
        assert send_command(second, "echo", b"still", say=1) == ({"said": 1}, b"still")
        with WatchedProcess(old) as over:
            second.close()
            zygote.stop_if_idle()
            assert over.wait_for_end()
        zygote.stop_if_idle()
        assert zygote.pid is None
        with zygote.spawn_worker({}, make_deadline()) as worker:
            assert inspect_worker(worker)["parent"] == zygote.pid != old


def test_resting_zygote_leaves_a_retired_process_to_its_workers():
    with make_zygote(runs=1) as zygote:
        first = zygote.spawn_worker({}, make_deadline())
        retired = zygote.pid
        zygote.spawn_worker({}, make_deadline()).close()
        assert zygote.pid != retired
        zygote.stop_if_idle()
        assert zygote.pid is None
        assert inspect_worker(first)["parent"] == retired
        with WatchedProcess(retired) as over:
            first.close()
            assert over.wait_for_end()


def test_concurrent_spawns_get_their_own_workers(module_zygote):
    def run(number):
        with module_zygote.spawn_worker({}, make_deadline()) as worker:
            assert send_command(worker, "echo", b"x" * number, say=number) == (
                {"said": number},
                b"x" * number,
            )
            return worker.pid

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(run, range(1, 33)))) == 32


def test_fork_of_the_broker_has_its_own_zygote():
    script = f"""
        import os, sys, time
        from muniment.sandbox.fence.pool import Zygote, find_import_directories, get_shared_zygote
        from muniment.kernel.cancel import Deadline
        soon = lambda: Deadline(time.monotonic() + 20)
        zygote = Zygote("probe_service:serve", directories=[*find_import_directories(), {SERVICES!r}])
        shared = get_shared_zygote()
        echo = lambda worker: worker.request({{"do": "echo", "say": 1}}, max_body=0, deadline=soon())
        worker = zygote.spawn_worker({{}}, soon())
        parents = zygote.pid
        zygote._lock.acquire()  # as another thread might at the moment of the fork
        child = os.fork()
        if child == 0:
            assert zygote.pid is None and get_shared_zygote() is shared
            with zygote.spawn_worker({{}}, soon()) as own:
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


def test_zygote_does_not_outlive_its_broker_even_if_it_hangs():
    script = """
        import os, signal
        from muniment.sandbox.fence import pool
        pool.EXIT_SECONDS = 0.05
        pool.get_shared_zygote().start()
        os.kill(pool.get_shared_zygote().pid, signal.SIGSTOP)
        print(pool.get_shared_zygote().pid)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    pid = int(subprocess.run(command, check=True, timeout=50, capture_output=True).stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_exit_of_the_process_closes_every_source_of_workers(monkeypatch):
    zygote = make_zygote()
    monkeypatch.setattr(pool, "_ZYGOTES", {zygote})
    zygote.wait_ready(make_deadline())
    process = zygote._current
    pool._at_exit()
    assert (zygote.pid, process._popen.wait(20)) == (None, 0)


def test_fork_releases_the_zygote_without_a_signal(monkeypatch):
    zygote = make_zygote()
    monkeypatch.setattr(pool, "_ZYGOTES", {zygote})
    assert zygote.pid is None, "no process is started for it"
    zygote.wait_ready(make_deadline())
    process = zygote._current
    pool._after_fork()
    assert zygote.pid is None
    process._popen.wait(20)  # here the control socket was the last one, so the process exits by itself
    assert process._popen.returncode == 0
    zygote.close()


# -- imports of a worker -------------------------------------------------------------------------------------


@pytest.mark.threat("T-SUP-02", control="trusted_imports")
def test_worker_imports_only_from_protected_absolute_directories(tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_import_directories(["planted_module", "planted_module"]) == (str(tmp_path),)
    tmp_path.chmod(0o777)
    catch_error(
        ConfinementUnavailable, find_import_directories, ["planted_module"], match="writable by every user"
    )
    tmp_path.chmod(0o700)
    for name in ("no_such_package_anywhere", "sys"):
        catch_error(ConfinementUnavailable, find_import_directories, [name], match="not installed")
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "_find_directory", lambda _: Path("lib"))
    catch_error(ConfinementUnavailable, find_import_directories, ["planted_relative"], match="relative")


# -- failures between the broker and its zygote ----------------------------------------------------


def test_zygote_that_cannot_start_reports_the_reason(monkeypatch):
    directories_of_worker = [*find_import_directories(), SERVICES]
    for service, directories, reason in (
        ("broken_service:serve", directories_of_worker, "broken on purpose"),
        ("no_such_service:serve", directories_of_worker, "no_such_service"),
        ("probe_service:no_such_function", directories_of_worker, "no_such_function"),
        ("probe_service:serve", [], "the zygote died"),
    ):
        with Zygote(service, directories=directories) as zygote:
            catch_error(WorkerLost, zygote.wait_ready, make_deadline(), match=reason)
            catch_error(WorkerLost, zygote.spawn_worker, {}, make_deadline(), match=r"failed|died")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with (
        assert_descriptors_closed(),
        make_zygote() as zygote,
        pytest.raises(WorkerLost, match="could not be started"),
    ):
        zygote.start()


def test_zygote_without_free_descriptors_reports_it_and_survives(fresh_zygote):
    """One free descriptor does not suffice for a request, two not for a pidfd."""
    pid, limits = fresh_zygote.pid, resource.prlimit(fresh_zygote.pid, resource.RLIMIT_NOFILE)
    for free in (1, 2):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3 + free, limits[1]))
        catch_error(WorkerLost, fresh_zygote.spawn_worker, {}, make_deadline(), match="Too many open files")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        with fresh_zygote.spawn_worker({}, make_deadline()) as worker:
            assert inspect_worker(worker)["parent"] == pid


def test_invalid_report_raises_worker_lost_and_leaks_nothing(fresh_zygote, monkeypatch):
    monkeypatch.setattr(pool, "receive_report", lambda _: ({"errno": errno.EAGAIN}, []))
    catch_error(WorkerLost, fresh_zygote.spawn_worker, {}, make_deadline(), match="could not fork")
    stray = os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(pool, "receive_report", lambda _: ({"pid": "x"}, [stray]))
    catch_error(WorkerLost, fresh_zygote.spawn_worker, {}, make_deadline(), match="died")
    catch_error(OSError, os.fstat, stray, match="Bad file")
    monkeypatch.undo()
    for message in (b"}{", b"[]", b""):
        local_socket, peer_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with local_socket, peer_socket:
            peer_socket.send(message)
            assert pool.receive_report(local_socket) == ({}, []), message
            local_socket.setblocking(False)
            assert pool.receive_report(local_socket) == ({}, []), message


def test_broken_control_socket_is_a_dead_zygote(fresh_zygote, monkeypatch):
    fresh_zygote._current._control.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(pool.ZygoteProcess, "has_ended", lambda _: False)
    catch_error(WorkerLost, fresh_zygote.spawn_worker, {}, make_deadline(), match="died")


def test_failed_request_is_reported_and_a_full_socket_is_retried(module_zygote, monkeypatch):
    root = os.open("/", os.O_PATH)
    for roots, reason in (
        ({f"s{number}": root for number in range(100)}, "at most"),
        ({"s" * 20_000: root}, "at most"),
        ({"user": 10_000}, "could not be sent"),
    ):
        catch_error(WorkerLost, module_zygote.spawn_worker, roots, make_deadline(), match=reason)
    os.close(root)
    refusals, send = [BlockingIOError()], pool.send_with_fds

    def fail_once(*arguments):
        if refusals:
            raise refusals.pop()
        return send(*arguments)

    def raise_too_many(*_):
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(pool, "send_with_fds", fail_once)
    with module_zygote.spawn_worker({}, make_deadline()) as worker:
        assert inspect_worker(worker)["parent"] == module_zygote.pid
    monkeypatch.setattr(socket, "socketpair", raise_too_many)
    catch_error(WorkerLost, module_zygote.spawn_worker, {}, make_deadline(), match="worker's socket")


def test_fork_request_lists_scopes_in_descriptor_order():
    request = zygote.parse_request(b'{"scopes":["user","project"]}', [3, 4, 5, 6])
    assert request == zygote.ForkRequest(report=3, sock=4, roots={"user": 5, "project": 6})
    for message, fds in (
        *((b"}{", [3, 4]), (b'{"scopes":"user"}', [3, 4, 5]), (b'{"scopes":["a","a"]}', [3, 4, 5, 6])),
        *((b'{"scopes":["a"]}', [3, 4]), (b'{"scopes":[]}', [3]), (b'{"scopes":[]}', [3, 4, 5])),
        (b'{"scopes":[],"more":1}', [3, 4]),
    ):
        catch_error(FrameViolation, zygote.parse_request, message, fds)


# -- resources of a worker, and when processes end -------------------------------------------------------


SECRET = f"sk-canary-{os.urandom(16).hex()}"
ISOLATION = {"environ": {}, "roots": {}, "cwd": "/", "umask": 0o077, "flags": [1, 1], "core": [0, 0]}


def read_identity(fd):
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"


@pytest.mark.threat("T-RUN-04", control="settled_zygote")
def test_worker_has_no_environment_no_roots_and_its_own_session(monkeypatch):
    monkeypatch.setenv("MUNIMENT_API_KEY", SECRET)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    with make_zygote() as zygote, zygote.spawn_worker({}, make_deadline()) as worker:
        seen = inspect_worker(worker)
        path = seen["path"]
        assert (seen["pid"], seen["parent"], seen["session"]) == (worker.pid, zygote.pid, zygote.pid)
    assert {name: seen[name] for name in ISOLATION} == ISOLATION
    assert seen["sigint"]
    assert not {"", ".", "/nowhere", str(Path.cwd())} & set(path)
    assert path[-len(find_import_directories()) - 1 :] == [*find_import_directories(), SERVICES]


@pytest.mark.threat("T-RUN-04", control="closed_descriptors")
def test_worker_has_only_its_socket_and_its_roots_open(module_zygote, tmp_path):
    roots = {}
    for scope in ("user", "project"):
        (tmp_path / scope).mkdir()
        (tmp_path / scope / f"{scope}.md").touch()
        roots[scope] = os.open(tmp_path / scope, os.O_RDONLY | os.O_DIRECTORY)
    null = os.open("/dev/null", os.O_RDWR)
    with (
        module_zygote.spawn_worker({}, make_deadline()),
        module_zygote.spawn_worker(roots, make_deadline()) as worker,
    ):
        seen = inspect_worker(worker)
    assert seen["roots"] == {"user": ["user.md"], "project": ["project.md"]}
    descriptors = list(seen["descriptors"].values())
    for fd in (null, null, null, *roots.values()):
        descriptors.remove(read_identity(fd))
    assert len(descriptors) == 1, "only the socket is left"
    for fd in (*roots.values(), null):
        os.close(fd)


def test_close_of_a_source_ends_its_workers_and_its_zygote():
    zygote = make_zygote()
    worker = zygote.spawn_worker({}, make_deadline())
    with WatchedProcess(worker.pid) as over, WatchedProcess(zygote.pid) as zygote_over:
        zygote.close()
        assert over.wait_for_end()
        assert zygote_over.wait_for_end(0)
    worker.close()
    catch_error(WorkerLost, zygote.spawn_worker, {}, make_deadline(), match="was closed")


@pytest.mark.threat("T-RUN-02", control="death_with_zygote")
def test_killed_zygote_ends_its_workers_and_is_replaced(fresh_zygote):
    workers = [fresh_zygote.spawn_worker({}, make_deadline()) for _ in range(3)]
    workers[0].send({"do": "spin"}, deadline=make_deadline())
    workers[1].send({"do": "hang"}, deadline=make_deadline())
    watched = [WatchedProcess(worker.pid) for worker in workers]
    old = fresh_zygote.pid
    os.kill(old, signal.SIGKILL)
    assert all(watch.wait_for_end() for watch in watched)
    for worker, watch in zip(workers, watched, strict=True):
        catch_error(WorkerLost, worker.receive, max_body=0, deadline=make_deadline(), match="status unknown")
        watch.__exit__()
    with fresh_zygote.spawn_worker({}, make_deadline()) as worker:
        assert fresh_zygote.pid != old
        assert inspect_worker(worker)["parent"] == fresh_zygote.pid


def test_stopped_zygote_fails_one_spawn_and_leaves_no_worker(fresh_zygote, monkeypatch):
    monkeypatch.setattr(pool, "REPORT_SECONDS", 0.05)
    monkeypatch.setattr(pool, "EXIT_SECONDS", 0.05)
    old, worker = fresh_zygote.pid, fresh_zygote.spawn_worker({}, make_deadline())
    with WatchedProcess(old) as over:
        os.kill(old, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match="status unknown"):
            worker.request({"do": "exit", "code": 3}, max_body=0, deadline=make_deadline())
        with Cancel() as cancel:
            setter = threading.Timer(0.05, cancel.set)
            setter.start()
            catch_error(Cancelled, fresh_zygote.spawn_worker, {}, make_deadline(cancel=cancel))
            setter.join()
        catch_error(DeadlineExceeded, fresh_zygote.spawn_worker, {}, make_deadline(0.1))
        assert over.wait_for_end(), "a hanging zygote is replaced"
    with pytest.raises(DeadlineExceeded):
        fresh_zygote.spawn_worker({}, make_deadline(0))
    assert fresh_zygote.pid is None
    with fresh_zygote.spawn_worker({}, make_deadline()) as worker:
        assert inspect_worker(worker)["parent"] == fresh_zygote.pid != old


def test_worker_of_a_cancelled_spawn_is_killed(silent_zygote, monkeypatch):
    abandoned = []

    def wait(_deadline, fd, mask, **_):
        if mask == select.POLLIN:
            select.select([fd], [], [], 20)
            with socket.socket(fileno=os.dup(fd)) as report:
                message = report.recv(4096, socket.MSG_PEEK)
            abandoned.append(WatchedProcess(json.loads(message)["pid"]))
            raise Cancelled("just now")
        return True

    with monkeypatch.context() as patch:
        patch.setattr(Deadline, "wait", wait)
        catch_error(Cancelled, silent_zygote.spawn_worker, {}, make_deadline())
    with abandoned[0] as over:
        assert over.wait_for_end()
