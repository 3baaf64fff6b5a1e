"""Import folders into an empty memory, and print the lines that are neither in the memory nor in the report.

    python benchmarks/conservation.py FOLDER...
    python benchmarks/conservation.py --generated TREES

A line for each folder: files, text files, lines in them, entries, lines in the report, lost lines. The oracle
is that of the tests (`tests/kit/conservation.py`), which shares no code with the subject. Exit 1 if a line is
lost.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from kit import foreign_memories  # noqa: E402
from kit.conservation import collect_reported_lines, find_lost_lines  # noqa: E402

SUFFIXES = (".md", ".mdc", ".markdown", ".txt")


def run_muniment(home: Path, *arguments: str) -> Any:
    """Run a command in a separate process, and return the document that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "muniment", *arguments, "--json"],
        env=os.environ | {"MUNIMENT_HOME": str(home)},
        cwd=home.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 1}:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout)


def measure(name: str, source: Path) -> int:
    """Import a folder, print its line, and return how many lines are lost."""
    files = {
        str(path.relative_to(source)): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(source).parts
    }
    with TemporaryDirectory() as base:
        home = Path(base) / "home"
        done = run_muniment(home, "import", str(source), "--trust=owner")
        waiting = run_muniment(home, "review", "list")["reviews"]
        listed = [run_muniment(home, "review", "show", each["review_id"]) for each in waiting]
        texts = [str(text) for each in listed for text in each.values()]
        lost = list(find_lost_lines(files, [home / "user", home / "projects"], done, texts))
    read = [data for path, data in files.items() if path.lower().endswith(SUFFIXES)]
    count = sum(1 for data in read for line in re.split(b"\r\n|\n|\r", data) if line.strip())
    named = sum(len(lines) for lines in collect_reported_lines(done).values() if lines)
    counts = done["counts"]
    print(
        f"{name:38} {len(files):6} files {len(read):6} texts {count:8} lines "
        f"{counts['imported']:6} entries {counts['held']:5} pending {counts['refused']:5} rejected "
        f"{named:6} lines reported {len(lost):5} lost",
        flush=True,
    )
    for path, number, line in lost[:20]:
        print(f"  lost: {path}:{number}: {line[:120]!r}")
    return len(lost)


def main() -> None:
    """Print a line for each folder, or for each generated tree."""
    lost = 0
    if sys.argv[1:2] == ["--generated"]:
        for seed in range(int(sys.argv[2])):
            with TemporaryDirectory() as base:
                for name, data in foreign_memories.generate_memory(seed).items():
                    path = Path(base) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                lost += measure(f"generated {seed}", Path(base))
    else:
        for folder in map(Path, sys.argv[1:]):
            lost += measure(folder.name, folder)
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
