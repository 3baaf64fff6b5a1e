"""The entries of some roots, as they may be shown now: looked up in the catalog, read from their files.

Attacked in tests/recall/test_shelf.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muniment import events
from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.names import RelPath, Scope, Trust, Verb
from muniment.policy.decide import Judge, Policy
from muniment.policy.grammar import CanonicalPath
from muniment.recall.reading import Changed, Reading, Withheld, read
from muniment.recall.search import Hit
from muniment.store.catalog import View
from muniment.store.ledger import RootKey
from muniment.store.state import State
from muniment.store.upkeep import view_in_time

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

    readings: list[Reading] = field(default_factory=list)
    changed: list[Hit] = field(default_factory=list)
    withheld: int = 0


class Shelf:
    """Some roots with their rows, brought up to date as far as there was time; see `catalog.py` for the rest.

    Args:
        policy: says what may be seen.
        roots: the bound roots by scope; they and the state stay the caller's.
        state: knows their history.
        judge: of the policy.
        scopes: which of the roots; None: all, none: none. Unknown ones hold nothing.
        patience: until when to look.

    Raises:
        PathEscape: a root is not where it was bound.
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: the patience ended.

    Cost: a `newfstatat` a directory where nothing changed; reading what did.
    """

    def __init__(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State,
        judge: Judge,
        scopes: Collection[str] | None,
        patience: Patience,
    ) -> None:
        self._policy, self._state, self._judge, self._patience = policy, state, judge, patience
        self._opened: dict[RootKey, tuple[BoundRoot, View]] = {}
        for scope, bound in roots.items():
            if scopes is None or scope in scopes:
                bound.verify()
                view = view_in_time(state, bound, policy, patience)
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
        return f"{self._opened[hit.key.root][0].scope}/{hit.key.rel}"

    def look_again(self, hits: Iterable[Hit]) -> None:
        """Bring the rows of some hits up to date, whose files were edited in place or went.

        Raises:
            ManagedMemoryUnavailable: the catalog cannot be written.
            Cancelled, DeadlineExceeded: the patience ended.
        """
        for hit in hits:
            self._opened[hit.key.root][1].look_again({hit.key.rel.rpartition("/")[0]})

    def read(self, hits: Sequence[Hit], enough: int) -> Picked:
        """Read entries, the first ones first, until `enough` may be shown, `MAX_EXTERNAL` of strangers.

        Raises:
            ManagedMemoryUnavailable: the ledger cannot be read.
            Cancelled, DeadlineExceeded: the patience ended.

        Cost: that of `reading.read` for each.
        """
        picked = Picked()
        external = 0
        for hit in hits:
            if len(picked.readings) >= enough:
                break
            self._patience.check()
            outcome = read(hit, self._state, self._opened[hit.key.root][0], self._policy)
            if isinstance(outcome, Changed):
                picked.changed.append(hit)
            elif isinstance(outcome, Withheld):
                picked.withheld += 1
                events.emit("recall_withheld", path=self.path(hit), gate=outcome.gate)
            elif outcome.trust is not Trust.EXTERNAL or external < MAX_EXTERNAL:
                external += outcome.trust is Trust.EXTERNAL
                picked.readings.append(outcome)
        return picked
