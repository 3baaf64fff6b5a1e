"""What runs and questions can be ended by."""

import pytest

from muniment.cancelling import Cancel


@pytest.fixture
def cancel():
    with Cancel() as cancel:
        yield cancel
