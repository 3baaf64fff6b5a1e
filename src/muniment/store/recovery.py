"""Find the commits that were interrupted, and roll them back.

Separate from `index_upkeep`: every command calls this, and few need the modules that write.
"""

from __future__ import annotations

from collections.abc import Mapping

from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Policy
from muniment.kernel.names import Scope
from muniment.policy.platforms import may_write
from muniment.portable import SYSTEM
from muniment.store.ledger import get_root_key, list_unfinished
from muniment.store.state import State


def recover_roots(
    state: State, roots: Mapping[Scope, BoundRoot], policy: Policy, deadline: Deadline
) -> tuple[str, ...]:
    """Roll back interrupted commits in `roots`, and update the indexes there; return notes for the user.

    Raises:
        ManagedMemoryUnavailable: a file or the ledger cannot be written.
        DeadlineExceeded, Cancelled: another process holds the lock of a root.

    Cost: if no commit was interrupted, one query and no lock.
    """
    if not list_unfinished(state, [get_root_key(state, root) for root in roots.values()]):
        return ()
    from muniment.kernel.apply import lock_roots
    from muniment.store.index_upkeep import recover_locked_roots
    from muniment.store.journal import LedgerJournal

    found = LedgerJournal(state, roots).list_unfinished(roots)
    scopes = {path.scope for intent in found for path in (each.path for each in intent.changes.values())}
    notes: tuple[str, ...] = ()
    interrupted = f"a commit in {', '.join(sorted(scopes))} was interrupted and is not rolled back"
    if scopes and state.read_only_path is not None:
        return (
            f"{interrupted}: {state.read_only_path} cannot be written; make it writable and run this again",
        )
    if scopes and not may_write(policy):
        return (f"{interrupted} on {SYSTEM}: this policy allows writing only on Linux",)
    for scope in (scope for scope in roots if scope in scopes):
        with lock_roots([roots[scope]], deadline) as locked_roots:
            notes += recover_locked_roots(state, locked_roots, policy)
    return notes
