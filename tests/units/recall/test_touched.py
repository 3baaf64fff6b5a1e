"""What is told about the files that are touched: looked up beside the loop, each path and each entry once."""

from __future__ import annotations

import errno
import math
from contextlib import ExitStack, closing, contextmanager

import pytest

from kit.recall.places import WAIT, Gate, entry, ground, nothing_left_behind, paths, telling
from muniment.recall.context import Budgets, StaticContext
from muniment.recall.session import MAX_PATHS, PATHS_AT_ONCE, Prefetch, Touched

ENTRIES = {
    "project/billing/rounding.md": entry("Rounding", "Half to even."),
    "project/billing/tax.md": entry("Tax", "Nineteen in a hundred."),
    "project/deploy/day.md": entry("Deploy day", "On Tuesdays."),
}
BILLING = {"project/billing/rounding.md", "project/billing/tax.md"}


class Stage:
    """What `Touched` is made of, with what was looked up, and gates before it."""

    def __init__(self, made, recaller, stack):
        self.made, self._recaller, self._stack = made, recaller, stack
        self.looked_up, self.gates, self.known = [], [], set()

    def touched(self, budget=1_000, parent=None, **more):
        self.prefetch = self._stack.enter_context(closing(Prefetch(parent=parent)))
        static = StaticContext(self._recaller, Budgets())
        about = static.about

        def behind_a_gate(unsafe_paths, exclude, tokens, patience):
            self.looked_up.append((list(unsafe_paths), frozenset(exclude), tokens))
            if self.gates:
                self.gates.pop(0).wait(patience)
            return about(unsafe_paths, exclude, tokens, patience)

        static.about = behind_a_gate
        return Touched(static, self.prefetch, budget, lambda: self.known, **more)

    def gate(self):
        gate = self._stack.enter_context(closing(Gate()))
        self.gates.append(gate)
        return gate

    def settle(self):
        for thread in list(self.prefetch._threads):
            thread.join(WAIT)
            assert not thread.is_alive()

    def take(self, touched):
        """What is to be told once what runs has ended."""
        self.settle()
        return touched.take()


@contextmanager
def staged(base, entries=ENTRIES):
    with (
        nothing_left_behind(),
        ground(base, entries=entries) as made,
        made.recaller() as recaller,
        ExitStack() as stack,
    ):
        yield Stage(made, recaller, stack)


@pytest.fixture
def stage(tmp_path):
    with staged(tmp_path) as stage:
        yield stage


@pytest.fixture
def told(caplog):
    return telling(caplog)


def test_what_is_about_a_path_is_told_once_it_is_there_and_only_once(stage):
    touched = stage.touched()
    touched.add("src/billing/invoice.py")
    recalled = stage.take(touched)
    assert set(paths(recalled)) == BILLING
    assert touched.take() is None
    for path in ("src/billing/invoice.py", "src/billing/other.py"):
        touched.add(path)
        assert stage.take(touched) is None
    assert [unsafe_paths for unsafe_paths, *_ in stage.looked_up] == [
        ["src/billing/invoice.py"],
        ["src/billing/other.py"],
    ]
    assert touched.told == recalled.keys


def test_nothing_waits_for_a_lookup_that_hangs_and_what_is_touched_meanwhile_comes_with_the_next(stage):
    touched, gate = stage.touched(), stage.gate()
    touched.add("deploy/a.py")
    assert gate.reached.wait(WAIT)
    for number in range(3):
        touched.add(f"billing/{number}.py")
        assert touched.take() is None
    gate.open()
    assert paths(stage.take(touched)) == ["project/deploy/day.md"]
    assert set(paths(stage.take(touched))) == BILLING
    assert [unsafe_paths for unsafe_paths, *_ in stage.looked_up] == [
        ["deploy/a.py"],
        ["billing/0.py", "billing/1.py", "billing/2.py"],
    ]


def test_what_was_told_otherwise_while_it_was_looked_up_is_not_told_again_and_the_rest_is(stage):
    touched = stage.touched()
    touched.add("billing/a.py")
    stage.settle()
    stage.known = {stage.made.key("project/billing/tax.md")}
    assert touched.take() is None
    assert paths(stage.take(touched)) == ["project/billing/rounding.md"]
    assert [exclude for _, exclude, _ in stage.looked_up] == [frozenset(), stage.known]


def test_a_lookup_that_ran_when_the_conversation_began_anew_is_cancelled_and_not_told(stage):
    touched, gate = stage.touched(), stage.gate()
    touched.add("deploy/a.py")
    assert gate.reached.wait(WAIT)
    touched.begin_anew()
    stage.settle()  # Though its gate stays shut.
    assert touched.take() is None
    touched.add("billing/a.py")
    assert set(paths(stage.take(touched))) == BILLING


def test_a_lookup_that_fails_is_not_told_and_the_next_one_goes_on(stage, told):
    touched = stage.touched()
    touched.add(None)
    assert stage.take(touched) is None
    touched.add("deploy/a.py")
    assert paths(stage.take(touched)) == ["project/deploy/day.md"]
    assert [each["event"] for each in told()] == ["memory_retrieval_failed"]


def test_a_tool_that_names_all_files_of_a_disk_is_looked_after_in_parts_and_up_to_a_bound(stage):
    touched, gate = stage.touched(), stage.gate()
    for number in range(MAX_PATHS + 500):
        touched.add(f"src/{number}.py")
    touched.add("billing/a.py")
    gate.open()
    for _ in range(math.ceil(MAX_PATHS / PATHS_AT_ONCE) + 5):
        assert stage.take(touched) is None
    looked_up = [path for unsafe_paths, *_ in stage.looked_up for path in unsafe_paths]
    assert looked_up == [f"src/{number}.py" for number in range(MAX_PATHS)]
    assert max(len(unsafe_paths) for unsafe_paths, *_ in stage.looked_up) == PATHS_AT_ONCE


def test_without_a_descriptor_left_a_path_is_looked_up_later(stage, told, monkeypatch):
    touched = stage.touched()

    def exhausted(_work):
        raise OSError(errno.EMFILE, "none left")

    with monkeypatch.context() as scarce:
        scarce.setattr(stage.prefetch, "begin", exhausted)
        touched.add("deploy/a.py")
        assert touched.take() is None
    assert [each["event"] for each in told()] == ["recall_not_begun"] * 2
    assert touched.take() is None  # It is begun here.
    assert paths(stage.take(touched)) == ["project/deploy/day.md"]
