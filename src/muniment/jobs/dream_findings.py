"""What a dream finds in a scope by code alone: what says the same, what is alike, over or broken.

D1 Entries say the same if their bodies do (`content.likeness`). A body of less than `TELLING_WORDS` words
   says nothing without its name, so there the names must be the same too. Without a body nothing is the same.
D2 Of those that say the same stays the one with the highest trust; of equals one that never ends, then one
   that may not be removed, then one that this memory did not write, then the oldest, then the first by path.
   None goes that ends later than it.
D3 Entries are alike, or not, among those of one trust.
D4 What is held back from models is counted as an entry and otherwise left alone, and so is what changes while
   it is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from muniment.agent.model import Budget
from muniment.content.entry import Entry
from muniment.content.markdown import relative_links
from muniment.content.words import alike, comparable, features
from muniment.jobs.forget_request import Spared
from muniment.jobs.holding import Holding, may_see, read_holding, reason_to_keep
from muniment.jobs.place import Place
from muniment.names import RelPath, Scope, Trust
from muniment.policy.decide import Judge
from muniment.store.catalog import View
from muniment.store.upkeep import view_of

TELLING_WORDS: Final = 4
"""Words from which on a body tells what it is about: "use port 5432" may be true of many things."""


@dataclass(frozen=True, slots=True)
class Same:
    """Entries that say the same.

    Attributes:
        stays: the one that stands for all.
        going: those that may be removed for it.
    """

    stays: Holding
    going: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in a scope.

    Attributes:
        entries: how many there are.
        unreadable: how many of them cannot be read.
        broken_links: how many relative links lead to nothing.
        expired: what may be removed because its time is over, the oldest first.
        past: how many there are whose time is over.
        same: the groups of which something may be removed.
        repeated: how many entries say what another one says.
        alike: groups of what will be left.
        kept: what would go, but may not.
    """

    scope: Scope
    entries: int
    unreadable: int
    broken_links: int
    expired: tuple[Holding, ...]
    past: int
    same: tuple[Same, ...]
    repeated: int
    alike: tuple[tuple[Holding, ...], ...]
    kept: tuple[Spared, ...]


def look(place: Place, scope: Scope, request: Trust, now: str, budget: Budget) -> Findings:
    """Look at every entry of a scope.

    Args:
        place: where.
        scope: which is bound there.
        request: trust of the one who asks; nothing above it may be removed.
        now: the time, as the ledger writes it.
        budget: whose deadline and cancellation end it.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        DeadlineExceeded, Cancelled: as `Budget.check`.

    Cost: a read, a parse and a query each entry, and 0.2 ms to compare it: half a second a thousand.
    """
    view = view_of(place.state, place.roots[scope], place.policy, sweep=True)
    return _Look(place, scope, request, view, budget).findings(now)


class _Look:
    """One look under way."""

    def __init__(self, place: Place, scope: Scope, request: Trust, view: View, budget: Budget) -> None:
        self._place, self._scope, self._request = place, scope, request
        self._view, self._budget = view, budget
        self._judge = Judge(place.policy)
        self._names: dict[str, frozenset[str]] = {}
        self._bodies: dict[str, str] = {}
        self._kept: list[Spared] = []

    def findings(self, now: str) -> Findings:
        rows = self._view.entries()
        facts: defaultdict[str, list[Holding]] = defaultdict(list)
        past: list[Holding] = []
        unreadable = broken = 0
        for row in rows:
            self._budget.check()
            holding = read_holding(self._place, self._scope, row) if row.readable else None
            if holding is None:
                unreadable += not row.readable
                continue
            if row.held is not None or not holding.is_as_listed or not may_see(self._judge, holding.path):
                continue
            entry = holding.entry
            broken += self._broken_links(entry, row.rel)
            self._bodies[holding.path.text] = entry.body
            if row.expires is not None and row.expires <= now:
                past.append(holding)
            elif (fact := _fact(entry)) is not None:
                facts[fact].append(holding)
        expired = sorted(filter(self._may_go, past), key=lambda each: (each.row.expires or "", each.path))
        groups = [self._same(group) for group in facts.values()]
        going = {each.path for group in groups for each in group.going}
        others = [each for group in facts.values() for each in group if each.path not in going]
        return Findings(
            self._scope,
            len(rows),
            unreadable,
            broken,
            tuple(expired),
            len(past),
            tuple(group for group in groups if group.going),
            sum(len(group) - 1 for group in facts.values()),
            tuple(self._alike(others)),
            tuple(self._kept),
        )

    def _same(self, group: Sequence[Holding]) -> Same:
        """Which of those that say the same stays (D2)."""
        if len(group) == 1:
            return Same(group[0], ())
        trusts = tuple(Trust)
        protected = {each.path for each in group if self._reason(each) is not None}
        stays, *others = sorted(
            group,
            key=lambda each: (
                trusts.index(each.trust),
                each.row.expires is not None,
                each.path not in protected,
                each.at,
                each.path,
            ),
        )
        return Same(stays, tuple(each for each in others if not each.outlasts(stays) and self._may_go(each)))

    def _alike(self, holdings: Iterable[Holding]) -> Iterator[tuple[Holding, ...]]:
        """Groups of entries that are alike (D3)."""
        by_trust: defaultdict[Trust, dict[str, Holding]] = defaultdict(dict)
        for each in holdings:
            by_trust[each.trust][each.path.text] = each
        for ours in by_trust.values():
            for group in alike({path: self._bodies[path] for path in ours}):
                yield tuple(ours[path] for path in group)

    def _reason(self, holding: Holding) -> str | None:
        return reason_to_keep(self._judge, holding.path, holding.trust, self._request)

    def _may_go(self, holding: Holding) -> bool:
        reason = self._reason(holding)
        if reason is not None:
            self._kept.append(Spared(holding.path.text, reason))
        return reason is None

    def _broken_links(self, entry: Entry, rel: RelPath) -> int:
        return sum(not self._exists(path) for path in relative_links(entry.body, rel))

    def _exists(self, path: RelPath) -> bool:
        directory, _, name = path.rpartition("/")
        if directory not in self._names:
            self._names[directory] = self._view.names(directory) or frozenset()
        return name in self._names[directory]


def _fact(entry: Entry) -> str | None:
    """What an entry says, the same for those that say the same (D1); None: nothing."""
    said = comparable(entry.body)
    if not said:
        return None
    if len(features(said)) < TELLING_WORDS:
        return f"{comparable(entry.name or '')}\n{said}"
    return said
