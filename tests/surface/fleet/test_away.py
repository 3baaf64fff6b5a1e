"""If the database is absent or hangs, nothing that was accepted is lost and work continues afterwards."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx2
import pytest

from kit import postgres
from kit.fleet.homes import create_database
from kit.fleet.local_nodes import start_nodes, wait_until
from kit.server.process import BASE, find_descendants

LEDGER_AWAY = (503, "ledger_away")
SOON = 10.0
"""Seconds until an answer without the database."""


@pytest.fixture(scope="module")
def own_nodes(tmp_path_factory):
    """Start nodes with their own database server, which may be stopped."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres.start_server())
        base = stack.enter_context(create_database(server.url))
        created = stack.enter_context(start_nodes(base, tmp_path_factory.mktemp("away"), lease=2.0))
        created.server = server
        yield created


@contextmanager
def stop_server(server):
    server.stop(signal.SIGQUIT)
    try:
        yield
    finally:
        server.start()


@contextmanager
def suspend_server(server):
    """Suspend every process of the server without closing a connection."""
    suspended = []
    try:
        for pid in (server.pid, *find_descendants(server.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                suspended.append(pid)
        yield
    finally:
        for pid in suspended:
            os.kill(pid, signal.SIGCONT)


class Follower(threading.Thread):
    """Follows a home at one node after the other, each time from the last event."""

    def __init__(self, home):
        super().__init__(daemon=True)
        self.home, self.seen, self.kinds, self.is_over = home, [], set(), False
        self.last = home.nodes[0].cursor(0)
        self.start()

    def run(self):
        turn = 0
        while not self.is_over:
            turn += 1
            with (
                suppress(httpx2.HTTPError, AssertionError),
                self.home.nodes[turn % len(self.home.nodes)].follow_events(self.last) as followed,
            ):
                for event in followed:
                    self.last = followed.last_id
                    self.seen.append(event.number)
                    self.kinds.add(event.type)
                    if self.is_over:
                        return
            time.sleep(0.05)

    def until_seen(self, number):
        wait_until(lambda: self.seen and self.seen[-1] >= number)


def check_recovery(own_nodes, home, break_server, seconds):
    """Check that accepted tasks and a later one are completed, and that a follower misses no event."""
    at, other = home.nodes
    assert at.run_task("remember", {"content": "The user prefers tea over coffee."})["status"] == "completed"
    assert at.recall_texts("tea or coffee?")
    follower = Follower(home)
    follower.until_seen(1)
    before = [at.remember(f"The user keeps item number {number} in the cellar.") for number in range(4)]
    with break_server(own_nodes.server):
        check_answers_without_database(at)
        wait_until(lambda: other.http.get("/readyz", timeout=SOON).status_code == 503)
        time.sleep(seconds)
    later = until_accepted(other, "The user likes walking in the hills.")
    for task_id in (*before, later):
        task = wait_until_ended(at, task_id)
        assert task["status"] == "completed", task
    assert at.get("/readyz").status_code == 200
    rows = own_nodes.base.pool.home(home.name)
    ((last,),) = rows.rows("SELECT last FROM series")
    follower.until_seen(last)
    follower.is_over = True
    assert follower.seen == list(range(1, len(follower.seen) + 1))
    assert "resync" not in follower.kinds


def check_answers_without_database(at):
    wait_until(lambda: at.http.get("/readyz", timeout=SOON).status_code == 503)
    ready = at.http.get("/readyz", timeout=SOON).json()
    assert ready["code"] == "not_ready"
    assert list(ready["workspaces"].values()) == ["ledger_away"]
    assert at.http.get("/healthz", timeout=SOON).status_code == 200
    for path, body in (("remember", {"content": "The user was away."}), ("recall", {"query": "tea?"})):
        headers = {"Authorization": f"Bearer {at.token}"}
        answer = at.http.post(f"{BASE}/{path}", json=body, headers=headers, timeout=SOON)
        assert (answer.status_code, answer.json()["code"]) == LEDGER_AWAY, answer.text
        assert int(answer.headers["retry-after"]) > 0
    name = "0" * 32
    answer = at.http.get(f"/hello?token={name}&nonce={'0' * 64}", timeout=SOON)
    assert (answer.status_code, answer.json()["code"]) == LEDGER_AWAY, answer.text


def until_accepted(at, content):
    """Return the id of a task after it is accepted; until then each answer is an error."""
    deadline = time.monotonic() + 30
    while True:
        answer = at.post(f"{BASE}/remember", {"content": content})
        if answer.status_code == 202:
            return answer.json()["taskId"]
        assert (answer.status_code, answer.json()["code"]) == LEDGER_AWAY, answer.text
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_until_ended(at, task_id):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        task = at.read_task(task_id)
        if task.get("status") in {"completed", "failed", "cancelled"}:
            return task
        time.sleep(0.1)
    raise AssertionError(task)


@pytest.mark.parametrize("break_server", [stop_server, pytest.param(suspend_server, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seconds", [0.5, pytest.param(30.0, marks=pytest.mark.slow)])
def test_absent_database_accepts_nothing_and_loses_nothing(own_nodes, break_server, seconds):
    check_recovery(own_nodes, own_nodes.create_home(), break_server, seconds)


@pytest.mark.slow
def test_event_loop_runs_while_database_hangs(own_nodes):
    home = own_nodes.create_home()
    assert home.nodes[0].recall_texts("anything") == []
    with suspend_server(own_nodes.server), ExitStack() as stack:
        threads = []
        for number in range(40):
            at = own_nodes.open_requests(number % 2, home.token)
            thread = threading.Thread(target=lambda at=at: at.get(f"{BASE}/tasks"))
            thread.start()
            threads.append(thread)
            stack.callback(thread.join)
        for at in home.nodes:
            assert at.http.get("/healthz", timeout=2.0).status_code == 200
            assert at.http.get("/readyz", timeout=SOON).json()["workspaces"].popitem()[1] == "ledger_away"
    wait_until(lambda: home.nodes[0].get("/readyz").status_code == 200)
