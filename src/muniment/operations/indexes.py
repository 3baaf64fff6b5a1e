"""The indexes that the model of a run receives."""

from __future__ import annotations

from muniment.agent.chat import IndexExcerpt
from muniment.agent.model import Brief
from muniment.errors import PathEscape, ToolError
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import INDEX_NAME, RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode
from muniment.operations.place import Place
from muniment.store.index import excerpt
from muniment.store.upkeep import expired_in, is_as_written, is_listable_in, trusted_less


def run_indexes(brief: Brief, place: Place, policy: Policy, reader: Trust) -> tuple[IndexExcerpt, ...]:
    """Return the indexes for the model of a run.

    An index is included if the run may write its scope and this program wrote the index. Lines about entries
    that the run may not read are removed.
    """
    if brief.context is ContextMode.CLEAN:
        return ()
    return tuple(
        IndexExcerpt(scope, policy.trust_of(scope), shown)
        for scope in brief.writable
        if (shown := shown_index(place, policy, scope, reader)) is not None
    )


def shown_index(place: Place, policy: Policy, scope: Scope, reader: Trust) -> str | None:
    """Return the index of a scope as a model may see it.

    The result is None if the index is missing or another program wrote it.

    Args:
        place: the roots and the state.
        policy: decides which entries are visible.
        scope: one of the bound scopes.
        reader: the trust of the reader. Below the owner's, only entries without words of less trusted authors
            are listed.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    judge, root = Judge(policy), place.roots[scope]
    # An entry may have expired, been withheld or been deleted since the index was written.
    over = expired_in(place.state, root) if reader is Trust.OWNER else frozenset()
    is_listable = is_listable_in(place.state, root)

    def shows(rel: RelPath) -> bool:
        path = CanonicalPath(scope, rel)
        is_current = rel not in over if reader is Trust.OWNER else is_listable(rel)
        return is_current and judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)

    try:
        index = place.read(CanonicalPath(scope, RelPath(INDEX_NAME)))
    except (PathEscape, ToolError):
        return None  # Without an index the agent still has its tools; the next commit writes one.
    # An index from another program may contain any text, and its trust is unknown.
    if not shows(RelPath(INDEX_NAME)) or not is_as_written(place.state, root, index):
        return None
    return excerpt(index, shows, trusted_less(place.state, root, reader))
