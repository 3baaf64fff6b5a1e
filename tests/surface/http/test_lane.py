"""The lane as clients see it over sockets: one task at a time, in order, not too many, ended when asked."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from kit.daemon.embedded import embedded
from kit.daemon.process import BASE, descendants, policy_file
from muniment.agent.openai import OpenAIModel
from muniment.daemon import core
from muniment.lane import LaneRunner

KINDS = ("remember", "forget", "dream")
LATE = {"remember": {"content": "The user owns 2 bicycles"}, "forget": {"query": "user owns bicycle"}}


def body_of(kind, number):
    return {
        "remember": {"content": f"The user owns {number} bicycles"},
        "forget": {"query": f"nothing of {number}"},
        "dream": {},
    }[kind]


def story(daemon, task_ids):
    """What the events tell of these tasks: (task, status), up to the end of the last."""
    open_ids, told = set(task_ids), []
    with daemon.follow(cursor=daemon.cursor(0)) as follower:
        for event in follower:
            task_id, status = event.data["taskId"], event.data.get("status")
            if event.type == "task" and task_id in task_ids and "turn" not in event.data:
                told.append((task_id, status))
                open_ids -= {task_id} if status in {"completed", "failed", "cancelled"} else set()
            if not open_ids:
                return told
    raise AssertionError("the stream ended")


def test_tasks_run_one_at_a_time_in_the_order_of_their_acceptance(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.hold()
    accepted = [daemon.submit(KINDS[number % 3], body_of(KINDS[number % 3], number)) for number in range(12)]
    model.wait_until_asked()
    assert [daemon.look(task_id)["status"] for task_id in accepted] == ["running", *["queued"] * 11]
    model.release()
    told = [(task_id, status) for task_id, status in story(daemon, accepted) if status != "queued"]
    assert told == [each for task_id in accepted for each in ((task_id, "running"), (task_id, "completed"))]


@pytest.mark.slow
def test_the_seventeenth_is_refused_and_tidying_leaves_room_for_facts(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.hold()
    daemon.remember("The user is first")
    model.wait_until_asked()
    tidying = [daemon.post(f"{BASE}/{kind}", body_of(kind, 0)) for kind in ("forget", "dream") * 4]
    assert {answer.status_code for answer in tidying} == {202}
    for kind in ("forget", "dream"):
        assert refused(daemon.post(f"{BASE}/{kind}", body_of(kind, 1)))
    facts = [daemon.post(f"{BASE}/remember", body_of("remember", number)) for number in range(7)]
    assert {answer.status_code for answer in facts} == {202}
    for kind in KINDS:
        assert refused(daemon.post(f"{BASE}/{kind}", body_of(kind, 2)))
    assert daemon.cancel(facts[3].json()["taskId"]).json()["status"] == "cancelled"
    assert daemon.post(f"{BASE}/remember", body_of("remember", 9)).status_code == 202
    assert refused(daemon.post(f"{BASE}/remember", body_of("remember", 10)))
    model.release()


def refused(answer):
    assert (answer.status_code, answer.json()["code"]) == (429, "remember_queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    return True


@pytest.mark.slow
def test_a_key_that_is_sent_again_finds_its_task_although_the_queue_is_full(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.hold()
    body = {"content": "The user repeats"}
    first = daemon.post(f"{BASE}/remember", body, idempotency_key="k").json()["taskId"]
    for number in range(15):
        daemon.remember(f"The user fills {number}")
    again = daemon.post(f"{BASE}/remember", body, idempotency_key="k")
    assert (again.status_code, again.json()["taskId"]) == (202, first)
    model.release()


@pytest.mark.slow
def test_what_waits_is_cancelled_at_once_and_never_begun(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.hold()
    ahead, waiting = daemon.remember("The user is ahead"), daemon.remember("The user is behind")
    model.wait_until_asked()
    cancelled = daemon.cancel(waiting).json()
    assert cancelled["status"] == "cancelled"
    assert daemon.cancel(waiting).json() == cancelled
    model.release()
    assert daemon.wait(ahead)["status"] == "completed"
    assert [status for _, status in story(daemon, [waiting])] == ["queued", "cancelled"]


def test_what_runs_is_cancelled_with_its_worker_and_its_request(start_daemon, model):
    daemon = start_daemon(*model.flags)
    daemon.wait(daemon.remember("The user warms up"))
    zygote, asked = set(daemon.children()), len(model.server.requests)
    model.hold()
    task_id = daemon.remember("The user is half done")
    request = model.wait_until_asked(asked + 1)[-1]
    workers = set(daemon.children()) - zygote
    assert workers
    assert daemon.cancel(task_id).json()["status"] == "cancelled"
    assert request.hung_up.wait(10)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    model.release()
    assert daemon.wait(daemon.remember("The user begins anew"))["status"] == "completed"
    assert "half done" not in str(daemon.files())


@pytest.mark.slow
def test_a_model_that_never_answers_ends_its_task_and_not_the_lane(start_daemon, model, tmp_path):
    policy = policy_file(tmp_path, seconds="1")
    daemon = start_daemon("--policy", str(policy), *model.flags)
    model.hold()
    started = time.monotonic()
    late, next_one = daemon.remember("The user is late"), daemon.submit("dream", {})
    task = daemon.wait(late)
    assert (task["status"], task["error"]["code"]) == ("failed", "remember_timeout")
    assert 1 <= time.monotonic() - started < 8
    assert daemon.wait(next_one)["status"] == "completed"
    assert all("zygote" in line for line in descendants(daemon.process.pid).values())
    assert daemon.files() == {}
    model.release()


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("kind", "code"), [("remember", "remember_timeout"), ("forget", "forget_timeout")])
def test_the_backstop_ends_what_its_own_deadline_does_not(tmp_path, monkeypatch, model, kind, code):
    with closing(OpenAIModel("scripted", base_url=model.server.base_url, protocol="tools")) as scripted:
        with embedded(tmp_path, scripted) as daemon:
            daemon.wait(daemon.remember("The user owns 1 bicycle"))
        monkeypatch.setattr(core.lanes, "LaneRunner", partial(LaneRunner, backstop=0.5))
        asked = len(model.server.requests)
        with embedded(tmp_path, scripted) as daemon:
            model.hold()
            late = daemon.submit(kind, LATE[kind])
            request = model.wait_until_asked(asked + 1)[-1]
            task = daemon.wait(late)
            assert (task["status"], task["error"]["code"]) == ("failed", code)
            assert request.hung_up.wait(10)
            model.release()
            assert daemon.wait(daemon.submit("dream", {}))["status"] == "completed"


def test_a_lane_whose_thread_broke_is_told_to_whoever_asks_if_all_is_well(tmp_path, monkeypatch):
    with embedded(tmp_path) as daemon:
        assert daemon.get("/readyz").status_code == 200
        monkeypatch.setattr(daemon.core.workspaces[daemon.key].lane, "claim", lambda: 1 / 0)
        (lane,) = (each for each in threading.enumerate() if each.name == f"lane-{daemon.key}")
        waiting = daemon.submit("remember", body_of("remember", 1))
        lane.join(60)
        told = daemon.get("/readyz")
        assert (told.status_code, told.json()["code"]) == (503, "not_ready")
        assert told.json()["reason"] == "unavailable"
        assert told.json()["workspaces"] == {daemon.key: "lane_dead"}
        assert daemon.get("/healthz").status_code == 200
    with embedded(tmp_path) as daemon:
        assert daemon.wait(waiting)["status"] == "completed"
