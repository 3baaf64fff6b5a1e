"""What a worker holds, and when processes end: `muniment.confine.zygote` from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from kit.confine.probe import SERVICES, Watched, ask, look, ready, soon, source
from muniment.confine.cancel import Cancel, Patience
from muniment.confine.pool import import_directories
from muniment.errors import Cancelled, DeadlineExceeded, WorkerLost

SECRET = f"sk-canary-{os.urandom(16).hex()}"
APART = {
    "environ": {},
    "roots": {},
    "cwd": "/",
    "umask": 0o077,
    "flags": [1, 1],
    "core": [0, 0],
    "sigint": True,
}
OURS = {"muniment.names", "muniment.errors", "muniment.confine"}
OURS |= {f"muniment.confine.{name}" for name in ("wire", "fence", "syscalls", "zygote")}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another process's memory is root's to read")


def identity(fd):
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"


def holds(pid, needle):
    """Whether any memory of a process that can be written to holds `needle`."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            if "rw" in line.split()[1]:
                start, end = (int(number, 16) for number in line.split()[0].split("-"))
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(start)
                    if needle in memory.read(end - start):
                        return True
    return False


@pytest.fixture
def fresh():
    with ready() as zygote:
        yield zygote


@pytest.fixture
def deaf():
    """Its workers never notice that their connection was closed."""
    with ready("probe_service:silent") as zygote:
        yield zygote


@pytest.fixture(scope="module")
def steady():
    with ready() as zygote:
        yield zygote


@pytest.mark.threat("T-RUN-04", control="settled_zygote")
def test_a_worker_sees_no_environment_and_no_root_lives_apart_and_imports_nothing_of_the_broker(monkeypatch):
    monkeypatch.setenv("MUNIMENT_API_KEY", SECRET)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    with source() as zygote, zygote.spawn({}, deadline=soon()) as worker:
        seen = look(worker)
        path, modules = seen["path"], set(seen["modules"])
        assert (seen["pid"], seen["parent"], seen["session"]) == (worker.pid, zygote.pid, zygote.pid)
    assert seen["sigint"]
    assert {name: seen[name] for name in APART} == APART
    assert not {"", ".", "/nowhere", str(Path.cwd())} & set(path)
    assert path[-len(import_directories()) - 1 :] == [*import_directories(), SERVICES]
    assert {name for name in modules if name.startswith("muniment.")} <= OURS
    assert not modules & {"site", "sqlite3", "ssl", "openai", "pytest", "subprocess"}


@as_root
def test_what_a_run_says_reaches_neither_the_zygote_nor_the_next_worker(fresh):
    fact = f"fact-{os.urandom(16).hex()}"
    with fresh.spawn({}, deadline=soon()) as first:
        assert ask(first, "remember", say=fact)[0] == {"seen": []}
        assert ask(first, "remember")[0] == {"seen": [fact]}
        with fresh.spawn({}, deadline=soon()) as second:
            assert ask(second, "remember")[0] == {"seen": []}
            assert holds(first.pid, fact.encode())
            assert not holds(fresh.pid, fact.encode())
            assert not holds(second.pid, fact.encode())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_another_process_of_the_same_user_cannot_read_a_worker(steady):
    with steady.spawn({}, deadline=soon()) as worker:
        look(worker)
        for pid in (worker.pid, steady.pid):
            with pytest.raises(PermissionError):
                os.open(f"/proc/{pid}/mem", os.O_RDONLY)


@pytest.mark.threat("T-RUN-04", control="closed_descriptors")
def test_a_worker_holds_its_socket_its_roots_and_nothing_else(steady, tmp_path):
    roots = {}
    for scope in ("user", "project"):
        (tmp_path / scope).mkdir()
        (tmp_path / scope / f"{scope}.md").touch()
        roots[scope] = os.open(tmp_path / scope, os.O_RDONLY | os.O_DIRECTORY)
    null = os.open("/dev/null", os.O_RDWR)
    with steady.spawn({}, deadline=soon()), steady.spawn(roots, deadline=soon()) as worker:
        seen = look(worker)
    assert seen["roots"] == {"user": ["user.md"], "project": ["project.md"]}
    held = seen["descriptors"]
    assert {held.pop(standard) for standard in "012"} == {identity(null)}
    for fd in roots.values():
        number = next(number for number, what in held.items() if what == identity(fd))
        del held[number]
    assert len(held) == 1, "only the socket is left"
    for fd in (*roots.values(), null):
        os.close(fd)


