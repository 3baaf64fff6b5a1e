"""Fails when coverage is below what each part of the package promises.

The packages that decide, open and write are covered to the last branch; the rest nearly so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

COMPLETE = frozenset({"kernel", "fence", "policy", "store"})
ELSEWHERE = 95.0


def main() -> int:
    """Print what falls short; the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "coverage.json"
        subprocess.run(["coverage", "json", "--quiet", "-o", str(report)], check=True)
        files = json.loads(report.read_text())["files"]
    covered, total = defaultdict(int), defaultdict(int)
    short = []
    for name, data in sorted(files.items()):
        parts = Path(name).parts
        package = parts[parts.index("muniment") + 1]
        summary = data["summary"]
        covered[package] += summary["covered_lines"] + summary["covered_branches"]
        total[package] += summary["num_statements"] + summary["num_branches"]
        missing = [*data["missing_lines"], *(tuple(branch) for branch in data["missing_branches"])]
        if package in COMPLETE and missing:
            short.append(f"{name}: not covered: {missing}")
    rest = [package for package in total if package not in COMPLETE]
    elsewhere = 100 * sum(covered[each] for each in rest) / sum(total[each] for each in rest)
    trusted = ", ".join(sorted(COMPLETE))
    print(f"{trusted}: {'INCOMPLETE' if short else 'complete'}; elsewhere: {elsewhere:.1f} %")
    for line in short:
        print(line)
    if elsewhere < ELSEWHERE:
        for package in sorted(rest):
            print(f"  {package}: {100 * covered[package] / total[package]:.1f} %")
    return 1 if short or elsewhere < ELSEWHERE else 0


if __name__ == "__main__":
    sys.exit(main())
