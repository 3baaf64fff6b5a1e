"""What an open directory tells: by handle, following nothing, and times before what they are the times of."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

import pytest

from kit.confine.probe import nothing_left_open
from kit.confine.trees import CANARY, LINKS, RESOLVERS, plant, plant_link
from muniment.confine import root as listing
from muniment.confine.root import OpenDirectory
from muniment.errors import BadName, NotAFile, NotFound, PathEscape, TooLarge, Unreadable
from muniment.names import MAX_FILE_BYTES, Via


@pytest.fixture
def trees(tmp_path):
    return plant(tmp_path)


@pytest.fixture(params=RESOLVERS)
def root(trees, request):
    made = trees.root(request.param)
    yield made
    os.close(made.fd)


def test_names_are_told_with_what_they_are_and_the_status_of_files(root, trees):
    (trees.inside / "link.md").symlink_to(trees.outside / f"{CANARY}.md")
    os.mkfifo(trees.inside / "pipe.md")
    Path(os.fsdecode(os.fsencode(trees.inside) + b"/\xff.md")).write_bytes(b"odd")
    with OpenDirectory(root, "") as opened:
        found = {item.name: item for item in opened.entries()}
        again = {item.name for item in opened.entries()}
    assert {name: item.kind for name, item in found.items()} == {
        "folder.md": "directory",
        "link.md": "other",
        "note.md": "file",
        "pipe.md": "other",
        "topic": "directory",
        "\udcff.md": "file",
    }
    assert found.keys() == again
    assert all(os.fsencode(name) == item.raw for name, item in found.items())
    assert found["note.md"].status == (trees.inside / "note.md").lstat()
    assert {name for name, item in found.items() if item.status} == {"note.md", "\udcff.md"}


def test_a_file_is_read_with_the_status_from_before_the_read(root, trees, monkeypatch):
    path = trees.inside / "topic" / "one.md"
    before = path.stat()
    real = os.pread

    def pread(fd, count, position):
        monkeypatch.setattr(os, "pread", real)
        path.write_text("inside ONE and more")
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", pread)
    with OpenDirectory(root, "topic") as opened:
        content, status = opened.read("one.md")
    assert content == b"inside ONE and more"
    assert (status.st_ino, status.st_size) == (before.st_ino, before.st_size) == (before.st_ino, 10)


def test_what_stands_at_a_name_is_told_without_following_it(root, trees):
    (trees.inside / "topic" / "link.md").symlink_to("one.md")
    with OpenDirectory(root, "topic") as opened:
        assert opened.status_of("link.md") == (trees.inside / "topic" / "link.md").lstat()
        assert opened.status_of("deep") == (trees.inside / "topic" / "deep").lstat()
        assert opened.status_of("gone.md") is None


def test_a_name_is_one_component_and_does_not_lead_out(root):
    with OpenDirectory(root, "topic") as opened:
        for name in ("", "deep/two.md", "a/b", "..", "/etc", "\0"):
            for method in (opened.status_of, opened.read):
                with pytest.raises(PathEscape if name in {"..", "/etc", "\0"} else BadName):
                    method(name)


@pytest.mark.threat("T-PATH-03", control="walk_checks")
@pytest.mark.threat("T-PATH-03", control="openat2_resolve")
def test_no_link_is_followed_to_a_directory_or_a_file(tmp_path):
    for number, (shape, resolver) in enumerate(itertools.product(LINKS, RESOLVERS)):
        trees = plant(tmp_path / str(number))
        rel, root = plant_link(trees, shape), trees.root(resolver)
        parent, _, name = rel.rpartition("/")
        with pytest.raises((PathEscape, NotFound)):
            OpenDirectory(root, rel)
        with (
            contextlib.suppress(PathEscape),
            OpenDirectory(root, parent) as opened,
            pytest.raises(PathEscape),
        ):
            opened.read(name)
        os.close(root.fd)


def test_a_file_with_a_second_name_and_what_is_no_file_are_not_read(root, trees):
    os.link(trees.outside / f"{CANARY}.md", trees.inside / "hard.md")
    os.mkfifo(trees.inside / "pipe.md")
    (trees.inside / "large.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with OpenDirectory(root, "") as opened:
        for name, via in (("hard.md", Via.HARDLINK), ("pipe.md", Via.SPECIAL)):
            with pytest.raises(PathEscape) as refused:
                opened.read(name)
            assert refused.value.via is via
        with pytest.raises(NotAFile):
            opened.read("topic")
        with pytest.raises(TooLarge):
            opened.read("large.md")
        with pytest.raises(NotFound):
            opened.read("gone.md")


def test_it_stays_the_directory_that_was_opened_when_another_takes_its_place(root, trees, tmp_path):
    with OpenDirectory(root, "topic") as opened:
        (trees.inside / "topic").rename(tmp_path / "moved")
        (trees.inside / "topic").symlink_to(trees.outside)
        assert {item.name for item in opened.entries()} == {"deep", "one.md"}
        assert opened.read("one.md")[0] == b"inside one"


def test_a_directory_that_was_removed_is_not_empty_but_gone(root, trees):
    (trees.inside / "folder.md").rmdir()
    with pytest.raises(NotFound):
        OpenDirectory(root, "folder.md")
    fd = os.open(trees.inside / "topic", os.O_PATH)
    (trees.inside / "topic").rename(trees.inside / "aside")
    for path in ("aside/deep/two.md", "aside/one.md"):
        (trees.inside / path).unlink()
    (trees.inside / "aside/deep").rmdir()
    (trees.inside / "aside").rmdir()
    removed = type(root)(root.scope, fd, root.resolver)
    with OpenDirectory(removed, "") as opened, pytest.raises(NotFound):
        opened.entries()
    os.close(fd)


def test_too_many_names_are_refused_and_one_that_vanishes_before_it_is_asked_about_has_no_status(
    root, trees, monkeypatch
):
    with OpenDirectory(root, "") as opened:
        monkeypatch.setattr(listing, "MAX_ENTRIES", 3)
        assert len(opened.entries()) == 3
        monkeypatch.setattr(listing, "MAX_ENTRIES", 2)
        with pytest.raises(TooLarge):
            opened.entries()
    real = os.scandir

    @contextlib.contextmanager
    def late(fd):
        with real(fd) as scanned:
            listed = list(scanned)
        (trees.inside / "topic" / "one.md").unlink()
        yield iter(listed)

    monkeypatch.setattr(os, "scandir", late)
    with OpenDirectory(root, "topic") as opened:
        files = {item.name: item.status for item in opened.entries() if item.kind == "file"}
    assert files == {"one.md": None}


def test_what_the_system_refuses_is_unreadable_and_leaves_nothing_open(root, monkeypatch):
    def fail(*_arguments):
        raise OSError(5, "Input/output error")

    for call in ("scandir", "fstat"):
        with nothing_left_open(), monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(Unreadable, match="EIO"), OpenDirectory(root, "topic") as opened:
                opened.entries()
