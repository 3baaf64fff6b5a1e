"""The daemon without HTTP: lanes, threads and roots, shutdown, embedding; and a killed process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import select
import signal
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest

import muniment
from kit.catching import catch_error
from kit.memories import count_descriptors
from kit.server.process import (
    BASE,
    ENDED,
    STOP_SECONDS,
    PausableModel,
    find_descendants,
    lock_roots,
    start_daemon_process,
)
from kit.server.raw import start_local_daemon
from muniment.agent.filing import RuleWriter
from muniment.client import Client
from muniment.errors import ManagedMemoryUnavailable, PathEscape
from muniment.kernel.names import Scope
from muniment.server import core
from muniment.server.lane import Lane
from muniment.server.runner import LaneRunner
from muniment.server.service import Daemon, Options
from muniment.server.work import create_workspace
from muniment.settings import Settings
from muniment.store.state import State

REVIEW = f"{BASE}/review"
FACT = {"content": "We deploy on Thursdays"}
KINDS = (("remember", FACT), ("forget", {"query": "nothing of it"}), ("dream", {}))
DRAINING = (503, "workspace_draining")


def read_end(daemon, task_id):
    """Wait for a task and return its status and code."""
    task = daemon.wait_for_task(task_id)
    return task["status"], task.get("error", {}).get("code")


# -- the lane ------------------------------------------------------------------------------------------


def test_tasks_run_in_order_and_queued_one_is_cancelled(blocked_daemon, model):
    accepted = [blocked_daemon.submit(*KINDS[number % 3]) for number in range(9)]
    model.wait_for_requests()
    assert [blocked_daemon.read_task(task_id)["status"] for task_id in accepted] == [
        "running",
        *["queued"] * 8,
    ]
    cancelled_id = accepted.pop(7)
    cancelled = blocked_daemon.cancel(cancelled_id).json()
    assert blocked_daemon.cancel(cancelled_id).json() == cancelled == cancelled | {"status": "cancelled"}
    model.resume()
    with blocked_daemon.follow_events(cursor=blocked_daemon.cursor(0)) as follower:
        last = {"taskId": accepted[-1], "status": "completed"}
        seen = follower.read_until(lambda each: each.data == each.data | last)
    tasks = [each.data for each in seen if each.type == "task" and "turn" not in each.data]
    statuses = [(each["taskId"], each["status"]) for each in tasks]
    assert [status for task_id, status in statuses if task_id == cancelled_id] == ["queued", "cancelled"]
    order = [(task_id, status) for task_id in accepted for status in ("running", "completed")]
    assert [each for each in statuses if each[1] != "queued" and each[0] != cancelled_id] == order


def test_running_task_is_cancelled_by_request_or_backstop(tmp_path, monkeypatch, model):
    us, runs = os.getpid(), (("remember", FACT), ("forget", {"query": "user owns bicycle"}))
    for way in "cancel", "backstop":
        with start_local_daemon(tmp_path, model, workers=True) as daemon:
            assert read_end(daemon, daemon.remember("The user owns 1 bicycle"))[0] == "completed"
            zygote = find_descendants(us)
            for kind, body in runs:
                seen = len(model.server.requests)
                model.pause()
                task_id, request = daemon.submit(kind, body), model.wait_for_requests(seen + 1)[-1]
                workers = find_descendants(us) - zygote
                assert workers or kind == "forget"
                if way == "cancel":
                    assert daemon.cancel(task_id).json()["status"] == "cancelled"
                else:
                    assert read_end(daemon, task_id) == ("failed", f"{kind}_timeout")
                assert request.hung_up.wait(STOP_SECONDS)
                assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
                model.resume()
            assert daemon.run_task("dream", {})["status"] == "completed"
            assert "Thursdays" not in str(daemon.read_files())
        monkeypatch.setattr(core, "LaneRunner", partial(LaneRunner, backstop=0.5))


def assert_not_ready(daemon, reason):
    """Check that the daemon accepts no tasks and reports the reason."""
    answers = daemon.post(f"{BASE}/remember", FACT).json(), daemon.get("/readyz").json()
    unready = {"code": "not_ready", "reason": "unavailable", "workspaces": {daemon.key: reason}}
    problem = {"status": 409, "code": "managed_memory_unavailable", "reason": reason}
    assert answers == (answers[0] | problem, answers[1] | unready)


def test_lane_with_dead_thread_rejects_tasks_and_is_not_ready(tmp_path, monkeypatch):
    with start_local_daemon(tmp_path, expects_defects=True) as daemon:
        assert daemon.get("/readyz").status_code == 200
        (runner,) = daemon.core._runners.values()
        with monkeypatch.context() as patch:
            patch.setattr(Lane, "claim", lambda _: 1 / 0)
            waiting = daemon.submit("remember", FACT)
            runner._threads[0].join(STOP_SECONDS)
        assert_not_ready(daemon, "lane_dead")
        assert daemon.get("/healthz").status_code == 200
    with start_local_daemon(tmp_path) as daemon:
        assert read_end(daemon, waiting) == ("completed", None)


# -- the owner, the disk, the ledger -------------------------------------------------------------------


def test_owner_operations_and_hanging_disk_block_no_one(separate_daemon, monkeypatch):
    started, release = threading.Semaphore(0), threading.Event()

    def block(*_):
        started.release()
        release.wait(STOP_SECONDS)

    def run_at(workspace):
        return asyncio.run_coroutine_threadsafe(
            separate_daemon.core.run_in_context(workspace, block), separate_daemon.loop
        )

    workspace = separate_daemon.core.workspaces[separate_daemon.key]
    requests = [run_at(workspace) for _ in range(core.MAX_OWNER_OPERATIONS)]
    assert all(started.acquire(timeout=STOP_SECONDS) for _ in requests)
    assert separate_daemon.request_problem("GET", REVIEW) == (503, "busy")
    assert separate_daemon.run_task("remember", FACT)["status"] == "completed"
    assert separate_daemon.post(f"{BASE}/recall", {"query": "When do we deploy?"}).json()["entries"]
    assert separate_daemon.get("/readyz").status_code == 200
    monkeypatch.setattr(workspace, "problem", block)
    with ThreadPoolExecutor(1) as threads:
        requests.append(threads.submit(separate_daemon.get, "/readyz"))
        assert started.acquire(timeout=STOP_SECONDS)
        assert separate_daemon.get("/healthz").status_code == 200
        release.set()
        assert requests.pop().result(STOP_SECONDS).status_code == 200
    assert [each.result(STOP_SECONDS) for each in requests] == [None] * core.MAX_OWNER_OPERATIONS
    assert separate_daemon.get(REVIEW).status_code == 200


def test_missing_ledger_rejects_tasks(separate_daemon):
    moved = (separate_daemon.state / "ledger.db").rename(separate_daemon.state / "moved.db")
    assert_not_ready(separate_daemon, "ledger_gone")
    moved.rename(separate_daemon.state / "ledger.db")
    assert separate_daemon.run_task("remember", FACT)["status"] == "completed"


# -- a workspace whose roots are replaced --------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path, exit_stack):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    settings = Settings(tmp_path / "home", policy="strict")
    state = exit_stack.enter_context(State(settings.state))
    created = create_workspace(tmp_path / "work", settings, state, in_process=False)
    return exit_stack.enter_context(closing(created))


def test_replaced_root_is_reported_once_then_rebound(workspace):
    """Users of the old roots keep them until the end, and recalls use a new recaller."""
    first, recaller, names = workspace.open_context(), workspace.get_recaller(), dict(workspace.scopes())
    assert workspace.open_context() is first
    root = first.roots[Scope("user")].trusted_path
    root.rename(root.with_name("before"))
    root.mkdir(mode=0o700)
    catch_error(
        ManagedMemoryUnavailable, workspace.get_recaller, match="user: was replaced while it was served"
    )
    assert (workspace.is_open, workspace.scopes()) == (False, names)
    second = workspace.open_context()
    assert second.roots[Scope("user")].inode != first.roots[Scope("user")].inode
    assert (workspace.is_open, workspace.scopes(), workspace.problem()) == (True, names, None)
    assert workspace.get_recaller() is workspace.get_recaller() is not recaller
    assert workspace.get_recaller().recall("harpsichord").error is None
    assert isinstance(recaller.recall("harpsichord").error, PathEscape)
    bindings = [root for binding in (first, second) for root in binding.roots.values()]
    assert len({os.fstat(root.root.fd) and root.root.fd for root in bindings}) == len(bindings)
    workspace.close()
    assert {root.root.fd for root in bindings} == {-1}


def test_roots_without_readable_keys_are_closed(workspace, monkeypatch):
    roots = []

    def fail_to_read_key(_, root):
        roots.append(root)
        raise ManagedMemoryUnavailable("ledger", "is full")

    with monkeypatch.context() as patch:
        patch.setattr("muniment.server.work.get_root_key", fail_to_read_key)
        assert "is full" in str(workspace.problem())
    assert (workspace.is_open, workspace.scopes(), [root.root.fd for root in roots]) == (False, {}, [-1])
    assert workspace.problem() is None


# -- shutdown ------------------------------------------------------------------------------------------


def test_stop_cancels_owner_operation_and_waits(tmp_path):
    with start_local_daemon(tmp_path, grace=0) as daemon, ThreadPoolExecutor(1) as threads:
        task = daemon.run_task("remember", FACT)["taskId"]
        has_begun, real_submit = threading.Event(), daemon.core._operation_threads.submit
        daemon.core._operation_threads.submit = lambda *args: (has_begun.set(), real_submit(*args))[1]
        with lock_roots(daemon.get_root(), daemon.get_root("project")):
            request = threads.submit(daemon.request_problem, "POST", f"{BASE}/undo", {"taskId": task})
            assert has_begun.wait(STOP_SECONDS)
            daemon.run_coroutine(daemon.daemon.stop())
            assert request.result(STOP_SECONDS) == DRAINING
        assert not daemon.core._operations


def test_failed_stop_counts_as_stopped(separate_daemon, monkeypatch):
    async def fail(_):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(separate_daemon.core, "stop", fail)
        catch_error(OSError, separate_daemon.run_coroutine, separate_daemon.daemon.stop(), match="gone")
        separate_daemon.run_coroutine(separate_daemon.daemon.wait_stopped())
    separate_daemon.daemon._stopping = None


def test_request_cut_by_stop_is_answered_with_draining(tmp_path, monkeypatch):
    monkeypatch.setattr("muniment.server.service._LINGER_SECONDS", 0.1)
    with (
        start_local_daemon(tmp_path, grace=0, expects_defects=True) as daemon,
        ThreadPoolExecutor(1) as threads,
    ):
        has_begun = threading.Event()

        async def block(*_):
            has_begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(daemon.core, "check", block)
        request = threads.submit(daemon.post, f"{BASE}/remember", FACT)
        assert has_begun.wait(STOP_SECONDS)
        daemon.run_coroutine(daemon.daemon.stop())
        answer = request.result(STOP_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == DRAINING
    assert answer.headers["x-content-type-options"] == "nosniff"


@contextmanager
def stop_with_tasks(daemon, model, grace):
    """Stop a daemon while one task runs and two are queued; they continue in the next daemon."""
    tasks = [daemon.remember(f"The user is {what}") for what in ("nearly done", "next", "doomed")]
    model.wait_for_requests()
    with ThreadPoolExecutor(1) as threads:
        long_poll = threads.submit(daemon.get, f"{BASE}/remember/{tasks[0]}", prefer="wait=60")
        waiting = daemon.guard.waiting
        daemon.wait_until(lambda: len(waiting) == 1)
        stop = asyncio.run_coroutine_threadsafe(daemon.core.stop(grace), daemon.loop)
        daemon.wait_until(lambda: daemon.core.is_draining)
        assert daemon.get("/readyz").json()["reason"] == "draining"
        yield tasks, long_poll
        assert stop.result(STOP_SECONDS)


def test_stop_with_grace_completes_running_and_keeps_queued(blocked_daemon, model, tmp_path):
    with stop_with_tasks(blocked_daemon, model, STOP_SECONDS) as (tasks, long_poll):
        assert blocked_daemon.request_problem("POST", f"{BASE}/remember", FACT) == DRAINING
        assert blocked_daemon.cancel(tasks[2]).json()["status"] == "cancelled"
        model.resume()
        assert long_poll.result(STOP_SECONDS).json()["status"] == "completed"
    assert [each in str(blocked_daemon.read_files()) for each in ("nearly done", "is next")] == [True, False]
    blocked_daemon.run_coroutine(blocked_daemon.daemon.stop())
    with start_local_daemon(tmp_path) as next_daemon:
        statuses = [read_end(next_daemon, each)[0] for each in tasks]
        assert (statuses, len(next_daemon.read_files())) == (["completed", "completed", "cancelled"], 2)


def test_stop_without_grace_requeues_running_task(blocked_daemon, model, tmp_path):
    with (
        stop_with_tasks(blocked_daemon, model, 0) as (tasks, long_poll),
        blocked_daemon.follow_events() as follower,
    ):
        follower.read_to_start()
        blocked_daemon.run_coroutine(blocked_daemon.daemon.stop())
        assert {event.type for event in follower} <= {"task"}  # Followers are disconnected.
        assert long_poll.result(STOP_SECONDS).json()["status"] == "queued"
        model.resume()
    with start_local_daemon(tmp_path) as next_daemon:
        assert [read_end(next_daemon, each)[0] for each in tasks] == ["completed"] * 3
        with next_daemon.follow_events(cursor=next_daemon.cursor(0)) as follower:
            completed = follower.read_until(lambda each: each.data.get("status") == "completed")[-1].data
        assert (completed["taskId"], completed["attempt"]) == (tasks[0], 1)


# -- embedding -----------------------------------------------------------------------------------------


def test_embedded_daemon_leaves_no_thread_or_handler(tmp_path):
    """No thread, child, descriptor or signal handler remains; a second daemon is rejected meanwhile."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    options = Options(Settings(tmp_path / "home"), (tmp_path / "work",), grace=1.0)
    state = options.settings.state

    async def program():
        async with Daemon(options, RuleWriter()) as daemon:
            with pytest.raises(ManagedMemoryUnavailable, match=daemon.url):
                await Daemon(options, RuleWriter()).__aenter__()
            headers = {"Authorization": f"Bearer {(state / 'token').read_text().strip()}"}
            async with httpx2.AsyncClient(base_url=daemon.url, headers=headers, trust_env=False) as http:
                assert (await http.get("/healthz")).status_code == 200
            assert (state / "daemon.json").exists()
        assert not (state / "daemon.json").exists()
        await daemon.wait_stopped()
        await daemon.stop()
        return daemon.url

    catch_error(httpx2.ConnectError, httpx2.get, f"{asyncio.run(program())}/healthz", trust_env=False)
    threads, before = set(threading.enumerate()), (count_descriptors(), signal.getsignal(signal.SIGTERM))
    asyncio.run(program())
    assert set(threading.enumerate()) <= threads
    assert (count_descriptors(), signal.getsignal(signal.SIGTERM)) == before


