"""The facts for tests and benchmarks of the standing context, with which each session starts."""

from __future__ import annotations

STANDING_FACTS = (
    "Answer in British English",
    "We use pnpm, not npm",
    "Never commit to main directly",
    "The user's name is Mara Lindqvist",
    "The user is allergic to nuts",
    "Indent Python with four spaces",
    "Tests live beside the code in this project",
    "Explain changes before making them",
)
"""Facts that an agent needs in every session, for any prompt."""
