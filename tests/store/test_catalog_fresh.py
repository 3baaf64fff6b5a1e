"""What a refresh finds, and what it does not have to look at: the times of directories, and their races."""

from __future__ import annotations

import os
import threading
import time

import pytest

from confine.trees import exchange
from muniment.confine.root import OpenDirectory
from muniment.errors import NotAFile, NotFound
from muniment.store.catalog import Odd
from store.catalogued import as_nobody, catalogued, much_later


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


def test_with_nothing_changed_nothing_is_listed_read_or_written(settled, listed):
    changes = settled.catalog.rows("SELECT total_changes()")
    settled.refresh()
    assert (listed, settled.asked) == ([], [])
    assert settled.catalog.rows("SELECT total_changes()") == changes


def test_a_sweep_of_what_did_not_change_lists_but_reads_nothing(settled, listed):
    settled.refresh(sweep=True)
    assert (len(listed), settled.asked) == (5, [])


def test_only_the_directory_that_changed_is_listed_and_only_the_new_file_read(settled, listed):
    settled.put("one/two/new.md")
    agree(settled)
    assert (len(listed), settled.asked) == (1, ["one/two/new.md"])


def test_a_racy_directory_is_listed_until_it_has_settled(root, listed):
    root.put("topic/a.md")
    root.refresh()
    listed.clear()
    root.refresh()
    assert len(listed) == 2
    assert root.asked == ["topic/a.md"]
    root.clock = much_later
    root.refresh()
    listed.clear()
    root.refresh()
    assert listed == []


@pytest.mark.parametrize("column", ["inode", "mtime_ns", "ctime_ns"])
def test_a_directory_is_listed_if_anything_of_it_is_not_as_recorded(settled, listed, column):
    with settled.catalog.transaction() as connection:
        connection.execute(f"UPDATE directory SET {column} = {column} - 1 WHERE path = 'one/two'")
    settled.refresh()
    assert len(listed) == 1


@pytest.mark.parametrize("column", ["inode", "size", "mtime_ns", "ctime_ns"])
def test_a_file_is_read_if_anything_of_it_is_not_as_recorded(settled, column):
    with settled.catalog.transaction() as connection:
        connection.execute(f"UPDATE entry SET {column} = {column} - 1 WHERE rel = 'one/b.md'")
    settled.refresh(sweep=True)
    assert settled.asked == ["one/b.md"]


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


@pytest.mark.parametrize("rel", ["new.md", "one/new.md", "one/two/three/new.md", "fresh/deep/er/new.md"])
def test_a_new_file_is_found_at_every_depth(settled, rel):
    settled.put(rel)
    assert agree(settled).entry(rel)


@pytest.mark.parametrize("rel", ["a.md", "one/b.md", "one/two/three/d.md"])
def test_a_removed_file_is_gone(settled, rel):
    (settled.top / rel).unlink()
    assert agree(settled).entry(rel) is None