FACTS = 11


def ended_tasks(events):
    return [each for each in events if each.type == "task" and each.data["status"] in ENDED]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(7))
def test_killed_daemon_loses_and_repeats_nothing(tmp_path, seed):
    rng, events = random.Random(seed), []
    with PausableModel() as model, start_daemon_process(tmp_path, *model.flags) as daemon:
        document = daemon.home / "state" / "daemon.json"

        def follow(condition):
            """Read events after the last one until a condition holds."""
            with daemon.follow_events(cursor=events[-1].id if events else daemon.cursor(0)) as follower:
                while not condition():
                    events.append(next(follower))

        model.pause()
        facts = [{"content": f"The user owns {number} hats, no more"} for number in range(FACTS)]
        accepted = [daemon.submit("remember", each, idempotency_key=f"{n}") for n, each in enumerate(facts)]
        doomed = daemon.remember("The user waits in vain")
        assert daemon.cancel(doomed).json()["status"] == "cancelled"
        model.wait_for_requests()
        model.resume()
        for _ in range(rng.choice((1, 1, 2)) if seed else 1):
            seen, before = FACTS + len(ended_tasks(events)) * 6 + rng.randrange(30), daemon.process.pid
            follow(lambda seen=seen: len(events) >= seen or len(ended_tasks(events)) > FACTS)
            daemon.kill()
            daemon.start()
            address = json.loads(document.read_text())
            assert (address["pid"], address["url"]) == (daemon.process.pid, daemon.url)
            assert (address["pid"] != before, document.stat().st_mode & 0o777) == (True, 0o600)
            assert daemon.local.get("/healthz").status_code == 200
        second = daemon.post(f"{BASE}/remember", facts[0], idempotency_key="0")
        assert (second.json()["taskId"], second.headers["idempotency-replayed"]) == (accepted[0], "true")
        ends = {task_id: daemon.wait_for_task(task_id) for task_id in accepted}
        assert daemon.read_task(doomed)["status"] == "cancelled"
        follow(lambda: len(ended_tasks(events)) > FACTS)
        check_after_kills(daemon, ends, events)
        assert (daemon.stop(), document.exists(), daemon.socket.exists()) == (0, False, False)


