"""A commit: locked, judged, written and indexed as one, or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest

from kit.catching import catch_error
from kit.fleet.engines import both_engines
from kit.interleave import act_at_call
from kit.operations.contexts import make_raising_step
from kit.store.bench import INITIAL_FILES, STRICT, compute_digest, make_deadline, make_run, propose_new
from kit.store.crashes import crash_after_write, crash_commits, crash_recoveries, read_files, recover_bench
from kit.store.processes import run_concurrently
from muniment import events
from muniment.cancelling import Cancel
from muniment.errors import (
    BadName,
    Cancelled,
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    StoreConflict,
)
from muniment.kernel import _directory, apply
from muniment.kernel._directory import Directory, build_partial_name, open_directory
from muniment.kernel.binding import bind
from muniment.kernel.change import IndexFile, Precondition
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import get_index_temporary_name, get_temporary_name, new_token
from muniment.store import audit, catalog, index_plan, index_upkeep, upkeep
from muniment.store.audit import read_records
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import find_commit, get_root_key, list_unfinished
from muniment.store.recovery import recover_roots
from muniment.store.state import State
from muniment.testing.corpus.index_oracle import find_index_problems, find_memory_problems


def is_index_correct(root):
    entries = {str(path.relative_to(root)) for path in root.rglob("*.md")} - {"MEMORY.md"}
    return list(find_index_problems((root / "MEMORY.md").read_bytes(), entries)) == []


def read_entries(ground):
    return {path: digest for path, digest in ground.read_contents().items() if not path.endswith("MEMORY.md")}


@pytest.fixture
def commit_changes(store_bench):
    """Return a function that commits something of each kind, in both roots, with new directories."""
    made = [
        propose_new("user/new/n.md"),
        store_bench.propose_edit("user/a.md"),
        propose_new("project/new/q.md"),
    ]
    return lambda **more: store_bench.commit(
        *made, removals=[store_bench.claim_removal("user/topic/t.md")], **more
    )


expect_unavailable = partial(catch_error, ManagedMemoryUnavailable)
raise_unavailable = make_raising_step(ManagedMemoryUnavailable("user", "the disk reports an error"))


@both_engines
@pytest.mark.threat("T-LEAK-08", control="private_modes")
def test_dry_run_equals_the_commit_and_its_files_are_private(store_bench, commit_changes):
    before = store_bench.take_snapshot()
    preview = commit_changes(dry_run=True)
    assert store_bench.take_snapshot() == before
    old = os.umask(0)
    try:
        assert commit_changes() == preview
    finally:
        os.umask(old)
    files = dict.fromkeys(("new/n.md", "a.md", "MEMORY.md"), 0o600)
    for name, mode in {"new": 0o700, **files}.items():
        assert (store_bench.user / name).stat().st_mode & 0o7777 == mode, name


MOMENTS = [
    *(("user/a.md", method) for method in ("stage", "replace", "_rename")),
    *(("user/topic/t.md", method) for method in ("remove", "_rename")),
    ("user/new/n.md", "publish_new"),
]


@pytest.mark.threat("T-RUN-08", control="claimed_files")
@pytest.mark.parametrize(("path", "method"), MOMENTS)
def test_concurrent_write_is_kept_and_aborts_the_commit(
    store_bench, commit_changes, monkeypatch, path, method
):
    at, real, expected = store_bench.base / path, getattr(Directory, method), store_bench.read_contents()
    known = at.read_bytes() if at.exists() else None

    def write_as_peer(self, *args, **keywords):
        if at.parent.exists() and (known is None or (at.exists() and at.read_bytes() == known)):
            at.write_bytes(b"a peer's")
        return real(self, *args, **keywords)

    monkeypatch.setattr(Directory, method, write_as_peer)
    assert catch_error(StoreConflict, commit_changes).paths == (path,)
    made = {"user/new": "d"} if known is None else {}
    assert store_bench.read_contents() == {**expected, **made, path: compute_digest(b"a peer's")}


def test_foreign_index_keeps_its_name_if_another_write_fails(store_bench):
    (store_bench.user / "MEMORY.md").write_bytes(b"mine\n")
    before = store_bench.read_contents()
    foreign = IndexFile(CanonicalPath("user", "MEMORY.md"), b"mine\n", b"ours\n", "memory-before-muniment.md")
    missing = IndexFile(CanonicalPath("user", "index/x.md"), b"never there\n", b"ours\n")
    with apply.lock_roots([store_bench.roots["user"]], make_deadline()) as locked:
        catch_error(
            StoreConflict,
            apply.apply_changes,
            apply.seal_index_files([foreign, missing]),
            locked,
            partial(get_temporary_name, new_token()),
        )
    assert store_bench.read_contents() == before


@both_engines
def test_journal_of_no_task_begins_no_commit(store_bench):
    journal = LedgerJournal(store_bench.state, store_bench.roots)
    catch_error(ValueError, journal.begin, None, new_token(), match="cannot commit")
    assert (
        list_unfinished(
            store_bench.state, [get_root_key(store_bench.state, root) for root in store_bench.roots.values()]
        )
        == ()
    )


FAULTS = [("write", errno.ENOSPC, "the disk is full"), ("fsync", errno.EIO, "the disk reports an error")]


@pytest.mark.threat("T-IDX-02", control="rolled_back_files")
@pytest.mark.parametrize(("call", "number", "reason"), FAULTS)
def test_disk_fault_at_any_stage_leaves_no_trace(store_bench, commit_changes, call, number, reason):
    before, reasons, done = store_bench.read_contents(), [], None
    while done is None:
        with act_at_call(os, call, len(reasons) + 1, make_raising_step(OSError(number, os.strerror(number)))):
            try:
                done = commit_changes()
            except ManagedMemoryUnavailable as error:
                reasons.append(error.reason)
        assert done or store_bench.read_contents() == before
    assert len(reasons) >= 3
    assert all(reason in each for each in reasons)
    # The first fault after the entries is in an index, which is written but not synced.
    assert [reason in note and "is out of date" in note for note in done.notes] == [True] * (call == "write")
    assert len(done.changes) == 4
    assert not list(store_bench.base.rglob(".muniment-*"))
    for scope in ("user", "project"):
        assert store_bench.commit(propose_new(f"{scope}/next.md")).notes == ()
        assert is_index_correct(store_bench.base / scope)


@both_engines
@pytest.mark.parametrize("step", ["begin", "finish"])
def test_unwritable_ledger_leaves_no_trace_in_the_files(store_bench, commit_changes, step):
    store_bench.commit(propose_new("user/first.md"), propose_new("project/first.md"))
    before, entries = store_bench.read_contents(), read_entries(store_bench)
    task = {"run": make_run("task-1")}
    with patch.object(LedgerJournal, step, raise_unavailable):
        expect_unavailable(commit_changes, match="the disk reports an error", **task)
    assert read_entries(store_bench) == entries
    recover_roots(store_bench.state, store_bench.roots, STRICT, make_deadline())
    assert store_bench.read_contents() == before
    # The task did not commit: a retry succeeds and updates the index.
    done = commit_changes(**task)
    assert not done.is_repeated
    assert [change.kind for change in done.changes] == ["create", "modify", "create", "delete"]
    assert [is_index_correct(root) for root in (store_bench.user, store_bench.project)] == [True, True]


@both_engines
def test_failed_rollback_is_completed_before_the_next_commit(store_bench):
    before = store_bench.read_contents()
    with (
        patch.object(Directory, "sync", raise_unavailable),
        patch.object(apply, "_restore", raise_unavailable),
    ):
        both, message = (
            (propose_new("user/n.md"), store_bench.propose_edit("user/a.md")),
            r"change of user/a\.md.* cannot be rolled back",
        )
        expect_unavailable(store_bench.commit, *both, run=make_run("task-1"), match=message)
    assert store_bench.read_contents() != before
    assert any(
        "rolled back task-1" in note for note in store_bench.commit(propose_new("user/later.md")).notes
    )
    assert read_entries(store_bench) == {**before, "user/later.md": compute_digest(b"new\n")}


@pytest.mark.threat("T-RUN-02", control="late_commit")
def test_deadline_or_cancel_stops_only_commits_not_yet_begun(store_bench):
    before = store_bench.take_snapshot()
    catch_error(DeadlineExceeded, store_bench.commit, propose_new("user/n.md"), deadline=make_deadline(-1))
    with Cancel() as cancel:
        late = {
            "deadline": make_deadline(cancel=cancel),
            "stamp": lambda data, *_rest: (cancel.set(), data)[1],
        }
        catch_error(Cancelled, store_bench.commit, propose_new("user/n.md"), **late)
    assert store_bench.take_snapshot() == before
    with Cancel() as cancel, act_at_call(Directory, "stage", 1, cancel.set):
        store_bench.commit(
            propose_new("user/n.md"), propose_new("project/n.md"), deadline=make_deadline(cancel=cancel)
        )
    assert (store_bench.user / "n.md").exists()
    assert "n.md" in (store_bench.project / "MEMORY.md").read_text()


@pytest.mark.threat("T-IDX-02", control="locked_roots")
@pytest.mark.usefixtures("before")
def test_locked_root_is_waited_for_until_the_deadline(store_bench):
    """The holder of the lock may be the commit that looks interrupted."""
    photograph, fd = store_bench.take_snapshot(), os.open(store_bench.user, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        catch_error(
            DeadlineExceeded, store_bench.commit, propose_new("user/n.md"), deadline=make_deadline(0.05)
        )
        catch_error(
            DeadlineExceeded, recover_roots, store_bench.state, store_bench.roots, STRICT, make_deadline(0.05)
        )
    finally:
        os.close(fd)
    assert store_bench.take_snapshot() == photograph
    assert (
        len(list_unfinished(store_bench.state, [get_root_key(store_bench.state, store_bench.roots["user"])]))
        == 1
    )


ROLLED_BACK_NOTE = "rolled back task-1, which was interrupted; run it again"


@contextmanager
def kill_before_done():
    """End a commit in this block after its files were written, as if its process had died."""
    with crash_after_write(SystemExit), pytest.raises(SystemExit):
        yield


@pytest.fixture
def before(store_bench):
    """Return the contents before a commit that was interrupted and never completed."""
    contents = store_bench.read_contents()
    changes = [
        propose_new("user/new/n.md", b"# N\nnew\n"),
        store_bench.propose_edit("user/a.md", b"# A\nother\n"),
    ]
    with kill_before_done():
        store_bench.commit(
            *changes, removals=[store_bench.claim_removal("user/topic/t.md")], run=make_run("task-1")
        )
    assert store_bench.read_contents() != contents
    return contents


@both_engines
@pytest.mark.threat("T-IDX-02", control="recovery")
def test_interrupted_commit_is_rolled_back_and_may_be_retried(store_bench, before):
    assert recover_bench(store_bench) == (ROLLED_BACK_NOTE,)
    index = (store_bench.user / "MEMORY.md").read_text()
    (store_bench.user / "MEMORY.md").unlink()
    assert store_bench.read_contents() == before
    assert "[A](a.md) — alpha" in index
    assert "N" not in index.partition("entries of user")[2]
    assert [record.kind for record in read_records(store_bench.state)] == ["recovery"]
    assert recover_bench(store_bench) == ()
    assert not store_bench.commit(
        store_bench.propose_edit("user/a.md", b"again\n"), run=make_run("task-1")
    ).is_repeated
    assert find_commit(store_bench.state, "task-1") is not None


def test_recovery_without_write_access_only_notes_it(store_bench, before, monkeypatch):
    contents = store_bench.read_contents()
    with monkeypatch.context() as patched:
        patched.setattr("muniment.policy.platforms.IS_LINUX", False)
        (note,) = recover_bench(store_bench)
    assert note.startswith("a commit in user was interrupted and is not rolled back on ")
    assert store_bench.read_contents() == contents
    assert recover_bench(store_bench) == (ROLLED_BACK_NOTE,)
    assert before != contents


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("path", ["user/new/n.md", "user/a.md", "user/topic/t.md"])
def test_edit_between_crash_and_recovery_is_kept_and_reported(store_bench, path):
    (store_bench.base / path).write_bytes(b"by hand\n")
    assert f"{path} was changed after that, so it was not rolled back (recovery_conflict)" in recover_bench(
        store_bench
    )
    for other in {"user/a.md", "user/topic/t.md", path}:
        expected = b"by hand\n" if other == path else INITIAL_FILES[other]
        assert (store_bench.base / other).read_bytes() == expected, other
    assert read_records(store_bench.state)[-1].body["conflicts"] == [path]
    assert recover_bench(store_bench) == ()


@pytest.mark.usefixtures("before")
def test_recovery_by_an_untrusted_commit_names_no_path(store_bench):
    (store_bench.base / "user/a.md").write_bytes(b"by hand\n")
    run = make_run("task-2", trust=Trust.AGENT)
    notes = store_bench.commit(propose_new("user/own.md", b"# O\nown\n"), run=run).notes
    assert "one of its files was changed after that, so it was not rolled back (recovery_conflict)" in notes
    assert not any("user/a.md" in note for note in notes)


@pytest.mark.usefixtures("before")
def test_removed_file_needs_no_rollback_and_a_folder_is_noted(store_bench):
    shutil.rmtree(store_bench.user / "new")
    (store_bench.user / "topic").rmdir()
    rollback_note, conflict_note = recover_bench(store_bench)
    assert rollback_note.startswith(ROLLED_BACK_NOTE[:20])
    assert "user/topic/t.md was changed after that" in conflict_note
    assert not (store_bench.user / "topic").exists()


@pytest.mark.usefixtures("before")
@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize(("what", "target"), [("a.md", "secret.md"), ("new", ".")])
def test_link_placed_before_recovery_is_not_followed(store_bench, what, target):
    (store_bench.user / "new" / "n.md").rename(store_bench.outside / "n.md")
    (store_bench.user / what).rename(store_bench.base / "away")
    (store_bench.user / what).symlink_to(store_bench.outside / target)
    outside = {path: path.read_bytes() for path in store_bench.outside.iterdir()}
    assert any("recovery_conflict" in note for note in recover_bench(store_bench))
    assert {path: path.read_bytes() for path in store_bench.outside.iterdir()} == outside
    assert (store_bench.user / what).is_symlink()


@both_engines
def test_each_root_is_recovered_when_it_is_opened(store_bench):
    """A commit in two roots; the next one opens only one of them."""
    changes = store_bench.propose_edit("user/a.md", b"u\n"), store_bench.propose_edit("project/p.md", b"p\n")
    with kill_before_done():
        store_bench.commit(*changes, run=make_run("task-1"))
    project = store_bench.roots.pop("project")
    done = store_bench.commit(propose_new("user/later.md"))  # It rolls it back first.
    assert any(ROLLED_BACK_NOTE in note for note in done.notes)
    assert (store_bench.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert (store_bench.project / "p.md").read_bytes() == b"p\n"
    store_bench.commit(store_bench.propose_edit("user/a.md", b"later\n"))
    store_bench.roots["project"] = project
    assert recover_bench(store_bench) == (ROLLED_BACK_NOTE,)
    assert (store_bench.project / "p.md").read_bytes() == b"# P\nproject\n"
    assert (store_bench.user / "a.md").read_bytes() == b"later\n"


@pytest.mark.usefixtures("before")
def test_unwritable_index_blocks_no_recovery_and_no_commit(store_bench):
    with patch.object(index_upkeep, "write_index", raise_unavailable):
        assert any("the index of user is out of date" in note for note in recover_bench(store_bench))
        assert (store_bench.user / "a.md").read_bytes() == b"# A\nalpha\n"
        assert recover_bench(store_bench) == ()
        done = store_bench.commit(propose_new("user/later.md"))
        assert any("the index of user is out of date" in note for note in done.notes)
    store_bench.commit(propose_new("user/last.md"))
    assert index_upkeep.verify_root_index(store_bench.state, store_bench.roots["user"], STRICT).problems == ()


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("name_of", [get_temporary_name, get_index_temporary_name])
def test_foreign_file_under_a_temporary_name_is_kept(store_bench, name_of):
    ((token,),) = store_bench.state.ledger.rows("SELECT token FROM change_set")
    names = get_index_temporary_name(token, 1), name_of(token, 7), get_temporary_name(token, 8)
    own_file, peer_file, link = (store_bench.user / name for name in names)
    own_file.write_bytes((store_bench.user / "MEMORY.md").read_bytes())
    peer_file.write_bytes(b"a person's own words\n")
    link.symlink_to(store_bench.outside / "secret.md")
    assert (
        "user/memory-before-muniment.md contains text that another program wrote meanwhile"
        in recover_bench(store_bench)
    )
    assert (store_bench.user / "memory-before-muniment.md").read_bytes() == b"a person's own words\n"
    assert [path for path in (own_file, peer_file) if path.exists()] == []
    assert link.is_symlink()
    assert (store_bench.outside / "secret.md").read_bytes() == b"secret\n"


def test_every_manual_edit_of_an_index_is_saved(store_bench):
    store_bench.commit(propose_new("user/first.md"))
    real, edits, index = index_plan.record_written, iter(range(9)), store_bench.user / "MEMORY.md"
    index.write_bytes(b"edit\n")
    edited = lambda *args: (real(*args), index.write_bytes(b"edit %d\n" % next(edits)))  # noqa: E731
    with patch.object(index_upkeep, "record_written", edited):
        store_bench.commit(propose_new("user/n.md"))
    saved = {path.read_bytes() for path in store_bench.user.glob("memory-before-muniment*.md")}
    assert saved == {b"edit\n", b"edit 0\n", b"edit 1\n"}
    assert index.read_bytes() == b"edit 2\n"


def test_damaged_catalog_is_rebuilt_and_an_unreadable_one_kept(store_bench, tmp_path, monkeypatch):
    """The state is opened again, so that no page is still in memory."""
    directory, count = tmp_path / "kept", "SELECT count(*) FROM entry"
    with State(directory) as state:
        replace(store_bench, state=state).commit(propose_new("user/n.md", b"# N\nnews\n"))
        ((page,),) = state.catalog.rows("SELECT rootpage FROM sqlite_schema WHERE name = 'entry'")
    with (directory / "catalog.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)
    with State(directory) as state:
        replace(store_bench, state=state).commit(propose_new("user/m.md", b"# M\nmore\n"))
        assert "[N](n.md) — news" in (store_bench.user / "MEMORY.md").read_text()
        assert index_upkeep.verify_root_index(state, store_bench.roots["user"], STRICT).problems == ()
        before = state.catalog.rows(count)
        monkeypatch.setattr(catalog.View, "refresh", raise_unavailable)
        expect_unavailable(
            upkeep.open_view, state, store_bench.roots["user"], STRICT, match="the disk reports an error"
        )
        assert state.catalog.rows(count) == before != [(0,)]


STRIDES = [60, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])]


@pytest.mark.parametrize("stride", STRIDES)
def test_commit_killed_at_any_step_is_complete_or_undone(tmp_path, stride):
    found = crash_commits(tmp_path, stride)
    assert found[False] > 20 // stride
    assert found[True] >= (stride == 1)  # Few steps follow the decisive one.


RECOVERY_STRIDES = [25, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])]


@pytest.mark.parametrize("stride", RECOVERY_STRIDES)
def test_recovery_killed_at_any_step_loses_no_bytes(tmp_path, stride):
    """It was killed while it wrote a file again, and the next recovery renamed the partial file."""
    assert crash_recoveries(tmp_path, stride) > 75 // stride


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


HOMES = ["aa", *(pytest.param(homes, marks=pytest.mark.slow) for homes in ("ab", "aaaa", "aabb"))]


@pytest.mark.parametrize("homes", HOMES)
def test_every_saved_fact_exists_once_and_the_index_is_exact(store_bench, homes):
    """Processes of one home share one key and one chain; `homes` names the home of each process."""
    count = 4 if homes == "aa" else 200
    where = [
        (me, store_bench.base, store_bench.base / f"home-{home}", count) for me, home in enumerate(homes)
    ]
    saved = [pair for each in run_concurrently(*((REMEMBERER, *each) for each in where)) for pair in each]
    texts = {
        rel: data.decode().split("\n---\n", 1)[-1].strip()
        for rel, data in read_files(store_bench.user).items()
    }
    assert list(find_memory_problems(store_bench.user, {*texts})) == []
    assert not list(store_bench.base.rglob(".muniment-*"))
    assert len(saved) == len(homes) * count
    for home in store_bench.base.glob("home-*"):
        with State(home) as state:
            assert audit.verify(state).problems == ()
    assert {texts[path.removeprefix("user/")] for _, path in saved} == {fact for fact, _ in saved}
    assert sorted(texts.values()) == sorted([*(fact for fact, _ in saved), "# A\nalpha", "# T\ntopic"])


# -- All or none: a fault at any stage leaves names and bytes unchanged, and no temporary file.


def apply_writes(writes, temporary=None):
    """Apply files of any name at once, entries and links, which no real caller can do."""
    roots = {bound.scope: bound for bound, _ in writes}
    with apply.lock_roots(roots.values(), make_deadline()) as locked:
        files = [file for _, file in writes]
        names = temporary or partial(get_temporary_name, new_token())
        apply._apply_files(files, locked, names, set(), durable=True)


def make_write(bound, rel, before, after):
    return bound, IndexFile(CanonicalPath(bound.scope, rel), before, after)


@pytest.fixture
def writes(store_bench):
    """Every kind of write, with new nested directories, the generated one first."""
    user, project = store_bench.roots["user"], store_bench.roots["project"]
    (store_bench.user / "MEMORY.md").symlink_to(store_bench.outside / "secret.md")
    (store_bench.user / "gone.md").write_bytes(b"gone\n")
    return [
        make_write(user, "MEMORY.md", Precondition.LINK, b"index\n"),
        make_write(user, "a.md", b"# A\nalpha\n", b"a after\n"),
        make_write(user, "fresh/x.md", Precondition.ABSENT, b"x\n"),
        make_write(user, "fresh/deep/y.md", Precondition.ABSENT, b"y\n"),
        make_write(user, "topic/t.md", b"# T\ntopic\n", b"t after\n"),
        make_write(user, "gone.md", b"gone\n", None),
        make_write(project, "other/z.md", Precondition.ABSENT, b"z\n"),
        make_write(project, "p.md", b"# P\nproject\n", b"p after\n"),
    ]


raise_interrupt, raise_disk_error = (
    make_raising_step(KeyboardInterrupt),
    make_raising_step(OSError(errno.EIO, "no")),
)


def make_refusal(number):
    """Return a replacement of `renameat2` that fails."""
    return lambda *_: (ctypes.set_errno(number), -1)[1]


@pytest.mark.threat("T-RUN-02", control="rolled_back_files")
def test_fault_or_interrupt_at_any_moment_changes_nothing(store_bench, writes):
    before = store_bench.read_contents()

    def expect_unchanged(owner, call, at, act, error, match=None, **more):
        with act_at_call(owner, call, at, act, **more) as calls:
            catch_error(error, apply_writes, writes, match=match)
        assert len(calls) >= at
        assert store_bench.read_contents() == before, (call, at, more)

    for call, times in {"write": 7, "fsync": 7, "mkdir": 3, "fchmod": 7}.items():
        for at in range(1, times + 1):
            expect_unchanged(
                os, call, at, raise_disk_error, ManagedMemoryUnavailable, "the disk reports an error"
            )
    for at in range(1, 7):
        expect_unchanged(_directory, "_renameat2", at, make_refusal(errno.EIO), ManagedMemoryUnavailable)
    calls = {"stage": 7, "publish_new": 3, "replace": 3, "remove": 1, "replace_link": 1, "_unlink": 4}
    for (call, times), after in product(calls.items(), (False, True)):
        # The tests below cover the other cases, in which something is lost.
        if not after or call not in {"stage", "replace_link"}:
            for at in range(1, times + 1):
                expect_unchanged(Directory, call, at, raise_interrupt, KeyboardInterrupt, after=after)


def test_edit_after_the_rename_is_kept_and_named(store_bench, writes):
    edited = [store_bench.user / "a.md", store_bench.user / "fresh" / "x.md"]

    def edit():
        for path in edited:
            path.write_bytes(b"a peer's edit")
        raise KeyboardInterrupt

    with act_at_call(Directory, "replace", 2, edit):
        message = str(expect_unavailable(apply_writes, writes[1:]))
    assert all(word in message for word in ("KeyboardInterrupt", "user/a.md", "user/fresh/x.md"))
    assert "t.md" not in message
    assert {path.read_bytes() for path in edited} == {b"a peer's edit"}
    assert (store_bench.user / "topic" / "t.md").read_bytes() == b"# T\ntopic\n"
    assert not list(store_bench.base.rglob("*.tmp"))


def test_broken_disk_is_reported_with_the_changed_files(store_bench, writes, monkeypatch):
    def break_disk():
        monkeypatch.setattr(os, "write", raise_disk_error)
        raise StoreConflict(("user/topic/t.md",))

    with act_at_call(Directory, "replace", 2, break_disk):
        reason = expect_unavailable(apply_writes, writes[1:], match="changed by another process").reason
    assert "could not be rolled back for user/a.md; the next command" in reason
    assert (store_bench.user / "a.md").read_bytes() == b"a after\n"
    assert not [*store_bench.base.rglob("*.tmp"), *store_bench.user.glob("fresh")]


def test_directory_that_cannot_be_removed_is_named(writes):
    with act_at_call(os, "rmdir", 1, raise_disk_error), act_at_call(Directory, "replace", 1, raise_interrupt):
        expect_unavailable(apply_writes, writes[6:], match=r"rolled back for project/other; the next command")


@pytest.mark.parametrize("call", ["replace_link", "sync"])
def test_generated_file_that_replaced_a_link_is_named(store_bench, writes, call):
    with act_at_call(Directory, call, 1, raise_interrupt, after=True):
        expect_unavailable(apply_writes, writes, match=r"rolled back for user/MEMORY\.md; the next command")
    assert (store_bench.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert not (store_bench.user / "fresh").exists()


def test_file_that_replaced_a_link_gets_its_name_back(store_bench, writes, monkeypatch):
    """It was displaced, and the commit was interrupted before the check."""

    def swap_and_break(self, staged, name):
        (store_bench.user / name).unlink()
        (store_bench.user / name).write_bytes(b"a peer's")
        self._rename(staged.temporary, name, _directory._EXCHANGE, self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Directory, "replace_link", swap_and_break)
    catch_error(KeyboardInterrupt, apply_writes, writes[:1])
    assert (store_bench.user / "MEMORY.md").read_bytes() == b"a peer's"
    assert not list(store_bench.base.rglob("*.tmp"))


def test_plain_rename_is_logged(store_bench, monkeypatch):
    logged = []
    (_, nothing) = make_write(store_bench.roots["user"], "MEMORY.md", Precondition.ABSENT, None)
    catch_error(ValueError, apply.seal_index_files, [nothing], match="cannot be removed")
    monkeypatch.setattr(_directory, "_renameat2", make_refusal(errno.EINVAL))
    monkeypatch.setattr(events, "emit", lambda event, **fields: logged.append((event, fields)))
    store_bench.commit(propose_new("user/n.md"), store_bench.propose_edit("user/a.md"))
    assert len(logged) == 3  # With the index.
    assert logged[0] == ("commit_degraded", {"scope": "user", "landing": "plain_rename"})


def test_every_descriptor_is_closed_again(writes):
    count = len(list(Path("/proc/self/fd").iterdir()))
    apply_writes(writes[2:4])
    catch_error(
        BadName, apply_writes, writes[6:], lambda _: "no temporary name", match="not a temporary name"
    )
    assert len(list(Path("/proc/self/fd").iterdir())) == count


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_bytes_of_a_peer_are_kept_whenever_it_renames(tmp_path, monkeypatch, step):
    real = _directory._renameat2
    for moments in range(0, 256, step):
        base = tmp_path / str(moments)
        base.mkdir(mode=0o700)
        name, decoy, spare = base / "a.md", tmp_path / f"decoy-{moments}", tmp_path / "spare"
        name.write_bytes(b"before\n")
        os.mkfifo(decoy)
        peer_inodes = {name.stat().st_ino: "the file", decoy.stat().st_ino: "the FIFO"}
        due = iter([moments >> at & 1 for at in range(8)])
        ways = ((name, spare), (decoy, name), (spare, decoy))

        def rename_with_race(*arguments, due=due, ways=ways):
            result = None
            for turn in range(2):
                if next(due, 0):
                    for old, new in ways:
                        old.rename(new)
                result = result if turn else real(*arguments)
            return result

        monkeypatch.setattr(_directory, "_renameat2", rename_with_race)
        bound, landed = bind("user", base), False
        with suppress(StoreConflict, ManagedMemoryUnavailable):
            apply_writes([make_write(bound, "a.md", b"before\n", b"ours\n")])
            landed = True
        bound.close()
        temporaries = list(base.glob(".muniment-*.tmp"))
        assert not [path for path in temporaries if path.is_file() and path.read_bytes() == b"ours\n"], (
            moments
        )
        remaining = {path.stat().st_ino for path in (name, decoy, *temporaries)}
        lost = {what for inode, what in peer_inodes.items() if inode not in remaining}
        assert lost == ({"the file"} if landed else set()), moments


TEMPORARY = ".muniment-00112233445566aa.tmp"

BEFORE, AFTER, PEER_BYTES, OTHER_PEER_BYTES = b"before\n", b"after\n", b"theirs\n", b"others'\n"

CHANGES = [(None, AFTER), (BEFORE, AFTER), (BEFORE, None), (BEFORE, BEFORE)]

REACHED = [
    # Possible states after a kill: before, staged, exchanged and not dropped, done.
    *(
        (None, AFTER, current, temporary)
        for current, temporary in ((None, None), (None, AFTER), (AFTER, None))
    ),
    *((BEFORE, AFTER, BEFORE, temporary) for temporary in (None, AFTER)),
    *((BEFORE, AFTER, AFTER, temporary) for temporary in (BEFORE, None)),
    *(
        (BEFORE, None, current, temporary)
        for current, temporary in ((BEFORE, None), (None, BEFORE), (None, None))
    ),
]


def restore_from(ground, before, after, *contents):
    """Restore `n.md` from the given state of both names; return the state afterwards and whether it was
    reported.
    """
    paths = [ground.user / "n.md", ground.user / TEMPORARY]
    for path, content in zip(paths, contents, strict=True):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    with open_directory(ground.roots["user"].root, CanonicalPath("user", ""), create=False) as directory:
        is_reported = not apply._restore(directory, "n.md", before, after, TEMPORARY, is_begun=True)
    return [path.read_bytes() if path.exists() else None for path in paths], is_reported


@pytest.mark.threat("T-IDX-02", control="recovery")
def test_restore_from_any_state_keeps_all_bytes_of_a_peer(store_bench):
    currents, temporaries = [None, BEFORE, AFTER, PEER_BYTES], [None, BEFORE, AFTER, OTHER_PEER_BYTES]
    for (before, after), current, temporary in product(CHANGES, currents, temporaries):
        row = (before, after, current, temporary)
        remaining, is_reported = restore_from(store_bench, *row)
        for peer, previous in ((PEER_BYTES, current), (OTHER_PEER_BYTES, temporary)):
            assert (previous == peer) == (peer in remaining), row
        assert remaining[1] is None or temporary not in {before, after}, row  # A recovery gives it a name.
        if not is_reported and temporary is None and current in {before, after}:
            assert remaining[0] == before, row
        assert current != PEER_BYTES or remaining[0] == PEER_BYTES, row
        assert row not in REACHED or (remaining, is_reported) == ([before, None], False), row
    # The partial file of a kill or a power failure.
    for part in (b"", AFTER[:3], AFTER[:3] + bytes(3), bytes(6)):
        (store_bench.user / build_partial_name(TEMPORARY)).write_bytes(part)
        assert restore_from(store_bench, BEFORE, AFTER, BEFORE, None) == ([BEFORE, None], False), part
        assert not list(store_bench.base.rglob(".muniment-*"))
        # Equal bytes of a displaced peer file are not a temporary file: they get their name back.
        assert restore_from(store_bench, BEFORE, AFTER, AFTER, part) == ([part, None], True), part


def test_links_and_special_files_are_not_followed_or_removed(store_bench):
    secret, paths = (
        store_bench.outside / "secret.md",
        (store_bench.user / "n.md", store_bench.user / TEMPORARY),
    )
    kinds = (lambda path: path.symlink_to(secret), os.mkfifo, lambda path: os.link(secret, path))
    for (one, other), make in product((paths, paths[::-1]), kinds):
        other.write_bytes(BEFORE)
        make(one)
        before = store_bench.take_snapshot()
        opened = open_directory(store_bench.roots["user"].root, CanonicalPath("user", ""), create=False)
        with opened as directory:
            apply._restore(directory, "n.md", BEFORE, AFTER, TEMPORARY, is_begun=True)
        assert store_bench.take_snapshot() == before
        one.unlink()
        other.unlink()


def test_fault_during_a_rollback_leaves_no_second_name(store_bench):
    with act_at_call(Directory, "replace", 1, raise_interrupt):
        catch_error(KeyboardInterrupt, restore_from, store_bench, BEFORE, AFTER, AFTER, None)
    assert (store_bench.user / "n.md").read_bytes() == AFTER
    assert restore_from(store_bench, BEFORE, AFTER, AFTER, None) == ([BEFORE, None], False)
    assert not list(store_bench.base.rglob(".muniment-*"))
