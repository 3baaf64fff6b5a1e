"""Requests at one node while another node works on the same home: cancel, undo, erase."""

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
from kit.fleet.local_nodes import start_nodes, wait_until
from kit.server.process import BASE, PausableModel
from muniment.fleet import home as of_home
from muniment.fleet import homes

SECRET_WORD = "quagga"


@pytest.fixture(scope="module")
def model():
    with PausableModel() as slow_model:
        yield slow_model


@pytest.fixture(scope="module")
def slow_nodes(fleet, tmp_path_factory, model):
    """Start nodes whose model answers when a test allows it."""
    with start_nodes(fleet, tmp_path_factory.mktemp("thinking"), model=model, lease=2.0) as created:
        yield created


@pytest.fixture
def busy_home(slow_nodes, model):
    """Create a home with one entry and a task that runs on some node."""
    home = slow_nodes.create_home()
    model.resume()
    done = home.nodes[0].run_task(
        "remember", {"content": f"The user has seen a {SECRET_WORD}.", "scope": "user"}
    )
    assert done["status"] == "completed", done
    home.path = done["result"]["filesTouched"][0]
    request_count = len(model.server.requests)
    model.pause()
    home.done, home.running = done["taskId"], home.nodes[0].remember("The user prefers tea over coffee.")
    model.wait_for_requests(request_count + 1)
    (home.runs_on,) = (
        number
        for number, each in enumerate(slow_nodes.nodes)
        if (core := each.node._homes.get(home.name)) is not None and core._runner is not None
    )
    home.there, home.elsewhere = home.nodes[home.runs_on], home.nodes[1 - home.runs_on]
    yield home
    model.resume()
    home.there.wait_for_task(home.running)


def test_cancel_at_another_node_is_streamed_to_followers(busy_home):
    with busy_home.elsewhere.follow_events() as remote, busy_home.there.follow_events() as local:
        remote.read_to_start(), local.read_to_start()
        cancelled = busy_home.elsewhere.cancel(busy_home.running).json()
        assert cancelled["status"] == "cancelled", cancelled
        for each in (remote, local):
            events = each.read_until(lambda event: event.data.get("status") == "cancelled")
            assert events[-1].data["taskId"] == busy_home.running
    assert busy_home.there.read_task(busy_home.running)["status"] == "cancelled"


def test_commit_is_streamed_at_another_node(busy_home, model):
    with busy_home.elsewhere.follow_events() as events_stream:
        events_stream.read_to_start()
        model.resume()
        events = events_stream.read_until(lambda event: event.data.get("status") == "completed")
        assert {event.type for event in events} == {"task", "memory_changed"}
    assert busy_home.elsewhere.recall_texts("tea or coffee?")


def test_undo_at_another_node_waits_for_running_task(busy_home, model, slow_nodes):
    with ThreadPoolExecutor(1) as threads:
        node = slow_nodes.nodes[1 - busy_home.runs_on].node
        undone = threads.submit(busy_home.elsewhere.post, f"{BASE}/undo", {"taskId": busy_home.done})
        wait_until(lambda: node._operations)
        assert not undone.done()
        model.resume()
        answer = undone.result(30)
    assert (answer.status_code, answer.json().get("undone")) == (200, busy_home.done), answer.text
    for at in busy_home.nodes:
        assert not any(SECRET_WORD in text for text in at.recall_texts(f"Who has seen a {SECRET_WORD}?"))


def test_owner_operation_on_leased_home_times_out(busy_home, monkeypatch):
    monkeypatch.setattr(of_home, "LEASE_WAIT_SECONDS", 0.3)
    for path, body in (
        ("undo", {"taskId": busy_home.done}),
        ("erase", {"target": busy_home.path, "dryRun": False}),
    ):
        answer = busy_home.elsewhere.post(f"{BASE}/{path}", body)
        assert (answer.status_code, answer.json()["code"]) == (503, "deadline"), answer.text


