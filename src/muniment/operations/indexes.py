"""The indexes that a run is shown."""

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
    """The indexes that the run is shown: ours, of scopes that it may write, without what it may not read."""
    if brief.context is ContextMode.CLEAN:
        return ()
    return tuple(
        IndexExcerpt(scope, policy.trust_of(scope), shown)
        for scope in brief.writable
        if (shown := shown_index(place, policy, scope, reader)) is not None
    )


def shown_index(place: Place, policy: Policy, scope: Scope, reader: Trust) -> str | None:
    """The index of a scope as a model may see it; None: there is none, or none that we wrote.

    Args:
        place: where.
        policy: says what may be seen.
        scope: one of the place's roots.
        reader: trust of whoever is shown it; of entries below that no words of others are.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    judge, root = Judge(policy), place.roots[scope]
    # Nobody may have written the index since something expired, was withheld or went.
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
    # Of another's making it may say anything, and nobody could tell how far to trust that.
    if not shows(RelPath(INDEX_NAME)) or not is_as_written(place.state, root, index):
        return None
    return excerpt(index, shows, trusted_less(place.state, root, reader))
