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

from kit.fleet.engines import over_both
from kit.meanwhile import nth
from kit.operations.places import raising
from kit.raising import raised
from kit.store.ground import STANDING, STRICT, by, new, patience, sha
from kit.store.killed import dying, files, recovered, steps, steps_of_recovery
from kit.store.processes import at_once
from muniment import events
from muniment.cancelling import Cancel
from muniment.errors import (
    BadName,
    Cancelled,
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    StoreConflict,
)
from muniment.kernel import _directory, land
from muniment.kernel._directory import Directory, open_directory, partial_name
from muniment.kernel.binding import bind
from muniment.kernel.change import IndexFile, Standing
from muniment.kernel.names import Trust
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import new_token, temporary_of, temporary_of_index
from muniment.store import audit, catalog, index_plan, upkeep
from muniment.store.audit import records
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import of_task, root_key, unfinished
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


unavailable = partial(raised, ManagedMemoryUnavailable)
broken = raising(ManagedMemoryUnavailable("user", "the disk reports an error"))


@over_both
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
    assert raised(StoreConflict, changes).paths == (path,)
    made = {"user/new": "d"} if known is None else {}
    assert ground.contents() == {**expected, **made, path: sha(b"a peer's")}


def test_an_index_of_a_persons_has_its_name_back_where_another_one_cannot_be_written(ground):
    (ground.user / "MEMORY.md").write_bytes(b"mine\n")
    before = ground.contents()
    mine = IndexFile(CanonicalPath("user", "MEMORY.md"), b"mine\n", b"ours\n", "memory-before-muniment.md")
    gone = IndexFile(CanonicalPath("user", "index/x.md"), b"never there\n", b"ours\n")
    with land.lock_roots([ground.roots["user"]], patience()) as held:
        raised(
            StoreConflict, land.land, land.generated([mine, gone]), held, partial(temporary_of, new_token())
        )
    assert ground.contents() == before


@over_both
def test_a_ledger_that_nobody_commits_to_begins_nothing(ground):
    journal = LedgerJournal(ground.state, ground.roots)
    raised(ValueError, journal.begin, None, new_token(), match="cannot commit")
    assert unfinished(ground.state, [root_key(ground.state, root) for root in ground.roots.values()]) == ()


FAULTS = [("write", errno.ENOSPC, "the disk is full"), ("fsync", errno.EIO, "the disk reports an error")]


@pytest.mark.threat("T-IDX-02", control="taken_back")
@pytest.mark.parametrize(("call", "number", "reason"), FAULTS)
def test_a_fault_of_the_disk_at_any_stage_leaves_no_trace(ground, changes, call, number, reason):
    before, told, done = ground.contents(), [], None
    while done is None:
        with nth(os, call, len(told) + 1, raising(OSError(number, os.strerror(number)))):
            try:
                done = changes()
            except ManagedMemoryUnavailable as error:
                told.append(error.reason)
        assert done or ground.contents() == before
    assert len(told) >= 3
    assert all(reason in each for each in told)
    # The first fault behind the entries is that of an index, which is written but not synced.
    assert [reason in note and "is out of date" in note for note in done.notes] == [True] * (call == "write")
    assert len(done.changes) == 4
    assert not list(ground.base.rglob(".muniment-*"))
    for scope in ("user", "project"):
        assert ground.commit(new(f"{scope}/next.md")).notes == ()
        assert index_is_right(ground.base / scope)


@over_both
@pytest.mark.parametrize("step", ["begin", "finish"])
def test_a_ledger_that_cannot_be_written_leaves_no_trace_in_the_files(ground, changes, step):
    ground.commit(new("user/first.md"), new("project/first.md"))
    before, entries = ground.contents(), entries_of(ground)
    task = {"run": by("task-1")}
    with patch.object(LedgerJournal, step, broken):
        unavailable(changes, match="the disk reports an error", **task)
    assert entries_of(ground) == entries
    recover_all(ground.state, ground.roots, STRICT, patience())
    assert ground.contents() == before
    # The task did not commit: it may try again, and then the index says so.
    done = changes(**task)
    assert not done.repeated
    assert [change.kind for change in done.changes] == ["create", "modify", "create", "delete"]
    assert [index_is_right(root) for root in (ground.user, ground.project)] == [True, True]


