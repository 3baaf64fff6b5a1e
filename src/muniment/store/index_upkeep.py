"""Write, check and rebuild the index files of roots, and update them after a recovery.

Separate from `upkeep`, so that commands which only read do not import the modules that write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from muniment import events
from muniment.errors import (
    MunimentError,
    PathEscape,
    StoreConflict,
    ToolError,
)
from muniment.kernel.apply import ApplyResult, LockedRoots, apply_changes, lock_roots, seal_index_files
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import digest
from muniment.kernel.decide import Policy
from muniment.kernel.names import INDEX_NAME, RelPath, Trust
from muniment.kernel.path import CanonicalPath
from muniment.kernel.write import (
    Recovery,
    clear_index_leftovers,
    get_index_temporary_name,
    new_token,
    recover,
)
from muniment.policy.platforms import require_writing
from muniment.store.audit import timestamp
from muniment.store.catalog import View
from muniment.store.index import FOLDER_PLACEHOLDER, is_index_path
from muniment.store.index_pages import EXPIRES_AT
from muniment.store.index_plan import IndexCheck, IndexPlan, record_plan, record_written, verify_index
from muniment.store.journal import CatalogRootInfo, LedgerJournal
from muniment.store.ledger import get_root_key
from muniment.store.state import State
from muniment.store.upkeep import open_view

NO_RENAMES: Final[Mapping[CanonicalPath, CanonicalPath]] = MappingProxyType({})


def list_expired(state: State, root: BoundRoot) -> frozenset[RelPath]:
    """Return the paths of the entries of a root that have expired, according to the catalog.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    rows = state.catalog.rows(
        f"SELECT rel FROM entry WHERE root = ? AND expires > '' AND {EXPIRES_AT} <= ?",  # noqa: S608
        (get_root_key(state, root), timestamp()),
    )
    return frozenset(RelPath(rel) for (rel,) in rows)


def build_listable_test(state: State, root: BoundRoot) -> Callable[[RelPath], bool]:
    """Return a function that tests whether the entry at a path may be listed.

    An entry may be listed if it is readable, and neither withheld nor expired. Index files may always be
    listed. A path with the name `index.FOLDER_PLACEHOLDER` represents its folder: the test passes if any
    entry of the folder may be listed.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read; the returned function may raise it, too.

    Cost: one or two queries for each call of the returned function.
    """
    key, now, rows = get_root_key(state, root), timestamp(), state.catalog.rows
    entries = "SELECT 1 FROM entry WHERE root = ?"
    listed = f"{entries} AND readable AND held IS NULL AND (expires IS NULL OR {EXPIRES_AT} > ?)"

    def is_listable(rel: RelPath) -> bool:
        if is_index_path(rel) or rows(f"{listed} AND rel = ?", (key, now, rel)):
            return True
        topic, _, name = rel.rpartition("/")
        is_folder = name == FOLDER_PLACEHOLDER and not rows(f"{entries} AND rel = ?", (key, rel))
        return is_folder and bool(rows(f"{listed} AND topic = ? LIMIT 1", (key, now, topic)))

    return is_listable


def is_index_unchanged(state: State, root: BoundRoot, index: bytes) -> bool:
    """Return whether `index` has exactly the bytes of the `MEMORY.md` that Muniment wrote last.

    False if the catalog was rebuilt since then.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be used.
    """
    found = state.catalog.rows(
        "SELECT digest FROM written WHERE root = ? AND rel = ?", (get_root_key(state, root), INDEX_NAME)
    )
    return found == [(digest(index),)]


def has_foreign_index(state: State, root: BoundRoot) -> bool:
    """Return whether an index file of a root is missing, or differs from the bytes that Muniment wrote last.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.

    Cost: each index file is read.
    """
    rows = state.catalog.rows("SELECT rel, digest FROM written WHERE root = ?", (get_root_key(state, root),))
    for rel, expected in rows:
        try:
            found = digest(root.root.read_bytes(CanonicalPath(root.scope, RelPath(rel))))
        except (PathEscape, ToolError):
            return True
        if found != expected:
            return True
    return False


