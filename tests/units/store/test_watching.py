"""Views of a root in a long-lived process: their results, and that a failed one loses nothing."""

import errno
import math
import os
import shutil
import subprocess
import threading
from contextlib import closing
from itertools import count
from unittest.mock import Mock

import pytest

from kit.clock import FakeClock
from kit.recall.contexts import WAIT, EndlessSweep, assert_threads_ended, make_event_reader, open_bench
from muniment.errors import Cancelled, ManagedMemoryUnavailable, Unreadable
from muniment.kernel.cancel import Deadline
from muniment.kernel.listing import OpenDirectory
from muniment.store import catalog, visit
from muniment.store import watching as subject
from muniment.store.catalog import ScanPlan
from muniment.store.upkeep import open_view
from muniment.store.watching import CatalogWatcher, get_watcher

logged_events = pytest.fixture(make_event_reader)
FOREVER = Deadline(math.inf)
TREE = {f"user/{topic}/{name}.md": f"About {topic} {name}\n" for topic in "abc" for name in ("one", "two")}


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(visit, "_RACY_NS", -(10**18))  # New files count as written long ago.
    with assert_threads_ended(), open_bench(tmp_path, entries=TREE) as made:
        yield made


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def find_words(made, clock):
    """A function that views the root `user` and returns the rows that contain a word."""
    with closing(CatalogWatcher(made.state, clock=clock)) as watcher:

        def find_words(word=None, patience=FOREVER):
            view = watcher.open_view(made.context.roots["user"], made.context.policy, patience)
            found = made.state.catalog.rows(
                "SELECT rel FROM text JOIN entry ON entry.id = text.rowid WHERE text MATCH ? ORDER BY rel",
                (word or "about",),
            )
            assert view.is_complete
            return [rel for (rel,) in found]

        find_words.looks = watcher
        yield find_words


@pytest.fixture
def status_calls(monkeypatch):
    """The names whose status was read."""
    real, calls = OpenDirectory.read_status, []
    monkeypatch.setattr(
        OpenDirectory, "read_status", lambda self, name: calls.append(name) or real(self, name)
    )
    return calls


def append_text(file, text):
    """Append from another process, into the same file."""
    inode = file.stat().st_ino
    subprocess.run(["/bin/sh", "-c", 'printf %s "$1" >> "$0"', str(file), text], check=True, timeout=WAIT)
    assert file.stat().st_ino == inode


def test_append_of_another_process_is_found_without_idle_calls(made, find_words, status_calls):
    for number in range(5):
        append_text(made.get_file_path("user/b/two.md"), f" zebra{number}")
        assert find_words(f"zebra{number}") == ["b/two.md"]
    status_calls.clear()
    assert len(find_words()) == 6
    assert status_calls == []


def test_name_with_a_failing_status_is_still_listed(made, find_words, monkeypatch):
    for _ in range(2):
        find_words()
    append_text(made.get_file_path("user/b/two.md"), " zebra")
    real = os.stat

    def stat_or_fail(name, *rest, **terms):
        if name == b"two.md":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(name, *rest, **terms)

    monkeypatch.setattr(os, "stat", stat_or_fail)
    assert find_words("zebra") == ["b/two.md"]


def test_folder_that_cannot_be_opened_ends_the_watch(made, find_words, monkeypatch, logged_events):
    find_words()
    real = subject.OpenDirectory

    def open_or_fail(root, where):
        if where.rel == "b":
            raise Unreadable("too many files are open")
        return real(root, where)

    monkeypatch.setattr(subject, "OpenDirectory", open_or_fail)
    find_words()
    monkeypatch.setattr(subject, "OpenDirectory", real)
    made.write_files("user/b/three.md", "A zebra\n")
    assert find_words("zebra") == ["b/three.md"]
    assert [each["event"] for each in logged_events()] == ["memory_not_watched"]


def view_closed_root(made, find_words):
    """Return the view of the root `user` after it was closed."""
    made.write_files("user/b/three.md", "About b three\n")
    return find_words.looks.open_view(made.context.roots["user"], made.context.policy, FOREVER)


