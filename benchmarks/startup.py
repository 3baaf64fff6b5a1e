"""Measure the CPU time of complete commands: user and system time of a process and its children.

    python benchmarks/startup.py [ROUNDS [OTHER]]

ROUNDS is the number of runs of each command; the median and the minimum are printed. OTHER is another
checkout, which is run in turn with this one, by the same interpreter. The byte code is compiled in a first
run, which is not counted.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parents[1]
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 11
CHECKOUTS = [HERE, *(Path(each).resolve() for each in sys.argv[2:3])]
PROGRAM = [sys.executable, "-m", "muniment"]
FACT = "The user drinks green tea at noon"
EVENT = json.dumps({"hook_event_name": "UserPromptSubmit", "session_id": "s{}", "prompt": "which tea?"})
COMMANDS: dict[str, tuple[list[str], int | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "node -e 0": (["node", "-e", "0"], None),
    "--help": ([*PROGRAM, "--help"], 80),
    "recall": ([*PROGRAM, "recall", "tea"], 225),
    "recall --hook": ([*PROGRAM, "recall", "--hook"], 225),
    "ls": ([*PROGRAM, "ls"], 200),
    "import client": ([sys.executable, "-c", "import muniment.client"], None),
    "remember": ([*PROGRAM, "remember", FACT + " number {}"], None),
    "dry run": ([*PROGRAM, "remember", FACT, "--dry-run"], None),
}
"""The commands and their goals in milliseconds; `{}` is the number of the run."""


def measure_cpu(command: list[str], home: str) -> list[list[float]]:
    """Return the milliseconds of CPU of the runs of a command with its children, for each checkout."""
    spent: list[list[float]] = [[] for _ in CHECKOUTS]
    for round_number in range(-1, ROUNDS):
        for number, checkout in enumerate(CHECKOUTS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [word.replace("{}", str(round_number)) for word in command],
                check=True,
                cwd=home,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(checkout / "src"),
                    "MUNIMENT_HOME": f"{home}/{number}",
                },
                input=EVENT.replace("{}", str(round_number)).encode(),
                capture_output=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if round_number >= 0:
                spent[number].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [[1_000 * each for each in runs] for runs in spent]


def main() -> None:
    """Print a line for each command."""
    with TemporaryDirectory() as home:
        Path(home, ".git").mkdir()
        measure_cpu([*PROGRAM, "remember", "The user drinks tea"], home)
        for name, (command, goal) in COMMANDS.items():
            if shutil.which(command[0]) is None:
                continue
            found = (
                f"{statistics.median(runs):5.0f} ({min(runs):.0f})" for runs in measure_cpu(command, home)
            )
            print(f"{name:15} {', '.join(found)} ms{f', goal {goal}' if goal else ''}", flush=True)


if __name__ == "__main__":
    main()
