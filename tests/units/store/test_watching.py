"""Looks at a root by a process that stays: what they find, and that one that fails loses nothing."""

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
from kit.recall.places import WAIT, EndlessSweep, ground, nothing_left_behind, telling
from muniment.errors import Cancelled, ManagedMemoryUnavailable, Unreadable
from muniment.kernel.cancel import Patience
from muniment.kernel.listing import OpenDirectory
from muniment.store import catalog, visit
from muniment.store import watching as subject
from muniment.store.catalog import Look
from muniment.store.upkeep import view_of
from muniment.store.watching import Looks, looks_of

told = pytest.fixture(telling)
FOREVER = Patience(math.inf)
TREE = {f"user/{topic}/{name}.md": f"About {topic} {name}\n" for topic in "abc" for name in ("one", "two")}


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(visit, "_RACY_NS", -(10**18))  # What was just written counts as written long ago.
    with nothing_left_behind(), ground(tmp_path, entries=TREE) as made:
        yield made


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def look(made, clock):
    """Looks at the root `user` and tells what words stand in its rows."""
    with closing(Looks(made.state, clock=clock)) as looks:

        def look(word=None, patience=FOREVER):
            view = looks.view(made.place.roots["user"], made.place.policy, patience)
            found = made.state.catalog.rows(
                "SELECT rel FROM text JOIN entry ON entry.id = text.rowid WHERE text MATCH ? ORDER BY rel",
                (word or "about",),
            )
            assert view.complete
            return [rel for (rel,) in found]

        look.looks = looks
        yield look


@pytest.fixture
def asked(monkeypatch):
    """How often a file or directory was asked by name."""
    real, calls = OpenDirectory.status_of, []
    monkeypatch.setattr(OpenDirectory, "status_of", lambda self, name: calls.append(name) or real(self, name))
    return calls


def append(file, text):
    """By another process, into the same file."""
    inode = file.stat().st_ino
    subprocess.run(["/bin/sh", "-c", 'printf %s "$1" >> "$0"', str(file), text], check=True, timeout=WAIT)
    assert file.stat().st_ino == inode


def test_each_look_of_one_that_stays_finds_an_append_of_another_process_and_asks_nothing_when_idle(
    made, look, asked
):
    for number in range(5):
        append(made.file("user/b/two.md"), f" zebra{number}")
        assert look(f"zebra{number}") == ["b/two.md"]
    asked.clear()
    assert len(look()) == 6
    assert asked == []


def test_name_whose_status_cannot_be_told_is_listed_and_kept(made, look, monkeypatch):
    for _ in range(2):
        look()
    append(made.file("user/b/two.md"), " zebra")
    real = os.stat

    def failing(name, *rest, **terms):
        if name == b"two.md":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(name, *rest, **terms)

    monkeypatch.setattr(os, "stat", failing)
    assert look("zebra") == ["b/two.md"]


def test_folder_that_cannot_be_opened_to_be_watched_ends_the_watch(made, look, monkeypatch, told):
    look()
    real = subject.OpenDirectory

    def opening(root, where):
        if where.rel == "b":
            raise Unreadable("too many files are open")
        return real(root, where)

    monkeypatch.setattr(subject, "OpenDirectory", opening)
    look()
    monkeypatch.setattr(subject, "OpenDirectory", real)
    made.put("user/b/three.md", "A zebra\n")
    assert look("zebra") == ["b/three.md"]
    assert [each["event"] for each in told()] == ["memory_not_watched"]


def looks_at_closed(made, look):
    """What is seen of the root `user` after somebody closed it."""
    made.put("user/b/three.md", "About b three\n")
    return look.looks.view(made.place.roots["user"], made.place.policy, FOREVER)


def test_a_root_that_cannot_be_opened_holds_nobody_up(made, look):
    for _ in range(2):
        look()
    made.place.roots["user"].close()
    view = looks_at_closed(made, look)
    assert not view.complete


