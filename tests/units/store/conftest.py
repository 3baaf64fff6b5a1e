"""Common fixtures of the store tests."""

from __future__ import annotations

import pytest

from kit.fleet.engines import Opening
from kit.store.ground import laid_out


@pytest.fixture(scope="module")
def engine():
    """Return the engine of the ledger; files whose tests use both parametrize it."""
    return "sqlite"


@pytest.fixture
def opening(engine, request, tmp_path):
    """Return a function that opens states with that engine."""
    return Opening(request.getfixturevalue("fleet") if engine == "postgres" else None, tmp_path)


@pytest.fixture
def ground(tmp_path, opening):
    with laid_out(tmp_path, opening) as made:
        yield made
