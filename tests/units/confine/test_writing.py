"""How memory is written: `muniment.confine.writing` and `landing`."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import stat
import time

import pytest

from kit.confine.trees import CANARY, RESOLVERS, exchange, plant, snapshot
from muniment.confine import writing
from muniment.confine.binding import bind
from muniment.confine.cancel import Cancel, Patience
from muniment.confine.writing import (
    Landing,
    Staged,
    lock_roots,
    open_directory,
    remove_empty_directory,
    temporary_name,
)
from muniment.errors import (
    BadName,
    Cancelled,
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    NotAFile,
    NotFound,
    PathEscape,
    StoreConflict,
    TooLarge,
)
from muniment.names import MAX_FILE_BYTES, Via


def digest(content):
    return hashlib.sha256(content).hexdigest()


def fresh():
    return temporary_name(os.urandom)


@pytest.fixture
def trees(tmp_path):
    return plant(tmp_path)


@pytest.fixture(params=RESOLVERS)
def root(trees, request):
    made = trees.root(request.param)
    yield made
    os.close(made.fd)


@pytest.fixture
def topic(trees):
    root = trees.root("openat2")
    with open_directory(root, "topic", create=False) as directory:
        yield directory
    os.close(root.fd)


@pytest.fixture(params=["with flags", "without flags"])
def landing_(request, monkeypatch):
    """Either way that a name can change; without flags is a file system that knows none."""
    if request.param == "without flags":
        lacking(monkeypatch, errno.EINVAL)
        return Landing.PLAIN_RENAME
    return Landing.ATOMIC


def lacking(monkeypatch, number):
    def refuse(*_args):
        writing.ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(writing, "_renameat2", refuse)


def failing(monkeypatch, name, number):
    def refuse(*_args, **_keywords):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, refuse)


def names(path):
    return {entry.name for entry in path.iterdir()}


# Locks.


def flocked(path):
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def is_locked(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@pytest.fixture
def bound(trees):
    with bind("user", trees.inside) as user, bind("project", trees.other) as project:
        yield user, project


@pytest.mark.threat("T-IDX-02", control="locked_roots")
def test_roots_are_locked_inside_the_block_and_free_after_it(bound, trees):
    with lock_roots(bound, Patience(time.monotonic() + 10)):
        assert is_locked(trees.inside)
        assert is_locked(trees.other)
    assert not is_locked(trees.inside)
    with pytest.raises(KeyError), lock_roots(bound, Patience(math.inf)):
        raise KeyError
    assert not is_locked(trees.other)


def test_a_process_forked_meanwhile_does_not_keep_the_locks(bound, trees, monkeypatch):
    copies, flock = [], fcntl.flock

    def copied(fd, operation):
        if operation & fcntl.LOCK_EX:
            copies.append(os.dup(fd))  # What a child has after fork: the same open file.
        return flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", copied)
    with lock_roots(bound, Patience(time.monotonic() + 10)):
        pass
    monkeypatch.undo()
    assert not is_locked(trees.inside)
    assert not is_locked(trees.other)
    for fd in copies:
        os.close(fd)


def test_locks_are_taken_in_one_order_whatever_was_asked(bound, monkeypatch):
    orders = []
    for roots in (bound, bound[::-1], [*bound, *bound]):
        taken = []
        real = writing._lock

        def noting(root, patience, taken=taken, real=real):
            taken.append(root.fd)
            return real(root, patience)

        with monkeypatch.context() as patched:
            patched.setattr(writing, "_lock", noting)
            with lock_roots(roots, Patience(time.monotonic() + 10)):
                orders.append(taken)
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == 2


def test_a_lock_held_by_another_is_waited_for_until_the_deadline(bound, trees):
    other = flocked(trees.inside)
    with pytest.raises(DeadlineExceeded), lock_roots(bound, Patience(time.monotonic() + 0.02)):
        pytest.fail("the lock was not free")
    assert not is_locked(trees.other)
    os.close(other)


def test_a_cancel_ends_the_wait_for_a_lock_at_once(bound, trees, monkeypatch):
    other = flocked(trees.inside)
    monkeypatch.setattr(writing, "FIRST_PAUSE", 1000)
    monkeypatch.setattr(writing, "LONGEST_PAUSE", 1000)
    real = writing._pause
    with Cancel() as cancel:

        def cancelled(patience, seconds):
            cancel.set()
            real(patience, seconds)  # returns at once, or this test runs into its time limit

        monkeypatch.setattr(writing, "_pause", cancelled)
        with pytest.raises(Cancelled), lock_roots(bound, Patience(math.inf, cancel)):
            pytest.fail("the lock was not free")
    os.close(other)


def test_a_root_that_moved_before_it_was_locked_is_an_escape(bound, trees, tmp_path):
    trees.inside.rename(tmp_path / "moved")
    with pytest.raises(PathEscape) as caught, lock_roots(bound, Patience(math.inf)):
        pytest.fail("the root has moved")
    assert caught.value.via is Via.ROOT_REPLACED
    assert not is_locked(tmp_path / "moved")


# Directories.


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_missing_directories_are_made_private_and_named(root, trees):
    before = os.umask(0)
    try:
        with open_directory(root, "topic/a/b", create=True) as directory:
            assert directory.created == ("topic/a", "topic/a/b")
            assert directory.rel == "topic/a/b"
            assert directory.root is root
    finally:
        os.umask(before)
    assert stat.S_IMODE((trees.inside / "topic/a/b").stat().st_mode) == 0o700
    directory.close()
    with open_directory(root, "topic/a/b", create=True) as again:
        assert again.created == ()


def test_a_missing_directory_is_not_made_unless_asked(root, trees):
    with pytest.raises(NotFound):
        open_directory(root, "missing/below", create=False)
    assert not (trees.inside / "missing").exists()


def test_a_directory_that_another_process_makes_first_is_not_ours_to_remove(root, monkeypatch):
    real = os.mkdir

    def slower(name, mode, *, dir_fd):
        real(name, mode, dir_fd=dir_fd)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "mkdir", slower)
    with open_directory(root, "new", create=True) as directory:
        assert directory.created == ()


@pytest.mark.threat("T-PATH-03", control="resolvers")
@pytest.mark.parametrize("rel", ["link", "link/below", "topic/link/below"])
def test_no_directory_is_reached_or_made_through_a_link(root, trees, rel):
    for place in (trees.inside, trees.inside / "topic"):
        (place / "link").symlink_to(trees.outside)
    before = snapshot(trees.outside)
    with pytest.raises(PathEscape) as caught:
        open_directory(root, rel, create=True)
    assert caught.value.via is Via.SYMLINK
    assert snapshot(trees.outside) == before


def test_a_file_in_the_place_of_a_directory_stays(root, trees):
    with pytest.raises(NotAFile):
        open_directory(root, "note.md/below", create=True)
    assert (trees.inside / "note.md").read_bytes() == b"inside note"


@pytest.mark.threat("T-PATH-01", control="layer_one")
def test_text_that_leads_outwards_makes_nothing(root, trees):
    before = snapshot(trees.inside)
    for rel in ("../outside/new", "new/../../outside", "/new", "new\0"):
        with pytest.raises(PathEscape):
            open_directory(root, rel, create=True)
    for rel in ("new//x", "new/.", "new/"):
        with pytest.raises(BadName):
            open_directory(root, rel, create=True)
    assert snapshot(trees.inside) == before


def test_directories_made_on_a_way_that_ends_are_removed_again(root, trees, monkeypatch):
    made = []
    real = os.mkdir

    def twice(name, mode, *, dir_fd):
        if made:
            raise OSError(errno.ENOSPC, "No space left on device")
        made.append(name)
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", twice)
    with pytest.raises(ManagedMemoryUnavailable, match="the disk is full"):
        open_directory(root, "a/b", create=True)
    assert made == [b"a"]
    assert not (trees.inside / "a").exists()


def test_a_directory_that_cannot_be_opened_is_unavailable(root, monkeypatch):
    class Refusing:
        name = "refusing"

        def open(self, _dir_fd, _path, _purpose):
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", None)
    with pytest.raises(ManagedMemoryUnavailable, match="may not write there"):
        open_directory(type(root)("user", root.fd, Refusing()), "topic", create=True)


def test_only_an_empty_directory_is_removed(root, trees):
    (trees.inside / "empty").mkdir()
    (trees.inside / "link").symlink_to(trees.outside)
    assert remove_empty_directory(root, "empty")
    assert not (trees.inside / "empty").exists()
    assert remove_empty_directory(root, "empty")
    assert remove_empty_directory(root, "missing/below")
    for rel in ("topic", "note.md", "link", "note.md/below"):
        assert not remove_empty_directory(root, rel)
    with pytest.raises(PathEscape):
        remove_empty_directory(root, f"link/{CANARY}-dir")


def test_a_directory_that_cannot_be_removed_is_told(root, trees, monkeypatch):
    (trees.inside / "empty").mkdir()
    failing(monkeypatch, "rmdir", errno.EROFS)
    with pytest.raises(ManagedMemoryUnavailable, match="read-only"):
        remove_empty_directory(root, "empty")


# Temporary files.


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_staged_bytes_are_private_before_the_first_of_them(topic, trees, monkeypatch):
    real, modes = os.write, []

    def noting(fd, content):
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return real(fd, content)

    monkeypatch.setattr(os, "write", noting)
    before = os.umask(0)
    try:
        staged = topic.stage(fresh(), b"content")
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert staged.digest == digest(b"content")
    assert (trees.inside / "topic" / staged.temporary).read_bytes() == b"content"


def test_staged_bytes_are_on_disk_before_they_get_a_name(topic, monkeypatch):
    order = []
    for name in ("write", "fsync"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, real=real, name=name: (order.append(name), real(*args))[1]
        )
    topic.stage(fresh(), b"content")
    assert order == ["write", "fsync"]


def test_a_system_that_writes_in_pieces_stages_the_whole(topic, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: real(fd, content[:3]))
    staged = topic.stage(fresh(), b"a longer content")
    assert topic.read(staged.temporary) == b"a longer content"


@pytest.mark.threat("T-PATH-07", control="exclusive_staging")
def test_a_planted_temporary_name_is_neither_followed_nor_overwritten(topic, trees):
    before = snapshot(trees.outside)
    linked, taken = fresh(), fresh()
    (trees.inside / "topic" / linked).symlink_to(trees.outside / "new.md")
    (trees.inside / "topic" / taken).write_text("planted")
    for name in (linked, taken):
        with pytest.raises(StoreConflict):
            topic.stage(name, b"content")
    assert snapshot(trees.outside) == before
    assert (trees.inside / "topic" / taken).read_text() == "planted"


def test_only_a_temporary_name_is_staged_withdrawn_under_or_discarded(topic):
    for name in ("one.md", "", "../one.md", ".muniment-0.tmp"):
        with pytest.raises(BadName):
            topic.stage(name, b"content")
        with pytest.raises(BadName):
            topic.withdraw("one.md", name, digest(b"inside one"))
        with pytest.raises(BadName):
            topic.discard(Staged(name, digest(b"inside one")))
    assert topic.read("one.md") == b"inside one"


def test_more_than_a_file_may_hold_is_not_staged(topic, trees):
    before = names(trees.inside / "topic")
    with pytest.raises(TooLarge):
        topic.stage(fresh(), bytes(MAX_FILE_BYTES + 1))
    assert names(trees.inside / "topic") == before


@pytest.mark.parametrize("call", ["fchmod", "write", "fsync"])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EIO, "the disk reports an error"),
        (errno.EACCES, "may not write there"),
        (errno.EXFULL, "the system refused: Exchange full"),
    ],
)
def test_a_failure_while_staging_leaves_nothing_and_says_why(topic, trees, monkeypatch, call, number, reason):
    before = names(trees.inside / "topic")
    failing(monkeypatch, call, number)
    with pytest.raises(ManagedMemoryUnavailable, match=reason) as caught:
        topic.stage(fresh(), b"content")
    assert caught.value.what == "user"
    assert names(trees.inside / "topic") == before


def test_staging_in_a_directory_that_was_removed_says_so(root, trees):
    with open_directory(root, "topic/deep", create=False) as directory:
        (trees.inside / "topic/deep/two.md").unlink()
        (trees.inside / "topic/deep").rmdir()
        with pytest.raises(ManagedMemoryUnavailable, match="was removed meanwhile"):
            directory.stage(fresh(), b"content")


# Names.


@pytest.mark.usefixtures("landing_")
@pytest.mark.parametrize("taken", ["one.md", "deep", "link.md"])
def test_a_new_file_never_takes_a_name_from_anything(topic, trees, taken):
    (trees.inside / "topic/link.md").symlink_to("nowhere")
    staged = topic.stage(fresh(), b"new")
    before = snapshot(trees.inside)
    with pytest.raises(StoreConflict) as caught:
        topic.publish_new(staged, taken)
    assert caught.value.paths == (f"user/topic/{taken}",)
    assert snapshot(trees.inside) == before
    topic.discard(staged)


@pytest.mark.usefixtures("landing_")
def test_a_new_file_whose_staged_bytes_are_gone_is_a_conflict(topic):
    with pytest.raises(StoreConflict):
        topic.publish_new(Staged(fresh(), digest(b"")), "new.md")


def test_a_claimed_file_is_replaced_whole(topic, trees, landing_):
    staged = topic.stage(fresh(), b"after")
    before = names(trees.inside / "topic")
    assert topic.replace(staged, "one.md", digest(b"inside one")) is landing_
    assert topic.read("one.md") == b"after"
    assert names(trees.inside / "topic") == before - {staged.temporary}


@pytest.mark.threat("T-PATH-06", control="new_inode")
def test_a_replaced_file_is_a_new_one_so_that_no_hard_link_is_written_through(topic, trees):
    inode = (trees.inside / "topic/one.md").stat().st_ino
    topic.replace(topic.stage(fresh(), b"after"), "one.md", digest(b"inside one"))
    assert (trees.inside / "topic/one.md").stat().st_ino != inode


@pytest.mark.usefixtures("landing_")
@pytest.mark.parametrize("target", ["one.md", "deep", "link.md", "hard.md", "fifo.md", "missing.md"])
def test_what_is_not_what_was_claimed_is_not_touched(topic, trees, target):
    (trees.inside / "topic/link.md").symlink_to(trees.outside / "note.md")
    os.link(trees.outside / "note.md", trees.inside / "topic/hard.md")
    os.mkfifo(trees.inside / "topic/fifo.md")
    staged = topic.stage(fresh(), b"after")
    before = snapshot(trees.inside, trees.outside)
    claimed = digest((trees.outside / "note.md").read_bytes())
    with pytest.raises(StoreConflict) as caught:
        topic.replace(staged, target, claimed)
    assert caught.value.paths == (f"user/topic/{target}",)
    with pytest.raises(StoreConflict):
        topic.withdraw(target, fresh(), claimed)
    assert snapshot(trees.inside, trees.outside) == before
    topic.discard(staged)


def meanwhile(monkeypatch, act):
    """Let another process `act` after the first look at a name and before the name changes."""
    real = writing._renameat2
    acts = [act]

    def call(*args):
        if acts:
            acts.pop()()
        return real(*args)

    monkeypatch.setattr(writing, "_renameat2", call)


def swap_in(trees, target):
    """Put something else in the place of `one.md`: what stands at `target`."""
    (trees.inside / "topic/link.md").symlink_to(trees.outside / "note.md")
    os.link(trees.outside / "note.md", trees.inside / "topic/hard.md")
    os.mkfifo(trees.inside / "topic/fifo.md")
    (trees.inside / "topic/newer.md").write_text("newer")
    exchange(trees.inside / "topic/one.md", trees.inside / "topic" / target)


@pytest.mark.parametrize(
    "target",
    [
        *(
            pytest.param(name, marks=pytest.mark.threat("T-PATH-04", control="claimed_file"))
            for name in ("newer.md", "link.md", "hard.md", "fifo.md")
        ),
        "deep",  # The system does not put a directory in the place of a file, either.
    ],
)
@pytest.mark.parametrize("change", ["replace", "withdraw"])
def test_what_was_swapped_in_at_the_last_moment_is_put_back(topic, trees, monkeypatch, change, target):
    staged = topic.stage(fresh(), b"after")
    meanwhile(monkeypatch, lambda: swap_in(trees, target))
    outside = snapshot(trees.outside)
    second = staged if change == "replace" else "one.md"
    third = "one.md" if change == "replace" else fresh()
    with pytest.raises(StoreConflict) as caught:
        getattr(topic, change)(second, third, digest(b"inside one"))
    assert caught.value.paths == ("user/topic/one.md",)
    exchange(trees.inside / "topic/one.md", trees.inside / "topic" / target)
    assert topic.read("one.md") == b"inside one"
    assert topic.read("newer.md") == b"newer"
    assert (trees.inside / "topic/link.md").readlink() == trees.outside / "note.md"
    assert (trees.inside / "topic/deep/two.md").read_text() == "inside two"
    topic.discard(staged)
    assert {key: value[0] for key, value in snapshot(trees.outside).items()} == {
        key: value[0] for key, value in outside.items()
    }


def test_a_file_that_is_removed_at_the_last_moment_is_a_conflict(topic, trees, monkeypatch):
    staged = topic.stage(fresh(), b"after")
    meanwhile(monkeypatch, (trees.inside / "topic/one.md").unlink)
    with pytest.raises(StoreConflict):
        topic.replace(staged, "one.md", digest(b"inside one"))
    assert not (trees.inside / "topic/one.md").exists()
    topic.discard(staged)


def test_a_claimed_file_is_withdrawn(topic, trees, landing_):
    before = names(trees.inside / "topic")
    assert topic.withdraw("one.md", fresh(), digest(b"inside one")) is landing_
    assert names(trees.inside / "topic") == before - {"one.md"}


@pytest.mark.usefixtures("landing_")
def test_a_file_whose_name_was_taken_while_it_was_checked_is_kept(topic, trees, monkeypatch):
    real = topic.read
    aside = fresh()

    def taking(name):
        if name == aside:
            (trees.inside / "topic" / aside).write_text("edited meanwhile")
            (trees.inside / "topic/one.md").write_text("newer")
        return real(name)

    monkeypatch.setattr(writing.Directory, "read", lambda _self, name: taking(name))
    with pytest.raises(StoreConflict):
        topic.withdraw("one.md", aside, digest(b"inside one"))
    assert (trees.inside / "topic/one.md").read_text() == "newer"
    assert (trees.inside / "topic" / aside).read_text() == "edited meanwhile"


def test_a_file_that_leaves_between_the_look_and_the_plain_rename_is_a_conflict(topic, monkeypatch):
    lacking(monkeypatch, errno.ENOSYS)
    failing(monkeypatch, "rename", errno.ENOENT)
    with pytest.raises(StoreConflict):
        topic.publish_new(topic.stage(fresh(), b"new"), "new.md")


@pytest.fixture(params=["exchange", "plain rename"])
def _way(request, monkeypatch):
    if request.param == "plain rename":
        lacking(monkeypatch, errno.EINVAL)


@pytest.mark.threat("T-PATH-03", control="replaced_links")
@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", ["symlink", "hard link"])
def test_a_generated_file_replaces_a_link_without_following_it(topic, trees, kind):
    link = trees.inside / "topic/index.md"
    if kind == "symlink":
        link.symlink_to(trees.outside / "note.md")
    else:
        (trees.outside / "again.md").write_bytes(b"again")
        os.link(trees.outside / "again.md", link)
    before = {path.name: path.read_bytes() for path in trees.outside.glob("*.md")}
    topic.replace_link(topic.stage(fresh(), b"generated"), "index.md")
    assert {path.name: path.read_bytes() for path in trees.outside.glob("*.md")} == before
    assert topic.read("index.md") == b"generated"
    assert not list((trees.inside / "topic").glob(".muniment-*"))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("name", ["deep", "one.md"])
def test_what_has_become_a_file_or_directory_is_not_replaced_as_a_link(topic, trees, name):
    staged = topic.stage(fresh(), b"generated")
    with pytest.raises(StoreConflict):
        topic.replace_link(staged, name)
    topic.discard(staged)
    assert (trees.inside / "topic/one.md").read_bytes() == b"inside one"
    assert (trees.inside / "topic/deep").is_dir()


def test_a_link_that_is_gone_meanwhile_is_a_conflict(topic):
    staged = topic.stage(fresh(), b"generated")
    with pytest.raises(StoreConflict):
        topic.replace_link(staged, "gone.md")
    topic.discard(staged)


def test_a_disk_that_fails_while_names_change_is_told(topic, trees, monkeypatch):
    staged = topic.stage(fresh(), b"new")
    (trees.inside / "topic/link.md").symlink_to("one.md")
    lacking(monkeypatch, errno.EIO)
    for change in (
        lambda: topic.publish_new(staged, "new.md"),
        lambda: topic.replace(staged, "one.md", digest(b"inside one")),
        lambda: topic.withdraw("one.md", fresh(), digest(b"inside one")),
        lambda: topic.replace_link(staged, "link.md"),
    ):
        with pytest.raises(ManagedMemoryUnavailable, match="the disk reports an error"):
            change()
    failing(monkeypatch, "unlink", errno.EROFS)
    with pytest.raises(ManagedMemoryUnavailable, match="read-only"):
        topic.discard(staged)
    failing(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(ManagedMemoryUnavailable, match="the disk reports an error"):
        topic.sync()


@pytest.mark.threat("T-PATH-01", control="single_component")
@pytest.mark.parametrize(
    "name", ["", ".", "..", "../new.md", "../note.md", "deep/two.md", "/note.md", "a\0b", "deep/"]
)
def test_a_name_is_one_component(topic, trees, name):
    staged = topic.stage(fresh(), b"new")
    before = snapshot(trees.inside)
    for use in (
        lambda: topic.publish_new(staged, name),
        lambda: topic.replace(staged, name, digest(b"inside note")),
        lambda: topic.read(name),
        lambda: topic.replace_link(staged, name),
        lambda: topic.withdraw(name, fresh(), digest(b"")),
    ):
        with pytest.raises((BadName, PathEscape)):
            use()
    assert snapshot(trees.inside) == before
    topic.discard(staged)