@pytest.mark.parametrize("rel", ["a.md", "one/b.md", "one/two/three/d.md"])
def test_a_file_that_is_replaced_is_read_again(settled, rel):
    old = (settled.top / rel).stat()
    settled.put(rel, f"# {rel[::-1]}\n")
    os.utime(settled.top / rel, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (settled.top / rel).stat().st_size == old.st_size
    assert agree(settled).entry(rel).name == rel[::-1]


def test_a_file_replaced_within_the_tick_of_the_last_look_is_found(root):
    root.put("topic/a.md", "# One\n")
    root.refresh()
    root.put("topic/a.md", "# Two\n")
    root.stop_the_clock()
    assert agree(root).entry("topic/a.md").name == "Two"


def test_a_file_added_within_the_tick_of_the_last_look_is_found(root):
    root.put("topic/a.md")
    root.refresh()
    root.put("topic/b.md")
    root.stop_the_clock()
    assert root.rels() == ["topic/a.md", "topic/b.md"]


def test_an_edit_in_place_within_the_tick_of_the_last_look_is_found(root):
    path = root.put("topic/a.md", "# One\n")
    root.refresh()
    path.write_text("# Two\n")
    root.stop_the_clock()
    assert agree(root).entry("topic/a.md").name == "Two"


def test_what_changes_after_the_look_in_the_future_of_a_clock_that_jumped_back_is_found(root):
    root.clock = lambda: time.time_ns() - 3_600 * 10**9
    root.put("topic/a.md", "# One\n")
    root.refresh()
    root.put("topic/a.md", "# Two\n")
    root.stop_the_clock()
    assert agree(root).entry("topic/a.md").name == "Two"


def test_an_edit_in_place_is_found_by_a_sweep_alone(settled):
    (settled.top / "one/b.md").write_text("# Edited\n")
    assert settled.refresh().entry("one/b.md").name == "one/b.md"
    assert agree(settled, sweep=True).entry("one/b.md").name == "Edited"


def test_an_edit_in_place_that_sets_its_time_back_is_found_by_a_sweep(settled):
    path = settled.top / "one/b.md"
    old = path.stat()
    path.write_text("# two/c.md"[: old.st_size - 1] + "\n")
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (old.st_size, old.st_mtime_ns)
    agree(settled, sweep=True)


def test_a_directory_whose_time_is_set_back_is_listed_all_the_same(settled):
    topic = settled.top / "one"
    old = topic.stat()
    settled.put("one/new.md")
    os.utime(topic, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert agree(settled).entry("one/new.md")


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


def test_a_directory_that_was_removed_and_made_again_is_listed(settled):
    (settled.top / "other/e.md").unlink()
    (settled.top / "other").rmdir()
    settled.put("other/f.md")
    assert agree(settled).names("other") == {"f.md"}


def test_a_directory_that_is_gone_takes_all_beneath_it_along_and_nothing_beside_it(settled):
    for rel in ("one+/x.md", "one0/x.md", "on/x.md", "one-b/x.md"):
        settled.put(rel)
    settled.refresh()
    (settled.top / "one").rename(settled.top.parent / "elsewhere")
    view = agree(settled)
    assert view.directories() == ("", "on", "one+", "one-b", "one0", "other")
    assert settled.found("three") == []


def test_a_directory_deep_below_that_is_moved_is_found_where_it_is_now(settled):
    (settled.top / "one/two").rename(settled.top / "other/two")
    assert [entry.rel for entry in agree(settled).entries()] == [
        "a.md",
        "one/b.md",
        "other/e.md",
        "other/two/c.md",
        "other/two/three/d.md",
    ]


def test_names_that_change_in_case_alone_are_other_names(settled):
    (settled.top / "a.md").rename(settled.top / "A.md")
    (settled.top / "other").rename(settled.top / "Other")
    view = agree(settled)
    assert (view.entry("a.md"), view.entry("other/e.md")) == (None, None)
    assert view.entry("A.md")
    assert view.entry("Other/e.md")


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


def test_a_link_above_a_directory_that_itself_did_not_change_is_not_followed(settled, tmp_path):
    (settled.top / "one/two").rename(tmp_path / "moved")
    (settled.top / "one/two").symlink_to(tmp_path / "moved")
    assert agree(settled).entry("one/two/three/d.md") is None


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


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("b.md"), os.mkdir])
def test_an_entry_whose_place_something_else_took_is_no_entry(settled, make):
    (settled.top / "one/b.md").unlink()
    make(settled.top / "one/b.md")
    assert agree(settled).entry("one/b.md") is None


def test_a_second_name_of_an_entry_elsewhere_is_found_by_a_sweep_and_so_is_its_end(settled, tmp_path):
    os.link(settled.top / "one/b.md", tmp_path / "second.md")
    assert settled.refresh().entry("one/b.md")
    view = agree(settled, sweep=True)
    assert view.entry("one/b.md") is None
    assert view.odd() == (Odd("one/b.md", "leads outside the memory (hardlink)"),)
    (tmp_path / "second.md").unlink()
    assert settled.refresh().entry("one/b.md") is None
    assert agree(settled, sweep=True).entry("one/b.md")


def test_a_second_name_in_the_same_directory_is_found_at_once(settled):
    os.link(settled.top / "one/b.md", settled.top / "one/second.md")
    view = agree(settled)
    assert [item.path for item in view.odd()] == ["one/b.md", "one/second.md"]
    (settled.top / "one/second.md").unlink()
    assert agree(settled).entry("one/b.md")


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


