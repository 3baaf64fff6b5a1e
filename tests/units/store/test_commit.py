"""A commit: locked, judged, written and indexed as one, or not at all."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from kit.store.ground import STRICT, new, origin, patience, sha
from kit.store.processes import with_mounts
from muniment.confine.cancel import Cancel
from muniment.confine.writing import Directory
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable, StoreConflict
from muniment.store import commit as subject
from muniment.store.judge import Author
from muniment.store.upkeep import recover_all
from muniment.testing.corpus.index_oracle import index_problems


def index_is_right(root):
    entries = {str(path.relative_to(root)) for path in root.rglob("*.md")} - {"MEMORY.md"}
    return list(index_problems((root / "MEMORY.md").read_bytes(), entries)) == []


def entries_of(ground):
    return {path: kept for path, kept in ground.contents().items() if not path.endswith("MEMORY.md")}


@pytest.fixture
def changes(ground):
    """Something of each kind, in both roots, with new directories."""
    made = [new("user/new/n.md"), ground.edit("user/a.md"), new("project/new/q.md")]
    return lambda **more: ground.commit(*made, removals=[ground.gone("user/topic/t.md")], **more)


def broken(*_args):
    raise ManagedMemoryUnavailable("user", "the disk reports an error")


# What lands.


@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_a_dry_run_says_the_same_and_what_lands_is_private_under_any_umask(ground, changes):
    before = ground.photograph()
    told = changes(dry_run=True)
    assert ground.photograph() == before
    old = os.umask(0)
    try:
        assert changes() == told
    finally:
        os.umask(old)
    files = dict.fromkeys(("new/n.md", "a.md", "MEMORY.md"), 0o600)
    for name, mode in {"new": 0o700, **files}.items():
        assert (ground.user / name).stat().st_mode & 0o7777 == mode, name


# What peers do meanwhile.

MOMENTS = [
    *(("user/a.md", method) for method in ("stage", "replace", "_rename")),
    *(("user/topic/t.md", method) for method in ("withdraw", "_rename")),
    ("user/new/n.md", "publish_new"),
]


@pytest.mark.threat("T-RUN-08", control="claimed_files")
@pytest.mark.parametrize(("path", "method"), MOMENTS)
def test_what_a_peer_writes_meanwhile_is_kept_and_nothing_lands(ground, changes, monkeypatch, path, method):
    at, real, expected = ground.base / path, getattr(Directory, method), ground.contents()
    known = at.read_bytes() if at.exists() else None

    def meddled(self, *args, **keywords):
        if at.parent.exists() and (known is None or (at.exists() and at.read_bytes() == known)):
            at.write_bytes(b"a peer's")
        return real(self, *args, **keywords)

    monkeypatch.setattr(Directory, method, meddled)
    with pytest.raises(StoreConflict) as caught:
        changes()
    assert caught.value.paths == (path,)
    made = {"user/new": "d"} if known is None else {}
    assert ground.contents() == {**expected, **made, path: sha(b"a peer's")}


# Faults.


@pytest.mark.threat("T-IDX-02", control="taken_back")
@pytest.mark.parametrize(
    ("call", "number", "reason"),
    [("write", errno.ENOSPC, "the disk is full"), ("fsync", errno.EIO, "the disk reports an error")],
)
def test_a_fault_of_the_disk_at_any_stage_leaves_no_trace(ground, changes, monkeypatch, call, number, reason):
    before, real, told, done = ground.contents(), getattr(os, call), [], None
    while done is None:
        calls = []

        def failing(*args, calls=calls):
            calls.append(args)
            if len(calls) == len(told) + 1:
                raise OSError(number, os.strerror(number))
            return real(*args)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            try:
                done = changes()
            except ManagedMemoryUnavailable as error:
                told.append(error.reason)
        assert done or ground.contents() == before
    assert len(told) >= 3
    assert all(reason in each for each in told)
    # The first fault behind the entries is that of an index, which is written but not synced.
    assert [reason in note and "is behind" in note for note in done.notes] == [True] * (call == "write")
    assert len(done.changes) == 4
    assert not list(ground.base.rglob(".muniment-*"))
    for scope in ("user", "project"):
        assert ground.commit(new(f"{scope}/next.md")).notes == ()
        assert index_is_right(ground.base / scope)


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_a_ledger_that_cannot_be_written_leaves_no_trace_in_the_files(ground, changes, monkeypatch, step):
    ground.commit(new("user/first.md"), new("project/first.md"))
    before, entries = ground.contents(), entries_of(ground)
    task = {"origin": origin("task-1"), "author": Author.CODE}
    with monkeypatch.context() as patched:
        patched.setattr(subject, step, broken)
        with pytest.raises(ManagedMemoryUnavailable, match="the disk reports an error"):
            changes(**task)
    assert entries_of(ground) == entries
    recover_all(ground.state, ground.roots, STRICT, patience())
    assert ground.contents() == before
    # The task did not commit: it may try again, and then the index says so.
    done = changes(**task)
    assert not done.repeated
    assert [change.kind for change in done.changes] == ["create", "modify", "create", "delete"]
    assert index_is_right(ground.user)
    assert index_is_right(ground.project)


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
with laid_out(base) as ground:
    filler = base / "outside" / "filler"
    entries = [new(f"user/{name}/x.md", os.urandom(3000).hex().encode()) for name in "bcd"]
    def attempt(*changes):
        before = ground.photograph()
        try:
            said.extend(["landed", *ground.commit(*changes).notes])
            return True
        except ManagedMemoryUnavailable as error:
            said.append(error.reason)
            assert ground.photograph() == before
    for pages in range(24, 0, -1):
        filler.write_bytes(b"")
        try:
            filler.write_bytes(b"f" * 4096 * pages)
        except OSError:
            pass
        if attempt(*entries):
            break
    assert all((base / item.unsafe_path).read_bytes() == item.content for item in entries)
    assert not (base / "user/MEMORY.md").exists()
    filler.write_bytes(b"")
    assert ground.commit(new("user/next.md")).notes == ()
    index = (base / "user/MEMORY.md").read_text()
    assert all(path in index for path in ("b/x.md", "c/x.md", "d/x.md", "next.md"))
    subprocess.run(["mount", "-o", "remount,ro", base], check=True)
    attempt(ground.edit("user/a.md"))
print(json.dumps(said))
"""


