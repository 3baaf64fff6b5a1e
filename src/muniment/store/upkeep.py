"""Maintenance of a root outside commits: recovery, its view, its index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from muniment import events
from muniment.errors import (
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    MunimentError,
    PathEscape,
    StoreConflict,
    ToolError,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import digest
from muniment.kernel.decide import Policy
from muniment.kernel.land import Landed, LockedRoots, generated, land, lock_roots
from muniment.kernel.names import INDEX_NAME, Digest, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import Recovered, clear_index, new_token, recover, temporary_of_index
from muniment.policy.platforms import may_write, require_writing
from muniment.portable import SYSTEM
from muniment.store.audit import timestamp
from muniment.store.catalog import Look, View
from muniment.store.index import STAND_IN, is_index_path
from muniment.store.index_pages import EXPIRES_AT
from muniment.store.index_plan import IndexCheck, IndexPlan, about_to_write, verify_index, written
from muniment.store.journal import CatalogFacts, LedgerJournal
from muniment.store.ledger import root_key
from muniment.store.rows import Assessed
from muniment.store.state import State
from muniment.store.trust import NONE_KNOWN, Known, assessing, basis

LOOK_SHARE: Final = 0.7
"""The share of a recall's time that it may spend on updating the catalog."""


def view_of(
    state: State,
    root: BoundRoot,
    policy: Policy,
    *,
    sweep: bool = False,
    patience: Patience | None = None,
    look: Look | None = None,
    known: Known = NONE_KNOWN,
) -> View:
    """Return an up-to-date view of a root; a damaged catalog is recreated.

    Args:
        state: has the catalog.
        root: the root; a caller that is about to write holds its lock.
        policy: defines the trust of its files, and how long they are retained.
        sweep: check every file, so that edits in place are found.
        patience: checked first, and at each file that is read. It does not end the wait for another thread
            that writes rows. None: no limit.
        look: determines which directories are read; None: all of them.
        known: as for `assessing`.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
        Cancelled, DeadlineExceeded: `patience` ended; no row is changed.
    """
    if patience is not None:
        patience.check()
    view, depends_on = _view(state, root, policy, known, patience), basis(policy, root.scope)
    for_it = look or Look(sweep=sweep)
    try:
        return view.refresh(depends_on, for_it)
    except ManagedMemoryUnavailable as error:
        if not state.catalog.is_damaged(error):
            raise
    state.renew_catalog()
    return view.refresh(depends_on, for_it)


def view_in_time(
    state: State, root: BoundRoot, policy: Policy, patience: Patience, look: Look | None = None
) -> View:
    """Return a view as `view_of`, but postpone work that would take more than `LOOK_SHARE` of the time.

    In that case the view is not completely up to date, and `memory_not_read_yet` is logged.
    """
    now = time.monotonic()
    sooner = Patience(now + LOOK_SHARE * (patience.deadline - now), patience.cancel)
    try:
        return view_of(state, root, policy, patience=sooner, look=look)
    except DeadlineExceeded:
        patience.check()
    events.emit("memory_not_read_yet", scope=root.scope)
    return view_as_it_is(state, root, policy)


def view_as_it_is(state: State, root: BoundRoot, policy: Policy) -> View:
    """Return a view of the current rows, without checking the files.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
    """
    return _view(state, root, policy)


def _view(
    state: State,
    root: BoundRoot,
    policy: Policy,
    known: Known = NONE_KNOWN,
    patience: Patience | None = None,
) -> View:
    key = root_key(state, root)
    assess = assessing(state, key, root.scope, policy, known)

    def patient(rel: RelPath, found: Digest, data: bytes) -> Assessed:
        if patience is not None:
            patience.check()
        return assess(rel, found, data)

    return View(state.catalog, key, root, patient, embedder=state.embedder)


def trusts_shown(state: State, root: BoundRoot, policy: Policy) -> list[Trust]:
    """Return the trusts of the entries whose text is in the index of a root.

    Raises:
        ManagedMemoryUnavailable: the state cannot be used.
    """
    view_of(state, root, policy)
    rows = state.catalog.rows(
        "SELECT DISTINCT trust FROM entry WHERE root = ? AND readable AND held IS NULL",
        (root_key(state, root),),
    )
    return [trust for (text,) in rows if (trust := Trust(text)).satisfies(Trust.WORKSPACE)]


