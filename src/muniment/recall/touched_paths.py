"""Look up entries about the files that a conversation touches, in the background.

- F1. No method waits, or raises because of a missing thread or descriptor.
- F2. A path is looked up once, and again only if some of the result was injected elsewhere in the meantime.
- F3. All injected entries together take at most the budget, until the conversation is compacted.

Separate from `conversation.py`, which reports touched paths: this module looks them up.

Attacked in tests/units/recall/test_touched.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from muniment.recall.context import StaticContext
from muniment.recall.prefetch import Handle, Prefetch, begin_or_log
from muniment.types import Recalled
from muniment.types.keys import EntryKey

MAX_PATHS: Final = 2_000
"""Paths of one conversation that are looked up; a tool that lists a disk reports more."""

PATHS_AT_ONCE: Final = 50
"""Paths of one lookup, one query each, so that the first results are soon available."""


class TouchedPaths:
    """The third tier of one conversation, one lookup at a time.

    Args:
        static: looks up the paths.
        prefetch: runs the lookups; the caller closes it.
        budget: tokens of all injected entries.
        known: returns the entries that the conversation received elsewhere.
        injected: the entries that this tier injected before.
        spent: the tokens of these.

    Attributes:
        injected: the entries that this tier injected.
        spent: the tokens of these.
    """

    def __init__(
        self,
        static: StaticContext,
        prefetch: Prefetch,
        budget: int,
        known: Callable[[], Collection[EntryKey]],
        injected: Collection[EntryKey] = (),
        spent: int = 0,
    ) -> None:
        self._static, self._prefetch, self._budget, self._known = static, prefetch, budget, known
        self._seen: set[str] = set()
        self._queued: list[str] = []
        self._running: tuple[Handle[Recalled], list[str]] | None = None
        self.injected, self.spent = set(injected), spent

    def add(self, unsafe_path: str) -> None:
        """Add a workspace file that a tool touches."""
        if unsafe_path not in self._seen and len(self._seen) < MAX_PATHS:
            self._seen.add(unsafe_path)
            self._queued.append(unsafe_path)
            self._start_lookup()

    def take_result(self) -> Recalled | None:
        """Return the entries to inject now; None: no entries, or not yet available."""
        if self._running is None:
            self._start_lookup()  # Retry a lookup that could not be started before.
            return None
        (handle, paths), recalled = self._running, None
        if handle.settled_at is None:
            return None
        self._running, recalled = None, handle.take_result()
        if recalled is not None and not recalled.keys.isdisjoint(self._known()):
            self._queued = paths + self._queued  # Some of it was injected in the meantime.
            recalled = None
        if recalled is not None:
            self.spent += recalled.tokens
            self.injected |= recalled.keys
        self._start_lookup()
        return recalled if recalled is not None and recalled.entries else None

    def reset(self) -> None:
        """Forget all paths and entries, because the conversation lost the injected text.

        Paths are looked up again when they are touched again.
        """
        if self._running is not None:
            self._running[0].cancel()
        self._running, self.spent = None, 0
        for collection in (self._seen, self._queued, self.injected):
            collection.clear()

    def _start_lookup(self) -> None:
        left = self._budget - self.spent
        if self._running is not None or not self._queued or left < 1:
            return
        paths, later = self._queued[:PATHS_AT_ONCE], self._queued[PATHS_AT_ONCE:]
        exclude = self.injected.union(self._known())
        handle = begin_or_log(
            self._prefetch, lambda patience: self._static.find_for_paths(paths, exclude, left, patience)
        )
        if handle is not None:
            self._running, self._queued = (handle, paths), later