def check_after_kills(daemon, ends, events):
    assert {task["status"] for task in ends.values()} == {"completed"}
    files = {path: text.rpartition("---")[2] for path, text in daemon.read_files().items()}
    for number, task in enumerate(ends.values()):
        (path,) = [f"user/{path}" for path, text in files.items() if f"owns {number} hats" in text]
        assert (task["result"]["filesTouched"], task["result"]["touchedScopes"]) == ([path], ["user"])
    with muniment.open(daemon.work, home=daemon.home) as memory:
        commits = [step.task for step in memory.history()]
    changed = [event.data["taskId"] for event in events if event.type == "memory_changed"]
    streamed = [event.data["taskId"] for event in ended_tasks(events) if event.data["status"] == "completed"]
    assert Counter(commits) == Counter(changed) == Counter(streamed) == dict.fromkeys(ends, 1)
    numbers = [event.number for event in events]
    assert (numbers, len({event.id.partition("-")[0] for event in events})) == (sorted(set(numbers)), 1)
    with daemon.follow_events(cursor=daemon.cursor(0)) as follower:
        replayed = follower.read_until(lambda event: event.id == events[-1].id)
    assert [event.id for event in replayed] == [event.id for event in events]


# -- workers -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["worker", "zygote"])
def test_killed_worker_fails_its_task_and_zygote_is_replaced(start_daemon, model, killed):
    daemon = start_daemon(*model.flags)
    daemon.wait_for_task(daemon.remember("The user warms up"))
    zygote, request_count = daemon.list_children(), len(model.server.requests)
    model.pause()
    tasks = [daemon.remember("The user is hit"), daemon.remember("The user is spared")]
    model.wait_for_requests(request_count + 1)
    for pid in zygote if killed == "zygote" else daemon.list_children() - zygote:
        os.kill(pid, signal.SIGKILL)
    model.resume()
    hit, spared = map(daemon.wait_for_task, tasks)
    assert spared["status"] == "completed"
    assert (hit["error"] or {"code": "remember_failed"})["code"] == "remember_failed"
    assert ("is hit" in str(daemon.read_files())) == (hit["status"] == "completed")
    if killed == "zygote":
        assert not zygote & daemon.list_children()
    else:
        assert (hit["status"], daemon.list_children()) == ("failed", zygote)


