"""The guarantees for clients of the original daemon: names, numbers, and ends of tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kit.server.process import BASE, ENDED
from kit.server.raw import start_local_daemon
from muniment.server import stream
from muniment.server.stream import Subscription
from muniment.store import tasks
from muniment.store.tasks import OWNER, Originator

SESSION = "/session/any/events"
NOBODY = (401, "token_required")


def make_end_check(task_id):
    """Return a condition that holds for the last event of a task."""
    return lambda event: event.data.get("taskId") == task_id and event.data.get("status") in ENDED


def is_replay_end(event):
    return event.type == "replay_complete"


def test_health_has_two_paths_and_requires_token(daemon):
    for path in "/health", "/healthz", "/health?deep=1":
        answer = daemon.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert daemon.send_request("GET", path, token="").code == NOBODY


def test_feature_names_scope_only_if_policy_has_it(tmp_path, user_only_policy):
    with start_local_daemon(tmp_path, policy=user_only_policy) as daemon:
        document = daemon.get("/capabilities").json()
        names = {each for each in document["features"] if each.endswith("_scope")}
        assert names == {"workspace_memory_remember_user_scope", "workspace_memory_forget_scope"}
        assert document["featureDetails"]["workspace_memory_remember"]["scopes"] == ["user"]
        assert str(tmp_path) not in str(document)


def test_events_resume_from_number_and_epoch_or_id(daemon):
    """The number is also in the JSON, where clients of the original contract read it."""
    for number in range(3):
        daemon.run_task("forget", {"query": f"nothing {number}"})
    last, (epoch, _, _) = daemon.read_last_number(), daemon.cursor(0).partition("-")
    for path in f"{BASE}/events", SESSION:
        for cursor, headers in ((f"{epoch}-{last - 4}", {}), (str(last - 4), {"x_qwen_event_epoch": epoch})):
            with daemon.follow_events(cursor, path=path, **headers) as follower:
                events = [next(follower) for _ in range(4)]
            assert [each.document["id"] for each in events] == [*range(last - 3, last + 1)]
            assert [each.id for each in events] == [f"{epoch}-{each.document['id']}" for each in events]


def test_missed_events_cause_resync_in_client_format(daemon):
    daemon.run_task("forget", {"query": "nothing at all"})
    last, (epoch, _, _) = daemon.read_last_number(), daemon.cursor(0).partition("-")
    other = {"x_qwen_event_epoch": "0badcafe"}
    same = {"x_qwen_event_epoch": epoch}
    cursors = ("1", {}, 1), ("1", other, 1), (str(last + 1), same, last + 1), ("0", {}, 0), ("x", same, 0)
    for cursor, headers, number in (*cursors, (f"0badcafe-{last}", {}, last)):
        with daemon.follow_events(cursor, **headers) as follower:
            assert next(follower).document == {"v": 1, "type": "resync", "data": {}}
        with daemon.follow_events(cursor, path=SESSION, **headers) as follower:
            resync, *replayed, replay_end = follower.read_until(is_replay_end)
        expected = {"reason": "epoch_reset", "lastDeliveredId": number, "earliestAvailableId": 1}
        assert resync.document == {"v": 1, "type": "state_resync_required", "data": expected}, cursor
        assert [each.document["id"] for each in replayed] == [*range(1, last + 1)]
        expected = {"lastReplayedEventId": last, "lastEventId": last, "replayedCount": last}
        assert replay_end.document == {"v": 1, "type": "replay_complete", "data": expected}
        assert (resync.id, replay_end.id) == (None, None)  # Neither moves a cursor.


def test_replay_ends_at_its_start_position(daemon):
    daemon.run_task("dream", {})
    last = daemon.read_last_number()
    with daemon.follow_events(daemon.cursor(last), path=SESSION) as follower:
        assert next(follower).document["data"]["replayedCount"] == 0
        task_id = daemon.submit("dream", {})
        events = follower.read_until(make_end_check(task_id))
    assert not any(map(is_replay_end, events))
    with daemon.follow_events(path=SESSION) as follower:
        follower.read_to_start()
        task_id = daemon.submit("dream", {})
        assert not any(map(is_replay_end, follower.read_until(make_end_check(task_id))))


def test_evicted_events_cause_replay_of_remaining_ones(tmp_path, monkeypatch):
    """At once, and for a follower that reads so slowly that events are evicted meanwhile."""
    for name, count in ("MAX_EVENTS", 8), ("_SWEEP", 8):
        monkeypatch.setattr(tasks, name, count)
    monkeypatch.setattr(stream, "CACHE_SIZE", 4)
    with start_local_daemon(tmp_path) as daemon:
        daemon.run_task("dream", {})
        workspace = daemon.core.workspaces[daemon.key]
        view = Subscription(workspace.key, workspace.scopes, Originator(OWNER), is_original=True)
        slow = daemon.core.stream.follow(view, daemon.cursor(0))
        assert daemon.run_coroutine(anext(slow)).startswith(b"retry: ")
        for _ in range(8):
            daemon.run_task("dream", {})
        first = tasks.read_range(daemon.core.stream._reads)[1] + 1
        expected = {"reason": "ring_evicted", "lastDeliveredId": 0, "earliestAvailableId": first}
        with daemon.follow_events(daemon.cursor(0), path=SESSION) as follower:
            resync, *replayed, replay_end = follower.read_until(is_replay_end)
        assert (resync.type, resync.data) == ("state_resync_required", expected)
        numbers = [each.document["id"] for each in replayed]
        assert numbers[0] == first > 1
        assert all(after == before + 1 for before, after in pairwise(numbers))
        assert replay_end.data["replayedCount"] == len(numbers)
        frames = daemon.run_coroutine(anext(slow)).decode()
        assert frames.startswith("event: state_resync_required\ndata: ")
        assert f'"earliestAvailableId": {first}' in frames.partition("\n\n")[0]
        assert f'data: {{"id": {first}, ' in frames
        daemon.run_coroutine(slow.aclose())


@pytest.mark.parametrize("name", ["x_qwen_client_id", "x_muniment_client_id"])
def test_original_client_never_sees_cancelled_status(blocked_daemon, name):
    """Also if another program cancels the task under the same client id."""
    who = {"token": blocked_daemon.add_client("editor", "window"), name: "window"}
    blocked_daemon.remember("The user comes first")
    task_id = blocked_daemon.post(f"{BASE}/remember", {"content": "The user is doomed"}, **who).json()[
        "taskId"
    ]
    ends = {
        blocked_daemon.cancel(task_id, **who).json()["status"],
        blocked_daemon.read_task(task_id, **who)["status"],
    }
    ends |= {each["status"] for each in blocked_daemon.get(f"{BASE}/tasks", **who).json()["tasks"]}
    headers = {"token": who["token"], name: "window"}
    with blocked_daemon.follow_events(blocked_daemon.cursor(0), **headers) as follower:
        (last,) = [
            each for each in follower.read_until(make_end_check(task_id)) if make_end_check(task_id)(each)
        ]
    with blocked_daemon.follow_events(blocked_daemon.cursor(0), path=SESSION, **headers) as follower:
        (known,) = [
            each for each in follower.read_until(make_end_check(task_id)) if make_end_check(task_id)(each)
        ]
    assert (known.data["status"], known.data["code"]) == ("failed", "cancelled")
    assert {*ends, last.data["status"]} == ({"failed"} if name == "x_qwen_client_id" else {"cancelled"})
