"""Commits in child processes that are killed at a step, and what must hold afterwards. A process of its own.

    python -m kit.store.killed steps WHERE SCENARIO STRIDE    kill at steps of one commit, one after the other
    python -m kit.store.killed work WHERE STATE    commit for ever, telling each commit before and after it

A step is a call into the system or the ledger that changes something: before it, and after it. The oracle
knows what the scenario wants and nothing of the subject.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
from contextlib import contextmanager
from pathlib import Path

from kit.store.ground import Ground, origin, patience, sha
from muniment.confine import writing
from muniment.confine.binding import bind_all
from muniment.errors import StoreConflict
from muniment.policy.load import load_policy
from muniment.store import database, tasks
from muniment.store.ledger import of_task
from muniment.store.state import State
from muniment.store.upkeep import rebuild, recover_all
from muniment.tools.overlay import ChangeSet, Claim, Proposed

BEFORE = {
    "user/a.md": b"# A\nalpha\n",
    "user/topic/t.md": b"# T\ntopic\n",
    "user/gone/g.md": b"# G\ngone\n",
    "project/p.md": b"# P\nproject\n",
}

SCENARIOS = {
    "everything": {
        "user/a.md": b"# A\nother\n",
        "user/new/deep.md": b"# N\nnew\n",
        "user/gone/g.md": None,
        "project/p.md": b"# P\nother\n",
        "project/fresh.md": b"# F\nfresh\n",
    },
    "create": {"user/n.md": b"# N\nnew\n"},
    "replace": {"user/a.md": b"# A\nother\n"},
    "remove": {"user/topic/t.md": None},
}

TASK = "task-1"


def change_set(wanted, standing):
    """The proposal that makes of the files in `standing` those in `wanted`."""
    bases = {path: None if path not in standing else sha(standing[path]) for path in wanted}
    return ChangeSet(
        tuple(Proposed(path, bases[path], data) for path, data in wanted.items() if data is not None),
        (),
        tuple(Claim(path, bases[path]) for path, data in wanted.items() if data is None),
    )


def lay(base):
    """The before-state on disk."""
    for scope in ("user", "project"):
        (base / scope).mkdir(mode=0o700, parents=True)
    for path, data in BEFORE.items():
        (base / path).parent.mkdir(exist_ok=True, mode=0o700)
        (base / path).write_bytes(data)


@contextmanager
def opened(base, state):
    roots = bind_all({scope: base / scope for scope in ("user", "project")})
    try:
        with State(state) as held:
            yield Ground(base, roots, held)
    finally:
        for root in roots.values():
            root.close()


def entries(base):
    """All files but indexes, with their bytes, and all directories but `index/`."""
    found = {}
    for path in sorted(base.rglob("*")):
        rel = str(path.relative_to(base))
        if path.is_dir():
            found[f"{rel}/"] = None
        elif path.name != "MEMORY.md" and path.parent.name != "index":
            found[rel] = path.read_bytes()
    return {rel: data for rel, data in found.items() if not rel.endswith("/index/")}


def indexes(base):
    return {
        str(path.relative_to(base)): path.read_bytes()
        for path in sorted([*base.rglob("MEMORY.md"), *base.rglob("index/*")])
    }


def rebuilt(base, tmp):
    """The indexes that a fresh state makes of a copy of the tree: where an index stood, there is one."""
    import shutil

    shutil.copytree(base, tmp, symlinks=True)
    had = indexes(tmp)
    for rel in had:
        (tmp / rel).unlink()
    with opened(tmp, None) as ground:
        for scope in {rel.partition("/")[0] for rel in had}:
            rebuild(ground.state, ground.roots[scope], load_policy("strict"), patience())
    found = indexes(tmp)
    shutil.rmtree(tmp)
    return found


class Killer:
    """Counts steps, and kills this process at the step with a number."""

    def __init__(self, at):
        self.at, self.steps = at, 0

    def step(self):
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, owner, name):
        real = getattr(owner, name)

        def killed(*args, **keywords):
            self.step()
            result = real(*args, **keywords)
            self.step()
            return result

        setattr(owner, name, killed)

    def install(self):
        for name in ("open", "write", "fsync", "unlink", "mkdir", "rmdir", "fchmod"):
            self.wrap(os, name)
        self.wrap(writing, "_renameat2")
        real, killer = sqlite3.connect, self

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                is_change = not statement.lstrip().startswith(("SELECT", "PRAGMA"))
                if is_change:
                    killer.step()
                result = super().execute(statement, *values)
                if is_change:
                    killer.step()
                return result

        database.sqlite3.connect = lambda *args, **keywords: real(*args, factory=Connection, **keywords)


def committing(base, state, wanted, at):
    """A child that opens the memory and commits, killed at step `at`; its exit status, and what it did."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        killer = Killer(at)
        killer.install()
        try:
            with opened(base, state) as ground:
                done = commit_once(ground, wanted, BEFORE)
            killer.at = None
            os.write(tell, json.dumps(done).encode())
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        data = answer.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(data) if data else None


