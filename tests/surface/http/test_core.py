"""What the daemon does beside its lanes: it asks in threads, waits for what the owner asked for, and ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kit.daemon.embedded import embedded
from kit.daemon.process import STOP_SECONDS
from muniment.daemon.core import MAX_OWNER
from muniment.lane import Lane

REVIEW = "/workspace/memory/review"
FACT = {"content": "We deploy on Thursdays"}


@pytest.fixture
def daemon(tmp_path):
    with embedded(tmp_path) as daemon:
        yield daemon


@contextmanager
def locked(root):
    """Somebody else writes in a root."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def held_up(daemon, begun, release):
    """Something that the owner asks for and that takes its time, whatever is cancelled."""

    def body(_place, _cancel):
        begun.release()
        release.wait(STOP_SECONDS)
        return "done"

    workspace = next(iter(daemon.core.workspaces.values()))
    return asyncio.run_coroutine_threadsafe(daemon.core.at(workspace, body), daemon.loop)


def test_a_stop_cancels_what_the_owner_asked_for_and_waits_for_it(tmp_path):
    with embedded(tmp_path, grace=0) as daemon, ThreadPoolExecutor(1) as threads:
        task = daemon.remember("We deploy on Thursdays")
        daemon.wait(task)
        waits = threading.Event()
        inner = daemon.core._owner_threads.submit
        daemon.core._owner_threads.submit = lambda *args: (waits.set(), inner(*args))[1]
        with locked(tmp_path / "home" / "user"), locked(next(tmp_path.glob("home/projects/*/memory"))):
            asked = threads.submit(daemon.post, "/workspace/memory/undo", {"taskId": task})
            assert waits.wait(STOP_SECONDS)
            daemon.run(daemon.daemon.stop())
            answer = asked.result(STOP_SECONDS)
        assert (answer.status_code, answer.json()["code"]) == (503, "workspace_draining")
        assert not daemon.core._owners


def test_what_the_owner_asks_for_does_not_hold_up_clients(daemon):
    begun, release = threading.Semaphore(0), threading.Event()
    asked = [held_up(daemon, begun, release) for _ in range(MAX_OWNER)]
    for _ in asked:
        assert begun.acquire(timeout=STOP_SECONDS)
    refused = daemon.get(REVIEW)
    assert (refused.status_code, refused.json()["code"]) == (503, "busy")
    assert "retry-after" in refused.headers
    assert daemon.wait(daemon.remember("We deploy on Thursdays"))["status"] == "completed"
    assert daemon.get("/readyz").status_code == 200
    release.set()
    assert [each.result(STOP_SECONDS) for each in asked] == ["done"] * MAX_OWNER
    assert daemon.get(REVIEW).status_code == 200


def test_once_the_daemon_stops_the_owner_is_told_so(daemon):
    daemon.core.is_draining = True
    refused = daemon.get(REVIEW)
    assert (refused.status_code, refused.json()["code"]) == (503, "workspace_draining")


def test_a_disk_that_hangs_does_not_stop_the_daemon(daemon, monkeypatch):
    begun, release = threading.Event(), threading.Event()
    workspace = next(iter(daemon.core.workspaces.values()))

    def problem():
        begun.set()
        release.wait(STOP_SECONDS)

    monkeypatch.setattr(workspace, "problem", problem)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(daemon.get, "/readyz")
        assert begun.wait(STOP_SECONDS)
        assert daemon.get("/healthz").status_code == 200
        release.set()
        assert asked.result(STOP_SECONDS).status_code == 200


def test_a_lane_that_a_defect_ended_takes_no_tasks(daemon, monkeypatch):
    ended = threading.Event()

    def claim(_):
        ended.set()
        raise TypeError

    monkeypatch.setattr(Lane, "claim", claim)
    daemon.remember("We deploy on Thursdays")
    assert ended.wait(STOP_SECONDS)
    (runner,) = daemon.core._runners.values()
    runner._threads[0].join(STOP_SECONDS)
    refused = daemon.post("/workspace/memory/remember", FACT)
    assert (refused.status_code, refused.json()["code"]) == (409, "managed_memory_unavailable")
    assert refused.json()["reason"] == "lane_dead"


def test_a_stop_that_fails_is_over_all_the_same(daemon, monkeypatch):
    async def fail(_):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(daemon.core, "stop", fail)
        with pytest.raises(OSError, match="gone"):
            daemon.run(daemon.daemon.stop())
        daemon.run(daemon.daemon.stopped())
    daemon.daemon._stopping = None


def test_a_ledger_that_is_gone_takes_no_tasks(daemon):
    ledger = daemon.home / "state" / "ledger.db"
    ledger.rename(ledger.with_name("moved.db"))
    refused = daemon.post("/workspace/memory/remember", FACT)
    assert (refused.status_code, refused.json()["reason"]) == (409, "ledger_gone")
    unready = daemon.get("/readyz")
    assert (unready.status_code, set(unready.json()["workspaces"].values())) == (503, {"ledger_gone"})
    ledger.with_name("moved.db").rename(ledger)
    assert daemon.wait(daemon.remember("We deploy on Thursdays"))["status"] == "completed"


def test_a_request_that_the_stop_cuts_off_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr("muniment.daemon.service._LINGER_SECONDS", 0.1)
    with embedded(tmp_path, grace=0) as daemon, ThreadPoolExecutor(1) as threads:
        begun = threading.Event()

        async def hang(*_):
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(daemon.core, "check", hang)
        asked = threads.submit(daemon.post, "/workspace/memory/remember", FACT)
        assert begun.wait(STOP_SECONDS)
        daemon.run(daemon.daemon.stop())
        answer = asked.result(STOP_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == (503, "workspace_draining")
    assert answer.headers["x-content-type-options"] == "nosniff"
