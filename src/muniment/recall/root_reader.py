"""Find the entries of some roots in the catalog, and read them from their files.

Attacked in tests/units/recall/test_recaller.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muniment import events
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.recall.reading import ReadEntry, read_entry
from muniment.recall.search import Hit
from muniment.store.catalog import View
from muniment.store.state import State
from muniment.store.watching import get_watcher
from muniment.types.keys import RootKey

MAX_EXTERNAL: Final = 2
"""Maximum entries of trust `external` in one result, so that an outsider who adds entries cannot fill it."""


@dataclass(slots=True)
class PickedEntries:
    """The result of reading some hits.

    Attributes:
        readings: the entries that may be displayed, in order.
        changed: the hits whose file differs from the row in the catalog.
        withheld: the number of entries that must not be shown to models; each is logged as an event.
    """

    readings: list[ReadEntry] = field(default_factory=list)
    changed: list[Hit] = field(default_factory=list)
    withheld: int = 0


class RootReader:
    """Some roots with their rows in the catalog, which are updated first; see `store.catalog`.

    Args:
        policy: decides which entries are visible.
        roots: the bound roots by scope; the caller closes them and the state.
        state: the ledger and the catalog.
        judge: evaluates the policy.
        listed: the policy by which the rows of the roots are stored.
        scopes: the scopes to use; None: all. An unknown scope has no entries.
        deadline: the time limit.

    Raises:
        PathEscape: a root was moved since it was bound.
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: the call was cancelled or ran out of time.

    Cost: as `store.watching.CatalogWatcher.open_view`.
    """

    def __init__(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State,
        judge: PolicyEvaluator,
        listed: Policy,
        scopes: Collection[str] | None,
        deadline: Deadline,
    ) -> None:
        self._policy, self._state, self._judge, self._deadline = policy, state, judge, deadline
        self._opened: dict[RootKey, tuple[BoundRoot, View]] = {}
        for scope, bound in roots.items():
            if scopes is None or scope in scopes:
                bound.verify()
                view = get_watcher(state).open_view(bound, listed, deadline)
                self._opened[RootKey(view.key)] = bound, view

    @property
    def keys(self) -> tuple[RootKey, ...]:
        """Return the identifiers of the opened roots."""
        return tuple(self._opened)

    def can_display(self, root: RootKey, rel: RelPath) -> bool:
        """Return whether the policy allows a model to list and read the entry at a path of a root."""
        path = CanonicalPath(self._opened[root][0].scope, rel)
        return self._judge.allows(Verb.LIST, path) and self._judge.allows(Verb.READ, path)

    def build_path(self, hit: Hit) -> str:
        """Return the path of a hit in the memory, such as `user/editor.md`."""
        return f"{self.get_scope(hit.key.root)}/{hit.key.rel}"

    def get_scope(self, root: RootKey) -> Scope:
        """Return the scope of an opened root."""
        return self._opened[root][0].scope

    def refresh_rows(self, hits: Iterable[Hit]) -> None:
        """Update the rows of all entries in the directories of some hits, whose files were changed.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
            Cancelled, DeadlineExceeded: the call was cancelled or ran out of time.
        """
        directories: defaultdict[RootKey, set[str]] = defaultdict(set)
        for hit in hits:
            directories[hit.key.root].add(hit.key.rel.rpartition("/")[0])
        for root, some in directories.items():
            self._opened[root][1].rescan(some)

    def refresh_changed(self, hits: Sequence[Hit]) -> bool:
        """Update the rows of hits whose files have changed, and return whether there were any.

        A file has changed if its size or a time differs from the row. Files whose times prove nothing are
        skipped: they are read before they are displayed.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
            Cancelled, DeadlineExceeded: the call was cancelled or ran out of time.

        Cost: one `newfstatat` per file, and one open per directory.
        """
        found = False
        for root, (_, view) in self._opened.items():
            files = [(hit.key.rel, hit.stamp) for hit in hits if hit.key.root == root and hit.stamp[3]]
            if changed := view.find_edited_among(files, self._deadline):
                view.rescan(changed)
                found = True
        return found

    def read_entries(
        self, hits: Sequence[Hit], enough: int, has_ended: Callable[[ReadEntry], bool] = lambda _: False
    ) -> PickedEntries:
        """Read the entries of hits in order, until `enough` entries may be displayed.

        The result has at most `MAX_EXTERNAL` external entries. It has at most `MAX_ENDED` entries that have
        ended, and more only if there are too few other entries.

        Args:
            hits: the best first.
            enough: the number of entries to read.
            has_ended: returns whether an entry no longer applies, according to its text.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be read.
            Cancelled, DeadlineExceeded: the call was cancelled or ran out of time.

        Cost: as `reading.read_entry` for each entry.
        """
        picked = PickedEntries()
        external = ended = 0
        spare: list[ReadEntry] = []
        for hit in hits:
            if len(picked.readings) >= enough:
                return picked
            self._deadline.check()
            found = read_entry(hit, self._state, self._opened[hit.key.root][0], self._policy)
            if found is None:
                picked.changed.append(hit)
            elif isinstance(found, str):
                picked.withheld += 1
                events.emit("recall_withheld", path=self.build_path(hit), gate=found)
            elif found.trust is not Trust.EXTERNAL or external < MAX_EXTERNAL:
                external += found.trust is Trust.EXTERNAL
                is_over = has_ended(found)
                (spare if is_over and ended >= MAX_ENDED else picked.readings).append(found)
                ended += is_over
        picked.readings += spare[: enough - len(picked.readings)]
        return picked

    def find_and_read(self, find: Callable[[], Sequence[Hit]], enough: int) -> PickedEntries:
        """Read the hits that `find` returns; if files differ from their rows, update the rows and retry once.

        Args:
            find: searches the rows.
            enough: the number of entries to read.
        """
        picked = self.read_entries(find(), enough)
        if picked.changed:
            self.refresh_rows(picked.changed)
            picked = self.read_entries(find(), enough)
        return picked


MAX_ENDED: Final = 2
"""Maximum entries in a result that no longer apply according to their text, if there are enough other
entries.
"""
