"""Fail if coverage is below the floor of a package.

Packages that decide, open and write need full branch coverage; the others a little less.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

COMPLETE = frozenset({"kernel", "fence", "policy", "store"})
MIN_OTHER_PERCENT = 95.0


def main() -> int:
    """Print uncovered code and return the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "coverage.json"
        subprocess.run(["coverage", "json", "--quiet", "-o", str(report)], check=True)
        files = json.loads(report.read_text())["files"]
    covered, total = defaultdict(int), defaultdict(int)
    problems = []
    for name, data in sorted(files.items()):
        parts = Path(name).parts
        package = parts[parts.index("muniment") + 1]
        summary = data["summary"]
        covered[package] += summary["covered_lines"] + summary["covered_branches"]
        total[package] += summary["num_statements"] + summary["num_branches"]
        missing = [*data["missing_lines"], *(tuple(branch) for branch in data["missing_branches"])]
        if package in COMPLETE and missing:
            problems.append(f"{name}: not covered: {missing}")
    rest = [package for package in total if package not in COMPLETE]
    other_percent = 100 * sum(covered[each] for each in rest) / sum(total[each] for each in rest)
    trusted = ", ".join(sorted(COMPLETE))
    print(f"{trusted}: {'INCOMPLETE' if problems else 'complete'}; others: {other_percent:.1f} %")
    for line in problems:
        print(line)
    if other_percent < MIN_OTHER_PERCENT:
        for package in sorted(rest):
            print(f"  {package}: {100 * covered[package] / total[package]:.1f} %")
    return 1 if problems or other_percent < MIN_OTHER_PERCENT else 0


if __name__ == "__main__":
    sys.exit(main())
