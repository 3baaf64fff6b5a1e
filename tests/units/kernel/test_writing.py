"""Writing of memory: locks and changes of names in a directory."""

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

from kit.catching import catch_error
from kit.kernel.trees import CANARY, FailingResolver
from kit.memories import take_snapshot
from kit.paths import make_path
from muniment import errors
from muniment.cancelling import Cancel
from muniment.errors import BadName, ManagedMemoryUnavailable, PathEscape, StoreConflict
from muniment.kernel import _directory, apply
from muniment.kernel._directory import StagedFile, build_partial_name, build_temporary_name, open_directory
from muniment.kernel.binding import bind
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import MAX_FILE_BYTES, Via
from muniment.testing.race import exchange_names

user = partial(make_path, "user")


def hash_content(content):
    return hashlib.sha256(content).hexdigest()


ONE = hash_content(b"inside one")


def create_temporary_name():
    return build_temporary_name(os.urandom)


@pytest.fixture
def topic(trees):
    root = trees.open_root("openat2")
    with open_directory(root, user("topic"), create=False) as directory:
        yield directory
    os.close(root.fd)


def test_folder_or_file_on_removed_device_is_unavailable(trees):
    root, errors_by_name = trees.open_root("openat2"), {b"topic": errno.ENODEV, b"note.md": errno.ENXIO}
    failing_root = replace(root, resolver=FailingResolver(errors_by_name, root.resolver))
    catch_error(ManagedMemoryUnavailable, open_directory, failing_root, user("topic"), create=True)
    with open_directory(failing_root, user(""), create=False) as directory:
        catch_error(ManagedMemoryUnavailable, directory.read, "note.md")
    os.close(root.fd)


def test_clear_saves_too_large_file_of_another_process(trees):
    temporary = trees.inside / "topic" / create_temporary_name()
    temporary.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    was = temporary.stat()
    with bind("user", trees.inside) as bound, apply.lock_roots([bound], Deadline(math.inf)) as locked_roots:
        (saved,) = apply.clear_temporary_names(user("topic"), locked_roots, lambda _: True, lambda *_: True)
    now = (trees.inside / saved.rel).stat()
    assert (now.st_ino, now.st_size) == (was.st_ino, was.st_size)
    assert not temporary.exists()


@pytest.fixture(params=["with flags", "without flags"])
def replace_method(request, monkeypatch):
    """Return the method to change a name: with flags, or on a file system without them."""
    if request.param == "without flags":
        disable_renameat2(monkeypatch, errno.EINVAL)
        return _directory.ReplaceMethod.PLAIN_RENAME
    return _directory.ReplaceMethod.ATOMIC


def disable_renameat2(monkeypatch, number):
    def fail(*_args):
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(_directory, "_renameat2", fail)


def fail_call(monkeypatch, name, number):
    def fail(*_args, **_keywords):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, fail)


@contextmanager
def clear_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def list_names(path):
    return {entry.name for entry in path.iterdir()}


# Locks.


def lock_file(path, more=0):
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | more)
    return fd


