"""Turns of a home on one node: one at a time, and over once there is no such home."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from kit.daemon.process import HeldModel
from kit.fleet.pair import nodes, until
from muniment import lane
from muniment.fleet import homes


@pytest.fixture
def held(fleet, tmp_path):
    with HeldModel() as model, nodes(fleet, tmp_path, 1, model) as made:
        model.hold()
        yield made, model


def begun(home, model):
    """The id of a task that has come as far as its model."""
    task_id = home.at[0].remember("The user prefers tea.")
    model.wait_until_asked()
    return task_id


def test_a_second_turn_of_a_home_does_not_begin_what_runs_in_the_first(held):
    made, model = held
    home = made.home()
    task_id = begun(home, model)
    with ThreadPoolExecutor(1) as threads:  # As of a job that was taken for stalled, and comes here again.
        again = threads.submit(made.nodes[0].node.home(home.name).turn)
        wait([again], timeout=2.0)
        tasks = lane.running(made.base.pool.home(home.name), home.name)
        model.release()
    assert [(each.id, each.claim) for each in tasks] == [(task_id, 1)]
    assert home.at[0].wait(task_id)["status"] == "completed"


def test_a_home_that_is_removed_while_it_has_its_turn_keeps_no_slot(held):
    made, model = held
    home = made.home()
    begun(home, model)
    homes.remove_home(made.base.owner, home.name)
    model.release()
    until(lambda: not made.nodes[0].node.running)
