"""A worker that is killed, or ends itself, at any moment of a run: nothing is committed, and nothing is
left.

Everything is real except the broker's end of the socket, which counts its operations and kills the worker
after one of them.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kit.catching import catch_error
from kit.descriptors import assert_descriptors_closed
from kit.memories import WORKER_CONFINEMENT, make_roots, make_strict_policy, take_snapshot, write_file
from kit.operations.contexts import open_context, run_remember
from kit.sandbox.machine import needs_fence
from kit.sandbox.probe import SERVICES, WatchedProcess, make_zygote_fixture
from muniment.errors import WorkerLost
from muniment.sandbox.sandbox import Sandbox

CALLS = [
    *(("ls", {"path": "user"}), ("read_file", {"path": "user/known.md"}), ("grep", {"pattern": "there"})),
    ("edit", {"path": "user/known.md", "old_string": "was", "new_string": "is"}),
    ("write_file", {"path": "user/topic/new.md", "content": "new\n"}),
    ("write_file", {"path": "user/more.md", "content": "more\n"}),
]


@dataclass
class FragileConnection:
    """The broker's end of a worker's connection; the worker dies after `at` operations."""

    at: int
    kill: str = ""  # signal of a kill from outside
    done: int = 0
    committing: bool = False
    exchange_begun: bool = False  # the kill came during the commit
    over: list[int] = field(default_factory=list)

    def spawn_worker(self, roots, patience):
        """Spawn a worker with such a connection, in place of the zygote."""
        self.worker = worker = self.zygote.spawn_worker(roots, patience)
        self.sock, worker._channel._sock = worker._channel._sock, self
        self.over.append(os.pidfd_open(worker.pid))
        self.kill_if_due()
        return worker

    def recv(self, size):
        return self.count_operation(self.sock.recv(size))

    def send(self, data, flags):
        return self.count_operation(self.sock.send(data, flags))

    def count_operation(self, result):
        self.done += 1
        self.kill_if_due()
        return result

    def kill_if_due(self):
        if self.done == self.at:
            self.exchange_begun = self.committing
            if self.kill:
                signal.pidfd_send_signal(self.over[-1], signal.Signals[self.kill])
            else:
                self.worker.kill()
            limit = time.monotonic() + 20
            while Path(f"/proc/{self.worker.pid}").exists():  # until its zygote has reaped it
                assert time.monotonic() < limit

    @contextmanager
    def intercept_workers(self, zygote):
        """Give all workers such a connection, and check that they are gone afterwards."""
        self.zygote = zygote
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("muniment.sandbox.fence.pool.get_shared_zygote", lambda: self)
            yield
        are_gone = select.select(self.over, [], [], 0)[0] == self.over
        for fd in self.over:
            os.close(fd)
        assert are_gone, "the worker is still there"


@pytest.fixture
def roots(tmp_path):
    roots = make_roots(tmp_path)
    write_file(roots["user"], "known.md", "what was there\n")
    return roots


def run(policy, roots, fragile):
    """Run a whole run with a commit; mark in `fragile` when the commit begins."""
    with Sandbox(policy, roots) as box:
        try:
            for tool, arguments in CALLS:
                box.call(tool, arguments)
            box.changes()
            fragile.committing = True
            box.commit()
        except WorkerLost:
            for retry in (box.changes, box.commit):
                if box._executor is not None:
                    catch_error(WorkerLost, retry)
            raise


def test_worker_killed_at_any_frame_commits_nothing(request, roots, tmp_path, zygote):
    stride = 1 if request.config.getoption("--slow") else 17
    zygote.start()
    pid, at, mattered, finished, fragile = zygote.pid, 0, 0, False, FragileConnection(0)
    while not finished or fragile.done >= at - stride:
        before, fragile, finished = take_snapshot(tmp_path), FragileConnection(at), False
        with assert_descriptors_closed(), fragile.intercept_workers(zygote), suppress(WorkerLost):
            run(make_strict_policy(require=WORKER_CONFINEMENT), roots, fragile)
            finished = True
        if finished:  # The commit had all data before the worker died.
            assert fragile.exchange_begun or fragile.done < at
            assert (roots["user"] / "known.md").read_text() == "what is there\n"
            shutil.rmtree(roots["user"])
            write_file(roots["user"], "known.md", "what was there\n")
            roots["user"].chmod(0o700)
        else:
            assert take_snapshot(tmp_path) == before
            mattered += 1
        at += stride
    assert fragile.done > 60
    assert mattered > 50 // stride
    assert zygote.pid == pid, "an intended kill must not restart the zygote"


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "at"), [("SIGKILL", 0), ("SIGSYS", 1), ("SIGSEGV", 9), ("SIGTERM", 30)])
def test_error_names_the_signal_of_a_killed_worker(name, at, roots, tmp_path, zygote):
    fragile = FragileConnection(at, kill=name)
    before = take_snapshot(tmp_path)
    with fragile.intercept_workers(zygote), pytest.raises(WorkerLost, match=name):
        run(make_strict_policy(), roots, fragile)
    assert take_snapshot(tmp_path) == before
    with Sandbox(make_strict_policy(), roots) as box:
        assert box.call("ls", {"path": "user"}).verdict == "allow"


@pytest.mark.parametrize("at", range(0, 13, 4))
def test_remember_with_a_killed_worker_fails_cleanly(at, roots, tmp_path, zygote):
    before = take_snapshot(tmp_path)
    with (
        open_context(roots, make_strict_policy(), in_process=False) as context,
        FragileConnection(at).intercept_workers(zygote),
    ):
        result = run_remember(context, "The user prefers dark mode")
    assert result.error is not None
    assert result.error.code == "remember_failed"
    assert take_snapshot(tmp_path) == before


failing = make_zygote_fixture("failing_service:hasty")


# The fence denies a process to signal itself; the C library then traps.
FAILURES = {"fork": "SIGSYS", "write": "70 .bug", "allocate": "66 .memory", "malloc": "SIGSEGV"}
FAILURES |= {"spin": "SIGKILL", "abort": "SIG(ABRT|SEGV)", "recurse": "70 .bug"}


@pytest.mark.sweep(1)
@needs_fence
@pytest.mark.parametrize(("deed", "expected"), FAILURES.items())
def test_forbidden_act_of_a_fenced_worker_ends_the_run(deed, expected, failing, roots, tmp_path, monkeypatch):
    monkeypatch.setattr("muniment.sandbox.fence.pool.get_shared_zygote", lambda: failing)
    failing.start()
    photo = take_snapshot(tmp_path)
    with assert_descriptors_closed():  # Including zygotes: a replaced one closes its socket.
        with Sandbox(make_strict_policy(), roots) as box:
            box.call("write_file", {"path": "user/topic/new.md", "content": "new\n"})
            catch_error(WorkerLost, box.call, "grep", {"pattern": deed}, match=expected)
            for retry in (box.changes, box.commit, lambda: box.call("ls", {"path": ""})):
                catch_error(WorkerLost, retry, match=expected)
        assert take_snapshot(tmp_path) == photo
        with Sandbox(make_strict_policy(), roots) as box:
            assert box.call("ls", {"path": "user"}).verdict == "allow"


# -- workers after their broker was killed


BROKER = f"""
    import sys, threading
    from pathlib import Path
    import muniment.sandbox.sandbox as sandbox
    from muniment.sandbox.fence import pool

    zygote = pool.Zygote("failing_service:serve", directories=[*pool.find_import_directories(), {SERVICES!r}])
    pool.get_shared_zygote = lambda: zygote
    idle, busy = (sandbox.Sandbox("strict", {{"user": sys.argv[1]}}) for _ in range(2))
    for box in (idle, busy):
        box.call("write_file", {{"path": "user/new.md", "content": "x"}})
    threading.Thread(target=busy.call, args=("grep", {{"pattern": "spin"}}), daemon=True).start()
    while Path(f"/proc/{{busy._worker.pid}}/stat").read_text().rsplit(")", 1)[1].split()[0] != "R":
        pass
    print(zygote.pid, idle._worker.pid, busy._worker.pid, flush=True)
    sys.stdin.read()
"""


def test_zygote_and_workers_end_with_their_broker(roots, tmp_path):
    before = take_snapshot(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(BROKER), str(roots["user"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        watched = [WatchedProcess(int(pid)) for pid in broker.stdout.readline().split()]
        assert [each.wait_for_end(0) for each in watched] == [False] * 3
        broker.kill()
        assert [each.wait_for_end(5) for each in watched] == [True] * 3
    for each in watched:
        each.__exit__()
    assert take_snapshot(tmp_path) == before