def test_a_file_that_changes_while_it_is_read_is_read_again(root, monkeypatch):
    root.put("a.md", "# One\n")
    meanwhile(root, monkeypatch, "read", lambda: (root.top / "a.md").write_text("# Two\n"))
    assert root.refresh().entry("a.md").name == "One"
    root.clock = much_later
    assert agree(root).entry("a.md").name == "Two"


def test_a_file_that_changes_while_it_is_read_has_other_times_than_are_recorded(settled, monkeypatch):
    settled.put("one/b.md", "# One\n")
    settled.let_time_pass()
    meanwhile(settled, monkeypatch, "read", lambda: (settled.top / "one/b.md").write_text("# Two\n"))
    settled.clock = much_later
    assert settled.refresh().entry("one/b.md").name == "One"
    assert agree(settled, sweep=True).entry("one/b.md").name == "Two"


def test_what_comes_while_a_directory_is_listed_is_found_by_the_next_refresh(settled, monkeypatch):
    settled.put("one/x.md")
    meanwhile(settled, monkeypatch, "entries", lambda: settled.put("one/y.md"))
    settled.refresh()
    assert agree(settled).entry("one/y.md")


def test_a_file_that_is_removed_while_it_is_looked_at_was_never_there(settled, monkeypatch):
    settled.put("one/x.md")
    meanwhile(settled, monkeypatch, "entries", (settled.top / "one/x.md").unlink)
    view = settled.refresh()
    assert (view.entry("one/x.md"), view.odd(), view.complete) == (None, (), True)
    agree(settled)


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


def test_a_name_that_stays_a_directory_to_whoever_opens_it_is_tried_again(settled, monkeypatch):
    real = OpenDirectory.read

    def fail(_self, name):
        raise NotAFile(name)

    monkeypatch.setattr(OpenDirectory, "read", fail)
    settled.put("one/x.md")
    assert not settled.refresh().complete
    monkeypatch.setattr(OpenDirectory, "read", real)
    agree(settled)


@pytest.mark.parametrize("method", ["entries", "read"])
def test_an_error_of_the_file_system_is_told_and_not_raised(settled, monkeypatch, method):
    real = getattr(OpenDirectory, method)

    def fail(_self, *_arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(OpenDirectory, method, fail)
    settled.put("one/b.md", "# Changed\n")
    view = settled.refresh()
    if method == "entries":
        assert not view.complete
    else:
        assert not view.entry("one/b.md").readable
    monkeypatch.setattr(OpenDirectory, method, real)
    settled.put("one/touched.md")
    agree(settled)


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


def test_own_writes_are_found_where_one_says_that_they_were(settled, listed):
    view = settled.refresh()
    settled.put("one/b.md", "# Mine\n")
    settled.put("other/f.md", "# Not looked for\n")
    view.look_again({"one"})
    assert len(listed) == 1
    assert view.entry("one/b.md").name == "Mine"
    assert view.entry("other/f.md") is None
    agree(settled)


@pytest.mark.parametrize("directories", [{"new/and/deep"}, {"new/and/deep", ""}, {"new", "new/and/deep"}])
def test_new_directories_are_found_from_the_one_that_was_written_in(settled, directories):
    view = settled.refresh()
    settled.put("new/and/deep/x.md")
    view.look_again(directories)
    assert settled.differences(view) == {}


def test_a_directory_that_one_removed_is_gone(settled):
    view = settled.refresh()
    (settled.top / "one/two/three/d.md").unlink()
    (settled.top / "one/two/three").rmdir()
    view.look_again(["one/two/three"])
    assert settled.differences(view) == {}


def test_looking_where_nothing_is_or_nothing_is_walked_finds_nothing(settled):
    view = settled.refresh()
    settled.put("index/page.md")
    settled.put(".x/y.md")
    view.look_again(["index", ".x", "nowhere/at/all", "a.md"])
    assert settled.differences(view) == {}
    view.look_again([])
    assert settled.differences(view) == {}


def test_looking_again_at_a_root_that_was_never_looked_at_finds_everything_in_it(root):
    view = root.refresh()
    with root.catalog.transaction() as connection:
        for table in ("directory", "name", "entry", "text"):
            connection.execute(f"DELETE FROM {table}")
    assert not view.complete
    root.put("topic/a.md")
    view.look_again(["topic"])
    assert root.differences(view) == {}


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