def expired_in(state: State, root: BoundRoot) -> frozenset[RelPath]:
    """Return the entries of a root that have expired, according to its catalog.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    rows = state.catalog.rows(
        f"SELECT rel FROM entry WHERE root = ? AND expires > '' AND {EXPIRES_AT} <= ?",  # noqa: S608
        (root_key(state, root), timestamp()),
    )
    return frozenset(RelPath(rel) for (rel,) in rows)


def is_listable_in(state: State, root: BoundRoot) -> Callable[[RelPath], bool]:
    """Return a test whether the catalog has an entry that is readable and neither withheld nor expired.

    Index files pass. `index.STAND_IN` represents its folder: one such entry there is enough. Cost: one or two
    queries for each path.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read; the test may raise it also.
    """
    key, now, rows = root_key(state, root), timestamp(), state.catalog.rows
    entries = "SELECT 1 FROM entry WHERE root = ?"
    listed = f"{entries} AND readable AND held IS NULL AND (expires IS NULL OR {EXPIRES_AT} > ?)"

    def is_listable(rel: RelPath) -> bool:
        if is_index_path(rel) or rows(f"{listed} AND rel = ?", (key, now, rel)):
            return True
        topic, _, name = rel.rpartition("/")
        is_folder = name == STAND_IN and not rows(f"{entries} AND rel = ?", (key, rel))
        return is_folder and bool(rows(f"{listed} AND topic = ? LIMIT 1", (key, now, topic)))

    return is_listable


def is_as_written(state: State, root: BoundRoot, index: bytes) -> bool:
    """Return whether a `MEMORY.md` is, to the byte, the one written last; False with a new catalog.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be used.
    """
    found = state.catalog.rows(
        "SELECT digest FROM written WHERE root = ? AND rel = ?", (root_key(state, root), INDEX_NAME)
    )
    return found == [(digest(index),)]


def has_foreign_index(state: State, root: BoundRoot) -> bool:
    """Return whether an index file of a root is missing, or differs from the bytes that were last written.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.

    Cost: each index file is read.
    """
    rows = state.catalog.rows("SELECT rel, digest FROM written WHERE root = ?", (root_key(state, root),))
    for rel, expected in rows:
        try:
            found = digest(root.root.read_bytes(CanonicalPath(root.scope, RelPath(rel))))
        except (PathEscape, ToolError):
            return True
        if found != expected:
            return True
    return False


def trusted_less(state: State, root: BoundRoot, reader: Trust) -> Callable[[RelPath], Trust | None]:
    """Return a function for the trust of an entry if a reader trusts it less than themselves, else None.

    For a path that is not an entry, the lowest trust in its folder counts. Cost: a query for each call.
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
    state: State,
    held: LockedRoots,
    view: View,
    temporary: Callable[[int], str],
    *,
    whole: bool = False,
    always: bool = False,
) -> tuple[str, ...]:
    """Update the index from the view; return notes for a user.

    Args:
        state: has the catalog.
        held: the locked roots; the view is of one of them.
        view: of that root, up to date.
        temporary: returns names for temporary files.
        whole: check every page, not only pages with changed entries.
        always: write an index also if it is missing and has no entry to list.

    Raises:
        StoreConflict: another program keeps changing it.
        ManagedMemoryUnavailable: it cannot be written.
    """
    root = held[view.scope]
    notes: list[str] = []
    for is_last in (False, False, True):
        with state.catalog.transaction():
            plan = IndexPlan(state.catalog, root, view, _versions(state, root), whole=whole, always=always)
            about_to_write(state.catalog, view, plan)
        try:
            landed = land(generated(plan.writes), held, temporary, durable=bool(plan.saved))
        except StoreConflict:
            # Another program edited an index just now: it is read again, and saved if it is not generated.
            if is_last:
                raise
            continue
        tell_degraded(landed)
        written(state.catalog, view, plan)
        notes += plan.notes
        if not plan.saved:
            break
        view.follow({""})  # The saved file has become an entry.
    return tuple(dict.fromkeys(notes))


def tell_degraded(landed: Landed) -> None:
    """Log the files that were replaced by a plain rename."""
    for path in landed.degraded:
        events.emit("commit_degraded", scope=path.scope, landing="plain_rename")


def follow_or_tell(
    state: State,
    held: LockedRoots,
    view: View,
    temporary: Callable[[int], str],
    *,
    changed: Iterable[str] = (),
    whole: bool = False,
) -> tuple[str, ...]:
    """Update the index as `write_index`, but only report errors: an index is derived, and blocks no commit.

    `changed` are directories in which the caller wrote since the view was created.
    """
    try:
        view.follow(changed)
        return write_index(state, held, view, temporary, whole=whole)
    except MunimentError as error:
        events.emit("index_behind", scope=view.scope, code=error.code)
        return (f"the index of {view.scope} is out of date ({error}); run: muniment index rebuild",)


