"""The disk of a node is full: it takes no work and says so, and another one does the work."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from kit.daemon.process import BASE
from kit.fleet.pair import nodes, until


@pytest.fixture
def pair(fleet, tmp_path):
    """Nodes of the test's own, which notice soon."""
    with nodes(fleet, tmp_path, lease=1.0) as made:
        yield made


def test_a_node_without_room_says_so_and_another_one_does_its_work(pair, monkeypatch):
    full = pair.nodes[0]
    home = pair.home()
    assert (
        home.at[0].done("remember", {"content": "The user prefers tea over coffee."})["status"] == "completed"
    )
    real = os.statvfs
    none = SimpleNamespace(f_bavail=0, f_frsize=4_096)
    monkeypatch.setattr(os, "statvfs", lambda path: none if path == full.node._cache else real(path))
    until(lambda: full.node.problem == "disk_full")
    answer = home.at[0].get("/readyz")
    assert (answer.status_code, list(answer.json()["workspaces"].values())) == (503, ["disk_full"])
    assert home.at[1].get("/readyz").status_code == 200
    refused = home.at[0].post(f"{BASE}/remember", {"content": "The user likes cats."})
    assert (refused.status_code, refused.json()["reason"]) == (503, "disk_full")
    assert refused.headers["retry-after"]
    for number in range(4):
        done = home.at[1].done("remember", {"content": f"The user keeps item number {number} in the cellar."})
        assert done["status"] == "completed"
    monkeypatch.undo()
    until(lambda: full.node.problem is None)
    assert home.at[0].done("remember", {"content": "The user likes cats."})["status"] == "completed"
