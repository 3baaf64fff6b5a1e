"""The attacker of the races: it exchanges, counts, gives back, and never outlives who started it."""

from __future__ import annotations

import os
import subprocess

import pytest

from muniment.testing import race
from muniment.testing.race import Swap, SwapStopped, make_decoy


@pytest.fixture
def names(tmp_path):
    """A directory with a file, and its decoy."""
    for top, text in (("root/folder", "inside\n"), ("outside", "outside\n")):
        (tmp_path / top).mkdir(parents=True)
        (tmp_path / top / "a.md").write_text(text)
    return tmp_path / "root" / "folder", make_decoy(tmp_path / "decoy", "symlink", tmp_path / "outside")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["hardlink", "symlink", "fifo"])
def test_a_file_is_exchanged_with_any_kind_and_given_back(names, tmp_path, kind):
    path, secret, kinds = names[0] / "a.md", tmp_path / "outside" / "a.md", set()
    with Swap(path, make_decoy(tmp_path / kind, kind, secret)) as swap:
        for _ in swap.rounds(exchanges=100, enough=lambda: len(kinds) == 2):
            found = path.lstat()
            kinds.add((found.st_mode, found.st_ino))
    assert (len(kinds), path.read_text()) == (2, "inside\n")
    with pytest.raises(KeyError):
        make_decoy(tmp_path / "other", "mkdir", "")


def test_an_attacker_that_cannot_start_go_on_or_end_is_told_or_killed(names, monkeypatch):
    path, swap = names[0], Swap(*names)
    stuck = Swap(path, path / "a.md")  # A directory cannot trade places with what is in it.
    with stuck, pytest.raises(SwapStopped, match="EINVAL"):
        list(stuck.rounds(exchanges=1))
    assert stuck.problem == "cannot exchange: EINVAL"
    with monkeypatch.context() as changed:
        changed.setattr(race, "END_SECONDS", 0.0)
        os.kill(swap.__enter__()._process.pid, 19)
        with pytest.raises(subprocess.TimeoutExpired):
            swap.__exit__()
    assert swap._process.returncode == -9
    monkeypatch.setattr(race.sys, "executable", "/bin/false")
    with pytest.raises(SwapStopped, match="did not start: exit 1"):
        Swap(*names).__enter__()
    monkeypatch.undo()
    path.rename(path.with_name("elsewhere"))  # It waits for a name that is gone, and ends even so.
    with Swap(*names) as swap:
        pass
    assert (swap.exchanges, swap.problem) == (0, None)
