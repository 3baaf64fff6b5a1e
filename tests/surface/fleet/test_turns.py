"""Turns of a home on one node: one at a time, and no turn after the home is removed."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from kit.fleet.local_nodes import start_nodes, wait_until
from kit.server.process import PausableModel
from muniment.fleet import homes, queue
from muniment.fleet.queue import TurnQueue, build_queue_name, choose_node
from muniment.server import lane_tasks


@pytest.fixture
def slow_node(fleet, tmp_path):
    with PausableModel() as model, start_nodes(fleet, tmp_path, 1, model) as running:
        model.pause()
        yield running, model


def start_task(home, model):
    """Start a task, wait for its model call, and return its id."""
    task_id = home.nodes[0].remember("The user prefers tea.")
    model.wait_for_requests()
    return task_id


def test_second_turn_does_not_restart_running_task(slow_node):
    running, model = slow_node
    home = running.create_home()
    task_id = start_task(home, model)
    with ThreadPoolExecutor(1) as threads:  # Like a job that was considered stalled and is delivered twice.
        second_turn = threads.submit(running.nodes[0].node.home(home.name).run_turn)
        wait([second_turn], timeout=2.0)
        tasks = lane_tasks.list_running(running.base.pool.home(home.name), home.name)
        model.resume()
    assert [(each.id, each.claim) for each in tasks] == [(task_id, 1)]
    assert home.nodes[0].wait_for_task(task_id)["status"] == "completed"


def test_home_removed_during_turn_frees_its_slot(slow_node):
    running, model = slow_node
    home = running.create_home()
    start_task(home, model)
    homes.remove_home(running.base.owner, home.name)
    model.resume()
    wait_until(lambda: not running.nodes[0].node.turn_count)


def test_turns_stay_queued_if_every_node_is_full(fleet, tmp_path, monkeypatch):
    checked_queues, real_put_in = [], TurnQueue._add_missing_jobs
    monkeypatch.setattr(queue, "SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(
        TurnQueue,
        "_add_missing_jobs",
        lambda fleet_nodes: (real_put_in(fleet_nodes), checked_queues.append(fleet_nodes)),
    )
    with PausableModel() as model, start_nodes(fleet, tmp_path, 0, model) as fleet_nodes:
        names = [f"{tmp_path.name}-{number}" for number in range(2)]
        for name in names:
            fleet_nodes.start(tmp_path / name, name, model, lease=2.0, slots=1)
        model.pause()
        running, waiting = ([make_home_of_node(fleet_nodes, names, name) for name in names] for _ in range(2))
        for number, home in enumerate(running):
            home.nodes[0].remember("The user prefers tea.")
            model.wait_for_requests(number + 1)
        wait_until(lambda: set(read_full_nodes(fleet)) >= set(names))
        known = read_full_nodes(fleet)
        wait_until(
            lambda: all(read_full_nodes(fleet)[name] > known[name] for name in names)
        )  # Both nodes have seen each other.
        for home in waiting:
            home.nodes[0].remember("The user prefers tea.")
        before = Counter(checked_queues)
        for node in fleet_nodes.nodes:
            wait_until(lambda queue_=node.node.queue: checked_queues.count(queue_) > before[queue_] + 5)
        queues = {home.name: build_queue_name(name) for home, name in zip(waiting, names, strict=True)}
        assert read_queues(fleet, list(queues)) == queues
        model.resume()


def make_home_of_node(running, names, name):
    """Create a home that belongs to the named node."""
    while True:
        home = running.create_home()
        if choose_node(home.name, names) == name:
            return home


def read_full_nodes(fleet):
    """Return the times at which full nodes were seen."""
    with fleet.pool.connection() as connection:
        return dict(connection.execute("SELECT name, seen FROM node WHERE running = slots").fetchall())


def read_queues(fleet, homes_):
    """Return the queue of each waiting home."""
    with fleet.pool.connection() as connection:
        return dict(
            connection.execute(
                "SELECT lock, queue_name FROM procrastinate_jobs WHERE lock = ANY (%s)", (homes_,)
            ).fetchall()
        )
