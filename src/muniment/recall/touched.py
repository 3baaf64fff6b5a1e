"""What the memory has about the files that a conversation touches, looked up in the background.

- F1. No method waits, or raises for want of a thread or a descriptor.
- F2. A path is looked up once, and again only where some of what came of it was told otherwise meanwhile.
- F3. All that is told takes at most the budget, until the conversation is compacted.

Apart from `conversation.py`, which says when a path is touched: this module looks it up.

Attacked in tests/units/recall/test_touched.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from muniment.recall.context import StaticContext
from muniment.recall.prefetch import Handle, Prefetch, begun
from muniment.types import Recalled
from muniment.types.keys import EntryKey

MAX_PATHS: Final = 2_000
"""Paths of one conversation that are looked up; a tool that lists a disk names more."""

PATHS_AT_ONCE: Final = 50
"""Paths of one lookup, a query each, so that something comes soon."""


class Touched:
    """The third tier of one conversation, one lookup at a time.

    Args:
        static: looks up.
        prefetch: carries it out; stays the caller's.
        budget: tokens of all that is told.
        known: what the conversation was told otherwise.
        told: what it was told by this tier before.
        spent: tokens that this took.

    Attributes:
        told: what it was told by this tier.
        spent: tokens that this took.
    """

    def __init__(
        self,
        static: StaticContext,
        prefetch: Prefetch,
        budget: int,
        known: Callable[[], Collection[EntryKey]],
        told: Collection[EntryKey] = (),
        spent: int = 0,
    ) -> None:
        self._static, self._prefetch, self._budget, self._known = static, prefetch, budget, known
        self._seen: set[str] = set()
        self._waiting: list[str] = []
        self._running: tuple[Handle[Recalled], list[str]] | None = None
        self.told, self.spent = set(told), spent

    def add(self, unsafe_path: str) -> None:
        """A tool touches a file of the workspace."""
        if unsafe_path not in self._seen and len(self._seen) < MAX_PATHS:
            self._seen.add(unsafe_path)
            self._waiting.append(unsafe_path)
            self._begin()

    def take(self) -> Recalled | None:
        """What is to be told now; None: nothing, or nothing yet."""
        if self._running is None:
            self._begin()  # What could not be begun before.
            return None
        (handle, paths), recalled = self._running, None
        if handle.settled_at is None:
            return None
        self._running, recalled = None, handle.take()
        if recalled is not None and not recalled.keys.isdisjoint(self._known()):
            self._waiting = paths + self._waiting  # Something of it was told meanwhile.
            recalled = None
        if recalled is not None:
            self.spent += recalled.tokens
            self.told |= recalled.keys
        self._begin()
        return recalled if recalled is not None and recalled.entries else None

    def begin_anew(self) -> None:
        """The conversation lost what it was told: paths are looked up again once they are touched again."""
        if self._running is not None:
            self._running[0].cancel()
        self._running, self.spent = None, 0
        for kept in (self._seen, self._waiting, self.told):
            kept.clear()

    def _begin(self) -> None:
        left = self._budget - self.spent
        if self._running is not None or not self._waiting or left < 1:
            return
        paths, later = self._waiting[:PATHS_AT_ONCE], self._waiting[PATHS_AT_ONCE:]
        exclude = self.told.union(self._known())
        handle = begun(self._prefetch, lambda patience: self._static.about(paths, exclude, left, patience))
        if handle is not None:
            self._running, self._waiting = (handle, paths), later
