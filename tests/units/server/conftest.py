"""A ledger of each engine for the tests of a file."""

from __future__ import annotations

import pytest

from kit.fleet.engines import ENGINES, Opening
from muniment.store.audit import verify


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """Return the engine of the ledger."""
    return request.param


@pytest.fixture(scope="module")
def opening(engine, request):
    """Return a function that opens states with that engine."""
    return Opening(request.getfixturevalue("fleet") if engine == "postgres" else None)


@pytest.fixture(scope="module")
def state(opening):
    with opening() as opened:
        yield opened
        assert verify(opened).problems == ()