def test_a_name_is_looked_at_alone_and_who_is_not_told_lists_its_directory(made, look, monkeypatch):
    listed, real = [], OpenDirectory.entries
    monkeypatch.setattr(OpenDirectory, "entries", lambda self: listed.append(1) or real(self))
    for _ in range(2):
        look()
    listed.clear()
    made.put("user/b/three.md", "About b three\n")
    made.file("user/b/one.md").unlink()
    made.file("user/a/two.md").rename(made.file("user/c/three.md"))
    (made.file("user/b/one.md").parent / "odd name?.md").write_text("About nothing\n")
    assert look() == ["a/one.md", "b/three.md", "b/two.md", "c/one.md", "c/three.md", "c/two.md"]
    assert listed == []
    view = view_of(made.state, made.place.roots["user"], made.place.policy)
    assert listed == [1, 1, 1]
    assert view.names("b") == {"three.md", "two.md", "odd name?.md"}
    (made.file("user/b/two.md").parent / "new").mkdir()
    made.put("user/b/new/four.md", "About b four\n")
    assert "b/new/four.md" in look()
    assert listed[3:] != []


def test_new_deep_directories_and_what_comes_into_them_meanwhile_are_found(made, look, monkeypatch):
    look()
    look()
    made.put("user/d/e/f/new.md", "A walrus\n")
    real, late = subject.Watch.follow, [lambda: made.put("user/d/e/late.md", "A late walrus\n")]

    def follow(self, root, directories):
        if late:
            late.pop()()  # Behind the listing of its directory, before that is watched.
        return real(self, root, directories)

    monkeypatch.setattr(subject.Watch, "follow", follow)
    assert look("walrus") == ["d/e/f/new.md", "d/e/late.md"]
    made.file("user/d").rename(made.file("user/g"))
    assert look("walrus") == ["g/e/f/new.md", "g/e/late.md"]
    append(made.file("user/g/e/f/new.md"), " and a narwhal")
    assert look("narwhal") == ["g/e/f/new.md"]


@pytest.mark.parametrize("lost", [False, True])
def test_directories_that_others_took_the_place_of_between_two_looks_are_watched(
    made, look, tmp_path, monkeypatch, lost
):
    made.put("user/d/e/one.md", "An old walrus\n")
    new, away = tmp_path / "new", tmp_path / "away"
    (new / "e").mkdir(parents=True)
    (new / "e/one.md").write_text("A new walrus\n")
    for _ in range(3):
        assert look("walrus") == ["d/e/one.md"]
    if lost:
        monkeypatch.setattr(subject, "_LOST_COUNT", 0x800)  # With the move itself.
    made.file("user/d").rename(away)
    new.rename(made.file("user/d"))
    assert look("new") == ["d/e/one.md"]
    monkeypatch.setattr(subject, "_LOST_COUNT", 0x4000)
    append(made.file("user/d/e/one.md"), " and a narwhal")
    append(away / "e/one.md", " and a zebra")
    assert (look("narwhal"), look("zebra")) == (["d/e/one.md"], [])


def test_a_directory_that_is_met_at_its_new_path_first_is_watched_there_alone(made):
    for name in "xy":
        made.put(f"user/p/{name}/a/one.md", "A walrus\n")
    made.file("user/p/y/a/one.md").unlink()
    made.file("user/p/y/a").rmdir()
    root, watched = made.place.roots["user"].root, {"", "p", "p/x", "p/x/a", "p/y"}
    with closing(subject.Watch()) as watch:
        watch.follow(root, watched)
        made.file("user/p/x/a").rename(made.file("user/p/y/a"))
        assert watch.follow(root, {*watched, "p/y/a"}) == ["p/y/a"]
        made.file("user/p").rename(made.file("user/q"))
        assert {"", "p", "p/x", "p/y/a"} <= watch.changed().keys()
        assert watch.follow(root, {"", "q/y/a"}) == ["q/y/a"]
        append(made.file("user/q/y/a/one.md"), " and a narwhal")
        assert watch.changed() == {"q/y/a": {"one.md"}}
        watch.follow(root, {""})
        append(made.file("user/q/y/a/one.md"), " and a zebra")
        assert watch.changed() == {}
        watch.close()


