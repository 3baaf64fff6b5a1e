"""Find the earlier and later paths of renamed entries in the ledger.

A commit renames an entry if it removes a file and creates another one with the same id
(`handles.find_renames`). Bytes that were erased prove no rename.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from typing import Final

from muniment.kernel.names import Scope
from muniment.kernel.path import CanonicalPath
from muniment.store.handles import find_renames
from muniment.store.ledger import find_commit, read_history
from muniment.store.state import State
from muniment.types import CommittedStep
from muniment.types.keys import RootKey

MAX_RENAMES: Final = 1_000
"""Maximum number of renames that are followed for one entry."""


def find_next_path(
    state: State, scopes: Mapping[RootKey, Scope], path: CanonicalPath
) -> CanonicalPath | None:
    """Return the path to which the last change of a path renamed its entry, or None if it did not.

    Args:
        state: has the ledger.
        scopes: the scopes of the bound roots.
        path: the old path.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    steps = read_history(state, scopes, path, 1)
    return {old: new for new, old in _read_renames(state, scopes, steps[0])}.get(path) if steps else None


def read_whole_history(
    state: State, scopes: Mapping[RootKey, Scope], path: CanonicalPath, limit: int
) -> tuple[CommittedStep, ...]:
    """Return the steps of an entry, the newest first, also those under its earlier names.

    Args:
        state: has the ledger.
        scopes: the scopes of the bound roots.
        path: the path of the entry.
        limit: the maximum number of steps.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: two queries for each rename.
    """
    pieces = {path: read_history(state, scopes, path, limit)}
    pending = [*pieces[path]]
    while pending and len(pieces) <= MAX_RENAMES:
        step = pending.pop(0)
        renames = dict(_read_renames(state, scopes, step)) if step.kind == "new" else {}
        old = next((old for new, old in renames.items() if new.text == step.path), None)
        if old is not None and old not in pieces:
            earlier = read_history(state, scopes, old, limit)
            pieces[old] = tuple(each for each in earlier if each.at <= step.at)
            pending += pieces[old]
    return tuple(merge(*pieces.values(), key=lambda step: step.at, reverse=True))[:limit]


def _read_renames(
    state: State, scopes: Mapping[RootKey, Scope], step: CommittedStep
) -> Iterator[tuple[CanonicalPath, CanonicalPath]]:
    """Yield the new and the old path of each entry that the task of a step renamed."""
    if (done := find_commit(state, step.task)) is None:
        return
    rows = {item.change.path: scopes.get(item.root) for item in done.changes}
    for new, old in find_renames(item.change for item in done.changes).items():
        scope = rows[new]
        if scope is not None and scope == rows[old]:  # A scope may have had another name.
            yield CanonicalPath(scope, new.rel), CanonicalPath(scope, old.rel)
