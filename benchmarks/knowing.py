"""Measure the cost of a fact in a large memory: a remember by rules, and a commit into one folder.

    python benchmarks/knowing.py [ROUNDS]

CPU of this process, the zygote and its workers, beyond the durable write of the same two files, in memories
of 10, 1 000 and 10 000 entries; means of a round, medians of the rounds, and ratios of one run. A
long-running process is measured: the first commits of each round, which start to watch for changes, are
excluded.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from measuring import FACTS, entry, measure_cpu
from remember import write_durably

import muniment
from muniment.kernel.binding import bind_all
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import read_proposal
from muniment.kernel.names import Scope, Trust
from muniment.policy.load import load_policy
from muniment.store.commit import CommitOptions, commit
from muniment.store.ledger import Run
from muniment.store.state import State
from muniment.store.trust import build_constant_rule, generate_ulid

SIZES = (10, 1_000, 10_000)
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
TIMES, WARM = 25, 8
IN_A_FOLDER = 50
LINES = (
    "deploy server build cache release test branch merge review queue token index worker policy memory",
    "editor theme font color budget lunch office train coffee sister garden project sprint docker cluster",
    "node database schema port proxy login session cookie header footer widget button panel chart graph",
)
WORDS = " ".join(LINES).split()


def fill(root: Path, count: int, folders: int) -> None:
    """Create entries, each of a dozen words out of about fifty and its number."""
    chosen = random.Random(1)
    for number in range(count):
        folder = root / f"topic-{number % folders}"
        folder.mkdir(parents=True, exist_ok=True)
        body = f"{' '.join(chosen.choices(WORDS, k=12))} number {number}"
        (folder / f"entry-{number}.md").write_text(f"---\nname: {body[:40]}\ntype: project\n---\n{body}\n")


def measure_remember(count: int) -> float:
    """Return the mean CPU milliseconds of a remember by rules."""
    with TemporaryDirectory() as scratch:
        home = Path(scratch, "home")
        with muniment.open(scratch, home=home) as memory:
            root = memory.context.roots[Scope("user")].trusted_path
        fill(root, count, max(1, count // IN_A_FOLDER))
        with muniment.open(scratch, home=home) as memory:
            for number in range(WARM):
                memory.remember(FACTS[number % len(FACTS)].format(10_000 + number))
            started = measure_cpu(os.getpid())
            for number in range(TIMES):
                memory.remember(FACTS[number % len(FACTS)].format(number))
            return 1000 * (measure_cpu(os.getpid()) - started) / TIMES


def measure_write() -> float:
    """Return the mean CPU milliseconds of the durable write alone."""
    with TemporaryDirectory() as scratch:
        started = measure_cpu(os.getpid())
        for number in range(4 * TIMES):
            write_durably(Path(scratch), f"{number}.md", b"x" * 400)
            write_durably(Path(scratch), f"{number}-index.md", b"x" * 4000)
        return 1000 * (measure_cpu(os.getpid()) - started) / (4 * TIMES)


def measure_commit(count: int) -> float:
    """Return the mean CPU milliseconds of the commit of a new entry into a folder of `count` entries."""
    with TemporaryDirectory() as scratch:
        fill(Path(scratch, "user"), count, 1)
        roots, policy = bind_all({Scope("user"): Path(scratch, "user")}), load_policy("strict")
        with State(Path(scratch, "state")) as state:
            started = 0.0
            for number in range(WARM + TIMES):
                if number == WARM:
                    started = time.process_time()
                path = f"user/topic-0/new-{number}.md"
                part = read_proposal([(path, None, entry(10**6 + number))], [(path, None)], (Scope("user"),))
                run = Run(
                    f"edit-{generate_ulid()}", "2026-11-26T00:00:00.000Z", Trust.OWNER, "x", "p", "edit"
                )
                options = CommitOptions(
                    policy,
                    roots,
                    Deadline(time.monotonic() + 60),
                    state,
                    run,
                    build_constant_rule(Trust.OWNER),
                )
                commit([part], options)
            return 1000 * (time.process_time() - started) / TIMES


def main() -> None:
    """Measure and print."""
    bare = median(measure_write() for _ in range(ROUNDS))
    remembers = [median(measure_remember(count) - bare for _ in range(ROUNDS)) for count in SIZES]
    times = ", ".join(f"{count}: {each:.1f} ms" for count, each in zip(SIZES, remembers, strict=True))
    print(f"remember by rules, beyond the durable write ({bare:.1f} ms): {times}  (goal: at most 40)")
    print(f"  {SIZES[-1]} : {SIZES[0]} = {remembers[-1] / remembers[0]:.2f}  (goal: at most 1.5)")
    commits = [median(measure_commit(count) for _ in range(ROUNDS)) for count in SIZES]
    times = ", ".join(f"{count}: {each:.1f} ms" for count, each in zip(SIZES, commits, strict=True))
    print(f"commit into one folder: {times}  (goal: at most 15 at {SIZES[-1]})")


if __name__ == "__main__":
    main()