def test_closed_root_blocks_nothing(made, find_words):
    for _ in range(2):
        find_words()
    made.context.roots["user"].close()
    view = view_closed_root(made, find_words)
    assert not view.is_complete


def test_only_changed_names_are_read_except_by_a_new_view(made, find_words, monkeypatch):
    listed, real = [], OpenDirectory.entries
    monkeypatch.setattr(OpenDirectory, "entries", lambda self: listed.append(1) or real(self))
    for _ in range(2):
        find_words()
    listed.clear()
    made.write_files("user/b/three.md", "About b three\n")
    made.get_file_path("user/b/one.md").unlink()
    made.get_file_path("user/a/two.md").rename(made.get_file_path("user/c/three.md"))
    (made.get_file_path("user/b/one.md").parent / "odd name?.md").write_text("About nothing\n")
    assert find_words() == ["a/one.md", "b/three.md", "b/two.md", "c/one.md", "c/three.md", "c/two.md"]
    assert listed == []
    view = open_view(made.state, made.context.roots["user"], made.context.policy)
    assert listed == [1, 1, 1]
    assert view.names("b") == {"three.md", "two.md", "odd name?.md"}
    (made.get_file_path("user/b/two.md").parent / "new").mkdir()
    made.write_files("user/b/new/four.md", "About b four\n")
    assert "b/new/four.md" in find_words()
    assert listed[3:] != []


def test_new_deep_directories_and_late_files_are_found(made, find_words, monkeypatch):
    find_words()
    find_words()
    made.write_files("user/d/e/f/new.md", "A walrus\n")
    real, late = subject.Watch.watch, [lambda: made.write_files("user/d/e/late.md", "A late walrus\n")]

    def follow(self, root, directories):
        if late:
            late.pop()()  # After the listing of its directory, before that is watched.
        return real(self, root, directories)

    monkeypatch.setattr(subject.Watch, "watch", follow)
    assert find_words("walrus") == ["d/e/f/new.md", "d/e/late.md"]
    made.get_file_path("user/d").rename(made.get_file_path("user/g"))
    assert find_words("walrus") == ["g/e/f/new.md", "g/e/late.md"]
    append_text(made.get_file_path("user/g/e/f/new.md"), " and a narwhal")
    assert find_words("narwhal") == ["g/e/f/new.md"]


@pytest.mark.parametrize("lost", [False, True])
def test_directories_that_replaced_others_are_watched(made, find_words, tmp_path, monkeypatch, lost):
    made.write_files("user/d/e/one.md", "An old walrus\n")
    new, away = tmp_path / "new", tmp_path / "away"
    (new / "e").mkdir(parents=True)
    (new / "e/one.md").write_text("A new walrus\n")
    for _ in range(3):
        assert find_words("walrus") == ["d/e/one.md"]
    if lost:
        monkeypatch.setattr(subject, "_OVERFLOW", 0x800)  # Together with the move itself.
    made.get_file_path("user/d").rename(away)
    new.rename(made.get_file_path("user/d"))
    assert find_words("new") == ["d/e/one.md"]
    monkeypatch.setattr(subject, "_OVERFLOW", 0x4000)
    append_text(made.get_file_path("user/d/e/one.md"), " and a narwhal")
    append_text(away / "e/one.md", " and a zebra")
    assert (find_words("narwhal"), find_words("zebra")) == (["d/e/one.md"], [])


def test_moved_directory_is_watched_only_at_its_new_path(made):
    for name in "xy":
        made.write_files(f"user/p/{name}/a/one.md", "A walrus\n")
    made.get_file_path("user/p/y/a/one.md").unlink()
    made.get_file_path("user/p/y/a").rmdir()
    root, watched = made.context.roots["user"].root, {"", "p", "p/x", "p/x/a", "p/y"}
    with closing(subject.Watch()) as watch:
        watch.watch(root, watched)
        made.get_file_path("user/p/x/a").rename(made.get_file_path("user/p/y/a"))
        assert watch.watch(root, {*watched, "p/y/a"}) == ["p/y/a"]
        made.get_file_path("user/p").rename(made.get_file_path("user/q"))
        assert {"", "p", "p/x", "p/y/a"} <= watch.read_changes().keys()
        assert watch.watch(root, {"", "q/y/a"}) == ["q/y/a"]
        append_text(made.get_file_path("user/q/y/a/one.md"), " and a narwhal")
        assert watch.read_changes() == {"q/y/a": {"one.md"}}
        watch.watch(root, {""})
        append_text(made.get_file_path("user/q/y/a/one.md"), " and a zebra")
        assert watch.read_changes() == {}
        watch.close()


