"""A ledger for the tests of a file."""

from __future__ import annotations

import pytest

from muniment.store.audit import verify
from muniment.store.state import State


@pytest.fixture(scope="module")
def state():
    with State(None) as opened:
        yield opened
        assert verify(opened).problems == ()
