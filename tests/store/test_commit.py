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
from pathlib import Path

import pytest

from muniment.confine import writing
from muniment.confine.cancel import Cancel
from muniment.confine.landing import Directory
from muniment.errors import (
    Cancelled,
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    PathEscape,
    StoreConflict,
)
from muniment.names import Via
from muniment.store import commit as subject
from muniment.store.change import Change
from muniment.store.commit import Commit, commit
from muniment.tools.changeset import ChangeSet
from store.ground import claim, laid_out, new, patience, sha


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


def listing(path):
    return sorted(entry.name for entry in path.iterdir())


def index_of(path):
    return (path / "MEMORY.md").read_text()


# What lands.


def test_a_commit_lands_files_and_indexes_and_says_what_it_did(ground):
    done = ground.commit(
        new("user/new/n.md", b"# New\nnews\n"),
        ground.edit("user/a.md", b"# Other\nwords\n"),
        new("project/q.md", b"# Q\nquestion\n"),
    )
    assert done == Commit(
        (
            Change("user/new/n.md", "create", None, sha(b"# New\nnews\n")),
            Change("user/a.md", "modify", sha(b"# A\nalpha\n"), sha(b"# Other\nwords\n")),
            Change("project/q.md", "create", None, sha(b"# Q\nquestion\n")),
        ),
        ("project", "user"),
        (),
    )
    assert (ground.user / "a.md").read_bytes() == b"# Other\nwords\n"
    assert (ground.user / "new" / "n.md").read_bytes() == b"# New\nnews\n"
    assert "[New](new/n.md) — news" in index_of(ground.user)
    assert "[Other](a.md) — words" in index_of(ground.user)
    assert "3 entries" in index_of(ground.user)
    assert "[Q](q.md) — question" in index_of(ground.project)


def test_only_touched_scopes_get_an_index(ground):
    assert ground.commit(new("user/n.md")).touched_scopes == ("user",)
    assert not (ground.project / "MEMORY.md").exists()


def test_an_empty_change_set_writes_nothing_not_even_an_index(ground):
    before = ground.photograph()
    assert ground.commit() == Commit()
    assert ground.commit(claims=[claim("user/a.md", b"lie")]) == Commit()
    assert ground.photograph() == before


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


def test_the_stamp_makes_the_final_bytes_from_proposal_and_before_state(ground):
    seen = []

    def stamp(data, base, path):
        seen.append((data, base, path.text))
        return b"# Stamped\n" + data

    done = ground.commit(new("user/n.md", b"n\n"), ground.edit("user/a.md", b"a\n"), stamp=stamp)
    assert seen == [(b"n\n", None, "user/n.md"), (b"a\n", b"# A\nalpha\n", "user/a.md")]
    assert (ground.user / "n.md").read_bytes() == b"# Stamped\nn\n"
    assert done.changes[0].sha256_after == sha(b"# Stamped\nn\n")
    assert "[Stamped](n.md)" in index_of(ground.user)


def test_claims_that_hold_do_not_stand_in_the_way(ground):
    claims = [
        claim("user/topic/t.md", b"# T\ntopic\n"),
        claim("project/p.md", b"# P\nproject\n"),
        claim("user/n.md", None),
        claim("user/none/deeper.md", None),
    ]
    ground.commit(new("user/n.md"), claims=claims)
    assert (ground.user / "n.md").exists()


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


@pytest.mark.parametrize("method", ["stage", "replace", "_rename"])
def test_an_index_that_a_peer_edits_meanwhile_is_saved_as_an_entry_and_the_commit_lands(
    ground, monkeypatch, method
):
    ground.commit(new("user/first.md"))
    path, real = ground.user / "MEMORY.md", getattr(Directory, method)
    before = path.read_bytes()

    def meddled(self, *args, **keywords):
        if path.read_bytes() == before:
            path.write_bytes(b"a peer's")
        return real(self, *args, **keywords)

    monkeypatch.setattr(Directory, method, meddled)
    done = ground.commit(ground.edit("user/a.md", b"mine\n"))
    assert [change.path for change in done.changes] == ["user/a.md"]
    assert (ground.user / "a.md").read_bytes() == b"mine\n"
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"a peer's"
    assert not list(ground.user.glob(".muniment-*"))


def test_an_index_that_a_peer_edits_again_and_again_is_a_conflict_and_kept(ground, monkeypatch):
    ground.commit(new("user/first.md"))
    path, real = ground.user / "MEMORY.md", Directory.replace
    expected, edits = ground.contents(), iter(range(9))

    def meddled(self, staged, name, claimed):
        if name == "MEMORY.md":
            path.write_bytes(b"edit %d" % next(edits))
        return real(self, staged, name, claimed)

    monkeypatch.setattr(Directory, "replace", meddled)
    with pytest.raises(StoreConflict):
        ground.commit(ground.edit("user/a.md", b"mine\n"))
    assert ground.contents() == {**expected, "user/MEMORY.md": sha(b"edit 1")}


