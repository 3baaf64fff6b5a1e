"""What an open directory tells: by handle, following nothing, and times before what they are the times of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


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


@pytest.mark.parametrize("name", ["", "deep/two.md", "a/b"])
def test_a_name_is_one_component(root, name):
    with OpenDirectory(root, "topic") as opened:
        for method in (opened.status_of, opened.read):
            with pytest.raises(BadName):
                method(name)


@pytest.mark.parametrize("name", ["..", "/etc", "\0"])
def test_a_name_does_not_lead_out(root, name):
    with OpenDirectory(root, "topic") as opened:
        for method in (opened.status_of, opened.read):
            with pytest.raises(PathEscape):
                method(name)


@pytest.mark.threat("T-PATH-03", control="walk_checks")
@pytest.mark.threat("T-PATH-03", control="openat2_resolve")
@pytest.mark.parametrize("shape", LINKS)
def test_no_link_is_followed_to_a_directory_or_a_file(root, trees, shape):
    rel = plant_link(trees, shape)
    parent, _, name = rel.rpartition("/")
    with pytest.raises((PathEscape, NotFound)):
        OpenDirectory(root, rel)
    try:
        opened = OpenDirectory(root, parent)
    except PathEscape:
        return
    with opened, pytest.raises(PathEscape):
        opened.read(name)


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


def test_too_many_names_are_refused(root, monkeypatch):
    monkeypatch.setattr(listing, "MAX_ENTRIES", 3)
    with OpenDirectory(root, "") as opened:
        assert len(opened.entries()) == 3
    monkeypatch.setattr(listing, "MAX_ENTRIES", 2)
    with OpenDirectory(root, "") as opened, pytest.raises(TooLarge):
        opened.entries()


def test_a_name_that_vanishes_before_it_is_asked_about_has_no_status(root, trees, monkeypatch):
    real = os.scandir

    class Scan:
        def __init__(self, fd):
            self.inner = real(fd)

        def __enter__(self):
            listed = list(self.inner)
            (trees.inside / "topic" / "one.md").unlink()
            return iter(listed)

        def __exit__(self, *_):
            self.inner.close()

    monkeypatch.setattr(os, "scandir", Scan)
    with OpenDirectory(root, "topic") as opened:
        assert {item.name: item.status for item in opened.entries() if item.kind == "file"} == {
            "one.md": None
        }


@pytest.mark.parametrize("call", ["scandir", "fstat"])
def test_what_the_system_refuses_is_unreadable_and_leaves_nothing_open(root, monkeypatch, call):
    before = descriptors()

    def fail(*_arguments):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(Unreadable, match="EIO"), OpenDirectory(root, "topic") as opened:
            opened.entries()
    assert descriptors() == before
