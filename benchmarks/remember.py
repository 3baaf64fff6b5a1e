"""Measure the cost of a remember: CPU beyond the durable write, and the wall time of the whole command.

Run it with `python benchmarks/remember.py`; a number sets the facts per round.

Prints medians of several rounds, each into a new memory, and ratios of one run. CPU counts this process,
the zygote and its workers. The durable write is what any program would need for the same two files: write,
fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import FACTS, measure_cpu

import muniment

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
ROUNDS = 7
COMMANDS = 15
PROGRAM = Path(sys.executable).with_name("muniment")


def write_durably(directory: Path, name: str, content: bytes) -> None:
    """Write one file as safely as the file system allows."""
    temporary = directory / f".{name}"
    with temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(directory / name)
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def measure_mean_cpu(action: Callable[[int], None]) -> float:
    """Return the mean CPU seconds of `action`; the zygote's clock is too coarse for medians."""
    started = measure_cpu(os.getpid())
    for number in range(RUNS):
        action(number)
    return (measure_cpu(os.getpid()) - started) / RUNS


def measure_wall(command: list[str], environment: dict[str, str]) -> float:
    """Return the median wall seconds of a whole process."""
    walls = []
    for _ in range(COMMANDS):
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - started)
    return statistics.median(walls)


def run_round(directory: Path, walls: list[float]) -> tuple[float, float]:
    """Return the mean CPU seconds of a remember and of the durable write; append wall seconds to `walls`."""
    plain = directory / "plain"
    plain.mkdir(parents=True)
    with muniment.open(directory, home=directory / "home") as memory:
        memory.remember("warm up")

        def remember(number: int) -> None:
            started = time.perf_counter()
            memory.remember(FACTS[number % len(FACTS)].format(number))
            walls.append(time.perf_counter() - started)

        remember_cpu = measure_mean_cpu(remember)

    def write(number: int) -> None:
        write_durably(plain, f"{number}.md", b"x" * 400)
        write_durably(plain, f"{number}-index.md", b"x" * 4000)

    return remember_cpu, measure_mean_cpu(write)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        walls: list[float] = []
        rounds = [run_round(Path(scratch, f"round-{number}"), walls) for number in range(ROUNDS)]
        remember_cpu, bare = (statistics.median(column) for column in zip(*rounds, strict=True))
        environment = {"PATH": os.environ["PATH"], "HOME": scratch}
        python = measure_wall([sys.executable, "-c", "pass"], environment)
        help_seconds = measure_wall([str(PROGRAM), "--help"], environment)
        command = measure_wall([str(PROGRAM), "remember", "The team meets on Mondays"], environment)
    print(f"remember by rules, warm zygote, medians of {ROUNDS} rounds of {RUNS} facts into a growing memory")
    print(f"  CPU          {1000 * remember_cpu:6.1f} ms, durable write alone {1000 * bare:.1f} ms")
    print(f"  CPU beyond   {1000 * (remember_cpu - bare):6.1f} ms  (goal: at most 25)")
    print(f"  wall, median {1000 * statistics.median(walls):6.1f} ms")
    print(f"one-shot command, wall median of {COMMANDS}")
    print(f"  remember     {command:6.3f} s  (goal: at most 0.7)")
    print(
        f"  --help       {help_seconds:6.3f} s = {help_seconds / python:.1f} x python -c pass  "
        "(goal: at most 10)"
    )


if __name__ == "__main__":
    main()