@over_both
def test_a_commit_that_cannot_be_taken_back_is_taken_back_before_the_next_one(ground):
    before = ground.contents()
    with patch.object(Directory, "sync", broken), patch.object(land, "_restore", broken):
        both, told = (
            (new("user/n.md"), ground.edit("user/a.md")),
            r"change of user/a\.md.* cannot be rolled back",
        )
        unavailable(ground.commit, *both, run=by("task-1"), match=told)
    assert ground.contents() != before
    assert any("rolled back task-1" in note for note in ground.commit(new("user/later.md")).notes)
    assert entries_of(ground) == {**before, "user/later.md": sha(b"new\n")}


@pytest.mark.threat("T-RUN-02", control="late_commit")
def test_after_deadline_or_cancel_nothing_is_begun_but_what_has_begun_ends(ground):
    before = ground.photograph()
    raised(DeadlineExceeded, ground.commit, new("user/n.md"), patience=patience(-1))
    with Cancel() as cancel:
        late = {"patience": patience(cancel=cancel), "stamp": lambda data, *_rest: (cancel.set(), data)[1]}
        raised(Cancelled, ground.commit, new("user/n.md"), **late)
    assert ground.photograph() == before
    with Cancel() as cancel, nth(Directory, "stage", 1, cancel.set):
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
        raised(DeadlineExceeded, ground.commit, new("user/n.md"), patience=patience(0.05))
        raised(DeadlineExceeded, recover_all, ground.state, ground.roots, STRICT, patience(0.05))
    finally:
        os.close(fd)
    assert ground.photograph() == photograph
    assert len(unfinished(ground.state, [root_key(ground.state, ground.roots["user"])])) == 1


TOOK_BACK = "rolled back task-1, which was interrupted; run it again"


@contextmanager
def killed_before_done():
    """A commit in this block ends after its files were written, as if its process had died."""
    with dying(SystemExit), pytest.raises(SystemExit):
        yield


@pytest.fixture
def before(ground):
    """What was there when a commit was interrupted that was never done."""
    contents = ground.contents()
    changes = [new("user/new/n.md", b"# N\nnew\n"), ground.edit("user/a.md", b"# A\nother\n")]
    with killed_before_done():
        ground.commit(*changes, removals=[ground.gone("user/topic/t.md")], run=by("task-1"))
    assert ground.contents() != contents
    return contents


@over_both
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
    assert not ground.commit(ground.edit("user/a.md", b"again\n"), run=by("task-1")).repeated
    assert of_task(ground.state, "task-1") is not None


def test_where_nothing_may_be_written_nothing_is_taken_back_and_a_note_says_so(ground, before, monkeypatch):
    contents = ground.contents()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("muniment.policy.platforms.IS_LINUX", False)
        (told,) = recovered(ground)
    assert told.startswith("a commit in user was interrupted and is not rolled back on ")
    assert ground.contents() == contents
    assert recovered(ground) == (TOOK_BACK,)
    assert before != contents


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("path", ["user/new/n.md", "user/a.md", "user/topic/t.md"])
def test_what_somebody_wrote_between_crash_and_recovery_is_kept_and_told(ground, path):
    (ground.base / path).write_bytes(b"by hand\n")
    assert f"{path} was changed since then and is not rolled back (recovery_conflict)" in recovered(ground)
    for other in {"user/a.md", "user/topic/t.md", path}:
        expected = b"by hand\n" if other == path else STANDING[other]
        assert (ground.base / other).read_bytes() == expected, other
    assert records(ground.state)[-1].body["conflicts"] == [path]
    assert recovered(ground) == ()


