"""Two lanes over one ledger do what a list does, whatever is done to them in whatever order."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kit.fleet.engines import ENGINES, Opening
from kit.server.ledgered import BOT, DONE, FAILED, OWNER, Ledgered, asked
from muniment.errors import IdempotencyMismatch, QueueFull
from muniment.server.lane_tasks import Ended
from muniment.store.audit import verify
from muniment.store.state import State

REFUSED = {QueueFull: "full", IdempotencyMismatch: "mismatch"}
NAMES = ("one", "other")
WORKSPACES = st.sampled_from(NAMES)


@dataclass
class Row:
    """A task as the oracle has it."""

    number: int
    kind: str
    key: tuple | None
    what: tuple
    hour: int
    status: str = "queued"
    attempt: int = 0
    cancelled: bool = False
    committed: bool = False
    claims: int = 0


class Oracle:
    """What a lane is to do, over a list: it knows no ledger, and its numbers are its own."""

    def __init__(self):
        self.rows, self.hour = [], 0

    def of(self, *statuses):
        return [row for row in self.rows if row.status in statuses]

    def submit(self, kind, who, key, what):
        for row in self.rows:
            if key is not None and row.key == (who, key) and self.hour - row.hour < 24:
                return row.number if row.what == (kind, what) else "mismatch"
        pending = self.of("queued", "running")
        if len(pending) == 16 or (kind != "remember" and sum(row.kind != "remember" for row in pending) == 8):
            return "full"
        self.rows.append(Row(len(self.rows), kind, key and (who, key), (kind, what), self.hour))
        return len(self.rows) - 1

    def claim(self):
        waiting = self.of("queued")
        if self.of("running") or not waiting:
            return None
        row = waiting[0]
        row.status, row.attempt, row.claims = "running", row.attempt + 1, row.claims + 1
        return row.number, row.attempt

    def ends(self, number, claim, status):
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
        for row in self.of("running"):
            row.status = "failed" if row.attempt >= 3 + row.committed else "queued"
            if row.cancelled and not row.committed:
                row.status = "cancelled"


class Lanes(RuleBasedStateMachine):
    """Does everything to both, and looks at all of it after each step."""

    state: State
    engine: str

    @initialize()
    def begin(self):
        self.factory = Ledgered(self.state)
        self.factory.clock.step = timedelta(0)  # Nothing may lean on the time to tell two claims apart.
        self.lanes = {name: self.factory.lane(name) for name in NAMES}
        self.oracles = {name: Oracle() for name in self.lanes}
        self.ids = {name: [] for name in self.lanes}
        self.begun = []

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
                task = self.lanes[name].submit(asked(kind, text, by=by, repeat=key)).task
            except (QueueFull, IdempotencyMismatch) as refused:
                got = REFUSED[type(refused)]
            else:
                if task.id not in self.ids[name]:
                    self.ids[name].append(task.id)
                got = self.ids[name].index(task.id)
            assert got == expected

    @rule(name=WORKSPACES)
    def claim(self, name):
        task, expected = self.lanes[name].claim(), self.oracles[name].claim()
        assert (None if task is None else (self.ids[name].index(task.id), task.attempt)) == expected
        if task is not None:
            self.begun.append((name, task, self.oracles[name].rows[expected[0]].claims))

    @rule(back=st.integers(0, 3), ended=st.sampled_from([DONE, FAILED, Ended("cancelled"), None]))
    def ends(self, back, ended):
        """An attempt, also one that was given up, ends or is put back."""
        if back < len(self.begun):
            name, task, claim = self.begun[-1 - back]
            lane = self.lanes[name]
            moved = lane.requeue(task) if ended is None else lane.finish(task, ended)
            status = "queued" if ended is None else ended.status
            number = self.ids[name].index(task.id)
            assert (moved is not None) == self.oracles[name].ends(number, claim, status)

    @rule(name=WORKSPACES, data=st.data())
    def cancel(self, name, data):
        if self.ids[name]:
            number = data.draw(st.integers(0, len(self.ids[name]) - 1))
            self.lanes[name].cancel(self.ids[name][number], OWNER)
            self.oracles[name].cancel(number)

    @rule(name=WORKSPACES)
    def commit(self, name):
        """What runs comes as far as its commit."""
        for row in self.oracles[name].of("running"):
            row.committed = True
            self.factory.committed(self.lanes[name].get(self.ids[name][row.number]))

    @rule(name=WORKSPACES)
    def crash(self, name):
        self.lanes[name].recover()
        self.oracles[name].recover()

    @rule()
    def hours_pass(self):
        self.factory.clock.now += timedelta(hours=5)
        for oracle in self.oracles.values():
            oracle.hour += 5

    @invariant()
    def both_are_as_the_oracle_has_them(self):
        for name in getattr(self, "lanes", {}):
            tasks = self.factory.tasks(name)
            assert [task.id for task in tasks] == self.ids[name]
            seen = [(task.status, task.attempt, task.cancelled_by is not None) for task in tasks]
            assert seen == [(row.status, row.attempt, row.cancelled) for row in self.oracles[name].rows]
            assert self.factory.pending(name) == len(self.oracles[name].of("queued", "running"))
            assert all((task.arguments is None) == task.is_over for task in tasks)


@pytest.fixture(scope="module", params=ENGINES)
def machine(request):
    opening = Opening(request.getfixturevalue("fleet") if request.param == "postgres" else None)
    with opening() as state:
        if request.param == "sqlite":
            state.ledger.rows("PRAGMA synchronous = OFF")  # What is durable is not the question here.
        yield type("LanesOfAState", (Lanes,), {"state": state, "engine": request.param})
        assert verify(state).problems == ()


LONG = pytest.param(100, 60, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])


@pytest.mark.parametrize(("examples", "steps"), [(30, 40), LONG])
def test_two_lanes_do_what_a_list_does(machine, examples, steps):
    if machine.engine == "postgres":
        examples //= 4  # Each statement goes to the server and back.
    size = {"max_examples": examples, "stateful_step_count": steps, "deadline": None}
    run_state_machine_as_test(machine, settings=settings(**size, suppress_health_check=list(HealthCheck)))
