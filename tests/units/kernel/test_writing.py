"""How memory is written: locks, and what is done to names in a directory."""

import ctypes
import errno
import fcntl
import hashlib
import itertools
import math
import os
import stat
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from kit.kernel.trees import CANARY, Failing
from kit.memories import photograph
from kit.paths import at
from kit.raising import raised
from muniment import errors
from muniment.cancelling import Cancel
from muniment.errors import BadName, ManagedMemoryUnavailable, PathEscape, StoreConflict
from muniment.kernel import _directory, land
from muniment.kernel._directory import Staged, open_directory, partial_name, temporary_name
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Patience
from muniment.kernel.names import MAX_FILE_BYTES, Via
from muniment.testing.race import exchange

user = partial(at, "user")


def digest(content):
    return hashlib.sha256(content).hexdigest()


ONE = digest(b"inside one")


def fresh():
    return temporary_name(os.urandom)


@pytest.fixture
def topic(trees):
    root = trees.root("openat2")
    with open_directory(root, user("topic"), create=False) as directory:
        yield directory
    os.close(root.fd)


def test_folder_or_file_on_a_device_that_is_gone_is_unavailable(trees):
    root, names = trees.root("openat2"), {b"topic": errno.ENODEV, b"note.md": errno.ENXIO}
    failing = replace(root, resolver=Failing(names, root.resolver))
    raised(ManagedMemoryUnavailable, open_directory, failing, user("topic"), create=True)
    with open_directory(failing, user(""), create=False) as directory:
        raised(ManagedMemoryUnavailable, directory.read, "note.md")
    os.close(root.fd)


def test_clear_names_what_a_peer_wrote_though_it_is_too_large(trees):
    place = trees.inside / "topic" / fresh()
    place.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    was = place.stat()
    with bind("user", trees.inside) as bound, land.lock_roots([bound], Patience(math.inf)) as held:
        (kept,) = land.clear(user("topic"), held, lambda _: True, lambda *_: True)
    now = (trees.inside / kept.rel).stat()
    assert (now.st_ino, now.st_size) == (was.st_ino, was.st_size)
    assert not place.exists()


@pytest.fixture(params=["with flags", "without flags"])
def landing_(request, monkeypatch):
    """Either way that a name can change; without flags is a file system that knows none."""
    if request.param == "without flags":
        lacking(monkeypatch, errno.EINVAL)
        return _directory.Landing.PLAIN_RENAME
    return _directory.Landing.ATOMIC


def lacking(monkeypatch, number):
    def refuse(*_args):
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(_directory, "_renameat2", refuse)


def failing(monkeypatch, name, number):
    def refuse(*_args, **_keywords):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, refuse)


@contextmanager
def any_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def names(path):
    return {entry.name for entry in path.iterdir()}


# Locks.


def flocked(path, more=0):
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | more)
    return fd


