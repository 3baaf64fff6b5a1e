"""Attacks on the store: cut records, concurrent threads, kills during recovery, planted names."""

import signal
import sqlite3
import threading
from contextlib import closing
from unittest.mock import patch

import pytest

from kit.store.bench import STRICT, make_deadline, make_run, open_store_bench, propose_new, write_files
from kit.store.crashes import BEFORE, recover_bench
from kit.store.processes import assert_dies, die
from muniment.kernel import _directory
from muniment.kernel.names import Trust
from muniment.store import erase as erasing
from muniment.store import index_upkeep
from muniment.store.audit import verify
from muniment.store.catalog import ScanPlan, View
from muniment.store.index_upkeep import rebuild_index
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import find_source, get_root_key
from muniment.store.rows import Assessment

CUTS = {
    "the head set back": "DELETE FROM record WHERE seq > 3; UPDATE head SET seq = 3",
    "the head gone": "DELETE FROM record WHERE seq > 3; DELETE FROM head",
    "the head kept": "DELETE FROM record WHERE seq > 3",
    "only the head gone": "DELETE FROM head",
    "the head far ahead": "UPDATE head SET seq = 99",
    "everything": "DELETE FROM record; DELETE FROM head",
}


@pytest.mark.parametrize("cut", CUTS)
def test_cut_audit_log_is_found_after_further_commits(store_bench, cut):
    """Regression: the next record was chained to what the forger had left, and its head marked that as the
    end.
    """
    for number in range(4):
        store_bench.commit(propose_new(f"user/n{number}.md", b"%d\n" % number))
    assert verify(store_bench.state).problems == ()
    with closing(sqlite3.connect(store_bench.state.ledger.path, isolation_level=None)) as forger:
        forger.executescript(CUTS[cut])
    if cut == "everything":
        (problem,) = verify(store_bench.state).problems
        assert "4 commits" in problem
    for number in range(2):
        assert store_bench.commit(propose_new(f"user/after-{number}.md")).changes
        assert verify(store_bench.state).problems != ()


