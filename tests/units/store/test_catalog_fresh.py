"""What a refresh finds, and what it does not have to look at: the times of directories, and their races."""

from __future__ import annotations

import os
import threading
import time

import pytest

from kit.confine.trees import exchange
from kit.store.catalogued import as_nobody, catalogued, much_later
from muniment.confine.root import OpenDirectory
from muniment.errors import NotFound
from muniment.store.catalog import Odd


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


@pytest.fixture
def listed(monkeypatch):
    """How many directories were listed."""
    seen = []
    real = OpenDirectory.entries

    def entries(self):
        seen.append(self)
        return real(self)

    monkeypatch.setattr(OpenDirectory, "entries", entries)
    return seen


def agree(root, **options):
    view = root.refresh(**options)
    assert root.differences(view) == {}
    return view


# -- nothing to do


def test_what_lies_in_a_directory_that_could_not_be_opened_is_not_taken_for_unchanged(settled, monkeypatch):
    failed = []

    def fail_once(root, rel):
        if rel == "one" and not failed:
            failed.append(rel)
            raise NotFound(rel)
        return OpenDirectory(root, rel)

    settled.put("one/two/new.md")
    monkeypatch.setattr("muniment.store.catalog.OpenDirectory", fail_once)
    assert agree(settled).entry("one/two/new.md")
    assert failed


# -- what changed is found


def test_a_file_replaced_within_the_tick_of_the_last_look_is_found(root):
    root.put("topic/a.md", "# One\n")
    root.refresh()
    root.put("topic/a.md", "# Two\n")
    root.stop_the_clock()
    assert agree(root).entry("topic/a.md").name == "Two"


def test_an_edit_in_place_within_the_tick_of_the_last_look_is_found(root):
    path = root.put("topic/a.md", "# One\n")
    root.refresh()
    path.write_text("# Two\n")
    root.stop_the_clock()
    assert agree(root).entry("topic/a.md").name == "Two"


def test_an_edit_in_place_is_found_by_a_sweep_alone(settled):
    (settled.top / "one/b.md").write_text("# Edited\n")
    assert settled.refresh().entry("one/b.md").name == "one/b.md"
    assert agree(settled, sweep=True).entry("one/b.md").name == "Edited"


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


def test_two_directories_that_changed_places_are_told_apart(settled):
    exchange(settled.top / "one", settled.top / "other")
    assert agree(settled).names("one") == {"e.md"}


def test_a_directory_deep_below_that_is_moved_is_found_where_it_is_now(settled):
    (settled.top / "one/two").rename(settled.top / "other/two")
    assert [entry.rel for entry in agree(settled).entries()] == [
        "a.md",
        "one/b.md",
        "other/e.md",
        "other/two/c.md",
        "other/two/three/d.md",
    ]


@pytest.mark.parametrize("target", ["outside", "the directory itself, moved"])
def test_a_link_in_the_place_of_a_directory_is_not_followed(settled, tmp_path, target):
    (settled.top / "one").rename(tmp_path / "moved")
    if target == "outside":
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/b.md").write_text("# Secret\n")
        (settled.top / "one").symlink_to(tmp_path / "outside")
    else:
        (settled.top / "one").symlink_to(tmp_path / "moved")
    view = agree(settled)
    assert [entry.rel for entry in view.entries()] == ["a.md", "other/e.md"]
    assert view.odd() == (Odd("one", "a link or special file"),)


def test_files_and_directories_that_take_each_others_place_are_told_apart(settled):
    (settled.top / "a.md").unlink()
    settled.put("a.md/inner.md")
    (settled.top / "other/e.md").unlink()
    (settled.top / "other").rmdir()
    settled.put("other", "text")
    settled.put("one/two.md/x.md")
    assert agree(settled).entry("a.md/inner.md")
    (settled.top / "one/two.md/x.md").unlink()
    (settled.top / "one/two.md").rmdir()
    settled.put("one/two.md")
    assert agree(settled).entry("one/two.md")


def test_a_second_name_of_an_entry_elsewhere_is_found_by_a_sweep_and_so_is_its_end(settled, tmp_path):
    os.link(settled.top / "one/b.md", tmp_path / "second.md")
    assert settled.refresh().entry("one/b.md")
    view = agree(settled, sweep=True)
    assert view.entry("one/b.md") is None
    assert view.odd() == (Odd("one/b.md", "leads outside the memory (hardlink)"),)
    (tmp_path / "second.md").unlink()
    assert settled.refresh().entry("one/b.md") is None
    assert agree(settled, sweep=True).entry("one/b.md")