def is_locked(path):
    try:
        os.close(flocked(path, fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False


@pytest.fixture
def bound(trees):
    with bind("user", trees.inside) as user, bind("project", trees.other) as project:
        yield user, project


@pytest.mark.threat("T-IDX-02", control="locked_roots")
def test_roots_are_locked_in_the_block_and_free_after_it_also_of_forks(bound, trees, monkeypatch):
    copies, flock = [], fcntl.flock

    def copied(fd, operation):
        if operation & fcntl.LOCK_EX:
            copies.append(os.dup(fd))  # What a child has after fork: the same open file.
        return flock(fd, operation)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", copied)
        with land.lock_roots(bound, Patience(time.monotonic() + 30)):
            patched.undo()
            assert is_locked(trees.inside)
            assert is_locked(trees.other)
    assert not is_locked(trees.inside)
    with pytest.raises(KeyError), land.lock_roots(bound, Patience(math.inf)):
        raise KeyError
    assert not is_locked(trees.other)
    for fd in copies:
        os.close(fd)


def test_locks_are_taken_in_one_order_whatever_was_asked(bound, monkeypatch):
    orders, taken, real = [], [], land._lock

    def noting(root, patience):
        taken.append(root.fd)
        return real(root, patience)

    monkeypatch.setattr(land, "_lock", noting)
    for roots in (bound, bound[::-1], [*bound, *bound]):
        with land.lock_roots(roots, Patience(time.monotonic() + 30)):
            orders.append(tuple(taken))
        taken.clear()
    assert len(set(orders)) == 1
    assert len(orders[0]) == 2


def test_a_lock_held_by_another_is_waited_for_until_the_deadline_or_a_cancel(bound, trees, monkeypatch):
    other = flocked(trees.inside)
    with pytest.raises(errors.DeadlineExceeded), land.lock_roots(bound, Patience(time.monotonic() + 0.02)):
        pytest.fail("the lock was not free")
    assert not is_locked(trees.other)
    monkeypatch.setattr(land, "FIRST_PAUSE", 1000)
    monkeypatch.setattr(land, "LONGEST_PAUSE", 1000)
    real = land._pause
    with Cancel() as cancel:

        def cancelled(patience, seconds):
            cancel.set()
            real(patience, seconds)  # returns at once, or this test runs into its time limit

        monkeypatch.setattr(land, "_pause", cancelled)
        with pytest.raises(errors.Cancelled), land.lock_roots(bound, Patience(math.inf, cancel)):
            pytest.fail("the lock was not free")
    os.close(other)


def test_a_root_that_moved_before_it_was_locked_is_an_escape(bound, trees, tmp_path):
    trees.inside.rename(tmp_path / "moved")
    with pytest.raises(PathEscape) as caught, land.lock_roots(bound, Patience(math.inf)):
        pytest.fail("the root has moved")
    assert caught.value.via is Via.ROOT_REPLACED
    assert not is_locked(tmp_path / "moved")


# Directories.


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_missing_directories_are_made_private_and_named_and_only_where_asked(root, trees, monkeypatch):
    raised(errors.NotFound, open_directory, root, user("topic/a"), create=False)
    with any_umask(), open_directory(root, user("topic/a/b"), create=True) as directory:
        assert directory.created == (user("topic/a"), user("topic/a/b"))
        assert (directory.path, directory.root) == (user("topic/a/b"), root)
    assert stat.S_IMODE((trees.inside / "topic/a/b").stat().st_mode) == 0o700
    directory.close()
    with open_directory(root, user("topic/a/b"), create=True) as again:
        assert again.created == ()
    real = os.mkdir

    def slower(name, mode, *, dir_fd):
        real(name, mode, dir_fd=dir_fd)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "mkdir", slower)
    with open_directory(root, user("new"), create=True) as directory:
        assert directory.created == (), "what another process made first is not ours to remove"


@pytest.mark.threat("T-PATH-01", control="layer_one")
@pytest.mark.threat("T-PATH-03", control="resolvers")
def test_no_directory_is_reached_or_made_through_a_link_a_file_or_text_that_leads_elsewhere(root, trees):
    for place in (trees.inside, trees.inside / "topic"):
        (place / "link").symlink_to(trees.outside)
    before = photograph(trees.inside, trees.outside)
    for rel, error in {
        **dict.fromkeys(("link", "link/below", "topic/link/below"), PathEscape),
        **dict.fromkeys(("../outside/new", "new/../../outside", "/new", "new\0"), PathEscape),
        **dict.fromkeys(("new//x", "new/.", "new/"), BadName),
        "note.md/below": errors.NotAFile,
    }.items():
        caught = raised(error, lambda rel=rel: open_directory(root, user(rel), create=True))
        assert "link" not in rel or caught.via is Via.SYMLINK
    assert photograph(trees.inside, trees.outside) == before


def test_directories_made_on_a_way_that_ends_are_removed_again_and_it_says_why(root, trees, monkeypatch):
    made, real = [], os.mkdir

    def twice(name, mode, *, dir_fd):
        if made:
            raise OSError(errno.ENOSPC, "No space left on device")
        made.append(name)
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", twice)
    raised(ManagedMemoryUnavailable, open_directory, root, user("a/b"), create=True, match="the disk is full")
    assert made == [b"a"]
    assert not (trees.inside / "a").exists()
    monkeypatch.setattr(os, "mkdir", None)
    with pytest.raises(ManagedMemoryUnavailable, match="may not write there"):
        open_directory(type(root)("user", root.fd, Failing(errno.EACCES)), user("topic"), create=True)


def test_only_an_empty_directory_is_removed(root, trees, monkeypatch):
    (trees.inside / "empty").mkdir()
    (trees.inside / "link").symlink_to(trees.outside)
    assert _directory.remove_empty_directory(root, user("empty"))
    assert not (trees.inside / "empty").exists()
    assert _directory.remove_empty_directory(root, user("empty"))
    assert _directory.remove_empty_directory(root, user("missing/below"))
    for rel in ("topic", "note.md", "link", "note.md/below"):
        assert not _directory.remove_empty_directory(root, user(rel))
    raised(PathEscape, _directory.remove_empty_directory, root, user(f"link/{CANARY}-dir"))
    (trees.inside / "user").mkdir()
    raised(BadName, _directory.remove_empty_directory, root, user(""))
    for wrong, error in {"topic": TypeError, at("project", "topic"): ValueError}.items():
        raised(error, open_directory, root, wrong, create=True)
    failing(monkeypatch, "rmdir", errno.EROFS)
    raised(
        ManagedMemoryUnavailable, _directory.remove_empty_directory, root, user("empty"), match="read-only"
    )


# Temporary files.


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_staged_bytes_are_private_from_the_first_whole_and_on_disk(topic, trees, monkeypatch):
    write, fsync, order = os.write, os.fsync, []

    def noting(fd, content):
        order.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return write(fd, content[:4])  # As a system does that writes in pieces.

    monkeypatch.setattr(os, "write", noting)
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("synced"), fsync(fd)))
    with any_umask():
        staged = topic.stage(fresh(), b"content")
    assert order == [0o600, 0o600, "synced"]
    assert staged.digest == digest(b"content")
    assert (trees.inside / "topic" / staged.temporary).read_bytes() == b"content"