def test_erasure_and_catalog_refresh_do_not_deadlock(store_bench, monkeypatch):
    """Regression: the erasure held the ledger lock, the refresh the catalog lock, and each waited for the
    other.
    """
    store_bench.commit(propose_new("user/x.md", b"a text that has to go away\n"))
    inside, refreshing, real = threading.Event(), threading.Event(), erasing.open_view
    project, key = store_bench.roots["project"], get_root_key(store_bench.state, store_bench.roots["project"])

    def view(*arguments, **more):
        inside.set()
        refreshing.wait(10)
        return real(*arguments, **more)

    def assess(rel, digest, _data):
        refreshing.set()
        find_source(store_bench.state, key, rel, digest)
        return Assessment(Trust.OWNER)

    def refresh_view():
        inside.wait(10)
        View(store_bench.state.catalog, key, project, assess).refresh("another", ScanPlan())

    monkeypatch.setattr(erasing, "open_view", view)
    where = erasing.EraseContext(store_bench.state, store_bench.roots, STRICT, make_deadline(20))
    threads = [threading.Thread(target=refresh_view, daemon=True)]
    threads.append(threading.Thread(target=erasing.erase, args=("user/x.md", where), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert not any(thread.is_alive() for thread in threads)
    assert not (store_bench.user / "x.md").exists()


def test_interrupt_after_a_finished_commit_keeps_its_files(store_bench):
    """Regression: the ledger recorded the commit, the files were gone, and a repeat of the task failed."""
    real = LedgerJournal.finish
    interrupt_commit = lambda *arguments: (real(*arguments), signal.raise_signal(signal.SIGINT))  # noqa: E731
    with patch.object(LedgerJournal, "finish", interrupt_commit), pytest.raises(KeyboardInterrupt):
        store_bench.commit(propose_new("user/n.md"), run=make_run("task-1"))
    assert store_bench.commit(propose_new("user/n.md"), run=make_run("task-1")).is_repeated
    assert (store_bench.user / "n.md").read_bytes() == b"new\n"


# -- recovery under attack: it is killed itself, or no other commit follows


@pytest.fixture
def interrupted_memory(tmp_path):
    """A memory with indexes in which a commit was killed just before it finished."""
    where = tmp_path / "tree", tmp_path / "state"
    write_files(where[0], BEFORE)
    with open_store_bench(*where) as ground:
        ground.commit(propose_new("user/first.md"), propose_new("project/first.md"))

    def interrupt_commit():
        LedgerJournal.finish = die
        with open_store_bench(*where) as ground:
            ground.commit(propose_new("user/lost.md"), propose_new("project/lost.md"))

    assert_dies(interrupt_commit)
    assert (where[0] / "user" / "lost.md").exists()
    return where


def check_clean(ground):
    assert not [*ground.base.rglob("lost.md"), *ground.base.rglob(".muniment-*")]
    return not any(
        index_upkeep.verify_root_index(ground.state, root, STRICT).problems for root in ground.roots.values()
    )


@pytest.mark.parametrize("step", ["write_index", "open_view", "IndexPlan", "record_written"])
def test_recovery_killed_before_the_index_is_repeated(interrupted_memory, step):
    """Regression: the ledger had closed the commit by then, so the index listed its files forever."""

    def recover_and_die():
        setattr(index_upkeep, step, die)
        with open_store_bench(*interrupted_memory) as ground:
            recover_bench(ground)

    assert_dies(recover_and_die)
    with open_store_bench(*interrupted_memory) as ground:
        assert recover_bench(ground) != ()
        assert check_clean(ground)
        assert recover_bench(ground) == ()


def test_dry_run_with_recovery_repairs_the_indexes(interrupted_memory):
    """Another process had the memory open when the first one died."""
    with open_store_bench(*interrupted_memory) as ground:
        ground.commit(propose_new("user/more.md"), propose_new("project/more.md"), dry_run=True)
        assert check_clean(ground)


def test_rebuild_removes_temporary_files_of_a_killed_one(tmp_path):
    """No commit in the ledger could name the file."""
    where, user = (tmp_path / "tree", tmp_path / "state"), tmp_path / "tree" / "user"
    write_files(where[0], BEFORE)

    def rebuild_and_die():
        real = _directory._renameat2
        with open_store_bench(*where) as ground:
            rebuild_index(ground.state, ground.roots["user"], STRICT, make_deadline())
            (user / "fresh.md").write_text("fresh\n")
            _directory._renameat2 = lambda *arguments: (real(*arguments), die())
            rebuild_index(ground.state, ground.roots["user"], STRICT, make_deadline())

    assert_dies(rebuild_and_die)
    assert list(user.rglob(".muniment-*")) != []
    (user / ".muniment-0123456789abffff.tmp").write_text("somebody wrote this\n")
    with open_store_bench(*where) as ground:
        rebuild_index(ground.state, ground.roots["user"], STRICT, make_deadline())
    assert list(where[0].rglob(".muniment-*")) == []
    assert (user / "memory-before-muniment.md").read_text() == "somebody wrote this\n"


# -- planted names


@pytest.mark.threat("T-PATH-07", control="random_names")
def test_commit_writes_under_no_predictable_name(store_bench):
    """An attacker planted links before a commit, so that it writes through them."""
    secret = store_bench.outside / "secret.md"
    names = [f".muniment-{number:016x}.tmp" for number in range(500)]
    names += ["new.md.tmp", ".new.md.tmp", "new.md~", ".new.md.swp", "#new.md#", "new.tmp"]
    for name in (*names, *(f"new.md.{number}.tmp" for number in range(100))):
        (store_bench.user / name).symlink_to(secret)
    assert [change.path for change in store_bench.commit(propose_new("user/new.md")).changes] == [
        "user/new.md"
    ]
    assert (store_bench.user / "new.md").read_bytes() == b"new\n"
    assert secret.read_bytes() == b"secret\n"
