"""What runs and questions can be ended by."""

import pytest

from muniment.kernel.cancel import Cancel


@pytest.fixture
def cancel():
    with Cancel() as cancel:
        yield cancel
