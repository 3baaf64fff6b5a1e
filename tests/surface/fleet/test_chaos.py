"""Nodes are killed and suspended and their database is restarted during use: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from pathlib import Path

import pytest

from kit import postgres
from kit.fleet.chaos import Plan, Storm
from kit.fleet.homes import base_on
from kit.fleet.nodes import NodeProcess

SEED = "MUNIMENT_CHAOS_SEED"
"""Repeats the faults of a run as far as possible with processes."""


@pytest.fixture
def short_directory():
    """Create a directory whose name is short enough for a socket."""
    made = Path(tempfile.mkdtemp(prefix="c-"))
    yield made
    shutil.rmtree(made)


def run_storm(directory, plan, count):
    """Run a storm to its end and check the result."""
    print(f"{SEED}={plan.seed}")  # noqa: T201  pytest shows it beside a failure
    with postgres.server() as server, base_on(server.url) as base:
        nodes = [
            NodeProcess(directory / f"n{number}", base.node, f"n{number}", lease=plan.lease)
            for number in range(count)
        ]
        storm = Storm(plan, base, server, nodes)
        try:
            asyncio.run(storm.run())
            asyncio.run(storm.brought_up())
            for node in nodes:
                node.stop()
            assert storm.faults.keys() == {"kill", "pause", "restart"}, storm.faults
            assert sum(len(home.accepted) for home in storm.homes) > plan.homes * plan.tasks // 2
            found = {
                "lost": storm.lost(),
                "not once": storm.not_once(),
                "failed": storm.failed(),
                "out of order": storm.out_of_order(),
                "gaps": storm.gaps(),
                "forged": storm.forged(),
                "differing": storm.differing(),
                "different from a new copy": storm.unlike_new(directory / "new"),
            }
            assert not any(found.values()), {each: problems for each, problems in found.items() if problems}
        finally:
            for node in nodes:
                node.kill()


def seed():
    return int(os.environ.get(SEED) or secrets.randbelow(1 << 32))


def test_nothing_is_lost_or_repeated_during_faults(short_directory):
    plan = Plan(seed(), homes=4, tasks=6, seconds=3.0, between=(0.2, 0.4), lease=2.0, paused=3.0)
    run_storm(short_directory, plan, 2)


@pytest.mark.slow
def test_nothing_is_lost_or_repeated_in_a_long_storm(short_directory):
    run_storm(short_directory, Plan(seed(), homes=24, tasks=40, seconds=100.0), 3)
