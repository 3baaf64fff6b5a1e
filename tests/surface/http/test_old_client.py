"""Clients written for the contract as it was first: they know `completed` and `failed`, and wait for one.

The client below is all of theirs that matters: Python's own HTTP, no ETag, no Prefer, no retries.
"""

from __future__ import annotations

import http.client
import json
import time

import pytest

from kit.daemon.minds import meddling, writes
from kit.daemon.process import BASE, HeldModel, Served, policy_file, serving

PATIENCE_SECONDS = 20


class OldClient:
    """Sends a fact and polls until it is told one of the two ends that it knows."""

    def __init__(self, daemon: Served, token=None):
        self._address = daemon.url.removeprefix("http://")
        self.headers = {
            "Authorization": f"Bearer {token or daemon.token}",
            "Content-Type": "application/json",
        }

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection(self._address, timeout=PATIENCE_SECONDS)
        connection.request(method, path, None if body is None else json.dumps(body), self.headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
        connection.close()
        return answer.status, document

    def begin(self, kind, body):
        status, task = self.call("POST", f"{BASE}/{kind}", body)
        assert status == 202
        return f"{BASE}/{kind}/{task['taskId']}"

    def poll(self, path):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            status, task = self.call("GET", path)
            assert status == 200
            if task["status"] in {"completed", "failed"}:
                return task
        raise AssertionError(f"it hangs: {task}")


@pytest.fixture(scope="module")
def held():
    with HeldModel() as model:
        yield model


@pytest.fixture(scope="module")
def strict_daemon(tmp_path_factory, held):
    """A daemon whose user scope waits for reviews, whose project scope does not, and which never retries."""
    base = tmp_path_factory.mktemp("old")
    policy = policy_file(base, user='{ trust = "owner", commit = "review" }', conflict='"fail"')
    with serving(base, "--policy", str(policy), *held.flags) as served:
        yield served


def test_a_fact_that_is_remembered_ends(daemon):
    client = OldClient(daemon)
    task = client.poll(client.begin("remember", {"content": "The user prefers old clients to new ones"}))
    assert task["status"] == "completed"
    assert task["result"]["filesTouched"]
    assert task["error"] is None


def test_a_token_is_enough_for_who_asks_for_no_proof_and_none_is_not(daemon):
    """What the first client does: its token and its id with every request, and nothing before."""
    token = daemon.new_token("first", "qwen-1")
    client = OldClient(daemon, token)
    client.headers["X-Qwen-Client-Id"] = "qwen-1"
    path = client.begin("remember", {"content": "The user keeps a client of 2025"})
    assert client.poll(path)["status"] == "completed"
    client.headers["Authorization"] = "Bearer nothing"
    assert client.call("GET", path)[0] == 401


@pytest.mark.slow
def test_what_waits_for_a_review_is_a_failure_that_names_it(strict_daemon, held):
    held.mind = writes("user/tea.md", "The user drinks tea")
    client = OldClient(strict_daemon)
    task = client.poll(client.begin("remember", {"content": "The user drinks tea", "scope": "user"}))
    assert task["status"] == "failed"
    assert task["error"]["code"] == "pending_review"
    assert task["result"] is None
    _, shown = client.call("GET", f"{BASE}/review")
    waiting = {review["reviewId"] for review in shown["reviews"]}
    assert task["reviewId"] == task["error"]["reviewId"]
    assert task["reviewId"] in waiting


@pytest.mark.sweep(1)
@pytest.mark.parametrize("when", ["queued", "running"])
def test_what_somebody_else_cancels_is_a_failure(strict_daemon, held, when):
    held.mind = writes(f"project/{when}.md", "This project is never finished")
    client = OldClient(strict_daemon, strict_daemon.new_token(f"old-{when}"))
    held.hold()
    try:
        if when == "queued":
            ahead = strict_daemon.remember("This project uses make", scope="project")
        path = client.begin("remember", {"content": "This project is never finished", "scope": "project"})
        task_id = path.rpartition("/")[2]
        if when == "running":
            strict_daemon.wait_until_running(task_id)
        assert strict_daemon.cancel(task_id).json()["status"] == "cancelled"
        task = client.poll(path)
    finally:
        held.release()
    assert task["status"] == "failed"
    assert task["error"]["code"] == "cancelled"
    assert task["result"] is None
    if when == "queued":
        strict_daemon.wait(ahead)
    else:
        assert f"{when}.md" not in strict_daemon.files("project")


def test_who_cancels_its_own_task_is_told_so(strict_daemon, held):
    held.hold()
    try:
        client = OldClient(strict_daemon)
        path = client.begin("remember", {"content": "This project is written in Ada", "scope": "project"})
        assert client.call("DELETE", path)[1]["status"] == "cancelled"
        assert client.call("GET", path)[1]["status"] == "cancelled"
    finally:
        held.release()


def test_a_conflict_is_a_failure(strict_daemon, held):
    mine = strict_daemon.root("project") / "build.md"
    mine.write_text("---\nname: B\ntype: user\n---\nThis project builds with make\n", encoding="utf-8")
    look = ("read_file", {"path": "project/build.md"})
    held.mind = meddling(
        writes("project/build.md", "This project builds with ninja", [look]),
        lambda: mine.write_text("---\nname: B\ntype: user\n---\nedited by hand\n", encoding="utf-8"),
    )
    client = OldClient(strict_daemon)
    task = client.poll(client.begin("remember", {"content": "This project builds with ninja"}))
    assert task["status"] == "failed"
    assert task["error"]["code"] == "store_conflict"
    assert task["error"]["paths"] == ["project/build.md"]
    assert "by hand" in mine.read_text(encoding="utf-8")
