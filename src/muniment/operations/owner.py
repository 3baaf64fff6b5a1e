"""Operations of the owner on the whole memory: explain the policy, rebuild indexes, erase files."""

from __future__ import annotations

from collections.abc import Callable

from muniment.cancelling import Cancel
from muniment.errors import BadArguments, PathEscape, Refusal
from muniment.kernel.decide import Deny, Judge
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.operations.place import Place, path_of_address
from muniment.store import erase as erasing
from muniment.store.index_plan import IndexCheck
from muniment.store.upkeep import rebuild, verify, view_of
from muniment.types import ErasePlan, EraseResult, Explained, IndexResult


def explain(place: Place, verb: str, unsafe_path: str) -> Explained:
    """Explain the decision of the policy about a verb on a path.

    Args:
        place: the memory; the caller closes it.
        verb: `list`, `read`, `create`, `modify` or `delete`.
        unsafe_path: a path such as user/editor/dark-mode.md, or its address.

    Raises:
        BadArguments: unknown verb.
    """
    if verb not in list(Verb):
        raise BadArguments(f"unknown verb {verb!r}; use one of {', '.join(Verb)}")
    try:
        verdict = Judge(place.policy).decide(
            Verb(verb), canonicalise(path_of_address(unsafe_path), place.roots)
        )
    except (PathEscape, Refusal) as error:
        verdict = Deny(error.code, "paths", str(error))
    if not isinstance(verdict, Deny):
        return Explained(policy=place.policy.label, verdict="allow")
    return Explained(
        policy=place.policy.label,
        verdict="deny",
        rule=verdict.rule,
        layer=verdict.layer,
        reason=verdict.reason,
    )


def index(
    place: Place,
    *,
    dry_run: bool = False,
    cancel: Cancel | None = None,
    observe: Callable[[int], None] = lambda _: None,
) -> IndexResult:
    """Rebuild the index of every scope from its entries, and verify it.

    Args:
        place: the memory; the caller closes it.
        dry_run: only verify the existing indexes; write nothing.
        cancel: cancels the call; an index whose write has started is completed.
        observe: called once for each rebuilt scope, and once for each verified scope.

    Raises:
        ManagedMemoryUnavailable, StoreConflict, QuotaExceeded: an index cannot be written or verified.
        DeadlineExceeded, Cancelled: before the next index was written.

    Cost: a check of every file.
    """
    notes, patience = list[str](), place.patience(cancel)
    for scope in () if dry_run else place.chosen(None):
        notes += rebuild(place.state, place.roots[scope], place.policy, patience)
        observe(1)
    checks = list[IndexCheck]()
    for bound in place.roots.values():
        checks.append(verify(place.state, bound, place.policy))
        observe(1)
    problems = tuple(problem for check in checks for problem in check.problems)
    if dry_run:
        for bound in place.roots.values():
            odd = view_of(place.state, bound, place.policy).odd()
            notes += (f"{bound.scope}/{item.path}: {item.reason}" for item in odd)
        notes += (note for check in checks for note in check.notes)
    else:
        notes = [note for note in notes if note not in problems]
    return IndexResult(correct=not problems, problems=problems, notes=tuple(notes))


def erase(
    place: Place, target: str, *, dry_run: bool = False, cancel: Cancel | None = None
) -> ErasePlan | EraseResult:
    """Erase an entry, or everything that a task wrote, permanently.

    The whole history of the file is erased too; see `store.erase`.

    Args:
        place: the memory; the caller closes it.
        target: the path of a file, its address, or the id of a task: then every file that it wrote.
        dry_run: report what would be erased; erase nothing.
        cancel: cancels the call, before anything is erased.

    Raises:
        NotFound: the memory contains no trace of the target.
        PathEscape, Refusal, ToolError: not a path of a file that can be erased.
        InvalidScope: the task wrote to directories that are not bound in this memory.
        StoreConflict: another process wrote a file in the meantime; retry.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: retry.
    """
    ground = erasing.EraseGround(place.state, place.roots, place.policy, place.patience(cancel))
    carry_out = erasing.plan if dry_run else erasing.erase
    return carry_out(path_of_address(target), ground)
