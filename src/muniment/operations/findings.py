"""The findings of a dream in a scope, by code only: duplicate, similar, outdated, expired and broken entries.

Separate from `dream.py`, which commits: this module only reads.

D1 Entries are duplicates if their bodies are equal (`content.likeness`). A body of less than `TELLING_WORDS`
   words is too short to be clear without its name, so there the names must be equal too. An entry without a
   body is not a duplicate.
D2 Of duplicates the one with the highest trust stays. Among equals: one that this memory stored, so that its
   id and history stay; then one that never ends, then one that may not be removed, then the oldest, then the
   first by path. An entry that ends later than the one that stays is not removed.
D3 Similar entries are searched among the entries of one trust.
D4 Withheld entries are counted and otherwise left unchanged, and so are entries that change during the scan.
D5 An entry that this memory wrote is outdated if a later entry states in its form that it no longer applies
   (`agent/updates.py`). The later entry must have the same type and at least the same trust.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Final

from muniment.agent.questions import MAX_TEXT_CHARS
from muniment.agent.updates import says_change, supersedes
from muniment.content.entry import Entry
from muniment.content.expiry import has_ended, is_expired
from muniment.content.markdown import relative_links
from muniment.content.words import alike, comparable, features
from muniment.kernel.decide import Judge
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.job import Job
from muniment.operations.place import Holding, may_see, read_holding, reason_to_keep
from muniment.store.ledger import history
from muniment.store.trust import entry_id
from muniment.store.upkeep import view_of
from muniment.types import KeptEntry

GROUP: Final = 8
"""Entries in one query to a model."""

LEAST: Final = 2
"""Entries of the smallest step that writes: one is removed, and the one that replaces it gets a new text."""

MAX_SHARING: Final = 50
"""Entries that share a word; a word of more entries does not show what they are about."""

TELLING_WORDS: Final = 4
"""Words that a body needs to show what it is about: "use port 5432" may apply to many things."""


class Room:
    """The number of entries of a scope that a dream may still change.

    Attributes:
        left: the number of entries that it would have changed without this limit.
    """

    def __init__(self, entries: int, share: float) -> None:
        # Use the decimal of the policy: 0.29 of 100 is 29, not 28.
        self._free = max(1, math.floor(Decimal(str(share)) * entries))
        self._is_whole = True
        self.left = 0

    def take(self, wanted: int) -> int:
        """Reserve up to `wanted` changes and return the number; the rest counts as left."""
        taken = min(wanted, self._free)
        self._free -= taken
        self._is_whole = self._is_whole and not taken
        self.left += wanted - taken
        return taken

    def take_whole(self, wanted: int) -> bool:
        """Reserve all of `wanted` or nothing, and return whether it worked; the first `LEAST` always work."""
        if wanted > (max(self._free, LEAST) if self._is_whole else self._free):
            self.left += wanted
            return False
        self._free, self._is_whole = max(0, self._free - wanted), False
        return True


@dataclass(frozen=True, slots=True)
class Same:
    """Duplicate entries, or outdated entries with the one that replaces them.

    Attributes:
        stays: the entry that represents all.
        going: the entries that may be removed for it.
    """

    stays: Holding
    going: tuple[Holding, ...]


class Findings:
    """The findings of a scan of every entry of a scope.

    Args:
        task: the job; entries above its trust may not be removed, and its deadline and cancellation end the
            scan.
        scope: a scope that is bound in its context.
        now: the time, as the ledger writes it.

    Attributes:
        entries: number of entries.
        unreadable: number of entries that cannot be read.
        broken_links: number of relative links without a target.
        expired: expired entries that may be removed, the oldest first.
        past: number of expired entries.
        ended: logical paths of entries that have ended by their own text.
        same: the groups with entries to remove.
        repeated: number of entries that duplicate another one.
        alike: groups of similar entries among those that will be left.
        kept: entries that would be removed, but may not.
        room: the number of entries that may still change.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        DeadlineExceeded, Cancelled: as `Budget.check`.

    Cost: a read, a parse and a query for each entry, and 0.2 ms to compare it: half a second per thousand.
    """

    def __init__(self, task: Job, scope: Scope, now: str) -> None:
        place = task.place
        self._place, self._judge, self._request = place, Judge(place.policy), task.trust
        self._view = view_of(place.state, place.roots[scope], place.policy, sweep=True)
        self._names: dict[str, frozenset[str]] = {}
        self._bodies: dict[str, str] = {}
        rows = self._view.entries()
        self.scope, self.entries, self.unreadable, self.broken_links = scope, len(rows), 0, 0
        self.kept: list[KeptEntry] = []
        facts: defaultdict[str, list[Holding]] = defaultdict(list)
        past: list[Holding] = []
        self.ended: list[str] = []
        for row in rows:
            task.budget.check()
            holding = read_holding(place, scope, row) if row.readable else None
            if holding is None:
                self.unreadable += not row.readable
                continue
            if row.held is not None or not holding.is_as_listed or not may_see(self._judge, holding.path):
                continue
            entry = holding.entry
            self.broken_links += self._broken_links(entry, row.rel)
            self._bodies[holding.path.text] = entry.body
            if is_expired(row.expires, now):
                past.append(holding)
                continue
            if has_ended(row.ends, datetime.fromisoformat(now)):
                self.ended.append(holding.path.text)
            if (fact := _fact(entry)) is not None:
                facts[fact].append(holding)
        self.past = len(past)
        self.room = Room(self.entries - self.past, place.policy.changes.max_scope_share)
        self.expired = sorted(
            filter(self._may_go, past), key=lambda each: (each.row.expires or "", each.path)
        )
        groups = [self._same(group) for group in facts.values()]
        standing = _without_going(chain.from_iterable(facts.values()), groups)
        outdated = list(self._outdated(standing))
        self.same = [*(group for group in groups if group.going), *outdated]
        self.repeated = sum(len(group) - 1 for group in facts.values())
        self.alike = list(self._alike(_without_going(standing, outdated)))
        # A query to a model may take minutes; do not retain the texts of a whole scope for so long.
        self._bodies = {}

    def _same(self, group: Sequence[Holding]) -> Same:
        """Choose which one of some duplicates stays (D2)."""
        if len(group) == 1:
            return Same(group[0], ())
        trusts = tuple(Trust)
        protected = {each.path for each in group if self._reason(each) is not None}
        stays, *others = sorted(
            group,
            key=lambda each: (
                trusts.index(each.trust),
                self._filing_rank(each),
                each.row.expires is not None,
                each.row.ends is not None,
                each.path not in protected,
                each.at,
                each.path,
            ),
        )
        return Same(stays, tuple(each for each in others if not each.outlasts(stays) and self._may_go(each)))

    def _filing_rank(self, holding: Holding) -> int:
        """Return 0 for bytes of this memory, 1 for its file after an edit, 2 if it has an id, else 3."""
        if holding.at:
            return 0
        names = {self._place.key(self.scope): self.scope}
        last = history(self._place.state, names, holding.path, limit=1)
        if last and last[0].kind != "removed":
            return 1
        return 2 if entry_id(holding.entry) else 3

    def _outdated(self, holdings: Sequence[Holding]) -> Iterator[Same]:
        """Return the entries that later entries replace (D5)."""
        ours = [each for each in holdings if each.at and each.row.expires is None and each.row.ends is None]
        words = {each.path: features(self._bodies[each.path.text]) for each in ours}
        sharing: defaultdict[str, list[Holding]] = defaultdict(list)
        for each in ours:
            for word in words[each.path]:
                sharing[word].append(each)
        gone: set[CanonicalPath] = set()
        for new in sorted(ours, key=lambda each: (each.at, each.path), reverse=True):
            body = self._bodies[new.path.text]
            if new.path in gone or not says_change(body):
                continue
            lists = (sharing[word] for word in words[new.path] if len(sharing[word]) <= MAX_SHARING)
            near = {each.path: each for each in chain.from_iterable(lists) if each.path not in gone}
            going = tuple(
                old
                for old in near.values()
                if old.at < new.at
                and old.row.type == new.row.type
                and new.trust.satisfies(old.most)
                and supersedes(body, self._bodies[old.path.text])
                and self._may_go(old)
            )
            gone.update(old.path for old in going)
            if going:
                yield Same(new, going)

    def _alike(self, holdings: Iterable[Holding]) -> Iterator[tuple[Holding, ...]]:
        """Return groups of similar entries (D3)."""
        by_trust: defaultdict[Trust, dict[str, Holding]] = defaultdict(dict)
        for each in holdings:
            by_trust[each.trust][each.path.text] = each
        for ours in by_trust.values():
            for group in alike({path: self._bodies[path] for path in ours}):
                yield tuple(ours[path] for path in group)

    def questions(self) -> Iterator[tuple[Holding, ...]]:
        """Return the groups of entries for queries to a model (S3)."""
        for group in self.alike:
            asked = [
                each
                for each in group
                if each.trust is not Trust.EXTERNAL
                and each.row.ends is None
                and len(each.entry.body) <= MAX_TEXT_CHARS
                and self._reason(each) is None
            ]
            for start in range(0, len(asked), GROUP):
                if len(part := asked[start : start + GROUP]) > 1:
                    yield tuple(part)

    def _reason(self, holding: Holding) -> str | None:
        return reason_to_keep(self._judge, holding.path, holding.most, self._request)

    def _may_go(self, holding: Holding) -> bool:
        reason = self._reason(holding)
        if reason is not None:
            self.kept.append(KeptEntry(holding.path.text, reason))
        return reason is None

    def _broken_links(self, entry: Entry, rel: RelPath) -> int:
        return sum(not self._exists(path) for path in relative_links(entry.body, rel))

    def _exists(self, path: RelPath) -> bool:
        directory, _, name = path.rpartition("/")
        if directory not in self._names:
            self._names[directory] = self._view.names(directory) or frozenset()
        return name in self._names[directory]


def _without_going(holdings: Iterable[Holding], groups: Iterable[Same]) -> list[Holding]:
    going = {each.path for group in groups for each in group.going}
    return [each for each in holdings if each.path not in going]


def _fact(entry: Entry) -> str | None:
    """Return the fact of an entry in a form that is equal for duplicates (D1), or None if it has no body."""
    said = comparable(entry.body)
    if not said:
        return None
    if len(features(said)) < TELLING_WORDS:
        return f"{comparable(entry.name or '')}\n{said}"
    return said
