"""Run the attack kit against memory tools and report the findings fairly.

    corpus = load_corpus()
    targets = [parse_target("muniment"), parse_target("command=python my_tool.py {user} {project}")]
    for result in run_cases(targets, corpus, select_cases(corpus, classes=["symlink"]), jobs=2):
        print(result.target.name, result.count_outcomes().most_common())

`muniment.testing.corpus` builds the stages, makes the calls and finds the failures. This package decides what
a failure means for a tool that never promised what Muniment promises.

- O1 A case has one outcome, the worst of its failures; `CaseOutcome` lists the order and the meaning of each.
- O2 A case that a tool cannot express is `skipped`, with the reason, never `held`. A tool that does not
  start, or fails an ordinary read, is not tested: it would pass every attack.
- O3 A case runs in a process that has data to steal. If it hangs, it is killed with all its children.
- O4 The report states whether an escape is outside the claims of the tool's authors.

Not covered: O3 for a program that leaves its session. `docs/conformance.md` lists the limits of the kit.

To add a kind of tool, start with `targets.py`; to test one tool in Python, with
`muniment.testing.corpus.stage`.
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
