"""Measure the cost of the kernel fence: start of a worker, search, and memory, with and without the fence.

Workers of two zygotes take turns in one run; figures are medians, of wall time and of the worker's CPU time.
Usage: `python benchmarks/fence.py [ROUNDS]`; as root, also the memory of a worker. The exit code is 0 if the
goals are met.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Limits, Policy
from muniment.kernel.names import Scope
from muniment.policy.load import load_policy
from muniment.sandbox.fence.pool import Worker, Zygote, find_import_directories
from muniment.sandbox.tools.remote import RemoteExecutor, receive_hello

START_MS, LOADED_MS, GREP_RATIO = 3.0, 10.0, 1.15
DIRTY_MB, RESIDENT_MB = 6.0, 48.0
"""The goals: extra start time with the fence, time until a worker is ready, and relative search time."""

FILES, LINES = 50, 60
GREPS = 20
"""Searches of one round."""

PATTERN = {"pattern": r"line 5\d of .*topic", "max_matches": 500}
SCOPES = (Scope("user"),)
SERVICES = str(Path(__file__).parent / "services")


@dataclass
class Side:
    """One of the two kinds of worker, with its measurements in seconds."""

    zygote: Zygote
    hello: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    start_cpu: list[float] = field(default_factory=list)
    grep: list[float] = field(default_factory=list)
    grep_cpu: list[float] = field(default_factory=list)


def main(rounds: int) -> int:
    """Measure and print; return 0 if the goals are met."""
    directories = (*find_import_directories(), SERVICES)
    with (
        tempfile.TemporaryDirectory() as directory,
        Zygote() as fenced,
        Zygote("unfenced_service:serve", directories=directories) as plain,
    ):
        write_memory(Path(directory))
        root = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        sides = (Side(fenced), Side(plain))
        for side in sides:
            measure_start(side, {SCOPES[0]: root})  # The first worker of a zygote costs more.
            side.hello.clear(), side.loaded.clear(), side.start_cpu.clear()
        for _ in range(rounds):
            for side in sides:
                measure_start(side, {SCOPES[0]: root})
        memory = measure_search(sides, {SCOPES[0]: root}, rounds)
        os.close(root)
    return report(*sides, memory)


def write_memory(directory: Path) -> None:
    """Write fifty entries of about three kilobytes."""
    for number in range(FILES):
        lines = (f"This is line {line} of the memory about topic {number}.\n" for line in range(LINES))
        (directory / f"topic-{number}.md").write_text("".join(lines))


@cache
def load_benchmark_policy() -> Policy:
    """Return the shipped policy, with budgets that the benchmark cannot exceed."""
    strict = load_policy("strict")
    limits = asdict(strict.limits) | {"scan_bytes": 1 << 32, "read_bytes": 1 << 32}
    return replace(strict, limits=Limits(**limits))


def create_deadline() -> Deadline:
    """Return a deadline longer than any step here."""
    return Deadline(time.monotonic() + 60)


def cpu_seconds(worker: Worker) -> float:
    """Return the processor time of the worker, to the nanosecond (proc(5), schedstat)."""
    return int(Path(f"/proc/{worker.pid}/schedstat").read_text().split()[0]) / 1e9


def open_bench(worker: Worker) -> RemoteExecutor:
    """Send the policy to a worker after its greeting."""
    return RemoteExecutor(
        worker, load_benchmark_policy(), SCOPES, must_read=False, get_deadline=create_deadline
    )


def measure_start(side: Side, roots: Mapping[Scope, int]) -> None:
    """Start one worker; measure the time to its greeting, and until it has loaded the policy."""
    began = time.perf_counter()
    with side.zygote.spawn_worker(roots, create_deadline()) as worker:
        receive_hello(worker, create_deadline())
        side.hello.append(time.perf_counter() - began)
        side.start_cpu.append(cpu_seconds(worker))
        open_bench(worker)
        side.loaded.append(time.perf_counter() - began)


def measure_search(sides: tuple[Side, Side], roots: Mapping[Scope, int], rounds: int) -> dict[str, float]:
    """Search in turns with one worker of each kind; return the memory of the fenced one."""
    fenced, plain = sides
    with (
        fenced.zygote.spawn_worker(roots, create_deadline()) as first,
        plain.zygote.spawn_worker(roots, create_deadline()) as second,
    ):
        confinements = [receive_hello(worker, create_deadline()).enforcement for worker in (first, second)]
        print(f"enforcement: {confinements[0]}, compared with {confinements[1]}")
        benches = [(fenced, first, open_bench(first)), (plain, second, open_bench(second))]
        for _ in range(rounds):
            for side, worker, bench in benches:
                before, began = cpu_seconds(worker), time.perf_counter()
                for _ in range(GREPS):
                    assert bench.call("grep", PATTERN).text.count("\n") > FILES
                side.grep.append((time.perf_counter() - began) / GREPS)
                side.grep_cpu.append((cpu_seconds(worker) - before) / GREPS)
        return read_memory(first)


def read_memory(worker: Worker) -> dict[str, float]:
    """Return megabytes by kind; empty if the system does not report them."""
    try:
        lines = Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines()[1:]
    except PermissionError:
        return {}
    return {
        name: int(rest.split()[0]) * 1024 / 1e6 for name, _, rest in (line.partition(":") for line in lines)
    }


def report(fenced: Side, plain: Side, memory: Mapping[str, float]) -> int:
    """Print a line per figure with its goal; return 1 if one is missed."""
    verdicts = [
        line(
            "fence adds to a start",
            compute_median_ms(fenced.hello) - compute_median_ms(plain.hello),
            START_MS,
            "ms",
        ),
        line(
            "  of CPU of the worker",
            compute_median_ms(fenced.start_cpu) - compute_median_ms(plain.start_cpu),
            START_MS,
            "ms",
        ),
        line("request to fenced, policy loaded", compute_median_ms(fenced.loaded), LOADED_MS, "ms"),
        line(
            f"grep over {FILES} files, CPU, ratio",
            compute_ratio(fenced.grep_cpu, plain.grep_cpu),
            GREP_RATIO,
            "x",
        ),
    ]
    for name, goal in (("Private_Dirty", DIRTY_MB), ("Rss", RESIDENT_MB)):
        if name in memory:
            verdicts.append(line(f"worker, {name}", memory[name], goal, "MB"))
    if not memory:
        print("worker, memory: only root may read it")
    print(
        f"hello {compute_median_ms(fenced.hello):.2f} ms, "
        f"without a fence {compute_median_ms(plain.hello):.2f} ms"
    )
    print(
        f"grep {compute_median_ms(fenced.grep):.2f} ms, without {compute_median_ms(plain.grep):.2f} ms",
        end="; ",
    )
    print(
        f"CPU {compute_median_ms(fenced.grep_cpu):.2f} ms, without {compute_median_ms(plain.grep_cpu):.2f} ms"
    )
    return 0 if all(verdicts) else 1


def compute_median_ms(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1e3


def compute_ratio(fenced: list[float], plain: list[float]) -> float:
    """Return the median of the ratios of neighbours in time, which reduces noise of the machine."""
    return statistics.median(one / other for one, other in zip(fenced, plain, strict=True))


def line(name: str, value: float, goal: float, unit: str) -> bool:
    """Print a figure; return whether it meets its goal."""
    print(f"{name:36} {value:7.2f} {unit:2}  (goal: at most {goal:g})")
    return value <= goal


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
