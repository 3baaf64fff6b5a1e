"""How a daemon stops, and that there is one of them: nothing is lost, nobody is kept waiting."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

import pytest

from kit.daemon.process import ENDED, Served, serving

GRACE = ("--grace", "1")


def ended_of(events):
    return [each.data["taskId"] for each in events if each.type == "task" and each.data["status"] in ENDED]


@pytest.mark.slow
def test_an_idle_daemon_stops_in_less_than_a_second_although_it_is_followed(start_daemon):
    daemon = start_daemon()
    daemon.wait(daemon.remember("The user is about to leave"))
    with ExitStack() as stack:
        followers = [stack.enter_context(daemon.follow()).start() for _ in range(20)]
        started = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - started < 1
        assert [list(follower) for follower in followers] == [[]] * 20
    assert not (daemon.home / "state" / "daemon.json").exists()
    assert not daemon.socket.exists()


@pytest.mark.slow
def test_a_daemon_that_stops_loses_nothing_of_what_waits(start_daemon, model):
    daemon = start_daemon(*GRACE, *model.flags)
    model.hold()
    accepted = [daemon.remember(f"The user owns {number} coats, no more") for number in range(10)]
    model.wait_until_asked()
    with daemon.follow(cursor=daemon.cursor(0)) as follower:
        daemon.terminate()
        seen = list(follower)
    started = time.monotonic()
    assert daemon.ended() == 0
    assert time.monotonic() - started < 5
    assert ended_of(seen) == []
    model.release()
    daemon.start()
    assert {daemon.wait(task_id)["status"] for task_id in accepted} == {"completed"}
    with daemon.follow(cursor=seen[-1].id) as follower:
        rest = follower.until(lambda _: len(ended_of(follower.seen)) == len(accepted))
    assert ended_of(rest) == accepted
    assert [each.data["attempt"] for each in rest if each.data.get("status") == "completed"] == [1] * 10


@pytest.mark.slow
def test_what_runs_may_end_within_the_grace(start_daemon, model):
    daemon = start_daemon("--grace", "30", *model.flags)
    model.hold()
    running, waiting = daemon.remember("The user is nearly done"), daemon.remember("The user is next")
    model.wait_until_asked()
    daemon.terminate()
    assert unready(daemon) == "draining"
    model.release()
    assert daemon.ended() == 0
    assert "nearly done" in str(daemon.files())
    assert "is next" not in str(daemon.files())
    daemon.start()
    assert daemon.look(running)["status"] == "completed"
    assert daemon.wait(waiting)["status"] == "completed"


def unready(daemon):
    """Why it accepts nothing, as soon as it does not."""
    while (answer := daemon.get("/readyz")).status_code == 200:
        pass
    assert answer.json()["code"] == "not_ready"
    return answer.json()["reason"]


@pytest.mark.slow
def test_a_second_signal_leaves_no_grace(start_daemon, model):
    daemon = start_daemon("--grace", "60", *model.flags)
    model.hold()
    running = daemon.remember("The user is in a hurry")
    model.wait_until_asked()
    daemon.terminate()
    assert unready(daemon) == "draining"
    started = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - started < 10
    model.release()
    daemon.start()
    assert daemon.wait(running)["status"] == "completed"


@pytest.mark.slow
def test_who_waits_for_a_task_is_answered_when_the_daemon_stops(start_daemon, model):
    daemon = start_daemon(*GRACE, *model.flags)
    model.hold()
    task_id = daemon.remember("The user waits in vain")
    model.wait_until_asked()
    daemon.terminate()
    assert unready(daemon) == "draining"
    answer = daemon.get(f"/workspace/memory/remember/{task_id}", prefer="wait=60")
    assert answer.json()["status"] in {"queued", "running"}
    model.release()
    assert daemon.ended() == 0


@pytest.mark.slow
def test_a_task_can_still_be_cancelled_while_the_daemon_stops(start_daemon, model):
    daemon = start_daemon("--grace", "30", *model.flags)
    model.hold()
    running, waiting = daemon.remember("The user is undecided"), daemon.remember("The user is not")
    model.wait_until_asked()
    daemon.terminate()
    assert unready(daemon) == "draining"
    assert daemon.cancel(waiting).json()["status"] == "cancelled"
    assert daemon.cancel(running).json()["status"] == "cancelled"
    assert daemon.ended() == 0
    model.release()
    daemon.start()
    assert [daemon.look(task_id)["status"] for task_id in (running, waiting)] == ["cancelled"] * 2
    assert daemon.files() == {}


@pytest.mark.slow
def test_a_second_daemon_refuses_and_harms_nothing(start_daemon, tmp_path):
    daemon = start_daemon()
    document = (daemon.home / "state" / "daemon.json").read_text()
    second = Served(daemon.base)
    second.socket = tmp_path / "second.sock"
    second.launch()
    said = json.loads(second.process.stdout.read())
    assert second.process.wait(20) != 0
    second.close()
    assert said["error"]["code"] == "managed_memory_unavailable"
    assert str(daemon.process.pid) in said["error"]["message"]
    assert (daemon.home / "state" / "daemon.json").read_text() == document
    assert daemon.wait(daemon.remember("The user stays with the first"))["status"] == "completed"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_the_next_daemon_takes_the_place_of_one_that_ended(tmp_path, way):
    with serving(tmp_path) as daemon:
        first = daemon.process.pid
        getattr(daemon, way)()
        daemon.start()
        told = json.loads((daemon.home / "state" / "daemon.json").read_text())
        assert (told["pid"], told["url"]) == (daemon.process.pid, daemon.url)
        assert told["pid"] != first
        assert (daemon.home / "state" / "daemon.json").stat().st_mode & 0o777 == 0o600
        assert daemon.local.get("/healthz").status_code == 200