def test_closing_a_source_ends_its_workers_and_itself():
    zygote = source()
    worker = zygote.spawn({}, deadline=soon())
    with Watched(worker.pid) as over, Watched(zygote.pid) as zygote_over:
        zygote.close()
        assert over.ended()
        assert zygote_over.ended(0)
    worker.close()
    with pytest.raises(WorkerLost, match="was closed"):
        zygote.spawn({}, deadline=soon())


@pytest.mark.threat("T-RUN-02", control="death_with_zygote")
def test_workers_vanish_with_a_killed_zygote_and_the_next_comes_from_another(fresh):
    workers = [fresh.spawn({}, deadline=soon()) for _ in range(3)]
    workers[0].send({"do": "spin"}, deadline=soon())
    workers[1].send({"do": "hang"}, deadline=soon())
    watched = [Watched(worker.pid) for worker in workers]
    old = fresh.pid
    os.kill(old, signal.SIGKILL)
    assert all(watch.ended() for watch in watched)
    for worker, watch in zip(workers, watched, strict=True):
        with pytest.raises(WorkerLost, match="status unknown"):
            worker.receive(max_body=0, deadline=soon())
        watch.__exit__()
    with fresh.spawn({}, deadline=soon()) as worker:
        assert fresh.pid != old
        assert look(worker)["parent"] == fresh.pid


def test_a_stopped_zygote_costs_one_caller_its_deadline_and_leaves_no_worker(fresh, monkeypatch):
    monkeypatch.setattr("muniment.confine.pool.REPORT_SECONDS", 0.05)
    old, worker = fresh.pid, fresh.spawn({}, deadline=soon())
    with Watched(old) as over:
        os.kill(old, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match="status unknown"):
            worker.request({"do": "exit", "code": 3}, max_body=0, deadline=soon())
        with Cancel() as cancel:
            setter = threading.Timer(0.05, cancel.set)
            setter.start()
            with pytest.raises(Cancelled):
                fresh.spawn({}, deadline=soon(), cancel=cancel)
            setter.join()
        with pytest.raises(DeadlineExceeded):
            fresh.spawn({}, deadline=soon(0.1))
        assert over.ended(), "it hung, so it is replaced"
    with pytest.raises(DeadlineExceeded):
        fresh.spawn({}, deadline=time.monotonic())
    assert fresh.pid is None
    with fresh.spawn({}, deadline=soon()) as worker:
        assert look(worker)["parent"] == fresh.pid != old


@pytest.mark.slow
def test_many_callers_of_a_stopped_zygote_all_keep_their_deadline(fresh):
    """Requests pile up until the control socket is full, which must not block either."""
    control = fresh._current._control
    os.kill(fresh.pid, signal.SIGSTOP)
    while select.select([], [control], [], 0)[1]:
        control.send(b"x" * 16_000)
    with pytest.raises(DeadlineExceeded):
        fresh.spawn({}, deadline=soon(0.1))
    assert fresh.pid is None, "it was replaced and killed while it was stopped"


def test_a_worker_forked_for_a_caller_who_gave_up_is_killed(deaf, monkeypatch):
    given_up = []

    def wait(_patience, fd, mask, **_):
        if mask == select.POLLIN:
            select.select([fd], [], [], 20)
            with socket.socket(fileno=os.dup(fd)) as report:
                message = report.recv(4096, socket.MSG_PEEK)
            given_up.append(Watched(json.loads(message)["pid"]))
            raise Cancelled("just now")
        return True

    with monkeypatch.context() as patch:
        patch.setattr(Patience, "wait", wait)
        with pytest.raises(Cancelled):
            deaf.spawn({}, deadline=soon())
    with given_up[0] as over:
        assert over.ended()


def test_a_worker_forked_too_late_is_killed_by_the_zygote(deaf):
    os.kill(deaf.pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        deaf._current.hatch({}, Patience(soon(0.05)))
    os.kill(deaf.pid, signal.SIGCONT)
    with deaf.spawn({}, deadline=soon()) as worker:  # requests are served in order
        children = Path(f"/proc/{deaf.pid}/task/{deaf.pid}/children")
        limit = soon()
        while children.exists() and set(children.read_text().split()) != {str(worker.pid)}:
            assert time.monotonic() < limit
