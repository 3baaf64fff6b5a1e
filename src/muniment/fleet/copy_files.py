"""Update the files of a working copy from a ledger that several machines share.

C1 Files get the content of their newest commit, or of the commits since a given one; no other file is
   written. A file in the copy that differs from the ledger's previous content is reported, and not
   overwritten.
C2 Only paths of entries in the roots of the copy are written; other paths of the ledger are rejected.
C3 Catalog and indexes are updated as on the machine of the commit: a scope that was ever written to has an
   index, even if it is empty. The origins of all files are read with one query.

Not guaranteed: that the changes were allowed. Another machine has judged them with its policy.

This module reads and writes files. It is separate from `working_copies`, which decides when to update.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from muniment.kernel.apply import lock_roots
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import Policy
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.write import get_index_temporary_name, new_token, replay
from muniment.policy.platforms import require_writing
from muniment.store.database import Ledger
from muniment.store.index_upkeep import write_index
from muniment.store.ledger import ERASED
from muniment.store.state import State
from muniment.store.trust import NO_KNOWN_SOURCES, KnownSources
from muniment.store.upkeep import open_view

MAX_MISSING_CHANGES: Final = 2_000
"""Maximum changes with which a copy is updated; a copy that lacks more changes is rebuilt."""

_BATCH_FILES: Final = 10_000
"""Maximum files written as one change; there are names for 32 768."""

_POSITION_QUERY: Final = (
    "SELECT number, erased, epoch FROM home WHERE home = current_setting('muniment.home')"
)
_UNFINISHED_QUERY: Final = "SELECT count(*) FROM change_set WHERE done IS NULL AND review IS NULL"
_MISSING_QUERY: Final = (
    "SELECT root.path, rel, before, before_digest, after, after_digest FROM change_set "
    "JOIN change ON change.home = change_set.home AND change.change_set = change_set.id "
    "JOIN root ON root.home = change.home AND root.id = change.root "
    "WHERE number > ? AND number <= ? ORDER BY number, position LIMIT ?"
)
_GROWTH_QUERY: Final = (
    "SELECT root.path, count(*) FILTER (WHERE before_digest IS NULL) "
    "- count(*) FILTER (WHERE after_digest IS NULL) FROM change_set "
    "JOIN change_kept AS kept ON kept.home = change_set.home AND kept.change_set = change_set.id "
    "JOIN root ON root.home = kept.home AND root.id = kept.root "
    "WHERE number > ? AND number <= ? GROUP BY root.path"
)
_NEWEST_QUERY: Final = (
    "SELECT root.path, newest.rel, blob.content, after_digest, known.trust, known.at FROM ("
    "SELECT DISTINCT ON (root, rel) kept.home, root, rel, after_blob, after_digest FROM change_kept AS kept "
    "JOIN change_set ON change_set.home = kept.home AND change_set.id = kept.change_set "
    "WHERE number IS NOT NULL ORDER BY root, rel, number DESC) AS newest "
    "JOIN root ON root.home = newest.home AND root.id = newest.root "
    "LEFT JOIN blob ON blob.home = newest.home AND blob.digest = newest.after_blob "
    "LEFT JOIN provenance AS known ON known.home = newest.home AND known.root = newest.root "
    "AND known.rel = newest.rel AND known.digest = newest.after_digest"
)


class LedgerPosition(NamedTuple):
    """The position of a ledger: how far its history has come.

    Attributes:
        number: number of the last commit that is done.
        erased: number of erasures.
        epoch: epoch of the home's lease.
    """

    number: int
    erased: int
    epoch: int


class MissingChanges(NamedTuple):
    """The changes that a copy lacks.

    Attributes:
        changes: changes of the copy's files.
        scopes: scopes that were written to.
        origins: origins of the files; set if `changes` contains every file of the copy, otherwise None.
    """

    changes: list[FileChange]
    scopes: set[Scope]
    origins: KnownSources | None = None


def read_position(ledger: Ledger) -> LedgerPosition | None:
    """Return the position of a ledger, or None if its home was deleted.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    found = ledger.rows(_POSITION_QUERY)
    return LedgerPosition(*found[0]) if found else None


