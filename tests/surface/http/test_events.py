"""The stream of events over sockets: who is told what, in which order, and that nothing is missed."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest

from kit.daemon.embedded import embedded
from kit.daemon.minds import writes
from kit.daemon.process import BASE, HeldModel, policy_file, serving
from kit.daemon.world import REVIEWED
from muniment.daemon import stream
from muniment.store import tasks

FACTS = 500
WINDOW = 65_536
"""Bytes that the kernel takes for a reader that does not read."""


def ends(*task_ids):
    """The last of the events of these tasks."""
    open_ids = set(task_ids)

    def condition(event):
        if event.type == "task" and event.data["status"] in {"completed", "failed", "cancelled"}:
            open_ids.discard(event.data["taskId"])
        return not open_ids

    return condition


def test_a_commit_is_told_once_and_only_where_there_was_one(daemon):
    with daemon.follow() as follower:
        follower.start()
        fact = daemon.remember("The user prefers news to rumours", scope="user")
        nothing = daemon.submit("forget", {"query": "rumours nobody heard"})
        seen = follower.until(ends(fact, nothing))
    changed = [event for event in seen if event.type == "memory_changed"]
    assert [event.document for event in changed] == [
        {
            "v": 1,
            "type": "memory_changed",
            "data": {
                "scope": "managed",
                "source": "workspace_memory_remember",
                "taskId": fact,
                "touchedScopes": ["user"],
            },
        }
    ]
    story = [each.data["status"] for each in seen if each.type == "task" and each.data["taskId"] == fact]
    assert (story[0], story[-1]) == ("queued", "completed")
    assert set(story[1:-1]) == {"running"}
    at = [each.data["taskId"] for each in seen if each.type == "task"].index(fact)
    assert seen.index(changed[0]) > at


@pytest.mark.slow
def test_each_turn_is_told_without_a_word_of_it(start_daemon, model):
    daemon = start_daemon(*model.flags)
    with daemon.follow() as follower:
        follower.start()
        task_id = daemon.remember("The user prefers to be unheard")
        seen = follower.until(ends(task_id))
    turns = [each.data for each in seen if "turn" in each.data]
    assert [(each["turn"], each["tool"], each["verdict"]) for each in turns] == [
        (1, "grep", "allow"),
        (2, "write_file", "allow"),
    ]
    assert set().union(*turns) == {"taskId", "kind", "status", "attempt", "turn", "tool", "verdict"}
    assert "unheard" not in json.dumps([each.document for each in seen])


def test_ids_grow_and_belong_to_one_epoch(daemon):
    with daemon.follow(cursor=daemon.cursor(0)) as follower:
        last = daemon.wait(daemon.submit("dream", {}))
        seen = follower.until(ends(last["taskId"]))
    assert all(re.fullmatch(r"[0-9a-f]{8}-[1-9]\d*", event.id) for event in seen)
    numbers = [event.number for event in seen]
    assert numbers == sorted(set(numbers))
    assert len({event.id.split("-")[0] for event in seen}) == 1


def test_a_task_is_told_to_who_asked_and_the_owner_and_a_change_to_everybody(daemon):
    ann, ben = daemon.new_token("ann", "ann-id"), daemon.new_token("ben")
    start = daemon.cursor(0)
    task_id = daemon.remember("The user prefers privacy to fame", token=ann, client="ann-id")
    end = daemon.submit("dream", {})
    daemon.wait(end)
    marker = daemon.remember("The user prefers the end to the means")
    views = {
        "owner": {},
        "ann": {"token": ann},
        "ann-id": {"token": ann, "client": "ann-id"},
        "owner as ann-id": {"client": "ann-id"},
        "ben": {"token": ben},
    }
    told = {}
    for name, view in views.items():
        with daemon.follow(cursor=start, **view) as follower:
            seen = follower.until(lambda each: (each.type, each.data["taskId"]) == ("memory_changed", marker))
            told[name] = [each for each in seen if each.data["taskId"] == task_id]
    told_of_the_task = {name for name, seen in told.items() if any(each.type == "task" for each in seen)}
    assert told_of_the_task == set(views) - {"ben"}
    changes = [each for events in told.values() for each in events if each.type == "memory_changed"]
    assert len(changes) == len(views)
    assert {each.document["originatorClientId"] for each in changes} == {"ann-id"}


@pytest.mark.slow
def test_a_workspace_is_told_of_its_own_roots_and_of_nobody_elses_tasks(start_daemon, tmp_path):
    (tmp_path / "other" / ".git").mkdir(parents=True)
    daemon = start_daemon("--workspace", str(tmp_path / "other"))
    first, second = daemon.get("/readyz").json()["workspaces"]
    memory = f"/workspaces/{second}/memory"
    with daemon.follow() as here, daemon.follow(path=f"{memory}/events") as there:
        here.start()
        there.start()
        told = {}
        for scope in ("project", "user"):
            fact = {"content": f"The user prefers {scope} files to others", "scope": scope}
            told[scope] = daemon.post(f"{memory}/remember", fact).json()["taskId"]
        seen_there = there.until(ends(*told.values()))
        mine = daemon.remember("This project is the first one", scope="project")
        seen_here = here.until(ends(mine))
    assert first == daemon.key
    changes = [each.data for each in seen_here if each.type == "memory_changed"]
    assert {each["taskId"]: each["touchedScopes"] for each in changes} == {
        told["user"]: ["user"],
        mine: ["project"],
    }
    assert {each.data["taskId"] for each in seen_here if each.type == "task"} == {mine}
    changes = [each.data for each in seen_there if each.type == "memory_changed"]
    assert {each["taskId"]: each["touchedScopes"] for each in changes} == {
        told["project"]: ["project"],
        told["user"]: ["user"],
    }


@pytest.mark.slow
def test_a_cancel_is_told_by_its_name_only_to_who_did_it(start_daemon, model):
    daemon = start_daemon(*model.flags)
    eve = daemon.new_token("eve")
    model.hold()
    task_id = daemon.remember("The user is doomed", token=eve)
    model.wait_until_asked()
    assert daemon.cancel(task_id).json()["status"] == "cancelled"
    model.release()
    for who, expected in (({}, ("cancelled", None)), ({"token": eve}, ("failed", "cancelled"))):
        with daemon.follow(cursor=daemon.cursor(0), **who) as follower:
            last = follower.until(ends(task_id))[-1]
        assert (last.data["status"], last.data.get("code")) == expected
        assert "cancelled_by" not in last.data


@pytest.mark.slow
def test_whoever_comes_again_misses_nothing_also_over_a_restart(start_daemon):
    daemon = start_daemon()
    with daemon.follow() as follower:
        begin = follower.start().last_id
        first = daemon.remember("The user prefers continuity")
        seen = follower.until(ends(first))
    meanwhile = daemon.remember("The user is away for a while")
    daemon.wait(meanwhile)
    assert daemon.stop() == 0
    daemon.start()
    after = daemon.remember("The user is back again")
    with daemon.follow(cursor=seen[-1].id) as follower:
        later = follower.until(ends(after))
    with daemon.follow(cursor=begin) as follower:
        whole = follower.until(ends(after))
    assert [each.id for each in (*seen, *later)] == [each.id for each in whole]
    assert {each.data["taskId"] for each in whole} == {first, meanwhile, after}


GARBAGE = (
    *("00000000-1", "0", "-1", "x", "1-1-1", "é", "{epoch}", "{epoch}-", "{epoch}-x", "{epoch}--1"),
    *("{epoch}-99999999", "{epoch}-1e3", "{epoch}-0x1", "{epoch}-+1", f"{{epoch}}-{'9' * 19}", "{epoch}-1 2"),
)


@pytest.mark.parametrize("cursor", GARBAGE)
def test_who_comes_with_a_cursor_that_is_none_is_told_to_look_again(daemon, cursor):
    epoch = daemon.cursor(0).partition("-")[0]
    with daemon.follow(cursor=cursor.format(epoch=epoch).encode()) as follower:
        first = next(follower)
    assert (first.type, first.data) == ("resync", {})
    assert first.id.startswith(epoch)


@pytest.mark.slow
def test_a_cursor_of_another_daemon_is_none(daemon, start_daemon):
    other = start_daemon()
    for number in (0, 1):
        with daemon.follow(cursor=other.cursor(number)) as follower:
            assert next(follower).type == "resync"


def test_no_text_of_a_client_can_make_an_event(daemon):
    forged = "x\n\nid: 1\nevent: memory_changed\ndata: {}\n\n\r\n\r\ndata: y"
    with daemon.follow() as follower:
        follower.start()
        task_ids = [
            daemon.remember(f"The user said {forged}", source={"trust": "owner", "ref": forged}),
            daemon.submit("forget", {"query": forged}),
        ]
        seen = follower.until(ends(*task_ids))
    assert {event.data["taskId"] for event in seen} <= set(task_ids)
    assert "forged" not in json.dumps([event.document for event in seen])


def test_what_another_process_commits_is_told_within_a_second(daemon):
    with daemon.follow() as follower:
        follower.start()
        done = daemon.muniment("remember", "The user prefers the command line to browsers")
        started = time.monotonic()
        seen = follower.until(lambda each: each.data["taskId"] == done["task_id"])
        seconds = time.monotonic() - started
    assert (seen[-1].type, seen[-1].data["source"]) == ("memory_changed", "workspace_memory_remember")
    assert seconds < 1


@pytest.mark.slow
def test_each_way_to_change_the_memory_has_its_source(tmp_path):
    policy = policy_file(tmp_path, user=REVIEWED)
    with (
        HeldModel() as model,
        serving(tmp_path, "--policy", str(policy), *model.flags) as daemon,
        daemon.follow() as follower,
    ):
        follower.start()
        model.mind = writes("user/a.md", "The user is reviewed")
        waiting = daemon.wait(daemon.remember("The user is reviewed"))["reviewId"]
        digest = daemon.get(f"{BASE}/review/{waiting}").json()["digest"]
        approved = daemon.post(f"{BASE}/review/{waiting}/approve", {"digest": digest}).json()
        model.mind = writes("project/b.md", "This project is sourced")
        fact = daemon.remember("This project is sourced")
        daemon.wait(fact)
        undone = daemon.post(f"{BASE}/undo", {"taskId": fact}).json()
        erased = daemon.post(f"{BASE}/erase", {"target": "user/a.md", "yes": True}).json()
        seen = follower.until(lambda each: each.data["taskId"] == erased["taskId"])
    told = {each.data["taskId"]: each.data for each in seen if each.type == "memory_changed"}
    assert {task_id: data["source"] for task_id, data in told.items()} == {
        approved["taskId"]: "workspace_memory_remember",
        fact: "workspace_memory_remember",
        undone["taskId"]: "workspace_memory_undo",
        erased["taskId"]: "workspace_memory_erase",
    }
    assert {data["scope"] for data in told.values()} == {"managed"}
    assert told[undone["taskId"]]["touchedScopes"] == ["project"]
    assert told[erased["taskId"]]["touchedScopes"] == ["user"]


def test_what_is_no_longer_in_memory_is_read_from_the_ledger(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "RING", 4)
    with embedded(tmp_path) as daemon:
        accepted = [daemon.submit("forget", {"query": f"nothing {number}"}) for number in range(8)]
        daemon.wait(accepted[-1])
        with daemon.follow(cursor=daemon.cursor(0)) as follower:
            seen = follower.until(ends(accepted[-1]))
    assert [event.number for event in seen] == list(range(1, 25))


def test_who_was_away_for_longer_than_events_are_kept_is_told_to_look_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_EVENTS", 8)
    monkeypatch.setattr(tasks, "_SWEEP", 8)
    with embedded(tmp_path) as daemon:
        begin = daemon.cursor(0)
        accepted = [daemon.submit("forget", {"query": f"nothing {number}"}) for number in range(8)]
        daemon.wait(accepted[-1])
        with daemon.follow(cursor=begin) as follower:
            told = next(follower)
            after = daemon.submit("forget", {"query": "afterwards"})
            seen = follower.until(ends(after))
    assert (told.type, told.number) == ("resync", 24)
    assert [event.number for event in seen] == [25, 26, 27]


@pytest.mark.slow
def test_who_is_told_nothing_still_hears_where_the_stream_stands(tmp_path, monkeypatch):
    """Else, while others are busy, a client takes its line for dead, and its cursor for older than it is."""
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.2)
    done = threading.Event()
    with embedded(tmp_path) as daemon:
        ben = daemon.new_token("ben")

        def be_busy():
            while not done.is_set():
                daemon.wait(daemon.submit("forget", {"query": "nothing of ben"}))

        busy = threading.Thread(target=be_busy)
        with daemon.follow(token=ben) as follower:
            marks = [follower.start().last_id]
            busy.start()
            try:
                marks += [follower.start().last_id for _ in range(3)]
            finally:
                done.set()
                busy.join()
    numbers = [int(mark.partition("-")[2]) for mark in marks]
    assert numbers == sorted(set(numbers))


def test_a_silent_line_is_told_where_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.05)
    with embedded(tmp_path) as daemon, daemon.follow() as follower:
        marks = [follower.start().last_id for _ in range(5)]
    assert len(set(marks)) == 1


def resident(pid):
    """Bytes of memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.slow
def test_a_reader_that_does_not_read_holds_nothing_and_gets_everything(start_daemon):
    daemon = start_daemon()
    daemon.wait(daemon.remember("The user warms up"))
    followers = [daemon.follow(cursor=daemon.cursor(0), window=WINDOW) for _ in range(20)]
    slow = [each.__enter__() for each in followers]
    before = resident(daemon.process.pid)
    accepted = []
    for number in range(FACTS // 3):
        accepted.append(daemon.submit("forget", {"query": f"nothing {number}"}))
        if number % 7 == 6:
            daemon.wait(accepted[-1])
    daemon.wait(accepted[-1])
    assert resident(daemon.process.pid) - before < 32 << 20
    for follower in slow:
        seen = follower.until(ends(accepted[-1]))
        told = {each.data["taskId"] for each in seen}
        assert set(accepted) <= told
        assert len(seen) >= FACTS - 5
    for each in followers:
        each.__exit__(None, None, None)
