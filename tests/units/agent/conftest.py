"""A cancel handle for runs and questions."""

import pytest

from muniment.cancelling import Cancel


@pytest.fixture
def cancel():
    with Cancel() as cancel:
        yield cancel
