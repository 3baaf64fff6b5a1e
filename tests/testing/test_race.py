"""The attacker of the races: it exchanges, counts, gives back, and never outlives who started it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
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


def test_both_sides_are_seen_while_it_lasts_and_the_honest_one_afterwards(swap, names):
    seen = set()
    with swap:
        for _ in swap.rounds(exchanges=20_000, enough=lambda: len(seen) == 2):
            seen.add((names[0] / "a.md").read_text())
    assert seen == {"inside\n", "outside\n"}
    assert swap.exchanges >= 20_000
    assert swap.problem is None
    assert not names[0].is_symlink()
    assert names[1].is_symlink()


def test_rounds_go_on_until_there_was_enough_of_both(swap):
    with swap:
        answers = iter([False] * 50 + [True])
        assert len(list(swap.rounds(exchanges=1, enough=lambda: next(answers)))) >= 50
        before = swap.exchanges
        assert next(iter(swap.rounds(exchanges=100))) == 0
        list(swap.rounds(exchanges=100))
        assert swap.exchanges >= before + 100


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


def test_an_attacker_that_was_killed_is_told_and_the_names_are_given_back(swap, names):
    with swap:
        while not names[0].is_symlink():
            pass
        os.kill(swap._process.pid, 9)
        with pytest.raises(SwapStopped, match="exit -9"):
            list(swap.rounds(exchanges=1 << 40))
    assert not names[0].is_symlink()
    assert swap.problem == "exit -9"


def test_an_attacker_that_does_not_start_is_told(swap, monkeypatch):
    monkeypatch.setattr(race.sys, "executable", "/bin/false")
    with pytest.raises(SwapStopped, match="did not start: exit 1"):
        swap.__enter__()


def test_an_attacker_that_does_not_end_is_killed(swap, monkeypatch):
    monkeypatch.setattr(race, "END_SECONDS", 0.0)
    with pytest.raises(subprocess.TimeoutExpired), swap:
        os.kill(swap._process.pid, 19)
    assert swap._process.returncode == -9


def test_a_name_that_is_being_replaced_is_waited_for(swap, names):
    path, _ = names
    with swap:
        for _ in range(20):
            path.rename(path.with_name("elsewhere"))  # Nobody else makes the name, so it comes back.
            path.with_name("elsewhere").rename(path)
        before = swap.exchanges
        list(swap.rounds(exchanges=10))
        assert swap.exchanges >= before + 10


PARENT = """
import os, sys
from pathlib import Path
from muniment.testing.race import Swap
swap = Swap(Path(sys.argv[1]), Path(sys.argv[2])).__enter__()
for _ in swap.rounds(exchanges=1_000):
    pass
print(swap._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_attacker_ends_when_its_parent_was_killed_and_gives_the_names_back(names, tmp_path):
    path, decoy = names
    make_decoy(decoy, "symlink", tmp_path / "outside")
    # As the nearest subreaper this process gets the orphan, and can wait for it.
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
    try:
        done = subprocess.run(
            [sys.executable, "-c", PARENT, path, decoy], stdout=subprocess.PIPE, check=False
        )
        assert done.returncode == -9
        _, status = os.waitpid(int(done.stdout), 0)
    finally:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    assert status == 0
    assert not path.is_symlink()


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
