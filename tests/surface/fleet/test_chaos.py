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
from kit.fleet.chaos import ChaosRun, Plan
from kit.fleet.homes import create_database
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
    with postgres.start_server() as server, create_database(server.url) as base:
        nodes = [
            NodeProcess(directory / f"n{number}", base.node, f"n{number}", lease=plan.lease)
            for number in range(count)
        ]
        storm = ChaosRun(plan, base, server, nodes)
        try:
            asyncio.run(storm.run())
            asyncio.run(storm.refresh_copies())
            for node in nodes:
                node.stop()
            assert storm.faults.keys() == {"kill", "pause", "restart"}, storm.faults
            assert sum(len(home.accepted_tasks) for home in storm.homes) > plan.homes * plan.tasks // 2
            found = {
                "lost": storm.find_lost_tasks(),
                "not once": storm.find_repeated_tasks(),
                "failed": storm.count_failures(),
                "out of order": storm.find_misordered_tasks(),
                "gaps": storm.find_event_gaps(),
                "forged": storm.find_audit_problems(),
                "differing": storm.find_differing_copies(),
                "different from a new copy": storm.find_unreproducible_copies(directory / "new"),
            }
            assert not any(found.values()), {each: problems for each, problems in found.items() if problems}
        finally:
            for node in nodes:
                node.kill()


def seed():
    return int(os.environ.get(SEED) or secrets.randbelow(1 << 32))


def test_nothing_is_lost_or_repeated_during_faults(short_directory):
    plan = Plan(
        seed(), homes=4, tasks=6, seconds=3.0, fault_interval=(0.2, 0.4), lease=2.0, pause_seconds=3.0
    )
    run_storm(short_directory, plan, 2)


@pytest.mark.slow
def test_nothing_is_lost_or_repeated_in_a_long_storm(short_directory):
    run_storm(short_directory, Plan(seed(), homes=24, tasks=40, seconds=100.0), 3)