@pytest.mark.usefixtures("before")
def test_commit_below_owner_that_recovers_names_no_path(ground):
    (ground.base / "user/a.md").write_bytes(b"by hand\n")
    run = by("task-2", trust=Trust.AGENT)
    notes = ground.commit(new("user/own.md", b"# O\nown\n"), run=run).notes
    assert "one of its files was changed since then and is not rolled back (recovery_conflict)" in notes
    assert not any("user/a.md" in note for note in notes)


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


@over_both
def test_each_root_is_recovered_when_somebody_opens_it(ground):
    """A commit in two roots: the first opens only one of them."""
    changes = ground.edit("user/a.md", b"u\n"), ground.edit("project/p.md", b"p\n")
    with killed_before_done():
        ground.commit(*changes, run=by("task-1"))
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
def test_an_index_that_cannot_be_written_holds_up_no_recovery_and_no_commit(ground):
    with patch.object(upkeep, "write_index", broken):
        assert any("the index of user is out of date" in note for note in recovered(ground))
        assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
        assert recovered(ground) == ()
        done = ground.commit(new("user/later.md"))
        assert any("the index of user is out of date" in note for note in done.notes)
    ground.commit(new("user/last.md"))
    assert upkeep.verify(ground.state, ground.roots["user"], STRICT).problems == ()


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("name_of", [temporary_of, temporary_of_index])
def test_what_a_peer_put_under_a_temporary_name_is_kept_whatever_it_is_and_ours_is_dropped(ground, name_of):
    ((token,),) = ground.state.ledger.rows("SELECT token FROM change_set")
    names = temporary_of_index(token, 1), name_of(token, 7), temporary_of(token, 8)
    ours, theirs, link = (ground.user / name for name in names)
    ours.write_bytes((ground.user / "MEMORY.md").read_bytes())
    theirs.write_bytes(b"a person's own words\n")
    link.symlink_to(ground.outside / "secret.md")
    assert "user/memory-before-muniment.md contains text that another program wrote meanwhile" in recovered(
        ground
    )
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"a person's own words\n"
    assert [path for path in (ours, theirs) if path.exists()] == []
    assert link.is_symlink()
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


def test_an_index_that_somebody_writes_by_hand_again_and_again_is_saved_each_time(ground):
    ground.commit(new("user/first.md"))
    real, edits, index = index_plan.written, iter(range(9)), ground.user / "MEMORY.md"
    index.write_bytes(b"edit\n")
    edited = lambda *args: (real(*args), index.write_bytes(b"edit %d\n" % next(edits)))  # noqa: E731
    with patch.object(upkeep, "written", edited):
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
        monkeypatch.setattr(catalog.View, "refresh", broken)
        unavailable(upkeep.view_of, state, ground.roots["user"], STRICT, match="the disk reports an error")
        assert state.catalog.rows(count) == before != [(0,)]


STRIDES = [60, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])]


@pytest.mark.parametrize("stride", STRIDES)
def test_a_commit_killed_at_any_step_is_all_there_or_not_at_all(tmp_path, stride):
    found = steps(tmp_path, stride)
    assert found[False] > 20 // stride
    assert found[True] >= (stride == 1)  # Few steps come after the one that decides.


RECOVERY_STRIDES = [25, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])]


@pytest.mark.parametrize("stride", RECOVERY_STRIDES)
def test_a_recovery_killed_at_any_step_loses_no_bytes_to_the_next_one(tmp_path, stride):
    """It was killed while it wrote a file again, and the next gave what there was of it the file's name."""
    assert steps_of_recovery(tmp_path, stride) > 75 // stride


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
def test_every_fact_that_was_acknowledged_is_there_exactly_once_and_the_index_is_exact(ground, homes):
    """Those of one home have one key and one chain; `homes` says whose home each has."""
    count = 4 if homes == "aa" else 200
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


# -- All or none: a fault at any stage leaves names and bytes as they were, and nothing of ours behind.


def apply(writes, temporary=None):
    """Land files of any name at once, entries and links alike, as no caller can."""
    roots = {bound.scope: bound for bound, _ in writes}
    with land.lock_roots(roots.values(), patience()) as held:
        files = [file for _, file in writes]
        names = temporary or partial(temporary_of, new_token())
        land._carry_out(files, held, names, set(), durable=True)