def test_a_look_ends_while_somebody_makes_one_directory_after_another(made, look, monkeypatch):
    look()
    look()
    real, number = subject.Watch.follow, count()

    def follow(self, root, directories):
        made.put(f"user/{next(number)}/new.md", "A walrus\n")
        return real(self, root, directories)

    with monkeypatch.context() as storm:
        storm.setattr(subject.Watch, "follow", follow)
        made.put("user/first/new.md", "A walrus\n")
        assert "first/new.md" in look("walrus")
        assert next(number) < 30
    assert len(look("walrus")) == next(number)


def test_a_look_that_fails_loses_nothing_that_the_system_told(made, look, monkeypatch):
    look()
    look()
    append(made.file("user/a/one.md"), " zebra")
    with monkeypatch.context() as broken:
        broken.setattr(visit.Visit, "run", Mock(side_effect=Cancelled("given up")))
        with pytest.raises(Cancelled):
            look()
    assert look("zebra") == ["a/one.md"]


@pytest.mark.parametrize("lost", ["count", "instance", "watches", "another system"])
def test_where_the_system_loses_count_or_has_no_watch_left_all_directories_are_asked(
    made, look, told, monkeypatch, lost
):
    if lost == "instance":
        libc = Mock(inotify_init1=Mock(return_value=-1))
        monkeypatch.setattr(subject.ctypes, "CDLL", lambda *_, **__: libc)
    if lost == "another system":
        monkeypatch.setattr(subject, "IS_LINUX", False)
    look()
    look()
    if lost == "count":
        monkeypatch.setattr(subject, "_LOST_COUNT", 0x2)
        append(made.file("user/a/one.md"), " zebra")
    if lost == "watches":
        monkeypatch.setattr(subject, "MAX_WATCHED", 3)
    made.put("user/h/new.md", "A zebra\n")
    assert look("zebra") == [*(["a/one.md"] if lost == "count" else []), "h/new.md"]
    made.put("user/i/new.md", "A walrus\n")
    assert look("walrus") == ["i/new.md"]
    events = [each["event"] for each in told() if each["event"] == "memory_not_watched"]
    assert len(events) == (lost != "count")


def test_without_a_watch_every_file_is_asked_once_a_minute_beside_the_caller(made, look, clock, monkeypatch):
    monkeypatch.setattr(subject.Watch, "__init__", Mock(side_effect=OSError(errno.EMFILE, "none left")))
    look()
    append(made.file("user/c/one.md"), " zebra")
    clock.advance(subject.SWEEP_SECONDS - 1)
    assert look("zebra") == []
    with monkeypatch.context() as none_left:
        none_left.setattr(subject.threading.Thread, "start", Mock(side_effect=RuntimeError("none left")))
        clock.advance(1)
        assert (look("zebra"), look.looks._sweeping) == ([], None)
    clock.advance(subject.SWEEP_SECONDS - 1)
    gate, real = threading.Event(), catalog.View.edited
    monkeypatch.setattr(catalog.View, "edited", lambda *it: gate.wait(WAIT) and real(*it))
    clock.advance(1)
    assert look("zebra") == []  # It waits for nothing.
    gate.set()
    look.looks._sweeping.join(WAIT)
    assert look("zebra") == ["c/one.md"]


