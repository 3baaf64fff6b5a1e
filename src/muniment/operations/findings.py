"""The findings of a dream in one scope: duplicate, similar, outdated and expired entries, and broken links.

Code finds them, without a model. Separate from `dream.py`, which commits: this module only reads.

D1 Entries are duplicates if their bodies are equal (`content.words`). A body of less than `MIN_CLEAR_WORDS`
   words is not clear without its name. For such entries the names must be equal too. An entry without a body
   is not a duplicate.
D2 Of several duplicates the one with the highest trust stays. If several have this trust, these are preferred
   in this order: one that this memory stored, so that its id and history stay; one that never ends; one that
   may not be removed; the oldest; the first by path. An entry that ends later than the one that stays is not
   removed.
D3 Similar entries are searched among the entries of one trust.
D4 Withheld entries, and entries that change during the scan, are counted and otherwise left unchanged.
D5 An entry that this memory wrote is outdated if a later entry is written as an update and contradicts it
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
from muniment.agent.updates import states_change, supersedes
from muniment.content.entry import Entry
from muniment.content.expiry import has_ended, is_expired
from muniment.content.markdown import find_relative_links
from muniment.content.words import build_comparison_key, extract_features, group_similar
from muniment.events import Progress, track_progress
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.job import Job
from muniment.operations.job_context import LoadedEntry, find_removal_obstacle, is_visible, load_entry
from muniment.store.handles import read_entry_id
from muniment.store.ledger import read_history
from muniment.store.upkeep import open_view
from muniment.types import RetainedEntry

MAX_QUERY_ENTRIES: Final = 8
"""Maximum number of entries in one query to a model."""

MIN_STEP_ENTRIES: Final = 2
"""Number of entries that the smallest step writes: it removes one, and gives the other one a new text."""

MAX_ENTRIES_PER_WORD: Final = 50
"""Maximum number of entries that share a word. A word of more entries does not show what they are about."""

MIN_CLEAR_WORDS: Final = 4
"""Number of words that a body needs to be clear without its name: "use port 5432" may apply to many things.
"""


class ChangeAllowance:
    """The number of entries of a scope that a dream may still change.

    Args:
        entries: the number of entries in the scope.
        share: the share of these entries that may change.

    Attributes:
        left: the number of changes that this limit has prevented.
    """

    def __init__(self, entries: int, share: float) -> None:
        # Use the decimal of the policy: 0.29 of 100 is 29, not 28.
        self._free = max(1, math.floor(Decimal(str(share)) * entries))
        self._is_unused = True
        self.left = 0

    def reserve(self, wanted: int) -> int:
        """Reserve up to `wanted` changes and return the number; the rest is added to `left`."""
        reserved = min(wanted, self._free)
        self._free -= reserved
        self._is_unused = self._is_unused and not reserved
        self.left += wanted - reserved
        return reserved

    def reserve_all(self, wanted: int) -> bool:
        """Reserve all of `wanted` changes or none, and return whether they were reserved.

        The first step always succeeds if it changes at most `MIN_STEP_ENTRIES` entries.
        """
        if wanted > (max(self._free, MIN_STEP_ENTRIES) if self._is_unused else self._free):
            self.left += wanted
            return False
        self._free, self._is_unused = max(0, self._free - wanted), False
        return True


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Duplicate entries, or outdated entries with the later entry that replaces them.

    Attributes:
        survivor: the entry that stays.
        removable: the entries that may be removed, because `survivor` replaces them.
    """

    survivor: LoadedEntry
    removable: tuple[LoadedEntry, ...]


