"""A commit: locked, judged, written and indexed as one, or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from kit.store.ground import STRICT, claim, laid_out, new, origin, patience, sha
from kit.where import TESTS
from muniment.confine import writing
from muniment.confine.cancel import Cancel
from muniment.confine.writing import Directory
from muniment.errors import (
    Cancelled,
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    PathEscape,
    StoreConflict,
)
from muniment.names import Via
from muniment.store import commit as subject
from muniment.store.judge import Author
from muniment.store.upkeep import recover_all
from muniment.testing.corpus.index_oracle import index_problems


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


def listing(path):
    return sorted(entry.name for entry in path.iterdir())


def index_of(path):
    return (path / "MEMORY.md").read_text()


def entries_of(root):
    """Every entry beneath `root`, and so everything that an index has to name."""
    return {str(path.relative_to(root)) for path in root.rglob("*.md")} - {"MEMORY.md"}


# What lands.


def test_a_dry_run_says_the_same_and_writes_nothing(ground):
    changes = [new("user/new/n.md"), ground.edit("user/a.md"), new("project/q.md")]
    before = ground.photograph()
    told = ground.commit(*changes, dry_run=True)
    assert ground.photograph() == before
    assert ground.commit(*changes) == told


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_files_and_directories_are_private_under_any_umask(ground):
    old = os.umask(0)
    try:
        ground.commit(new("user/new/n.md"), ground.edit("user/a.md"))
    finally:
        os.umask(old)
    assert {
        name: (ground.user / name).stat().st_mode & 0o7777
        for name in ("new", "new/n.md", "a.md", "MEMORY.md")
    } == {"new": 0o700, "new/n.md": 0o600, "a.md": 0o600, "MEMORY.md": 0o600}


# What peers do meanwhile.


@pytest.mark.parametrize("deed", ["edit", "remove", "create"])
def test_a_read_file_that_a_peer_changed_breaks_the_claim(ground, deed):
    read = claim(
        "user/none.md" if deed == "create" else "user/topic/t.md",
        None if deed == "create" else b"# T\ntopic\n",
    )
    path = ground.base / read.unsafe_path
    path.unlink() if deed == "remove" else path.write_bytes(b"a peer's")
    before = ground.photograph()
    with pytest.raises(StoreConflict) as caught:
        ground.commit(new("user/n.md"), claims=[read])
    assert caught.value.paths == (read.unsafe_path,)
    assert ground.photograph() == before


@pytest.mark.parametrize("method", ["stage", "replace", "_rename"])
def test_a_peers_edit_between_reading_and_exchange_is_kept(ground, monkeypatch, method):
    ground.commit(new("user/first.md"))
    path, real = ground.user / "a.md", getattr(Directory, method)
    expected = ground.contents()

    def meddled(self, *args, **keywords):
        if path.read_bytes() == before:
            path.write_bytes(b"a peer's")
        return real(self, *args, **keywords)

    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Directory, method, meddled)
        with pytest.raises(StoreConflict) as caught:
            ground.commit(ground.edit("user/a.md", b"mine\n"))
    assert caught.value.paths == ("user/a.md",)
    assert path.read_bytes() == b"a peer's"
    assert ground.contents() == {**expected, "user/a.md": sha(b"a peer's")}


@pytest.mark.parametrize("method", ["withdraw", "_rename"])
def test_a_peers_edit_between_reading_and_removal_is_kept(ground, monkeypatch, method):
    path, real = ground.user / "a.md", getattr(Directory, method)
    before, expected = path.read_bytes(), ground.contents()

    def meddled(self, *args, **keywords):
        if path.exists() and path.read_bytes() == before:
            path.write_bytes(b"a peer's")
        return real(self, *args, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(Directory, method, meddled)
        with pytest.raises(StoreConflict) as caught:
            ground.commit(new("user/n.md"), removals=[claim("user/a.md", before)])
    assert caught.value.paths == ("user/a.md",)
    assert ground.contents() == {**expected, "user/a.md": sha(b"a peer's")}


def test_an_index_that_a_peer_edits_again_and_again_is_kept_and_told_while_the_entries_land(
    ground, monkeypatch
):
    ground.commit(new("user/first.md"))
    path, real = ground.user / "MEMORY.md", Directory.replace
    expected, edits = ground.contents(), iter(range(9))

    def meddled(self, staged, name, claimed):
        if name == "MEMORY.md":
            path.write_bytes(b"edit %d" % next(edits))
        return real(self, staged, name, claimed)

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "replace", meddled)
        done = ground.commit(ground.edit("user/a.md", b"mine\n"))
    assert [change.path for change in done.changes] == ["user/a.md"]
    assert "the index of user is behind" in done.notes[-1]
    assert "muniment index rebuild" in done.notes[-1]
    assert ground.contents() == {
        **expected,
        "user/a.md": sha(b"mine\n"),
        "user/MEMORY.md": sha(b"edit %d" % (next(edits) - 1)),
    }
    last = path.read_bytes()
    ground.commit(new("user/second.md"))
    assert (ground.user / "memory-before-muniment.md").read_bytes() == last
    assert list(index_problems(path.read_bytes(), entries_of(ground.user))) == []


# Faults.


@pytest.mark.threat("T-IDX-02", control="taken_back")
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EIO, "the disk reports an error"),
        (errno.EROFS, "read-only"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_fault_of_the_disk_at_any_stage_leaves_no_trace_of_the_commit(
    ground, monkeypatch, number, reason, call
):
    changes = [new("user/new/n.md"), ground.edit("user/a.md"), new("project/new/q.md"), new("user/new/m.md")]
    removal = [claim("user/topic/t.md", b"# T\ntopic\n")]
    before, real, at, told = ground.contents(), getattr(os, call), 0, []
    while True:
        at, calls = at + 1, []

        def failing(*args, at=at, calls=calls):
            calls.append(args)
            if len(calls) == at:
                raise OSError(number, os.strerror(number))
            return real(*args)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            try:
                done = ground.commit(*changes, removals=removal)
            except ManagedMemoryUnavailable as error:
                told.append(error.reason)
            else:
                break
        assert ground.contents() == before
    assert len(told) == at - 1 >= len(changes)
    assert all(reason in each for each in told)
    # The first fault behind the entries is that of an index, which is written but not synced.
    assert [reason in note for note in done.notes] == [True] * (call == "write")


@pytest.mark.parametrize("scope", ["project", "user"])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EIO, "the disk reports an error"),
        (errno.EROFS, "read-only"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_fault_at_an_index_is_told_the_entries_stay_and_the_next_commit_mends_it(
    ground, monkeypatch, number, reason, scope, is_new
):
    if not is_new:
        ground.commit(new("user/first.md"), new("project/first.md"))
    real, old = os.write, {each: ground.contents().get(f"{each}/MEMORY.md") for each in ("user", "project")}

    def failing(fd, data):
        if bytes(data).startswith(b"# Memory index") and f"entries of {scope};" in bytes(data).decode():
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    other = {"user": "project", "project": "user"}[scope]
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", failing)
        done = ground.commit(new("user/new/n.md"), ground.edit("user/a.md"), new("project/q.md"))
    assert len(done.changes) == 3
    assert [f"the index of {scope} is behind" in note and reason in note for note in done.notes] == [True]
    assert (ground.user / "new" / "n.md").read_bytes() == b"new\n"
    assert (ground.user / "a.md").read_bytes() == b"edited\n"
    assert (ground.project / "q.md").read_bytes() == b"new\n"
    assert ground.contents().get(f"{scope}/MEMORY.md") == old[scope]
    assert (
        list(
            index_problems((ground.base / other / "MEMORY.md").read_bytes(), entries_of(ground.base / other))
        )
        == []
    )
    assert not [path for path in ground.contents() if ".muniment-" in path]
    assert ground.commit(new(f"{scope}/next.md")).notes == ()
    index = (ground.base / scope / "MEMORY.md").read_bytes()
    assert list(index_problems(index, entries_of(ground.base / scope))) == []


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_a_ledger_that_cannot_be_written_leaves_no_trace_in_the_files(ground, monkeypatch, step):
    ground.commit(new("user/first.md"), new("project/first.md"))
    before = ground.contents()

    def failing(*_args):
        raise ManagedMemoryUnavailable("ledger.db", "the disk is full")

    changes = [new("user/new/n.md"), ground.edit("user/a.md"), new("project/new/q.md")]
    removal = [claim("user/topic/t.md", b"# T\ntopic\n")]
    task = origin("task-1")
    with monkeypatch.context() as patched:
        patched.setattr(subject, step, failing)
        with pytest.raises(ManagedMemoryUnavailable, match="the disk is full"):
            ground.commit(*changes, removals=removal, origin=task, author=Author.CODE)
    assert {path: kept for path, kept in ground.contents().items() if not path.endswith("MEMORY.md")} == {
        path: kept for path, kept in before.items() if not path.endswith("MEMORY.md")
    }
    # The task did not commit: it may try again, and then the index says so.
    done = ground.commit(*changes, removals=removal, origin=task, author=Author.CODE)
    assert not done.repeated
    assert [change.kind for change in done.changes] == ["create", "modify", "create", "delete"]
    for root in (ground.user, ground.project):
        assert list(index_problems((root / "MEMORY.md").read_bytes(), entries_of(root))) == []


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_an_interrupt_at_any_name_leaves_no_trace_of_the_commit(ground, monkeypatch, at):
    before, calls = ground.contents(), []

    def interrupted(real):
        def method(self, *args):
            calls.append(args)
            if len(calls) == at:
                raise KeyboardInterrupt
            return real(self, *args)

        return method

    with monkeypatch.context() as patched:
        for name in ("publish_new", "replace", "withdraw"):
            patched.setattr(Directory, name, interrupted(getattr(Directory, name)))
        with pytest.raises(KeyboardInterrupt):
            ground.commit(
                new("user/new/n.md"),
                ground.edit("user/a.md"),
                new("project/new/q.md"),
                removals=[claim("user/topic/t.md", b"# T\ntopic\n")],
            )
    assert len(calls) >= at
    left = {path: kept for path, kept in ground.contents().items() if path not in before}
    assert ground.contents() == {**before, **left}
    # Only an index that was written already may still speak of it, until the memory is opened again.
    assert set(left) <= ({"project/MEMORY.md"} if at == 6 else set())
    recover_all(ground.state, ground.roots, STRICT, patience())
    assert {path for path in ground.contents() if path not in before} <= {
        "user/MEMORY.md",
        "project/MEMORY.md",
    }
    for root in filter(lambda root: (root / "MEMORY.md").exists(), (ground.user, ground.project)):
        assert list(index_problems((root / "MEMORY.md").read_bytes(), entries_of(root))) == []


TMPFS = """
import json, os, subprocess, sys
from pathlib import Path
base = Path(sys.argv[1])
small = ["mount", "-t", "tmpfs", "-o", "size=96k,mode=0700", "none", base]
if subprocess.run(small, capture_output=True).returncode:
    sys.exit(77)
