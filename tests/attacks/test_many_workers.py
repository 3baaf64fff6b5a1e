"""Workers by the thousand, twenty at once, and what becomes of them when their zygote or broker is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kit.confine.probe import SERVICES, Watched, nothing_left_open, soon
from kit.memories import IN_A_WORKER, SCOPES, make_roots, photograph, put, strict
from kit.raising import raised
from muniment.confine.cancel import Patience
from muniment.confine.pool import Zygote
from muniment.errors import WorkerLost
from muniment.sandbox import Sandbox
from muniment.tools.remote import RemoteBench, greet


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    put(roots["user"], "known.md", "what was there\n")
    return roots


@pytest.fixture
def root(roots):
    fd = os.open(roots["user"], os.O_PATH | os.O_DIRECTORY)
    yield {"user": fd}
    os.close(fd)


def set_up(worker):
    """A workbench in it, held as this machine's kernel can."""
    assert greet(worker, Patience(soon())).enforcement is IN_A_WORKER
    return RemoteBench(worker, strict(), SCOPES, must_read=True, patience=lambda: Patience(soon()))


def use(worker, number):
    """One of the ways in which a run goes."""
    match number % 5:
        case 0:
            bench = set_up(worker)
            assert bench.call("read_file", {"path": "user/known.md"}).text == "1\twhat was there"
            bench.call("write_file", {"path": "user/new.md", "content": "x\n"})
            assert len(bench.change_set().changes) == 1
        case 1:
            greet(worker, Patience(soon()))
        case 2:
            worker.kill()
        case 3:
            greet(worker, Patience(soon()))
            worker._sock.send(b"\xff" * 64)
            raised(WorkerLost, worker.receive, max_body=0, deadline=soon())
        case _:
            pass  # given back before its first word


def held(pid):
    """How many descriptors a process has; 0 where only root may ask."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except PermissionError:
        return 0


def resident(pid):
    """KiB of memory that a process has resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def children(pid):
    """Its children, dead ones that it has not reaped included; None where the kernel does not tell."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return listed.read_text().split() if listed.exists() else None


@pytest.mark.slow
def test_three_hundred_workers_of_several_zygotes_leave_nothing(root):
    with Zygote(runs=100) as zygote:
        zygote.wait_ready(soon())
        for number in range(10):
            with zygote.spawn(root, deadline=soon()) as worker:
                use(worker, number)
        ours, zygotes, grown = resident(os.getpid()), {zygote.pid: resident(zygote.pid)}, 0
        with nothing_left_open():
            for number in range(300):
                with zygote.spawn(root, deadline=soon()) as worker:
                    pid = zygote.pid
                    zygotes.setdefault(pid, resident(pid))
                    use(worker, number)
                grown = max(grown, resident(pid) - zygotes[pid])
        limit = soon()
        # The zygote gives a worker's descriptors back, and reaps it, a moment after it told its end.
        while children(zygote.pid) or held(zygote.pid) > len(("0", "1", "2", "control socket")):
            assert time.monotonic() < limit
        for pid in set(zygotes) - {zygote.pid}:
            assert not Path(f"/proc/{pid}").exists(), "a zygote that was replaced is still there"
        assert len(zygotes) == 4
        assert grown < 4096
        assert resident(os.getpid()) - ours < 4096


@pytest.mark.slow
def test_a_run_whose_zygote_is_killed_fails_cleanly_and_the_next_one_works(roots, tmp_path, monkeypatch):
    with Zygote() as zygote:
        monkeypatch.setattr("muniment.sandbox.shared_zygote", lambda: zygote)
        zygote.wait_ready(soon())
        before, first = photograph(tmp_path), zygote.pid
        with nothing_left_open():
            with Sandbox(strict(), roots) as box:
                box.call("write_file", {"path": "user/new.md", "content": "x\n"})
                with Watched(box._worker.pid) as worker:
                    os.kill(first, signal.SIGKILL)
                    assert worker.ended()
                for again in (lambda: box.call("ls", {"path": "user"}), box.changes, box.commit):
                    raised(WorkerLost, again)
            assert photograph(tmp_path) == before
            with Sandbox(strict(), roots) as box:
                box.call("write_file", {"path": "user/new.md", "content": "x\n"})
                assert [change.path for change in box.commit().changes] == ["user/new.md"]
        assert zygote.pid != first


BROKER = f"""
    import os, sys, threading, time
    from pathlib import Path
    import muniment.sandbox as sandbox
    from muniment.confine.pool import Zygote, import_directories

    zygote = Zygote("failing_service:serve", directories=[*import_directories(), {SERVICES!r}])
    sandbox.shared_zygote = lambda: zygote
    idle, busy = (sandbox.Sandbox("strict", {{"user": sys.argv[1]}}) for _ in range(2))
    for box in (idle, busy):
        box.call("write_file", {{"path": "user/new.md", "content": "x"}})
    threading.Thread(target=busy.call, args=("grep", {{"pattern": "spin"}}), daemon=True).start()
    stat = Path(f"/proc/{{busy._worker.pid}}/stat")
    ticks = lambda: int(stat.read_text().rsplit(")", 1)[1].split()[11])
    began = ticks()
    while ticks() < began + 3:
        pass
    print(zygote.pid, idle._worker.pid, busy._worker.pid, flush=True)
    sys.stdin.read()
"""


def test_zygote_and_fenced_workers_are_gone_once_their_broker_was_killed(roots, tmp_path):
    before = photograph(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(BROKER), str(roots["user"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        watched = [Watched(int(pid)) for pid in broker.stdout.readline().split()]
        assert [each.ended(0) for each in watched] == [False] * 3
        broker.kill()
        assert [each.ended(5) for each in watched] == [True] * 3
    for each in watched:
        each.__exit__()
    assert photograph(tmp_path) == before
