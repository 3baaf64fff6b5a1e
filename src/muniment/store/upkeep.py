"""Open the catalog view of a root, so that its rows are up to date."""

from __future__ import annotations

import time
from typing import Final

from muniment import events
from muniment.errors import (
    DeadlineExceeded,
    ManagedMemoryUnavailable,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Policy
from muniment.kernel.names import Digest, RelPath, Trust
from muniment.store.basis import compute_basis
from muniment.store.catalog import ScanPlan, View
from muniment.store.ledger import get_root_key
from muniment.store.rows import Assessment
from muniment.store.state import State
from muniment.store.trust import NO_KNOWN_SOURCES, KnownSources, build_assessment

REFRESH_SHARE: Final = 0.7
"""Share of the time of a recall that updating the catalog may take."""


def open_view(
    state: State,
    root: BoundRoot,
    policy: Policy,
    *,
    sweep: bool = False,
    deadline: Deadline | None = None,
    scan_plan: ScanPlan | None = None,
    known_sources: KnownSources = NO_KNOWN_SOURCES,
) -> View:
    """Return an up-to-date view of the rows of a root. If the catalog is damaged, it is rebuilt.

    Args:
        state: has the catalog.
        root: the root; a caller that is about to write holds its lock.
        policy: defines the trust of the root's files, and how long entries are retained.
        sweep: check every file, so that edits in place are found.
        deadline: checked first, and before each file that is read. It does not end the wait for another
            thread that writes rows. None: no limit.
        scan_plan: selects the directories that are read; None: those that changed.
        known_sources: as for `build_assessment`.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: `deadline` ended; no row is changed.
    """
    if deadline is not None:
        deadline.check()
    view, row_basis = (
        _build_view(state, root, policy, known_sources, deadline),
        compute_basis(policy, root.scope),
    )
    plan = scan_plan or ScanPlan(sweep=sweep)
    try:
        return view.refresh(row_basis, plan)
    except ManagedMemoryUnavailable as error:
        if not state.catalog.is_damaged(error):
            raise
    state.recreate_catalog()
    return view.refresh(row_basis, plan)


def open_view_in_time(
    state: State, root: BoundRoot, policy: Policy, deadline: Deadline, scan_plan: ScanPlan | None = None
) -> View:
    """Return a view as `open_view`, but stop updating the catalog after `REFRESH_SHARE` of the time.

    If the update did not end, the view is not completely up to date, and `memory_not_read_yet` is logged.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: `deadline` ended.
    """
    now = time.monotonic()
    sooner = Deadline(now + REFRESH_SHARE * (deadline.expires_at - now), deadline.cancel)
    try:
        return open_view(state, root, policy, deadline=sooner, scan_plan=scan_plan)
    except DeadlineExceeded:
        deadline.check()
    events.emit("memory_not_read_yet", scope=root.scope)
    return open_stale_view(state, root, policy)


def open_stale_view(state: State, root: BoundRoot, policy: Policy) -> View:
    """Return a view of the existing rows of a root, without checking whether the files have changed.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
    """
    return _build_view(state, root, policy)


def _build_view(
    state: State,
    root: BoundRoot,
    policy: Policy,
    known_sources: KnownSources = NO_KNOWN_SOURCES,
    deadline: Deadline | None = None,
) -> View:
    key = get_root_key(state, root)
    assess = build_assessment(state, key, root.scope, policy, known_sources)

    def assess_with_deadline(rel: RelPath, found: Digest, data: bytes) -> Assessment:
        if deadline is not None:
            deadline.check()
        return assess(rel, found, data)

    return View(state.catalog, key, root, assess_with_deadline, embedder=state.embedder)


def list_displayed_trusts(state: State, root: BoundRoot, policy: Policy) -> list[Trust]:
    """Return the different trusts of the entries whose text is in the index of a root.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
    """
    open_view(state, root, policy)
    rows = state.catalog.rows(
        "SELECT DISTINCT trust FROM entry WHERE root = ? AND readable AND held IS NULL",
        (get_root_key(state, root),),
    )
    return [trust for (text,) in rows if (trust := Trust(text)).satisfies(Trust.WORKSPACE)]
