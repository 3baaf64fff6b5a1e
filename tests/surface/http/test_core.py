"""What a daemon does beside HTTP: its lanes, threads and roots, how it ends, and what embeds it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest

from kit.daemon.process import BASE, ENDED, STOP_SECONDS, descendants
from kit.daemon.raw import running
from kit.daemon.world import locked
from kit.memories import descriptors
from muniment.agent.filing import RuleWriter
from muniment.daemon import core
from muniment.daemon.core import MAX_OWNER
from muniment.daemon.service import Daemon, Options
from muniment.daemon.work import Workspace
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, PathEscape
from muniment.lane import Lane, LaneRunner
from muniment.names import Scope
from muniment.settings import Settings
from muniment.store.state import State

REVIEW = f"{BASE}/review"
FACT = {"content": "We deploy on Thursdays"}
KINDS = (("remember", FACT), ("forget", {"query": "nothing of it"}), ("dream", {}))
DRAINING = (503, "workspace_draining")


def ended(daemon, task_id):
    """Status and code of a task once it is over."""
    task = daemon.wait(task_id)
    return task["status"], (task["error"] or {}).get("code")


# -- the lane ------------------------------------------------------------------------------------------


def test_tasks_run_one_at_a_time_in_the_order_of_their_acceptance_and_what_waits_is_cancelled(
    scripted, model
):
    model.hold()
    accepted = [scripted.submit(*KINDS[number % 3]) for number in range(12)]
    model.wait_until_asked()
    assert [scripted.look(task_id)["status"] for task_id in accepted] == ["running", *["queued"] * 11]
    doomed = accepted.pop(7)
    cancelled = scripted.cancel(doomed).json()
    assert cancelled["status"] == "cancelled"
    assert scripted.cancel(doomed).json() == cancelled
    model.release()
    told, left = [], {*accepted}
    with scripted.follow(cursor=scripted.cursor(0)) as follower:
        while left:
            event = next(follower)
            if event.type == "task" and "turn" not in event.data:
                told.append((event.data["taskId"], event.data["status"]))
                left -= {told[-1][0]} if told[-1][1] in ENDED else set()
    assert [each for each in told if each[0] == doomed] == [(doomed, "queued"), (doomed, "cancelled")]
    assert [each for each in told if each[1] != "queued" and each[0] != doomed] == [
        each for task_id in accepted for each in ((task_id, "running"), (task_id, "completed"))
    ]


def test_what_runs_is_cancelled_with_its_worker_and_its_request_by_who_asks_or_the_backstop(
    tmp_path, monkeypatch, model
):
    us, runs = os.getpid(), (("remember", FACT), ("forget", {"query": "user owns bicycle"}))
    with closing(model.asked()) as asked:
        for way in "cancel", "backstop":
            with running(tmp_path, asked, workers=True) as daemon:
                before = daemon.done("remember", {"content": "The user owns 1 bicycle"})
                assert before["status"] == "completed"
                zygote = set(descendants(us))
                for kind, body in runs:
                    seen = len(model.server.requests)
                    model.hold()
                    task_id = daemon.submit(kind, body)
                    request = model.wait_until_asked(seen + 1)[-1]
                    workers = set(descendants(us)) - zygote
                    assert workers or kind == "forget"
                    if way == "cancel":
                        assert daemon.cancel(task_id).json()["status"] == "cancelled"
                    else:
                        assert ended(daemon, task_id) == ("failed", f"{kind}_timeout")
                    assert request.hung_up.wait(STOP_SECONDS)
                    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
                    model.release()
                assert daemon.done("dream", {})["status"] == "completed"
                assert "Thursdays" not in str(daemon.files())
            monkeypatch.setattr(core.lanes, "LaneRunner", partial(LaneRunner, backstop=0.5))


def assert_dead(daemon, reason):
    """It takes no tasks, and says why to whoever asks if all is well."""
    refused, unready = daemon.post(f"{BASE}/remember", FACT), daemon.get("/readyz")
    assert (refused.status_code, refused.json()["code"]) == (409, "managed_memory_unavailable")
    assert refused.json()["reason"] == reason
    assert (unready.status_code, unready.json()["code"]) == (503, "not_ready")
    assert (unready.json()["reason"], unready.json()["workspaces"]) == ("unavailable", {daemon.key: reason})


def test_a_lane_whose_thread_broke_takes_no_tasks_and_is_told_to_whoever_asks_if_all_is_well(
    tmp_path, monkeypatch
):
    with running(tmp_path, broken=True) as daemon:
        assert daemon.get("/readyz").status_code == 200
        (runner,) = daemon.core._runners.values()
        with monkeypatch.context() as patch:
            patch.setattr(Lane, "claim", lambda _: 1 / 0)
            waiting = daemon.submit("remember", FACT)
            runner._threads[0].join(STOP_SECONDS)
        assert_dead(daemon, "lane_dead")
        assert daemon.get("/healthz").status_code == 200
    with running(tmp_path) as daemon:
        assert ended(daemon, waiting) == ("completed", None)


# -- the owner, the disk, the ledger --------------------------------------------------------------------


def test_what_the_owner_asks_for_holds_up_no_client_and_no_recall(alone):
    begun, release = threading.Semaphore(0), threading.Event()

    def body(_place, _cancel):
        begun.release()
        release.wait(STOP_SECONDS)
        return "done"

    workspace = alone.core.workspaces[alone.key]
    asked = [
        asyncio.run_coroutine_threadsafe(alone.core.at(workspace, body), alone.loop) for _ in range(MAX_OWNER)
    ]
    for _ in asked:
        assert begun.acquire(timeout=STOP_SECONDS)
    assert alone.problem("GET", REVIEW) == (503, "busy")
    assert alone.done("remember", FACT)["status"] == "completed"
    assert alone.post(f"{BASE}/recall", {"query": "When do we deploy?"}).json()["entries"]
    assert alone.get("/readyz").status_code == 200
    release.set()
    assert [each.result(STOP_SECONDS) for each in asked] == ["done"] * MAX_OWNER
    assert alone.get(REVIEW).status_code == 200


def test_a_disk_that_hangs_does_not_stop_the_daemon(alone, monkeypatch):
    begun, release = threading.Event(), threading.Event()

    def problem():
        begun.set()
        release.wait(STOP_SECONDS)

    monkeypatch.setattr(alone.core.workspaces[alone.key], "problem", problem)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(alone.get, "/readyz")
        assert begun.wait(STOP_SECONDS)
        assert alone.get("/healthz").status_code == 200
        release.set()
        assert asked.result(STOP_SECONDS).status_code == 200


def test_a_ledger_that_is_gone_takes_no_tasks(alone):
    ledger = alone.state / "ledger.db"
    ledger.rename(ledger.with_name("moved.db"))
    assert_dead(alone, "ledger_gone")
    ledger.with_name("moved.db").rename(ledger)
    assert alone.done("remember", FACT)["status"] == "completed"


# -- a workspace whose roots are replaced while it is served ---------------------------------------------


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    settings = Settings(tmp_path / "home", policy="strict")
    with State(settings.state) as state:
        made = Workspace(tmp_path / "work", settings, state, in_process=False)
        yield made
        made.close()


def test_a_root_that_was_replaced_is_said_so_once_and_then_bound_anew(workspace):
    """What uses the old roots keeps them until the end, and what recalls from them is another one."""
    first, recaller, names = workspace.place(), workspace.recaller(), dict(workspace.scopes())
    assert workspace.place() is first
    root = first.roots[Scope("user")].trusted_path
    root.rename(root.with_name("before"))
    root.mkdir(mode=0o700)
    with pytest.raises(ManagedMemoryUnavailable, match="user: was replaced while it was served"):
        workspace.recaller()
    assert not workspace.is_open
    assert workspace.scopes() == names
    second = workspace.place()
    assert workspace.is_open
    assert second.roots[Scope("user")].inode != first.roots[Scope("user")].inode
    assert workspace.scopes() == names
    assert workspace.problem() is None
    assert workspace.recaller() is workspace.recaller() is not recaller
    assert workspace.recaller().recall("harpsichord").error is None
    assert isinstance(recaller.recall("harpsichord").error, PathEscape)
    held = [root.root.fd for place in (first, second) for root in place.roots.values()]
    assert all(os.fstat(fd) for fd in held)
    assert len(set(held)) == len(held)
    workspace.close()
    assert {root.root.fd for place in (first, second) for root in place.roots.values()} == {-1}


def test_roots_whose_names_cannot_be_told_are_closed_again(workspace, monkeypatch):
    seen = []

    def broken(_, root):
        seen.append(root)
        raise ManagedMemoryUnavailable("ledger", "is full")

    with monkeypatch.context() as patch:
        patch.setattr("muniment.daemon.work.root_key", broken)
        assert "is full" in str(workspace.problem())
    assert (workspace.is_open, workspace.scopes()) == (False, {})
    assert [root.root.fd for root in seen] == [-1]
    assert workspace.problem() is None


# -- the end ---------------------------------------------------------------------------------------------


def test_a_stop_cancels_what_the_owner_asked_for_and_waits_for_it(tmp_path):
    with running(tmp_path, grace=0) as daemon, ThreadPoolExecutor(1) as threads:
        task = daemon.done("remember", FACT)["taskId"]
        waits, inner = threading.Event(), daemon.core._owner_threads.submit
        daemon.core._owner_threads.submit = lambda *args: (waits.set(), inner(*args))[1]
        with locked(daemon.root(), daemon.root("project")):
            asked = threads.submit(daemon.problem, "POST", f"{BASE}/undo", {"taskId": task})
            assert waits.wait(STOP_SECONDS)
            daemon.run(daemon.daemon.stop())
            assert asked.result(STOP_SECONDS) == DRAINING
        assert not daemon.core._owners


def test_a_stop_that_fails_is_over_all_the_same(alone, monkeypatch):
    async def fail(_):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(alone.core, "stop", fail)
        with pytest.raises(OSError, match="gone"):
            alone.run(alone.daemon.stop())
        alone.run(alone.daemon.stopped())
    alone.daemon._stopping = None


def test_a_request_that_the_stop_cuts_off_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr("muniment.daemon.service._LINGER_SECONDS", 0.1)
    with running(tmp_path, grace=0, broken=True) as daemon, ThreadPoolExecutor(1) as threads:
        begun = threading.Event()

        async def hang(*_):
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(daemon.core, "check", hang)
        asked = threads.submit(daemon.post, f"{BASE}/remember", FACT)
        assert begun.wait(STOP_SECONDS)
        daemon.run(daemon.daemon.stop())
        answer = asked.result(STOP_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == DRAINING
    assert answer.headers["x-content-type-options"] == "nosniff"


@contextmanager
def stopping(scripted, model, grace, doomed=None):
    """A daemon that was told to stop while one task runs and another waits; both go on in the next one."""
    model.hold()
    tasks = [scripted.remember(f"The user is {what}") for what in ("nearly done", "next")]
    model.wait_until_asked()
    if doomed is not None:
        doomed.append(scripted.remember("The user is doomed"))
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(scripted.get, f"{BASE}/remember/{tasks[0]}", prefer="wait=60")
        waiting = scripted.guard.waiting
        scripted.until(lambda: len(waiting) == 1)
        stop = asyncio.run_coroutine_threadsafe(scripted.core.stop(grace), scripted.loop)
        scripted.until(lambda: scripted.core.is_draining)
        assert scripted.get("/readyz").json()["reason"] == "draining"
        yield *tasks, waits
        assert stop.result(STOP_SECONDS)


def test_what_runs_may_end_within_the_grace_and_what_waits_be_cancelled_or_left_to_the_next_daemon(
    scripted, model, tmp_path
):
    doomed = []
    with stopping(scripted, model, STOP_SECONDS, doomed) as (ran, waiting, waits):
        assert scripted.problem("POST", f"{BASE}/remember", FACT) == DRAINING
        assert scripted.cancel(doomed[0]).json()["status"] == "cancelled"
        model.release()
        assert waits.result(STOP_SECONDS).json()["status"] == "completed"
    assert "nearly done" in str(scripted.files())
    assert "is next" not in str(scripted.files())
    scripted.run(scripted.daemon.stop())
    with running(tmp_path) as daemon:
        told = [ended(daemon, each)[0] for each in (ran, waiting, *doomed)]
        assert told == ["completed", "completed", "cancelled"]
        assert len(daemon.files()) == 2


def test_what_runs_beyond_the_grace_is_put_back_and_who_waits_for_it_is_told_as_it_is(
    scripted, model, tmp_path
):
    with stopping(scripted, model, 0) as (ran, waiting, waits):
        scripted.run(scripted.daemon.stop())
        assert waits.result(STOP_SECONDS).json()["status"] == "queued"
        model.release()
    with running(tmp_path) as daemon:
        assert [ended(daemon, each)[0] for each in (ran, waiting)] == ["completed"] * 2
        with daemon.follow(cursor=daemon.cursor(0)) as follower:
            over = follower.until(lambda each: each.data.get("status") == "completed")[-1].data
        assert (over["taskId"], over["attempt"]) == (ran, 1)


# -- a program that embeds it ----------------------------------------------------------------------------


@pytest.fixture
def options(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    return Options(Settings(tmp_path / "home"), (tmp_path / "work",), grace=1.0)


def test_a_program_embeds_a_daemon_on_its_own_loop_and_is_left_as_it_was(options):
    """No thread, no child, no descriptor and no signal handler stays; a second daemon refuses meanwhile."""

    async def program():
        async with Daemon(options, RuleWriter()) as daemon:
            with pytest.raises(ManagedMemoryUnavailable, match=daemon.url):
                await Daemon(options, RuleWriter()).__aenter__()
            token = (options.settings.state / "token").read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(base_url=daemon.url, headers=headers, trust_env=False) as http:
                assert (await http.get("/healthz")).status_code == 200
            assert (options.settings.state / "daemon.json").exists()
        assert not (options.settings.state / "daemon.json").exists()
        await daemon.stopped()
        await daemon.stop()
        return daemon.url

    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{asyncio.run(program())}/healthz", trust_env=False)
    before, handler = (set(threading.enumerate()), descriptors()), signal.getsignal(signal.SIGTERM)
    asyncio.run(program())
    assert set(threading.enumerate()) <= before[0]
    assert descriptors() == before[1]
    assert signal.getsignal(signal.SIGTERM) == handler


def test_an_address_that_others_reach_needs_a_name(options):
    for host in "0.0.0.0", "::", "example.org", "10.1.2.3":
        with pytest.raises(ConfigInvalid, match="--allow-host"):
            Daemon(Options(options.settings, options.workspaces, host=host), RuleWriter())


def test_a_workspace_that_is_not_there_or_there_twice_is_refused(options, tmp_path):
    for workspaces, told in (((tmp_path / "none",), "none"), ((*options.workspaces,) * 2, "named twice")):
        with pytest.raises(ConfigInvalid, match=told):
            asyncio.run(Daemon(Options(options.settings, workspaces), RuleWriter()).__aenter__())
        assert not (options.settings.state / "daemon.json").exists()


@pytest.mark.slow
def test_a_program_that_opens_the_state_as_well_leaves_the_daemon_its_log(tmp_path):
    """To close a file of SQLite's takes the process's locks on it; another one would then delete the log."""
    with running(tmp_path) as daemon:
        with State(daemon.state) as second:
            assert list(second.blocks("ledger.db", 0))
        program = [sys.executable, "-m", "muniment", "token", "list"]
        env = {"MUNIMENT_HOME": str(daemon.home), "PATH": "/usr/bin:/bin"}
        assert b"no tokens but" in subprocess.run(program, env=env, capture_output=True, check=True).stdout
        ours = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        ours = [path for path in ours if path.startswith(str(daemon.state))]
        assert ours
        assert not [path for path in ours if path.endswith("(deleted)")]
