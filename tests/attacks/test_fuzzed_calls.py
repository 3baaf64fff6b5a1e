"""Any call of any shape to the five tools: an outcome in words, the same with a worker and without one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.memories import CANARY, make_roots, strict
from muniment.errors import PathEscape, Refusal, ToolError
from muniment.names import Via
from muniment.sandbox import Sandbox
from muniment.testing.strategies import any_calls, call_sequences, paths_in, plant, trees, unsafe_paths
from muniment.testing.witness import differences, photograph, sightings

CODES = {error.code for kind in (Refusal, ToolError) for error in kind.__subclasses__()} | {PathEscape.code}


@st.composite
def scenes(draw):
    """A tree for the scope `user`, and calls that aim at it."""
    tree = draw(trees())
    paths = unsafe_paths([*paths_in(tree), "note.md", "topic", "a.md"])
    return tree, draw(call_sequences(paths) | st.lists(any_calls(paths), min_size=1, max_size=6))


def joined(value):
    """Two halves of a character side by side are one for JSON; so a model can send nothing else."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, dict):
        return {joined(key): joined(part) for key, part in value.items()}
    return [joined(part) for part in value] if isinstance(value, list) else value


def check_outcome(outcome):
    assert (outcome.verdict == "allow") == (outcome.code is None)
    assert outcome.code is None or outcome.code in CODES
    assert (outcome.code == "path_escape") == (outcome.via is not None)
    assert outcome.via is None or outcome.via in set(Via)
    if outcome.verdict != "allow":
        assert outcome.text.isprintable()
        assert len(outcome.text) < 3_000
    outcome.text.encode()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(scenes())
@settings(max_examples=200)
def test_any_calls_over_any_tree_come_to_the_same_outcomes_with_a_worker_and_without(scene):
    tree, calls = scene
    with tempfile.TemporaryDirectory() as base:
        roots = make_roots(Path(base))
        plant(tree, roots["user"], outside=Path(base) / "outside")
        trees_before = {name: Path(base) / name for name in ("outside", "user", "project")}
        before = photograph(trees_before)
        policy = strict(on_escape="refuse", require="none")
        with Sandbox(policy, roots) as behind, Sandbox(policy, roots, in_process=True) as here:
            for tool, arguments in calls:
                tool, arguments = joined(tool), joined(arguments)  # noqa: PLW2901 - what a model can really send
                outcome = here.call(tool, arguments)
                check_outcome(outcome)
                assert behind.call(tool, arguments) == outcome
                assert CANARY not in outcome.text
                assert str(base) not in outcome.text
            changes = here.changes()
            assert behind.changes() == changes
        after = photograph(trees_before)
        assert differences(before, after, reads=False) == []
        assert [line for line in differences(before, after) if line.startswith("'outside")] == []
        assert sightings(CANARY, {"changes": changes}) == []
