"""Reading the links beneath a root: all that a path can name, none followed, none waited for too long."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import Any

import pytest

from kit.confine.trees import CANARY, LINKS, RESOLVERS, plant, plant_link, snapshot
from kit.memories import descriptors
from muniment.confine import root as subject
from muniment.confine.root import MAX_ENTRIES, MAX_LINKS, Root, read_links
from muniment.confine.syscalls import EXAMINE
from muniment.errors import ManagedMemoryUnavailable


@pytest.fixture
def trees(tmp_path):
    return plant(tmp_path)


@pytest.fixture(params=RESOLVERS)
def root(request, trees):
    root = trees.root(request.param)
    yield root
    os.close(root.fd)


@dataclass
class Meddling:
    """A resolver that lets somebody else act just before an open."""

    honest: Any
    before: Any
    name: str = "meddling"

    def open(self, dir_fd, path, purpose):
        self.before(path, purpose)
        return self.honest.open(dir_fd, path, purpose)


def meddled(root, before):
    return Root(root.scope, root.fd, Meddling(root.resolver, before))


@pytest.mark.parametrize("shape", LINKS)
def test_a_link_of_any_shape_is_read_and_not_followed_nor_told_where_it_leads_outside(root, trees, shape):
    name, target, _rel = LINKS[shape]
    before = snapshot(trees.outside, trees.other)
    plant_link(trees, shape)
    target = target.format(outside=trees.outside, other=trees.other)
    expected = {name: "/" if target.startswith("/") else target}
    if shape == "a chain of links":
        expected["second.md"] = "/"
    assert read_links(root) == expected
    assert snapshot(trees.outside, trees.other) == before


def test_what_no_path_can_name_is_left_out(root, trees):
    inside = trees.inside
    for rel in ("bad|name.md", "bad*/l.md", "1/2/3/4/5/6/7/8/l.md", os.fsdecode(b"\xff.md"), "nul.md"):
        (inside / rel).parent.mkdir(parents=True, exist_ok=True)
        (inside / rel).symlink_to("x.md")
    assert read_links(root) == {}


def test_only_links_are_in_the_map(root, trees):
    os.mkfifo(trees.inside / "fifo.md")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(trees.inside / "socket.md"))
    (trees.inside / "hard.md").hardlink_to(trees.outside / "note.md")
    assert read_links(root) == {}


@pytest.mark.parametrize("target", [b"\xff/\xfe.md", b"a\nb", "é.md".encode(), b"x" * 4095])
def test_a_target_keeps_every_byte(root, trees, target):
    (trees.inside / "l.md").symlink_to(os.fsdecode(target))
    assert os.fsencode(read_links(root)["l.md"]) == target


def test_a_folder_that_is_a_link_is_not_entered(root, trees):
    (trees.outside / "inner.md").symlink_to("note.md")
    (trees.inside / "way").symlink_to(trees.outside)
    (trees.inside / "topic" / "again").symlink_to("../topic")
    assert read_links(root) == {"way": "/", "topic/again": "../topic"}


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EXDEV, errno.EACCES])
def test_a_folder_that_went_once_it_was_listed_has_no_links(root, trees, number):
    (trees.inside / "topic" / "l.md").symlink_to("x.md")
    (trees.inside / "l.md").symlink_to("x.md")

    def refuse(path, purpose):
        if path == b"topic" and purpose == EXAMINE:
            raise OSError(number, "on purpose")

    assert read_links(meddled(root, refuse)) == {"l.md": "x.md"}


def test_a_folder_that_became_a_link_once_it_was_listed_is_not_followed(root, trees):
    (trees.inside / "topic" / "one-more.md").symlink_to("x.md")
    (trees.outside / "one-more.md").symlink_to(CANARY)

    def swap(path, purpose):
        if path == b"topic" and purpose == EXAMINE:
            (trees.inside / "topic").rename(trees.inside / "kept")
            (trees.inside / "topic").symlink_to(trees.outside)

    assert CANARY not in str(read_links(meddled(root, swap)))


def test_a_link_that_went_or_became_a_file_once_it_was_listed_is_absent(root, trees):
    for name in ("first.md", "second.md", "third.md"):
        (trees.inside / name).symlink_to("x.md")

    def meddle(path, purpose):
        if path == b"." and purpose == EXAMINE:
            (trees.inside / "first.md").unlink()
            (trees.inside / "second.md").unlink()
            (trees.inside / "second.md").write_text("a file now")

    assert read_links(meddled(root, meddle)) == {"third.md": "x.md"}


def test_a_root_that_went_has_no_links(root, trees):
    (trees.inside / "l.md").symlink_to("x.md")
    trees.inside.rename(trees.inside.with_name("moved"))
    assert read_links(root) == {"l.md": "x.md"}
    trees.inside.mkdir()
    gone = Root("user", os.open(trees.inside, os.O_PATH | os.O_DIRECTORY), root.resolver)
    trees.inside.rmdir()
    assert read_links(gone) == {}
    os.close(gone.fd)


def refused(root):
    before = descriptors()
    with pytest.raises(ManagedMemoryUnavailable) as caught:
        read_links(root)
    assert descriptors() == before
    assert caught.value.what == root.scope
    assert "bind a smaller directory, or refuse links (symlinks = 'refuse')" in caught.value.reason
    return caught.value.reason


def test_more_links_than_are_resolved_say_what_to_do(root, trees):
    for number in range(MAX_LINKS):
        (trees.inside / "topic" / f"l{number}").symlink_to("x")
    assert len(read_links(root)) == MAX_LINKS
    (trees.inside / "one-more").symlink_to("x")
    assert f"more than {MAX_LINKS} links" in refused(root)


def test_very_long_targets_count_as_many_links(root, trees, monkeypatch):
    monkeypatch.setattr(subject, "MAX_LINK_BYTES", 20)
    (trees.inside / "l.md").symlink_to(os.fsdecode(b"\xff" * 16))
    assert len(read_links(root)) == 1
    (trees.inside / "m").symlink_to("x")
    assert "very long targets" in refused(root)


def test_more_names_than_anybody_waits_for_say_what_to_do(root, trees, monkeypatch):
    monkeypatch.setattr(subject, "MAX_NAMES", 7)
    (trees.inside / "l.md").symlink_to("x")
    assert sum(len(names) + len(files) for _, names, files in os.walk(trees.inside)) == 7
    assert read_links(root) == {"l.md": "x"}
    (trees.inside / "topic" / "deep" / "bad|name").write_text("")
    assert "more than 7 names" in refused(root)


def test_a_single_folder_of_too_many_names_says_so_too(root, trees, monkeypatch):
    (trees.inside / "topic" / "l.md").symlink_to("x")
    monkeypatch.setattr("muniment.confine.root.MAX_ENTRIES", 3)
    for number in range(4):
        (trees.inside / "topic" / f"{number}.md").write_text("")
    assert f"more than {MAX_ENTRIES} names" in refused(root)
