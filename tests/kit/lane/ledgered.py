"""Lanes over one ledger, with workspaces of its own for each test: making a ledger takes a quarter second."""

from __future__ import annotations

import itertools

from kit.lane.conformance import Clock
from muniment import lane as reading
from muniment.lane import Lane
from muniment.store import tasks
from muniment.store.audit import append, head, records
from muniment.store.state import State

_NUMBERS = itertools.count()


class Ledgered:
    """Factory of plain lanes; see `conformance.py`."""

    def __init__(self, state):
        self.state, self.clock, self._prefix = state, Clock(), f"workspace {next(_NUMBERS)}"
        self._start = tasks.span(state.ledger)[2]
        self._again = None

    def plain(self, workspace="w", state=None):
        return Lane(state or self.state, f"{self._prefix} {workspace}", now=self.clock)

    lane = plain

    def reopened(self, workspace="w"):
        self._again = self._again or State(self.state.directory)
        return self.plain(workspace, self._again)

    def committed(self, task):
        """As the commit of a job leaves it."""
        with self.state.ledger.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO change_set (task, kind, at, done, trust, decided_by, policy, token) "
                "VALUES (?, 'remember', '', '', 'owner', 'stub', '', '')",
                (task.id,),
            )
            append(self.state, "", "commit", task.id, {})

    def tasks(self, workspace="w"):
        return reading.tasks(self.state.ledger, self.plain(workspace).workspace)[::-1]

    def pending(self, workspace="w"):
        return sum(reading.count_pending(self.state.ledger, self.plain(workspace).workspace).values())

    def told(self):
        of = f"{self._prefix} w"
        events = tasks.read(self.state.ledger, self._start, 10_000)
        return [event for event in events if event.workspace == of]

    def trace(self):
        """Where the events and the records end."""
        return tasks.span(self.state.ledger), head(self.state)

    def recorded(self, task):
        return [(record.kind, record.body) for record in records(self.state, task=task.id)]

    def close(self):
        if self._again is not None:
            self._again.close()


class Grouped(Ledgered):
    """Factory of lanes whose every change goes through a writer."""

    def __init__(self, state, writer):
        super().__init__(state)
        self._writer = writer

    def lane(self, workspace="w"):
        return ThroughWriter(self.plain(workspace), self._writer)


class ThroughWriter:
    """A lane, carried out by the thread of a writer."""

    def __init__(self, lane, writer):
        self._lane, self._writer = lane, writer

    def __getattr__(self, name):
        method = getattr(self._lane, name)
        return lambda *args, **named: self._writer.run(lambda: method(*args, **named))
