"""The lock with hashes has everything that runs or builds Muniment, as the tests run with it."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hashes import COMMAND, LOCK, read, wanted, written
from kit.shell import text_of

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
    pinned = (line.partition("==") for line in text_of("constraints.txt").split())
    versions = {canonicalize_name(name): version for name, _, version in pinned}
    locked = dict(read(TEXT).keys())
    assert needed(wanted(), set()) <= locked.keys()
    assert locked.items() <= versions.items()


def test_it_names_its_command_and_no_place_that_files_came_from_and_pages_name_it():
    assert TEXT.startswith(f"# Made by: {COMMAND}\n")
    assert written(read(TEXT)) == TEXT
    assert "/" not in TEXT.partition("\n")[2]
    assert all("requirements.lock" in text_of(page) for page in ("README.md", "docs/operations.md"))
