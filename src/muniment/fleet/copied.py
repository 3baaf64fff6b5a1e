"""A copy of a memory whose ledger machines share: what that says is done, carried out in its files.

C1 Files come to be as the newest commit left each, or as those since a number did; nothing else is written.
   What stands in the copy and is not what the ledger says stood there is found, and not written over.
C2 Paths are those of entries in the roots of the copy, whatever stands in the ledger.
C3 Catalog and indexes follow, as where it was done: a scope that was ever written to has an index, whatever
   is left in it. Where each file is from is asked for all of them at once.

Does not hold: that what is done was allowed. Another machine has judged it, by its policy.

Apart from `copies`, which decides when: this reads and writes files.
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
"""Changes up to which a copy is brought up to date; behind more, it is made anew."""

_AT_ONCE: Final = 10_000
"""Files that are written as one change: there are names for 32 768."""

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
    """How far a ledger is.

    Attributes:
        number: of the last commit that is done.
        erased: how often something was erased.
        epoch: of the lease.
    """

    number: int
    erased: int
    epoch: int


class Lacking(NamedTuple):
    """What a copy lacks.

    Attributes:
        changes: of its files.
        scopes: those that were written to.
        known: what is known of the files, where these are all that it will have; None: it has others.
    """

    changes: list[FileChange]
    scopes: set[Scope]
    known: Known | None = None


def stand(ledger: Ledger) -> Stand | None:
    """How far a ledger is; None: it is no more.

    Raises:
        ManagedMemoryUnavailable: it cannot be read; so do all of these.
    """
    found = ledger.rows(_STAND)
    return Stand(*found[0]) if found else None


def is_any_begun(ledger: Ledger) -> bool:
    """Whether a commit was begun that is not done."""
    ((count,),) = ledger.rows(_UNFINISHED)
    return bool(count)


def behind(ledger: Ledger, after: int, upto: int, scopes: Collection[Scope]) -> Lacking | None:
    """What commits made of files since a number; None: too much, or bytes are no longer known.

    Args:
        ledger: of the memory.
        after: the number of a commit, up to which the copy is like it.
        upto: likewise, of the last one.
        scopes: those that the copy has.

    Raises:
        PathEscape, Refusal: a path of the ledger is none of an entry.
    """
    rows = ledger.rows(_BEHIND, (after, upto, MOST_BEHIND + 1))
    if len(rows) > MOST_BEHIND or any(ERASED in {was, becomes} for _, _, _, was, _, becomes in rows):
        return None
    changes = _net(rows, scopes)
    return Lacking(
        [each for each in changes if each.before != each.after], {each.path.scope for each in changes}
    )


def growth(ledger: Ledger, after: int, upto: int, scopes: Collection[Scope]) -> int:
    """Return by how many entries the scopes grew with the commits after a number, if nothing was erased."""
    return sum(count for root, count in ledger.rows(_GROWTH, (after, upto)) if os.fsdecode(root) in scopes)


def newest(ledger: Ledger, scopes: Collection[Scope]) -> Lacking:
    """The files as the last commits left them, and what is known of each; raises as `behind`."""
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
    """Carry out in a copy what is done elsewhere, and have its catalog and indexes follow.

    Args:
        lacking: what it lacks.
        state: of the copy.
        roots: of the copy.
        policy: says how its files are trusted.
        patience: how long to wait for locks.

    Raises:
        PlatformUnsupported: as `policy.platforms.require_writing`.
        StoreConflict, PathEscape, Refusal, ToolError: the copy is not what the ledger says (C1).
        DeadlineExceeded, Cancelled: somebody else holds a lock.
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
    """What changes, in order, make of each file, also of one that is as it was."""
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
    """A file of the ledger in the copy; None: the policy no longer has its scope."""
    scope = os.fsdecode(root)
    return canonicalise(f"{scope}/{rel}", scopes) if scope in scopes else None
