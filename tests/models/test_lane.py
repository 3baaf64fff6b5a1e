"""Two lanes over one ledger behave like lists after any steps."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kit.fleet.engines import ENGINES, StateOpener
from kit.server.lanes import BOT, DONE, FAILED, OWNER, LaneFactory, make_new_task
from muniment.errors import IdempotencyMismatch, QueueFull
from muniment.server.lane_tasks import TaskOutcome
from muniment.store.audit import verify
from muniment.store.state import State

REJECTIONS = {QueueFull: "full", IdempotencyMismatch: "mismatch"}
NAMES = ("one", "other")
WORKSPACES = st.sampled_from(NAMES)


@dataclass
class Row:
    """A task of the oracle."""

    number: int
    kind: str
    key: tuple | None
    content: tuple
    hour: int
    status: str = "queued"
    attempt: int = 0
    cancelled: bool = False
    committed: bool = False
    claims: int = 0


class Oracle:
    """The expected behavior of a lane, over a list, with its own numbers and without a ledger."""

    def __init__(self):
        self.rows, self.hour = [], 0

    def list_with_status(self, *statuses):
        return [row for row in self.rows if row.status in statuses]

    def submit(self, kind, owner, key, content):
        for row in self.rows:
            if key is not None and row.key == (owner, key) and self.hour - row.hour < 24:
                return row.number if row.content == (kind, content) else "mismatch"
        pending = self.list_with_status("queued", "running")
        if len(pending) == 16 or (kind != "remember" and sum(row.kind != "remember" for row in pending) == 8):
            return "full"
        self.rows.append(Row(len(self.rows), kind, key and (owner, key), (kind, content), self.hour))
        return len(self.rows) - 1

    def claim(self):
        waiting = self.list_with_status("queued")
        if self.list_with_status("running") or not waiting:
            return None
        row = waiting[0]
        row.status, row.attempt, row.claims = "running", row.attempt + 1, row.claims + 1
        return row.number, row.attempt

    def finish_attempt(self, number, claim, status):
        row = self.rows[number]
        is_current = (row.status, row.claims) == ("running", claim)
        if is_current and status == "queued" and row.cancelled and not row.committed:
            row.status = "cancelled"
        elif is_current:
            row.status, row.attempt = status, row.attempt - (status == "queued")
        return is_current

    def cancel(self, number):
        row = self.rows[number]
        if row.status in {"queued", "running"} and not row.cancelled:
            row.cancelled = True
            if row.status == "queued" and not row.committed:
                row.status = "cancelled"

    def recover(self):
        for row in self.list_with_status("running"):
            row.status = "failed" if row.attempt >= 3 + row.committed else "queued"
            if row.cancelled and not row.committed:
                row.status = "cancelled"


class Lanes(RuleBasedStateMachine):
    """Applies every step to lanes and oracles, and compares them after each one."""

    state: State
    engine: str

    @initialize()
    def begin(self):
        self.factory = LaneFactory(self.state)
        self.factory.clock.step = timedelta(0)  # Claims must differ without a time difference.
        self.lanes = {name: self.factory.make_lane(name) for name in NAMES}
        self.oracles = {name: Oracle() for name in self.lanes}
        self.ids = {name: [] for name in self.lanes}
        self.started = []

    @rule(
        name=WORKSPACES,
        kind=st.sampled_from(["remember", "remember", "forget", "dream"]),
        by=st.sampled_from([OWNER, BOT]),
        key=st.sampled_from([None, None, "k", "l"]),
        text=st.sampled_from("xy"),
        count=st.sampled_from([1, 1, 2, 9, 17]),
    )
    def submit(self, name, kind, by, key, text, count):
        for _ in range(count):
            expected = self.oracles[name].submit(kind, by, key, text)
            try:
                task = self.lanes[name].submit(make_new_task(kind, text, by=by, repeat=key)).task
            except (QueueFull, IdempotencyMismatch) as error:
                actual = REJECTIONS[type(error)]
            else:
                if task.id not in self.ids[name]:
                    self.ids[name].append(task.id)
                actual = self.ids[name].index(task.id)
            assert actual == expected

    @rule(name=WORKSPACES)
    def claim(self, name):
        task, expected = self.lanes[name].claim(), self.oracles[name].claim()
        assert (None if task is None else (self.ids[name].index(task.id), task.attempt)) == expected
        if task is not None:
            self.started.append((name, task, self.oracles[name].rows[expected[0]].claims))

    @rule(back=st.integers(0, 3), outcome=st.sampled_from([DONE, FAILED, TaskOutcome("cancelled"), None]))
    def finish_attempt(self, back, outcome):
        """Finish or requeue an attempt, also an abandoned one."""
        if back < len(self.started):
            name, task, claim = self.started[-1 - back]
            lane = self.lanes[name]
            moved = lane.requeue(task) if outcome is None else lane.finish(task, outcome)
            status = "queued" if outcome is None else outcome.status
            number = self.ids[name].index(task.id)
            assert (moved is not None) == self.oracles[name].finish_attempt(number, claim, status)

    @rule(name=WORKSPACES, data=st.data())
    def cancel(self, name, data):
        if self.ids[name]:
            number = data.draw(st.integers(0, len(self.ids[name]) - 1))
            self.lanes[name].cancel(self.ids[name][number], OWNER)
            self.oracles[name].cancel(number)

    @rule(name=WORKSPACES)
    def commit(self, name):
        """Commit all running tasks."""
        for row in self.oracles[name].list_with_status("running"):
            row.committed = True
            self.factory.record_commit(self.lanes[name].get(self.ids[name][row.number]))

    @rule(name=WORKSPACES)
    def crash(self, name):
        self.lanes[name].recover()
        self.oracles[name].recover()

    @rule()
    def advance_hours(self):
        self.factory.clock.now += timedelta(hours=5)
        for oracle in self.oracles.values():
            oracle.hour += 5

    @invariant()
    def lanes_equal_the_oracle(self):
        for name in getattr(self, "lanes", {}):
            tasks = self.factory.list_tasks(name)
            assert [task.id for task in tasks] == self.ids[name]
            seen = [(task.status, task.attempt, task.cancelled_by is not None) for task in tasks]
            assert seen == [(row.status, row.attempt, row.cancelled) for row in self.oracles[name].rows]
            assert self.factory.count_pending(name) == len(
                self.oracles[name].list_with_status("queued", "running")
            )
            assert all((task.arguments is None) == task.is_finished for task in tasks)


@pytest.fixture(scope="module", params=ENGINES)
def machine(request):
    opening = StateOpener(request.getfixturevalue("fleet") if request.param == "postgres" else None)
    with opening() as state:
        if request.param == "sqlite":
            state.ledger.rows("PRAGMA synchronous = OFF")  # Durability is not tested here.
        yield type("LanesOfAState", (Lanes,), {"state": state, "engine": request.param})
        assert verify(state).problems == ()


LONG = pytest.param(100, 60, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])


@pytest.mark.parametrize(("examples", "steps"), [(30, 40), LONG])
def test_two_lanes_behave_like_lists(machine, examples, steps):
    if machine.engine == "postgres":
        examples //= 4  # Each statement is a round trip to the server.
    size = {"max_examples": examples, "stateful_step_count": steps, "deadline": None}
    run_state_machine_as_test(machine, settings=settings(**size, suppress_health_check=list(HealthCheck)))
