"""Measure the cost of moving a memory: import of mem0 rows, the same again, export, backup, restore.

    python benchmarks/moving.py [ITEMS]

In a home below $TMPDIR, by the command line in one process each; CPU seconds of the process and its children.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import FACTS


def build_rows(count: int) -> str:
    """Return a response of mem0's `get_all`."""
    texts = (FACTS[number % len(FACTS)].format(number) for number in range(count))
    found = [{"id": f"m{number}", "memory": text, "user_id": "ana"} for number, text in enumerate(texts)]
    return json.dumps({"results": found})


def run_command(home: Path, *arguments: str) -> tuple[float, str]:
    """Return the CPU seconds of a command, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "muniment", *arguments],
        env=os.environ | {"MUNIMENT_HOME": str(home)},
        cwd=home.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, done.stdout.splitlines()[0]


def main() -> None:
    """Print a line for each command."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with TemporaryDirectory() as base:
        home, again = Path(base) / "home", Path(base) / "again"
        source = Path(base) / "mem0.json"
        source.write_text(build_rows(count))
        commands = [
            (home, "import", str(source)),
            (home, "import", str(source)),
            (home, "export", "--to", f"{base}/all.tar"),
            (home, "backup", f"{base}/all.backup"),
            (again, "restore", f"{base}/all.backup"),
            (again, "index", "verify"),
        ]
        for where, *arguments in commands:
            used, output = run_command(where, *arguments)
            print(f"{arguments[0]:8} {used:7.2f} s CPU  {output}")


if __name__ == "__main__":
    main()
