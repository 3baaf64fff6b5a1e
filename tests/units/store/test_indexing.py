"""The files of an index follow its entries, and what a person wrote in their place is never lost."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from kit.memories import put
from kit.store.ground import STRICT, claim, laid_out, new, origin, patience, sha
from kit.store.shelf import Shelf, View, expected
from kit.store.shelf import sha as digest_of
from muniment.confine.root import Root
from muniment.errors import StoreConflict, Unreadable
from muniment.names import MAX_FILE_BYTES
from muniment.store import catalog, upkeep
from muniment.store.state import State
from muniment.store.upkeep import plan_index
from muniment.testing.corpus.index_oracle import index_problems, index_targets

FOREIGN = b"# My own notes\r\n\r\nfirst \xff\x00 words without a newline"
SAVED = "user/MEMORY.md was not ours; it is saved as user/memory-before-muniment.md"


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


@pytest.fixture
def index(ground):
    return ground.user / "MEMORY.md"


def rebuilt(ground, policy=STRICT):
    return upkeep.rebuild(ground.state, ground.roots["user"], policy, patience())


def problems(ground):
    return upkeep.verify(ground.state, ground.roots["user"], STRICT).problems


LINK = "user/MEMORY.md was a link; the index takes its place, what it led to is left alone"


def listed(index):
    data = index.read_bytes()
    targets = index_targets(data)
    assert list(index_problems(data, set(targets))) == []
    return sorted(targets)


def test_an_index_of_ours_that_is_stale_is_replaced_and_not_saved(ground, index):
    rebuilt(ground)
    (ground.user / "a.md").unlink()
    (problem,) = problems(ground)
    assert problem == "user/MEMORY.md differs from its entries; run: muniment index rebuild"
    assert rebuilt(ground) == ()
    assert listed(index) == ["topic/t.md"]


def test_a_memory_that_holds_nothing_yet_needs_no_index(ground, index):
    (ground.user / "a.md").unlink()
    (ground.user / "topic" / "t.md").unlink()
    assert problems(ground) == rebuilt(ground) == ()
    assert not index.exists()


# What a person wrote.


@pytest.mark.parametrize("foreign", [FOREIGN, b"prose\n", b"\xff", b"x" * MAX_FILE_BYTES])
def test_a_foreign_index_is_saved_whole_and_said_once(ground, index, foreign):
    index.write_bytes(foreign)
    assert ground.commit(new("user/n.md")).notes == (SAVED,)
    assert (ground.user / "memory-before-muniment.md").read_bytes() == foreign
    assert listed(index) == ["a.md", "memory-before-muniment.md", "n.md", "topic/t.md"]
    assert ground.commit(new("user/m.md")).notes == ()
    assert (ground.user / "memory-before-muniment.md").read_bytes() == foreign


NOTES = [
    b"- [A](a.md) \xe2\x80\x94 ring Bob before touching this\n",
    b"# Memory index\n\n- [A](a.md)\n- [T](topic/t.md) - the door code is 4711\n",
    b"* [A](a.md): text\n  + [T](topic/t.md)\n",
    b"- [A, and ring Bob](a.md)\n",
    b"- [gone](gone.md)\n",
    b"- [ring Bob](index/0123456789ab.md) \xe2\x80\x94 3 entries\n",
]


@pytest.mark.threat("T-IDX-05", control="index_of_others_is_saved")
@pytest.mark.parametrize("mine", NOTES)
def test_a_persons_links_with_notes_are_saved_before_they_are_replaced(ground, index, mine):
    index.write_bytes(mine)
    assert ground.commit(new("user/n.md")).notes == (SAVED,)
    assert (ground.user / "memory-before-muniment.md").read_bytes() == mine
    kept = "memory-before-muniment.md"
    assert listed(index) == ["a.md", kept, "n.md", "topic/t.md"]
    assert ground.commit(new("user/m.md")).notes == ()


def forget_indexes(ground):
    """As if the catalog had been deleted."""
    with ground.state.catalog.transaction() as connection:
        connection.execute("DELETE FROM written")
    ground.state.renew_catalog()


def test_our_own_index_is_not_saved_where_nobody_remembers_that_it_is_ours(ground, index):
    """A catalog may be deleted at any time: what holds no word but those of the entries is no loss."""
    rebuilt(ground)
    ours = index.read_bytes()
    forget_indexes(ground)
    assert rebuilt(ground) == ()
    assert index.read_bytes() == ours
    forget_indexes(ground)
    assert ground.commit(new("user/n.md")).notes == ()
    assert listed(index) == ["a.md", "n.md", "topic/t.md"]


def test_an_index_that_says_what_entries_said_before_a_commit_of_ours_is_not_saved(ground, index):
    ground.commit(new("user/n.md", b"# N\n\nfirst\n"))
    theirs = index.read_bytes()
    ground.commit(ground.edit("user/n.md", b"# N\n\nsecond\n"))
    index.write_bytes(theirs)
    forget_indexes(ground)
    assert ground.commit(new("user/m.md")).notes == ()
    assert problems(ground) == ()


def test_an_index_of_another_home_that_trusts_entries_otherwise_is_not_saved(ground, index):
    rebuilt(ground)
    theirs = index.read_bytes()
    line = next(line for line in theirs.split(b"\n") if b"(a.md)" in line)
    index.write_bytes(theirs.replace(line, "- [a.md](a.md) — agent".encode()))
    assert rebuilt(ground) == ()
    assert index.read_bytes() == theirs


@pytest.mark.parametrize("entries", [3, 240])
def test_two_homes_that_share_a_root_save_no_index_of_each_other(ground, tmp_path, entries):
    """Each knows nothing of what the other wrote, changed and removed: only the files are shared."""
    for number in range(entries):
        put(ground.user, f"t{number % 3}/n{number}.md", f"# Note {number}\n\nfact {number}\n")
    with closing(State(tmp_path / "other")) as other:
        for turn in range(6):
            states = [ground.state, other] if turn % 2 else [other, ground.state]
            gone, kept = f"user/t{turn % 3}/n{turn}.md", f"user/t0/made-{turn}.md"
            if (ground.base / gone).exists() and turn < entries:
                removals = [claim(gone, (ground.base / gone).read_bytes())]
                terms = {"state": states[0], "origin": origin(f"r{turn}"), "reviewed": True}
                assert ground.commit(removals=removals, **terms).notes == ()
            done = ground.commit(new(kept, b"# Made\n\nx\n"), state=states[1], origin=origin(f"m{turn}"))
            assert done.notes == ()
            change = ground.edit(kept, b"# Other words\n\ny\n")
            assert ground.commit(change, state=states[0], origin=origin(f"e{turn}")).notes == ()
        assert not list(ground.user.glob("memory-before-muniment*"))
        for state in (ground.state, other):
            assert upkeep.verify(state, ground.roots["user"], STRICT).problems == ()


def test_verifying_says_what_a_rebuild_would_do_and_does_nothing(ground, index):
    index.write_bytes(FOREIGN)
    before = ground.photograph()
    assert problems(ground) == ("user/MEMORY.md is not ours; a rebuild will first save it as an entry",)
    assert ground.photograph() == before
    assert rebuilt(ground) == (SAVED,)
    assert problems(ground) == ()


def meanwhile(monkeypatch, acts):
    """Do something between a plan and its writes: one of `acts` each time, nothing once there are no more."""
    real, acts = upkeep.apply, iter(acts)

    def late(*arguments, **more):
        next(acts, lambda: None)()
        return real(*arguments, **more)

    monkeypatch.setattr(upkeep, "apply", late)


def test_an_index_that_becomes_a_persons_own_while_it_is_written_is_saved_too(ground, index, monkeypatch):
    rebuilt(ground)
    (ground.user / "n.md").write_bytes(b"new\n")
    meanwhile(monkeypatch, [lambda: index.write_bytes(FOREIGN)])
    assert rebuilt(ground) == (SAVED,)
    assert (ground.user / "memory-before-muniment.md").read_bytes() == FOREIGN
    assert listed(index) == ["a.md", "memory-before-muniment.md", "n.md", "topic/t.md"]


def test_an_index_that_somebody_edits_all_the_time_is_left_to_them(ground, index, monkeypatch):
    index.write_bytes(FOREIGN)
    expected = ground.contents()
    meanwhile(monkeypatch, [lambda at=at: index.write_bytes(b"late edit %d" % at) for at in range(3)])
    with pytest.raises(StoreConflict):
        rebuilt(ground)
    assert ground.contents() == {**expected, "user/MEMORY.md": sha(b"late edit 2")}


# What is no file.


@pytest.mark.parametrize("target", ["secret.md", "nothing.md", "."])
def test_an_index_that_is_a_link_is_replaced_and_its_target_is_not_touched(ground, index, target):
    index.symlink_to(ground.outside / target)
    outside = {path: kept for path, kept in ground.photograph().items() if path.startswith("outside")}
    assert problems(ground) == ("user/MEMORY.md is a link; run: muniment index rebuild",)
    assert ground.commit(new("user/n.md")).notes == (LINK,)
    assert not index.is_symlink()
    assert listed(index) == ["a.md", "n.md", "topic/t.md"]
    assert {path: kept for path, kept in ground.photograph().items() if path.startswith("outside")} == outside


def test_an_index_with_a_second_name_elsewhere_is_replaced_and_the_other_keeps_its_bytes(ground, index):
    os.link(ground.outside / "secret.md", index)
    assert ground.commit(new("user/n.md")).notes == (LINK,)
    assert listed(index) == ["a.md", "n.md", "topic/t.md"]
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


def test_a_directory_in_the_place_of_an_index_is_told_and_the_commit_lands(ground, index):
    index.mkdir()
    (index / "kept.md").write_bytes(b"kept")
    (note,) = ground.commit(new("user/n.md")).notes
    assert note == "user/MEMORY.md cannot be rebuilt: user/MEMORY.md is a directory; move it away"
    assert (ground.user / "n.md").exists()
    assert (index / "kept.md").read_bytes() == b"kept"
    assert problems(ground) == rebuilt(ground) == (note,)
    index.joinpath("kept.md").unlink()
    index.rmdir()
    assert ground.commit(new("user/m.md")).notes == ()
    assert listed(index) == ["a.md", "m.md", "n.md", "topic/t.md"]


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


def test_a_memory_that_cannot_be_read_completely_never_loses_its_index(ground, index, monkeypatch):
    rebuilt(ground)
    complete = index.read_bytes()
    monkeypatch.setattr(catalog.View, "complete", False)
    note = "user/MEMORY.md cannot be rebuilt: the memory could not be read completely"
    assert ground.commit(new("user/n.md")).notes == (note,)
    assert (ground.user / "n.md").exists()
    assert index.read_bytes() == complete
    assert problems(ground) == rebuilt(ground) == (note,)
    monkeypatch.undo()
    assert ground.commit(new("user/m.md")).notes == ()
    assert listed(index) == ["a.md", "m.md", "n.md", "topic/t.md"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_permissions_never_costs_the_index_its_lines(ground, index):
    rebuilt(ground)
    complete = index.read_bytes()
    (ground.user / "topic").chmod(0)
    try:
        (note,) = ground.commit(new("user/n.md")).notes
    finally:
        (ground.user / "topic").chmod(0o700)
    assert "could not be read completely" in note
    assert index.read_bytes() == complete


# Pages.

MANY = [f"t/{at}.md" for at in range(100)] + [f"u/{at}.md" for at in range(100)]
PAGE = f"index/{digest_of('t')[:12]}.md"
OTHER = f"index/{digest_of('u')[:12]}.md"
REBUILD = "run: muniment index rebuild"


@pytest.fixture
def shelf(tmp_path):
    made = Shelf(tmp_path)
    with made.catalog.transaction():
        for rel in MANY:
            made.put(rel)
    yield made
    made.close()


def told(shelf, **more):
    """What a person is told of an index that is brought up to date."""
    plan = shelf.plan(**more)
    shelf.carry_out(plan)
    return plan.notes


def in_index(shelf):
    return {
        rel: text for rel, text in shelf.files().items() if rel == "MEMORY.md" or rel.startswith("index/")
    }


@pytest.mark.parametrize("text", [b"my notes\n", b"\xff\0", b"# Memory index: t\n\n- [A](http://a)\n"])
def test_a_persons_own_file_at_the_name_of_a_page_is_saved_whole(shelf, text):
    (shelf.top / "index").mkdir()
    (shelf.top / PAGE).write_bytes(text)
    (shelf.top / "memory-before-muniment.md").write_bytes(b"theirs")
    assert shelf.verify().problems.count(f"user/{PAGE} is not ours; a rebuild will first save it as an entry")
    plan = shelf.plan()
    assert plan.saves
    assert plan.notes == (f"user/{PAGE} was not ours; it is saved as user/memory-before-muniment-2.md",)
    shelf.carry_out(plan)
    assert (shelf.top / "memory-before-muniment-2.md").read_bytes() == text
    assert (shelf.top / "memory-before-muniment.md").read_bytes() == b"theirs"
    assert in_index(shelf) == expected(shelf.lines)
    assert not shelf.plan(whole=True).saves


def test_a_page_that_somebody_wrote_in_is_saved_once_it_is_written_again(shelf):
    shelf.index()
    edited = (shelf.top / PAGE).read_text() + "call Bob\n"
    (shelf.top / PAGE).write_text(edited)
    shelf.put("u/0.md", "changed")
    assert told(shelf) == ()
    shelf.put("t/0.md", "changed")
    assert told(shelf) == (f"user/{PAGE} was not ours; it is saved as user/memory-before-muniment.md",)
    assert (shelf.top / "memory-before-muniment.md").read_text() == edited
    assert in_index(shelf) == expected(shelf.lines)


def test_a_page_that_is_no_more_goes_unless_somebody_wrote_in_it(shelf):
    shelf.index()
    edited = (shelf.top / PAGE).read_text() + "call Bob\n"
    (shelf.top / PAGE).write_text(edited)
    for rel in MANY[:95] + MANY[100:195]:
        shelf.drop(rel)
    assert told(shelf) == ()
    assert sorted(in_index(shelf)) == ["MEMORY.md", PAGE]
    assert (shelf.top / PAGE).read_text() == edited
    assert shelf.verify().notes == (f"user/{PAGE} is no file of the index; it is left alone",)
    assert shelf.verify().problems == ()


def test_pages_that_nobody_remembers_go_with_a_rebuild_where_they_say_nothing_of_their_own(shelf):
    shelf.index()
    whole = (shelf.top / OTHER).read_text()
    standing = [
        line for line in (shelf.top / PAGE).read_text().split("\n") if "/t/" not in line or "99" in line
    ]
    for rel in MANY[:99] + MANY[100:199]:
        shelf.drop(rel)
    shelf.index()
    (shelf.top / PAGE).write_text("\n".join(standing))
    (shelf.top / OTHER).write_text(whole)
    (shelf.top / "index" / "notes.md").write_text("mine")
    (shelf.top / "index" / "0123456789ab.md").write_text("mine")
    (shelf.top / "index" / ".hidden").write_text("mine")
    (shelf.top / "index" / "sub").mkdir()
    shelf.forget()
    shelf.ever.clear()  # The ledger, too, knows of nothing that went.
    assert told(shelf) == ()
    names = sorted([".hidden", "0123456789ab.md", "notes.md", OTHER.removeprefix("index/")])
    assert sorted(in_index(shelf)) == ["MEMORY.md", *(f"index/{name}" for name in names)]
    assert shelf.verify().notes == tuple(
        f"user/index/{name} is no file of the index; it is left alone" for name in (*names[1:], "sub")
    )


def test_verifying_tells_of_pages_that_are_too_many(shelf):
    shelf.index()
    for rel in MANY[:99]:
        shelf.drop(rel)
    assert f"user/{PAGE} belongs to the index no more; {REBUILD}" in shelf.verify().problems


def test_pages_that_somebody_removed_altogether_are_made_again(shelf):
    shelf.index()
    (shelf.top / "index").rename(shelf.top / "elsewhere")
    shelf.put("t/new.md")
    assert told(shelf) == ()
    (shelf.top / "elsewhere").rename(shelf.top.parent / "elsewhere")
    assert in_index(shelf) == expected(shelf.lines)


def test_a_page_that_is_a_link_is_replaced_and_its_target_is_not_touched(shelf):
    outside = shelf.top.parent / "outside.md"
    outside.write_text("secret\n")
    (shelf.top / "index").mkdir()
    (shelf.top / PAGE).symlink_to(outside)
    os.link(outside, shelf.top / OTHER)
    assert f"user/{PAGE} is a link; {REBUILD}" in shelf.verify().problems
    assert sorted(told(shelf)) == sorted(
        f"user/{rel} was a link; the index takes its place, what it led to is left alone"
        for rel in (PAGE, OTHER)
    )
    assert outside.read_text() == "secret\n"
    assert not (shelf.top / PAGE).is_symlink()
    assert in_index(shelf) == expected(shelf.lines)


def test_a_link_at_the_name_of_a_page_that_is_no_more_is_left(shelf):
    shelf.index()
    (shelf.top / PAGE).unlink()
    (shelf.top / PAGE).symlink_to(shelf.top.parent / "outside.md")
    for rel in MANY[:95]:
        shelf.drop(rel)
    assert told(shelf) == ()
    assert (shelf.top / PAGE).is_symlink()
    assert shelf.verify().notes == (f"user/{PAGE} is no file of the index; it is left alone",)


@pytest.mark.parametrize("kind", ["link", "file", "unreadable", "fifo"])
def test_without_a_directory_for_pages_memory_md_counts_what_it_cannot_list(shelf, monkeypatch, kind):
    at = shelf.top / "index"
    outside = shelf.top.parent / "outside"
    outside.mkdir()
    if kind == "link":
        at.symlink_to(outside)
    elif kind == "file":
        at.write_text("mine")
    elif kind == "fifo":
        os.mkfifo(at)
    else:
        at.mkdir()
        real = Root.examine
        failing = lambda self, rel: real(self, rel) if rel != "index" else refuse(Unreadable("no"))  # noqa: E731
        monkeypatch.setattr(Root, "examine", failing)
    (note,) = told(shelf)
    assert note.startswith("user/index cannot be used: ")
    assert note.endswith(f"; move it away, then {REBUILD}")
    assert "4 more entries are not listed here." in (shelf.top / "MEMORY.md").read_text()
    assert list(outside.iterdir()) == []
    assert shelf.verify().problems == (note,)
    monkeypatch.undo()
    shelf.put("t/new.md")
    (shelf.top / "index").rename(shelf.top.parent / "away")
    assert told(shelf) == ()
    assert in_index(shelf) == expected(shelf.lines)


def refuse(error):
    raise error


def test_what_changes_while_an_index_is_written_is_in_the_next_one(shelf):
    plan = shelf.plan()
    shelf.put("t/0.md", "changed meanwhile")
    shelf.put("v/new.md")
    shelf.carry_out(plan)
    assert "meanwhile" not in (shelf.top / PAGE).read_text()
    shelf.index()
    assert in_index(shelf) == expected(shelf.lines)


def test_an_incomplete_view_forgets_nothing(shelf):
    shelf.index()
    shelf.drop("t/0.md")
    plan = plan_index(shelf.catalog, shelf.root, View(complete=False))
    assert shelf.carry_out(plan) == []
    shelf.index()
    assert in_index(shelf) == expected(shelf.lines)
