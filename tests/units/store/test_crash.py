"""Kill -9: a commit is entirely there or entirely absent, whenever its process dies."""

from __future__ import annotations

import pytest

from kit.store.killed import steps


@pytest.mark.parametrize(
    "stride", [60, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])]
)
def test_a_commit_killed_at_any_step_is_all_there_or_not_at_all(tmp_path, stride):
    found = steps(tmp_path, stride)
    assert found[False] > 20 // stride
    assert found[True] >= (stride == 1)  # Few steps come after the one that decides.
