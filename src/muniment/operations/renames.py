"""Describe renames to the owner: of the entries that a task renamed, and of a path that is missing.

Only the owner gets the new path of a missing one: an old path often states an old fact.
"""

from __future__ import annotations

from collections.abc import Iterable

from muniment.errors import NotFound
from muniment.kernel.path import CanonicalPath
from muniment.operations.job_context import JobContext
from muniment.store.renames import MAX_RENAMES, find_next_path
from muniment.types import Change


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
    scopes = context.map_keys_to_scopes()
    for _ in range(MAX_RENAMES):
        found = find_next_path(context.state, scopes, path)
        if found is None or context.roots[found.scope].root.examine(found) is not None:
            return found
        path = found
    return None