def test_a_directory_that_cannot_be_read_hides_its_entries_until_it_can(settled):
    (settled.top / "one").chmod(0)
    with as_nobody(settled.top):
        view = settled.refresh()
    assert (view.complete, view.names("one")) == (False, None)
    assert view.odd() == (Odd("one", "this directory could not be listed"),)
    assert [entry.rel for entry in view.entries()] == ["a.md", "other/e.md"]
    with as_nobody(settled.top):
        assert not settled.refresh().complete
    (settled.top / "one").chmod(0o700)
    agree(settled)


def test_what_could_not_be_listed_is_tried_again_though_nothing_about_it_changed(settled, monkeypatch):
    real = OpenDirectory.entries

    def fail(_self):
        raise NotFound("x")

    monkeypatch.setattr(OpenDirectory, "entries", fail)
    view = settled.refresh(sweep=True)
    assert (view.complete, view.entries(), view.names("")) == (False, (), None)
    changes = settled.catalog.rows("SELECT total_changes()")
    settled.refresh()
    assert settled.catalog.rows("SELECT total_changes()") == changes
    monkeypatch.setattr(OpenDirectory, "entries", real)
    agree(settled)


# -- while it is looked at


def meanwhile(root, monkeypatch, method, act):
    """Do something once, just after a method of the handle has answered; by the real clock."""
    root.clock = time.time_ns
    real = getattr(OpenDirectory, method)
    waiting = [act]

    def method_and_more(self, *arguments):
        answer = real(self, *arguments)
        if waiting:
            waiting.pop()()
        return answer

    monkeypatch.setattr(OpenDirectory, method, method_and_more)


def test_a_known_file_that_is_replaced_by_a_link_while_it_is_looked_at_is_odd(settled, monkeypatch, tmp_path):
    (tmp_path / "secret.md").write_text("# Secret\n")

    def swap():
        (settled.top / "one/b.md").unlink()
        (settled.top / "one/b.md").symlink_to(tmp_path / "secret.md")

    settled.put("one/b.md", "# Changed\n")
    meanwhile(settled, monkeypatch, "entries", swap)
    view = settled.refresh()
    assert view.entry("one/b.md") is None
    assert view.odd() == (Odd("one/b.md", "leads outside the memory (symlink)"),)
    agree(settled)


def test_a_file_that_becomes_a_directory_while_it_is_looked_at_leaves_the_view_incomplete(
    settled, monkeypatch
):
    def swap():
        (settled.top / "one/b.md").unlink()
        settled.put("one/b.md/inner.md")

    settled.put("one/b.md", "# Changed\n")
    meanwhile(settled, monkeypatch, "entries", swap)
    view = settled.refresh()
    assert (view.entry("one/b.md"), view.complete) == (None, False)
    assert view.odd() == (Odd("one/b.md", "became a directory while it was looked at"),)
    assert agree(settled).entry("one/b.md/inner.md")


def test_a_directory_that_is_replaced_by_a_link_while_it_is_looked_at_is_no_part_of_the_memory(
    settled, monkeypatch, tmp_path
):
    def swap():
        (settled.top / "one").rename(tmp_path / "moved")
        (settled.top / "one").symlink_to(tmp_path / "moved")

    settled.put("one/x.md")
    settled.put("y.md")
    meanwhile(settled, monkeypatch, "entries", swap)  # The root is listed first.
    view = settled.refresh()
    assert view.odd() == (Odd("one", "leads outside the memory (symlink)"),)
    assert (view.complete, view.names("one")) == (True, None)
    assert [entry.rel for entry in view.entries()] == ["a.md", "other/e.md", "y.md"]
    agree(settled)


# -- after one's own writes


# -- several at once


def test_threads_that_refresh_while_files_change_end_with_what_is_there(root):
    problems = []

    def refreshing():
        try:
            for _ in range(15):
                root.refresh()
        except BaseException as problem:
            problems.append(problem)
            raise

    threads = [threading.Thread(target=refreshing) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        root.put(f"t{number % 4}/{number % 10}.md", f"# {number}\n")
        if number % 7 == 0:
            (root.top / f"t{number % 4}").rename(root.top / f"moved{number}")
    for thread in threads:
        thread.join()
    assert problems == []
    agree(root)
