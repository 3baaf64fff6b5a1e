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

from kit.store.killed import SCENARIOS, applied, files, is_left_whole, lay, opened, recovered, steps
from kit.store.processes import ENVIRONMENT
from muniment.store.ledger import of_task


@pytest.mark.parametrize(
    ("scenario", "stride"),
    [("everything", 60), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in SCENARIOS)],
)
def test_a_commit_killed_at_any_step_is_all_there_or_not_at_all(tmp_path, scenario, stride):
    found = steps(tmp_path, SCENARIOS[scenario], stride)
    assert found[False] > 20 // stride
    assert found[True] >= (stride == 1)  # Few steps come after the one that decides.


def killed_somewhere(tmp_path, seed, chosen):
    """Let a process commit, kill it at a moment of chance; what it said it would do, and had done."""
    command = [sys.executable, "-m", "kit.store.killed", tmp_path / "tree", tmp_path / "state", str(seed)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, bufsize=0) as worker:
        assert worker.stdout.readline() == b'["ready"]\n'
        end, said = time.monotonic() + chosen.uniform(0.01, 0.6), b""
        while (left := end - time.monotonic()) > 0:
            if select.select([worker.stdout], [], [], left)[0]:
                said += os.read(worker.stdout.fileno(), 65536)
        worker.kill()
        said += worker.stdout.read()
    return [json.loads(line) for line in said.decode().splitlines() if line.endswith("]")]


@pytest.mark.slow
def test_a_process_killed_at_any_moment_keeps_what_it_acknowledged_and_nothing_half(tmp_path):
    """Each killed process is followed by another one over the same memory."""
    tree, chosen = tmp_path / "tree", random.Random(20_261_122)
    lay(tree)
    expected, acknowledged, kills, interrupted = files(tree), 0, 0, 0
    while acknowledged < 2_000:
        kills += 1
        asked = {}
        for what, task, *shown in killed_somewhere(tmp_path, kills, chosen):
            if what == "begin":
                asked = {task: {path: text and text.encode() for path, text in shown[0].items()}}
                continue
            expected = applied(expected, asked.pop(task))
            acknowledged += 1
        with opened(tree, tmp_path / "state") as ground:
            recovered(ground)
            for task, change in asked.items():
                is_done = of_task(ground.state, task) is not None
                expected, interrupted = (
                    applied(expected, change if is_done else {}),
                    interrupted + (not is_done),
                )
        assert files(tree) == expected
        assert is_left_whole(tree, tmp_path / "copy")
    assert interrupted > 0
