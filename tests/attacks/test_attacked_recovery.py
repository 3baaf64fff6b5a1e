"""Recovery under attack: it is killed itself, or nothing follows it."""

from __future__ import annotations

import pytest

from kit.store.ground import STRICT, new, patience
from kit.store.killed import lay, opened, recovered
from kit.store.processes import die, killed
from muniment.confine import writing
from muniment.store import commit as commits
from muniment.store import upkeep
from muniment.store.upkeep import rebuild, verify


@pytest.fixture
def at(tmp_path):
    """A memory with indexes, in which a commit was killed just before it was done."""
    where = tmp_path / "tree", tmp_path / "state"
    lay(where[0])
    with opened(*where) as ground:
        ground.commit(new("user/first.md"), new("project/first.md"))

    def interrupted():
        commits.finish = die
        with opened(*where) as ground:
            ground.commit(new("user/lost.md"), new("project/lost.md"))

    killed(interrupted)
    assert (where[0] / "user" / "lost.md").exists()
    return where


def is_clean(ground):
    assert not [*ground.base.rglob("lost.md"), *ground.base.rglob(".muniment-*")]
    return not any(verify(ground.state, root, STRICT).problems for root in ground.roots.values())


@pytest.mark.parametrize("step", ["write_index", "view_of", "plan_index", "written"])
def test_a_recovery_that_is_killed_before_the_index_is_right_is_done_again(at, step):
    """The ledger had forgotten the commit by then, so the index told of its files for ever."""

    def recovering():
        setattr(upkeep, step, die)
        with opened(*at) as ground:
            recovered(ground)

    killed(recovering)
    with opened(*at) as ground:
        assert recovered(ground) != ()
        assert is_clean(ground)
        assert recovered(ground) == ()


def test_a_commit_that_recovers_and_then_writes_nothing_leaves_the_indexes_right(at):
    """Another process had the memory open when the first one died."""
    with opened(*at) as ground:
        ground.commit(new("user/more.md"), new("project/more.md"), dry_run=True)
        assert is_clean(ground)


def test_a_rebuild_that_is_killed_leaves_no_temporary_file_behind_the_next_one(tmp_path):
    """No commit is in the ledger that could name it."""
    where, user = (tmp_path / "tree", tmp_path / "state"), tmp_path / "tree" / "user"
    lay(where[0])

    def rebuilding():
        real = writing._renameat2
        with opened(*where) as ground:
            rebuild(ground.state, ground.roots["user"], STRICT, patience())
            (user / "fresh.md").write_text("fresh\n")
            writing._renameat2 = lambda *arguments: (real(*arguments), die())
            rebuild(ground.state, ground.roots["user"], STRICT, patience())

    killed(rebuilding)
    assert list(user.rglob(".muniment-*")) != []
    mine = user / ".muniment-0123456789abffff.tmp"
    mine.write_text("somebody wrote this\n")
    with opened(*where) as ground:
        rebuild(ground.state, ground.roots["user"], STRICT, patience())
    assert list(where[0].rglob(".muniment-*")) == [mine]
