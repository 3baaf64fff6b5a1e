"""Every fault still applies: its text occurs once in the package, and the result is valid Python."""

from __future__ import annotations

import ast
from collections import Counter

from faults.catalogue import REPOSITORY, load_faults, read_sources

SAMPLE = 6
"""Without --slow, one of this many faults is parsed."""
EACH = 30
GROUPS = {"kernel", "sandbox", "content", "policy", "store", "operations", "recall", "server", "cli"}
FLEET = 20
"""Minimum for the fleet, whose lanes and ledger belong to other groups."""


def test_every_fault_applies_once_and_has_a_unique_name(pytestconfig):
    names, texts = set(), read_sources(REPOSITORY / "src")
    parsed = 1 if pytestconfig.getoption("--slow") else SAMPLE
    for number, fault in enumerate(load_faults()):
        path = fault.find_module(texts)
        if path.suffix == ".py" and number % parsed == 0:
            ast.parse(fault.apply(texts[path]), str(path))
        names.add(fault.name)
    assert len(names) == len(list(load_faults()))


def test_every_group_has_enough_faults():
    counted = Counter(fault.group for fault in load_faults())
    assert counted.pop("fleet") >= FLEET
    assert set(counted) == GROUPS
    assert min(counted.values()) >= EACH
