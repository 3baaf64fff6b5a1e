"""`MEMORY.md` follows its entries, and what a person wrote in its place is never lost."""

from __future__ import annotations

import os
import socket

import pytest

from muniment.confine.root import Root
from muniment.errors import DeadlineExceeded, NotFound, PathEscape, StoreConflict, Unreadable
from muniment.names import MAX_FILE_BYTES, Trust, Via
from muniment.store.indexing import rebuild_index, verify_index
from muniment.testing.corpus.index_oracle import index_problems, index_targets
from store.ground import laid_out, new, patience, sha

FOREIGN = b"# My own notes\r\n\r\nfirst \xff\x00 words without a newline"
SAVED = "user/MEMORY.md was not ours; it is saved as user/memory-before-muniment.md"


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


@pytest.fixture
def user(ground):
    return ground.roots["user"]


@pytest.fixture
def index(ground):
    return ground.user / "MEMORY.md"


def rebuilt(user):
    return rebuild_index(user, Trust.OWNER, patience())


LINK = "user/MEMORY.md was a link; the index takes its place, what it led to is left alone"


def listed(index):
    data = index.read_bytes()
    targets = index_targets(data)
    assert list(index_problems(data, set(targets))) == []
    return sorted(targets)


def test_an_index_that_is_missing_is_written_and_then_correct(user, index):
    assert verify_index(user, Trust.OWNER) == ("user/MEMORY.md is missing; run: muniment index rebuild",)
    assert rebuilt(user) == ()
    assert listed(index) == ["a.md", "topic/t.md"]
    assert verify_index(user, Trust.OWNER) == ()


def test_an_index_that_is_right_is_not_written_again(ground, user):
    rebuilt(user)
    before = ground.photograph()
    assert rebuilt(user) == ()
    assert ground.photograph() == before


def test_an_index_of_ours_that_is_stale_is_replaced_and_not_saved(ground, user, index):
    rebuilt(user)
    (ground.user / "a.md").unlink()
    (problem,) = verify_index(user, Trust.OWNER)
    assert problem == "user/MEMORY.md differs from its entries; run: muniment index rebuild"
    assert rebuilt(user) == ()
    assert listed(index) == ["topic/t.md"]


def test_a_memory_that_holds_nothing_yet_needs_no_index(ground, user, index):
    (ground.user / "a.md").unlink()
    (ground.user / "topic" / "t.md").unlink()
    assert verify_index(user, Trust.OWNER) == rebuilt(user) == ()
    assert not index.exists()


def test_an_index_whose_entries_are_all_gone_says_so(ground, user, index):
    rebuilt(user)
    (ground.user / "a.md").unlink()
    (ground.user / "topic" / "t.md").unlink()
    rebuilt(user)
    assert "0 entries" in index.read_text()
    assert verify_index(user, Trust.OWNER) == ()


def test_the_trust_of_the_scope_decides_what_the_index_shows(user, index):
    rebuild_index(user, Trust.EXTERNAL, patience())
    assert "alpha" not in index.read_text()
    assert verify_index(user, Trust.OWNER) != ()


def test_a_rebuild_heeds_the_deadline(ground, user):
    before = ground.photograph()
    with pytest.raises(DeadlineExceeded):
        rebuild_index(user, Trust.OWNER, patience(-1))
    assert ground.photograph() == before


# What a person wrote.


@pytest.mark.parametrize("foreign", [FOREIGN, b"prose\n", b"\xff", b"x" * MAX_FILE_BYTES])
def test_a_foreign_index_is_saved_whole_and_said_once(ground, index, foreign):
    index.write_bytes(foreign)
    assert ground.commit(new("user/n.md")).notes == (SAVED,)
    assert (ground.user / "memory-before-muniment.md").read_bytes() == foreign
    assert listed(index) == ["a.md", "memory-before-muniment.md", "n.md", "topic/t.md"]
    assert ground.commit(new("user/m.md")).notes == ()
    assert (ground.user / "memory-before-muniment.md").read_bytes() == foreign


def test_a_foreign_index_is_not_what_was_committed(ground, index):
    index.write_bytes(FOREIGN)
    done = ground.commit(new("user/n.md"))
    assert [change.path for change in done.changes] == ["user/n.md"]


def test_verifying_says_what_a_rebuild_would_do_and_does_nothing(ground, user, index):
    index.write_bytes(FOREIGN)
    before = ground.photograph()
    assert verify_index(user, Trust.OWNER) == (
        "user/MEMORY.md is not ours; a rebuild will first save it as an entry",
    )
    assert ground.photograph() == before
    assert rebuilt(user) == (SAVED,)
    assert verify_index(user, Trust.OWNER) == ()


@pytest.mark.parametrize(
    ("taken", "saved"),
    [
        (["memory-before-muniment.md"], "memory-before-muniment-2.md"),
        (["Memory-Before-MUNIMENT.MD"], "memory-before-muniment-2.md"),
        (["memory-before-muniment.md", "MEMORY-before-muniment-2.md"], "memory-before-muniment-3.md"),
    ],
)
def test_a_name_or_alias_that_is_taken_makes_a_suffix(ground, index, taken, saved):
    for name in taken:
        (ground.user / name).write_bytes(b"theirs")
    index.write_bytes(FOREIGN)
    assert ground.commit(new("user/n.md")).notes == (
        f"user/MEMORY.md was not ours; it is saved as user/{saved}",
    )
    assert (ground.user / saved).read_bytes() == FOREIGN
    assert all((ground.user / name).read_bytes() == b"theirs" for name in taken)