def has_unfinished_commit(ledger: Ledger) -> bool:
    """Return whether a commit has begun and is not done.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    ((count,),) = ledger.rows(_UNFINISHED_QUERY)
    return bool(count)


def find_missing_changes(
    ledger: Ledger, after: int, until: int, scopes: Collection[Scope]
) -> MissingChanges | None:
    """Return the net file changes since a commit, or None if there are too many or some were erased.

    Args:
        ledger: ledger of the memory.
        after: number of the commit up to which the copy is complete.
        until: number of the last commit to include.
        scopes: scopes of the copy.

    Raises:
        PathEscape, Refusal: a path of the ledger is not the path of an entry.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    rows = ledger.rows(_MISSING_QUERY, (after, until, MAX_MISSING_CHANGES + 1))
    if len(rows) > MAX_MISSING_CHANGES or any(
        ERASED in {before_digest, after_digest} for _, _, _, before_digest, _, after_digest in rows
    ):
        return None
    changes = _compute_net_changes(rows, scopes)
    return MissingChanges(
        [each for each in changes if each.before != each.after], {each.path.scope for each in changes}
    )


def count_growth(ledger: Ledger, after: int, until: int, scopes: Collection[Scope]) -> int:
    """Return by how many entries some scopes grew in the commits after `after`, up to `until`.

    The result is right only if no change of these commits was erased.
    """
    return sum(
        count for root, count in ledger.rows(_GROWTH_QUERY, (after, until)) if os.fsdecode(root) in scopes
    )


def read_newest(ledger: Ledger, scopes: Collection[Scope]) -> MissingChanges:
    """Return the newest content of all files, with their origins.

    Args:
        ledger: ledger of the memory.
        scopes: scopes of the copy.

    Raises:
        PathEscape, Refusal: a path of the ledger is not the path of an entry.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    changes: list[FileChange] = []
    written_scopes: set[Scope] = set()
    origins: dict[tuple[Scope, RelPath, Digest], tuple[Trust, str]] = {}
    with ledger.iterate_rows(_NEWEST_QUERY) as rows:
        for root, rel, content, found, trust, timestamp in rows:
            path = _convert_path(root, rel, scopes)
            if path is None:
                continue
            written_scopes.add(path.scope)
            if content is not None:
                changes.append(FileChange(path, None, content))
                if trust is not None:
                    origins[path.scope, path.rel, found] = Trust(trust), timestamp
    return MissingChanges(changes, written_scopes, origins)


def apply_changes(
    missing: MissingChanges,
    state: State,
    roots: Mapping[Scope, BoundRoot],
    policy: Policy,
    deadline: Deadline,
) -> None:
    """Apply missing changes to a copy, and update its catalog and indexes.

    Args:
        missing: the missing changes.
        state: state of the copy.
        roots: roots of the copy.
        policy: determines the trust of the copy's files.
        deadline: time limit for locks.

    Raises:
        PlatformUnsupported: this platform cannot write under the policy; the message states what to do.
        StoreConflict, PathEscape, Refusal, ToolError: a file of the copy differs from the ledger's previous
            content, and was not overwritten.
        DeadlineExceeded, Cancelled: another process holds a lock.
        ManagedMemoryUnavailable: a file cannot be written.
    """
    require_writing(policy)
    changes, written, origins = missing
    is_complete = origins is not None
    touched = set(roots) if is_complete else written
    with lock_roots([roots[scope] for scope in touched], deadline) as locked_roots:
        for start in range(0, len(changes), _BATCH_FILES):
            replay(changes[start : start + _BATCH_FILES], locked_roots)
        for scope in touched:
            view = open_view(state, locked_roots[scope], policy, known_sources=origins or NO_KNOWN_SOURCES)
            temporary = partial(get_index_temporary_name, new_token())
            write_index(
                state, locked_roots, view, temporary, compare_all=is_complete, create_empty=scope in written
            )


def _compute_net_changes(rows: Iterable[tuple[Any, ...]], scopes: Collection[Scope]) -> list[FileChange]:
    """Return the net change of each file in a list of changes, even if the file ends up unchanged."""
    first: dict[CanonicalPath, bytes | None] = {}
    last: dict[CanonicalPath, bytes | None] = {}
    for root, rel, before, _, after, _ in rows:
        path = _convert_path(root, rel, scopes)
        if path is not None:
            first.setdefault(path, before)
            last[path] = after
    bases = {path: None if before is None else digest(before) for path, before in first.items()}
    return [FileChange(path, bases[path], after, first[path]) for path, after in last.items()]


def _convert_path(root: bytes, rel: str, scopes: Collection[Scope]) -> CanonicalPath | None:
    """Return the path in the copy of a file in the ledger; None if the policy no longer has its scope."""
    scope = os.fsdecode(root)
    return canonicalise(f"{scope}/{rel}", scopes) if scope in scopes else None