def test_an_index_that_a_peer_creates_meanwhile_is_saved_as_an_entry(ground, monkeypatch):
    real, path = Directory.publish_new, ground.user / "MEMORY.md"

    def meddled(self, staged, name):
        path.write_bytes(b"a person's own words\n")
        return real(self, staged, name)

    monkeypatch.setattr(Directory, "publish_new", meddled)
    ground.commit(new("user/n.md"))
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"a person's own words\n"
    assert (ground.user / "n.md").exists()


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
                ground.commit(*changes)
            except ManagedMemoryUnavailable as error:
                told.append(error.reason)
            else:
                break
        assert ground.contents() == before
    assert len(told) == at - 1 >= len(changes)
    assert all(reason in each for each in told)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_an_interrupt_at_any_name_leaves_no_trace_of_the_commit(ground, monkeypatch, at):
    before, calls = ground.contents(), []

    def interrupted(real):
        def method(self, *args):
            calls.append(args)
            if len(calls) == at:
                raise KeyboardInterrupt
            return real(self, *args)

        return method

    for name in ("publish_new", "replace"):
        monkeypatch.setattr(Directory, name, interrupted(getattr(Directory, name)))
    with pytest.raises(KeyboardInterrupt):
        ground.commit(new("user/new/n.md"), ground.edit("user/a.md"), new("project/new/q.md"))
    assert ground.contents() == before


TMPFS = """
import json, os, subprocess, sys
from pathlib import Path
base = Path(sys.argv[1])
small = ["mount", "-t", "tmpfs", "-o", "size=96k,mode=0700", "none", base]
if subprocess.run(small, capture_output=True).returncode:
    sys.exit(77)
from muniment.errors import ManagedMemoryUnavailable
from store.ground import laid_out, new
said = []
def attempt():
    before = ground.photograph()
    try:
        ground.commit(*[new(f"user/{name}/x.md", os.urandom(3000).hex().encode()) for name in "bcd"])
    except ManagedMemoryUnavailable as error:
        said.append(error.reason)
        assert ground.photograph() == before
    else:
        said.append("landed")
        assert len(ground.photograph()) == len(before) + 7 - ("user/MEMORY.md" in before)
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
        if said[-1] == "landed":
            break
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
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
    assert set(said[:-2]) == {"the disk is full"}
    assert said[-2:] == ["landed", "the file system is read-only"]
    assert list(tmp_path.iterdir()) == []


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

        def stamp(data, _base, _path):
            cancel.set()
            return data

        with pytest.raises(Cancelled):
            ground.commit(new("user/n.md"), patience=patience(cancel=cancel), stamp=stamp)
    assert ground.photograph() == before


def test_a_cancel_after_the_first_write_lets_the_commit_run_to_its_end(ground, monkeypatch):
    real = Directory.stage
    with Cancel() as cancel:

        def stage(self, *args):
            cancel.set()
            return real(self, *args)

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


def test_a_lock_on_another_scope_is_not_waited_for(ground):
    with locked(ground.project):
        ground.commit(new("user/n.md"), claims=[claim("project/p.md", b"# P\nproject\n")])
    assert (ground.user / "n.md").exists()


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


def test_what_the_first_committer_changed_is_seen_by_the_second(ground, monkeypatch):
    change = ground.edit("user/a.md")
    with waiting(monkeypatch, Held(ground).edit), pytest.raises(StoreConflict):
        ground.commit(change)
    assert (ground.user / "a.md").read_bytes() == b"a peer's"


@pytest.mark.threat("T-PATH-05", control="root_identity")
@pytest.mark.parametrize("deed", ["replace", "replace_by_link"])
def test_a_root_that_is_replaced_while_waiting_is_an_escape(ground, monkeypatch, deed):
    with waiting(monkeypatch, getattr(Held(ground), deed)), pytest.raises(PathEscape) as caught:
        ground.commit(new("user/n.md"))
    assert caught.value.via is Via.ROOT_REPLACED
    assert listing(ground.user) in ([], ["secret.md"])
    assert listing(ground.base / "old") == ["a.md", "topic"]


# Scopes.


def test_the_scope_is_that_of_the_root_that_was_opened(ground):
    terms = ground.terms()
    swapped = {"user": ground.roots["project"], "project": ground.roots["user"]}
    terms = subject.replace(terms, roots=swapped)
    done = commit(ChangeSet((new("user/n.md"),)), terms)
    assert done.touched_scopes == ("project",)
    assert (ground.project / "n.md").exists()
