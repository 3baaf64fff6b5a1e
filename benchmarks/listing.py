"""Measure the CPU time of `ls` and `history` in a large memory, on a terminal and in a pipe.

    python benchmarks/listing.py ROUNDS OTHER [ENTRIES]

OTHER is another checkout, which is run in turn with this one, by the same interpreter. Each checkout imports
ENTRIES notes (default 10 000) into its own home. The first run of each command is not counted. The minimums
and their ratio are printed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import resource
import struct
import subprocess
import sys
import termios
from pathlib import Path
from tempfile import TemporaryDirectory

CHECKOUTS = [Path(__file__).parents[1], Path(sys.argv[2]).resolve()]
ROUNDS, ENTRIES = int(sys.argv[1]), int([*sys.argv, "10000"][3])
COMMANDS = [["ls"], ["history"], ["ls", "--json"], ["history", "--json"]]
WORDS = [
    "server",
    "port",
    "coffee",
    "budget",
    "invoice",
    "garden",
    "editor",
    "branch",
    "review",
    "ticket",
    "customer",
    "vendor",
]


def write_notes(folder: Path) -> None:
    """Write the notes that are imported, one fact each, in a folder for each word."""
    choice = random.Random(4).choice
    for number in range(ENTRIES):
        text = (
            f"The {choice(WORDS)} {number} of the {choice(WORDS)} team needs a {choice(WORDS)} every week\n"
        )
        path = folder / WORDS[number % len(WORDS)] / f"note{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(number: int, directory: Path, arguments: list[str], *, is_terminal: bool = False) -> float:
    """Run a command of a checkout, and return its CPU time with its children, in milliseconds."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUTS[number] / "src"),
        "MUNIMENT_HOME": str(directory / str(number)),
        "TERM": "xterm",
    }
    command = [sys.executable, "-m", "muniment", *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if is_terminal:
        child, master = pty.fork()
        if child == 0:
            os.chdir(directory / "work")
            os.execve(command[0], command, environment)
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        try:
            while os.read(master, 65_536):
                pass
        except OSError:  # The command has ended.
            os.close(master)
        assert os.waitpid(child, 0)[1] == 0, command
    else:
        work = directory / "work"
        subprocess.run(command, cwd=work, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1_000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Import the notes, and print a line for each command and kind of output."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "work" / ".git").mkdir(parents=True)
        write_notes(directory / "notes")
        for number in range(2):
            run(number, directory, ["import", str(directory / "notes"), "--trust", "owner"])
        for arguments in COMMANDS:
            for is_terminal in (False,) if "--json" in arguments else (True, False):
                spent: list[list[float]] = [[], []]
                for turn in range(-1, ROUNDS):
                    for number in range(2):
                        found = run(number, directory, arguments, is_terminal=is_terminal)
                        spent[number] += [found] if turn >= 0 else []
                now, before = map(min, spent)
                where = "terminal" if is_terminal else "pipe"
                print(f"{' '.join(arguments):16} {where:9} {now:5.0f} ms, other {before:5.0f} ms, ", end="")
                print(f"ratio {now / before:.2f}", flush=True)


if __name__ == "__main__":
    main()
