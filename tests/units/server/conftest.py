"""A ledger of each engine for the tests of a file."""

from __future__ import annotations

import pytest

from kit.fleet.engines import ENGINES, StateOpener
from muniment.store.audit import verify


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """Return the engine of the ledger."""
    return request.param


@pytest.fixture(scope="module")
def open_state(engine, request):
    """Return a function that opens states with that engine."""
    return StateOpener(request.getfixturevalue("fleet") if engine == "postgres" else None)


@pytest.fixture(scope="module")
def state(open_state):
    with open_state() as opened:
        yield opened
        assert verify(opened).problems == ()
