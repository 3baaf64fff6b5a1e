"""Commits a change-set: locked, judged, written and indexed as one.

1. Every path, claims included, is canonicalised, and the budgets are checked: an escape ends here, before any
   lock.
2. The roots that are touched are locked, in order of device and inode, and are still where they were.
3. New files of a run that was shown nothing get free names (`naming.py`), if the caller asks for it. The
   broker reads the before-state itself; claims are checked (`judge.py`).
4. The final bytes are made: provenance and front matter, if the caller stamps.
5. The final bytes are judged (`judge.py`).
6. Deadline and cancel are checked for the last time.
7. Files and indexes are written, all or none (`apply.py`, `indexing.py`).

Promise: nothing but what the judge allowed, all of it or none, each file whole at every instant; a
reader without the lock may see a commit half applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.confine.writing import lock_roots
from muniment.errors import StoreConflict
from muniment.names import INDEX_NAME, Scope
from muniment.policy.grammar import CanonicalPath, canonicalise
from muniment.policy.model import Policy
from muniment.store.apply import Expected, Write, apply
from muniment.store.change import Change, Draft, classify_touched_scopes
from muniment.store.indexing import plan_index
from muniment.store.judge import check_budgets, check_claims, check_paths, draft, judge
from muniment.store.naming import settle_names
from muniment.store.scan import Scan, scan
from muniment.tools.changeset import ChangeSet

Stamp = Callable[[bytes, bytes | None, CanonicalPath], bytes]
"""Final bytes from (proposed bytes, bytes before or None, path)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a commit is bound to.

    Attributes:
        patience: how long to wait for locks, and whether to begin writing at all.
        stamp: makes the final bytes; None keeps the proposed ones.
        settle_names: give a new file whose name is taken another one, instead of a conflict; for
            runs that were not allowed to know what is there.
        dry_run: do everything but step 7.
    """

    policy: Policy
    roots: Mapping[Scope, BoundRoot]
    patience: Patience
    stamp: Stamp | None = None
    settle_names: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """What was committed, without indexes, and what a person should know of it."""

    changes: tuple[Change, ...] = ()
    touched_scopes: tuple[Scope, ...] = ()
    notes: tuple[str, ...] = ()


def commit(change_set: ChangeSet, terms: Terms) -> Commit:
    """Carry out the steps of the module's docstring; an empty change-set does nothing at all.

    Raises:
        PathEscape: something in the change-set lies outside its root.
        Refusal, ToolError: the judge does not allow a change.
        StoreConflict: a claim does not hold.
        ManagedMemoryUnavailable: a root cannot be locked or written.
        DeadlineExceeded, Cancelled: before step 7.

    Cost: one walk of each touched scope, reading the head of each entry; an fsync a file and directory.
    """
    if not change_set.changes:
        return Commit()
    check_paths(change_set, terms.roots)
    check_budgets(change_set, terms.policy)
    scopes = {canonicalise(change.unsafe_path, terms.roots).scope for change in change_set.changes}
    touched = {scope: terms.roots[scope] for scope in sorted(scopes)}
    with lock_roots(touched.values(), terms.patience):
        scans = {scope: scan(bound.root) for scope, bound in touched.items()}
        if terms.settle_names:
            change_set = settle_names(change_set, terms.policy, terms.roots, scans)
        drafts = draft(change_set, terms.roots)
        check_claims(change_set.claims, terms.roots, terms.patience)
        drafts = _stamped(drafts, terms.stamp)
        judge(drafts, terms.policy, scans)
        writes, notes = _plan(drafts, touched, scans, terms.policy)
        terms.patience.check()
        if not terms.dry_run:
            try:
                apply(writes)
            except StoreConflict as conflict:
                if not {path.partition("/")[2] for path in conflict.paths} <= {INDEX_NAME}:
                    raise
                # Only an index was edited meanwhile; what it is to say follows from the entries.
                writes, notes = _plan(drafts, touched, scans, terms.policy)
                apply(writes)
    return Commit(tuple(item.change for item in drafts), classify_touched_scopes(drafts), notes)


def _stamped(drafts: Sequence[Draft], stamp: Stamp | None) -> tuple[Draft, ...]:
    if stamp is None:
        return tuple(drafts)
    return tuple(replace(item, after=stamp(item.after, item.before, item.path)) for item in drafts)


def _plan(
    drafts: Sequence[Draft], touched: Mapping[Scope, BoundRoot], scans: Mapping[Scope, Scan], policy: Policy
) -> tuple[list[Write], tuple[str, ...]]:
    """The writes of entries, then those of indexes."""
    writes = [
        Write(item.root, item.path.rel, Expected.ABSENT if item.before is None else item.before, item.after)
        for item in drafts
    ]
    notes: list[str] = []
    for scope, root in touched.items():
        changed = {item.path.rel: item.after for item in drafts if item.path.scope == scope}
        plan = plan_index(root, scans[scope].patched(changed), policy.trust_of(scope))
        writes += plan.writes
        notes += plan.notes
    return writes, tuple(notes)
