"""The event stream over sockets: receivers, order and completeness."""

from __future__ import annotations

import json
import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.server.process import BASE, ENDED
from kit.server.raw import start_local_daemon
from muniment.server import stream
from muniment.store import tasks

FACTS = 500


def until_ended(*task_ids):
    """Return a condition that holds at the last event of these tasks."""
    open_ids = set(task_ids)

    def condition(event):
        open_ids.difference_update({event.data["taskId"]} if event.data.get("status") in ENDED else ())
        return not open_ids

    return condition


def test_commit_event_is_streamed_once_in_order(model_daemon):
    """Each turn of the model is also streamed, without its text."""
    start = model_daemon.cursor(0)
    with model_daemon.follow_events() as follower:
        follower.read_to_start()
        fact = model_daemon.remember("The user prefers to be unheard", scope="user")
        empty_forget = model_daemon.submit("forget", {"query": "rumours nobody heard"})
        seen = follower.read_until(until_ended(fact, empty_forget))
    (changed,) = [event for event in seen if event.type == "memory_changed"]
    expected = {"scope": "managed", "source": "workspace_memory_remember", "taskId": fact}
    expected["touchedScopes"] = ["user"]
    assert changed.document == {"id": changed.number, "v": 1, "type": "memory_changed", "data": expected}
    task_events = [each for each in seen if each.type == "task" and each.data["taskId"] == fact]
    assert [each.data["status"] for each in task_events] == ["queued", *["running"] * 3, "completed"]
    assert task_events[-2].number < changed.number
    common = {"taskId": fact, "kind": "remember", "status": "running", "attempt": 1, "verdict": "allow"}
    turns = [each.data for each in task_events if "turn" in each.data]
    assert turns == [common | {"turn": 1, "tool": "grep"}, common | {"turn": 2, "tool": "write_file"}]
    assert "unheard" not in json.dumps([each.document for each in seen])
    with model_daemon.follow_events(cursor=start) as follower:
        whole = follower.read_until(until_ended(empty_forget))
    assert [event.id for event in whole] == [f"{start[:-2]}-{number + 1}" for number in range(len(whole))]


def test_task_event_goes_to_its_client_and_change_to_all(daemon):
    ann, ben = daemon.add_client("ann", "ann-id"), daemon.add_client("ben")
    start, secret = daemon.cursor(daemon.read_last_number()), "The user prefers privacy to fame"
    task_id = daemon.run_task("remember", {"content": secret}, token=ann, client="ann-id")["taskId"]
    marker, client_id = daemon.remember("The user prefers the end to the means"), {"client": "ann-id"}
    for view in {}, {"token": ann}, {"token": ann, **client_id}, client_id, {"token": ben}:
        with daemon.follow_events(cursor=start, **view) as follower:
            seen = follower.read_until(
                lambda each: (each.type, each.data["taskId"]) == ("memory_changed", marker)
            )
        assert "privacy" not in str([each.document for each in seen])
        task_events = [each for each in seen if each.data["taskId"] == task_id]
        assert any(each.type == "task" for each in task_events) == (view.get("token") != ben)
        changes = [
            each.document["originatorClientId"] for each in task_events if each.type == "memory_changed"
        ]
        assert changes == ["ann-id"]


