"""Measure the cost of a durable commit of one entry, compared with the minimum for durability.

    python benchmarks/commit.py [DIRECTORY]

Bare: a temporary file, fsync, rename, fsync of its directory, and two `FULL` transactions of SQLite that
store the same bytes. Both are timed in turns in one process, on the file system of DIRECTORY (default: here).
If an fsync takes almost no time, as on many virtual disks, the ratio is that of the processor alone. The last
column is the fsync time from which a commit takes at most `GOAL` times as long as bare.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from measuring import IN_A_TOPIC, create_tree, entry

from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import read_proposal
from muniment.kernel.names import Scope, Trust
from muniment.policy.load import load_policy
from muniment.store.commit import CommitOptions, commit
from muniment.store.index_upkeep import rebuild_index
from muniment.store.ledger import Run
from muniment.store.state import State
from muniment.store.trust import build_constant_rule, generate_ulid

SIZES = (10, 100, 1_000, 10_000)
ROUNDS = 60
GOAL = 1.3
FSYNCS = 4  # On either side: the file, its directory, two transactions.
POLICY = load_policy("strict")


class Bare:
    """The minimum that makes an entry durable together with a record of it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir()
        self.database = sqlite3.connect(base / "bare.db", isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute("CREATE TABLE kept (id INTEGER PRIMARY KEY, content BLOB, done TEXT)")

    def write(self, number: int) -> None:
        """Make one entry durable."""
        content = entry(number)
        row = self.database.execute("INSERT INTO kept (content) VALUES (?)", (content,)).lastrowid
        temporary = self.base / ".new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, content)
        os.fsync(fd)
        os.close(fd)
        temporary.rename(self.base / f"{number}.md")
        fd = os.open(self.base, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        self.database.execute("UPDATE kept SET done = 'now' WHERE id = ?", (row,))


class MunimentStore:
    """The same by a commit, over a memory that already has `size` entries."""

    def __init__(self, base: Path, size: int, in_a_topic: int) -> None:
        self.topics = max(1, size // in_a_topic)
        root = create_tree(base / "user", size, in_a_topic)
        self.roots = bind_all({Scope("user"): root})
        self.state = State(base / "state")
        rebuild_index(self.state, self.roots[Scope("user")], POLICY, Deadline(float("inf")))

    def write(self, number: int) -> None:
        """Commit one entry."""
        now = "2026-11-22T10:00:00.000Z"
        run = Run(f"edit-{generate_ulid()}", now, Trust.OWNER, "rules", POLICY.label, "edit")
        patience = Deadline(time.monotonic() + 60)
        options = CommitOptions(
            POLICY, self.roots, patience, self.state, run, build_constant_rule(Trust.OWNER)
        )
        path = f"user/topic-{number % self.topics}/new-{number}.md"
        commit([read_proposal([(path, None, entry(number))], (), self.roots)], options)

    def close(self) -> None:
        """Close the state and the root."""
        self.state.close()
        for root in self.roots.values():
            root.close()


def time_action(action: Callable[[int], None], number: int) -> tuple[float, float]:
    """Return the milliseconds of wall clock and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    action(number)
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def compute_fsync_ms(bare: float, commit: float) -> float:
    """Return the fsync milliseconds from which a commit takes `GOAL` times as long as bare, by their CPU."""
    return max(0.0, (commit - GOAL * bare) / (GOAL - 1) / FSYNCS)


def measure(base: Path, size: int, in_a_topic: int = IN_A_TOPIC) -> str:
    """Return one line of the table, for a memory of `size` entries."""
    store, bare = MunimentStore(base / "ours", size, in_a_topic), Bare(base / "bare")
    pairs = [(time_action(bare.write, number), time_action(store.write, number)) for number in range(ROUNDS)]
    store.close()
    walls = [[each[side][0] for each in pairs] for side in (0, 1)]
    cpus = [[each[side][1] for each in pairs] for side in (0, 1)]
    ratio = median(walls[1]) / median(walls[0])
    return (
        f"{size:>6} entries: bare {median(walls[0]):6.2f} ms (CPU {median(cpus[0]):.2f}), "
        f"commit {median(walls[1]):6.2f} ms (CPU {median(cpus[1]):.2f}), ratio {ratio:.2f}, "
        f"{GOAL} from {compute_fsync_ms(median(cpus[0]), median(cpus[1])):.1f} ms an fsync on"
    )


def main() -> None:
    """Print the table."""
    where = sys.argv[1] if len(sys.argv) > 1 else "."
    for size in SIZES:
        with TemporaryDirectory(dir=where) as base:
            print(measure(Path(base), size))
    with TemporaryDirectory(dir=where) as base:
        print("all in one topic:", measure(Path(base), 10_000, 10_000))


if __name__ == "__main__":
    main()
