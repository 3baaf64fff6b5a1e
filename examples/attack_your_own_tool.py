"""Attack your own memory tool with the corpus that ships with Muniment.

Run this program with `python examples/attack_your_own_tool.py`. The tool in it checks paths as many tools do:
it resolves a path, compares the result with its root directory, and opens the path afterwards. Everything
runs offline, in throwaway directories.

If your tool is a separate program, you need no Python code:
`muniment conformance --target 'command=my-tool {user} {project}'`.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from muniment.testing.conformance import CaseOutcome, judge_outcome, select_cases
from muniment.testing.corpus import CallResult, Case, CommitOutcome, Stage, UnsupportedCall, load_corpus
from muniment.testing.corpus.driver import drive
from muniment.testing.corpus.running import run_driver

CLASSES = ("traversal", "prefix-confusion", "symlink", "hardlink")
RACES = ("race-dir-0", "race-dir-1")


class MyTool:
    """A tool that reads and writes files below two roots, `user` and `project`."""

    commits_often = True

    def __init__(self, stage: Stage, _case: Case) -> None:
        self.base, self.roots = stage.tree, [stage.get_scope_path("user"), stage.get_scope_path("project")]

    def call(self, tool: str, arguments: Any) -> CallResult:
        """Perform one call of an attack case with the functions of this tool."""
        if tool not in {"read_file", "write_file"}:
            raise UnsupportedCall(f"no {tool}")
        try:
            path = self.base / arguments["path"]
            # This check is under test.
            if not any(path.resolve().is_relative_to(root) for root in self.roots):
                return CallResult("deny", "path_escape", "outside", "")
            if tool == "write_file":
                path.write_text(arguments["content"])
            return CallResult("allow", None, path.read_text(), "")
        except (OSError, ValueError) as error:
            return CallResult("error", "not_found", type(error).__name__, "")

    def commit(self) -> CommitOutcome:
        """Do nothing: this tool writes each change immediately."""
        return CommitOutcome(None, "")

    def close(self) -> str:
        """Do nothing: this tool has no process to end and no log to return."""
        return ""


def main() -> None:
    """Run some attacks in a separate process; print a line for each class of attacks, and each escape."""
    corpus, tally, escapes = load_corpus(), Counter[tuple[str, CaseOutcome]](), []
    cases = select_cases(corpus, classes=CLASSES, ids=RACES)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-P", str(Path(__file__).resolve()), scratch]
        failures = run_driver(command, list(cases), canary=corpus.canary)
    for case_id, case in cases.items():
        outcome = judge_outcome(case, failures[case_id])
        tally[case["class"], outcome] += 1
        if outcome in {CaseOutcome.ESCAPED, CaseOutcome.LEAKED}:
            escapes.append(f"{outcome}: {case_id}: {case['why']}")
    for name in (*CLASSES, "race"):
        print(
            f"{name:17}",
            ", ".join(f"{tally[name, each]} {each}" for each in CaseOutcome if tally[name, each]),
        )
    print("\n".join(escapes))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        drive(MyTool, Path(sys.argv[1]), sys.argv[2:])
    else:
        main()