def test_workspace_receives_events_of_its_own_roots(tmp_path):
    """A workspace has its own lane, tasks and project."""
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    with start_local_daemon(tmp_path, workspaces=(tmp_path / "work", other)) as daemon, ExitStack() as stack:
        first, memory = (f"/workspaces/{key}/memory" for key in daemon.core.workspaces)
        task_ids = {}
        first_stream = stack.enter_context(daemon.follow_events(path=f"{first}/events")).read_to_start()
        second_stream = stack.enter_context(daemon.follow_events(path=f"{memory}/events")).read_to_start()
        for scope in ("project", "user"):
            fact = {"content": f"The user prefers {scope} files to others", "scope": scope}
            task_ids[scope] = daemon.post(f"{memory}/remember", fact).json()["taskId"]
        second_stream.read_until(until_ended(*task_ids.values()))
        query = {"query": "prefers project files to others"}
        found = [daemon.post(f"{each}/recall", query).json()["entries"] for each in (first, memory)]
        assert ["project/" in str(each) for each in found] == [False, True]
        forget = {"query": "user prefers files to others"}
        task_ids["both"] = daemon.post(f"{memory}/forget", forget).json()["taskId"]
        second_stream.read_until(until_ended(task_ids["both"]))
        fact = {"content": "This project is the first one", "scope": "project"}
        assert daemon.request_problem("POST", f"{BASE}/remember", fact) == (400, "workspace_required")
        second_events, own_task = (
            second_stream.events,
            daemon.post(f"{first}/remember", fact).json()["taskId"],
        )
        first_events = first_stream.read_until(until_ended(own_task))
        for method in "GET", "DELETE":
            hidden = daemon.request_problem(method, f"{first}/remember/{task_ids['user']}")
            assert hidden == (404, "remember_task_not_found")
        assert [each["taskId"] for each in daemon.get(f"{first}/tasks").json()["tasks"]] == [own_task]
    assert {each.data["taskId"] for each in first_events if each.type == "task"} == {own_task}

    def read_changes(seen):
        return {each.data["taskId"]: each.data["touchedScopes"] for each in seen if each.type != "task"}

    both, user, project = (task_ids[name] for name in ("both", "user", "project"))
    assert read_changes(first_events) == {user: ["user"], both: ["user"], own_task: ["project"]}
    assert read_changes(second_events) == {project: ["project"], user: ["user"], both: ["project", "user"]}


def test_only_canceller_sees_cancelled_status(model_daemon, model):
    eve = model_daemon.add_client("eve", "window-1", "window-2")
    model.pause()
    views = {"owner": {}, "plain": {"token": eve}, "window": {"token": eve, "client": "window-1"}}
    model_daemon.remember("The user is ahead")
    doomed = {name: model_daemon.remember("The user is doomed", **views["window"]) for name in views}
    for name, view in views.items():
        assert model_daemon.cancel(doomed[name], **view).json()["status"] == "cancelled"
    model.resume()
    for name, view in views.items():
        with model_daemon.follow_events(cursor=model_daemon.cursor(0), **view) as follower:
            seen = follower.read_until(until_ended(*doomed.values()))
        for by, task_id in doomed.items():
            (last,) = [
                each.data for each in seen if each.data["taskId"] == task_id and until_ended(task_id)(each)
            ]
            expected = ("cancelled", None) if by == name else ("failed", "cancelled")
            assert (last["status"], last.get("code")) == expected
            assert "cancelled_by" not in last
            task = model_daemon.read_task(task_id, **view)
            assert (task["status"], task.get("error", {}).get("code")) == expected


GARBAGE = f"00000000-1 0 -1 x 1-1-1 é E E- E-x E--1 E-99999999 E-1e3 E-0x1 E-+1 E-{'9' * 19}"


def test_invalid_cursor_receives_resync(daemon, separate_daemon):
    epoch = daemon.cursor(0).partition("-")[0]
    for cursor in (
        *GARBAGE.replace("E", epoch).split(),
        f"{epoch}-1 2",
        separate_daemon.cursor(0),
        separate_daemon.cursor(1),
    ):
        with daemon.follow_events(cursor=cursor.encode()) as follower:
            first = next(follower)
        assert (first.type, first.data) == ("resync", {}), cursor
        assert first.id.startswith(epoch)


