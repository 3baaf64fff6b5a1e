"""The entries of some roots, as they may be shown now: looked up in the catalog, read from their files.

Attacked in tests/units/recall/test_recaller.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muniment import events
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.recall.reading import ReadEntry, read
from muniment.recall.search import Hit
from muniment.store.catalog import View
from muniment.store.state import State
from muniment.store.watching import looks_of
from muniment.types.keys import RootKey

MAX_EXTERNAL: Final = 2
"""Entries of trust `external` among those of one answer: whoever can have something filed cannot fill it."""


@dataclass(slots=True)
class Picked:
    """Entries that were read.

    Attributes:
        readings: those that may be shown, in their order.
        changed: those that are not as their rows say.
        withheld: how many may not be shown (V3); an event tells of each.
    """

    readings: list[ReadEntry] = field(default_factory=list)
    changed: list[Hit] = field(default_factory=list)
    withheld: int = 0


class Shelf:
    """Some roots with their rows, brought up to date as far as there was time; see `store.catalog`.

    Args:
        policy: says what may be seen.
        roots: the bound roots by scope; they and the state stay the caller's.
        state: knows their history.
        judge: of the policy.
        listed: the policy under which the rows of the roots are kept.
        scopes: which of the roots; None: all, none: none. Unknown ones hold nothing.
        patience: until when to look.

    Raises:
        PathEscape: a root is not where it was bound.
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: the patience ended.

    Cost: that of `store.watching.Looks.view`.
    """

    def __init__(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State,
        judge: Judge,
        listed: Policy,
        scopes: Collection[str] | None,
        patience: Patience,
    ) -> None:
        self._policy, self._state, self._judge, self._patience = policy, state, judge, patience
        self._opened: dict[RootKey, tuple[BoundRoot, View]] = {}
        for scope, bound in roots.items():
            if scopes is None or scope in scopes:
                bound.verify()
                view = looks_of(state).view(bound, listed, patience)
                self._opened[RootKey(view.key)] = bound, view

    @property
    def keys(self) -> tuple[RootKey, ...]:
        """The keys of the roots."""
        return tuple(self._opened)

    def accepts(self, root: RootKey, rel: RelPath) -> bool:
        """Whether the policy lets anybody see the entry at a path of a root."""
        path = CanonicalPath(self._opened[root][0].scope, rel)
        return self._judge.allows(Verb.LIST, path) and self._judge.allows(Verb.READ, path)

    def path(self, hit: Hit) -> str:
        """The logical path of a hit."""
        return f"{self.scope(hit)}/{hit.key.rel}"

    def scope(self, hit: Hit) -> Scope:
        """The scope of a hit."""
        return self._opened[hit.key.root][0].scope

    def look_again(self, hits: Iterable[Hit]) -> None:
        """Bring the rows of some hits up to date, whose files were edited in place or went.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
            Cancelled, DeadlineExceeded: the patience ended.
        """
        directories: defaultdict[RootKey, set[str]] = defaultdict(set)
        for hit in hits:
            directories[hit.key.root].add(hit.key.rel.rpartition("/")[0])
        for root, some in directories.items():
            self._opened[root][1].look_again(some)

    def have_changed(self, hits: Sequence[Hit]) -> bool:
        """Whether a file of some hits is not as its row says, by size and times; its row is then made anew.

        Files whose times prove nothing are passed over: they are read before they are shown.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
            Cancelled, DeadlineExceeded: the patience ended.

        Cost: a `newfstatat` each, and an open a directory.
        """
        found = False
        for root, (_, view) in self._opened.items():
            files = [(hit.key.rel, hit.stamp) for hit in hits if hit.key.root == root and hit.stamp[3]]
            if changed := view.edited_of(files, self._patience):
                view.look_again(changed)
                found = True
        return found

    def read(
        self, hits: Sequence[Hit], enough: int, has_ended: Callable[[ReadEntry], bool] = lambda _: False
    ) -> Picked:
        """Read entries, the first ones first, until `enough` may be shown, `MAX_EXTERNAL` of strangers.

        Of those that have ended `MAX_ENDED` come at once; more only if too few others are found.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be read.
            Cancelled, DeadlineExceeded: the patience ended.

        Cost: that of `reading.read` for each.
        """
        picked = Picked()
        external = ended = 0
        spare: list[ReadEntry] = []
        for hit in hits:
            if len(picked.readings) >= enough:
                return picked
            self._patience.check()
            found = read(hit, self._state, self._opened[hit.key.root][0], self._policy)
            if found is None:
                picked.changed.append(hit)
            elif isinstance(found, str):
                picked.withheld += 1
                events.emit("recall_withheld", path=self.path(hit), gate=found)
            elif found.trust is not Trust.EXTERNAL or external < MAX_EXTERNAL:
                external += found.trust is Trust.EXTERNAL
                is_over = has_ended(found)
                (spare if is_over and ended >= MAX_ENDED else picked.readings).append(found)
                ended += is_over
        picked.readings += spare[: enough - len(picked.readings)]
        return picked

    def read_found(self, find: Callable[[], Sequence[Hit]], enough: int) -> Picked:
        """As `read`, what is found; once more by what is found then, where files are not what rows say."""
        picked = self.read(find(), enough)
        if picked.changed:
            self.look_again(picked.changed)
            picked = self.read(find(), enough)
        return picked


MAX_ENDED: Final = 2
"""Entries of an answer that have ended, if there are others for the rest of it."""
