"""Measure opening, fencing, committing and remembering, here and in another checkout, side by side.

    python benchmarks/kernel.py OTHER [ROUNDS]

This interpreter runs both; its environment must contain their dependencies. Each has a separate process that
waits while others measure. They alternate and change order, round by round, all in `STARTS` sets of
processes. Figures are medians of the rounds. Ratios are medians over neighbours in time, which are affected
equally by noise of the machine: this checkout divided by the other, so above 1 is slower. A second process
also measures the other checkout: *itself* is its ratio to the first, and a ratio no further from 1 is noise.

Entry points are public (`muniment.Sandbox`, `muniment.open`), except the guarded open, whose names are in
`NAMES`. Time is CPU time of all processes involved, unless stated otherwise. A commit is of one file that was
proposed in the same process; the rules file each fact. Then `one_fact.py` counts in both. The exit code is 1
if a goal is missed, or if a ratio is above the *itself* ratio by more than `NOISE`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import count, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from measuring import FACTS, IN_A_TOPIC, build_environment, create_tree, entry, measure_cpu, unfenced_policy
from one_fact import count_in_process

NAMES = {
    "bind_all": ("muniment.kernel.root", "muniment.kernel.binding", "muniment.confine.binding"),
    "Scope": ("muniment.kernel.names", "muniment.names"),
    "CanonicalPath": ("muniment.kernel.path",),
}
"""The modules that may contain a non-public name, in one checkout or the other."""

OPEN, READY = "guarded open, ratio to open, fstat, close", "worker, request to ready, wall ms"
OPEN_CLOSE = "guarded open, ratio to open, close"
GOALS = {OPEN: 2.7, OPEN_CLOSE: 2.7, READY: 10.0}
NOISE = 1.1
"""A ratio up to this value may be noise."""

STARTS, ROUNDS = 3, 4
FEW = 100
"""For at most this number of entries, a memory is created again for each round, so that it stays small."""

REL = "one/two/three/four/note.md"
OPENS, TURNS = 2_000, 5
WORKERS, COMMITS = 20, 8
REMEMBER_CALLS = {10: 20, 10_000: 4}
"""Repetitions per round, by the number of entries."""

SIZES = tuple(REMEMBER_CALLS)

Sample = dict[str, float]
Opener = Callable[[Path, int], AbstractContextManager[Callable[[], Sample]]]
"""Creates a memory below a directory, with a number of entries, and yields the function that measures it."""


def find_object(name: str) -> Any:
    """Return the object with this name in the measured checkout."""
    for module in NAMES[name]:
        try:
            return getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    sys.exit(f"no {name} in {', '.join(NAMES[name])}: add its current module to NAMES")


def cpu_ms(action: Callable[[], object]) -> float:
    """Return the CPU milliseconds of an action in this process."""
    began = time.process_time()
    action()
    return 1e3 * (time.process_time() - began)


class Opening:
    """A guarded open of a file five directories down, and a bare one."""

    def __init__(self, base: Path) -> None:
        path = base / "opened" / REL
        path.parent.mkdir(parents=True)
        path.write_text("A memory.")
        scope = find_object("Scope")("user")
        self.path = str(path)
        self.root = find_object("bind_all")({scope: base / "opened"})[scope].root
        accepts_text = "rel" in self.root.open_file.__code__.co_varnames
        self.opened = REL if accepts_text else find_object("CanonicalPath")(scope, REL)

    def open_bare(self) -> None:
        """Open without any check."""
        for _ in range(OPENS):
            os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))

    def open_and_stat(self) -> None:
        """Open without a check, and stat the file."""
        for _ in range(OPENS):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            os.fstat(fd)
            os.close(fd)

    def open_guarded(self) -> None:
        """Open with all checks of the root."""
        for _ in range(OPENS):
            self.root.open_file(self.opened).close()

    def measure(self) -> Sample:
        """Return the microseconds of one open, and its ratios."""
        ways = self.open_bare, self.open_and_stat, self.open_guarded
        turns = [tuple(map(cpu_ms, ways)) for _ in range(TURNS)]
        bare, looked_at, guarded = (median(column) / OPENS * 1e3 for column in zip(*turns, strict=True))
        return {"guarded open, µs": guarded, OPEN: guarded / looked_at, OPEN_CLOSE: guarded / bare}


class Starting:
    """Fenced workers, one after the other, each with one call."""

    def __init__(self, base: Path) -> None:
        self.root = create_tree(base / "fenced", SIZES[0])
        self.one()

    def one(self) -> tuple[float, float]:
        """Return the wall milliseconds from the request to a ready worker, and until its response."""
        from muniment import Sandbox

        with Sandbox(roots={"user": self.root}) as box:
            began = time.perf_counter()
            if box.enforcement == "none":
                sys.exit("workers are not confined on this machine")
            ready = time.perf_counter()
            outcome = box.call("read_file", {"path": "user/topic-0/fact-0.md"})
            ended = time.perf_counter()
        if outcome.code is not None:
            sys.exit(outcome.text)
        return 1e3 * (ready - began), 1e3 * (ended - began)

    def measure(self) -> Sample:
        """Return medians of some workers, and their mean CPU, since an ended worker is counted in ticks."""
        began = measure_cpu(os.getpid())
        ready, answered = map(median, zip(*(self.one() for _ in range(WORKERS)), strict=True))
        spent = 1e3 * (measure_cpu(os.getpid()) - began) / WORKERS
        return {
            READY: ready,
            "worker, request to its first answer, wall ms": answered,
            "worker, with its sandbox and end, CPU ms": spent,
        }


@contextmanager
def measure_commits(base: Path, size: int) -> Iterator[Callable[[], Sample]]:
    """Yield a measurement of one new entry and one edit of an existing one, in turns."""
    from muniment import Sandbox

    root, policy = create_tree(base / "user", size), unfenced_policy(base)
    numbers = count()
    with Sandbox(policy, {"user": root}, state=base / "state", in_process=True) as box:

        def propose(tool: str, **arguments: str) -> None:
            outcome = box.call(tool, arguments)
            if outcome.code is not None:
                sys.exit(outcome.text)

        def one() -> tuple[float, float]:
            number = next(numbers)
            place = f"user/topic-{number % max(1, size // IN_A_TOPIC)}/new-{number}.md"
            propose("write_file", path=place, content=entry(size + number).decode())
            new = cpu_ms(box.commit)
            at, times = number % size, number // size
            was, becomes = (
                f"description: The fact {at}{f' edited {n}' if n else ''}\n" for n in (times, times + 1)
            )
            path = f"user/topic-{at // IN_A_TOPIC}/fact-{at}.md"
            propose("edit", path=path, old_string=was, new_string=becomes)
            return new, cpu_ms(box.commit)

        def measure() -> Sample:
            new, edit = map(median, zip(*(one() for _ in range(COMMITS)), strict=True))
            return {f"commit of a new entry, {size}, ms": new, f"commit of an edit, {size}, ms": edit}

        one()
        yield measure


@contextmanager
def measure_remember(base: Path, size: int, *, in_process: bool) -> Iterator[Callable[[], Sample]]:
    """Yield a measurement of facts by the rules; a mean, since an ended worker is counted in ticks."""
    import muniment

    root, numbers = create_tree(base / "user", size), count()
    policy = unfenced_policy(base) if in_process else "strict"
    name = f"remember {'without' if in_process else 'with'} a worker, {size}, ms"
    with muniment.open(
        base, home=base / "home", roots={"user": root}, policy=policy, in_process=in_process
    ) as memory:

        def one() -> None:
            number = next(numbers)
            result = memory.remember(FACTS[number % len(FACTS)].format(number), scope="user")
            if not result.files_touched:
                sys.exit(f"nothing was remembered: {result.summary}")

        def measure() -> Sample:
            began = measure_cpu(os.getpid())
            for _ in range(REMEMBER_CALLS[size]):
                one()
            return {name: 1e3 * (measure_cpu(os.getpid()) - began) / REMEMBER_CALLS[size]}

        one()
        yield measure


def measure(checkout: Path, base: Path) -> None:
    """Run as the process of a checkout: for each line of input, measure and respond."""
    import muniment

    if not Path(str(muniment.__file__)).resolve().is_relative_to(checkout):
        sys.exit(f"{muniment.__file__} is not of {checkout}")
    openers = (
        measure_commits,
        partial(measure_remember, in_process=True),
        partial(measure_remember, in_process=False),
    )
    names = map(str, count())

    def open_in_new_folder(opener: Opener, size: int) -> AbstractContextManager[Callable[[], Sample]]:
        (below := base / next(names)).mkdir()
        return opener(below, size)

    def measure_in_new_folder(opener: Opener, size: int) -> Sample:
        with open_in_new_folder(opener, size) as measure_it:
            return measure_it()

    with ExitStack() as stack:
        subjects = [Opening(base).measure, Starting(base).measure]
        for opener, size in product(openers, SIZES):
            subjects.append(
                partial(measure_in_new_folder, opener, size)
                if size <= FEW
                else stack.enter_context(open_in_new_folder(opener, size))
            )
        print(len(subjects), flush=True)
        for line in sys.stdin:
            print(json.dumps(subjects[int(line)]()), flush=True)


@dataclass
class Side:
    """A checkout, with the measurements of its processes."""

    checkout: Path
    figures: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def start(self, base: Path) -> subprocess.Popen[str]:
        """Start a process that measures it."""
        environment = build_environment(self.checkout) | {"HOME": str(base)}
        command = [sys.executable, "-W", "ignore", __file__, "--measure", str(self.checkout), str(base)]
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, process: subprocess.Popen[str], subject: int) -> None:
        """Request the measurement of one subject."""
        assert process.stdin is not None
        process.stdin.write(f"{subject}\n")
        process.stdin.flush()
        for name, value in answer(process).items():
            self.figures[name].append(value)


def answer(process: subprocess.Popen[str]) -> Any:
    """Return the next line of a process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit("a measuring process has ended; see its output above")
    return json.loads(line)


