"""Lanes over one ledger, with separate workspaces for each test: creating a ledger takes 0.25 s."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from muniment.kernel.names import Trust
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.lane_tasks import NewTask, TaskOutcome
from muniment.store import tasks
from muniment.store.audit import append, read_records
from muniment.store.tasks import Originator

_NUMBERS = itertools.count()
OWNER = Originator("owner")
BOT = Originator("bot", "1")
DONE = TaskOutcome("completed", result={"summary": "done"})
FAILED = TaskOutcome("failed", error={"code": "x"})
CANCELLED = TaskOutcome("cancelled")
ARGUMENTS = {"content": "x"}


class StepClock:
    """A clock that advances by `step` with each reading."""

    def __init__(self):
        self.now, self.step = datetime(2026, 11, 22, tzinfo=UTC), timedelta(milliseconds=1)

    def __call__(self):
        self.now += self.step
        return self.now


def make_new_task(kind="remember", text="x", *, by=OWNER, repeat=None, ref=None, trust=Trust.OWNER):
    public_fields = {"contextMode": "workspace"}
    return NewTask(kind, {"content": text}, by, public_fields, trust=trust, idempotency_key=repeat, ref=ref)


def submit_task(lane, kind="remember", text="x", **more):
    return lane.submit(make_new_task(kind, text, **more)).task


def start_task(lane):
    submit_task(lane)
    return lane.claim()


class LaneFactory:
    """Creates lanes and reads their data."""

    def __init__(self, state):
        self.state, self.clock, self._prefix = state, StepClock(), f"workspace {next(_NUMBERS)}"
        self._start = tasks.read_range(state.ledger)[2]

    def make_lane(self, workspace="w"):
        return Lane(self.state, f"{self._prefix} {workspace}", now=self.clock)

    def record_commit(self, task):
        """Record the commit of a task as its job would."""
        with self.state.ledger.transaction() as connection:
            columns = "task, kind, at, done, trust, decided_by, policy, token"
            values = "?, 'remember', '', '', 'owner', 'stub', '', ''"
            on_conflict = "ON CONFLICT DO NOTHING"
            connection.execute(
                f"INSERT INTO change_set ({columns}) VALUES ({values}) {on_conflict}", (task.id,)
            )
            append(self.state, "", "commit", task.id, {})

    def list_tasks(self, workspace="w"):
        return lane_tasks.list_tasks(self.state.ledger, self.make_lane(workspace).workspace)[::-1]

    def count_pending(self, workspace="w"):
        return sum(lane_tasks.count_pending(self.state.ledger, self.make_lane(workspace).workspace).values())

    def read_events(self):
        events = tasks.read_events(self.state.ledger, self._start, 10_000)
        return [event for event in events if event.workspace == f"{self._prefix} w"]

    def read_records(self, task):
        return [(record.kind, record.body) for record in read_records(self.state, task=task.id)]