def build_lower_trust_lookup(
    state: State, root: BoundRoot, reader: Trust
) -> Callable[[RelPath], Trust | None]:
    """Return a function that returns the trust of an entry if it is lower than that of `reader`, else None.

    For a path that is not an entry, it uses the lowest trust in the folder of the path.

    Args:
        state: has the catalog.
        root: the root of the entries.
        reader: trust of the reader.

    Cost: one or two queries for each call of the returned function.
    """
    key = get_root_key(state, root)

    def get_lower_trust(rel: RelPath) -> Trust | None:
        rows = state.catalog.rows("SELECT trust FROM entry WHERE root = ? AND rel = ?", (key, rel))
        rows = rows or state.catalog.rows(
            "SELECT DISTINCT trust FROM entry WHERE root = ? AND topic = ?", (key, rel.rpartition("/")[0])
        )
        least = Trust.OWNER.cap(*(Trust(trust) for (trust,) in rows))
        return None if least.satisfies(reader) else least

    return get_lower_trust


def write_index(
    state: State,
    locked_roots: LockedRoots,
    view: View,
    temporary: Callable[[int], str],
    *,
    compare_all: bool = False,
    create_empty: bool = False,
) -> tuple[str, ...]:
    """Update the index files of a root from its catalog view; return notes for the user.

    Args:
        state: has the catalog.
        locked_roots: locked roots; one of them is the root of the view.
        view: the view, up to date.
        temporary: returns the names for temporary files, by number.
        compare_all: check every page, not only the pages of changed entries.
        create_empty: create an index even if it is missing and has no entry to list.

    Raises:
        StoreConflict: another program changes an index file repeatedly.
        ManagedMemoryUnavailable: an index file or the catalog cannot be written.
    """
    root = locked_roots[view.scope]
    notes: list[str] = []
    for is_last in (False, False, True):
        with state.catalog.transaction():
            plan = IndexPlan(
                state.catalog,
                root,
                view,
                _build_version_reader(state, root),
                compare_all=compare_all,
                create_empty=create_empty,
            )
            record_plan(state.catalog, view, plan)
        try:
            result = apply_changes(
                seal_index_files(plan.writes), locked_roots, temporary, durable=bool(plan.saved)
            )
        except StoreConflict:
            # Another program edited an index just now: it is read again, and saved if it is not generated.
            if is_last:
                raise
            continue
        log_degraded(result)
        record_written(state.catalog, view, plan)
        notes += plan.notes
        if not plan.saved:
            break
        view.update_after_write({""})  # The saved file has become an entry.
    return tuple(dict.fromkeys(notes))


def log_degraded(result: ApplyResult) -> None:
    """Log the files that had to be replaced by a plain rename."""
    for path in result.degraded:
        events.emit("commit_degraded", scope=path.scope, landing="plain_rename")


def update_index(
    state: State,
    locked_roots: LockedRoots,
    view: View,
    temporary: Callable[[int], str],
    *,
    changed: Iterable[str] = (),
    renames: Mapping[CanonicalPath, CanonicalPath] = NO_RENAMES,
    compare_all: bool = False,
) -> tuple[str, ...]:
    """Update the index as `write_index`, but return an error as a note: an index must not stop a commit.

    Links to a renamed entry are not changed, because they are text of other authors; a note counts them.

    Args:
        state: has the catalog.
        locked_roots: locked roots; one of them is the root of the view.
        view: the view.
        temporary: returns the names for temporary files, by number.
        changed: directories in which the caller wrote after the view was opened.
        renames: the new paths of renamed entries, each with the old path.
        compare_all: check every page, not only the pages of changed entries.
    """
    try:
        view.update_after_write(changed)
        notes = write_index(state, locked_roots, view, temporary, compare_all=compare_all)
        return (*notes, *_count_old_links(view, renames))
    except MunimentError as error:
        events.emit("index_behind", scope=view.scope, code=error.code)
        return (f"the index of {view.scope} is out of date ({error}); run: muniment index rebuild",)


def _count_old_links(view: View, renames: Mapping[CanonicalPath, CanonicalPath]) -> Iterator[str]:
    """Yield a note about each renamed entry whose old name is still in the text of entries."""
    for path, old in renames.items():
        if path.scope == view.scope and path.name != old.name and (count := view.count_mentions(old.name)):
            entries = "1 entry still contains" if count == 1 else f"{count} entries still contain"
            yield f"{entries} the old name {old.name} of {path.text}; its links are not changed"


