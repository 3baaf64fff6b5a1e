"""Measure the cost of the index: the pages of one change, and all pages.

Run it with `python benchmarks/index.py`; a number sets the number of entries.

Prints medians of CPU time. The entries' lines are in the catalog, as after any commit. The files of the index
are read and compared, and changed ones are written, but not synced. The walk is the minimum of any program
that reads the same entries: `os.walk`, and the first 1 KiB of each file.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from muniment.kernel.apply import apply_changes, lock_roots, seal_index_files
from muniment.kernel.binding import BoundRoot, bind_all
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import fold
from muniment.kernel.write import get_index_temporary_name, new_token
from muniment.store.database import Database
from muniment.store.index import IndexRow, format_entry_line
from muniment.store.index_plan import IndexPlan, record_written
from muniment.store.state import read_catalog_script

ENTRIES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
ROUNDS = 9
CHANGES = 60
WORDS = ("The", "user", "prefers", "dark", "mode", "in", "all", "editors", "also", "at", "night")


class View:
    """A complete view of a root that the benchmark fills itself."""

    key = "root"
    is_complete = True

    def names(self, directory: str) -> frozenset[str] | None:
        """Return no names that an index would have to avoid."""
        return frozenset(directory)


class Memory:
    """A root with entries in folders of `folder`, and their catalog rows."""

    def __init__(self, base: Path, folder: int) -> None:
        self.path = base / "user"
        self.path.mkdir(mode=0o700, parents=True)
        self.root: BoundRoot = next(iter(bind_all({Scope("user"): self.path}).values()))
        self.database = Database(base / "catalog.db", synchronous="NORMAL")
        self.second = 0
        with self.database.open_outside_transaction() as connection:
            connection.executescript(read_catalog_script())
        with self.database.transaction():
            for number in range(ENTRIES):
                self.put(f"topic-{number // folder:04}/entry-{number:05}.md")
        for path in (f"topic-{number // folder:04}/entry-{number:05}.md" for number in range(ENTRIES)):
            self.path.joinpath(path).parent.mkdir(exist_ok=True)
            self.path.joinpath(path).write_bytes(b"x" * 500)

    def put(self, rel: str) -> None:
        """Add the row of an entry."""
        topic = rel.rpartition("/")[0]
        key = hashlib.sha256(rel.encode()).hexdigest()
        name = " ".join(WORDS[int(digit, 16) % len(WORDS)] for digit in key[:6])
        self.second += 1
        updated = f"2026-11-22T{self.second // 3600:02}:{self.second // 60 % 60:02}:{self.second % 60:02}Z"
        line = format_entry_line(IndexRow(RelPath(rel), name, f"About {name}", Trust.OWNER))
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM entry WHERE root = 'root' AND rel = ?", (rel,))
            connection.execute(
                "INSERT INTO entry (root, rel, topic, key, sort, inode, size, mtime_ns, ctime_ns, digest,"
                " name, description, keywords, trust, updated, readable, note, line, line_bytes)"
                " VALUES ('root', ?, ?, ?, ?, 0, 0, 0, 0, '', ?, '', '[]', 'owner', ?, 1, '', ?, ?)",
                (rel, topic, key, fold(rel), name, updated, line, len(line.encode())),
            )
            connection.execute("INSERT INTO relisted (root, topic, key) VALUES ('root', ?, ?)", (topic, key))

    def plan(self, *, whole: bool = False) -> IndexPlan:
        """Return the planned writes."""
        return IndexPlan(self.database, self.root, View(), compare_all=whole)

    def write(self, plan: IndexPlan) -> None:
        """Write the planned files."""
        with lock_roots([self.root], Deadline(time.monotonic() + 60)) as held:
            apply_changes(
                seal_index_files(plan.writes),
                held,
                partial(get_index_temporary_name, new_token()),
                durable=False,
            )
        record_written(self.database, View(), plan)

    def walk(self) -> None:
        """Walk the tree, as a baseline."""
        for directory, _, names in os.walk(self.path):
            for name in names:
                with open(os.path.join(directory, name), "rb") as file:  # noqa: PTH118, PTH123  the fastest way
                    file.read(1024)


def cpu(action: Callable[[], object]) -> float:
    """Return the CPU milliseconds of one call."""
    started = time.process_time_ns()
    action()
    return (time.process_time_ns() - started) / 1e6


def report(folder: int) -> None:
    """Print the figures for one shape of memory."""
    with tempfile.TemporaryDirectory() as scratch:
        memory = Memory(Path(scratch), folder)
        first = memory.plan()
        cold = cpu(lambda: memory.write(first))
        whole = statistics.median(cpu(lambda: memory.plan(whole=True)) for _ in range(ROUNDS))
        walk = statistics.median(cpu(memory.walk) for _ in range(ROUNDS))
        plans, writes, files = [], [], []
        for change in range(CHANGES):
            number = change * 97 % ENTRIES  # A new entry changes counts too.
            memory.put(f"topic-{number // folder:04}/new-{number:05}.md")
            made: list[IndexPlan] = []
            plans.append(cpu(lambda made=made: made.append(memory.plan())))
            writes.append(cpu(lambda made=made: memory.write(made[0])))
            files.append(len(made[0].writes))
        left = [write.rel for write in memory.plan(whole=True).writes]
    one, all_files = statistics.median(plans), len(first.writes)
    print(f"{ENTRIES} entries in topics of {folder}: {all_files} index files, wrong in the end: {len(left)}")
    print(f"  one more:    rendering {one:.2f} ms (goal: at most 1.0)")
    print(f"               writing {statistics.median(files):.0f} files {statistics.median(writes):.2f} ms")
    print(
        f"  everything:  rendering {whole:.1f} ms, {whole / walk:.2f} x the walk of {walk:.1f} ms (goal: 1.5)"
    )
    print(f"               writing {cold:.1f} ms")


if __name__ == "__main__":
    for size in (50, ENTRIES):
        report(size)
