"""What is asked at one node while another one is at work on the same home: a cancel, an undo, an erasure."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import psycopg
import pytest

from kit.fleet.homes import KEY
from kit.fleet.pair import nodes, until
from kit.server.process import BASE, HeldModel
from muniment.fleet import home as of_home
from muniment.fleet import homes

GONE = "quagga"


@pytest.fixture(scope="module")
def model():
    with HeldModel() as held:
        yield held


@pytest.fixture(scope="module")
def thinking(fleet, tmp_path_factory, model):
    """Nodes whose model answers when a test lets it."""
    with nodes(fleet, tmp_path_factory.mktemp("thinking"), model=model, lease=2.0) as made:
        yield made


@pytest.fixture
def held(thinking, model):
    """A home in which something is remembered, and a task runs on some node."""
    home = thinking.home()
    model.release()
    done = home.at[0].done("remember", {"content": f"The user has seen a {GONE}.", "scope": "user"})
    assert done["status"] == "completed", done
    home.path = done["result"]["filesTouched"][0]
    asked = len(model.server.requests)
    model.hold()
    home.done, home.running = done["taskId"], home.at[0].remember("The user prefers tea over coffee.")
    model.wait_until_asked(asked + 1)
    (home.runs_on,) = (
        number
        for number, each in enumerate(thinking.nodes)
        if (core := each.node._homes.get(home.name)) is not None and core._runner is not None
    )
    home.there, home.elsewhere = home.at[home.runs_on], home.at[1 - home.runs_on]
    yield home
    model.release()
    home.there.wait(home.running)


def test_cancel_at_another_node_is_streamed_to_followers(held):
    with held.elsewhere.follow() as followed, held.there.follow() as beside:
        followed.start(), beside.start()
        cancelled = held.elsewhere.cancel(held.running).json()
        assert cancelled["status"] == "cancelled", cancelled
        for each in (followed, beside):
            told = each.until(lambda event: event.data.get("status") == "cancelled")
            assert told[-1].data["taskId"] == held.running
    assert held.there.look(held.running)["status"] == "cancelled"


def test_commit_is_streamed_at_another_node(held, model):
    with held.elsewhere.follow() as followed:
        followed.start()
        model.release()
        told = followed.until(lambda event: event.data.get("status") == "completed")
        assert {event.type for event in told} == {"task", "memory_changed"}
    assert held.elsewhere.recalled("tea or coffee?")


def test_undo_at_another_node_waits_for_running_task(held, model, thinking):
    with ThreadPoolExecutor(1) as threads:
        node = thinking.nodes[1 - held.runs_on].node
        undone = threads.submit(held.elsewhere.post, f"{BASE}/undo", {"taskId": held.done})
        until(lambda: node._owners)
        assert not undone.done()
        model.release()
        answer = undone.result(30)
    assert (answer.status_code, answer.json().get("undone")) == (200, held.done), answer.text
    for at in held.at:
        assert not any(GONE in text for text in at.recalled(f"Who has seen a {GONE}?"))


def test_owner_operation_on_leased_home_times_out(held, monkeypatch):
    monkeypatch.setattr(of_home, "LEASE_WAIT_SECONDS", 0.3)
    for path, body in (("undo", {"taskId": held.done}), ("erase", {"target": held.path, "dryRun": False})):
        answer = held.elsewhere.post(f"{BASE}/{path}", body)
        assert (answer.status_code, answer.json()["code"]) == (503, "deadline"), answer.text


def test_erase_removes_text_from_files_of_all_nodes(held, model, thinking):
    for at in held.at:
        assert at.recalled(f"Who has seen a {GONE}?")
    assert all(holders(each.copies) for each in thinking.nodes)
    model.release()
    erased = held.there.post(f"{BASE}/erase", {"target": held.path, "dryRun": False})
    assert (erased.status_code, erased.json()["status"]) == (200, "erased"), erased.text
    until(lambda: not any(holders(each.memory(held.name).parent) for each in thinking.nodes))
    for at in held.at:
        assert at.recalled(f"Who has seen a {GONE}?") == []
    assert [holders(each.memory(held.name).parent) for each in thinking.nodes] == [[], []]
    with psycopg.connect(thinking.base.superuser, options="-c search_path=muniment") as asked:
        for table in ("blob", "event", "task", "record", "change_set", "review"):
            rows = asked.execute(f"SELECT each::text FROM {table} AS each WHERE home = %s", (held.name,))
            text = "\n".join(row for (row,) in rows)
            assert GONE not in text, table
            assert GONE.encode().hex() not in text, table


def test_removed_home_leaves_no_file_on_any_node(thinking):
    home = thinking.home()
    home.at[0].done("remember", {"content": f"The user has seen a {GONE}.", "scope": "user"})
    for at in home.at:
        assert at.recalled(f"Who has seen a {GONE}?")
    homes.remove_home(thinking.base.owner, home.name)
    until(lambda: not any(holders(each.memory(home.name).parent) for each in thinking.nodes))
    assert [at.problem("GET", f"{BASE}/tasks") for at in home.at] == [(401, "token_required")] * 2


def test_erase_reaches_node_that_was_stopped(fleet, tmp_path):
    with nodes(fleet, tmp_path) as made:
        home = made.home()
        done = home.at[0].done("remember", {"content": f"The user has seen a {GONE}.", "scope": "user"})
        for at in home.at:
            assert at.recalled(f"Who has seen a {GONE}?")
        away = made.nodes[1]
        made.stop(away)
        assert holders(away.copies)
        target = {"target": done["result"]["filesTouched"][0], "dryRun": False}
        assert home.at[0].post(f"{BASE}/erase", target).status_code == 200
        made.start(away.directory, "again", lease=15.0)
        until(lambda: not holders(away.copies))


def holders(directory):
    """The files below a directory in which the word stands; they may go while they are looked at."""
    found = []
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                found += [path] * (path.is_file() and GONE.encode() in path.read_bytes())
    return found


def test_revoked_token_ends_event_stream(thinking):
    """Nothing happens in the home: else the next event would ask who may follow."""
    home = thinking.home()
    token = thinking.client(home, "client")
    at = thinking.at(1, token)
    over = threading.Event()

    def follow():
        with at.follow() as followed:
            followed.start()
            begun.set()
            for _ in followed:
                pass
        over.set()

    begun = threading.Event()
    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert begun.wait(30)
    homes.revoke_token(thinking.base.owner, KEY, home.name, "client")
    assert over.wait(30)
    assert at.problem("GET", f"{BASE}/tasks") == (401, "token_required")
    assert home.at[1].get(f"{BASE}/tasks").status_code == 200
    follower.join()


def test_revoked_token_ends_long_poll(held, model, thinking):
    token = thinking.client(held, "waiting")
    at = thinking.at(1 - held.runs_on, token)
    with ThreadPoolExecutor(1) as threads:
        own = at.remember("The user likes walking in the hills.")
        answer = threads.submit(at.get, f"{BASE}/remember/{own}", prefer="wait=60")
        homes.revoke_token(thinking.base.owner, KEY, held.name, "waiting")
        model.release()
        assert answer.result(30).status_code == 401
    held.there.wait(own)


def test_running_task_does_not_block_readers(held):
    for at in held.at:
        assert at.recalled(f"Who has seen a {GONE}?")
        assert at.get(f"{BASE}/review").json() == {"reviews": []}
    with pytest.raises(httpx2.ReadTimeout):
        held.elsewhere.http.get(
            f"{BASE}/remember/{held.running}",
            headers={"Prefer": "wait=60", "Authorization": f"Bearer {held.token}"},
            timeout=0.3,
        )