def rebuild(state: State, root: BoundRoot, policy: Policy, patience: Patience) -> tuple[str, ...]:
    """Check every file of a root and rewrite its complete index, under its lock; return notes for a user.

    Raises:
        StoreConflict, ManagedMemoryUnavailable: as `write_index`.
        DeadlineExceeded, Cancelled: before anything is written.
        PlatformUnsupported: as `policy.platforms.require_writing`.
    """
    require_writing(policy)
    state.require_writable()
    with lock_roots([root], patience) as held:
        notes = _recover(state, held, policy)
        facts = CatalogFacts(lambda _: view_of(state, root, policy))
        notes += tuple(_kept_notes(clear_index(held, root.scope, facts)))
        view = view_of(state, root, policy, sweep=True)
        patience.check()
        return notes + write_index(state, held, view, partial(temporary_of_index, new_token()), whole=True)


def verify(state: State, root: BoundRoot, policy: Policy) -> IndexCheck:
    """Return the problems of the index of a root, after a check of every file; change no file.

    Raises:
        QuotaExceeded, ManagedMemoryUnavailable: as `verify_index`.
    """
    view = view_of(state, root, policy, sweep=True)
    return verify_index(state.catalog, root, view, _versions(state, root))


def recover_all(
    state: State, roots: Mapping[Scope, BoundRoot], policy: Policy, patience: Patience
) -> tuple[str, ...]:
    """Roll back interrupted commits in `roots`, and update the indexes there.

    Without such commits this costs one query and acquires no lock.

    Raises:
        ManagedMemoryUnavailable: a file or the ledger cannot be written.
        DeadlineExceeded, Cancelled: another process holds the lock of a root.
    """
    found = LedgerJournal(state, roots).unfinished(roots)
    scopes = {path.scope for intent in found for path in (each.path for each in intent.changes.values())}
    notes: tuple[str, ...] = ()
    interrupted = f"a commit in {', '.join(sorted(scopes))} was interrupted and is not rolled back"
    if scopes and state.read_only_path is not None:
        return (
            f"{interrupted}: {state.read_only_path} cannot be written; make it writable and run this again",
        )
    if scopes and not may_write(policy):
        return (f"{interrupted} on {SYSTEM}",)
    for scope in (scope for scope in roots if scope in scopes):
        with lock_roots([roots[scope]], patience) as held:
            notes += _recover(state, held, policy)
    return notes


def after_recovery(
    state: State,
    held: LockedRoots,
    policy: Policy,
    done: Iterable[Recovered],
    reader: Trust = Trust.OWNER,
) -> Iterator[str]:
    """Update the indexes of locked roots after files were rolled back; yield notes for a user.

    A reader below the owner's trust gets no paths: those of another task may be hidden from it.
    """
    for each in done:
        yield f"rolled back {each.intent.task}, which was interrupted; run it again"
        for path in each.left:
            name = path.text if reader is Trust.OWNER else "one of its files"
            yield f"{name} was changed since then and is not rolled back (recovery_conflict)"
        yield from _kept_notes(each.kept, reader)
    facts = CatalogFacts(lambda scope: view_of(state, held[scope], policy))
    for scope in held:
        yield from _kept_notes(clear_index(held, scope, facts), reader)
        temporary = partial(temporary_of_index, new_token())
        view = view_of(state, held[scope], policy, sweep=True)
        yield from follow_or_tell(state, held, view, temporary, whole=True)


def _kept_notes(kept: Iterable[CanonicalPath], reader: Trust = Trust.OWNER) -> Iterator[str]:
    names = (path.text if reader is Trust.OWNER else "another file" for path in kept)
    return (f"{name} contains text that another program wrote meanwhile" for name in names)


def _versions(state: State, root: BoundRoot) -> Callable[[RelPath], list[bytes]]:
    """Return a function for the contents of a root's file in the ledger."""
    key = root_key(state, root)

    def of(rel: RelPath) -> list[bytes]:
        query = "SELECT before, after FROM step WHERE root = ? AND rel = ?"
        return [data for row in state.ledger.rows(query, (key, rel)) for data in row if data is not None]

    return of


def _recover(state: State, held: LockedRoots, policy: Policy) -> tuple[str, ...]:
    """Roll back interrupted commits of locked roots."""
    facts = CatalogFacts(lambda scope: view_of(state, held[scope], policy))
    with recover(held, LedgerJournal(state, held), policy, facts) as recovered:
        return tuple(after_recovery(state, held, policy, recovered)) if recovered else ()
