"""Fixtures of a ledger of each engine."""

from __future__ import annotations

import pytest

from kit.fleet.engines import ENGINES, Opening
from muniment.store.audit import verify


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """The engine of the ledger."""
    return request.param


@pytest.fixture(scope="module")
def opening(engine, request):
    """A function that opens states over the engine."""
    return Opening(request.getfixturevalue("fleet") if engine == "postgres" else None)


@pytest.fixture(scope="module")
def state(opening):
    with opening() as opened:
        yield opened
        assert verify(opened).problems == ()
