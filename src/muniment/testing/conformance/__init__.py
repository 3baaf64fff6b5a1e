"""Run the attack kit against memory tools and report the findings fairly.

    targets = [parse_target("muniment"), parse_target("command=python my_tool.py {user} {project}")]
    for result in examine(targets, select(load_corpus(), classes=["symlink"])):
        print(result.target.name, result.tally().most_common())

`muniment.testing.corpus` builds the stages, makes the calls and finds the failures. This package decides what
a failure means for a tool that never promised what Muniment promises.

- O1 a case has one outcome, the worst of its failures; `targets.py` lists the order and the meaning of each.
- O2 a case that a tool cannot express is `skipped`, with the reason, never `held`. A tool that does not
  start, or fails an ordinary read, is not tested: it would pass every attack.
- O3 a case runs in a process that has data to steal. If it hangs, it is killed with all its children.
- O4 the report states whether an escape is outside the claims of the tool's authors.

Not covered: O3 for a program that leaves its session. `docs/conformance.md` lists the limits of the kit.

Start with `targets.py` to add a kind of tool, with `muniment.testing.corpus.stage` for one tool in Python.
"""

from __future__ import annotations

import muniment.sandbox.fence  # noqa: F401  checks the operating system
from muniment.testing.conformance.run import Finding, Result, run_cases, select_cases
from muniment.testing.conformance.targets import (
    Claims,
    Promises,
    Target,
    judge_outcome,
    parse_target,
)
from muniment.testing.corpus import CaseOutcome

__all__ = [
    "CaseOutcome",
    "Claims",
    "Finding",
    "Promises",
    "Result",
    "Target",
    "judge_outcome",
    "parse_target",
    "run_cases",
    "select_cases",
]