def written(bound, rel, before, after):
    return bound, IndexFile(CanonicalPath(bound.scope, rel), before, after)


@pytest.fixture
def writes(ground):
    """Every kind of write, with new directories inside each other, the generated one in front."""
    user, project = ground.roots["user"], ground.roots["project"]
    (ground.user / "MEMORY.md").symlink_to(ground.outside / "secret.md")
    (ground.user / "gone.md").write_bytes(b"gone\n")
    return [
        written(user, "MEMORY.md", Standing.LINK, b"index\n"),
        written(user, "a.md", b"# A\nalpha\n", b"a after\n"),
        written(user, "fresh/x.md", Standing.ABSENT, b"x\n"),
        written(user, "fresh/deep/y.md", Standing.ABSENT, b"y\n"),
        written(user, "topic/t.md", b"# T\ntopic\n", b"t after\n"),
        written(user, "gone.md", b"gone\n", None),
        written(project, "other/z.md", Standing.ABSENT, b"z\n"),
        written(project, "p.md", b"# P\nproject\n", b"p after\n"),
    ]


interrupt, broken_disk = raising(KeyboardInterrupt), raising(OSError(errno.EIO, "no"))


def refusing(number):
    """What `renameat2` does where it cannot."""
    return lambda *_: (ctypes.set_errno(number), -1)[1]


@pytest.mark.threat("T-RUN-02", control="taken_back")
def test_a_fault_or_an_interrupt_at_any_moment_leaves_everything_as_it_was(ground, writes):
    before = ground.contents()

    def broken(owner, call, at, act, error, match=None, **more):
        with nth(owner, call, at, act, **more) as calls:
            raised(error, apply, writes, match=match)
        assert len(calls) >= at
        assert ground.contents() == before, (call, at, more)

    for call, times in {"write": 7, "fsync": 7, "mkdir": 3, "fchmod": 7}.items():
        for at in range(1, times + 1):
            broken(os, call, at, broken_disk, ManagedMemoryUnavailable, "the disk reports an error")
    for at in range(1, 7):
        broken(_directory, "_renameat2", at, refusing(errno.EIO), ManagedMemoryUnavailable)
    calls = {"stage": 7, "publish_new": 3, "replace": 3, "withdraw": 1, "replace_link": 1, "_unlink": 4}
    for (call, times), after in product(calls.items(), (False, True)):
        if not after or call not in {"stage", "replace_link"}:  # Told below: what is lost there, and why.
            for at in range(1, times + 1):
                broken(Directory, call, at, interrupt, KeyboardInterrupt, after=after)


def test_what_somebody_edited_after_it_got_its_name_is_kept_and_named(ground, writes):
    edited = [ground.user / "a.md", ground.user / "fresh" / "x.md"]

    def edit():
        for path in edited:
            path.write_bytes(b"a peer's edit")
        raise KeyboardInterrupt

    with nth(Directory, "replace", 2, edit):
        told = str(unavailable(apply, writes[1:]))
    assert all(word in told for word in ("KeyboardInterrupt", "user/a.md", "user/fresh/x.md"))
    assert "t.md" not in told
    assert {path.read_bytes() for path in edited} == {b"a peer's edit"}
    assert (ground.user / "topic" / "t.md").read_bytes() == b"# T\ntopic\n"
    assert not list(ground.base.rglob("*.tmp"))


def test_a_disk_that_stays_broken_is_told_with_the_files_that_are_not_taken_back(ground, writes, monkeypatch):
    def deed():
        monkeypatch.setattr(os, "write", broken_disk)
        raise StoreConflict(("user/topic/t.md",))

    with nth(Directory, "replace", 2, deed):
        told = unavailable(apply, writes[1:], match="changed by another process").reason
    assert "could not be rolled back for user/a.md; the next command" in told
    assert (ground.user / "a.md").read_bytes() == b"a after\n"
    assert not [*ground.base.rglob("*.tmp"), *ground.user.glob("fresh")]


