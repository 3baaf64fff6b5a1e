"""Updates the files of a copy from a ledger that several machines share.

C1 Files get the content of their newest commit, or of the commits since a number; no other file is written. A
   file in the copy that differs from the ledger's previous content is reported, and not overwritten.
C2 Only paths of entries in the roots of the copy are written; other paths of the ledger are rejected.
C3 Catalog and indexes are updated as on the machine of the commit: a scope that was ever written to has an
   index, even if it is empty. The origins of all files are read with one query.

Not guaranteed: that the changes were allowed. Another machine has judged them with its policy.

Separate from `copies`, which decides when to update: this module reads and writes files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Patience
from muniment.kernel.change import FileChange, digest
from muniment.kernel.decide import Policy
from muniment.kernel.land import lock_roots
from muniment.kernel.names import Digest, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.write import new_token, replay, temporary_of_index
from muniment.policy.platforms import require_writing
from muniment.store.database import Ledger
from muniment.store.ledger import ERASED
from muniment.store.state import State
from muniment.store.trust import NONE_KNOWN, Known
from muniment.store.upkeep import view_of, write_index

MOST_BEHIND: Final = 2_000
"""Maximum changes for an update of a copy; a copy that lacks more is rebuilt."""

_AT_ONCE: Final = 10_000
"""Files written as one change; there are names for 32 768."""

_STAND: Final = "SELECT number, erased, epoch FROM home WHERE home = current_setting('muniment.home')"
_UNFINISHED: Final = "SELECT count(*) FROM change_set WHERE done IS NULL AND review IS NULL"
_BEHIND: Final = (
    "SELECT root.path, rel, before, before_digest, after, after_digest FROM change_set "
    "JOIN change ON change.home = change_set.home AND change.change_set = change_set.id "
    "JOIN root ON root.home = change.home AND root.id = change.root "
    "WHERE number > ? AND number <= ? ORDER BY number, position LIMIT ?"
)
_GROWTH: Final = (
    "SELECT root.path, count(*) FILTER (WHERE before_digest IS NULL) "
    "- count(*) FILTER (WHERE after_digest IS NULL) FROM change_set "
    "JOIN change_kept AS kept ON kept.home = change_set.home AND kept.change_set = change_set.id "
    "JOIN root ON root.home = kept.home AND root.id = kept.root "
    "WHERE number > ? AND number <= ? GROUP BY root.path"
)
_NEWEST: Final = (
    "SELECT root.path, newest.rel, blob.content, after_digest, known.trust, known.at FROM ("
    "SELECT DISTINCT ON (root, rel) kept.home, root, rel, after_blob, after_digest FROM change_kept AS kept "
    "JOIN change_set ON change_set.home = kept.home AND change_set.id = kept.change_set "
    "WHERE number IS NOT NULL ORDER BY root, rel, number DESC) AS newest "
    "JOIN root ON root.home = newest.home AND root.id = newest.root "
    "LEFT JOIN blob ON blob.home = newest.home AND blob.digest = newest.after_blob "
    "LEFT JOIN provenance AS known ON known.home = newest.home AND known.root = newest.root "
    "AND known.rel = newest.rel AND known.digest = newest.after_digest"
)


class Stand(NamedTuple):
    """The position of a ledger.

    Attributes:
        number: number of the last commit that is done.
        erased: number of erasures.
        epoch: epoch of the lease.
    """

    number: int
    erased: int
    epoch: int


class Lacking(NamedTuple):
    """The changes that a copy lacks.

    Attributes:
        changes: changes of its files.
        scopes: scopes that were written to.
        known: origins of the files, if these are all files of the copy; None: it has others.
    """

    changes: list[FileChange]
    scopes: set[Scope]
    known: Known | None = None


def stand(ledger: Ledger) -> Stand | None:
    """Return the position of a ledger, or None if its home was deleted.

    Raises:
        ManagedMemoryUnavailable: it cannot be read; the other functions here raise this too.
    """
    found = ledger.rows(_STAND)
    return Stand(*found[0]) if found else None


def is_any_begun(ledger: Ledger) -> bool:
    """Return whether a commit has begun and is not done."""
    ((count,),) = ledger.rows(_UNFINISHED)
    return bool(count)


def behind(ledger: Ledger, after: int, upto: int, scopes: Collection[Scope]) -> Lacking | None:
    """Return the net file changes since a commit; None if there are too many or bytes were erased.

    Args:
        ledger: ledger of the memory.
        after: number of the commit up to which the copy is complete.
        upto: number of the last commit to include.
        scopes: scopes of the copy.

    Raises:
        PathEscape, Refusal: a path of the ledger is not the path of an entry.
    """
    rows = ledger.rows(_BEHIND, (after, upto, MOST_BEHIND + 1))
    if len(rows) > MOST_BEHIND or any(ERASED in {was, becomes} for _, _, _, was, _, becomes in rows):
        return None
    changes = _net(rows, scopes)
    return Lacking(
        [each for each in changes if each.before != each.after], {each.path.scope for each in changes}
    )


def growth(ledger: Ledger, after: int, upto: int, scopes: Collection[Scope]) -> int:
    """Return by how many entries the scopes grew in the commits after a number, if nothing was erased."""
    return sum(count for root, count in ledger.rows(_GROWTH, (after, upto)) if os.fsdecode(root) in scopes)


def newest(ledger: Ledger, scopes: Collection[Scope]) -> Lacking:
    """Return the newest content of all files, and their origins; raises as `behind`."""
    changes: list[FileChange] = []
    written: set[Scope] = set()
    known: dict[tuple[Scope, RelPath, Digest], tuple[Trust, str]] = {}
    with ledger.each(_NEWEST) as rows:
        for root, rel, content, found, trust, at in rows:
            path = _path(root, rel, scopes)
            if path is None:
                continue
            written.add(path.scope)
            if content is not None:
                changes.append(FileChange(path, None, content))
                if trust is not None:
                    known[path.scope, path.rel, found] = Trust(trust), at
    return Lacking(changes, written, known)


def carry_out(
    lacking: Lacking,
    state: State,
    roots: Mapping[Scope, BoundRoot],
    policy: Policy,
    patience: Patience,
) -> None:
    """Apply missing changes to a copy, and update its catalog and indexes.

    Args:
        lacking: the missing changes.
        state: state of the copy.
        roots: roots of the copy.
        policy: determines the trust of its files.
        patience: time limit for locks.

    Raises:
        PlatformUnsupported: as `policy.platforms.require_writing`.
        StoreConflict, PathEscape, Refusal, ToolError: the copy differs from the ledger (C1).
        DeadlineExceeded, Cancelled: another process holds a lock.
        ManagedMemoryUnavailable: a file cannot be written.
    """
    require_writing(policy)
    changes, written, known = lacking
    whole = known is not None
    touched = set(roots) if whole else written
    with lock_roots([roots[scope] for scope in touched], patience) as held:
        for start in range(0, len(changes), _AT_ONCE):
            replay(changes[start : start + _AT_ONCE], held)
        for scope in touched:
            view = view_of(state, held[scope], policy, known=known or NONE_KNOWN)
            temporary = partial(temporary_of_index, new_token())
            write_index(state, held, view, temporary, whole=whole, always=scope in written)


def _net(rows: Iterable[tuple[Any, ...]], scopes: Collection[Scope]) -> list[FileChange]:
    """Return the net change of each file in a list of changes, including files that end up unchanged."""
    first: dict[CanonicalPath, bytes | None] = {}
    last: dict[CanonicalPath, bytes | None] = {}
    for root, rel, before, _, after, _ in rows:
        path = _path(root, rel, scopes)
        if path is not None:
            first.setdefault(path, before)
            last[path] = after
    bases = {path: None if before is None else digest(before) for path, before in first.items()}
    return [FileChange(path, bases[path], after, first[path]) for path, after in last.items()]


def _path(root: bytes, rel: str, scopes: Collection[Scope]) -> CanonicalPath | None:
    """Return the path of a ledger's file in the copy, or None if the policy no longer has its scope."""
    scope = os.fsdecode(root)
    return canonicalise(f"{scope}/{rel}", scopes) if scope in scopes else None
