"""The paths of the tests and the repository."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
FACTS = TESTS / "facts"
