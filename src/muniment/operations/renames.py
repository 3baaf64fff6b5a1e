"""Follow entries over renames in the ledger: their history, and the new path of one that is missing.

A commit renames an entry if it removes a file and creates another one with the same id
(`store.handles.find_renames`). Only the owner gets these answers: an old path often states an old fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from muniment.errors import NotFound
from muniment.kernel.path import CanonicalPath
from muniment.operations.job_context import JobContext
from muniment.store.handles import find_renames
from muniment.store.ledger import find_commit, read_history
from muniment.types import Change, CommittedStep

MAX_RENAMES: Final = 100
"""Maximum number of renames that are followed for one entry."""


def describe_renames(changes: Iterable[Change]) -> list[str]:
    """Return a note for the user about each entry that some changes rename."""
    return [f"{each.renamed_from} is now {each.path}" for each in changes if each.renamed_from is not None]


def read_entry_file(context: JobContext, path: CanonicalPath) -> bytes:
    """Return the bytes of an entry for its owner.

    Raises:
        NotFound: the file is missing; the message contains the new path if the entry was renamed.
        PathEscape, Refusal, ToolError: as `JobContext.read_file`.
    """
    try:
        return context.read_file(path)
    except NotFound as error:
        if (new_path := find_new_path(context, path)) is None:
            raise
        raise NotFound(f"{error}; it is now {new_path.text}") from None


def find_new_path(context: JobContext, path: CanonicalPath) -> CanonicalPath | None:
    """Return the path that an entry has after its renames; None if no task renamed it, or it is missing too.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: two queries for each rename.
    """
    for _ in range(MAX_RENAMES):
        steps = read_history(context.state, context.map_keys_to_scopes(), path, 1)
        renames = {} if not steps else {old: new for new, old in _read_renames(context, steps[0])}
        if path not in renames:
            return None
        path = renames[path]
        if context.roots[path.scope].root.examine(path) is not None:
            return path
    return None


def read_whole_history(context: JobContext, path: CanonicalPath, limit: int) -> tuple[CommittedStep, ...]:
    """Return the steps of an entry, the newest first, also those under its earlier names.

    Raises:
        ManagedMemoryUnavailable: the ledger cannot be read.

    Cost: two queries for each rename.
    """
    keys = context.map_keys_to_scopes()
    pieces = {path: read_history(context.state, keys, path, limit)}
    pending = [*pieces[path]]
    while pending and len(pieces) <= MAX_RENAMES:
        step = pending.pop(0)
        renames = dict(_read_renames(context, step)) if step.kind == "new" else {}
        old = next((old for new, old in renames.items() if new.text == step.path), None)
        if old is not None and old not in pieces:
            earlier = read_history(context.state, keys, old, limit)
            pieces[old] = tuple(each for each in earlier if each.at <= step.at)
            pending += pieces[old]
    merged = merge(*pieces.values(), key=lambda step: step.at, reverse=True)
    return tuple(merged)[:limit]


def _read_renames(context: JobContext, step: CommittedStep) -> Iterator[tuple[CanonicalPath, CanonicalPath]]:
    """Yield the new and the old path of each entry that the task of a step renamed."""
    done, scopes = find_commit(context.state, step.task), context.map_keys_to_scopes()
    rows = {} if done is None else {item.change.path: scopes.get(item.root) for item in done.changes}
    for new, old in ({} if done is None else find_renames(item.change for item in done.changes)).items():
        scope = rows[new]
        if scope is not None and scope == rows[old]:  # A scope may have had another name.
            yield CanonicalPath(scope, new.rel), CanonicalPath(scope, old.rel)
