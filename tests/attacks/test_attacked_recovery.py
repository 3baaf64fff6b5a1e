"""Recovery under attack: it is killed itself, or nothing follows it."""

from __future__ import annotations

import os

import pytest

from kit.store.ground import STRICT, new, patience
from kit.store.killed import lay, opened
from muniment.confine import writing
from muniment.store import commit as commits
from muniment.store import upkeep
from muniment.store.state import State
from muniment.store.upkeep import rebuild, recover_all, verify

KILLED = 9


def killed(body):
    """Run `body` in a process that has to die of it."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == KILLED


def die(*_arguments, **_more):
    os._exit(KILLED)


@pytest.fixture
def base(tmp_path):
    """A memory with indexes, in which a commit was killed just before it was done."""
    base = tmp_path / "tree"
    base.mkdir()
    lay(base)
    with opened(base, tmp_path / "state") as ground:
        ground.commit(new("user/first.md"), new("project/first.md"))

    def interrupted():
        commits.finish = die
        with opened(base, tmp_path / "state") as ground:
            ground.commit(new("user/lost.md"), new("project/lost.md"))

    killed(interrupted)
    assert (base / "user" / "lost.md").exists()
    return base


def is_clean(ground):
    return (
        not list(ground.base.rglob("lost.md"))
        and not list(ground.base.rglob(".muniment-*"))
        and [verify(ground.state, root, STRICT).problems for root in ground.roots.values()] == [(), ()]
    )


@pytest.mark.parametrize("step", ["write_index", "view_of", "plan_index", "written"])
def test_a_recovery_that_is_killed_before_the_index_is_right_is_done_again(base, tmp_path, step):
    """The ledger had forgotten the commit by then, so the index told of its files for ever."""

    def recovering():
        setattr(upkeep, step, die)
        with opened(base, tmp_path / "state") as ground:
            recover_all(ground.state, ground.roots, STRICT, patience())

    killed(recovering)
    with opened(base, tmp_path / "state") as ground:
        assert recover_all(ground.state, ground.roots, STRICT, patience()) != ()
        assert is_clean(ground)
        assert recover_all(ground.state, ground.roots, STRICT, patience()) == ()


def test_a_commit_that_recovers_and_then_writes_nothing_leaves_the_indexes_right(base, tmp_path):
    """Another process had the memory open when the first one died."""
    with opened(base, tmp_path / "state") as ground:
        ground.commit(new("user/more.md"), new("project/more.md"), dry_run=True)
        assert is_clean(ground)


def test_a_rebuild_that_is_killed_leaves_no_temporary_file_behind_the_next_one(tmp_path):
    """No commit is in the ledger that could name it."""
    base = tmp_path / "tree"
    base.mkdir()
    lay(base)
    with State(tmp_path / "state"):
        pass

    def rebuilding():
        real = writing._renameat2

        def exchanged(*arguments):
            real(*arguments)
            die()

        with opened(base, tmp_path / "state") as ground:
            rebuild(ground.state, ground.roots["user"], STRICT, patience())
            (base / "user" / "fresh.md").write_text("fresh\n")
            writing._renameat2 = exchanged
            rebuild(ground.state, ground.roots["user"], STRICT, patience())

    killed(rebuilding)
    assert list(base.rglob(".muniment-*")) != []
    mine = base / "user" / ".muniment-0123456789abffff.tmp"
    mine.write_text("somebody wrote this\n")
    with opened(base, tmp_path / "state") as ground:
        rebuild(ground.state, ground.roots["user"], STRICT, patience())
    assert list(base.rglob(".muniment-*")) == [mine]
