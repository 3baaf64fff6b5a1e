"""A subagent that gets context for its task, looks things up, and hands a fact in.

Run it with `python examples/subagent.py`. The "model" is three calls that one might make; where there is a
real one, `subagents.tools` goes into its request, and each of its calls to `subagents.call`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import muniment
from muniment.types import RememberRequest

FACTS = (
    "Staging runs on Postgres 16 behind pgbouncer",
    "The user prefers short commit messages",
)
CALLS = (
    ("search_memory", '{"query": "commit messages", "scope": "global"}'),
    ("search_memory", '{"query": "the weather on the moon"}'),
    ("remember_this", '{"fact": "The pool of staging holds 40 connections"}'),
)


def main() -> None:
    """A task, its context, three calls, and what was handed in."""
    with tempfile.TemporaryDirectory() as scratch:
        workspace = Path(scratch, "project")
        workspace.mkdir()
        with muniment.open(workspace, home=Path(scratch, "home")) as memory:
            for fact in FACTS:
                memory.remember(fact)

            handed_in: list[str] = []

            def enqueue(fact: str) -> str:
                handed_in.append(fact)
                return f"task-{len(handed_in)}"

            subagents = memory.subagent(enqueue)
            print(subagents.task_context("Raise the limit of the staging Postgres"))
            for tool, arguments in CALLS:
                print(f"--- {tool} {arguments}")
                print(subagents.call(tool, arguments))

            for fact in handed_in:  # As a daemon would, once it is their turn.
                result = memory.try_remember(RememberRequest(fact, trust=muniment.Trust.AGENT))
                print(f"--- {result.summary}")


if __name__ == "__main__":
    main()
