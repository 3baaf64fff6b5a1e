"""The attacker of the races: it exchanges, counts, gives back, and never outlives who started it."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import threading
from contextlib import contextmanager

import pytest

from muniment.testing import race
from muniment.testing.race import Swap, SwapStopped, attack, make_decoy


@pytest.fixture
def names(tmp_path):
    """A directory with a file, and where its decoy waits."""
    (tmp_path / "root" / "folder").mkdir(parents=True)
    (tmp_path / "root" / "folder" / "a.md").write_text("inside\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.md").write_text("outside\n")
    return tmp_path / "root" / "folder", tmp_path / "decoy"


@pytest.fixture
def swap(names, tmp_path):
    path, decoy = names
    return Swap(path, make_decoy(decoy, "symlink", tmp_path / "outside"))


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo"])
def test_a_file_is_exchanged_with_any_kind(tmp_path, kind):
    path = tmp_path / "a.md"
    path.write_text("inside\n")
    (tmp_path / "secret.md").write_text("outside\n")
    kinds = set()
    with Swap(path, make_decoy(tmp_path / "decoy", kind, tmp_path / "secret.md")) as swap:
        for _ in swap.rounds(exchanges=5_000, enough=lambda: len(kinds) == 2):
            found = path.lstat()
            kinds.add((found.st_mode, found.st_ino))
    assert len(kinds) == 2
    assert path.read_text() == "inside\n"


def test_an_unknown_kind_of_decoy_is_an_error(tmp_path):
    with pytest.raises(KeyError):
        make_decoy(tmp_path / "decoy", "mkdir", "")


def test_an_attacker_that_cannot_go_on_says_why(names):
    path, _ = names
    swap = Swap(path, path / "a.md")  # A directory cannot trade places with what is in it.
    with swap, pytest.raises(SwapStopped, match="EINVAL"):
        list(swap.rounds(exchanges=1))
    assert swap.problem == "cannot exchange: EINVAL"


def test_an_attacker_that_does_not_start_is_told(swap, monkeypatch):
    monkeypatch.setattr(race.sys, "executable", "/bin/false")
    with pytest.raises(SwapStopped, match="did not start: exit 1"):
        swap.__enter__()


def test_an_attacker_that_does_not_end_is_killed(swap, monkeypatch):
    monkeypatch.setattr(race, "END_SECONDS", 0.0)
    with pytest.raises(subprocess.TimeoutExpired), swap:
        os.kill(swap._process.pid, 19)
    assert swap._process.returncode == -9


def test_where_there_is_one_processor_both_sides_come_to_their_turn(names, tmp_path):
    make_decoy(names[1], "symlink", tmp_path / "outside")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        alone = Swap(*names)
        seen = set()
        with alone:
            for _ in alone.rounds(exchanges=5_000):
                seen.add((names[0] / "a.md").read_text())
    finally:
        os.sched_setaffinity(0, before)
    assert len(seen) == 2


# -- the attacker's own loop, in a thread of this process ----------------------------------------------


@pytest.fixture
def attacker(names, tmp_path):
    """Starts the loop, hands out a way to read its two cells, and ends it."""
    make_decoy(names[1], "symlink", tmp_path / "outside")
    shared, (ready, told), (end, stop) = os.memfd_create("cells"), os.pipe(), os.pipe()
    os.ftruncate(shared, 16)
    descriptors = {"shared": shared, "ready": told, "end": end}

    def cells():
        return struct.unpack("QQ", os.pread(shared, 16, 0))

    @contextmanager
    def started(path, decoy):
        thread = threading.Thread(target=attack, args=(str(path), str(decoy)), kwargs=descriptors)
        thread.start()
        assert os.read(ready, 1) == b"r"
        try:
            yield cells
        finally:
            os.close(stop)
            thread.join()

    yield started
    for descriptor in (ready, told, end, shared):
        os.close(descriptor)


@pytest.mark.parametrize("processors", [1, None])
def test_the_loop_counts_and_ends_with_its_pipe(attacker, names, processors):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:processors])
    try:
        with attacker(*names) as cells:
            while cells()[0] < 100:
                os.sched_yield()
    finally:
        os.sched_setaffinity(0, before)
    assert cells()[1] == 0
    assert not names[0].is_symlink()


def test_the_loop_waits_for_a_name_that_is_gone_and_ends_even_so(attacker, names):
    names[0].rename(names[0].with_name("elsewhere"))
    with attacker(*names) as cells:
        pass
    assert cells() == (0, 0)


def test_the_loop_says_what_stopped_it(attacker, names):
    with attacker(names[0], names[0] / "a.md") as cells:
        while not cells()[1]:
            os.sched_yield()
    assert cells() == (0, errno.EINVAL)