def test_view_ends_while_directories_are_created(made, find_words, monkeypatch):
    find_words()
    find_words()
    real, number = subject.Watch.watch, count()

    def follow(self, root, directories):
        made.write_files(f"user/{next(number)}/new.md", "A walrus\n")
        return real(self, root, directories)

    with monkeypatch.context() as storm:
        storm.setattr(subject.Watch, "watch", follow)
        made.write_files("user/first/new.md", "A walrus\n")
        assert "first/new.md" in find_words("walrus")
        assert next(number) < 30
    assert len(find_words("walrus")) == next(number)


def test_failed_view_loses_no_notification(made, find_words, monkeypatch):
    find_words()
    find_words()
    append_text(made.get_file_path("user/a/one.md"), " zebra")
    with monkeypatch.context() as broken:
        broken.setattr(visit.Visit, "run", Mock(side_effect=Cancelled("given up")))
        with pytest.raises(Cancelled):
            find_words()
    assert find_words("zebra") == ["a/one.md"]


@pytest.mark.parametrize("lost", ["count", "instance", "watches", "another system"])
def test_lost_notifications_lead_to_a_full_listing(made, find_words, logged_events, monkeypatch, lost):
    if lost == "instance":
        libc = Mock(inotify_init1=Mock(return_value=-1))
        monkeypatch.setattr(subject.ctypes, "CDLL", lambda *_, **__: libc)
    if lost == "another system":
        monkeypatch.setattr(subject, "IS_LINUX", False)
    find_words()
    find_words()
    if lost == "count":
        monkeypatch.setattr(subject, "_OVERFLOW", 0x2)
        append_text(made.get_file_path("user/a/one.md"), " zebra")
    if lost == "watches":
        monkeypatch.setattr(subject, "MAX_WATCHED_DIRECTORIES", 3)
    made.write_files("user/h/new.md", "A zebra\n")
    assert find_words("zebra") == [*(["a/one.md"] if lost == "count" else []), "h/new.md"]
    made.write_files("user/i/new.md", "A walrus\n")
    assert find_words("walrus") == ["i/new.md"]
    events = [each["event"] for each in logged_events() if each["event"] == "memory_not_watched"]
    assert len(events) == (lost != "count")


def test_every_file_is_swept_once_a_minute_without_a_watch(made, find_words, clock, monkeypatch):
    monkeypatch.setattr(subject.Watch, "__init__", Mock(side_effect=OSError(errno.EMFILE, "none left")))
    find_words()
    append_text(made.get_file_path("user/c/one.md"), " zebra")
    clock.advance(subject.SWEEP_SECONDS - 1)
    assert find_words("zebra") == []
    with monkeypatch.context() as none_left:
        none_left.setattr(subject.threading.Thread, "start", Mock(side_effect=RuntimeError("none left")))
        clock.advance(1)
        assert (find_words("zebra"), find_words.looks._sweep_thread) == ([], None)
    clock.advance(subject.SWEEP_SECONDS - 1)
    gate, real = threading.Event(), catalog.View.find_edited
    monkeypatch.setattr(catalog.View, "find_edited", lambda *it: gate.wait(WAIT) and real(*it))
    clock.advance(1)
    assert find_words("zebra") == []  # It waits for nothing.
    gate.set()
    find_words.looks._sweep_thread.join(WAIT)
    assert find_words("zebra") == ["c/one.md"]


