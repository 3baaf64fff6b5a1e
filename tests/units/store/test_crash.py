"""Kill -9: a commit is entirely there or entirely absent, whenever its process dies."""

from __future__ import annotations

import pytest

from kit.store.killed import SCENARIOS, steps


@pytest.mark.parametrize(
    ("scenario", "stride"),
    [("everything", 60), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in SCENARIOS)],
)
def test_a_commit_killed_at_any_step_is_all_there_or_not_at_all(tmp_path, scenario, stride):
    found = steps(tmp_path, SCENARIOS[scenario], stride)
    assert found[False] > 20 // stride
    assert found[True] >= (stride == 1)  # Few steps come after the one that decides.
