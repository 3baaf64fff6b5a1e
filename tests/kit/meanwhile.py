"""What happens just before or just after a call of somebody else."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def nth(owner, name, at, act, *, after=False):
    """Have `act` happen just before the call number `at`, or when its work is done."""
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
