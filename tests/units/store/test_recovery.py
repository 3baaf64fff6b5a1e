"""What an interrupted commit left is taken back, and nobody else's work with it."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock, patch

import pytest

from kit.store.ground import STANDING, STRICT, new, origin, patience
from kit.store.killed import recovered
from muniment.errors import DeadlineExceeded, ManagedMemoryUnavailable
from muniment.store import commit as subject
from muniment.store import upkeep
from muniment.store.audit import records
from muniment.store.ledger import of_task, root_key, temporary_of, temporary_of_index, unfinished
from muniment.store.state import State
from muniment.store.upkeep import recover_all

TOOK_BACK = "took back task-1, which was interrupted; run it again"


class Killed(BaseException):
    """Stands for a kill: nothing of ours may run after it."""


@contextmanager
def killed_before_done():
    """A commit in this block ends after its files were written, as if its process had died."""
    dying = patch.multiple(subject, finish=Mock(side_effect=Killed), bring_back=lambda *_: [])
    with dying, pytest.raises(Killed):
        yield


def refuse(*_args, **_keywords):
    raise ManagedMemoryUnavailable("user", "the disk is full")


@pytest.fixture
def before(ground):
    """What was there when a commit was interrupted that was never done."""
    contents = ground.contents()
    changes = [new("user/new/n.md", b"# N\nnew\n"), ground.edit("user/a.md", b"# A\nother\n")]
    with killed_before_done():
        ground.commit(*changes, removals=[ground.gone("user/topic/t.md")], origin=origin("task-1"))
    assert ground.contents() != contents
    return contents


@pytest.mark.threat("T-IDX-02", control="recovery")
def test_what_was_begun_and_not_done_is_taken_back_and_told_and_the_task_may_try_again(ground, before):
    assert recovered(ground) == (TOOK_BACK,)
    index = (ground.user / "MEMORY.md").read_text()
    (ground.user / "MEMORY.md").unlink()
    assert ground.contents() == before
    assert "[A](a.md) — alpha" in index
    assert "N" not in index.partition("entries of user")[2]
    assert [record.kind for record in records(ground.state)] == ["recovery"]
    assert recovered(ground) == ()
    assert not ground.commit(ground.edit("user/a.md", b"again\n"), origin=origin("task-1")).repeated
    assert of_task(ground.state, "task-1") is not None


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("path", ["user/new/n.md", "user/a.md", "user/topic/t.md"])
def test_what_somebody_wrote_between_crash_and_recovery_is_kept_and_told(ground, path):
    (ground.base / path).write_bytes(b"by hand\n")
    assert f"{path} was changed since and is left alone (recovery_conflict)" in recovered(ground)
    for other in {"user/a.md", "user/topic/t.md", path}:
        expected = b"by hand\n" if other == path else STANDING[other]
        assert (ground.base / other).read_bytes() == expected, other
    assert records(ground.state)[-1].body["conflicts"] == [path]
    assert recovered(ground) == ()


@pytest.mark.usefixtures("before")
def test_what_somebody_removed_needs_no_taking_back_but_a_directory_that_went_is_told(ground):
    shutil.rmtree(ground.user / "new")
    (ground.user / "topic").rmdir()
    took_back, told = recovered(ground)
    assert took_back.startswith(TOOK_BACK[:20])
    assert "user/topic/t.md was changed since" in told
    assert not (ground.user / "topic").exists()


@pytest.mark.usefixtures("before")
@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize(("what", "target"), [("a.md", "secret.md"), ("new", ".")])
def test_a_link_put_in_the_way_between_crash_and_recovery_is_not_followed(ground, what, target):
    (ground.user / "new" / "n.md").rename(ground.outside / "n.md")
    (ground.user / what).rename(ground.base / "away")
    (ground.user / what).symlink_to(ground.outside / target)
    outside = {path: path.read_bytes() for path in ground.outside.iterdir()}
    assert any("recovery_conflict" in note for note in recovered(ground))
    assert {path: path.read_bytes() for path in ground.outside.iterdir()} == outside
    assert (ground.user / what).is_symlink()


def test_each_root_is_recovered_when_somebody_opens_it(ground):
    """A commit in two roots: the first opens only one of them."""
    changes = ground.edit("user/a.md", b"u\n"), ground.edit("project/p.md", b"p\n")
    with killed_before_done():
        ground.commit(*changes, origin=origin("task-1"))
    project = ground.roots.pop("project")
    done = ground.commit(new("user/later.md"))  # It takes it back first.
    assert any(TOOK_BACK in note for note in done.notes)
    assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert (ground.project / "p.md").read_bytes() == b"p\n"
    ground.commit(ground.edit("user/a.md", b"later\n"))
    ground.roots["project"] = project
    assert recovered(ground) == (TOOK_BACK,)
    assert (ground.project / "p.md").read_bytes() == b"# P\nproject\n"
    assert (ground.user / "a.md").read_bytes() == b"later\n"


@pytest.mark.usefixtures("before")
def test_a_commit_under_way_is_not_taken_for_an_interrupted_one(ground):
    """Its lock is held: recovery waits for it."""
    photograph, fd = ground.photograph(), os.open(ground.user, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(DeadlineExceeded):
            recover_all(ground.state, ground.roots, STRICT, patience(0.05))
    finally:
        os.close(fd)
    assert ground.photograph() == photograph
    assert len(unfinished(ground.state, [root_key(ground.state, ground.roots["user"])])) == 1


@pytest.mark.usefixtures("before")
def test_an_index_that_cannot_be_written_holds_up_no_recovery_and_no_commit(ground, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "write_index", refuse)
        assert any("the index of user is behind" in note for note in recovered(ground))
        assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
        assert recovered(ground) == ()
        done = ground.commit(new("user/later.md"))
        assert any("the index of user is behind" in note for note in done.notes)
    ground.commit(new("user/last.md"))
    assert upkeep.verify(ground.state, ground.roots["user"], STRICT).problems == ()


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("name_of", [temporary_of, temporary_of_index])
def test_what_a_peer_put_under_a_temporary_name_is_kept_whatever_it_is_and_ours_is_dropped(ground, name_of):
    ((token,),) = ground.state.ledger.rows("SELECT token FROM change_set")
    ours, theirs, link = (
        ground.user / name
        for name in (temporary_of_index(token, 1), name_of(token, 7), temporary_of(token, 8))
    )
    ours.write_bytes((ground.user / "MEMORY.md").read_bytes())
    theirs.write_bytes(b"a person's own words\n")
    link.symlink_to(ground.outside / "secret.md")
    assert "user/memory-before-muniment.md holds what somebody wrote meanwhile" in recovered(ground)
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"a person's own words\n"
    assert [path for path in (ours, theirs) if path.exists()] == []
    assert link.is_symlink()
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


def test_an_index_that_somebody_writes_by_hand_again_and_again_is_saved_each_time(ground, monkeypatch):
    ground.commit(new("user/first.md"))
    real, edits, index = upkeep.written, iter(range(9)), ground.user / "MEMORY.md"
    index.write_bytes(b"edit\n")
    with monkeypatch.context() as patched:
        edited = lambda *args: (real(*args), index.write_bytes(b"edit %d\n" % next(edits)))  # noqa: E731
        patched.setattr(upkeep, "written", edited)
        ground.commit(new("user/n.md"))
    saved = {path.read_bytes() for path in ground.user.glob("memory-before-muniment*.md")}
    assert saved == {b"edit\n", b"edit 0\n", b"edit 1\n"}
    assert index.read_bytes() == b"edit 2\n"


def test_a_catalog_that_is_damaged_is_begun_anew_and_one_out_of_reach_left(ground, tmp_path, monkeypatch):
    """Opened again, so that no page of it is still in memory."""
    directory, count = tmp_path / "kept", "SELECT count(*) FROM entry"
    with State(directory) as state:
        replace(ground, state=state).commit(new("user/n.md", b"# N\nnews\n"))
        ((page,),) = state.catalog.rows("SELECT rootpage FROM sqlite_schema WHERE name = 'entry'")
    with (directory / "catalog.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)
    with State(directory) as state:
        replace(ground, state=state).commit(new("user/m.md", b"# M\nmore\n"))
        assert "[N](n.md) — news" in (ground.user / "MEMORY.md").read_text()
        assert upkeep.verify(state, ground.roots["user"], STRICT).problems == ()
        before = state.catalog.rows(count)
        monkeypatch.setattr(upkeep, "refresh", refuse)
        with pytest.raises(ManagedMemoryUnavailable, match="the disk is full"):
            upkeep.view_of(state, ground.roots["user"], STRICT)
        assert state.catalog.rows(count) == before != [(0,)]
