"""Reading the links beneath a root: all that a path can name, none followed, none waited for too long."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from kit.confine.probe import nothing_left_open
from kit.confine.trees import CANARY, LINKS, RESOLVERS, plant, plant_link, snapshot
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


def test_a_link_of_any_shape_is_read_and_not_followed_nor_told_where_it_leads_outside(tmp_path):
    for number, (shape, resolver) in enumerate(itertools.product(LINKS, RESOLVERS)):
        trees = plant(tmp_path / str(number))
        before = snapshot(trees.outside, trees.other)
        plant_link(trees, shape)
        name, target, _rel = LINKS[shape]
        target = target.format(outside=trees.outside, other=trees.other)
        expected = {name: "/" if target.startswith("/") else target}
        if shape == "a chain of links":
            expected["second.md"] = "/"
        root = trees.root(resolver)
        assert read_links(root) == expected
        os.close(root.fd)
        assert snapshot(trees.outside, trees.other) == before


def test_what_no_path_can_name_and_what_is_no_link_is_left_out(root, trees):
    inside = trees.inside
    for rel in ("bad|name.md", "bad*/l.md", "1/2/3/4/5/6/7/8/l.md", os.fsdecode(b"\xff.md"), "nul.md"):
        (inside / rel).parent.mkdir(parents=True, exist_ok=True)
        (inside / rel).symlink_to("x.md")
    os.mkfifo(inside / "fifo.md")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(inside / "socket.md"))
    (inside / "hard.md").hardlink_to(trees.outside / "note.md")
    assert read_links(root) == {}


def test_a_target_keeps_every_byte_and_a_folder_that_is_a_link_is_not_entered(root, trees):
    for target in (b"\xff/\xfe.md", b"a\nb", "é.md".encode(), b"x" * 4095):
        (trees.inside / "l.md").symlink_to(os.fsdecode(target))
        assert os.fsencode(read_links(root)["l.md"]) == target
        (trees.inside / "l.md").unlink()
    (trees.outside / "inner.md").symlink_to("note.md")
    (trees.inside / "way").symlink_to(trees.outside)
    (trees.inside / "topic" / "again").symlink_to("../topic")
    assert read_links(root) == {"way": "/", "topic/again": "../topic"}


# -- what changes once it was listed ---------------------------------------------------------------------


@dataclass
class Meddling:
    """A resolver that lets somebody else act just before a folder is listed."""

    honest: Any
    folder: bytes
    act: Any
    name: str = "meddling"

    def open(self, dir_fd, path, purpose):
        if (path, purpose) == (self.folder, EXAMINE):
            self.act()
        return self.honest.open(dir_fd, path, purpose)


def meddled(root, folder, act):
    return read_links(Root(root.scope, root.fd, Meddling(root.resolver, folder, act)))


def test_a_folder_that_went_or_became_a_link_once_it_was_listed_has_no_links(root, trees):
    (trees.inside / "topic" / "l.md").symlink_to("x.md")
    (trees.inside / "l.md").symlink_to("x.md")
    (trees.outside / "l.md").symlink_to(CANARY)

    def swap():
        (trees.inside / "topic").rename(trees.inside / "kept")
        (trees.inside / "topic").symlink_to(trees.outside)

    def fail(number):
        raise OSError(number, "on purpose")

    for number in (errno.ENOENT, errno.EXDEV, errno.EACCES):
        assert meddled(root, b"topic", partial(fail, number)) == {"l.md": "x.md"}
    assert CANARY not in str(meddled(root, b"topic", swap))


def test_a_link_that_went_or_became_a_file_once_it_was_listed_is_absent(root, trees):
    first, second, third = (trees.inside / name for name in ("first.md", "second.md", "third.md"))
    for each in (first, second, third):
        each.symlink_to("x.md")
    assert meddled(root, b".", lambda: (first.unlink(), second.unlink(), second.touch())) == {
        "third.md": "x.md"
    }


def test_a_root_that_moved_keeps_its_links_and_one_that_went_has_none(root, trees):
    (trees.inside / "l.md").symlink_to("x.md")
    trees.inside.rename(trees.inside.with_name("moved"))
    assert read_links(root) == {"l.md": "x.md"}
    trees.inside.mkdir()
    gone = Root("user", os.open(trees.inside, os.O_PATH | os.O_DIRECTORY), root.resolver)
    trees.inside.rmdir()
    assert read_links(gone) == {}
    os.close(gone.fd)


# -- limits ----------------------------------------------------------------------------------------------


def refused(root):
    with nothing_left_open(), pytest.raises(ManagedMemoryUnavailable) as caught:
        read_links(root)
    assert caught.value.what == root.scope
    assert "bind a smaller directory, or refuse links (symlinks = 'refuse')" in caught.value.reason
    return caught.value.reason


def test_more_links_or_names_than_anybody_waits_for_and_very_long_targets_say_what_to_do(
    root, trees, monkeypatch
):
    (trees.inside / "l.md").symlink_to(os.fsdecode(b"\xff" * 16))
    with monkeypatch.context() as patch:
        patch.setattr(subject, "MAX_LINK_BYTES", 20)
        assert len(read_links(root)) == 1
        (trees.inside / "m").symlink_to("x")
        assert "very long targets" in refused(root)
    names = sum(len(names) + len(files) for _, names, files in os.walk(trees.inside))
    with monkeypatch.context() as patch:
        patch.setattr(subject, "MAX_NAMES", names)
        assert len(read_links(root)) == 2
        (trees.inside / "topic" / "deep" / "bad|name").write_text("")
        assert f"more than {names} names" in refused(root)
    for number in range(2, MAX_LINKS):
        (trees.inside / "topic" / f"l{number}").symlink_to("x")
    assert len(read_links(root)) == MAX_LINKS
    (trees.inside / "one-more").symlink_to("x")
    assert f"more than {MAX_LINKS} links" in refused(root)
    monkeypatch.setattr(subject, "MAX_ENTRIES", 3)
    assert f"more than {MAX_ENTRIES} names" in refused(root)
