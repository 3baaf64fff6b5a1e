"""What one task may use, over all its attempts: turns, tool calls, and one monotonic deadline."""

from __future__ import annotations

from collections.abc import Callable

from muniment.agent.model import Turn
from muniment.confine.cancel import Cancel
from muniment.errors import Cancelled, DeadlineExceeded
from muniment.policy.decide import Limits


class Budget:
    """Counts down; a repeat after a conflict spends what is left.

    Args:
        limits: of the effective policy.
        cancel: the caller's wish to stop.
        clock: monotonic seconds.

    Attributes:
        timeline: the turns that were taken, in order, over all attempts.
    """

    def __init__(self, limits: Limits, cancel: Cancel, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self.cancel = cancel
        self.deadline = self._started + limits.seconds
        self.turns_left = limits.turns
        self.calls_left = limits.tool_calls
        self.turns = 0
        self.timeline: list[Turn] = []

    @property
    def seconds(self) -> float:
        """Since the task started."""
        return self._clock() - self._started

    @property
    def seconds_left(self) -> float:
        """Until the deadline, never negative."""
        return max(0.0, self.deadline - self._clock())

    def check(self) -> None:
        """Stop here if the task may not go on.

        Raises:
            Cancelled: the caller asked for it.
            DeadlineExceeded: the deadline has passed.
        """
        if self.cancel.is_set():
            raise Cancelled("nothing was written")
        if self._clock() >= self.deadline:
            raise DeadlineExceeded("the time of the task is used up; nothing was written")

    def renew(self, limits: Limits) -> None:
        """Give the turns and calls of a whole run anew, within the same deadline."""
        self.turns_left, self.calls_left = limits.turns, limits.tool_calls

    def spend_turn(self) -> bool:
        """Take a turn if one is left."""
        if self.turns_left == 0:
            return False
        self.turns_left -= 1
        self.turns += 1
        return True

    def spend_call(self) -> bool:
        """Take a tool call if one is left."""
        if self.calls_left == 0:
            return False
        self.calls_left -= 1
        return True
