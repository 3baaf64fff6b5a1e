"""What a call ends in, in a line."""

from __future__ import annotations

import pytest


def raised(error, act, /, *args, match=None, **terms):
    """The error that the call of `act` has to raise."""
    with pytest.raises(error, match=match) as caught:
        act(*args, **terms)
    return caught.value
