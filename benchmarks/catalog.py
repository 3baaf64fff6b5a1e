"""Measure the cost of the catalog: build, sweep, check without changes, and update after one write.

Entries of 500 bytes with front matter, first in folders of 50, then all in one folder. Medians of CPU time
of this process; the plain walk (`os.walk`, and 1 KiB read of each file) takes turns with the sweep, so that
their ratio is comparable between machines. Run: `python benchmarks/catalog.py`; a number sets the entries.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from muniment.kernel.binding import BoundRoot, bind
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.store.catalog import ScanPlan, View
from muniment.store.rows import Assessment
from muniment.store.state import Database, open_catalog

ENTRIES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
ROUNDS = 9
QUICK_ROUNDS = 200
SETTLED_SECONDS = 0.1  # After this time, file times are old enough to prove that a file is unchanged.
TEXT = "Staging runs Postgres behind pgbouncer; restart it before the pool is full. " * 5


def main() -> None:
    """Print a table for each layout of the entries."""
    for folder in (50, ENTRIES):
        print(f"{ENTRIES} entries, {folder} in a folder")
        with tempfile.TemporaryDirectory() as directory:
            base = Path(directory).resolve()
            top = base / "user"
            top.mkdir(mode=0o700)
            create_entries(top, folder)
            with bind(Scope("user"), top) as root:
                catalog = open_catalog(base / "catalog.db")
                measure(catalog, root, top)
                catalog.close()


def create_entries(top: Path, folder: int) -> None:
    """Write the entries."""
    for number in range(ENTRIES):
        topic = top / f"topic-{number // folder}"
        topic.mkdir(exist_ok=True)
        (topic / f"entry-{number}.md").write_text(entry(number))
    time.sleep(SETTLED_SECONDS)


def entry(number: int) -> str:
    """Return about 500 bytes."""
    head = f"name: Entry {number}\ndescription: What staging does in case {number}\ntype: project"
    return f"---\n{head}\nkeywords: [staging, postgres]\n---\n{TEXT}\n"


def assess(_rel: RelPath, _digest: Digest, _data: bytes) -> Assessment:
    """Return a fixed assessment, since the cost of ledger and gates is measured elsewhere."""
    return Assessment(Trust.OWNER)


def measure(catalog: Database, root: BoundRoot, top: Path) -> None:
    """Print a line for each operation of the catalog."""

    def check(*, sweep: bool = False) -> View:
        return View(catalog, "key", root, assess).refresh("", ScanPlan(sweep=sweep))

    report("build", milliseconds(check, 1))
    sweeps, walks = [], []
    for _round in range(ROUNDS):
        sweeps.append(milliseconds(lambda: check(sweep=True), 1))
        walks.append(milliseconds(lambda: walk(top), 1))
    sweep, plain = statistics.median(sweeps), statistics.median(walks)
    report("sweep", sweep, f"{sweep / plain:.2f} x a plain walk ({plain:.1f} ms)")
    report("refresh, nothing changed", milliseconds(check, QUICK_ROUNDS))
    view = check()
    report("all entries of a view", milliseconds(view.entries, ROUNDS))
    report("usage, in all", milliseconds(view.usage, ROUNDS))
    report("usage, by a rule", milliseconds(lambda: view.usage(lambda _rel: True), ROUNDS))
    report("look again after one write", statistics.median(one_write(view, top)))


def one_write(view: View, top: Path) -> list[float]:
    """Return the milliseconds of each check of a folder in which one entry was replaced."""
    target = top / "topic-0" / "entry-0.md"
    elapsed = []
    for number in range(min(QUICK_ROUNDS, 2_000_000 // ENTRIES)):
        staged = target.with_name(".staged")
        staged.write_text(entry(number))
        staged.rename(target)
        elapsed.append(milliseconds(lambda: view.rescan(["topic-0"]), 1))
    return elapsed


def walk(top: Path) -> None:
    """Read the tree as a program without a catalog does each time."""
    for where, _directories, files in os.walk(top):
        for name in files:
            with open(os.path.join(where, name), "rb") as file:  # noqa: PTH118, PTH123 -- the plain way
                file.read(1024)


def milliseconds(action: Callable[[], object], rounds: int) -> float:
    """Return the median CPU time of one call."""
    elapsed = []
    for _round in range(rounds):
        began = time.process_time_ns()
        action()
        elapsed.append((time.process_time_ns() - began) / 1e6)
    return statistics.median(elapsed)


def report(what: str, elapsed: float, more: str = "") -> None:
    """Print one line."""
    print(f"  {what:28} {elapsed:9.3f} ms  {more}".rstrip())


if __name__ == "__main__":
    main()
