"""Lanes over one ledger, with separate workspaces for each test: creating a ledger takes 0.25 s."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from muniment.kernel.names import Trust
from muniment.server import lane_tasks
from muniment.server.lane import Lane
from muniment.server.lane_tasks import Ended, NewTask
from muniment.store import tasks
from muniment.store.audit import append, records
from muniment.store.tasks import Originator

_NUMBERS = itertools.count()
OWNER = Originator("owner")
BOT = Originator("bot", "1")
DONE = Ended("completed", result={"summary": "done"})
FAILED = Ended("failed", error={"code": "x"})
CANCELLED = Ended("cancelled")
ASKED = {"content": "x"}


class Clock:
    """A clock that advances by `step` with each reading."""

    def __init__(self):
        self.now, self.step = datetime(2026, 11, 22, tzinfo=UTC), timedelta(milliseconds=1)

    def __call__(self):
        self.now += self.step
        return self.now


def asked(kind="remember", text="x", *, by=OWNER, repeat=None, ref=None, trust=Trust.OWNER):
    shown = {"contextMode": "workspace"}
    return NewTask(kind, {"content": text}, by, shown, trust=trust, repeat=repeat, ref=ref)


def submit(lane, kind="remember", text="x", **more):
    return lane.submit(asked(kind, text, **more)).task


def begun(lane):
    submit(lane)
    return lane.claim()


class Ledgered:
    """Creates lanes and reads their data."""

    def __init__(self, state):
        self.state, self.clock, self._prefix = state, Clock(), f"workspace {next(_NUMBERS)}"
        self._start = tasks.span(state.ledger)[2]

    def lane(self, workspace="w"):
        return Lane(self.state, f"{self._prefix} {workspace}", now=self.clock)

    def committed(self, task):
        """Record the commit of a task as its job would."""
        with self.state.ledger.transaction() as connection:
            made = "task, kind, at, done, trust, decided_by, policy, token"
            values = "?, 'remember', '', '', 'owner', 'stub', '', ''"
            again = "ON CONFLICT DO NOTHING"
            connection.execute(f"INSERT INTO change_set ({made}) VALUES ({values}) {again}", (task.id,))
            append(self.state, "", "commit", task.id, {})

    def tasks(self, workspace="w"):
        return lane_tasks.tasks(self.state.ledger, self.lane(workspace).workspace)[::-1]

    def pending(self, workspace="w"):
        return sum(lane_tasks.count_pending(self.state.ledger, self.lane(workspace).workspace).values())

    def told(self):
        events = tasks.read(self.state.ledger, self._start, 10_000)
        return [event for event in events if event.workspace == f"{self._prefix} w"]

    def recorded(self, task):
        return [(record.kind, record.body) for record in records(self.state, task=task.id)]