def commit_once(ground, wanted, standing, task=TASK):
    from muniment.store.commit import commit
    from muniment.store.judge import Author

    terms = ground.terms(origin=origin(task), author=Author.CODE)
    return [change.path for change in commit([change_set(wanted, standing)], terms).changes]


def events(ground):
    """The tasks whose commits were told."""
    return [event.task for event in tasks.read(ground.state.ledger, 0, 100)]


def steps(where, wanted, stride):
    """Kill at steps a stride apart; then recovery leaves all or nothing, and the task may be repeated."""
    found, at = {"killed": 0, "whole": 0, "nothing": 0}, 1 - stride
    while True:
        at += stride
        base, state = where / f"tree-{at}", where / f"state-{at}"
        base.mkdir()
        lay(base)
        State(state).close()
        before = entries(base)
        status, done = committing(base, state, wanted, at)
        if done is not None:
            assert os.WIFEXITED(status), status
            return found
        assert os.WIFSIGNALED(status), (at, status)
        found["killed"] += 1
        with opened(base, state) as ground:
            recover_all(ground.state, ground.roots, load_policy("strict"), patience())
            is_done = of_task(ground.state, TASK) is not None
            assert events(ground) == [TASK] * is_done, at
            after = entries(base)
            if is_done:
                found["whole"] += 1
                changed = {**before, **{path: data for path, data in wanted.items() if data is not None}}
                files = {path: data for path, data in changed.items() if data is not None}
                expected = {path: data for path, data in files.items() if wanted.get(path, b"") is not None}
                assert {path: data for path, data in after.items() if data is not None} == expected, at
            else:
                found["nothing"] += 1
                assert after == before, (at, set(after) ^ set(before))
            assert not list(base.rglob(".muniment-*")), at
            assert indexes(base) == rebuilt(base, where / "copy"), at
            # Done or not, the same task leads to the same end.
            commit_once(ground, wanted, BEFORE)
            assert events(ground) == [TASK], at
            final = {path: data for path, data in entries(base).items() if data is not None}
            want = {**BEFORE, **wanted}
            assert final == {path: data for path, data in want.items() if data is not None}, at
            assert indexes(base) == rebuilt(base, where / "copy"), at


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def work(where, state, seed):
    """Commit for ever: each line tells what is about to be done, or that it was."""
    chosen = random.Random(seed)
    base = where
    with opened(base, state) as ground:
        recover_all(ground.state, ground.roots, load_policy("strict"), patience())
        say("ready")
        number = 0
        while True:
            number += 1
            standing = {path: data for path, data in entries(base).items() if data is not None}
            wanted = {}
            for _ in range(chosen.randint(1, 4)):
                path = (
                    f"{chosen.choice(['user', 'project'])}/{chosen.choice('abc')}/{chosen.randint(0, 9)}.md"
                )
                gone = path in standing and chosen.random() < 0.3
                wanted[path] = None if gone else b"# %d\n%x\n" % (number, chosen.getrandbits(64))
            shown = {path: None if data is None else data.decode() for path, data in wanted.items()}
            task = f"task-{seed}-{number}"
            say(json.dumps(["begin", task, shown]))
            try:
                commit_once(ground, wanted, standing, task)
            except StoreConflict:
                raise SystemExit("a conflict with nobody") from None
            say(json.dumps(["done", task]))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["steps", where, scenario, stride]:
            say(json.dumps(steps(Path(where), SCENARIOS[scenario], int(stride))))
        case ["work", where, state, seed]:
            work(Path(where), Path(state), int(seed))