def rebuild_index(state: State, root: BoundRoot, policy: Policy, deadline: Deadline) -> tuple[str, ...]:
    """Check every file of a root, and rewrite its complete index under its lock; return notes for the user.

    Raises:
        StoreConflict, ManagedMemoryUnavailable: as `write_index`.
        DeadlineExceeded, Cancelled: before anything is written.
        PlatformUnsupported: as `policy.platforms.require_writing`.
    """
    require_writing(policy)
    state.require_writable()
    with lock_roots([root], deadline) as locked_roots:
        notes = recover_locked_roots(state, locked_roots, policy)
        facts = CatalogRootInfo(lambda _: open_view(state, root, policy))
        notes += tuple(_format_saved_notes(clear_index_leftovers(locked_roots, root.scope, facts)))
        view = open_view(state, root, policy, sweep=True)
        deadline.check()
        return notes + write_index(
            state, locked_roots, view, partial(get_index_temporary_name, new_token()), compare_all=True
        )


def verify_root_index(state: State, root: BoundRoot, policy: Policy) -> IndexCheck:
    """Check every file of a root and return the problems of its index; change no file.

    Raises:
        QuotaExceeded, ManagedMemoryUnavailable: as `verify_index`.
    """
    view = open_view(state, root, policy, sweep=True)
    return verify_index(state.catalog, root, view, _build_version_reader(state, root))


def update_after_recovery(
    state: State,
    locked_roots: LockedRoots,
    policy: Policy,
    recoveries: Iterable[Recovery],
    reader: Trust = Trust.OWNER,
) -> Iterator[str]:
    """Update the indexes of locked roots after a recovery of their files; yield notes for the user.

    Args:
        state: has the catalog.
        locked_roots: the locked roots.
        policy: defines trust and retention of their files.
        recoveries: the commits that were rolled back.
        reader: trust of the reader of the notes. Only the owner gets paths: a file of another task may be
            hidden from other readers.
    """
    for each in recoveries:
        yield f"rolled back {each.intent.task}, which was interrupted; run it again"
        for path in each.skipped:
            name = path.text if reader is Trust.OWNER else "one of its files"
            yield f"{name} was changed after that, so it was not rolled back (recovery_conflict)"
        yield from _format_saved_notes(each.saved_paths, reader)
    facts = CatalogRootInfo(lambda scope: open_view(state, locked_roots[scope], policy))
    for scope in locked_roots:
        yield from _format_saved_notes(clear_index_leftovers(locked_roots, scope, facts), reader)
        temporary = partial(get_index_temporary_name, new_token())
        view = open_view(state, locked_roots[scope], policy, sweep=True)
        yield from update_index(state, locked_roots, view, temporary, compare_all=True)


def _format_saved_notes(saved_paths: Iterable[CanonicalPath], reader: Trust = Trust.OWNER) -> Iterator[str]:
    names = (path.text if reader is Trust.OWNER else "another file" for path in saved_paths)
    return (f"{name} contains text that another program wrote meanwhile" for name in names)


def _build_version_reader(state: State, root: BoundRoot) -> Callable[[RelPath], list[bytes]]:
    """Return a function that returns all versions of a root's file that the ledger contains."""
    key = get_root_key(state, root)

    def read_versions(rel: RelPath) -> list[bytes]:
        query = "SELECT before, after FROM step WHERE root = ? AND rel = ?"
        return [data for row in state.ledger.rows(query, (key, rel)) for data in row if data is not None]

    return read_versions


def recover_locked_roots(state: State, locked_roots: LockedRoots, policy: Policy) -> tuple[str, ...]:
    """Roll back interrupted commits of locked roots, and update the indexes; return notes for the user."""
    facts = CatalogRootInfo(lambda scope: open_view(state, locked_roots[scope], policy))
    with recover(locked_roots, LedgerJournal(state, locked_roots), policy, facts) as recovered:
        return tuple(update_after_recovery(state, locked_roots, policy, recovered)) if recovered else ()
