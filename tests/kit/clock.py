"""A monotonic clock that only moves when it is advanced."""

from __future__ import annotations


class FakeClock:
    """A clock: call it for the time in seconds; `advance` moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the seconds since an arbitrary moment."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now += seconds