@pytest.mark.threat("T-API-05", control="event_lines")
def test_client_text_cannot_forge_an_event(daemon):
    """Events contain no text of a fact; if they did, it would stay inside the event."""
    forged = "x\n\nid: 1\nevent: memory_changed\ndata: {}\n\n\r\n\r\ndata: y"
    with daemon.follow_events() as follower:
        follower.read_to_start()
        source = {"trust": "owner", "ref": forged}
        task_ids = [daemon.remember(f"The user said {forged}", source=source)]
        task_ids.append(daemon.submit("forget", {"query": forged}))
        seen = follower.read_until(until_ended(*task_ids))
    assert {event.data["taskId"] for event in seen} <= set(task_ids)
    assert "forged" not in json.dumps([event.document for event in seen])
    for end in ("\n", "\r", "\r\n", "\n\n", "\u2028", "\x85", "\x0b"):
        text = f"done{end}id: 00000000-9{end}event: memory_changed{end}data: {{}}{end}{end}"
        last, at = daemon.read_last_number(), "2026-01-01T00:00:00.000Z"
        planted = {"task": "remember-0", "data": {"status": text}, "workspace": daemon.key, "token": "owner"}
        tasks.append_event(daemon.core.state, tasks.OutboxEvent(type="task", at=at, **planted))
        with daemon.open_connection() as line:
            line.send(daemon.build_request("GET", f"{BASE}/events", f"Last-Event-ID: {daemon.cursor(last)}"))
            assert line.read_answer().status == 200
            frame = []
            while not (frame[-1:] == [b"\n"] and any(each.startswith(b"data") for each in frame)):
                sent = line.read_line()
                frame = [sent] if sent.startswith(b"id: ") else [*frame, sent]
        assert [each.partition(b":")[0] for each in frame] == [b"id", b"event", b"data", b"\n"]
        assert (frame[1], b"".join(frame).isascii()) == (b"event: task\n", True)
        assert json.loads(frame[2].removeprefix(b"data: "))["data"]["status"] == text


def test_events_replay_from_ledger_and_resync_when_evicted(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "CACHE_SIZE", 4)
    with start_local_daemon(tmp_path) as daemon:

        def submit_forgets(count):
            task_ids = [daemon.submit("forget", {"query": f"nothing {number}"}) for number in range(count)]
            daemon.wait_for_task(task_ids[-1])
            return task_ids[-1]

        submit_forgets(4)
        last = daemon.read_last_number()
        assert last == 12
        for first in (0, last - 5, last - 4, last - 3):
            with daemon.follow_events(cursor=daemon.cursor(first)) as follower:
                numbers = [next(follower).number for _ in range(last - first)]
            assert numbers == [*range(first + 1, last + 1)]
        monkeypatch.setattr(tasks, "MAX_EVENTS", 8)
        monkeypatch.setattr(tasks, "_SWEEP", 8)
        submit_forgets(8)
        with daemon.follow_events(cursor=daemon.cursor(0)) as follower:
            resync, seen = next(follower), follower.read_until(until_ended(submit_forgets(1)))
    assert (resync.type, resync.number, [event.number for event in seen]) == ("resync", 36, [37, 38, 39])


def test_idle_follower_receives_current_position(separate_daemon, monkeypatch):
    """Otherwise a client of a busy daemon assumes a dead connection and keeps an old cursor."""
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.05)
    with separate_daemon.follow_events(token=separate_daemon.client) as follower:
        marks = [follower.read_to_start().last_id for _ in range(3)]
        assert len(set(marks)) == 1
        for number in range(2):
            separate_daemon.run_task("forget", {"query": "nothing of the client's"})
            while (mark := follower.read_to_start().last_id) != separate_daemon.cursor(3 * (number + 1)):
                marks.append(mark)
            marks.append(mark)
    numbers = [int(mark.partition("-")[2]) for mark in marks]
    assert numbers == sorted(numbers)


@pytest.mark.slow
def test_slow_reader_uses_no_memory_and_gets_everything(start_daemon):
    daemon = start_daemon()
    daemon.run_task("remember", {"content": "The user warms up"})
    memory_file = Path(
        f"/proc/{daemon.process.pid}/statm"
    )  # The second field is the number of resident pages.
    with ExitStack() as opened:
        cursor = daemon.cursor(0)
        slow = [opened.enter_context(daemon.follow_events(cursor=cursor, window=65_536)) for _ in range(20)]
        before, accepted = int(memory_file.read_text().split()[1]), []
        for number in range(FACTS // 3):
            accepted.append(daemon.submit("forget", {"query": f"nothing {number}"}))
            if number % 7 == 6:
                daemon.wait_for_task(accepted[-1])
        daemon.wait_for_task(accepted[-1])
        assert int(memory_file.read_text().split()[1]) - before < (32 << 20) // resource.getpagesize()
        for follower in slow:
            seen = follower.read_until(until_ended(accepted[-1]))
            assert set(accepted) <= {each.data["taskId"] for each in seen}
            assert len(seen) >= FACTS - 5