from muniment.errors import ManagedMemoryUnavailable
from kit.store.ground import laid_out, new
said = []
def attempt():
    before = ground.photograph()
    entries = [new(f"user/{name}/x.md", os.urandom(3000).hex().encode()) for name in "bcd"]
    try:
        done = ground.commit(*entries)
    except ManagedMemoryUnavailable as error:
        said.append(error.reason)
        assert ground.photograph() == before
    else:
        said.append("landed")
        said.extend(done.notes)
        assert all((base / item.unsafe_path).read_bytes() == item.content for item in entries)
        assert "user/MEMORY.md" not in before
        is_indexed = "user/MEMORY.md" in ground.photograph()
        assert is_indexed == (not done.notes)
        assert len(ground.photograph()) == len(before) + 6 + is_indexed
with laid_out(base) as ground:
    for pages in range(24):
        (base / "outside" / "filler").write_bytes(b"")
        try:
            with (base / "outside" / "filler").open("wb") as filler:
                for _ in range(24 - pages):
                    filler.write(b"f" * 4096)
                    filler.flush()
        except OSError:
            pass
        attempt()
        if "landed" in said:
            break
    (base / "outside" / "filler").write_bytes(b"")
    assert ground.commit(new("user/next.md")).notes == ()
    index = (base / "user" / "MEMORY.md").read_text()
    assert all(path in index for path in ("b/x.md", "c/x.md", "d/x.md", "next.md"))
    subprocess.run(["mount", "-o", "remount,ro", base], check=True)
    before = ground.photograph()
    try:
        ground.commit(ground.edit("user/a.md"))
    except ManagedMemoryUnavailable as error:
        said.append(error.reason)
    assert ground.photograph() == before
