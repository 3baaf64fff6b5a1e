"""Measure the startup cost of a command: CPU of its processes, beyond bare Python.

    python benchmarks/startup.py [ROUNDS [OTHER]]

ROUNDS is the number of runs of each command; the median is printed. OTHER is another checkout, which is run
in turn with this one, by the same interpreter.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parents[1]
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 11
CHECKOUTS = [HERE, *(Path(each).resolve() for each in sys.argv[2:3])]
PROGRAM = [sys.executable, "-m", "muniment"]
COMMANDS = {
    "--help": ([*PROGRAM, "--help"], 100),
    "recall": ([*PROGRAM, "recall", "tea"], 250),
    "client": ([sys.executable, "-c", "import muniment.client"], 456),
    "remember": ([*PROGRAM, "remember", "The user drinks green tea at noon", "--dry-run"], 500),
}


def measure_cpu(command: list[str], home: str) -> list[float]:
    """Return the milliseconds of CPU of a command and its children, in each checkout."""
    spent: list[list[float]] = [[] for _ in CHECKOUTS]
    for _ in range(ROUNDS):
        for number, checkout in enumerate(CHECKOUTS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                command,
                check=True,
                cwd=home,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(checkout / "src"),
                    "MUNIMENT_HOME": f"{home}/{number}",
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[number].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [1_000 * statistics.median(each) for each in spent]


def main() -> None:
    """Print a line for each command."""
    with TemporaryDirectory() as home:
        Path(home, ".git").mkdir()
        measure_cpu([*PROGRAM, "remember", "The user drinks tea"], home)
        bare = measure_cpu([sys.executable, "-c", "pass"], home)
        print(f"bare Python {bare[0]:.0f} ms")
        for name, (command, goal) in COMMANDS.items():
            extra = [
                each - python_ms for each, python_ms in zip(measure_cpu(command, home), bare, strict=True)
            ]
            print(f"{name:10} {', '.join(f'{each:5.0f}' for each in extra)} ms beyond it (goal {goal})")


if __name__ == "__main__":
    main()
