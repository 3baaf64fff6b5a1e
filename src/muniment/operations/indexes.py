"""The indexes that the model of a run receives."""

from __future__ import annotations

from muniment.agent.chat import IndexExcerpt
from muniment.agent.model import Brief
from muniment.errors import PathEscape, ToolError
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import INDEX_NAME, RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.names import ContextMode
from muniment.operations.job_context import JobContext
from muniment.store.index import filter_index
from muniment.store.index_upkeep import (
    build_listable_test,
    build_lower_trust_lookup,
    is_index_unchanged,
    list_expired,
)


def load_run_indexes(
    brief: Brief, context: JobContext, policy: Policy, reader: Trust
) -> tuple[IndexExcerpt, ...]:
    """Return the index of each scope in which a run may write, as the model of the run may see it.

    An index that another program wrote is omitted. Lines about entries that the run may not read are removed.
    A run in the mode `clean` gets no index.

    Args:
        brief: the brief of the run.
        context: the memory.
        policy: the policy of the run.
        reader: the trust of the requester.
    """
    if brief.context is ContextMode.CLEAN:
        return ()
    return tuple(
        IndexExcerpt(scope, policy.get_trust(scope), text)
        for scope in brief.writable
        if (text := load_visible_index(context, policy, scope, reader)) is not None
    )


def load_visible_index(context: JobContext, policy: Policy, scope: Scope, reader: Trust) -> str | None:
    """Return the index of a scope as a model may see it.

    The result is None if the index is missing or another program wrote it.

    Args:
        context: the roots and the state.
        policy: decides which entries are visible.
        scope: one of the bound scopes.
        reader: the trust of the reader. Of an entry with lower trust, only the trust and a shortened path are
            shown.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    judge, root = PolicyEvaluator(policy), context.roots[scope]
    # An entry may have expired, been withheld or been deleted since the index was written.
    expired_paths = list_expired(context.state, root) if reader is Trust.OWNER else frozenset()
    is_listable = build_listable_test(context.state, root)

    def is_line_visible(rel: RelPath) -> bool:
        path = CanonicalPath(scope, rel)
        is_current = rel not in expired_paths if reader is Trust.OWNER else is_listable(rel)
        return is_current and judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)

    try:
        index = context.read_file(CanonicalPath(scope, RelPath(INDEX_NAME)))
    except (PathEscape, ToolError):
        return None  # Without an index the agent still has its tools; the next commit writes one.
    # An index from another program may contain any text, and its trust is unknown.
    if not is_line_visible(RelPath(INDEX_NAME)) or not is_index_unchanged(context.state, root, index):
        return None
    return filter_index(index, is_line_visible, build_lower_trust_lookup(context.state, root, reader))