def is_locked(path):
    try:
        os.close(lock_file(path, fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False


@pytest.fixture
def bound(trees):
    with bind("user", trees.inside) as user, bind("project", trees.other) as project:
        yield user, project


@pytest.mark.threat("T-IDX-02", control="locked_roots")
def test_roots_are_locked_only_in_block_despite_forks(bound, trees, monkeypatch):
    copies, flock = [], fcntl.flock

    def copy_lock_fd(fd, operation):
        if operation & fcntl.LOCK_EX:
            copies.append(os.dup(fd))  # A forked child has the same open file.
        return flock(fd, operation)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", copy_lock_fd)
        with apply.lock_roots(bound, Deadline(time.monotonic() + 30)):
            patched.undo()
            assert is_locked(trees.inside)
            assert is_locked(trees.other)
    assert not is_locked(trees.inside)
    with pytest.raises(KeyError), apply.lock_roots(bound, Deadline(math.inf)):
        raise KeyError
    assert not is_locked(trees.other)
    for fd in copies:
        os.close(fd)


def test_locks_are_acquired_in_fixed_order(bound, monkeypatch):
    orders, locked_fds, real = [], [], apply._lock

    def record_lock(root, patience):
        locked_fds.append(root.fd)
        return real(root, patience)

    monkeypatch.setattr(apply, "_lock", record_lock)
    for roots in (bound, bound[::-1], [*bound, *bound]):
        with apply.lock_roots(roots, Deadline(time.monotonic() + 30)):
            orders.append(tuple(locked_fds))
        locked_fds.clear()
    assert len(set(orders)) == 1
    assert len(orders[0]) == 2


def test_lock_wait_ends_at_deadline_or_cancel(bound, trees, monkeypatch):
    other = lock_file(trees.inside)
    with pytest.raises(errors.DeadlineExceeded), apply.lock_roots(bound, Deadline(time.monotonic() + 0.02)):
        pytest.fail("the lock was not free")
    assert not is_locked(trees.other)
    monkeypatch.setattr(apply, "FIRST_PAUSE", 1000)
    monkeypatch.setattr(apply, "LONGEST_PAUSE", 1000)
    real = apply._pause
    with Cancel() as cancel:

        def cancel_in_pause(patience, seconds):
            cancel.set()
            real(patience, seconds)  # returns at once, or this test runs into its time limit

        monkeypatch.setattr(apply, "_pause", cancel_in_pause)
        with pytest.raises(errors.Cancelled), apply.lock_roots(bound, Deadline(math.inf, cancel)):
            pytest.fail("the lock was not free")
    os.close(other)


def test_root_moved_before_lock_is_an_escape(bound, trees, tmp_path):
    trees.inside.rename(tmp_path / "moved")
    with pytest.raises(PathEscape) as caught, apply.lock_roots(bound, Deadline(math.inf)):
        pytest.fail("the root has moved")
    assert caught.value.via is Via.ROOT_REPLACED
    assert not is_locked(tmp_path / "moved")


# Directories.


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_missing_directories_are_created_private_if_requested(root, trees, monkeypatch):
    catch_error(errors.NotFound, open_directory, root, user("topic/a"), create=False)
    with clear_umask(), open_directory(root, user("topic/a/b"), create=True) as directory:
        assert directory.created == (user("topic/a"), user("topic/a/b"))
        assert (directory.path, directory.root) == (user("topic/a/b"), root)
    assert stat.S_IMODE((trees.inside / "topic/a/b").stat().st_mode) == 0o700
    directory.close()
    with open_directory(root, user("topic/a/b"), create=True) as existing:
        assert existing.created == ()
    real = os.mkdir

    def mkdir_after_other(name, mode, *, dir_fd):
        real(name, mode, dir_fd=dir_fd)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "mkdir", mkdir_after_other)
    with open_directory(root, user("new"), create=True) as directory:
        assert directory.created == (), "a directory created by another process must not be removed"


@pytest.mark.threat("T-PATH-01", control="layer_one")
@pytest.mark.threat("T-PATH-03", control="resolvers")
def test_directory_is_not_created_through_links_or_bad_text(root, trees):
    for folder in (trees.inside, trees.inside / "topic"):
        (folder / "link").symlink_to(trees.outside)
    before = take_snapshot(trees.inside, trees.outside)
    for rel, error in {
        **dict.fromkeys(("link", "link/below", "topic/link/below"), PathEscape),
        **dict.fromkeys(("../outside/new", "new/../../outside", "/new", "new\0"), PathEscape),
        **dict.fromkeys(("new//x", "new/.", "new/"), BadName),
        "note.md/below": errors.NotAFile,
    }.items():
        caught = catch_error(error, lambda rel=rel: open_directory(root, user(rel), create=True))
        assert "link" not in rel or caught.via is Via.SYMLINK
    assert take_snapshot(trees.inside, trees.outside) == before


def test_failed_directory_creation_is_undone_with_reason(root, trees, monkeypatch):
    made, real = [], os.mkdir

    def mkdir_only_once(name, mode, *, dir_fd):
        if made:
            raise OSError(errno.ENOSPC, "No space left on device")
        made.append(name)
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir_only_once)
    catch_error(
        ManagedMemoryUnavailable, open_directory, root, user("a/b"), create=True, match="the disk is full"
    )
    assert made == [b"a"]
    assert not (trees.inside / "a").exists()
    monkeypatch.setattr(os, "mkdir", None)
    with pytest.raises(ManagedMemoryUnavailable, match="may not write there"):
        open_directory(type(root)("user", root.fd, FailingResolver(errno.EACCES)), user("topic"), create=True)