def compare(sides: Sequence[Side], rounds: int) -> None:
    """Measure everything in new processes, in turns."""
    with ExitStack() as opened:
        bases = [Path(opened.enter_context(TemporaryDirectory())) for _ in sides]
        processes = [opened.enter_context(side.start(base)) for side, base in zip(sides, bases, strict=True)]
        subjects = min(map(answer, processes))
        for turn in range(rounds):
            order = deque(zip(sides, processes, strict=True))
            order.rotate(turn)
            for subject in range(subjects):
                for side, process in order:
                    side.ask(process, subject)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()


def ratio(side: Side, other: Side, name: str) -> float:
    """Return the ratio of a figure of two sides, by neighbours in time."""
    pairs = zip(side.figures[name], other.figures[name], strict=True)
    return median(one / was for one, was in pairs)


def report(other: Side, here: Side, again: Side) -> bool:
    """Print a line per figure; return whether all goals are met."""
    good = True
    print(f"{'':46}{'other':>10}{'here':>10}{'ratio':>8}{'itself':>8}  goal")
    for name, values in here.figures.items():
        slowdown, noise = ratio(here, other, name), ratio(again, other, name)
        goal = GOALS.get(name)
        good &= slowdown <= NOISE * max(noise, 1 / noise) and (goal is None or median(values) <= goal)
        goal_text = "" if goal is None else f"  at most {goal:g}"
        was, now = median(other.figures[name]), median(values)
        print(f"{name:46}{was:10.2f}{now:10.2f}{slowdown:8.2f}{noise:8.2f}{goal_text}")
    return good


def report_counts(other: Path, here: Path) -> None:
    """Print the counts for one remembered fact in both."""
    counts = [count_in_process(checkout) for checkout in (other, here)]
    for name, value in counts[1].items():
        was, now = (each if isinstance(each, int) else len(each) for each in (counts[0].get(name, 0), value))
        print(f"a fact: {name:38}{was:10}{now:10}{now / was if was else 1:8.2f}")
    were, are = (set(each["forms"]) for each in counts)
    print(f"forms only in the other: {', '.join(sorted(were - are))}")
    print(f"forms only here: {', '.join(sorted(are - were))}")


def main() -> int:
    """Compare, or in a child process, measure one checkout."""
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), Path(sys.argv[3]).resolve())
        return 0
    other, here = Path(sys.argv[1]).resolve(), Path(__file__).resolve().parents[1]
    sides = Side(other), Side(here), Side(other)
    for _ in range(STARTS):
        compare(sides, int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)  # noqa: PLR2004
    good = report(*sides)
    report_counts(other, here)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
