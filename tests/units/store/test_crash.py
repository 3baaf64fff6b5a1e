"""Kill -9: a commit is entirely there or entirely absent, whenever its process dies."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import time

import pytest

from kit.store.ground import patience
from kit.store.killed import entries, indexes, lay, opened, rebuilt
from kit.where import TESTS
from muniment.policy.load import load_policy
from muniment.store.ledger import of_task
from muniment.store.upkeep import recover_all

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}


@pytest.mark.parametrize(
    ("scenario", "stride"),
    [
        ("everything", 6),
        *(
            pytest.param(name, 1, marks=pytest.mark.slow)
            for name in ("everything", "create", "replace", "remove")
        ),
    ],
)
def test_a_commit_killed_at_any_step_is_all_there_or_not_at_all(tmp_path, scenario, stride):
    """At each call that changes something, before and after it; see `killed.steps` for what is asked."""
    command = [sys.executable, "-m", "kit.store.killed", "steps", tmp_path, scenario, str(stride)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["killed"] == found["whole"] + found["nothing"]
    assert found["nothing"] > 20 // stride
    assert found["whole"] >= (stride == 1)  # Few steps come after the one that decides.


def killed_somewhere(tmp_path, seed, chosen):
    """Let a process commit, kill it at a moment of chance; what it said it would do, and had done."""
    command = [
        sys.executable,
        "-m",
        "kit.store.killed",
        "work",
        tmp_path / "tree",
        tmp_path / "state",
        str(seed),
    ]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, bufsize=0) as worker:
        assert worker.stdout.readline() == b"ready\n"
        end = time.monotonic() + chosen.uniform(0.01, 0.6)
        said = b""
        while (left := end - time.monotonic()) > 0:
            if select.select([worker.stdout], [], [], left)[0]:
                said += os.read(worker.stdout.fileno(), 65536)
        worker.kill()
        said += worker.stdout.read()
    return [json.loads(line) for line in said.decode().splitlines() if line.endswith("]")]


@pytest.mark.slow
def test_a_process_killed_at_any_moment_keeps_what_it_acknowledged_and_nothing_half(tmp_path, request):
    """At least 200 commits; each killed process is followed by another one over the same memory."""
    (tmp_path / "tree").mkdir()
    lay(tmp_path / "tree")
    expected = {path: data for path, data in entries(tmp_path / "tree").items() if data is not None}
    chosen = random.Random(20_261_122)
    wanted = 2_000 if request.config.getoption("--slow") else 200
    acknowledged = kills = interrupted = 0
    while acknowledged < wanted:
        kills += 1
        asked = {}
        for what, task, *shown in killed_somewhere(tmp_path, kills, chosen):
            if what == "begin":
                asked = {task: shown[0]}
                continue
            expected = applied(expected, asked.pop(task))
            acknowledged += 1
        with opened(tmp_path / "tree", tmp_path / "state") as ground:
            recover_all(ground.state, ground.roots, load_policy("strict"), patience())
            for task, change in asked.items():
                if of_task(ground.state, task) is not None:
                    expected = applied(expected, change)
                else:
                    interrupted += 1
        found = {path: data for path, data in entries(tmp_path / "tree").items() if data is not None}
        assert found == expected
        assert not list((tmp_path / "tree").rglob(".muniment-*"))
        assert indexes(tmp_path / "tree") == rebuilt(tmp_path / "tree", tmp_path / "copy")
    assert interrupted > 0


def applied(standing, change):
    after = {**standing, **{path: None if text is None else text.encode() for path, text in change.items()}}
    return {path: data for path, data in after.items() if data is not None}
