"""Text input and one-time notices of the page: requests without a browser."""

from __future__ import annotations

import html
import re
import socket
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from kit.server.page_clients import SignedInClient
from kit.server.process import BASE, PausableModel, write_policy
from kit.server.raw import start_local_daemon
from muniment.server import stream
from muniment.server.core import MAX_LONG_OPERATIONS


@pytest.fixture(scope="module")
def visitor(tmp_path_factory):
    base = tmp_path_factory.mktemp("forms")
    with start_local_daemon(base, policy=write_policy(base, require='"none"')) as daemon:
        yield SignedInClient(daemon)


def read(visitor, path):
    return (visitor.daemon.get_root() / path.removeprefix("user/")).read_bytes()


def read_digest(visitor, path):
    page = visitor.get("edit", path=path).body.decode()
    return page.partition('name="digest" value="')[2].partition('"')[0]


def test_fact_from_form_has_unix_line_endings(visitor):
    visitor.post("remember", content="The user likes:\r\n\r\n- tea\r\n- milk", scope="user")
    task = visitor.daemon.get(f"{BASE}/tasks").json()["tasks"][0]["taskId"]
    (path,) = visitor.daemon.wait_for_task(task)["result"]["filesTouched"]
    assert read(visitor, path).endswith(b"---\nThe user likes:\n\n- tea\n- milk\n")


def test_form_fact_that_ends_today_has_end_date(visitor):
    day = str(datetime.now(UTC).astimezone().date())
    visitor.post("remember", content=f"The sauna is closed until {day}", scope="user")
    task = visitor.daemon.get(f"{BASE}/tasks").json()["tasks"][0]["taskId"]
    result = visitor.daemon.wait_for_task(task)["result"]
    assert (result["ends"], "expires" in result) == (day, False)
    page = visitor.get("entry", path=result["filesTouched"][0]).body.decode()
    assert f"valid until {day}" in page
    past = "---\nends: 2020-02-29\n---\nThe sauna is new\n"
    (visitor.daemon.get_root() / "sauna.md").write_text(past)
    assert "ended on 2020-02-29" in visitor.get("entry", path="user/sauna.md").body.decode()
    assert "ended on 2020-02-29" in visitor.get("search", q="is the sauna new").body.decode()


def test_task_without_lane_shows_its_changes(visitor):
    (visitor.daemon.get_root() / "moved.md").write_text("moved\n")
    visitor.post("pin", path="user/moved.md")
    (task,) = set(re.findall(rb"task\?id=(edit-\w+)", visitor.get("entry", path="user/pinned/moved.md").body))
    answer = visitor.get("task", id=task.decode())
    found = [
        each in answer.body for each in (b"user/moved.md", b"user/pinned/moved.md", b">Undo<", b">Cancel<")
    ]
    assert (answer.status, found) == (200, [True, True, True, False])
    assert visitor.get("task", id="edit-none").status == 404


def test_a_similar_entry_is_shown_by_task_and_trial(visitor):
    older, newer = (
        visitor.daemon.run_task("remember", {"content": f"The replica is on port {number}"})
        for number in (5433, 5434)
    )
    (path,) = older["result"]["filesTouched"]
    assert [each["path"] for each in newer["result"]["similar"]] == [path]
    label = b'<span class="kind">similar</span> <a href="'
    page = visitor.get("task", id=newer["taskId"]).body
    assert label in page
    assert f">{path}</a>".encode() in page.split(label)[1]
    trial = visitor.post("remember", **{"content": "The replica is on port 5435", "try": "1"})
    assert f'<span class="kind">similar</span> {path}</li>'.encode() in trial.body


def test_history_of_long_entry_is_shortened(visitor):
    (visitor.daemon.get_root() / "long.md").write_text("start\n")
    for digit in "1234":
        fields = {"path": "user/long.md", "digest": read_digest(visitor, "user/long.md")}
        assert visitor.post("edit", **fields, body=f"{digit}\r\n" * 20_000).status == 303
    page = visitor.get("entry", path="user/long.md").body
    assert (len(page) < 1_500_000, page.count(b"more lines. The full text")) == (True, 4)


def test_previews_with_slow_model_are_limited_and_cancelled(tmp_path):
    fact = "The user keeps the spare keys of the allotment shed in the blue tin"
    with PausableModel() as model, start_local_daemon(tmp_path, model) as daemon, ExitStack() as stack:
        visitor = SignedInClient(daemon)
        model.pause()
        lines = [
            stack.enter_context(visitor.send("remember", **{"content": fact, "try": "1"})) for _ in range(8)
        ]
        rejected = sorted(
            answer.status for line in lines[MAX_LONG_OPERATIONS:] if (answer := line.read_answer())
        )
        assert rejected == [503] * (8 - MAX_LONG_OPERATIONS)
        assert visitor.get("memory").status == 200
        for line in lines:
            line.socket.shutdown(socket.SHUT_RDWR)
        daemon.wait_until(lambda: not daemon.core._operations)


def test_notice_is_shown_once_and_only_to_navigation(visitor):
    (visitor.daemon.get_root() / "said.md").write_text("said\n")
    visitor.post("pin", path="user/said.md")
    notice = b"The entry is now user/pinned/said.md."
    seen = [notice in visitor.get("tasks", mode=mode).body for mode in ("cors", "navigate", "navigate")]
    assert seen == [False, True, False]


def test_forget_form_accepts_only_path_of_entry(visitor):
    (visitor.daemon.get_root() / "kept.md").write_text("The user keeps everything in kept.txt\n")
    (visitor.daemon.get_root() / "kept.txt").write_text("no entry\n")
    tasks = len(visitor.daemon.get(f"{BASE}/tasks").json()["tasks"])
    for path, status in (
        ("user keeps everything", 409),
        ("user/kept.txt", 404),
        ("user/gone.md", 404),
        ("", 400),
    ):
        assert visitor.post("forget", path=path).status == status, path
    assert len(visitor.daemon.get(f"{BASE}/tasks").json()["tasks"]) == tasks
    assert (visitor.daemon.get_root() / "kept.md").exists()


def test_sign_out_ends_event_stream_without_new_event(visitor, monkeypatch):
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 3_600.0)
    following = visitor.daemon.guard.following
    leaving, other = SignedInClient(visitor.daemon), SignedInClient(visitor.daemon)
    with leaving.follow(), other.follow():
        visitor.daemon.wait_until(lambda: len(following) == 2)
        assert leaving.post("/sign-out").status == 200
        visitor.daemon.wait_until(lambda: len(following) == 1)
        assert [each.get("memory").status for each in (leaving, other)] == [200, 200]
        assert [b"sign-in" in each.get("memory").body for each in (leaving, other)] == [True, False]


def test_event_during_page_load_reaches_its_stream(visitor):
    page = visitor.get("memory").body.decode()
    events = html.unescape(re.search(r'data-events="([^"]+)"', page)[1])
    task = visitor.daemon.run_task("remember", {"content": "The user was away for a moment"})["taskId"]
    with visitor.follow(events) as line:
        assert b"200" in line.read_line()
        while not (data := line.read_line()).startswith(b"data:"):
            assert data
        assert task.encode() in data  # Immediately, and without older events.
