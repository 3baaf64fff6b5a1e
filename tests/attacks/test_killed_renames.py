"""Entries that are superseded and renamed by processes that are killed: each exists once, with its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kit.locations import REPOSITORY
from kit.operations.killed_renames import ENTRIES


@pytest.mark.parametrize(
    ("seed", "count", "kills"),
    [(1, 30, 2), pytest.param(2, 1_000, 60, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])],
)
def test_entry_renamed_by_killed_process_exists_once(tmp_path, seed, count, kills):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    environment = os.environ | {
        "MUNIMENT_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(REPOSITORY / "tests"),
    }
    command = [
        sys.executable,
        "-m",
        "kit.operations.killed_renames",
        str(tmp_path / "work"),
        str(seed),
        str(count),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert result["stored"] == count + ENTRIES
    assert result["kills"] >= kills
