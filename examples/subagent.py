"""Give a subagent context for its task, a search, and a way to submit facts.

Run this program with `python examples/subagent.py`. Instead of a model, it uses three typical tool calls.
With a real model, put `subagents.tools` into its request, and pass each of its calls to `subagents.call`.
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
    """Print a task with its context, the results of three calls, and the submitted facts."""
    with tempfile.TemporaryDirectory() as scratch:
        workspace = Path(scratch, "project")
        workspace.mkdir()
        with muniment.open(workspace, home=Path(scratch, "home")) as memory:
            for fact in FACTS:
                memory.remember(fact)

            submitted: list[str] = []

            def enqueue(fact: str) -> str:
                submitted.append(fact)
                return f"task-{len(submitted)}"

            subagents = memory.subagent(enqueue)
            print(subagents.task_context("Raise the limit of the staging Postgres"))
            for tool, arguments in CALLS:
                print(f"--- {tool} {arguments}")
                print(subagents.call(tool, arguments))

            for fact in submitted:  # A daemon does this when they reach the head of the queue.
                result = memory.try_remember(RememberRequest(fact, trust=muniment.Trust.AGENT))
                print(f"--- {result.summary}")


if __name__ == "__main__":
    main()
