"""Measure the CPU time of complete commands: user and system time of a process and its children.

    python benchmarks/startup.py [ROUNDS [OTHER]]

ROUNDS is the number of runs of each command; the median and the minimum are printed. OTHER is another
checkout, which is run in turn with this one, by the same interpreter. The byte code is compiled in a first
run, which is not counted. In the row with a daemon, a daemon of the home runs meanwhile; its own time is not
counted.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parents[1]
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 11
CHECKOUTS = [HERE, *(Path(each).resolve() for each in sys.argv[2:3])]
PROGRAM = [sys.executable, "-m", "muniment"]
FACT = "The user drinks green tea at noon"
EVENT = json.dumps({"hook_event_name": "UserPromptSubmit", "session_id": "s{}", "prompt": "which tea?"})
COMPLETE = ["env", "_MUNIMENT_COMPLETE=complete_zsh"]
COMMANDS: dict[str, tuple[list[str], int | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "node -e 0": (["node", "-e", "0"], None),
    "--help": ([*PROGRAM, "--help"], 80),
    "Tab: command": ([*COMPLETE, "_TYPER_COMPLETE_ARGS=muniment re", *PROGRAM], 150),
    "Tab: option": ([*COMPLETE, "_TYPER_COMPLETE_ARGS=muniment show --w", *PROGRAM], 150),
    "Tab: handle": ([*COMPLETE, "_TYPER_COMPLETE_ARGS=muniment show ", *PROGRAM], None),
    "recall": ([*PROGRAM, "recall", "tea"], 225),
    "recall --hook": ([*PROGRAM, "recall", "--hook"], 225),
    "ls": ([*PROGRAM, "ls"], 200),
    "import client": ([sys.executable, "-c", "import muniment.client"], None),
    "remember": ([*PROGRAM, "remember", FACT + " number {}"], 500),
    "dry run": ([*PROGRAM, "remember", FACT, "--dry-run"], None),
}
"""The commands and their goals in milliseconds; `{}` is the number of the run."""
GOAL_WITH_DAEMON = 60


def build_environment(number: int, home: str) -> dict[str, str]:
    """Return the environment of a command of the checkout with this number."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUTS[number] / "src"),
        "MUNIMENT_HOME": f"{home}/{number}",
    }


@contextmanager
def run_daemon(number: int, home: str) -> Iterator[None]:
    """Run a daemon of the home of a checkout."""
    with subprocess.Popen(
        [*PROGRAM, "serve"],
        cwd=home,
        env=build_environment(number, home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline().startswith(b"serving"), "the daemon did not start"
        try:
            yield
        finally:
            daemon.terminate()


def measure_cpu(command: list[str], home: str) -> list[list[float]]:
    """Return the milliseconds of CPU of the runs of a command with its children, for each checkout."""
    spent: list[list[float]] = [[] for _ in CHECKOUTS]
    for round_number in range(-1, ROUNDS):
        for number in range(len(CHECKOUTS)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [word.replace("{}", str(round_number)) for word in command],
                check=True,
                cwd=home,
                env=build_environment(number, home),
                input=EVENT.replace("{}", str(round_number)).encode(),
                capture_output=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if round_number >= 0:
                spent[number].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [[1_000 * each for each in runs] for runs in spent]


def print_row(name: str, command: list[str], goal: int | None, home: str) -> None:
    """Measure a command and print its medians and minimums."""
    found = (f"{statistics.median(runs):5.0f} ({min(runs):.0f})" for runs in measure_cpu(command, home))
    print(f"{name:15} {', '.join(found)} ms{f', goal {goal}' if goal else ''}", flush=True)


def main() -> None:
    """Print a line for each command."""
    with TemporaryDirectory() as home:
        Path(home, ".git").mkdir()
        measure_cpu([*PROGRAM, "remember", "The user drinks tea"], home)
        for name, (command, goal) in COMMANDS.items():
            if shutil.which(command[0]) is not None:
                print_row(name, command, goal, home)
        with ExitStack() as daemons:
            for number in range(len(CHECKOUTS)):
                daemons.enter_context(run_daemon(number, home))
            print_row("hook, daemon", COMMANDS["recall --hook"][0], GOAL_WITH_DAEMON, home)


if __name__ == "__main__":
    main()