class Findings:
    """The findings of a scan of every entry of a scope.

    Args:
        task: the job. Entries above its trust may not be removed; its deadline and cancellation end the scan.
        scope: a bound scope of the job's memory.
        now: the current time, in the format of the ledger.

    Attributes:
        entries: number of entries.
        unreadable: number of entries that cannot be read.
        broken_links: number of relative links without a target.
        expired: expired entries that may be removed, the oldest first.
        expired_count: number of all expired entries.
        ended_paths: paths, with the scope, of entries that have ended by their own text.
        duplicate_groups: the groups of duplicates and of outdated entries that have entries to remove.
        duplicate_count: number of entries that duplicate another one.
        similar_groups: groups of similar entries among those that stay.
        retained: entries that should be removed but may not be, each with the reason.
        allowance: the number of entries that may still change.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        DeadlineExceeded, Cancelled: as `Budget.check`.

    Cost: a read, a parse and a query for each entry, and 0.2 ms to compare it: half a second per thousand.
    """

    def __init__(self, task: Job, scope: Scope, now: str) -> None:
        context = task.context
        self._context, self._judge, self._request = context, PolicyEvaluator(context.policy), task.trust
        self._view = open_view(context.state, context.roots[scope], context.policy, sweep=True)
        self._names: dict[str, frozenset[str]] = {}
        self._bodies: dict[str, str] = {}
        rows = self._view.entries()
        self.scope, self.entries, self.unreadable, self.broken_links = scope, len(rows), 0, 0
        self.retained: list[RetainedEntry] = []
        facts: defaultdict[str, list[LoadedEntry]] = defaultdict(list)
        expired: list[LoadedEntry] = []
        self.ended_paths: list[str] = []
        with track_progress("reading entries", total=len(rows)) as progress:
            for row in rows:
                task.budget.check()
                progress.done += 1
                loaded = load_entry(context, scope, row) if row.readable else None
                if loaded is None:
                    self.unreadable += not row.readable
                    continue
                if (
                    row.held is not None
                    or not loaded.is_unchanged
                    or not is_visible(self._judge, loaded.path)
                ):
                    continue
                entry = loaded.entry
                self.broken_links += self._count_broken_links(entry, row.rel)
                self._bodies[loaded.path.text] = entry.body
                if is_expired(row.expires, now):
                    expired.append(loaded)
                    continue
                if has_ended(row.ends, datetime.fromisoformat(now)):
                    self.ended_paths.append(loaded.path.text)
                if (fact := _build_fact_key(entry)) is not None:
                    facts[fact].append(loaded)
        self.expired_count = len(expired)
        self.allowance = ChangeAllowance(
            self.entries - self.expired_count, context.policy.changes.max_scope_share
        )
        self.expired = sorted(
            filter(self._can_remove, expired), key=lambda each: (each.row.expires or "", each.path)
        )
        groups = [self._choose_survivor(group) for group in facts.values()]
        remaining = _exclude_removable(chain.from_iterable(facts.values()), groups)
        with track_progress("finding outdated entries") as progress:
            outdated = list(self._find_outdated(remaining, progress))
        self.duplicate_groups = [*(group for group in groups if group.removable), *outdated]
        self.duplicate_count = sum(len(group) - 1 for group in facts.values())
        with track_progress("finding similar entries"):
            self.similar_groups = list(self._find_similar(_exclude_removable(remaining, outdated)))
        # A query to a model may take minutes; do not retain the texts of a whole scope for so long.
        self._bodies = {}

    def _choose_survivor(self, group: Sequence[LoadedEntry]) -> DuplicateGroup:
        """Return a group of duplicates with the entry that stays (rule D2 in the module docstring)."""
        if len(group) == 1:
            return DuplicateGroup(group[0], ())
        trusts = tuple(Trust)
        protected = {each.path for each in group if self._find_obstacle(each) is not None}
        survivor, *others = sorted(
            group,
            key=lambda each: (
                trusts.index(each.trust),
                self._rank_origin(each),
                each.row.expires is not None,
                each.row.ends is not None,
                each.path not in protected,
                each.written_at,
                each.path,
            ),
        )
        return DuplicateGroup(
            survivor, tuple(each for each in others if not each.outlasts(survivor) and self._can_remove(each))
        )

    def _rank_origin(self, loaded: LoadedEntry) -> int:
        """Return a rank for the origin of an entry; among duplicates the lowest rank stays.

        0: this memory wrote the bytes. 1: it wrote the file, which was edited later. 2: the entry has an id.
        3: none of these is true.
        """
        if loaded.written_at:
            return 0
        names = {self._context.read_root_key(self.scope): self.scope}
        last = read_history(self._context.state, names, loaded.path, limit=1)
        if last and last[0].kind != "removed":
            return 1
        return 2 if read_entry_id(loaded.entry) else 3

    def _find_outdated(
        self, loaded_entries: Sequence[LoadedEntry], progress: Progress
    ) -> Iterator[DuplicateGroup]:
        """Yield groups of outdated entries, each with the later entry that replaces them (rule D5)."""
        candidates = [
            each
            for each in loaded_entries
            if each.written_at and each.row.expires is None and each.row.ends is None
        ]
        words_by_path = {each.path: extract_features(self._bodies[each.path.text]) for each in candidates}
        entries_by_word: defaultdict[str, list[LoadedEntry]] = defaultdict(list)
        for each in candidates:
            for word in words_by_path[each.path]:
                entries_by_word[word].append(each)
        removed_paths: set[CanonicalPath] = set()
        progress.total = len(candidates)
        for new in sorted(candidates, key=lambda each: (each.written_at, each.path), reverse=True):
            progress.done += 1
            body = self._bodies[new.path.text]
            if new.path in removed_paths or not states_change(body):
                continue
            lists = (
                entries_by_word[word]
                for word in words_by_path[new.path]
                if len(entries_by_word[word]) <= MAX_ENTRIES_PER_WORD
            )
            near = {each.path: each for each in chain.from_iterable(lists) if each.path not in removed_paths}
            outdated_entries = tuple(
                old
                for old in near.values()
                if old.written_at < new.written_at
                and old.row.type == new.row.type
                and new.trust.satisfies(old.highest_trust)
                and supersedes(body, self._bodies[old.path.text])
                and self._can_remove(old)
            )
            removed_paths.update(old.path for old in outdated_entries)
            if outdated_entries:
                yield DuplicateGroup(new, outdated_entries)

    def _find_similar(self, loaded_entries: Iterable[LoadedEntry]) -> Iterator[tuple[LoadedEntry, ...]]:
        """Yield groups of similar entries; the entries of a group have the same trust."""
        by_trust: defaultdict[Trust, dict[str, LoadedEntry]] = defaultdict(dict)
        for each in loaded_entries:
            by_trust[each.trust][each.path.text] = each
        for entries_by_path in by_trust.values():
            for group in group_similar({path: self._bodies[path] for path in entries_by_path}):
                yield tuple(entries_by_path[path] for path in group)

    def iterate_affected(self) -> Iterator[LoadedEntry]:
        """Yield the entries that a dream may remove or that stay for them, some of them repeatedly."""
        yield from self.expired
        for group in self.duplicate_groups:
            yield from (group.survivor, *group.removable)
        yield from chain.from_iterable(self.similar_groups)

    def iterate_queries(self) -> Iterator[tuple[LoadedEntry, ...]]:
        """Yield the groups of similar entries that a model may merge, each small enough for one query."""
        for group in self.similar_groups:
            eligible = [
                each
                for each in group
                if each.trust is not Trust.EXTERNAL
                and each.row.ends is None
                and len(each.entry.body) <= MAX_TEXT_CHARS
                and self._find_obstacle(each) is None
            ]
            for start in range(0, len(eligible), MAX_QUERY_ENTRIES):
                if len(part := eligible[start : start + MAX_QUERY_ENTRIES]) > 1:
                    yield tuple(part)

    def _find_obstacle(self, loaded: LoadedEntry) -> str | None:
        return find_removal_obstacle(self._judge, loaded.path, loaded.highest_trust, self._request)

    def _can_remove(self, loaded: LoadedEntry) -> bool:
        reason = self._find_obstacle(loaded)
        if reason is not None:
            self.retained.append(RetainedEntry(loaded.path.text, reason))
        return reason is None

    def _count_broken_links(self, entry: Entry, rel: RelPath) -> int:
        return sum(not self._exists(path) for path in find_relative_links(entry.body, rel))

    def _exists(self, path: RelPath) -> bool:
        directory, _, name = path.rpartition("/")
        if directory not in self._names:
            self._names[directory] = self._view.names(directory) or frozenset()
        return name in self._names[directory]


def _exclude_removable(
    loaded_entries: Iterable[LoadedEntry], groups: Iterable[DuplicateGroup]
) -> list[LoadedEntry]:
    removable_paths = {each.path for group in groups for each in group.removable}
    return [each for each in loaded_entries if each.path not in removable_paths]


def _build_fact_key(entry: Entry) -> str | None:
    """Return a text that is equal for the entries of one fact, or None if the entry has no body (rule D1)."""
    body_key = build_comparison_key(entry.body)
    if not body_key:
        return None
    if len(extract_features(body_key)) < MIN_CLEAR_WORDS:
        return f"{build_comparison_key(entry.name or '')}\n{body_key}"
    return body_key
