"""What nearly every test of the store begins with."""

from __future__ import annotations

import pytest

from kit.fleet.engines import Opening
from kit.store.ground import laid_out


@pytest.fixture(scope="module")
def engine():
    """What the ledger is kept in; the files whose tests take both say so."""
    return "sqlite"


@pytest.fixture
def opening(engine, request, tmp_path):
    """Opens states over that engine."""
    return Opening(request.getfixturevalue("fleet") if engine == "postgres" else None, tmp_path)


@pytest.fixture
def ground(tmp_path, opening):
    with laid_out(tmp_path, opening) as made:
        yield made
