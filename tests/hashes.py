"""Write `requirements.lock`: the runtime and build requirements with version and SHA-256.

    PYTHONPATH=tests .venv/bin/python -m hashes

Versions come from `constraints.txt`, hashes from the files that pip would install on this machine. Existing
hashes of the same version stay, so a run on another Python or processor adds to them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[1]
LOCK: Final = REPOSITORY / "requirements.lock"
COMMAND: Final = "PYTHONPATH=tests .venv/bin/python -m hashes"
HEADER: Final = f"# Made by: {COMMAND}\n"

Locked = Mapping[tuple[str, str], set[str]]
"""SHA-256 of files, by name and version of the package."""

_ENTRY: Final = re.compile(
    r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def list_requirements() -> list[str]:
    """Return the runtime and build requirements of the project."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return [*project["project"]["dependencies"], *project["build-system"]["requires"]]


def parse_lock(text: str) -> Locked:
    """Parse a lock."""
    return {
        (name, version): set(re.findall("[0-9a-f]{64}", hashes))
        for name, version, hashes in _ENTRY.findall(text)
    }


def format_lock(locked: Locked) -> str:
    """Format a lock: sorted, without the source of the files."""
    lines = (
        f"{name}=={version} \\\n"
        + " \\\n".join(f"    --hash=sha256:{each}" for each in sorted(hashes))
        + "\n"
        for (name, version), hashes in sorted(locked.items())
    )
    return HEADER + "".join(lines)


def _resolve_files() -> Iterator[tuple[str, str, str]]:
    """Yield name, version and hash of each file that pip would install."""
    report = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
            *("--only-binary", ":all:", "--constraint", str(REPOSITORY / "constraints.txt"), "--report", "-"),
            *list_requirements(),
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    for each in json.loads(report.stdout)["install"]:
        name = re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower()
        yield name, each["metadata"]["version"], each["download_info"]["archive_info"]["hashes"]["sha256"]


def main() -> None:
    """Write the lock."""
    before, locked = parse_lock(LOCK.read_text() if LOCK.exists() else ""), defaultdict(set)
    for name, version, found in _resolve_files():
        locked[name, version] |= {found, *before.get((name, version), ())}
    LOCK.write_text(format_lock(locked))


if __name__ == "__main__":
    main()
