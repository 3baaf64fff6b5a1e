"""Remember one fact in a throwaway home, and print the files.

Run this program with `python examples/remember_once.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import muniment


def main() -> None:
    """Remember a fact, then print its entry and the index."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch, "home")
        with muniment.open(workspace=scratch, home=home) as memory:
            result = memory.remember("The user prefers dark mode in all editors")
        print(f"{result.status}: {', '.join(result.files_touched)}")
        print(f"decided by {result.decided_by}, enforcement {result.enforcement}")
        print()
        print((home / result.files_touched[0]).read_text())
        print((home / "user" / "MEMORY.md").read_text())


if __name__ == "__main__":
    main()
