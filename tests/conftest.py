"""Profiles of the property tests, the switch for the slow ones, and a zygote of one's own."""

from __future__ import annotations

import gc
import logging
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from muniment.confine.pool import Zygote

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


@pytest.fixture(scope="module")
def zygote():
    """A zygote that only the tests of one file use; one of them may have brought it down."""
    with Zygote() as zygote:
        zygote.start()
        yield zygote


@pytest.fixture(autouse=True)
def _quiet():
    """Commands set up logging and a handler for Ctrl-C, as programs may."""
    logger, before = logging.getLogger("muniment"), signal.getsignal(signal.SIGINT)
    kept = (logger.propagate, list(logger.handlers), logger.level)
    yield
    logger.propagate, logger.handlers = kept[0], kept[1]
    logger.setLevel(kept[2])
    signal.signal(signal.SIGINT, before)
