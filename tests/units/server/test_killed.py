"""Kill -9: accepted tasks of a lane end in order, one at a time, whenever its process dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

from kit.locations import TESTS
from muniment.server import lane_tasks
from muniment.server.lane import MAX_ATTEMPTS
from muniment.store import tasks as outbox
from muniment.store.audit import verify
from muniment.store.state import State

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}
LONG = [pytest.param(20, seed, marks=pytest.mark.slow) for seed in range(1, 22)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kills", "seed"), [(8, 1), *LONG])
def test_accepted_tasks_end_in_order_despite_kills(tmp_path, kills, seed):
    state, log = tmp_path / "state", tmp_path / "log"
    command = [sys.executable, "-m", "kit.server.crashes", state, log, str(kills), str(seed)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    accepted = json.loads(done.stdout)
    with State(state) as opened:
        tasks = lane_tasks.list_tasks(opened.ledger, "w")[::-1]
        events = outbox.read_events(opened.ledger, 0, 100_000)
        assert verify(opened).problems == ()
    lines = [line.split() for line in log.read_text().splitlines()]
    started = [words[1] for words in lines if words[0] == "begin"]
    ended = {words[1] for words in lines if words[0] == "end"}
    starts = Counter(started)

    # No task was lost, doubled or reordered.
    assert [task.id for task in tasks] == accepted
    assert all(task.is_finished for task in tasks)
    order = [accepted.index(each) for each in started]
    assert order == sorted(order)

    # No two ran at once: each start is followed by its end, or by the next process.
    for (what, *which), after in pairwise(lines):
        assert what != "begin" or after in (["end", *which], ["boot"])

    # Each was started a few times at most, and only tasks that were interrupted so often have failed.
    assert 1 < max(starts.values()) <= MAX_ATTEMPTS
    for task in tasks:
        assert task.attempt <= MAX_ATTEMPTS
        failed = ("failed", {"code": "interrupted"}, MAX_ATTEMPTS)
        is_done = task.status == "completed" and task.id in ended
        assert is_done or (task.status, task.error, task.attempt) == failed

    # Each is reported as over exactly once.
    over = Counter(event.task for event in events if event.data["status"] in {"completed", "failed"})
    assert over == dict.fromkeys(accepted, 1)
