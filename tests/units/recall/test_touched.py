"""Entries about touched files: searched in the background, each path and each entry once."""

import errno
import math
from unittest.mock import Mock

import pytest

from kit.recall.contexts import WAIT, Gate, format_entry, join_threads, list_paths, open_stage
from muniment.recall.context import Budgets, StaticContext
from muniment.recall.prefetch import Prefetch
from muniment.recall.touched_paths import MAX_PATHS, PATHS_AT_ONCE, TouchedPaths

BILLING, DAY = {"project/billing/rounding.md", "project/billing/tax.md"}, ["project/deploy/day.md"]
ENTRIES = {path: format_entry(path, "Half to even, on Tuesdays.") for path in (*BILLING, *DAY)}


class Lookups:
    """The parts of `TouchedPaths`, with recorded lookups and gates before them."""

    def __init__(self, stage):
        self.stage, self.looked_up, self.gates, self.known = stage, [], [], set()
        self.prefetch, static = stage.register(Prefetch()), StaticContext(stage.recaller, Budgets())
        find_for_paths = static.find_for_paths

        def look_up_with_gate(unsafe_paths, exclude, *args):
            self.looked_up.append((list(unsafe_paths), frozenset(exclude)))
            if self.gates:
                self.gates.pop(0).wait(args[-1])
            return find_for_paths(unsafe_paths, exclude, *args)

        static.find_for_paths = look_up_with_gate
        self.touched = TouchedPaths(static, self.prefetch, 1_000, lambda: self.known)

    def start_hanging(self, path):
        """Start a lookup and return the gate that blocks it."""
        self.gates.append(gate := self.stage.register(Gate()))
        self.touched.add(path)
        assert gate.reached.wait(WAIT)
        return gate

    def take(self):
        """Return the entries to inject after the running lookups end."""
        join_threads(self.prefetch)
        return self.touched.take_result()


@pytest.fixture
def lookups(tmp_path):
    with open_stage(tmp_path, ENTRIES) as stage:
        yield Lookups(stage)


def test_entries_about_a_path_are_returned_once(lookups):
    touched, names = lookups.touched, ["src/billing/invoice.py", "src/billing/other.py"]
    touched.add(names[0])
    recalled = lookups.take()
    assert set(list_paths(recalled)) == BILLING
    assert touched.take_result() is None
    assert touched.injected == recalled.keys
    for path in names:
        touched.add(path)
        assert lookups.take() is None
    assert [unsafe_paths for unsafe_paths, _ in lookups.looked_up] == [[names[0]], [names[1]]]


def test_hanging_lookup_blocks_nothing_and_new_paths_follow(lookups):
    gate, names = lookups.start_hanging("deploy/a.py"), [f"billing/{number}.py" for number in range(3)]
    for name in names:
        lookups.touched.add(name)
        assert lookups.touched.take_result() is None
    gate.open()
    first, second = lookups.take(), lookups.take()
    assert (list_paths(first), set(list_paths(second))) == (DAY, BILLING)
    assert [unsafe_paths for unsafe_paths, _ in lookups.looked_up] == [["deploy/a.py"], names]
    assert lookups.touched.spent == first.tokens + second.tokens


def test_entry_injected_during_the_lookup_is_not_repeated(lookups):
    lookups.touched.add("billing/a.py")
    join_threads(lookups.prefetch)
    lookups.known = {lookups.stage.bench.read_key("project/billing/tax.md")}
    assert lookups.touched.take_result() is None
    assert list_paths(lookups.take()) == ["project/billing/rounding.md"]
    assert [exclude for _, exclude in lookups.looked_up] == [frozenset(), lookups.known]


def test_lookup_of_a_reset_conversation_is_cancelled(lookups):
    lookups.start_hanging("deploy/a.py")
    lookups.touched.reset()
    assert lookups.take() is None  # Although its gate stays closed.
    lookups.touched.add("billing/a.py")
    assert set(list_paths(lookups.take())) == BILLING


def test_failed_lookup_is_logged_and_later_ones_work(lookups, logged_events, monkeypatch):
    touched = lookups.touched
    touched.add(None)
    assert lookups.take() is None
    with monkeypatch.context() as scarce:
        scarce.setattr(lookups.prefetch, "begin", Mock(side_effect=OSError(errno.EMFILE, "none left")))
        touched.add("deploy/a.py")
        assert touched.take_result() is None
    assert touched.take_result() is None  # It starts here.
    assert list_paths(lookups.take()) == DAY
    assert [each["event"] for each in logged_events()] == [
        "memory_retrieval_failed",
        *["recall_not_begun"] * 2,
    ]


def test_many_touched_files_are_looked_up_in_bounded_parts(lookups, monkeypatch):
    monkeypatch.setattr("muniment.recall.touched_paths.MAX_PATHS", bound := 3 * PATHS_AT_ONCE + 1)
    for path in (*(f"src/{number}.py" for number in range(bound + 20)), "billing/a.py"):
        lookups.touched.add(path)
    assert {lookups.take() for _ in range(math.ceil(bound / PATHS_AT_ONCE) + 5)} == {None}
    looked_up = [path for unsafe_paths, _ in lookups.looked_up for path in unsafe_paths]
    assert looked_up == [f"src/{number}.py" for number in range(bound)]
    assert max(len(unsafe_paths) for unsafe_paths, _ in lookups.looked_up) == PATHS_AT_ONCE < MAX_PATHS
