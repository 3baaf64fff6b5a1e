"""What a look finds, what it does not have to look at, its races, and how one that was given up goes on."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from kit.confine.trees import exchange
from kit.store.catalogued import KEY, as_nobody, catalogued, much_later
from kit.store.ground import STRICT
from muniment.confine.cancel import Patience
from muniment.confine.root import OpenDirectory
from muniment.errors import Cancelled, DeadlineExceeded, NotFound
from muniment.names import Trust
from muniment.store import catalog as subject
from muniment.store import upkeep
from muniment.store.catalog import Odd, refresh
from muniment.store.rows import Assessed
from muniment.store.state import open_catalog
from muniment.store.upkeep import view_in_time, view_of


@pytest.fixture
def root(tmp_path):
    with catalogued(tmp_path) as kept:
        yield kept


@pytest.fixture
def settled(root):
    """A catalog to which no time is too new, with two topics and three levels."""
    root.clock = much_later
    for rel in ("a.md", "one/b.md", "one/two/c.md", "one/two/three/d.md", "other/e.md"):
        root.put(rel, f"# {rel}\n")
    root.refresh()
    return root


def agree(root, **options):
    view = root.refresh(**options)
    assert root.differences(view) == {}
    return view


def rels(view):
    return [entry.rel for entry in view.entries()]


# What changed is found.


def test_a_file_that_changes_within_the_tick_of_the_last_look_is_found(root):
    path = root.put("topic/a.md", "# Zero\n")
    for name, change in {"One": lambda text: root.put("topic/a.md", text), "Two": path.write_text}.items():
        root.refresh()
        change(f"# {name}\n")
        root.stop_the_clock()
        assert agree(root).entry("topic/a.md").name == name


def test_an_edit_in_place_and_a_second_name_elsewhere_are_found_by_a_sweep_alone(settled, tmp_path):
    path, second = settled.top / B, tmp_path / "second.md"
    hard = (Odd(B, "leads outside the memory (hardlink)"),)
    for act, before, after, odd in (
        (lambda: path.write_text("# Edited\n"), "one/b.md", "Edited", ()),
        (lambda: os.link(path, second), "Edited", None, hard),
        (second.unlink, None, "Edited", ()),
    ):
        act()
        assert getattr(settled.refresh().entry(B), "name", None) == before
        view = agree(settled, sweep=True)
        assert getattr(view.entry(B), "name", None) == after
        assert view.odd() == odd


def test_another_directory_in_the_place_of_one_that_was_moved_away_is_listed(settled):
    topic = settled.top / "one"
    old = topic.stat()
    settled.put(".aside/b.md", "# Another\n")
    settled.put(".aside/two/c.md", "# Deeper\n")
    settled.refresh()
    exchange(topic, settled.top / ".aside")
    os.utime(topic, ns=(old.st_atime_ns, old.st_mtime_ns))
    os.utime(settled.top, ns=(0, 0))
    view = agree(settled)
    assert (view.entry("one/b.md").name, view.entry("one/two/c.md").name) == ("Another", "Deeper")
    assert view.entry("one/two/three/d.md") is None


def test_a_directory_that_cannot_be_read_hides_its_entries_until_it_can(settled):
    (settled.top / "one").chmod(0)
    with as_nobody(settled.top):
        view = settled.refresh()
        assert (view.complete, view.names("one")) == (False, None)
        assert view.odd() == (Odd("one", "this directory could not be listed"),)
        assert rels(view) == ["a.md", "other/e.md"]
        assert not settled.refresh().complete
    (settled.top / "one").chmod(0o700)
    agree(settled)


def test_what_could_not_be_listed_is_tried_again_and_not_taken_for_unchanged(settled, monkeypatch):
    def fail(*_):
        failed.append(1)
        raise NotFound("x")

    failed = []
    settled.put("one/two/new.md")
    with monkeypatch.context() as patched:
        once = lambda root, rel: fail() if rel == ONE and not failed else OpenDirectory(root, rel)  # noqa: E731
        patched.setattr(subject, "OpenDirectory", once)
        assert agree(settled).entry("one/two/new.md")
        assert failed
    with monkeypatch.context() as patched:
        patched.setattr(OpenDirectory, "entries", fail)
        view = settled.refresh(sweep=True)
        assert (view.complete, view.entries(), view.names("")) == (False, (), None)
        changes = settled.catalog.rows("SELECT total_changes()")
        settled.refresh()
        assert settled.catalog.rows("SELECT total_changes()") == changes
    agree(settled)


# While it is looked at.


B, ONE = "one/b.md", "one"
SYMLINK = "leads outside the memory (symlink)"


@pytest.mark.parametrize(
    ("what", "act", "beside", "odd", "complete"),
    [
        (B, lambda at: at.symlink_to("secret.md"), "one/x.md", (Odd(B, SYMLINK),), True),
        (B, Path.mkdir, "one/x.md", (Odd(B, "became a directory while it was looked at"),), False),
        (B, lambda _: None, "one/x.md", (), True),
        (ONE, lambda at: at.symlink_to("../moved"), "y.md", (Odd(ONE, SYMLINK),), True),
    ],
)
def test_what_is_replaced_while_it_is_looked_at_is_odd_and_no_part_of_the_memory(
    settled, monkeypatch, tmp_path, what, act, beside, odd, complete
):
    settled.put(B, "# Changed\n")
    settled.put(beside)  # Of the root and a topic that both changed, the root is listed first.
    settled.clock, real = time.time_ns, OpenDirectory.entries

    def entries(self):
        answer = real(self)
        if not (tmp_path / "moved").exists():
            (settled.top / what).rename(tmp_path / "moved")
            act(settled.top / what)
        return answer

    monkeypatch.setattr(OpenDirectory, "entries", entries)
    view = settled.refresh()
    assert (view.entry(B), view.odd(), view.complete) == (None, odd, complete)
    assert {"a.md", "other/e.md", beside} <= {*rels(view)}
    agree(settled)


# A look that is given up goes on the next time where it ended, whoever else looks meanwhile.

FILES = [f"{topic}{number}.md" for topic in ("", "one/", "one/deep/", "two/") for number in range(5)]


@pytest.fixture
def batched(root, monkeypatch):
    monkeypatch.setattr(subject, "BATCH", 3)
    root.clock = much_later
    for rel in FILES:
        root.put(rel, f"# Entry {rel}\n")
    return root


def look(root, after=None, *, basis="first", catalog=None):
    """Refresh; the files that were read. After so many it is given up: then None is the last."""
    asked = []

    def assess(rel, _digest, _data):
        if len(asked) == after:
            raise Cancelled("enough")
        asked.append(rel)
        return Assessed(Trust.OWNER)

    try:
        refresh(catalog or root.catalog, KEY, root.bound, assess, basis=basis, clock=much_later)
    except Cancelled:
        asked.append(None)
    return asked


@pytest.mark.parametrize("after", [0, 2, 3, 10, 19])
def test_a_look_that_is_given_up_anywhere_goes_on_from_its_last_batch(batched, after):
    first = look(batched, after)
    assert (first[-1], len(first)) == (None, after + 1)
    kept = {*first[: after // 3 * 3]}
    view = subject.View(batched.catalog, KEY, batched.bound, batched.assess, clock=much_later)
    assert {*rels(view)} == kept
    assert not view.complete
    assert {*look(batched)} == {*FILES} - kept
    assert batched.differences(batched.refresh()) == {}


def test_on_another_basis_nothing_is_told_that_was_not_read_again(batched):
    batched.refresh()
    look(batched, 7, basis="second")
    told = "SELECT rel FROM entry WHERE expires IS NULL OR expires > '2026'"
    known = {rel for (rel,) in batched.catalog.rows(told)}
    assert len(known) == 6
    batched.basis = "second"
    again = batched.refresh()
    assert {*batched.asked} == {*FILES} - known
    assert batched.differences(again) == {}
    assert batched.relisted() == {entry for (entry,) in batched.catalog.rows("SELECT key FROM entry")}


@pytest.mark.parametrize(("basis", "read"), [("first", 3), ("second", len(FILES)), (None, len(FILES))])
def test_whoever_is_overtaken_begins_again_and_at_last_keeps_others_out(batched, basis, read):
    real, overtaken = batched.catalog.save, []
    with closing(open_catalog(batched.catalog.path)) as other:

        def save():
            if basis is None or overtaken:
                return basis is not None and real()
            real()
            overtaken.append(True)
            with batched.catalog.bare() as connection:
                connection.execute("COMMIT")
                look(batched, basis=basis, catalog=other)
                connection.execute("BEGIN IMMEDIATE")
            return False

        batched.catalog.save = save
        assert len({*look(batched)}) == read
        batched.catalog.save = real
    assert batched.differences(batched.refresh()) == {}


# In time for an answer.


def test_what_there_is_no_time_for_is_left_to_the_next_look(ground, monkeypatch):
    monkeypatch.setattr(subject, "BATCH", 1)
    user, looks, real = ground.roots["user"], [], upkeep._patiently
    assert len(view_of(ground.state, user, STRICT).entries()) == 2
    ground.state.renew_catalog()

    def slow(assess, patience):
        def one_file(*asked):
            looks.append(asked)
            if len(looks) > 1:
                raise DeadlineExceeded("no time")
            return assess(*asked)

        return real(one_file, patience)

    patience = Patience(time.monotonic() + 60)
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "_patiently", slow)
        assert len(view_in_time(ground.state, user, STRICT, patience).entries()) == 1
    assert len(view_in_time(ground.state, user, STRICT, patience).entries()) == 2
    with pytest.raises(DeadlineExceeded):
        view_in_time(ground.state, user, STRICT, Patience(time.monotonic()))
