"""The lock with hashes has everything that runs or builds Muniment, as the tests run with it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hashes import COMMAND, LOCK, read, wanted, written

CONSTRAINTS = (Path(LOCK).parent / "constraints.txt").read_text()
TEXT = LOCK.read_text()


def needed(texts, seen):
    """What these need here, by what is installed."""
    for wish in map(Requirement, texts):
        name = canonicalize_name(wish.name)
        if name not in seen and (wish.marker is None or wish.marker.evaluate({"extra": ""})):
            seen.add(name)
            needed(importlib.metadata.requires(name) or (), seen)
    return seen


def test_it_has_all_that_is_needed_at_the_versions_of_the_constraints():
    versions = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in CONSTRAINTS.split())
    }
    locked = dict(read(TEXT).keys())
    assert needed(wanted(), set()) <= locked.keys()
    assert locked.items() <= versions.items()


def test_it_names_its_command_and_no_place_that_files_came_from():
    assert TEXT.startswith(f"# Made by: {COMMAND}\n")
    assert written(read(TEXT)) == TEXT
    assert "/" not in TEXT.partition("\n")[2]


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md"])
def test_a_page_names_it(page):
    assert "requirements.lock" in (LOCK.parent / page).read_text()
