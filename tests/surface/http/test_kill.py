"""Daemons as programs: killed, with their workers, stopped by signals, and short of descriptors."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import socket
from collections import Counter
from contextlib import ExitStack

import httpx2
import pytest

from kit.daemon.process import BASE, ENDED, STOP_SECONDS, HeldModel, serving
from muniment.client import Client

FACTS = 11


def over(events):
    return [each for each in events if each.type == "task" and each.data["status"] in ENDED]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(7))
def test_a_daemon_that_is_killed_loses_nothing_does_nothing_twice_and_leaves_its_place(tmp_path, seed):
    rng, events = random.Random(seed), []
    with HeldModel() as model, serving(tmp_path, *model.flags) as daemon:
        document = daemon.home / "state" / "daemon.json"

        def follow(condition):
            """Read events from the last one that was seen, up to where a condition holds."""
            with daemon.follow(cursor=events[-1].id if events else daemon.cursor(0)) as follower:
                while not condition():
                    events.append(next(follower))

        model.hold()
        facts = [{"content": f"The user owns {number} hats, no more"} for number in range(FACTS)]
        accepted = [
            daemon.submit("remember", fact, idempotency_key=f"hats-{number}")
            for number, fact in enumerate(facts)
        ]
        doomed = daemon.remember("The user waits in vain")
        assert daemon.cancel(doomed).json()["status"] == "cancelled"
        model.wait_until_asked()
        model.release()
        for _ in range(rng.choice((1, 1, 2)) if seed else 1):
            seen, before = FACTS + len(over(events)) * 6 + rng.randrange(30), daemon.process.pid
            follow(lambda seen=seen: len(events) >= seen or len(over(events)) > FACTS)
            daemon.kill()
            daemon.start()
            told = json.loads(document.read_text())
            assert (told["pid"], told["url"]) == (daemon.process.pid, daemon.url)
            assert told["pid"] != before
            assert document.stat().st_mode & 0o777 == 0o600
            assert daemon.local.get("/healthz").status_code == 200
        again = daemon.post(f"{BASE}/remember", facts[0], idempotency_key="hats-0")
        assert (again.json()["taskId"], again.headers["idempotency-replayed"]) == (accepted[0], "true")
        ends = {task_id: daemon.wait(task_id) for task_id in accepted}
        assert daemon.look(doomed)["status"] == "cancelled"
        follow(lambda: len(over(events)) > FACTS)
        check(daemon, ends, events)
        assert daemon.stop() == 0
        assert not document.exists()
        assert not daemon.socket.exists()


def check(daemon, ends, events):
    assert {task["status"] for task in ends.values()} == {"completed"}
    files = {path: text.rpartition("---")[2] for path, text in daemon.files().items()}
    for number, task in enumerate(ends.values()):
        (path,) = [path for path, text in files.items() if f"owns {number} hats" in text]
        assert task["result"]["filesTouched"] == [f"user/{path}"]
        assert task["result"]["touchedScopes"] == ["user"]
    commits = Counter(step["task"] for step in daemon.muniment("history")["steps"])
    assert commits == dict.fromkeys(ends, 1)
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    assert len({event.id.partition("-")[0] for event in events}) == 1
    changed = Counter(event.data["taskId"] for event in events if event.type == "memory_changed")
    assert changed == dict.fromkeys(ends, 1)
    told = Counter(event.data["taskId"] for event in over(events) if event.data["status"] == "completed")
    assert told == dict.fromkeys(ends, 1)
    with daemon.follow(cursor=daemon.cursor(0)) as follower:
        kept = follower.until(lambda event: event.id == events[-1].id)
    assert [event.id for event in kept] == [event.id for event in events]


# -- workers ---------------------------------------------------------------------------------------------


@pytest.fixture
def warm(start_daemon, model):
    """A daemon whose zygote has come; it is asked for the next task and answers nothing yet."""
    daemon = start_daemon(*model.flags)
    daemon.wait(daemon.remember("The user warms up"))
    daemon.zygote, asked = set(daemon.children()), len(model.server.requests)
    model.hold()
    daemon.tasks = [daemon.remember("The user is hit"), daemon.remember("The user is spared")]
    model.wait_until_asked(asked + 1)
    return daemon


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_its_task_and_not_the_next(warm, model):
    for pid in set(warm.children()) - warm.zygote:
        os.kill(pid, signal.SIGKILL)
    model.release()
    hit, spared = map(warm.wait, warm.tasks)
    assert (hit["status"], hit["error"]["code"]) == ("failed", "remember_failed")
    assert spared["status"] == "completed"
    assert "is hit" not in str(warm.files())
    assert set(warm.children()) == warm.zygote


@pytest.mark.slow
def test_a_zygote_that_is_killed_is_replaced_by_the_next_task(warm, model):
    for pid in warm.zygote:
        os.kill(pid, signal.SIGKILL)
    model.release()
    hit, spared = map(warm.wait, warm.tasks)
    assert hit["status"] == "completed" or hit["error"]["code"] == "remember_failed"
    assert ("is hit" in str(warm.files())) == (hit["status"] == "completed")
    assert spared["status"] == "completed"
    assert not warm.zygote & set(warm.children())


@pytest.mark.slow
def test_the_workers_of_a_daemon_that_is_killed_end_with_it(warm, model):
    left = {pid: os.pidfd_open(pid) for pid in warm.children()}
    assert left
    warm.kill()
    for fd in left.values():
        assert select.select([fd], [], [], STOP_SECONDS)[0]
        os.close(fd)
    model.release()


# -- signals ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_signal_leaves_no_grace_and_followers_are_let_go(start_daemon, model):
    daemon = start_daemon("--grace", "600", *model.flags)
    model.hold()
    running = daemon.remember("The user is in a hurry")
    model.wait_until_asked()
    with ExitStack() as opened:
        followers = [opened.enter_context(daemon.follow()).start() for _ in range(20)]
        daemon.terminate()
        while daemon.get("/readyz").status_code == 200:
            pass
        assert daemon.stop() == 0
        assert {event.type for follower in followers for event in follower} <= {"task"}
    model.release()
    daemon.start()
    assert daemon.wait(running)["status"] == "completed"


# -- descriptors -----------------------------------------------------------------------------------------

DESCRIPTORS, BURST = 160, 400


@pytest.mark.threat("T-API-09", control="descriptors_left")
def test_a_fact_is_remembered_while_others_hold_all_connections(start_daemon):
    daemon = start_daemon()
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    address = ("127.0.0.1", int(daemon.url.rpartition(":")[2]))
    with ExitStack() as held:
        for number in range(BURST):
            for family, where in ((socket.AF_INET, address), (socket.AF_UNIX, str(daemon.socket)))[
                : 1 + number % 2
            ]:
                line = held.enter_context(socket.socket(family))
                line.setblocking(False)
                line.connect_ex(where)
        with Client(daemon.url, token=daemon.token, workspace=daemon.key) as client:
            assert client.remember("The burst changes nothing").wait(timeout=STOP_SECONDS).files_touched
        assert len(daemon.children()) < 10
    daemon.http.close()
    daemon.http = httpx2.Client(base_url=daemon.url, trust_env=False, timeout=60)
    assert daemon.get("/readyz").status_code == 200
    assert daemon.done("remember", {"content": "The user prefers calm"})["status"] == "completed"
    for event in "lane_broke", "task_broke", "no_descriptor":
        assert event not in daemon.log
    assert daemon.log.count("foreign_log") < 10
