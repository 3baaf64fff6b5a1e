"""Look up entries about the files that a conversation touches, in the background.

- F1. No method waits. No method raises because the system has no thread or descriptor left.
- F2. A path is looked up once. It is looked up again only if a part of the result was injected in another way
  in the meantime.
- F3. All injected entries together use at most the budget, until the conversation is compacted.

Separate from `conversation.py`, which reports the touched paths to this module.

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
"""Maximum number of paths that are looked up for one conversation; a tool that lists a disk reports more."""

PATHS_AT_ONCE: Final = 50
"""Maximum number of paths in one lookup, each a separate query, so that first results are available soon."""


class TouchedPaths:
    """The entries about files that one conversation touches, with one lookup at a time.

    Args:
        static: looks up the paths.
        prefetch: runs the lookups; the caller closes it.
        budget: maximum tokens of all injected entries together.
        known: returns the entries that the conversation received in other ways.
        injected: the entries about files that were injected in an earlier run of the conversation.
        spent: the tokens of `injected`.

    Attributes:
        injected: the entries about files that were injected into the conversation.
        spent: the tokens of `injected`.
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
        """Report that a tool touches a file; look up entries about it if the path is new.

        Args:
            unsafe_path: the path of a file in the workspace.
        """
        if unsafe_path not in self._seen and len(self._seen) < MAX_PATHS:
            self._seen.add(unsafe_path)
            self._queued.append(unsafe_path)
            self._start_lookup()

    def take_result(self) -> Recalled | None:
        """Return found entries to inject now; None: no entries, or the lookup still runs."""
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
        """Forget all paths and injected entries; a path is looked up again when a tool touches it again.

        Call this when the conversation no longer contains the injected text.
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
            self._prefetch, lambda deadline: self._static.find_for_paths(paths, exclude, left, deadline)
        )
        if handle is not None:
            self._running, self._queued = (handle, paths), later