def test_closed_sweep_ends_and_a_failed_one_is_logged(find_words, clock, monkeypatch, logged_events):
    find_words()
    find_words()
    begun, failed = threading.Event(), Mock(side_effect=ManagedMemoryUnavailable("catalog.db", "full"))

    def sweep_endlessly(_view, patience):
        begun.set()
        for _ in count():
            patience.check()

    for edited in (failed, sweep_endlessly):
        monkeypatch.setattr(catalog.View, "find_edited", edited)
        clock.advance(subject.SWEEP_SECONDS)
        assert len(find_words()) == 6
        if edited is failed:
            find_words.looks._sweep_thread.join(WAIT)
    assert begun.wait(WAIT)
    find_words.looks.close()
    assert [each["event"] for each in logged_events()] == ["memory_not_swept"]
    assert len(find_words()) == 6  # A closed watcher still views, everywhere.


def test_sweep_has_ended_when_the_roots_are_closed(tmp_path, monkeypatch):
    sweep = EndlessSweep(monkeypatch)
    with open_bench(tmp_path, entries=TREE) as made:
        for _ in range(2):
            get_watcher(made.state).open_view(made.context.roots["user"], made.context.policy, FOREVER)
        assert sweep.started.wait(WAIT)
    assert sweep.root_was_open == [True]


def test_many_files_are_swept_once_a_minute_by_new_processes(made, status_calls, monkeypatch):
    monkeypatch.setattr(subject, "FEW_FILES", 3)
    root = made.context.roots["user"]

    def count_status_calls():
        status_calls.clear()
        with closing(CatalogWatcher(made.state)) as watcher:
            watcher.open_view(root, made.context.policy, FOREVER)
        return sum(name.endswith(".md") for name in status_calls)

    assert (count_status_calls(), count_status_calls(), count_status_calls()) == (0, 6, 0)
    for seconds, is_due in ((-subject.SWEEP_SECONDS, True), (3_600, True), (0, False)):
        if seconds:
            with made.state.catalog.transaction() as connection:
                connection.execute("UPDATE root SET swept = swept + ?", (seconds,))
        assert count_status_calls() == (6 if is_due else 0), seconds


def test_link_in_place_of_a_directory_is_not_watched(made, find_words, tmp_path):
    find_words()
    find_words()
    outside = tmp_path / "elsewhere"
    made.get_file_path("user/a").rename(outside)
    made.get_file_path("user/a").symlink_to(outside)
    assert [rel for rel in find_words() if rel.startswith("a/")] == []
    os.truncate(outside / "one.md", 0)
    assert find_words.looks._watched[next(iter(find_words.looks._watched))]._watch.read_changes() == {}


class NotifiedLook(ScanPlan):
    """A look that reports some names, once."""

    def __init__(self, stale):
        super().__init__()
        self.stale_names = [stale]

    def find_stale(self, _view):
        return self.stale_names.pop() if self.stale_names else {}


def test_directory_is_listed_if_names_are_not_enough(made, monkeypatch):
    root, policy = made.context.roots["user"], made.context.policy
    open_view(made.state, root, policy)

    def view_with(names):
        return open_view(made.state, root, policy, scan_plan=NotifiedLook({"b": names}))

    made.get_file_path("user/b/one.md").unlink()
    made.write_files("user/b/one.md/deep.md", "About a folder\n")
    assert view_with({"one.md"}).names("b/one.md") == {"deep.md"}
    shutil.rmtree(made.get_file_path("user/b/one.md"))
    made.write_files("user/b/one.md", "About b again\n")
    assert view_with({"one.md"}).names("b/one.md") is None
    made.get_file_path("user/b").rename(made.get_file_path("user/old"))
    made.write_files("user/b/other.md", "About another\n")
    assert view_with({"two.md"}).names("b") == {"other.md"}
    with monkeypatch.context() as few:
        few.setattr(visit, "MAX_NAMES", 5)
        made.write_files("user/b/more.md", "About more\n")
        assert not view_with({"more.md"}).is_complete
    assert view_with({"more.md"}).names("b") == {"more.md", "other.md"}
    shutil.rmtree(made.get_file_path("user/b"))
    assert view_with({"more.md"}).names("b") is None


def test_watched_roots_are_bounded(made, find_words, monkeypatch):
    monkeypatch.setattr(subject, "MAX_ROOTS", 0)
    for number in range(3):
        made.write_files(f"user/b/{number}.md", f"About b {number}\n")
        assert f"b/{number}.md" in find_words()
    assert not any(each._watch for each in find_words.looks._watched.values())