print(json.dumps(said))
"""


def test_a_disk_that_is_really_full_or_read_only_is_told_and_nothing_changes(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to mount a small file system with")
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", TMPFS, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this system lets nobody mount a small file system of their own")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said[0] == "the disk is full"
    landed = said.index("landed")
    assert set(said[:landed]) == {"the disk is full"}
    # There was just room for the entries, and none for the index.
    (behind,) = said[landed + 1 : -1]
    assert "the index of user is behind" in behind
    assert "the disk is full" in behind
    assert said[-1] == "the file system is read-only"
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_cannot_be_taken_back_is_taken_back_before_the_next_one(ground, monkeypatch):
    before = ground.contents()

    def broken(*_args):
        raise ManagedMemoryUnavailable("user", "the disk reports an error")

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "sync", broken)
        patched.setattr("muniment.store.apply.take_back", broken)
        with pytest.raises(ManagedMemoryUnavailable, match=r"could not be taken back for .*user/a\.md"):
            ground.commit(new("user/n.md"), ground.edit("user/a.md"), origin=origin("task-1"))
    assert ground.contents() != before
    done = ground.commit(new("user/later.md"))
    assert any("took back task-1" in note for note in done.notes)
    after = ground.contents()
    assert after.pop("user/later.md") == sha(b"new\n")
    del after["user/MEMORY.md"]
    assert after == before


# Deadline, cancel, locks.


@pytest.mark.threat("T-RUN-02", control="late_commit")
def test_a_deadline_that_has_passed_writes_nothing(ground):
    before = ground.photograph()
    with pytest.raises(DeadlineExceeded):
        ground.commit(new("user/n.md"), patience=patience(-1))
    assert ground.photograph() == before


def test_a_cancel_before_the_first_write_writes_nothing(ground):
    before = ground.photograph()
    with Cancel() as cancel:

        def stamp(data, *_rest):
            cancel.set()
            return data

        with pytest.raises(Cancelled):
            ground.commit(new("user/n.md"), patience=patience(cancel=cancel), stamp=stamp)
    assert ground.photograph() == before


def test_a_cancel_after_the_first_write_lets_the_commit_run_to_its_end(ground, monkeypatch):
    real = Directory.stage
    with Cancel() as cancel:

        def stage(self, *args, **keywords):
            cancel.set()
            return real(self, *args, **keywords)

        monkeypatch.setattr(Directory, "stage", stage)
        ground.commit(new("user/n.md"), new("project/n.md"), patience=patience(cancel=cancel))
    assert (ground.user / "n.md").exists()
    assert "n.md" in index_of(ground.project)


@contextmanager
def locked(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@pytest.mark.threat("T-IDX-02", control="locked_roots")
def test_a_lock_that_somebody_holds_ends_at_the_deadline(ground):
    before = ground.photograph()
    with locked(ground.user), pytest.raises(DeadlineExceeded):
        ground.commit(new("user/n.md"), patience=patience(0.05))
    assert ground.photograph() == before


@contextmanager
def waiting(monkeypatch, deed):
    """While a lock is held: `deed` is done once somebody else has begun to wait for it."""
    begun, real = threading.Event(), writing._pause

    def pause(*args):
        begun.set()
        real(*args)

    monkeypatch.setattr(writing, "_pause", pause)
    fd = deed.__self__.lock()

    def release():
        begun.wait(30)
        deed()
        os.close(fd)

    thread = threading.Thread(target=release)
    thread.start()
    yield
    thread.join()


class Held:
    """The lock of `user`, and what happens before it is given back."""

    def __init__(self, ground):
        self.ground = ground

    def lock(self):
        fd = os.open(self.ground.user, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def nothing(self):
        pass

    def edit(self):
        (self.ground.user / "a.md").write_bytes(b"a peer's")

    def replace(self):
        self.ground.user.rename(self.ground.base / "old")
        self.ground.user.mkdir(mode=0o700)

    def replace_by_link(self):
        self.ground.user.rename(self.ground.base / "old")
        self.ground.user.symlink_to(self.ground.outside)


def test_a_second_committer_waits_and_then_succeeds(ground, monkeypatch):
    with waiting(monkeypatch, Held(ground).nothing):
        ground.commit(new("user/n.md"))
    assert (ground.user / "n.md").exists()


@pytest.mark.threat("T-PATH-05", control="root_identity")
@pytest.mark.parametrize("deed", ["replace", "replace_by_link"])
def test_a_root_that_is_replaced_while_waiting_is_an_escape(ground, monkeypatch, deed):
    with waiting(monkeypatch, getattr(Held(ground), deed)), pytest.raises(PathEscape) as caught:
        ground.commit(new("user/n.md"))
    assert caught.value.via is Via.ROOT_REPLACED
    assert listing(ground.user) in ([], ["secret.md"])
    assert listing(ground.base / "old") == ["a.md", "topic"]


# Scopes.
