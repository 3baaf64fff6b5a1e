"""Commits in child processes that are killed, with checks afterwards.

A step is a call into the system or the ledger that changes something: before it, and after it. The oracle
knows the committed files and shares no code with the subject.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from contextlib import contextmanager
from unittest.mock import Mock, patch

from kit.store.bench import (
    INITIAL_FILES,
    STRICT,
    Claim,
    ProposedFile,
    compute_digest,
    make_deadline,
    make_run,
    open_store_bench,
    write_files,
)
from kit.store.processes import assert_dies, die
from muniment.kernel import _directory
from muniment.kernel.write import is_index_temporary_name
from muniment.store import database, tasks
from muniment.store.index_upkeep import rebuild_index
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import find_commit
from muniment.store.recovery import recover_roots
from muniment.store.state import State

BEFORE = {**INITIAL_FILES, "user/gone/g.md": b"# G\ngone\n"}
WANTED = {
    "user/a.md": b"# A\nother\n",
    "user/new/deep.md": b"# N\nnew\n",
    "user/gone/g.md": None,
    "project/p.md": b"# P\nother\n",
    "project/fresh.md": b"# F\nfresh\n",
}
"""Files after a commit over `BEFORE`; None: no file."""
TASK = "task-1"


def apply_changes(files, change):
    """Return the files after a change; None removes a file."""
    return {path: data for path, data in {**files, **change}.items() if data is not None}


@contextmanager
def crash_after_write(error):
    """Let commits in this block end after their files were written, as if their process had died there."""
    ends = patch.object(LedgerJournal, "finish", Mock(side_effect=error))
    with ends, patch.object(LedgerJournal, "list_unfinished", lambda *_: []):
        yield


def recover_bench(bench):
    return recover_roots(bench.state, bench.roots, STRICT, make_deadline())


def read_entries(base):
    """Return all files except indexes, with their bytes, and all directories except `index/`, as None."""
    paths = [path for path in base.rglob("*") if "index" not in (path.name, path.parent.name)]
    found = {f"{path.relative_to(base)}/": None for path in paths if path.is_dir()}
    files = (path for path in paths if path.is_file() and path.name != "MEMORY.md")
    return found | {str(path.relative_to(base)): path.read_bytes() for path in files}


def read_files(base):
    return apply_changes(read_entries(base), {})


def read_indexes(base):
    found = (*base.rglob("MEMORY.md"), *base.rglob("index/*"))
    return {str(path.relative_to(base)): path.read_bytes() for path in found}


def is_clean(base, tmp):
    """Return whether no temporary file remains, and the indexes equal those that a fresh state builds from a
    copy.
    """
    shutil.copytree(base, tmp, symlinks=True)
    had = read_indexes(tmp)
    for rel in had:
        (tmp / rel).unlink()
    with open_store_bench(tmp, None) as bench:
        for scope in {rel.partition("/")[0] for rel in had}:
            rebuild_index(bench.state, bench.roots[scope], STRICT, make_deadline())
    found = read_indexes(tmp)
    shutil.rmtree(tmp)
    return found == read_indexes(base) and not list(base.rglob(".muniment-*"))


class CrashAtStep:
    """Counts steps, and kills this process at a given step.

    Each write stores only `percent` percent of its bytes.
    """

    def __init__(self, at, percent):
        self.at, self.steps, self.percent = at, 0, percent

    def step(self):
        self.steps += 1
        if self.steps == self.at:
            die()

    def wrap(self, real):
        def call_in_steps(*arguments, **keywords):
            self.step()
            result = real(*arguments, **keywords)
            self.step()
            return result

        return call_in_steps

    def install(self):
        write = os.write
        os.write = lambda fd, data: write(fd, data[: -(-len(data) * self.percent // 100)])
        for name in ("open", "write", "fsync", "unlink", "mkdir", "rmdir", "fchmod"):
            setattr(os, name, self.wrap(getattr(os, name)))
        _directory._renameat2 = self.wrap(_directory._renameat2)
        real, wrap = sqlite3.connect, self.wrap

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                changes = not statement.lstrip().startswith(("SELECT", "PRAGMA"))
                return (wrap(super().execute) if changes else super().execute)(statement, *values)

        database.sqlite3.connect = lambda *args, **keywords: real(*args, factory=Connection, **keywords)


def commit_once(bench):
    """Commit the files of `WANTED` over those of `BEFORE`."""
    bases = {path: compute_digest(BEFORE[path]) if path in BEFORE else None for path in WANTED}
    changes = [ProposedFile(path, bases[path], data) for path, data in WANTED.items() if data is not None]
    removals = [Claim(path, bases[path]) for path, data in WANTED.items() if data is None]
    bench.commit(*changes, removals=removals, run=make_run(TASK))


def crash_at_step(base, state, at, act=commit_once, percent=100):
    """Let a child commit and be killed at step `at`; return false if it ended before."""
    child = os.fork()
    if child == 0:
        killer = CrashAtStep(at, percent)
        killer.install()
        try:
            with open_store_bench(base, state) as bench:
                act(bench)
            killer.at = None
        finally:
            os._exit(0 if killer.at is None else 1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def crash_commits(where, stride):
    """Kill at every n-th step: recovery leaves all or nothing, and the task can be repeated."""
    found, at = {True: 0, False: 0}, 1
    while True:
        base, state = where / f"tree-{at}", where / f"state-{at}"
        write_files(base, BEFORE)
        State(state).close()
        before = read_entries(base)
        if not crash_at_step(base, state, at):
            return found
        with open_store_bench(base, state) as bench:
            recover_bench(bench)
            is_done = find_commit(bench.state, TASK) is not None
            found[is_done] += 1
            assert [event.task for event in tasks.read_events(bench.state.ledger, 0, 100)] == [
                TASK
            ] * is_done, at
            assert (
                read_files(base) == apply_changes(BEFORE, WANTED) if is_done else read_entries(base) == before
            ), at
            assert is_clean(base, where / "copy"), at
            commit_once(bench)  # Repeating the task has the same result in both cases.
            assert [event.task for event in tasks.read_events(bench.state.ledger, 0, 100)] == [TASK], at
            assert read_files(base) == apply_changes(BEFORE, WANTED), at
            assert is_clean(base, where / "copy"), at
        at += stride


def crash_recoveries(where, stride):
    """Kill recoveries of one commit at every n-th step: the next one restores everything. Return how many."""

    def commit_and_die():
        LedgerJournal.finish = die
        with open_store_bench(base, state) as bench:
            commit_once(bench)

    for count, at in enumerate(itertools.count(1, stride)):
        base, state = where / f"tree-{at}", where / f"state-{at}"
        write_files(base, BEFORE)
        before = read_entries(base)
        assert_dies(commit_and_die)
        assert read_entries(base) != before
        if not crash_at_step(base, state, at, recover_bench, percent=60):
            return count
        with open_store_bench(base, state) as bench:
            recover_bench(bench)
            found = read_entries(base)
            # A truncated index is not recognised as generated: it keeps its temporary name.
            cut = [path for path in found if ".muniment-" in path and is_index_temporary_name(path)]
            assert {path: content for path, content in found.items() if path not in cut} == before, at
            assert cut or is_clean(base, where / "copy"), at
    return None
