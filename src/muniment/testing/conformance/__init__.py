"""The attack kit pointed at memory tools, and fair words for what it finds.

    targets = [parse_target("muniment"), parse_target("command=python my_tool.py {user} {project}")]
    for result in examine(targets, select(load_corpus(), classes=["symlink"])):
        print(result.target.name, result.tally().most_common())

`muniment.testing.corpus` stays the engine: it builds the stages, makes the calls and says what is wrong. Here
it is decided what that means for a tool which never promised what Muniment promises.

- O1 a case has one outcome, the worst of what was seen; the order and what leads where stand in `targets.py`.
- O2 what a tool cannot express is `skipped`, with the reason, never `held`. A tool on which an ordinary
  read does not work, or that does not start, is not tried at all: it would hold everything.
- O3 a case runs in a process that has something to lose, and that is ended with all it started when it hangs.
- O4 whether an escape lies outside what the tool's authors claim is said beside it.

Does not hold: O3 for a program that leaves the session it was started in. What the kit cannot see stands in
`docs/conformance.md`.

Start at `targets.py` for a new kind of tool, at `muniment.testing.corpus.stage` for a single one in Python.
"""

from __future__ import annotations

import muniment.sandbox.fence  # noqa: F401  asks for the system
from muniment.testing.conformance.run import Finding, Result, examine, select
from muniment.testing.conformance.targets import (
    Claims,
    Promises,
    Target,
    outcome_of,
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
    "examine",
    "outcome_of",
    "parse_target",
    "select",
]