def test_a_name_that_this_very_commit_takes_makes_a_suffix(ground, index):
    index.write_bytes(FOREIGN)
    ground.commit(new("user/memory-before-muniment.md", b"mine\n"))
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"mine\n"
    assert (ground.user / "memory-before-muniment-2.md").read_bytes() == FOREIGN


def test_a_foreign_index_that_is_edited_while_it_is_saved_is_kept(ground, index, monkeypatch):
    index.write_bytes(FOREIGN)
    expected, edits = ground.contents(), iter(range(9))
    monkeypatch.setattr(
        "muniment.store.indexing.render_index",
        lambda *_: index.write_bytes(b"late edit %d" % next(edits)) and b"#\n",
    )
    with pytest.raises(StoreConflict):
        ground.commit(new("user/n.md"))
    assert ground.contents() == {**expected, "user/MEMORY.md": sha(b"late edit 1")}


# What is no file.


@pytest.mark.parametrize("target", ["secret.md", "nothing.md", "."])
def test_an_index_that_is_a_link_is_replaced_and_its_target_is_not_touched(ground, index, target):
    index.symlink_to(ground.outside / target)
    outside = {path: kept for path, kept in ground.photograph().items() if path.startswith("outside")}
    assert verify_index(ground.roots["user"], Trust.OWNER) == (
        "user/MEMORY.md is a link; run: muniment index rebuild",
    )
    assert ground.commit(new("user/n.md")).notes == (LINK,)
    assert not index.is_symlink()
    assert listed(index) == ["a.md", "n.md", "topic/t.md"]
    assert {path: kept for path, kept in ground.photograph().items() if path.startswith("outside")} == outside


def test_an_index_with_a_second_name_elsewhere_is_replaced_and_the_other_keeps_its_bytes(ground, index):
    os.link(ground.outside / "secret.md", index)
    assert ground.commit(new("user/n.md")).notes == (LINK,)
    assert listed(index) == ["a.md", "n.md", "topic/t.md"]
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


def test_a_directory_in_the_place_of_an_index_is_told_and_the_commit_lands(ground, user, index):
    index.mkdir()
    (index / "kept.md").write_bytes(b"kept")
    (note,) = ground.commit(new("user/n.md")).notes
    assert note == "user/MEMORY.md cannot be rebuilt: user/MEMORY.md is a directory; move it away"
    assert (ground.user / "n.md").exists()
    assert (index / "kept.md").read_bytes() == b"kept"
    assert verify_index(user, Trust.OWNER) == rebuilt(user) == (note,)


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_something_special_in_the_place_of_an_index_is_left_and_told(ground, index, monkeypatch, kind):
    if kind == "fifo":
        os.mkfifo(index)
    else:
        monkeypatch.chdir(ground.user)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("MEMORY.md")
    mode = index.stat().st_mode
    (note,) = ground.commit(new("user/n.md")).notes
    assert note.startswith("user/MEMORY.md cannot be rebuilt")
    assert (ground.user / "n.md").exists()
    assert index.stat().st_mode == mode


def test_an_index_too_large_to_save_is_left_and_told(ground, index):
    with index.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (note,) = ground.commit(new("user/n.md")).notes
    assert "user/MEMORY.md cannot be rebuilt" in note
    assert index.stat().st_size == MAX_FILE_BYTES + 1
    assert (ground.user / "n.md").exists()


@pytest.mark.parametrize("error", [Unreadable("no"), PathEscape(Via.MOUNT, "MEMORY.md")])
def test_an_index_that_cannot_be_read_is_left_and_told(ground, index, monkeypatch, error):
    index.write_bytes(FOREIGN)
    real = Root.read_bytes

    def refuse(self, rel, *more):
        if rel == "MEMORY.md":
            raise error
        return real(self, rel, *more)

    monkeypatch.setattr(Root, "read_bytes", refuse)
    (note,) = ground.commit(new("user/n.md")).notes
    assert "cannot be rebuilt" in note
    assert index.read_bytes() == FOREIGN


@pytest.mark.parametrize("error", [Unreadable("no"), NotFound("gone")])
def test_a_memory_that_cannot_be_read_completely_never_loses_its_index(
    ground, user, index, monkeypatch, error
):
    rebuilt(user)
    complete, real = index.read_bytes(), Root.list_directory

    def refuse(self, rel):
        if rel == "topic":
            raise error
        return real(self, rel)

    monkeypatch.setattr(Root, "list_directory", refuse)
    note = "user/MEMORY.md cannot be rebuilt: the memory could not be read completely"
    assert ground.commit(new("user/n.md")).notes == (note,)
    assert (ground.user / "n.md").exists()
    assert index.read_bytes() == complete
    assert verify_index(user, Trust.OWNER) == rebuilt(user) == (note,)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_permissions_never_costs_the_index_its_lines(ground, user, index):
    rebuilt(user)
    complete = index.read_bytes()
    (ground.user / "topic").chmod(0)
    try:
        (note,) = ground.commit(new("user/n.md")).notes
    finally:
        (ground.user / "topic").chmod(0o700)
    assert "could not be read completely" in note
    assert index.read_bytes() == complete