def test_erase_removes_text_from_files_of_all_nodes(busy_home, model, slow_nodes):
    for at in busy_home.nodes:
        assert at.recall_texts(f"Who has seen a {SECRET_WORD}?")
    assert all(find_files_with_word(each.copies) for each in slow_nodes.nodes)
    model.resume()
    erased = busy_home.there.post(f"{BASE}/erase", {"target": busy_home.path, "dryRun": False})
    assert (erased.status_code, erased.json()["status"]) == (200, "erased"), erased.text
    wait_until(
        lambda: (
            not any(
                find_files_with_word(each.get_copy_path(busy_home.name).parent) for each in slow_nodes.nodes
            )
        )
    )
    for at in busy_home.nodes:
        assert at.recall_texts(f"Who has seen a {SECRET_WORD}?") == []
    assert [find_files_with_word(each.get_copy_path(busy_home.name).parent) for each in slow_nodes.nodes] == [
        [],
        [],
    ]
    with psycopg.connect(slow_nodes.base.superuser, options="-c search_path=muniment") as connection:
        for table in ("blob", "event", "task", "record", "change_set", "review"):
            rows = connection.execute(
                f"SELECT each::text FROM {table} AS each WHERE home = %s", (busy_home.name,)
            )
            text = "\n".join(row for (row,) in rows)
            assert SECRET_WORD not in text, table
            assert SECRET_WORD.encode().hex() not in text, table


def test_removed_home_leaves_no_file_on_any_node(slow_nodes):
    home = slow_nodes.create_home()
    home.nodes[0].run_task("remember", {"content": f"The user has seen a {SECRET_WORD}.", "scope": "user"})
    for at in home.nodes:
        assert at.recall_texts(f"Who has seen a {SECRET_WORD}?")
    homes.remove_home(slow_nodes.base.owner, home.name)
    wait_until(
        lambda: (
            not any(find_files_with_word(each.get_copy_path(home.name).parent) for each in slow_nodes.nodes)
        )
    )
    assert [at.request_problem("GET", f"{BASE}/tasks") for at in home.nodes] == [(401, "token_required")] * 2


def test_erase_reaches_node_that_was_stopped(fleet, tmp_path):
    with start_nodes(fleet, tmp_path) as running:
        home = running.create_home()
        done = home.nodes[0].run_task(
            "remember", {"content": f"The user has seen a {SECRET_WORD}.", "scope": "user"}
        )
        for at in home.nodes:
            assert at.recall_texts(f"Who has seen a {SECRET_WORD}?")
        stopped_node = running.nodes[1]
        running.stop(stopped_node)
        assert find_files_with_word(stopped_node.copies)
        target = {"target": done["result"]["filesTouched"][0], "dryRun": False}
        assert home.nodes[0].post(f"{BASE}/erase", target).status_code == 200
        running.start(stopped_node.directory, "again", lease=15.0)
        wait_until(lambda: not find_files_with_word(stopped_node.copies))


def find_files_with_word(directory):
    """Return the files below a directory that contain the word; files may disappear during the search."""
    found = []
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                found += [path] * (path.is_file() and SECRET_WORD.encode() in path.read_bytes())
    return found


def test_revoked_token_ends_event_stream(slow_nodes):
    """The home has no activity; otherwise the next event would check the token."""
    home = slow_nodes.create_home()
    token = slow_nodes.add_client(home, "client")
    at = slow_nodes.open_requests(1, token)
    has_ended = threading.Event()

    def follow():
        with at.follow_events() as events_stream:
            events_stream.read_to_start()
            has_started.set()
            for _ in events_stream:
                pass
        has_ended.set()

    has_started = threading.Event()
    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert has_started.wait(30)
    homes.revoke_token(slow_nodes.base.owner, KEY, home.name, "client")
    assert has_ended.wait(30)
    assert at.request_problem("GET", f"{BASE}/tasks") == (401, "token_required")
    assert home.nodes[1].get(f"{BASE}/tasks").status_code == 200
    follower.join()


def test_revoked_token_ends_long_poll(busy_home, model, slow_nodes):
    token = slow_nodes.add_client(busy_home, "waiting")
    at = slow_nodes.open_requests(1 - busy_home.runs_on, token)
    with ThreadPoolExecutor(1) as threads:
        task_id = at.remember("The user likes walking in the hills.")
        answer = threads.submit(at.get, f"{BASE}/remember/{task_id}", prefer="wait=60")
        homes.revoke_token(slow_nodes.base.owner, KEY, busy_home.name, "waiting")
        model.resume()
        assert answer.result(30).status_code == 401
    busy_home.there.wait_for_task(task_id)


def test_running_task_does_not_block_readers(busy_home):
    for at in busy_home.nodes:
        assert at.recall_texts(f"Who has seen a {SECRET_WORD}?")
        assert at.get(f"{BASE}/review").json() == {"reviews": []}
    with pytest.raises(httpx2.ReadTimeout):
        busy_home.elsewhere.http.get(
            f"{BASE}/remember/{busy_home.running}",
            headers={"Prefer": "wait=60", "Authorization": f"Bearer {busy_home.token}"},
            timeout=0.3,
        )
