"""The faults can still be made: each stands once in the package, and leaves a module that Python reads."""

from __future__ import annotations

import ast
from collections import Counter

from faults.catalogue import REPOSITORY, faults, texts_below

SAMPLE = 6
"""Of so many faults, one is parsed where there is no time for all."""
EACH = 30
GROUPS = {"kernel", "sandbox", "content", "policy", "store", "operations", "recall", "server", "cli"}
FLEET = 20
"""Of the fleet, whose lanes and ledger are those of the other groups."""


def test_every_fault_can_be_made_in_one_place_and_has_a_name_of_its_own(pytestconfig):
    names, texts = set(), texts_below(REPOSITORY / "src")
    parsed = 1 if pytestconfig.getoption("--slow") else SAMPLE
    for number, fault in enumerate(faults()):
        path = fault.found_in(texts)
        if path.suffix == ".py" and number % parsed == 0:
            ast.parse(fault.made_in(texts[path]), str(path))
        names.add(fault.name)
    assert len(names) == len(list(faults()))


def test_every_group_has_its_share():
    counted = Counter(fault.group for fault in faults())
    assert counted.pop("fleet") >= FLEET
    assert set(counted) == GROUPS
    assert min(counted.values()) >= EACH
