"""A node with a full disk accepts no work and reports it, and another node does the work."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from kit.fleet.local_nodes import start_nodes, wait_until
from kit.locations import REPOSITORY
from kit.server.process import BASE

COMPOSE = REPOSITORY / "examples" / "deploy" / "fleet" / "compose.yaml"


@pytest.fixture
def pair(fleet, tmp_path):
    """Start nodes that detect problems quickly."""
    with start_nodes(fleet, tmp_path, lease=1.0) as created:
        yield created


def is_healthy(at):
    """Return the result of the packaged health check for a node."""
    _, _, option, program = yaml.safe_load(COMPOSE.read_text())["services"]["node-1"]["healthcheck"]["test"]
    program = program.replace("http://localhost:8765", at.url)
    return not subprocess.run([sys.executable, option, program], capture_output=True, check=False).returncode


def test_node_with_full_disk_leaves_work_to_another(pair, monkeypatch):
    full = pair.nodes[0]
    home = pair.create_home()
    assert (
        home.nodes[0].run_task("remember", {"content": "The user prefers tea over coffee."})["status"]
        == "completed"
    )
    real = os.statvfs
    no_space = SimpleNamespace(f_bavail=0, f_frsize=4_096)
    monkeypatch.setattr(os, "statvfs", lambda path: no_space if path == full.node._cache else real(path))
    wait_until(lambda: full.node.problem == "disk_full")
    answer = home.nodes[0].get("/readyz")
    assert (answer.status_code, list(answer.json()["workspaces"].values())) == (503, ["disk_full"])
    assert home.nodes[1].get("/readyz").status_code == 200
    assert [is_healthy(at) for at in home.nodes] == [False, True]
    rejected = home.nodes[0].post(f"{BASE}/remember", {"content": "The user likes cats."})
    assert (rejected.status_code, rejected.json()["reason"]) == (503, "disk_full")
    assert rejected.headers["retry-after"]
    for number in range(4):
        done = home.nodes[1].run_task(
            "remember", {"content": f"The user keeps item number {number} in the cellar."}
        )
        assert done["status"] == "completed"
    monkeypatch.undo()
    wait_until(lambda: full.node.problem is None)
    assert home.nodes[0].run_task("remember", {"content": "The user likes cats."})["status"] == "completed"
