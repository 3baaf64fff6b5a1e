"""Capture the error of a call in one line."""

from __future__ import annotations

import pytest


def raised(error, act, /, *args, match=None, **terms):
    """Return the error that the call of `act` must raise."""
    with pytest.raises(error, match=match) as caught:
        act(*args, **terms)
    return caught.value
