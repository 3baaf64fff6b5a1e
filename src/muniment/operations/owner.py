"""Operations of the owner on the whole memory: explain the policy, rebuild indexes, erase files."""

from __future__ import annotations

from muniment.cancelling import Cancel
from muniment.errors import BadArguments, PathEscape, Refusal
from muniment.events import track_progress
from muniment.kernel.decide import Deny, PolicyEvaluator
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.operations.job_context import JobContext, parse_address
from muniment.operations.undoable import resolve_target
from muniment.store import erase as erasing
from muniment.store.index_plan import IndexCheck
from muniment.store.index_upkeep import rebuild_index, verify_root_index
from muniment.store.upkeep import open_view
from muniment.types import ErasePlan, EraseResult, Explained, IndexResult


def explain(context: JobContext, verb: str, unsafe_path: str) -> Explained:
    """Return whether the policy allows a verb on a path, and the rule that denies it.

    Args:
        context: the memory; the caller closes it.
        verb: `list`, `read`, `create`, `modify` or `delete`.
        unsafe_path: a path such as user/editor/dark-mode.md, or its address.

    Raises:
        BadArguments: the verb is unknown.
    """
    if verb not in list(Verb):
        raise BadArguments(f"unknown verb {verb!r}; use one of {', '.join(Verb)}")
    try:
        decision = PolicyEvaluator(context.policy).decide(
            Verb(verb), canonicalise(parse_address(unsafe_path), context.roots)
        )
    except (PathEscape, Refusal) as error:
        decision = Deny(error.code, "paths", str(error))
    if not isinstance(decision, Deny):
        return Explained(policy=context.policy.label, verdict="allow")
    return Explained(
        policy=context.policy.label,
        verdict="deny",
        rule=decision.rule,
        layer=decision.layer,
        reason=decision.reason,
    )


def rebuild_indexes(
    context: JobContext,
    *,
    dry_run: bool = False,
    cancel: Cancel | None = None,
) -> IndexResult:
    """Rebuild the index of every scope from its entries, and verify it.

    Args:
        context: the memory; the caller closes it.
        dry_run: only verify the existing indexes; write nothing.
        cancel: cancels the call; an index whose write has started is completed.

    Raises:
        ManagedMemoryUnavailable, StoreConflict, QuotaExceeded: an index cannot be written or verified.
        DeadlineExceeded, Cancelled: before the next index was written.

    Cost: a check of every file.
    """
    notes, deadline = list[str](), context.start_deadline(cancel)
    for scope in () if dry_run else context.select_scopes(None):
        with track_progress(f"rebuilding the index of {scope}"):
            notes += rebuild_index(context.state, context.roots[scope], context.policy, deadline)
    checks = list[IndexCheck]()
    for bound in context.roots.values():
        with track_progress(f"checking the index of {bound.scope}"):
            checks.append(verify_root_index(context.state, bound, context.policy))
    problems = tuple(problem for check in checks for problem in check.problems)
    if dry_run:
        for bound in context.roots.values():
            skipped_files = open_view(context.state, bound, context.policy).list_odd_names()
            notes += (f"{bound.scope}/{item.path}: {item.reason}" for item in skipped_files)
        notes += (note for check in checks for note in check.notes)
    else:
        notes = [note for note in notes if note not in problems]
    return IndexResult(correct=not problems, problems=problems, notes=tuple(notes))


def erase(
    context: JobContext, target: str, *, dry_run: bool = False, cancel: Cancel | None = None
) -> ErasePlan | EraseResult:
    """Erase an entry, or everything that a task wrote, permanently.

    The whole history of each file is erased too; see `store.erase`.

    Args:
        context: the memory; the caller closes it.
        target: the path, address or handle of an entry; or the id or handle of a task, for every file that
            the task wrote.
        dry_run: report what would be erased; erase nothing.
        cancel: cancels the call, before anything is erased.

    Raises:
        NotFound: the memory contains no trace of the target.
        BadName: several entries or tasks have the handle.
        PathEscape, Refusal, ToolError: the target is not the path of a file that can be erased.
        InvalidScope: the task wrote to directories that are not bound in this memory.
        StoreConflict: another process wrote a file in the meantime; retry.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: the erasure was not completed; retry.
    """
    erase_context = erasing.EraseContext(
        context.state, context.roots, context.policy, context.start_deadline(cancel)
    )
    run_operation = erasing.plan_erasure if dry_run else erasing.erase
    found = parse_address(target) if "/" in target else resolve_target(context, target)
    return run_operation(found if isinstance(found, str) else found.text, erase_context)