def test_a_directory_that_cannot_be_removed_again_is_named(writes):
    with nth(os, "rmdir", 1, broken_disk), nth(Directory, "replace", 1, interrupt):
        unavailable(apply, writes[6:], match=r"rolled back for project/other; the next command")


@pytest.mark.parametrize("call", ["replace_link", "sync"])
def test_a_generated_file_that_replaced_a_link_cannot_be_taken_back_and_is_named(ground, writes, call):
    with nth(Directory, call, 1, interrupt, after=True):
        unavailable(apply, writes, match=r"rolled back for user/MEMORY\.md; the next command")
    assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert not (ground.user / "fresh").exists()


def test_a_file_that_took_the_place_of_a_link_gets_its_name_back(ground, writes, monkeypatch):
    """It was displaced, and then the commit was interrupted before anybody looked."""

    def swap_and_break(self, staged, name):
        (ground.user / name).unlink()
        (ground.user / name).write_bytes(b"a peer's")
        self._rename(staged.temporary, name, _directory._EXCHANGE, self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Directory, "replace_link", swap_and_break)
    raised(KeyboardInterrupt, apply, writes[:1])
    assert (ground.user / "MEMORY.md").read_bytes() == b"a peer's"
    assert not list(ground.base.rglob("*.tmp"))


def test_a_plain_rename_is_told_and_what_is_not_there_cannot_be_removed(ground, monkeypatch):
    told = []
    (_, nothing) = written(ground.roots["user"], "MEMORY.md", Standing.ABSENT, None)
    raised(ValueError, land.generated, [nothing], match="cannot be removed")
    monkeypatch.setattr(_directory, "_renameat2", refusing(errno.EINVAL))
    monkeypatch.setattr(events, "emit", lambda event, **fields: told.append((event, fields)))
    ground.commit(new("user/n.md"), ground.edit("user/a.md"))
    assert len(told) == 3  # With the index.
    assert told[0] == ("commit_degraded", {"scope": "user", "landing": "plain_rename"})


def test_every_descriptor_is_closed_again(writes):
    held = len(list(Path("/proc/self/fd").iterdir()))
    apply(writes[2:4])
    raised(BadName, apply, writes[6:], lambda _: "no temporary name", match="not a temporary name")
    assert len(list(Path("/proc/self/fd").iterdir())) == held


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_whenever_a_peer_exchanges_the_name_its_bytes_alone_are_kept(tmp_path, monkeypatch, step):
    real = _directory._renameat2
    for moments in range(0, 256, step):
        base = tmp_path / str(moments)
        base.mkdir(mode=0o700)
        name, decoy, spare = base / "a.md", tmp_path / f"decoy-{moments}", tmp_path / "spare"
        name.write_bytes(b"before\n")
        os.mkfifo(decoy)
        theirs = {name.stat().st_ino: "the file", decoy.stat().st_ino: "the FIFO"}
        due = iter([moments >> at & 1 for at in range(8)])
        ways = ((name, spare), (decoy, name), (spare, decoy))

        def raced(*arguments, due=due, ways=ways):
            result = None
            for turn in range(2):
                if next(due, 0):
                    for old, new in ways:
                        old.rename(new)
                result = result if turn else real(*arguments)
            return result

        monkeypatch.setattr(_directory, "_renameat2", raced)
        bound, landed = bind("user", base), False
        with suppress(StoreConflict, ManagedMemoryUnavailable):
            apply([written(bound, "a.md", b"before\n", b"ours\n")])
            landed = True
        bound.close()
        aside = list(base.glob(".muniment-*.tmp"))
        assert not [path for path in aside if path.is_file() and path.read_bytes() == b"ours\n"], moments
        standing = {path.stat().st_ino for path in (name, decoy, *aside)}
        lost = {what for inode, what in theirs.items() if inode not in standing}
        assert lost == ({"the file"} if landed else set()), moments


TEMPORARY = ".muniment-00112233445566aa.tmp"