def test_only_an_empty_directory_is_removed(root, trees, monkeypatch):
    (trees.inside / "empty").mkdir()
    (trees.inside / "link").symlink_to(trees.outside)
    assert _directory.remove_empty_directory(root, user("empty"))
    assert not (trees.inside / "empty").exists()
    assert _directory.remove_empty_directory(root, user("empty"))
    assert _directory.remove_empty_directory(root, user("missing/below"))
    for rel in ("topic", "note.md", "link", "note.md/below"):
        assert not _directory.remove_empty_directory(root, user(rel))
    catch_error(PathEscape, _directory.remove_empty_directory, root, user(f"link/{CANARY}-dir"))
    (trees.inside / "user").mkdir()
    catch_error(BadName, _directory.remove_empty_directory, root, user(""))
    for wrong, error in {"topic": TypeError, make_path("project", "topic"): ValueError}.items():
        catch_error(error, open_directory, root, wrong, create=True)
    fail_call(monkeypatch, "rmdir", errno.EROFS)
    catch_error(
        ManagedMemoryUnavailable, _directory.remove_empty_directory, root, user("empty"), match="read-only"
    )


# Temporary files.


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_staged_file_is_private_complete_and_synced(topic, trees, monkeypatch):
    write, fsync, order = os.write, os.fsync, []

    def record_write(fd, content):
        order.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return write(fd, content[:4])  # Like a system that writes in pieces.

    monkeypatch.setattr(os, "write", record_write)
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("synced"), fsync(fd)))
    with clear_umask():
        staged = topic.stage(create_temporary_name(), b"content")
    assert order == [0o600, 0o600, "synced"]
    assert staged.digest == hash_content(b"content")
    assert (trees.inside / "topic" / staged.temporary).read_bytes() == b"content"


@pytest.mark.threat("T-PATH-07", control="exclusive_staging")
def test_planted_temporary_name_is_not_followed_or_overwritten(topic, trees):
    before = take_snapshot(trees.outside)
    linked, existing_name = create_temporary_name(), create_temporary_name()
    (trees.inside / "topic" / linked).symlink_to(trees.outside / "new.md")
    (trees.inside / "topic" / existing_name).write_text("planted")
    for name in (linked, existing_name):
        catch_error(StoreConflict, topic.stage, name, b"content")
    staged_name = create_temporary_name()  # The bytes are first written under a separate name.
    (trees.inside / "topic" / build_partial_name(staged_name)).symlink_to(trees.outside / "new.md")
    catch_error(StoreConflict, topic.stage, staged_name, b"content")
    assert take_snapshot(trees.outside) == before
    assert (trees.inside / "topic" / existing_name).read_text() == "planted"


def test_only_temporary_names_are_staged_or_discarded(topic):
    for name in ("one.md", "", "../one.md", ".muniment-0.tmp"):
        catch_error(BadName, topic.stage, name, b"content")
        catch_error(BadName, topic.remove, "one.md", name, ONE)
        catch_error(BadName, topic.discard, StagedFile(name, ONE))
    assert topic.read("one.md") == b"inside one"


