"""Attacks on the store: cut records, concurrent threads, kills during recovery, planted names."""

import signal
import sqlite3
import threading
from contextlib import closing
from unittest.mock import patch

import pytest

from kit.store.ground import STRICT, by, lay, new, opened, patience
from kit.store.killed import BEFORE, recovered
from kit.store.processes import die, killed
from muniment.kernel import _directory
from muniment.kernel.names import Trust
from muniment.store import erase as erasing
from muniment.store import upkeep
from muniment.store.audit import verify
from muniment.store.catalog import Look, View
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import root_key, source_of
from muniment.store.rows import Assessed
from muniment.store.upkeep import rebuild

CUTS = {
    "the head set back": "DELETE FROM record WHERE seq > 3; UPDATE head SET seq = 3",
    "the head gone": "DELETE FROM record WHERE seq > 3; DELETE FROM head",
    "the head kept": "DELETE FROM record WHERE seq > 3",
    "only the head gone": "DELETE FROM head",
    "the head far ahead": "UPDATE head SET seq = 99",
    "everything": "DELETE FROM record; DELETE FROM head",
}


@pytest.mark.parametrize("cut", CUTS)
def test_cut_audit_log_is_found_after_further_commits(ground, cut):
    """Regression: the next record was chained to what the forger had left, and its head marked that as the
    end.
    """
    for number in range(4):
        ground.commit(new(f"user/n{number}.md", b"%d\n" % number))
    assert verify(ground.state).problems == ()
    with closing(sqlite3.connect(ground.state.ledger.path, isolation_level=None)) as forger:
        forger.executescript(CUTS[cut])
    if cut == "everything":
        (problem,) = verify(ground.state).problems
        assert "4 of the commits" in problem
    for number in range(2):
        assert ground.commit(new(f"user/after-{number}.md")).changes
        assert verify(ground.state).problems != ()


def test_erasure_and_catalog_refresh_do_not_deadlock(ground, monkeypatch):
    """Regression: the erasure held the ledger lock, the refresh the catalog lock, and each waited for the
    other.
    """
    ground.commit(new("user/x.md", b"a text that has to go away\n"))
    inside, refreshing, real = threading.Event(), threading.Event(), erasing.view_of
    project, key = ground.roots["project"], root_key(ground.state, ground.roots["project"])

    def view(*arguments, **more):
        inside.set()
        refreshing.wait(10)
        return real(*arguments, **more)

    def assess(rel, digest, _data):
        refreshing.set()
        source_of(ground.state, key, rel, digest)
        return Assessed(Trust.OWNER)

    def refresh_view():
        inside.wait(10)
        View(ground.state.catalog, key, project, assess).refresh("another", Look())

    monkeypatch.setattr(erasing, "view_of", view)
    where = erasing.EraseGround(ground.state, ground.roots, STRICT, patience(20))
    threads = [threading.Thread(target=refresh_view, daemon=True)]
    threads.append(threading.Thread(target=erasing.erase, args=("user/x.md", where), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert not any(thread.is_alive() for thread in threads)
    assert not (ground.user / "x.md").exists()


def test_interrupt_after_a_finished_commit_keeps_its_files(ground):
    """Regression: the ledger recorded the commit, the files were gone, and a repeat of the task failed."""
    real = LedgerJournal.finish
    interrupt_commit = lambda *arguments: (real(*arguments), signal.raise_signal(signal.SIGINT))  # noqa: E731
    with patch.object(LedgerJournal, "finish", interrupt_commit), pytest.raises(KeyboardInterrupt):
        ground.commit(new("user/n.md"), run=by("task-1"))
    assert ground.commit(new("user/n.md"), run=by("task-1")).repeated
    assert (ground.user / "n.md").read_bytes() == b"new\n"


# -- recovery under attack: it is killed itself, or no other commit follows


@pytest.fixture
def interrupted_memory(tmp_path):
    """A memory with indexes in which a commit was killed just before it finished."""
    where = tmp_path / "tree", tmp_path / "state"
    lay(where[0], BEFORE)
    with opened(*where) as ground:
        ground.commit(new("user/first.md"), new("project/first.md"))

    def interrupt_commit():
        LedgerJournal.finish = die
        with opened(*where) as ground:
            ground.commit(new("user/lost.md"), new("project/lost.md"))

    killed(interrupt_commit)
    assert (where[0] / "user" / "lost.md").exists()
    return where


def check_clean(ground):
    assert not [*ground.base.rglob("lost.md"), *ground.base.rglob(".muniment-*")]
    return not any(upkeep.verify(ground.state, root, STRICT).problems for root in ground.roots.values())


@pytest.mark.parametrize("step", ["write_index", "view_of", "IndexPlan", "written"])
def test_recovery_killed_before_the_index_is_repeated(interrupted_memory, step):
    """Regression: the ledger had closed the commit by then, so the index listed its files forever."""

    def recover_and_die():
        setattr(upkeep, step, die)
        with opened(*interrupted_memory) as ground:
            recovered(ground)

    killed(recover_and_die)
    with opened(*interrupted_memory) as ground:
        assert recovered(ground) != ()
        assert check_clean(ground)
        assert recovered(ground) == ()


def test_dry_run_with_recovery_repairs_the_indexes(interrupted_memory):
    """Another process had the memory open when the first one died."""
    with opened(*interrupted_memory) as ground:
        ground.commit(new("user/more.md"), new("project/more.md"), dry_run=True)
        assert check_clean(ground)


def test_rebuild_removes_temporary_files_of_a_killed_one(tmp_path):
    """No commit in the ledger could name the file."""
    where, user = (tmp_path / "tree", tmp_path / "state"), tmp_path / "tree" / "user"
    lay(where[0], BEFORE)

    def rebuild_and_die():
        real = _directory._renameat2
        with opened(*where) as ground:
            rebuild(ground.state, ground.roots["user"], STRICT, patience())
            (user / "fresh.md").write_text("fresh\n")
            _directory._renameat2 = lambda *arguments: (real(*arguments), die())
            rebuild(ground.state, ground.roots["user"], STRICT, patience())

    killed(rebuild_and_die)
    assert list(user.rglob(".muniment-*")) != []
    (user / ".muniment-0123456789abffff.tmp").write_text("somebody wrote this\n")
    with opened(*where) as ground:
        rebuild(ground.state, ground.roots["user"], STRICT, patience())
    assert list(where[0].rglob(".muniment-*")) == []
    assert (user / "memory-before-muniment.md").read_text() == "somebody wrote this\n"


# -- planted names


@pytest.mark.threat("T-PATH-07", control="random_names")
def test_commit_writes_under_no_predictable_name(ground):
    """An attacker planted links before a commit, so that it writes through them."""
    secret = ground.outside / "secret.md"
    names = [f".muniment-{number:016x}.tmp" for number in range(500)]
    names += ["new.md.tmp", ".new.md.tmp", "new.md~", ".new.md.swp", "#new.md#", "new.tmp"]
    for name in (*names, *(f"new.md.{number}.tmp" for number in range(100))):
        (ground.user / name).symlink_to(secret)
    assert [change.path for change in ground.commit(new("user/new.md")).changes] == ["user/new.md"]
    assert (ground.user / "new.md").read_bytes() == b"new\n"
    assert secret.read_bytes() == b"secret\n"
