"""A task's budget only shrinks, over all its attempts."""

from __future__ import annotations

import pytest

from muniment.agent.model import Budget
from muniment.confine.cancel import Cancel
from muniment.errors import DeadlineExceeded
from muniment.policy.decide import Limits
from muniment.testing.minds import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def cancel():
    with Cancel() as cancel:
        yield cancel


def test_turns_and_calls_run_out_and_never_come_back(clock, cancel):
    budget = Budget(Limits(turns=2, tool_calls=3), cancel, clock)
    assert [budget.spend_turn() for _ in range(4)] == [True, True, False, False]
    assert [budget.spend_call() for _ in range(5)] == [True, True, True, False, False]
    assert (budget.turns, budget.turns_left, budget.calls_left) == (2, 0, 0)


@pytest.mark.threat("T-RUN-01", control="kept_deadline")
def test_time_runs_out_at_the_deadline_exactly(clock, cancel):
    budget = Budget(Limits(seconds=10), cancel, clock)
    clock.advance(9.5)
    budget.check()
    assert (budget.seconds, budget.seconds_left) == (9.5, 0.5)
    clock.advance(0.5)
    with pytest.raises(DeadlineExceeded):
        budget.check()
    clock.advance(100)
    assert budget.seconds_left == 0.0