REASONS = [
    *((errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk quota is used up")),
    *((errno.EROFS, "the file system is read-only"), (errno.EIO, "the disk reports an error")),
    *((errno.EACCES, "may not write there"), (errno.EXFULL, "the system reports Exchange full")),
]


def test_failed_staging_leaves_nothing_and_gives_reason(topic, root, trees, monkeypatch):
    before = list_names(trees.inside / "topic")
    for call, (number, reason) in itertools.product(("fchmod", "write", "fsync"), REASONS):
        with monkeypatch.context() as patched:
            fail_call(patched, call, number)
            caught = catch_error(
                ManagedMemoryUnavailable, topic.stage, create_temporary_name(), b"content", match=reason
            )
        assert caught.what == "user"
        assert list_names(trees.inside / "topic") == before
    catch_error(errors.TooLarge, topic.stage, create_temporary_name(), bytes(MAX_FILE_BYTES + 1))
    assert list_names(trees.inside / "topic") == before
    with open_directory(root, user("topic/deep"), create=False) as directory:
        (trees.inside / "topic/deep/two.md").unlink()
        (trees.inside / "topic/deep").rmdir()
        catch_error(
            ManagedMemoryUnavailable,
            directory.stage,
            create_temporary_name(),
            b"content",
            match="was removed meanwhile",
        )


# Names.


@pytest.mark.usefixtures("replace_method")
def test_publish_new_rejects_existing_name_or_missing_staged(topic, trees):
    (trees.inside / "topic/link.md").symlink_to("nowhere")
    staged = topic.stage(create_temporary_name(), b"new")
    before = take_snapshot(trees.inside)
    for existing in ("one.md", "deep", "link.md"):
        paths = catch_error(StoreConflict, topic.publish_new, staged, existing).paths
        assert paths == (f"user/topic/{existing}",)
    catch_error(
        StoreConflict, topic.publish_new, StagedFile(create_temporary_name(), hash_content(b"")), "new.md"
    )
    assert take_snapshot(trees.inside) == before


@pytest.mark.threat("T-PATH-06", control="new_inode")
def test_claimed_file_is_replaced_by_new_inode_or_withdrawn(topic, trees, replace_method):
    staged = topic.stage(create_temporary_name(), b"after")
    before, inode = list_names(trees.inside / "topic"), (trees.inside / "topic/one.md").stat().st_ino
    assert topic.replace(staged, "one.md", ONE) is replace_method
    assert topic.read("one.md") == b"after"
    assert (trees.inside / "topic/one.md").stat().st_ino != inode, (
        "a write through a hard link would keep the inode"
    )
    assert list_names(trees.inside / "topic") == before - {staged.temporary}
    assert topic.remove("one.md", create_temporary_name(), hash_content(b"after")) is replace_method
    assert list_names(trees.inside / "topic") == before - {staged.temporary, "one.md"}


def plant_odd(trees):
    (trees.inside / "topic/link.md").symlink_to(trees.outside / "note.md")
    os.link(trees.outside / "note.md", trees.inside / "topic/hard.md")
    os.mkfifo(trees.inside / "topic/fifo.md")
    (trees.inside / "topic/newer.md").write_text("newer")


@pytest.mark.usefixtures("replace_method")
def test_file_that_differs_from_claim_is_not_changed(topic, trees):
    plant_odd(trees)
    staged = topic.stage(create_temporary_name(), b"after")
    before = take_snapshot(trees.inside, trees.outside)
    claimed = hash_content((trees.outside / "note.md").read_bytes())
    for target in ("one.md", "deep", "link.md", "hard.md", "fifo.md", "missing.md"):
        for change in (
            partial(topic.replace, staged, target),
            partial(topic.remove, target, create_temporary_name()),
        ):
            assert catch_error(StoreConflict, change, claimed).paths == (f"user/topic/{target}",)
    assert take_snapshot(trees.inside, trees.outside) == before


def list_inodes(directory):
    return {path: entry[1] for path, entry in take_snapshot(directory).items()}


def run_before_rename(monkeypatch, act):
    """Let another process `act` after the first check of a name and before the rename."""
    real, acts = _directory._renameat2, [act]

    def call(*args):
        if acts:
            acts.pop()()
        return real(*args)

    monkeypatch.setattr(_directory, "_renameat2", call)


@pytest.mark.threat("T-PATH-04", control="claimed_file")
@pytest.mark.parametrize("change", ["replace", "remove", "move_to"])
def test_file_swapped_in_during_rename_is_restored(topic, trees, monkeypatch, change):
    plant_odd(trees)
    outside = list_inodes(trees.outside)
    staged = topic.stage(create_temporary_name(), b"after")
    one = trees.inside / "topic/one.md"
    # The system does not replace a file by a directory either.
    for target in ("newer.md", "link.md", "hard.md", "fifo.md", "deep"):
        with monkeypatch.context() as patched:
            run_before_rename(patched, partial(exchange_names, one, one.with_name(target)))
            last = {"remove": (create_temporary_name(),), "move_to": (topic, "memory-before-muniment.md")}
            arguments = (staged, "one.md") if change == "replace" else ("one.md", *last[change])
            caught = catch_error(StoreConflict, getattr(topic, change), *arguments, ONE)
        assert caught.paths == ("user/topic/one.md",)
        exchange_names(one, one.with_name(target))
        assert topic.read("one.md") == b"inside one"
        assert topic.read("newer.md") == b"newer"
        assert one.with_name("link.md").readlink() == trees.outside / "note.md"
        assert (trees.inside / "topic/deep/two.md").read_text() == "inside two"
    assert list_inodes(trees.outside) == outside


@pytest.mark.usefixtures("replace_method")
def test_withdraw_keeps_files_changed_during_check(topic, trees, monkeypatch):
    real, temporary = topic.read, create_temporary_name()

    def read_and_change(name):
        if name == temporary:
            (trees.inside / "topic" / temporary).write_text("edited meanwhile")
            (trees.inside / "topic/one.md").write_text("newer")
        return real(name)

    monkeypatch.setattr(_directory.Directory, "read", lambda _self, name: read_and_change(name))
    catch_error(StoreConflict, topic.remove, "one.md", temporary, ONE)
    assert (trees.inside / "topic/one.md").read_text() == "newer"
    assert (trees.inside / "topic" / temporary).read_text() == "edited meanwhile"


def test_file_removed_during_rename_is_a_conflict(topic, trees, monkeypatch):
    staged = topic.stage(create_temporary_name(), b"after")
    with monkeypatch.context() as patched:
        run_before_rename(patched, (trees.inside / "topic/one.md").unlink)
        catch_error(StoreConflict, topic.replace, staged, "one.md", ONE)
    assert not (trees.inside / "topic/one.md").exists()
    catch_error(StoreConflict, topic.replace_link, staged, "gone.md")
    disable_renameat2(monkeypatch, errno.ENOSYS)
    fail_call(monkeypatch, "rename", errno.ENOENT)
    catch_error(StoreConflict, topic.publish_new, staged, "new.md")


@pytest.mark.threat("T-PATH-03", control="replaced_links")
@pytest.mark.usefixtures("replace_method")
def test_generated_file_replaces_only_links_without_following(topic, trees):
    (trees.outside / "again.md").write_bytes(b"again")
    (trees.inside / "topic/index.md").symlink_to(trees.outside / "note.md")
    os.link(trees.outside / "again.md", trees.inside / "topic/hard.md")
    before = {path.name: path.read_bytes() for path in trees.outside.glob("*.md")}
    for name in ("index.md", "hard.md"):
        topic.replace_link(topic.stage(create_temporary_name(), b"generated"), name)
        assert topic.read(name) == b"generated"
    assert {path.name: path.read_bytes() for path in trees.outside.glob("*.md")} == before
    assert not list((trees.inside / "topic").glob(".muniment-*"))
    for name in ("deep", "one.md"):
        with pytest.raises(StoreConflict):
            topic.replace_link(topic.stage(create_temporary_name(), b"generated"), name)
    assert (trees.inside / "topic/one.md").read_bytes() == b"inside one"
    assert (trees.inside / "topic/deep").is_dir()


def test_disk_error_during_rename_is_unavailable(topic, trees, monkeypatch):
    staged = topic.stage(create_temporary_name(), b"new")
    (trees.inside / "topic/link.md").symlink_to("one.md")
    disable_renameat2(monkeypatch, errno.EIO)
    fail_call(monkeypatch, "unlink", errno.EROFS)
    fail_call(monkeypatch, "fsync", errno.EIO)
    catch_error(ManagedMemoryUnavailable, topic.discard, staged, match="read-only")
    for change, *arguments in (
        *((topic.publish_new, staged, "new.md"), (topic.replace, staged, "one.md", ONE), (topic.sync,)),
        *((topic.remove, "one.md", create_temporary_name(), ONE), (topic.replace_link, staged, "link.md")),
    ):
        catch_error(ManagedMemoryUnavailable, change, *arguments, match="the disk reports an error")


@pytest.mark.threat("T-PATH-01", control="single_component")
def test_name_must_be_one_component(topic, trees):
    staged = topic.stage(create_temporary_name(), b"new")
    before = take_snapshot(trees.inside)
    for name in ("", ".", "..", "../new.md", "../note.md", "deep/two.md", "/note.md", "a\0b", "deep/"):
        for use, *arguments in (
            *((topic.publish_new, staged, name), (topic.replace, staged, name, hash_content(b"inside note"))),
            *((topic.read, name), (topic.replace_link, staged, name)),
            (topic.remove, name, create_temporary_name(), hash_content(b"")),
        ):
            catch_error((BadName, PathEscape), use, *arguments)
    assert take_snapshot(trees.inside) == before
