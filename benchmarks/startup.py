"""What a command costs before it does anything: CPU of its processes, beyond bare Python.

Run it with `python benchmarks/startup.py`; a number says how often each is run. The median is shown.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 11
PROGRAM = [sys.executable, "-m", "muniment"]
COMMANDS = {
    "--help": ([*PROGRAM, "--help"], 100),
    "recall": ([*PROGRAM, "recall", "tea"], 250),
    "remember": ([*PROGRAM, "remember", "The user drinks green tea at noon", "--dry-run"], 500),
}


def cpu(command: list[str], home: str) -> float:
    """Milliseconds of CPU of a command and of what it started."""
    spent = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command,
            check=True,
            cwd=home,
            env={"PATH": os.environ["PATH"], "MUNIMENT_HOME": f"{home}/home"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1_000 * statistics.median(spent)


def main() -> None:
    """Print a line for each."""
    with TemporaryDirectory() as home:
        Path(home, ".git").mkdir()
        cpu([*PROGRAM, "remember", "The user drinks tea"], home)
        bare = cpu([sys.executable, "-c", "pass"], home)
        print(f"bare Python {bare:.0f} ms")
        for name, (command, goal) in COMMANDS.items():
            print(f"{name:10} {cpu(command, home) - bare:5.0f} ms beyond it (goal {goal})")


if __name__ == "__main__":
    main()
