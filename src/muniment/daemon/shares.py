"""Divides a limited number of places, so that no client's token shuts out the others or the owner."""

from __future__ import annotations

from collections import Counter
from typing import Final

from muniment.daemon.problems import Problem
from muniment.lane import OWNER

RESERVE: Final = 16
"""Places that all clients together leave to the owner, where there are many."""


class Shares:
    """Places, of which one client's token gets at most half. Belongs to one event loop.

    Args:
        cap: how many there are, more than `reserve`.
        seconds: after which somebody who found none may come again.
        reserve: how many of them all clients together leave to the owner.
    """

    def __init__(self, cap: int, seconds: int, reserve: int = RESERVE) -> None:
        self.cap, self._seconds, self._reserve = cap, seconds, reserve
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def take(self, token: str) -> None:
        """Give a place to the token of this name.

        Raises:
            Problem: there is none for it.
        """
        is_full = len(self) >= self.cap
        if token != OWNER:
            is_full = is_full or len(self) - self._taken[OWNER] >= self.cap - self._reserve
            is_full = is_full or self._taken[token] >= self.cap // 2
        if is_full:
            raise Problem("busy", headers={"Retry-After": str(self._seconds)})
        self._taken[token] += 1

    def leave(self, token: str) -> None:
        """Take a place back from who has one."""
        self._taken[token] -= 1
        if not self._taken[token]:
            del self._taken[token]
