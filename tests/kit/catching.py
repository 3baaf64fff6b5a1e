"""Capture the error of a call in one line."""

from __future__ import annotations

import pytest


def catch_error(error, act, /, *args, match=None, **kwargs):
    """Return the error that the call of `act` must raise."""
    with pytest.raises(error, match=match) as caught:
        act(*args, **kwargs)
    return caught.value