def test_a_disk_that_is_really_full_or_read_only_is_told_and_nothing_changes(tmp_path):
    *full, landed, behind, read_only = with_mounts(TMPFS, tmp_path)
    assert {*full} == {"the disk is full"}  # Then was just room for the entries, and none for the index:
    assert (landed, read_only) == ("landed", "the file system is read-only")
    assert "the index of user is behind" in behind
    assert "the disk is full" in behind


def test_a_commit_that_cannot_be_taken_back_is_taken_back_before_the_next_one(ground, monkeypatch):
    before = ground.contents()
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "sync", broken)
        patched.setattr("muniment.store.apply.take_back", broken)
        with pytest.raises(ManagedMemoryUnavailable, match=r"could not be taken back for .*user/a\.md"):
            ground.commit(new("user/n.md"), ground.edit("user/a.md"), origin=origin("task-1"))
    assert ground.contents() != before
    assert any("took back task-1" in note for note in ground.commit(new("user/later.md")).notes)
    assert entries_of(ground) == {**before, "user/later.md": sha(b"new\n")}


# Deadline, cancel, locks.


@pytest.mark.threat("T-RUN-02", control="late_commit")
def test_after_deadline_or_cancel_nothing_is_begun_but_what_has_begun_ends(ground, monkeypatch):
    before = ground.photograph()
    with pytest.raises(DeadlineExceeded):
        ground.commit(new("user/n.md"), patience=patience(-1))
    with Cancel() as cancel:
        late = {"patience": patience(cancel=cancel), "stamp": lambda data, *_rest: (cancel.set(), data)[1]}
        with pytest.raises(Cancelled):
            ground.commit(new("user/n.md"), **late)
    assert ground.photograph() == before
    real = Directory.stage
    with Cancel() as cancel:
        monkeypatch.setattr(Directory, "stage", lambda *args, **more: (cancel.set(), real(*args, **more))[1])
        ground.commit(new("user/n.md"), new("project/n.md"), patience=patience(cancel=cancel))
    assert (ground.user / "n.md").exists()
    assert "n.md" in (ground.project / "MEMORY.md").read_text()


@pytest.mark.threat("T-IDX-02", control="locked_roots")
def test_a_lock_that_somebody_holds_is_waited_for_until_the_deadline(ground):
    before, fd = ground.photograph(), os.open(ground.user, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(DeadlineExceeded):
            ground.commit(new("user/n.md"), patience=patience(0.05))
    finally:
        os.close(fd)
    assert ground.photograph() == before
