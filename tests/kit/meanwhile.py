"""Run an action just before or just after a call in other code."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def nth(owner, name, at, act, *, after=False):
    """Run `act` just before the call with number `at`, or after it returns."""
    real, calls = getattr(owner, name), []

    def method(*arguments, **keywords):
        calls.append(arguments)
        due = len(calls) == at
        if due and not after and (instead := act()) is not None:
            return instead
        result = real(*arguments, **keywords)
        if due and after:
            act()
        return result

    with patch.object(owner, name, method):
        yield calls
