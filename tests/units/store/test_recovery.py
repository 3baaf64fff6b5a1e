"""What an interrupted commit left is taken back, and nobody else's work with it."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kit.store.ground import STRICT, claim, laid_out, new, origin, patience
from muniment.errors import DeadlineExceeded, ManagedMemoryUnavailable
from muniment.store import commit as subject
from muniment.store import upkeep
from muniment.store.audit import records
from muniment.store.ledger import of_task, root_key, temporary_of, temporary_of_index, unfinished
from muniment.store.state import State
from muniment.store.upkeep import recover_all

CHANGES = {"user/new/n.md": b"# N\nnew\n", "user/a.md": b"# A\nother\n", "user/topic/t.md": None}


class Killed(BaseException):
    """Stands for a kill: nothing of ours may run after it."""


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


@contextmanager
def killed_before_done(monkeypatch):
    """A commit in this block ends after its files were written, as if its process had died."""

    def die(*_args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(subject, "finish", die)
        patched.setattr(subject, "bring_back", lambda *_: [])
        with pytest.raises(Killed):
            yield


def interrupted(ground, monkeypatch, task="task-1"):
    """A commit of `CHANGES` that was never done."""
    proposals = [
        new("user/new/n.md", CHANGES["user/new/n.md"]),
        ground.edit("user/a.md", CHANGES["user/a.md"]),
    ]
    gone = claim("user/topic/t.md", (ground.user / "topic" / "t.md").read_bytes())
    with killed_before_done(monkeypatch):
        ground.commit(*proposals, removals=[gone], origin=origin(task))


def recovered(ground):
    return recover_all(ground.state, ground.roots, STRICT, patience())


@pytest.mark.threat("T-IDX-02", control="recovery")
def test_what_was_begun_and_not_done_is_taken_back_and_told(ground, monkeypatch):
    before = ground.contents()
    interrupted(ground, monkeypatch)
    assert ground.contents() != before
    assert recovered(ground) == ("took back task-1, which was interrupted; run it again",)
    index = (ground.user / "MEMORY.md").read_text()
    (ground.user / "MEMORY.md").unlink()
    assert ground.contents() == before
    assert "[A](a.md) — alpha" in index
    assert "N" not in index.partition("entries of user")[2]
    assert [record.kind for record in records(ground.state)] == ["recovery"]
    assert recovered(ground) == ()


def test_the_next_commit_takes_it_back_first_and_the_task_may_try_again(ground, monkeypatch):
    interrupted(ground, monkeypatch)
    ground.commit(new("user/other.md"))
    assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert (ground.user / "topic" / "t.md").exists()
    assert not (ground.user / "new").exists()
    done = ground.commit(ground.edit("user/a.md", b"again\n"), origin=origin("task-1"))
    assert not done.repeated
    assert of_task(ground.state, "task-1") is not None


@pytest.mark.parametrize("path", ["user/new/n.md", "user/a.md"])
def test_a_hand_edit_between_crash_and_recovery_is_kept_and_told(ground, monkeypatch, path):
    interrupted(ground, monkeypatch)
    (ground.base / path).write_bytes(b"by hand\n")
    notes = recovered(ground)
    assert f"{path} was changed since and is left alone (recovery_conflict)" in notes
    assert (ground.base / path).read_bytes() == b"by hand\n"
    for other in {"user/a.md", "user/topic/t.md"} - {path}:
        assert (ground.base / other).read_bytes() in {b"# A\nalpha\n", b"# T\ntopic\n"}
    assert records(ground.state)[-1].body["conflicts"] == [path]
    assert recovered(ground) == ()


def test_a_file_that_somebody_made_where_one_was_removed_is_kept(ground, monkeypatch):
    interrupted(ground, monkeypatch)
    (ground.user / "topic" / "t.md").write_bytes(b"by hand\n")
    assert any("user/topic/t.md was changed" in note for note in recovered(ground))
    assert (ground.user / "topic" / "t.md").read_bytes() == b"by hand\n"


def test_a_new_file_that_somebody_removed_needs_no_taking_back(ground, monkeypatch):
    interrupted(ground, monkeypatch)
    (ground.user / "new" / "n.md").unlink()
    (ground.user / "new").rmdir()
    assert recovered(ground) == ("took back task-1, which was interrupted; run it again",)


@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_link_put_in_the_way_between_crash_and_recovery_is_not_followed(ground, monkeypatch, what):
    interrupted(ground, monkeypatch)
    outside = {path: path.read_bytes() for path in ground.outside.iterdir()}
    if what == "file":
        (ground.user / "a.md").unlink()
        (ground.user / "a.md").symlink_to(ground.outside / "secret.md")
    else:
        (ground.user / "new" / "n.md").rename(ground.outside / "n.md")
        outside[ground.outside / "n.md"] = CHANGES["user/new/n.md"]
        (ground.user / "new").rmdir()
        (ground.user / "new").symlink_to(ground.outside)
    assert any("recovery_conflict" in note for note in recovered(ground))
    assert {path: path.read_bytes() for path in ground.outside.iterdir()} == outside
    assert (ground.user / ("a.md" if what == "file" else "new")).is_symlink()


def test_each_root_is_recovered_when_somebody_opens_it(ground, monkeypatch):
    """A commit in two roots: the first opens only one of them."""
    with killed_before_done(monkeypatch):
        ground.commit(
            ground.edit("user/a.md", b"u\n"), ground.edit("project/p.md", b"p\n"), origin=origin("task-1")
        )
    project = ground.roots.pop("project")
    recovered(ground)
    assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert (ground.project / "p.md").read_bytes() == b"p\n"
    ground.commit(ground.edit("user/a.md", b"later\n"))
    ground.roots["project"] = project
    assert recovered(ground) == ("took back task-1, which was interrupted; run it again",)
    assert (ground.project / "p.md").read_bytes() == b"# P\nproject\n"
    assert (ground.user / "a.md").read_bytes() == b"later\n"


def test_a_commit_under_way_is_not_taken_for_an_interrupted_one(ground, monkeypatch):
    """Its lock is held: recovery waits for it."""
    interrupted(ground, monkeypatch)
    before = ground.photograph()
    fd = os.open(ground.user, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(DeadlineExceeded):
            recover_all(ground.state, ground.roots, STRICT, patience(0.05))
    finally:
        os.close(fd)
    assert ground.photograph() == before
    assert len(unfinished(ground.state, [root_key(ground.state, ground.roots["user"])])) == 1


def test_a_ledger_that_cannot_say_that_it_is_done_takes_the_files_back(ground, monkeypatch):
    ground.commit(new("user/first.md"))
    before = ground.contents()

    def full(*_args):
        raise ManagedMemoryUnavailable("ledger.db", "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(subject, "finish", full)
        with pytest.raises(ManagedMemoryUnavailable, match="the disk is full"):
            ground.commit(ground.edit("user/a.md", b"after\n"), origin=origin("task-1"))
    assert ground.contents() | {"user/MEMORY.md": ""} == before | {"user/MEMORY.md": ""}
    recovered(ground)
    assert ground.contents() == before


def test_an_index_that_cannot_be_written_holds_up_no_recovery_and_no_commit(ground, monkeypatch):
    interrupted(ground, monkeypatch)

    def refuse(*_args, **_keywords):
        raise ManagedMemoryUnavailable("user", "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "write_index", refuse)
        notes = recovered(ground)
        assert any("the index of user is behind" in note for note in notes)
        assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
        assert recovered(ground) == ()
        done = ground.commit(new("user/later.md"))
        assert any("the index of user is behind" in note for note in done.notes)
    ground.commit(new("user/last.md"))
    assert upkeep.verify(ground.state, ground.roots["user"], STRICT).problems == ()


def leftover(ground, where, name_of, number, content):
    """A temporary file of the interrupted commit."""
    key = root_key(ground.state, ground.roots["user"])
    (kept,) = unfinished(ground.state, [key])
    path = ground.user / where / name_of(kept.token, number)
    path.write_bytes(content)
    return path


def test_what_stood_in_place_of_an_index_is_kept_as_an_entry_and_what_is_ours_is_dropped(ground, monkeypatch):
    interrupted(ground, monkeypatch)
    index = (ground.user / "MEMORY.md").read_bytes()
    ours = leftover(ground, "", temporary_of_index, 1, index)
    theirs = leftover(ground, "", temporary_of_index, 2, b"a person's own words\n")
    notes = recovered(ground)
    assert not ours.exists()
    assert not theirs.exists()
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"a person's own words\n"
    assert "user/memory-before-muniment.md holds what somebody wrote meanwhile" in notes


def test_what_a_peer_put_under_a_temporary_name_is_kept_whatever_it_is(ground, monkeypatch):
    interrupted(ground, monkeypatch)
    displaced = leftover(ground, "", temporary_of, 7, b"# Theirs\n")
    link = leftover(ground, "", temporary_of, 8, b"")
    link.unlink()
    link.symlink_to(ground.outside / "secret.md")
    notes = recovered(ground)
    assert any("holds what somebody wrote meanwhile" in note for note in notes)
    assert not displaced.exists()
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"# Theirs\n"
    assert link.is_symlink()
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


def test_a_file_that_went_with_its_directory_is_told(ground, monkeypatch):
    interrupted(ground, monkeypatch)
    (ground.user / "topic").rmdir()
    assert any("user/topic/t.md was changed since" in note for note in recovered(ground))
    assert not (ground.user / "topic").exists()


def test_an_index_that_somebody_writes_by_hand_again_and_again_is_saved_each_time(ground, monkeypatch):
    ground.commit(new("user/first.md"))
    real, edits = upkeep.written, iter(range(9))

    def written(*args):
        real(*args)
        (ground.user / "MEMORY.md").write_bytes(b"edit %d\n" % next(edits))

    (ground.user / "MEMORY.md").write_bytes(b"edit\n")
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "written", written)
        ground.commit(new("user/n.md"))
    saved = {path.read_bytes() for path in ground.user.glob("memory-before-muniment*.md")}
    assert saved == {b"edit\n", b"edit 0\n", b"edit 1\n"}
    assert (ground.user / "MEMORY.md").read_bytes() == b"edit 2\n"


def test_a_catalog_that_turns_out_to_be_damaged_is_begun_anew(ground, tmp_path):
    """Opened again, so that no page of it is still in memory."""
    directory = tmp_path / "kept"
    with State(directory) as state:
        replace(ground, state=state).commit(new("user/n.md", b"# N\nnews\n"))
        ((page,),) = state.catalog.rows("SELECT rootpage FROM sqlite_schema WHERE name = 'entry'")
    path = directory / "catalog.db"
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)
    with State(directory) as state:
        replace(ground, state=state).commit(new("user/m.md", b"# M\nmore\n"))
        assert "[N](n.md) — news" in (ground.user / "MEMORY.md").read_text()
        assert upkeep.verify(state, ground.roots["user"], STRICT).problems == ()


def test_a_catalog_that_is_out_of_reach_is_told_and_left_alone(ground, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise ManagedMemoryUnavailable("catalog.db", "the disk reports an error")

    ground.commit(new("user/n.md", b"# N\nnews\n"))
    count = "SELECT count(*) FROM entry"
    before = ground.state.catalog.rows(count)
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "refresh", refuse)
        with pytest.raises(ManagedMemoryUnavailable, match="the disk reports"):
            upkeep.view_of(ground.state, ground.roots["user"], STRICT)
    assert ground.state.catalog.rows(count) == before != [(0,)]
