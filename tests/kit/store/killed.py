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

from kit.store.ground import STANDING, STRICT, Claim, Proposed, by, lay, opened, patience, sha
from kit.store.processes import die, killed
from muniment.kernel import _directory
from muniment.kernel.write import is_of_index
from muniment.store import database, tasks
from muniment.store.journal import LedgerJournal
from muniment.store.ledger import of_task
from muniment.store.state import State
from muniment.store.upkeep import rebuild, recover_all

BEFORE = {**STANDING, "user/gone/g.md": b"# G\ngone\n"}
WANTED = {
    "user/a.md": b"# A\nother\n",
    "user/new/deep.md": b"# N\nnew\n",
    "user/gone/g.md": None,
    "project/p.md": b"# P\nother\n",
    "project/fresh.md": b"# F\nfresh\n",
}
"""Files after a commit over `BEFORE`; None: no file."""
TASK = "task-1"


def applied(standing, change):
    """Return the files after a change; None removes a file."""
    return {path: data for path, data in {**standing, **change}.items() if data is not None}


@contextmanager
def dying(error):
    """Let commits in this block end after their files were written, as if their process had died there."""
    ends = patch.object(LedgerJournal, "finish", Mock(side_effect=error))
    with ends, patch.object(LedgerJournal, "unfinished", lambda *_: []):
        yield


def recovered(ground):
    return recover_all(ground.state, ground.roots, STRICT, patience())


def entries(base):
    """Return all files except indexes, with their bytes, and all directories except `index/`, as None."""
    paths = [path for path in base.rglob("*") if "index" not in (path.name, path.parent.name)]
    found = {f"{path.relative_to(base)}/": None for path in paths if path.is_dir()}
    files = (path for path in paths if path.is_file() and path.name != "MEMORY.md")
    return found | {str(path.relative_to(base)): path.read_bytes() for path in files}


def files(base):
    return applied(entries(base), {})


def indexes(base):
    found = (*base.rglob("MEMORY.md"), *base.rglob("index/*"))
    return {str(path.relative_to(base)): path.read_bytes() for path in found}


def is_left_whole(base, tmp):
    """Return whether no temporary file remains, and the indexes equal those that a fresh state builds from a
    copy.
    """
    shutil.copytree(base, tmp, symlinks=True)
    had = indexes(tmp)
    for rel in had:
        (tmp / rel).unlink()
    with opened(tmp, None) as ground:
        for scope in {rel.partition("/")[0] for rel in had}:
            rebuild(ground.state, ground.roots[scope], STRICT, patience())
    found = indexes(tmp)
    shutil.rmtree(tmp)
    return found == indexes(base) and not list(base.rglob(".muniment-*"))


class Killer:
    """Counts steps, and kills this process at a given step.

    Each write stores only `percent` percent of its bytes.
    """

    def __init__(self, at, percent):
        self.at, self.steps, self.percent = at, 0, percent

    def step(self):
        self.steps += 1
        if self.steps == self.at:
            die()

    def around(self, real):
        def stepping(*arguments, **keywords):
            self.step()
            result = real(*arguments, **keywords)
            self.step()
            return result

        return stepping

    def install(self):
        write = os.write
        os.write = lambda fd, data: write(fd, data[: -(-len(data) * self.percent // 100)])
        for name in ("open", "write", "fsync", "unlink", "mkdir", "rmdir", "fchmod"):
            setattr(os, name, self.around(getattr(os, name)))
        _directory._renameat2 = self.around(_directory._renameat2)
        real, around = sqlite3.connect, self.around

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                changes = not statement.lstrip().startswith(("SELECT", "PRAGMA"))
                return (around(super().execute) if changes else super().execute)(statement, *values)

        database.sqlite3.connect = lambda *args, **keywords: real(*args, factory=Connection, **keywords)


def commit_once(ground):
    """Commit the files of `WANTED` over those of `BEFORE`."""
    bases = {path: sha(BEFORE[path]) if path in BEFORE else None for path in WANTED}
    changes = [Proposed(path, bases[path], data) for path, data in WANTED.items() if data is not None]
    removals = [Claim(path, bases[path]) for path, data in WANTED.items() if data is None]
    ground.commit(*changes, removals=removals, run=by(TASK))


def killed_at(base, state, at, act=commit_once, percent=100):
    """Let a child commit and be killed at step `at`; return false if it ended before."""
    child = os.fork()
    if child == 0:
        killer = Killer(at, percent)
        killer.install()
        try:
            with opened(base, state) as ground:
                act(ground)
            killer.at = None
        finally:
            os._exit(0 if killer.at is None else 1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def steps(where, stride):
    """Kill at every n-th step: recovery leaves all or nothing, and the task can be repeated."""
    found, at = {True: 0, False: 0}, 1
    while True:
        base, state = where / f"tree-{at}", where / f"state-{at}"
        lay(base, BEFORE)
        State(state).close()
        before = entries(base)
        if not killed_at(base, state, at):
            return found
        with opened(base, state) as ground:
            recovered(ground)
            is_done = of_task(ground.state, TASK) is not None
            found[is_done] += 1
            assert [event.task for event in tasks.read(ground.state.ledger, 0, 100)] == [TASK] * is_done, at
            assert files(base) == applied(BEFORE, WANTED) if is_done else entries(base) == before, at
            assert is_left_whole(base, where / "copy"), at
            commit_once(ground)  # Repeating the task has the same result in both cases.
            assert [event.task for event in tasks.read(ground.state.ledger, 0, 100)] == [TASK], at
            assert files(base) == applied(BEFORE, WANTED), at
            assert is_left_whole(base, where / "copy"), at
        at += stride


def steps_of_recovery(where, stride):
    """Kill recoveries of one commit at every n-th step: the next one restores everything. Return how many."""

    def half_way():
        LedgerJournal.finish = die
        with opened(base, state) as ground:
            commit_once(ground)

    for count, at in enumerate(itertools.count(1, stride)):
        base, state = where / f"tree-{at}", where / f"state-{at}"
        lay(base, BEFORE)
        before = entries(base)
        killed(half_way)
        assert entries(base) != before
        if not killed_at(base, state, at, recovered, percent=60):
            return count
        with opened(base, state) as ground:
            recovered(ground)
            found = entries(base)
            # A truncated index is not recognised as generated: it keeps its temporary name.
            cut = [path for path in found if ".muniment-" in path and is_of_index(path)]
            assert {path: kept for path, kept in found.items() if path not in cut} == before, at
            assert cut or is_left_whole(base, where / "copy"), at
    return None