@pytest.mark.threat("T-PATH-07", control="exclusive_staging")
def test_a_planted_temporary_name_is_neither_followed_nor_overwritten(topic, trees):
    before = photograph(trees.outside)
    linked, taken = fresh(), fresh()
    (trees.inside / "topic" / linked).symlink_to(trees.outside / "new.md")
    (trees.inside / "topic" / taken).write_text("planted")
    for name in (linked, taken):
        raised(StoreConflict, topic.stage, name, b"content")
    behind = fresh()  # The bytes are written under a name of their own first.
    (trees.inside / "topic" / partial_name(behind)).symlink_to(trees.outside / "new.md")
    raised(StoreConflict, topic.stage, behind, b"content")
    assert photograph(trees.outside) == before
    assert (trees.inside / "topic" / taken).read_text() == "planted"


def test_only_a_temporary_name_is_staged_withdrawn_under_or_discarded(topic):
    for name in ("one.md", "", "../one.md", ".muniment-0.tmp"):
        raised(BadName, topic.stage, name, b"content")
        raised(BadName, topic.withdraw, "one.md", name, ONE)
        raised(BadName, topic.discard, Staged(name, ONE))
    assert topic.read("one.md") == b"inside one"


REASONS = [
    *((errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk quota is used up")),
    *((errno.EROFS, "the file system is read-only"), (errno.EIO, "the disk reports an error")),
    *((errno.EACCES, "may not write there"), (errno.EXFULL, "the system reports Exchange full")),
]


def test_a_failure_while_staging_leaves_nothing_and_says_why(topic, root, trees, monkeypatch):
    before = names(trees.inside / "topic")
    for call, (number, reason) in itertools.product(("fchmod", "write", "fsync"), REASONS):
        with monkeypatch.context() as patched:
            failing(patched, call, number)
            caught = raised(ManagedMemoryUnavailable, topic.stage, fresh(), b"content", match=reason)
        assert caught.what == "user"
        assert names(trees.inside / "topic") == before
    raised(errors.TooLarge, topic.stage, fresh(), bytes(MAX_FILE_BYTES + 1))
    assert names(trees.inside / "topic") == before
    with open_directory(root, user("topic/deep"), create=False) as directory:
        (trees.inside / "topic/deep/two.md").unlink()
        (trees.inside / "topic/deep").rmdir()
        raised(ManagedMemoryUnavailable, directory.stage, fresh(), b"content", match="was removed meanwhile")


# Names.


@pytest.mark.usefixtures("landing_")
def test_a_new_file_never_takes_a_name_from_anything_and_needs_its_staged_bytes(topic, trees):
    (trees.inside / "topic/link.md").symlink_to("nowhere")
    staged = topic.stage(fresh(), b"new")
    before = photograph(trees.inside)
    for taken in ("one.md", "deep", "link.md"):
        paths = raised(StoreConflict, topic.publish_new, staged, taken).paths
        assert paths == (f"user/topic/{taken}",)
    raised(StoreConflict, topic.publish_new, Staged(fresh(), digest(b"")), "new.md")
    assert photograph(trees.inside) == before


@pytest.mark.threat("T-PATH-06", control="new_inode")
def test_a_claimed_file_is_replaced_whole_by_another_inode_or_withdrawn(topic, trees, landing_):
    staged = topic.stage(fresh(), b"after")
    before, inode = names(trees.inside / "topic"), (trees.inside / "topic/one.md").stat().st_ino
    assert topic.replace(staged, "one.md", ONE) is landing_
    assert topic.read("one.md") == b"after"
    assert (trees.inside / "topic/one.md").stat().st_ino != inode, "or a hard link was written through"
    assert names(trees.inside / "topic") == before - {staged.temporary}
    assert topic.withdraw("one.md", fresh(), digest(b"after")) is landing_
    assert names(trees.inside / "topic") == before - {staged.temporary, "one.md"}


def plant_odd(trees):
    (trees.inside / "topic/link.md").symlink_to(trees.outside / "note.md")
    os.link(trees.outside / "note.md", trees.inside / "topic/hard.md")
    os.mkfifo(trees.inside / "topic/fifo.md")
    (trees.inside / "topic/newer.md").write_text("newer")


@pytest.mark.usefixtures("landing_")
def test_what_is_not_what_was_claimed_is_not_touched(topic, trees):
    plant_odd(trees)
    staged = topic.stage(fresh(), b"after")
    before = photograph(trees.inside, trees.outside)
    claimed = digest((trees.outside / "note.md").read_bytes())
    for target in ("one.md", "deep", "link.md", "hard.md", "fifo.md", "missing.md"):
        for change in (partial(topic.replace, staged, target), partial(topic.withdraw, target, fresh())):
            assert raised(StoreConflict, change, claimed).paths == (f"user/topic/{target}",)
    assert photograph(trees.inside, trees.outside) == before


def inodes(directory):
    return {path: kept[1] for path, kept in photograph(directory).items()}


def meanwhile(monkeypatch, act):
    """Let another process `act` after the first look at a name and before the name changes."""
    real, acts = _directory._renameat2, [act]

    def call(*args):
        if acts:
            acts.pop()()
        return real(*args)

    monkeypatch.setattr(_directory, "_renameat2", call)


@pytest.mark.threat("T-PATH-04", control="claimed_file")
@pytest.mark.parametrize("change", ["replace", "withdraw", "set_aside"])
def test_what_was_swapped_in_at_the_last_moment_is_put_back(topic, trees, monkeypatch, change):
    plant_odd(trees)
    outside = inodes(trees.outside)
    staged = topic.stage(fresh(), b"after")
    one = trees.inside / "topic/one.md"
    # The system does not put a directory in the place of a file, either.
    for target in ("newer.md", "link.md", "hard.md", "fifo.md", "deep"):
        with monkeypatch.context() as patched:
            meanwhile(patched, partial(exchange, one, one.with_name(target)))
            last = {"withdraw": (fresh(),), "set_aside": (topic, "memory-before-muniment.md")}
            what = (staged, "one.md") if change == "replace" else ("one.md", *last[change])
            caught = raised(StoreConflict, getattr(topic, change), *what, ONE)
        assert caught.paths == ("user/topic/one.md",)
        exchange(one, one.with_name(target))
        assert topic.read("one.md") == b"inside one"
        assert topic.read("newer.md") == b"newer"
        assert one.with_name("link.md").readlink() == trees.outside / "note.md"
        assert (trees.inside / "topic/deep/two.md").read_text() == "inside two"
    assert inodes(trees.outside) == outside


@pytest.mark.usefixtures("landing_")
def test_a_file_whose_name_was_taken_while_it_was_checked_is_kept(topic, trees, monkeypatch):
    real, aside = topic.read, fresh()

    def taking(name):
        if name == aside:
            (trees.inside / "topic" / aside).write_text("edited meanwhile")
            (trees.inside / "topic/one.md").write_text("newer")
        return real(name)

    monkeypatch.setattr(_directory.Directory, "read", lambda _self, name: taking(name))
    raised(StoreConflict, topic.withdraw, "one.md", aside, ONE)
    assert (trees.inside / "topic/one.md").read_text() == "newer"
    assert (trees.inside / "topic" / aside).read_text() == "edited meanwhile"


def test_what_leaves_at_the_last_moment_is_a_conflict(topic, trees, monkeypatch):
    staged = topic.stage(fresh(), b"after")
    with monkeypatch.context() as patched:
        meanwhile(patched, (trees.inside / "topic/one.md").unlink)
        raised(StoreConflict, topic.replace, staged, "one.md", ONE)
    assert not (trees.inside / "topic/one.md").exists()
    raised(StoreConflict, topic.replace_link, staged, "gone.md")
    lacking(monkeypatch, errno.ENOSYS)
    failing(monkeypatch, "rename", errno.ENOENT)
    raised(StoreConflict, topic.publish_new, staged, "new.md")


@pytest.mark.threat("T-PATH-03", control="replaced_links")
@pytest.mark.usefixtures("landing_")
def test_a_generated_file_replaces_a_link_without_following_it_and_nothing_else(topic, trees):
    (trees.outside / "again.md").write_bytes(b"again")
    (trees.inside / "topic/index.md").symlink_to(trees.outside / "note.md")
    os.link(trees.outside / "again.md", trees.inside / "topic/hard.md")
    before = {path.name: path.read_bytes() for path in trees.outside.glob("*.md")}
    for name in ("index.md", "hard.md"):
        topic.replace_link(topic.stage(fresh(), b"generated"), name)
        assert topic.read(name) == b"generated"
    assert {path.name: path.read_bytes() for path in trees.outside.glob("*.md")} == before
    assert not list((trees.inside / "topic").glob(".muniment-*"))
    for name in ("deep", "one.md"):
        with pytest.raises(StoreConflict):
            topic.replace_link(topic.stage(fresh(), b"generated"), name)
    assert (trees.inside / "topic/one.md").read_bytes() == b"inside one"
    assert (trees.inside / "topic/deep").is_dir()


def test_a_disk_that_fails_while_names_change_is_told(topic, trees, monkeypatch):
    staged = topic.stage(fresh(), b"new")
    (trees.inside / "topic/link.md").symlink_to("one.md")
    lacking(monkeypatch, errno.EIO)
    failing(monkeypatch, "unlink", errno.EROFS)
    failing(monkeypatch, "fsync", errno.EIO)
    raised(ManagedMemoryUnavailable, topic.discard, staged, match="read-only")
    for change, *what in (
        *((topic.publish_new, staged, "new.md"), (topic.replace, staged, "one.md", ONE), (topic.sync,)),
        *((topic.withdraw, "one.md", fresh(), ONE), (topic.replace_link, staged, "link.md")),
    ):
        raised(ManagedMemoryUnavailable, change, *what, match="the disk reports an error")


@pytest.mark.threat("T-PATH-01", control="single_component")
def test_a_name_is_one_component(topic, trees):
    staged = topic.stage(fresh(), b"new")
    before = photograph(trees.inside)
    for name in ("", ".", "..", "../new.md", "../note.md", "deep/two.md", "/note.md", "a\0b", "deep/"):
        for use, *what in (
            *((topic.publish_new, staged, name), (topic.replace, staged, name, digest(b"inside note"))),
            *((topic.read, name), (topic.replace_link, staged, name)),
            (topic.withdraw, name, fresh(), digest(b"")),
        ):
            raised((BadName, PathEscape), use, *what)
    assert photograph(trees.inside) == before
