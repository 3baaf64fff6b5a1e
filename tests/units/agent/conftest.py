"""Fixtures of the agent tests."""

import pytest

from muniment.cancelling import Cancel


@pytest.fixture
def cancel():
    with Cancel() as cancel:
        yield cancel