def test_a_sweep_ends_when_it_is_closed_and_one_that_fails_is_told_and_hinders_nobody(
    look, clock, monkeypatch, told
):
    look()
    look()
    begun, failed = threading.Event(), Mock(side_effect=ManagedMemoryUnavailable("catalog.db", "full"))

    def endless(_view, patience):
        begun.set()
        for _ in count():
            patience.check()

    for edited in (failed, endless):
        monkeypatch.setattr(catalog.View, "edited", edited)
        clock.advance(subject.SWEEP_SECONDS)
        assert len(look()) == 6
        if edited is failed:
            look.looks._sweeping.join(WAIT)
    assert begun.wait(WAIT)
    look.looks.close()
    assert [each["event"] for each in told()] == ["memory_not_swept"]
    assert len(look()) == 6  # One that was closed still looks, everywhere.


def test_a_sweep_has_ended_when_the_roots_of_a_place_are_closed(tmp_path, monkeypatch):
    sweep = EndlessSweep(monkeypatch)
    with ground(tmp_path, entries=TREE) as made:
        for _ in range(2):
            looks_of(made.state).view(made.place.roots["user"], made.place.policy, FOREVER)
        assert sweep.begun.wait(WAIT)
    assert sweep.held == [True]


def test_of_many_files_a_new_process_asks_each_once_a_minute_whatever_the_clock_does(
    made, asked, monkeypatch
):
    monkeypatch.setattr(subject, "FEW_FILES", 3)
    root = made.place.roots["user"]

    def first():
        asked.clear()
        with closing(Looks(made.state)) as looks:
            looks.view(root, made.place.policy, FOREVER)
        return sum(name.endswith(".md") for name in asked)

    assert (first(), first(), first()) == (0, 6, 0)
    for seconds, is_due in ((-subject.SWEEP_SECONDS, True), (3_600, True), (0, False)):
        if seconds:
            with made.state.catalog.transaction() as connection:
                connection.execute("UPDATE root SET swept = swept + ?", (seconds,))
        assert first() == (6 if is_due else 0), seconds


def test_a_link_in_place_of_a_directory_is_not_watched(made, look, tmp_path):
    look()
    look()
    outside = tmp_path / "elsewhere"
    made.file("user/a").rename(outside)
    made.file("user/a").symlink_to(outside)
    assert [rel for rel in look() if rel.startswith("a/")] == []
    os.truncate(outside / "one.md", 0)
    assert look.looks._watched[next(iter(look.looks._watched))]._watch.changed() == {}


class Told(Look):
    """A look that is told of some names, once."""

    def __init__(self, stale):
        super().__init__()
        self.told = [stale]

    def stale(self, _view):
        return self.told.pop() if self.told else {}


def test_where_names_alone_do_not_tell_enough_the_directory_is_listed(made, monkeypatch):
    root, policy = made.place.roots["user"], made.place.policy
    view_of(made.state, root, policy)

    def look(names):
        return view_of(made.state, root, policy, look=Told({"b": names}))

    made.file("user/b/one.md").unlink()
    made.put("user/b/one.md/deep.md", "About a folder\n")
    assert look({"one.md"}).names("b/one.md") == {"deep.md"}
    shutil.rmtree(made.file("user/b/one.md"))
    made.put("user/b/one.md", "About b again\n")
    assert look({"one.md"}).names("b/one.md") is None
    made.file("user/b").rename(made.file("user/old"))
    made.put("user/b/other.md", "About another\n")
    assert look({"two.md"}).names("b") == {"other.md"}
    with monkeypatch.context() as few:
        few.setattr(visit, "MAX_NAMES", 5)
        made.put("user/b/more.md", "About more\n")
        assert not look({"more.md"}).complete
    assert look({"more.md"}).names("b") == {"more.md", "other.md"}
    shutil.rmtree(made.file("user/b"))
    assert look({"more.md"}).names("b") is None


def test_no_more_roots_are_watched_than_leave_others_some(made, look, monkeypatch):
    monkeypatch.setattr(subject, "MAX_ROOTS", 0)
    for number in range(3):
        made.put(f"user/b/{number}.md", f"About b {number}\n")
        assert f"b/{number}.md" in look()
    assert not any(each._watch for each in look.looks._watched.values())