BEFORE, AFTER, THEIRS, OTHERS = b"before\n", b"after\n", b"theirs\n", b"others'\n"

CHANGES = [(None, AFTER), (BEFORE, AFTER), (BEFORE, None), (BEFORE, BEFORE)]

REACHED = [
    # What a kill of ours can leave: before, staged, exchanged and not dropped, done.
    *((None, AFTER, current, aside) for current, aside in ((None, None), (None, AFTER), (AFTER, None))),
    *((BEFORE, AFTER, BEFORE, aside) for aside in (None, AFTER)),
    *((BEFORE, AFTER, AFTER, aside) for aside in (BEFORE, None)),
    *((BEFORE, None, current, aside) for current, aside in ((BEFORE, None), (None, BEFORE), (None, None))),
]


def brought_back(ground, before, after, *standing):
    """What stands under both names once `n.md` was brought back from what stood there, and if it was told."""
    paths = [ground.user / "n.md", ground.user / TEMPORARY]
    for path, content in zip(paths, standing, strict=True):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    with open_directory(ground.roots["user"].root, CanonicalPath("user", ""), create=False) as directory:
        told = not land._restore(directory, "n.md", before, after, TEMPORARY, is_begun=True)
    return [path.read_bytes() if path.exists() else None for path in paths], told


@pytest.mark.threat("T-IDX-02", control="recovery")
def test_from_every_state_of_both_names_nothing_of_a_peer_is_lost_and_nothing_of_ours_stays(ground):
    currents, asides = [None, BEFORE, AFTER, THEIRS], [None, BEFORE, AFTER, OTHERS]
    for (before, after), current, aside in product(CHANGES, currents, asides):
        row = (before, after, current, aside)
        standing, told = brought_back(ground, *row)
        for theirs, held in ((THEIRS, current), (OTHERS, aside)):
            assert (held == theirs) == (theirs in standing), row
        assert standing[1] is None or aside not in {before, after}, row  # Which a recovery gives a name.
        if not told and aside is None and current in {before, after}:
            assert standing[0] == before, row
        assert current != THEIRS or standing[0] == THEIRS, row
        assert row not in REACHED or (standing, told) == ([before, None], False), row
    for part in (b"", AFTER[:3], AFTER[:3] + bytes(3), bytes(6)):  # What a kill or a power failure cut off.
        (ground.user / partial_name(TEMPORARY)).write_bytes(part)
        assert brought_back(ground, BEFORE, AFTER, BEFORE, None) == ([BEFORE, None], False), part
        assert not list(ground.base.rglob(".muniment-*"))
        # The same bytes of a peer, which we displaced, are no part of ours: they get their name back.
        assert brought_back(ground, BEFORE, AFTER, AFTER, part) == ([part, None], True), part


def test_what_is_no_file_of_its_own_is_neither_followed_nor_dropped(ground):
    secret, paths = ground.outside / "secret.md", (ground.user / "n.md", ground.user / TEMPORARY)
    kinds = (lambda path: path.symlink_to(secret), os.mkfifo, lambda path: os.link(secret, path))
    for (one, other), make in product((paths, paths[::-1]), kinds):
        other.write_bytes(BEFORE)
        make(one)
        before = ground.photograph()
        opened = open_directory(ground.roots["user"].root, CanonicalPath("user", ""), create=False)
        with opened as directory:
            land._restore(directory, "n.md", BEFORE, AFTER, TEMPORARY, is_begun=True)
        assert ground.photograph() == before
        one.unlink()
        other.unlink()


def test_a_fault_while_the_old_bytes_are_put_back_leaves_them_under_no_second_name(ground):
    with nth(Directory, "replace", 1, interrupt):
        raised(KeyboardInterrupt, brought_back, ground, BEFORE, AFTER, AFTER, None)
    assert (ground.user / "n.md").read_bytes() == AFTER
    assert brought_back(ground, BEFORE, AFTER, AFTER, None) == ([BEFORE, None], False)
    assert not list(ground.base.rglob(".muniment-*"))
