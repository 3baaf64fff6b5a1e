"""Daemons, workers and zygotes that are killed: what was accepted is done once, and told once."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from collections import Counter

import httpx2
import pytest

from kit.daemon.process import BASE, ENDED, HeldModel, serving

FACTS = 11


class Listener(threading.Thread):
    """Follows the events over kills and restarts, each time from the last id that it has seen.

    Attributes:
        events: all that came, in order.
    """

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self._daemon, self.events, self._last = daemon, [], daemon.cursor(0)
        self._done = threading.Event()

    def run(self):
        while not self._done.is_set():
            try:
                with self._daemon.follow(cursor=self._last) as follower:
                    for event in follower:
                        self.events.append(event)
                        self._last = event.id
                        if self._done.is_set():
                            return
            except (httpx2.TransportError, OSError):
                self._done.wait(0.02)  # Nobody listens there at the moment.

    def wait_for(self, condition):
        """Wait until it has seen what makes `condition` of the events true."""
        deadline = time.monotonic() + 20
        while not condition(self.events):
            assert time.monotonic() < deadline, self.events[-3:]
            self._done.wait(0.02)

    def pause(self, seconds):
        """Let some time pass: any moment is as good as any other."""
        self._done.wait(seconds)

    def end(self):
        """Listen no more."""
        self._done.set()


def commits(daemon):
    """How often each task has committed, by the ledger as another process reads it."""
    return Counter(step["task"] for step in daemon.muniment("history")["steps"])


def one_round(base, seed):
    """Kill a daemon with ten tasks accepted and one running, once or twice; its exit code in the end."""
    rng = random.Random(seed)
    with HeldModel() as model, serving(base, *model.flags) as daemon:
        listener = Listener(daemon)
        listener.start()
        model.hold()
        accepted = [daemon.remember(f"The user owns {number} hats, no more") for number in range(FACTS)]
        model.wait_until_asked()
        model.release()
        for _ in range(rng.choice((1, 1, 2))):
            seen = FACTS + len(over(listener.events)) * 6 + rng.randrange(30)
            listener.wait_for(lambda events, seen=seen: len(events) >= seen or len(over(events)) >= FACTS)
            listener.pause(rng.uniform(0, 0.03))
            daemon.kill()
            daemon.start()
        ends = {task_id: daemon.wait(task_id) for task_id in accepted}
        listener.wait_for(lambda events: len(over(events)) >= FACTS)
        listener.end()
        check(daemon, ends, listener.events)
        return daemon.stop()


def over(events):
    return [each for each in events if each.type == "task" and each.data["status"] in ENDED]


def check(daemon, ends, events):
    assert {task["status"] for task in ends.values()} == {"completed"}
    files = {path: text.rpartition("---")[2] for path, text in daemon.files().items()}
    for number, task in enumerate(ends.values()):
        (path,) = [path for path, text in files.items() if f"owns {number} hats" in text]
        assert task["result"]["filesTouched"] == [f"user/{path}"]
        assert task["result"]["touchedScopes"] == ["user"]
    assert commits(daemon) == dict.fromkeys(ends, 1)
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    assert len({event.id.partition("-")[0] for event in events}) == 1
    changed = Counter(event.data["taskId"] for event in events if event.type == "memory_changed")
    assert changed == dict.fromkeys(ends, 1)
    assert Counter(event.data["taskId"] for event in over(events)) == dict.fromkeys(ends, 1)
    with daemon.follow(cursor=daemon.cursor(0)) as follower:
        kept = follower.until(lambda event: event.id == events[-1].id)
    assert [event.id for event in kept] == [event.id for event in events]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_daemon_that_is_killed_loses_nothing_and_does_nothing_twice(tmp_path, seed):
    assert one_round(tmp_path, seed) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_a_daemon_that_is_killed_often_loses_nothing_and_does_nothing_twice(tmp_path, seed):
    assert one_round(tmp_path, seed) == 0


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_its_task_and_not_the_next(start_daemon, model):
    daemon = start_daemon(*model.flags)
    daemon.wait(daemon.remember("The user warms up"))
    zygote, asked = set(daemon.children()), len(model.server.requests)
    model.hold()
    hit, spared = daemon.remember("The user is hit"), daemon.remember("The user is spared")
    model.wait_until_asked(asked + 1)
    for pid in set(daemon.children()) - zygote:
        os.kill(pid, signal.SIGKILL)
    model.release()
    task = daemon.wait(hit)
    assert (task["status"], task["error"]["code"]) == ("failed", "remember_failed")
    assert daemon.wait(spared)["status"] == "completed"
    assert "is hit" not in str(daemon.files())
    assert set(daemon.children()) == zygote


@pytest.mark.slow
def test_a_zygote_that_is_killed_is_replaced_by_the_next_task(start_daemon, model):
    daemon = start_daemon(*model.flags)
    daemon.wait(daemon.remember("The user warms up"))
    zygote, asked = set(daemon.children()), len(model.server.requests)
    model.hold()
    running, after = daemon.remember("The user goes on"), daemon.remember("The user comes after")
    model.wait_until_asked(asked + 1)
    for pid in zygote:
        os.kill(pid, signal.SIGKILL)
    model.release()
    task = daemon.wait(running)
    assert task["status"] == "completed" or task["error"]["code"] == "remember_failed"
    assert ("goes on" in str(daemon.files())) == (task["status"] == "completed")
    assert daemon.wait(after)["status"] == "completed"
    assert not zygote & set(daemon.children())


@pytest.mark.slow
def test_the_workers_of_a_daemon_that_is_killed_end_with_it(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.hold()
    daemon.remember("The user is orphaned")
    model.wait_until_asked()
    left = {pid: os.pidfd_open(pid) for pid in daemon.children()}
    assert left
    daemon.kill()
    for fd in left.values():
        assert select.select([fd], [], [], 10)[0]
        os.close(fd)
    model.release()


@pytest.mark.slow
def test_what_was_cancelled_before_a_kill_stays_so(start_daemon, model):
    daemon = start_daemon(*model.flags)
    model.hold()
    running, waiting = daemon.remember("The user runs"), daemon.remember("The user waits")
    model.wait_until_asked()
    assert daemon.cancel(waiting).json()["status"] == "cancelled"
    daemon.kill()
    daemon.start()
    model.release()
    assert daemon.wait(running)["status"] == "completed"
    assert daemon.look(waiting)["status"] == "cancelled"


def test_a_key_is_known_after_a_kill(start_daemon):
    daemon = start_daemon()
    body = {"content": "The user tries again"}
    first = daemon.post(f"{BASE}/remember", body, idempotency_key="k").json()["taskId"]
    daemon.kill()
    daemon.start()
    again = daemon.post(f"{BASE}/remember", body, idempotency_key="k")
    assert (again.json()["taskId"], again.headers["idempotency-replayed"]) == (first, "true")
    daemon.wait(first)
    assert commits(daemon) == {first: 1}
