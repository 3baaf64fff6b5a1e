"""What keeps a root in order besides commits: recovery, its view, its index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from muniment import events
from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.confine.writing import lock_roots
from muniment.errors import DeadlineExceeded, ManagedMemoryUnavailable, MunimentError, StoreConflict
from muniment.names import INDEX_NAME, Digest, RelPath, Scope, Trust
from muniment.policy.decide import Policy
from muniment.store.apply import apply
from muniment.store.audit import timestamp
from muniment.store.catalog import View, refresh
from muniment.store.indexing import IndexCheck, about_to_write, plan_index, verify_index, written
from muniment.store.ledger import new_token, root_key, temporary_of_index, unfinished
from muniment.store.recovery import clear_index, recover
from muniment.store.rows import Assess, Assessed
from muniment.store.state import State
from muniment.store.trust import assessing, basis
from muniment.tools.overlay import digest

LOOK_SHARE: Final = 0.7
"""Of the time that a recall has: how much it may spend on looking what changed before it answers."""


def view_of(
    state: State,
    root: BoundRoot,
    policy: Policy,
    *,
    sweep: bool = False,
    patience: Patience | None = None,
) -> View:
    """What is in a root now; a catalog that turns out to be damaged is begun anew.

    Args:
        state: whose catalog.
        root: the root; whoever goes on to write holds its lock.
        policy: says how its files are trusted and kept.
        sweep: look at every file, so that edits in place are found.
        patience: looked at first, and at each file that is read; it ends no wait for another thread that
            writes rows. None: however long it takes.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: the patience ended; no row is changed.
    """
    if patience is not None:
        patience.check()
    key, scope = root_key(state, root), root.scope
    assess, depends_on = assessing(state, key, scope, policy), basis(policy, scope)
    if patience is not None:
        assess = _patiently(assess, patience)
    try:
        return refresh(state.catalog, key, root, assess, basis=depends_on, sweep=sweep)
    except ManagedMemoryUnavailable as error:
        if not state.catalog.is_damaged(error):
            raise
    state.renew_catalog()
    return refresh(state.catalog, key, root, assess, basis=depends_on, sweep=sweep)


def view_in_time(state: State, root: BoundRoot, policy: Policy, patience: Patience) -> View:
    """As `view_of`, but what takes more than `LOOK_SHARE` of the patience is left to the next look.

    Then the view says what is known until then, and `memory_not_read_yet` tells.
    """
    now = time.monotonic()
    sooner = Patience(now + LOOK_SHARE * (patience.deadline - now), patience.cancel)
    try:
        return view_of(state, root, policy, patience=sooner)
    except DeadlineExceeded:
        patience.check()
    events.emit("memory_not_read_yet", scope=root.scope)
    key = root_key(state, root)
    return View(state.catalog, key, root, assessing(state, key, root.scope, policy), clock=time.time_ns)


def trusts_shown(state: State, root: BoundRoot, policy: Policy) -> list[Trust]:
    """The trusts of the entries whose text stands in the index of a root.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
    """
    view_of(state, root, policy)
    rows = state.catalog.rows(
        "SELECT DISTINCT trust FROM entry WHERE root = ? AND readable AND held IS NULL",
        (root_key(state, root),),
    )
    return [trust for (text,) in rows if (trust := Trust(text)).satisfies(Trust.WORKSPACE)]


def is_as_written(state: State, root: BoundRoot, index: bytes) -> bool:
    """Whether a `MEMORY.md` is, to the byte, what was written there last; not known of a new catalog.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be used.
    """
    found = state.catalog.rows(
        "SELECT digest FROM written WHERE root = ? AND rel = ?", (root_key(state, root), INDEX_NAME)
    )
    return found == [(digest(index),)]


def trusted_less(state: State, root: BoundRoot, reader: Trust) -> Callable[[RelPath], Trust | None]:
    """The trust of an entry of a root that a reader trusts less than themselves; else None.

    Of what is no entry the least counts that an entry of its folder has. Cost: a query for each question.
    """
    key = root_key(state, root)

    def below(rel: RelPath) -> Trust | None:
        rows = state.catalog.rows("SELECT trust FROM entry WHERE root = ? AND rel = ?", (key, rel))
        rows = rows or state.catalog.rows(
            "SELECT DISTINCT trust FROM entry WHERE root = ? AND topic = ?", (key, rel.rpartition("/")[0])
        )
        least = Trust.OWNER.capped(*(Trust(trust) for (trust,) in rows))
        return None if least.satisfies(reader) else least

    return below


def write_index(
    state: State, root: BoundRoot, view: View, temporary: Callable[[int], str], *, whole: bool = False
) -> tuple[str, ...]:
    """Make the index say what the view says; what a person should know. The caller holds the root's lock.

    Args:
        state: whose catalog.
        root: the root.
        view: of it, as it is now.
        temporary: names for what is being written.
        whole: look at every page, not only at those whose entries changed.

    Raises:
        StoreConflict: somebody else keeps changing it.
        ManagedMemoryUnavailable: it cannot be written.
    """
    notes: list[str] = []
    for is_last in (False, False, True):
        plan = plan_index(state.catalog, root, view, whole=whole, versions=_versions(state, root))
        about_to_write(state.catalog, view, plan)
        try:
            apply(plan.writes, temporary, durable=plan.saves)
        except StoreConflict:
            # Somebody edited an index in this moment: that is looked at, and saved if it is theirs.
            if is_last:
                raise
            continue
        written(state.catalog, view, plan)
        notes += plan.notes
        if not plan.saves:
            break
        view.look_again({""})  # What was saved has become an entry.
    return tuple(dict.fromkeys(notes))


def follow_or_tell(
    state: State,
    root: BoundRoot,
    view: View,
    temporary: Callable[[int], str],
    *,
    changed: Iterable[str] = (),
    whole: bool = False,
) -> tuple[str, ...]:
    """As `write_index`, but what goes wrong is only told: an index is derived, and holds up nothing.

    `changed` are directories in which the caller wrote since the view was made.
    """
    try:
        view.look_again(changed)
        return write_index(state, root, view, temporary, whole=whole)
    except MunimentError as error:
        events.emit("index_behind", scope=root.scope, code=error.code)
        return (f"the index of {root.scope} is behind ({error}); run: muniment index rebuild",)


def rebuild(state: State, root: BoundRoot, policy: Policy, patience: Patience) -> tuple[str, ...]:
    """Look at every file of a root and write its whole index anew, under its lock; what a person should know.

    Raises:
        StoreConflict, ManagedMemoryUnavailable: as `write_index`.
        DeadlineExceeded, Cancelled: before anything is written.
    """
    with lock_roots([root], patience):
        notes = _recover(state, root, policy)
        clear_index(root)
        view = view_of(state, root, policy, sweep=True)
        patience.check()
        return notes + write_index(state, root, view, partial(temporary_of_index, new_token()), whole=True)


def verify(state: State, root: BoundRoot, policy: Policy) -> IndexCheck:
    """What is wrong with the index of a root, after a look at every file; changes none.

    Raises:
        QuotaExceeded, ManagedMemoryUnavailable: as `verify_index`.
    """
    view = view_of(state, root, policy, sweep=True)
    return verify_index(state.catalog, root, view, _versions(state, root))


def recover_all(
    state: State, roots: Mapping[Scope, BoundRoot], policy: Policy, patience: Patience
) -> tuple[str, ...]:
    """Take back what interrupted commits left in `roots`, and bring the indexes there up to date.

    Costs one query where there is nothing to do, and takes no lock then.

    Raises:
        ManagedMemoryUnavailable: a file or the ledger cannot be written.
        DeadlineExceeded, Cancelled: somebody else holds the lock of a root.
    """
    keys = {root_key(state, root): root for root in roots.values()}
    found = {item.root for kept in unfinished(state, keys) for item in kept.changes}
    notes: tuple[str, ...] = ()
    for key, root in keys.items():
        if key in found:
            with lock_roots([root], patience):
                notes += _recover(state, root, policy)
    return notes


def _versions(state: State, root: BoundRoot) -> Callable[[RelPath], list[bytes]]:
    """What the ledger keeps of a file of a root."""
    key = root_key(state, root)

    def of(rel: RelPath) -> list[bytes]:
        query = "SELECT before, after FROM change WHERE root = ? AND rel = ?"
        return [data for row in state.ledger.rows(query, (key, rel)) for data in row if data is not None]

    return of


def _recover(state: State, root: BoundRoot, policy: Policy) -> tuple[str, ...]:
    """Recover one root, whose lock the caller holds."""

    def index() -> tuple[str, ...]:
        clear_index(root)
        view = view_of(state, root, policy, sweep=True)
        return follow_or_tell(state, root, view, partial(temporary_of_index, new_token()), whole=True)

    return recover(state, {root_key(state, root): root}, _now(), index)


def _patiently(assess: Assess, patience: Patience) -> Assess:
    def patient(rel: RelPath, found: Digest, data: bytes) -> Assessed:
        patience.check()
        return assess(rel, found, data)

    return patient


def _now() -> str:
    return timestamp(datetime.now(UTC))
