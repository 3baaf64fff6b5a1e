"""Profiles of the property tests, and the switch for the slow ones."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["threats.gate"]

settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile("slow", max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run the thorough profile")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="thorough; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish():
    """Set aside all that was collected: a collection then costs what a test left, not ten thousand tests."""
    gc.collect()
    gc.freeze()
