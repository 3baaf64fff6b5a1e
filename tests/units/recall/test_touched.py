"""What is told about the files that are touched: looked up beside the loop, each path and each entry once."""

import errno
import math
from unittest.mock import Mock

import pytest

from kit.recall.places import WAIT, Gate, entry_of, paths, settle, staged
from muniment.recall.context import Budgets, StaticContext
from muniment.recall.prefetch import Prefetch
from muniment.recall.touched import MAX_PATHS, PATHS_AT_ONCE, Touched

BILLING, DAY = {"project/billing/rounding.md", "project/billing/tax.md"}, ["project/deploy/day.md"]
ENTRIES = {path: entry_of(path, "Half to even, on Tuesdays.") for path in (*BILLING, *DAY)}


class Lookups:
    """What `Touched` is made of, with what was looked up, and gates before it."""

    def __init__(self, stage):
        self.stage, self.looked_up, self.gates, self.known = stage, [], [], set()
        self.prefetch, static = stage.closing(Prefetch()), StaticContext(stage.recaller, Budgets())
        about = static.about

        def behind_a_gate(unsafe_paths, exclude, *given):
            self.looked_up.append((list(unsafe_paths), frozenset(exclude)))
            if self.gates:
                self.gates.pop(0).wait(given[-1])
            return about(unsafe_paths, exclude, *given)

        static.about = behind_a_gate
        self.touched = Touched(static, self.prefetch, 1_000, lambda: self.known)

    def hanging(self, path):
        """The gate before a lookup that has begun."""
        self.gates.append(gate := self.stage.closing(Gate()))
        self.touched.add(path)
        assert gate.reached.wait(WAIT)
        return gate

    def take(self):
        """What is to be told once what runs has ended."""
        settle(self.prefetch)
        return self.touched.take()


@pytest.fixture
def lookups(tmp_path):
    with staged(tmp_path, ENTRIES) as stage:
        yield Lookups(stage)


def test_what_is_about_a_path_is_told_once_it_is_there_and_only_once(lookups):
    touched, names = lookups.touched, ["src/billing/invoice.py", "src/billing/other.py"]
    touched.add(names[0])
    recalled = lookups.take()
    assert set(paths(recalled)) == BILLING
    assert touched.take() is None
    assert touched.told == recalled.keys
    for path in names:
        touched.add(path)
        assert lookups.take() is None
    assert [unsafe_paths for unsafe_paths, _ in lookups.looked_up] == [[names[0]], [names[1]]]


def test_nothing_waits_for_a_lookup_that_hangs_and_what_is_touched_meanwhile_comes_with_the_next(lookups):
    gate, names = lookups.hanging("deploy/a.py"), [f"billing/{number}.py" for number in range(3)]
    for name in names:
        lookups.touched.add(name)
        assert lookups.touched.take() is None
    gate.open()
    first, second = lookups.take(), lookups.take()
    assert (paths(first), set(paths(second))) == (DAY, BILLING)
    assert [unsafe_paths for unsafe_paths, _ in lookups.looked_up] == [["deploy/a.py"], names]
    assert lookups.touched.spent == first.tokens + second.tokens


def test_what_was_told_otherwise_while_it_was_looked_up_is_not_told_again_and_the_rest_is(lookups):
    lookups.touched.add("billing/a.py")
    settle(lookups.prefetch)
    lookups.known = {lookups.stage.made.key("project/billing/tax.md")}
    assert lookups.touched.take() is None
    assert paths(lookups.take()) == ["project/billing/rounding.md"]
    assert [exclude for _, exclude in lookups.looked_up] == [frozenset(), lookups.known]


def test_a_lookup_that_ran_when_the_conversation_began_anew_is_cancelled_and_not_told(lookups):
    lookups.hanging("deploy/a.py")
    lookups.touched.begin_anew()
    assert lookups.take() is None  # Though its gate stays shut.
    lookups.touched.add("billing/a.py")
    assert set(paths(lookups.take())) == BILLING


def test_a_lookup_that_fails_or_finds_no_descriptor_is_not_told_and_goes_on_later(lookups, told, monkeypatch):
    touched = lookups.touched
    touched.add(None)
    assert lookups.take() is None
    with monkeypatch.context() as scarce:
        scarce.setattr(lookups.prefetch, "begin", Mock(side_effect=OSError(errno.EMFILE, "none left")))
        touched.add("deploy/a.py")
        assert touched.take() is None
    assert touched.take() is None  # It is begun here.
    assert paths(lookups.take()) == DAY
    assert [each["event"] for each in told()] == ["memory_retrieval_failed", *["recall_not_begun"] * 2]


def test_a_tool_that_names_all_files_of_a_disk_is_followed_in_parts_to_a_bound(lookups, monkeypatch):
    monkeypatch.setattr("muniment.recall.touched.MAX_PATHS", bound := 3 * PATHS_AT_ONCE + 1)
    for path in (*(f"src/{number}.py" for number in range(bound + 20)), "billing/a.py"):
        lookups.touched.add(path)
    assert {lookups.take() for _ in range(math.ceil(bound / PATHS_AT_ONCE) + 5)} == {None}
    looked_up = [path for unsafe_paths, _ in lookups.looked_up for path in unsafe_paths]
    assert looked_up == [f"src/{number}.py" for number in range(bound)]
    assert max(len(unsafe_paths) for unsafe_paths, _ in lookups.looked_up) == PATHS_AT_ONCE < MAX_PATHS
