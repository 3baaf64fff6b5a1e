"""Plans for what only the owner may ask: reviews, undo, erase, the audit, the policy."""

from __future__ import annotations

from muniment.client import reading, results
from muniment.client.core import Core, segment
from muniment.client.exchange import Plan, then


def reviews(core: Core) -> Plan[tuple[results.Review, ...]]:
    """The change-sets that wait."""
    return then(core.read("review"), reading.reviews_of)


def review(core: Core, review_id: str) -> Plan[results.ReviewShown]:
    """One of them, as it would be approved now."""
    return then(core.read(f"review/{segment(review_id)}"), reading.review_of)


def approve(core: Core, review_id: str, digest: str) -> Plan[results.Decided]:
    """Commit one exactly as it was shown."""
    return then(core.do(f"review/{segment(review_id)}/approve", {"digest": digest}), reading.decided_of)


def reject(core: Core, review_id: str) -> Plan[results.Decided]:
    """Turn one down."""
    return then(core.do(f"review/{segment(review_id)}/reject", {}), reading.decided_of)


def undo(core: Core, task_id: str) -> Plan[results.Undone]:
    """Take back what a task changed."""
    return then(core.do("undo", {"taskId": task_id}), reading.undone_of)


def erase(core: Core, target: str, *, yes: bool) -> Plan[results.ErasePlan | results.EraseReceipt]:
    """Erase what is known of a task or a path, or say what would go."""
    return then(core.do("erase", {"target": target, "yes": yes}), reading.erased_of)


def audit_head(core: Core) -> Plan[results.AuditHead]:
    """The end of the chain of records."""
    return then(core.read("audit/head"), reading.audit_head_of)


def explain(core: Core, verb: str, path: str) -> Plan[results.Explained]:
    """What the policy says to a verb on a path."""
    return then(core.read("policy/explain", {"verb": verb, "path": path}), reading.explained_of)
