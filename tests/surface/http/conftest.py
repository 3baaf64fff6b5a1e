"""Daemons that run: one for all tests that leave it as it was, and others for the tests that do not.

`daemon` is shared by the whole session: tests may add tasks and tokens to it, and must bear those of others.
A test that stops, kills, holds or fills one starts its own with `start_daemon`; `model` is a language model
for that, whose answers the test holds and lets go.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from kit.daemon.process import HeldModel, policy_file, serving
from kit.daemon.world import REVIEWED, World


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """A daemon of the rule writer, with the shipped policy."""
    with serving(tmp_path_factory.mktemp("daemon")) as served:
        yield served


@pytest.fixture
def start_daemon(tmp_path_factory):
    """Starts daemons of the test's own, each in a home of its own: `start_daemon(*flags)`."""
    with ExitStack() as running:

        def start(*flags, base=None, **environment):
            where = base or tmp_path_factory.mktemp("d")
            return running.enter_context(serving(where, *flags, **environment))

        yield start


@pytest.fixture
def model():
    """A language model that does its job, unless the test holds it or gives it another mind."""
    with HeldModel() as held:
        yield held


@pytest.fixture(scope="session")
def world(daemon, tmp_path_factory):
    """What brings both of its daemons into the states that the contract has codes for."""
    base = tmp_path_factory.mktemp("picky")
    policy = policy_file(
        base, user=REVIEWED, conflict='"fail"', seconds="2", max_files="12", max_scope_share="1.0"
    )
    with HeldModel() as model, serving(base, "--policy", str(policy), *model.flags) as picky:
        yield World(daemon, picky, model)