@pytest.mark.slow
def test_workers_of_killed_daemon_exit(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.pause()
    request_count = len(model.server.requests)
    daemon.remember("The user warms up")
    model.wait_for_requests(request_count + 1)
    pidfds = [os.pidfd_open(pid) for pid in daemon.list_children()]
    assert pidfds
    daemon.kill()
    for fd in pidfds:
        assert select.select([fd], [], [], STOP_SECONDS)[0]
        os.close(fd)
    model.resume()


# -- descriptors ---------------------------------------------------------------------------------------

DESCRIPTORS, BURST = 160, 400


@pytest.mark.threat("T-API-09", control="descriptors_left")
def test_remember_works_while_others_use_all_connections(start_daemon):
    daemon = start_daemon()
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    address = ("127.0.0.1", int(daemon.url.rpartition(":")[2]))
    with ExitStack() as sockets:
        for number in range(BURST):
            ways = (socket.AF_INET, address), (socket.AF_UNIX, str(daemon.socket))
            for family, where in ways[: 1 + number % 2]:
                line = sockets.enter_context(socket.socket(family))
                line.setblocking(False)
                line.connect_ex(where)
        with Client(daemon.url, token=daemon.token, workspace=daemon.key) as client:
            assert client.remember("The burst changes nothing").wait(timeout=STOP_SECONDS).files_touched
        assert len(daemon.list_children()) < 10
    daemon.http.close()
    daemon.http = httpx2.Client(base_url=daemon.url, trust_env=False, timeout=60)
    assert daemon.get("/readyz").status_code == 200
    assert daemon.run_task("remember", {"content": "The user prefers calm"})["status"] == "completed"
    assert not re.search("lane_broke|task_broke|no_descriptor", daemon.log)
    assert daemon.log.count("foreign_log") < 10
