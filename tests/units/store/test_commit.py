"""A commit: locked, judged, written and indexed as one, or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock, patch

import pytest

from kit.store.ground import STANDING, STRICT, new, origin, patience, sha
from kit.store.killed import files, recovered, steps
from kit.store.processes import at_once
from muniment.confine.cancel import Cancel
from muniment.confine.writing import Directory
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable, StoreConflict
from muniment.store import audit, upkeep
from muniment.store import commit as subject
from muniment.store.audit import records
from muniment.store.judge import Author
from muniment.store.ledger import of_task, root_key, temporary_of, temporary_of_index, unfinished
from muniment.store.state import State
from muniment.store.upkeep import recover_all
from muniment.testing.corpus.index_oracle import index_problems, memory_problems


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


def broken(*_args, **_more):
    raise ManagedMemoryUnavailable("user", "the disk reports an error")


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
@pytest.mark.usefixtures("before")
def test_a_lock_that_somebody_holds_is_waited_for_until_the_deadline_by_a_commit_and_a_recovery(ground):
    """Whoever holds it may be the one whose commit looks like an interrupted one."""
    photograph, fd = ground.photograph(), os.open(ground.user, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(DeadlineExceeded):
            ground.commit(new("user/n.md"), patience=patience(0.05))
        with pytest.raises(DeadlineExceeded):
            recover_all(ground.state, ground.roots, STRICT, patience(0.05))
    finally:
        os.close(fd)
    assert ground.photograph() == photograph
    assert len(unfinished(ground.state, [root_key(ground.state, ground.roots["user"])])) == 1


TOOK_BACK = "took back task-1, which was interrupted; run it again"


class Killed(BaseException):
    """Stands for a kill: nothing of ours may run after it."""


@contextmanager
def killed_before_done():
    """A commit in this block ends after its files were written, as if its process had died."""
    dying = patch.multiple(subject, finish=Mock(side_effect=Killed), bring_back=lambda *_: [])
    with dying, pytest.raises(Killed):
        yield


@pytest.fixture
def before(ground):
    """What was there when a commit was interrupted that was never done."""
    contents = ground.contents()
    changes = [new("user/new/n.md", b"# N\nnew\n"), ground.edit("user/a.md", b"# A\nother\n")]
    with killed_before_done():
        ground.commit(*changes, removals=[ground.gone("user/topic/t.md")], origin=origin("task-1"))
    assert ground.contents() != contents
    return contents


@pytest.mark.threat("T-IDX-02", control="recovery")
def test_what_was_begun_and_not_done_is_taken_back_and_told_and_the_task_may_try_again(ground, before):
    assert recovered(ground) == (TOOK_BACK,)
    index = (ground.user / "MEMORY.md").read_text()
    (ground.user / "MEMORY.md").unlink()
    assert ground.contents() == before
    assert "[A](a.md) — alpha" in index
    assert "N" not in index.partition("entries of user")[2]
    assert [record.kind for record in records(ground.state)] == ["recovery"]
    assert recovered(ground) == ()
    assert not ground.commit(ground.edit("user/a.md", b"again\n"), origin=origin("task-1")).repeated
    assert of_task(ground.state, "task-1") is not None


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("path", ["user/new/n.md", "user/a.md", "user/topic/t.md"])
def test_what_somebody_wrote_between_crash_and_recovery_is_kept_and_told(ground, path):
    (ground.base / path).write_bytes(b"by hand\n")
    assert f"{path} was changed since and is left alone (recovery_conflict)" in recovered(ground)
    for other in {"user/a.md", "user/topic/t.md", path}:
        expected = b"by hand\n" if other == path else STANDING[other]
        assert (ground.base / other).read_bytes() == expected, other
    assert records(ground.state)[-1].body["conflicts"] == [path]
    assert recovered(ground) == ()


@pytest.mark.usefixtures("before")
def test_what_somebody_removed_needs_no_taking_back_but_a_directory_that_went_is_told(ground):
    shutil.rmtree(ground.user / "new")
    (ground.user / "topic").rmdir()
    took_back, told = recovered(ground)
    assert took_back.startswith(TOOK_BACK[:20])
    assert "user/topic/t.md was changed since" in told
    assert not (ground.user / "topic").exists()


@pytest.mark.usefixtures("before")
@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize(("what", "target"), [("a.md", "secret.md"), ("new", ".")])
def test_a_link_put_in_the_way_between_crash_and_recovery_is_not_followed(ground, what, target):
    (ground.user / "new" / "n.md").rename(ground.outside / "n.md")
    (ground.user / what).rename(ground.base / "away")
    (ground.user / what).symlink_to(ground.outside / target)
    outside = {path: path.read_bytes() for path in ground.outside.iterdir()}
    assert any("recovery_conflict" in note for note in recovered(ground))
    assert {path: path.read_bytes() for path in ground.outside.iterdir()} == outside
    assert (ground.user / what).is_symlink()


def test_each_root_is_recovered_when_somebody_opens_it(ground):
    """A commit in two roots: the first opens only one of them."""
    changes = ground.edit("user/a.md", b"u\n"), ground.edit("project/p.md", b"p\n")
    with killed_before_done():
        ground.commit(*changes, origin=origin("task-1"))
    project = ground.roots.pop("project")
    done = ground.commit(new("user/later.md"))  # It takes it back first.
    assert any(TOOK_BACK in note for note in done.notes)
    assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert (ground.project / "p.md").read_bytes() == b"p\n"
    ground.commit(ground.edit("user/a.md", b"later\n"))
    ground.roots["project"] = project
    assert recovered(ground) == (TOOK_BACK,)
    assert (ground.project / "p.md").read_bytes() == b"# P\nproject\n"
    assert (ground.user / "a.md").read_bytes() == b"later\n"


@pytest.mark.usefixtures("before")
def test_an_index_that_cannot_be_written_holds_up_no_recovery_and_no_commit(ground, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "write_index", broken)
        assert any("the index of user is behind" in note for note in recovered(ground))
        assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
        assert recovered(ground) == ()
        done = ground.commit(new("user/later.md"))
        assert any("the index of user is behind" in note for note in done.notes)
    ground.commit(new("user/last.md"))
    assert upkeep.verify(ground.state, ground.roots["user"], STRICT).problems == ()


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("name_of", [temporary_of, temporary_of_index])
def test_what_a_peer_put_under_a_temporary_name_is_kept_whatever_it_is_and_ours_is_dropped(ground, name_of):
    ((token,),) = ground.state.ledger.rows("SELECT token FROM change_set")
    ours, theirs, link = (
        ground.user / name
        for name in (temporary_of_index(token, 1), name_of(token, 7), temporary_of(token, 8))
    )
    ours.write_bytes((ground.user / "MEMORY.md").read_bytes())
    theirs.write_bytes(b"a person's own words\n")
    link.symlink_to(ground.outside / "secret.md")
    assert "user/memory-before-muniment.md holds what somebody wrote meanwhile" in recovered(ground)
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"a person's own words\n"
    assert [path for path in (ours, theirs) if path.exists()] == []
    assert link.is_symlink()
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


def test_an_index_that_somebody_writes_by_hand_again_and_again_is_saved_each_time(ground, monkeypatch):
    ground.commit(new("user/first.md"))
    real, edits, index = upkeep.written, iter(range(9)), ground.user / "MEMORY.md"
    index.write_bytes(b"edit\n")
    with monkeypatch.context() as patched:
        edited = lambda *args: (real(*args), index.write_bytes(b"edit %d\n" % next(edits)))  # noqa: E731
        patched.setattr(upkeep, "written", edited)
        ground.commit(new("user/n.md"))
    saved = {path.read_bytes() for path in ground.user.glob("memory-before-muniment*.md")}
    assert saved == {b"edit\n", b"edit 0\n", b"edit 1\n"}
    assert index.read_bytes() == b"edit 2\n"


def test_a_catalog_that_is_damaged_is_begun_anew_and_one_out_of_reach_left(ground, tmp_path, monkeypatch):
    """Opened again, so that no page of it is still in memory."""
    directory, count = tmp_path / "kept", "SELECT count(*) FROM entry"
    with State(directory) as state:
        replace(ground, state=state).commit(new("user/n.md", b"# N\nnews\n"))
        ((page,),) = state.catalog.rows("SELECT rootpage FROM sqlite_schema WHERE name = 'entry'")
    with (directory / "catalog.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)
    with State(directory) as state:
        replace(ground, state=state).commit(new("user/m.md", b"# M\nmore\n"))
        assert "[N](n.md) — news" in (ground.user / "MEMORY.md").read_text()
        assert upkeep.verify(state, ground.roots["user"], STRICT).problems == ()
        before = state.catalog.rows(count)
        monkeypatch.setattr(upkeep, "refresh", broken)
        with pytest.raises(ManagedMemoryUnavailable, match="the disk reports an error"):
            upkeep.view_of(state, ground.roots["user"], STRICT)
        assert state.catalog.rows(count) == before != [(0,)]


@pytest.mark.parametrize(
    "stride", [60, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])]
)
def test_a_commit_killed_at_any_step_is_all_there_or_not_at_all(tmp_path, stride):
    found = steps(tmp_path, stride)
    assert found[False] > 20 // stride
    assert found[True] >= (stride == 1)  # Few steps come after the one that decides.


# -- Several real processes on one memory: what was acknowledged is there once, and the index is exact.


REMEMBERER = """
import json, sys
import muniment
me, base, home, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
saved, roots = [], {scope: f"{base}/{scope}" for scope in ("user", "project")}
with muniment.open(workspace=base, roots=roots, home=home) as memory:
    memory.remember(f"Warm-up of the process {me}", scope="project")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        fact = f"The user calls plant number {number} of shelf {me} by a name of its own"
        saved.append([fact, *memory.remember(fact, scope="user").files_touched])
print(json.dumps(saved))
"""


@pytest.mark.parametrize(
    ("homes", "count"),
    [("aa", 4), *(pytest.param(homes, 200, marks=pytest.mark.slow) for homes in ("ab", "aaaa", "aabb"))],
)
def test_every_fact_that_was_acknowledged_is_there_exactly_once_and_the_index_is_exact(ground, homes, count):
    """Those of one home have one key and one chain; `homes` says whose home each has."""
    where = [(me, ground.base, ground.base / f"home-{home}", count) for me, home in enumerate(homes)]
    said = [pair for each in at_once(*((REMEMBERER, *each) for each in where)) for pair in each]
    texts = {rel: data.decode().split("\n---\n", 1)[-1].strip() for rel, data in files(ground.user).items()}
    assert list(memory_problems(ground.user, {*texts})) == []
    assert not list(ground.base.rglob(".muniment-*"))
    assert len(said) == len(homes) * count
    for home in ground.base.glob("home-*"):
        with State(home) as state:
            assert audit.verify(state).problems == ()
    assert {texts[path.removeprefix("user/")] for _, path in said} == {fact for fact, _ in said}
    assert sorted(texts.values()) == sorted([*(fact for fact, _ in said), "# A\nalpha", "# T\ntopic"])
