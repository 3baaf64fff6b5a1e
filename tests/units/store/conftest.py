"""Common fixtures of the store tests."""

from __future__ import annotations

import pytest

from kit.fleet.engines import StateOpener
from kit.store.bench import create_store_bench


@pytest.fixture(scope="module")
def engine():
    """Return the engine of the ledger; files whose tests use both parametrize it."""
    return "sqlite"


@pytest.fixture
def open_state(engine, request, tmp_path):
    """Return a function that opens states with that engine."""
    return StateOpener(request.getfixturevalue("fleet") if engine == "postgres" else None, tmp_path)


@pytest.fixture
def store_bench(tmp_path, open_state):
    with create_store_bench(tmp_path, open_state) as made:
        yield made
