"""Operations of the owner on the whole memory: explain the policy, rebuild the indexes, erase for good."""

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
        place: the memory; stays the caller's.
        verb: `list`, `read`, `create`, `modify` or `delete`.
        unsafe_path: a path such as user/editor/dark-mode.md, or its address.

    Raises:
        BadArguments: no such verb.
    """
    if verb not in list(Verb):
        raise BadArguments(f"invalid verb {verb!r}: use one of {', '.join(Verb)}")
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
    """Write the index of every scope anew from its entries, and verify it.

    Args:
        place: the memory; stays the caller's.
        dry_run: only verify the indexes as they are, and write nothing.
        cancel: ends it early; an index that is being written is written to its end.
        observe: told once for each scope that is rebuilt, and once for each that is verified.

    Raises:
        ManagedMemoryUnavailable, StoreConflict, QuotaExceeded: an index cannot be written or verified.
        DeadlineExceeded, Cancelled: before the next index was written.

    Cost: a look at every file.
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
    """Erase an entry or what a task wrote, with its whole history, for good; see `store.erase`.

    Args:
        place: the memory; stays the caller's.
        target: the path of a file, its address, or the id of a task: then every file that it wrote.
        dry_run: report what would be erased, and erase nothing.
        cancel: ends it early, before anything is erased.

    Raises:
        NotFound: nothing is known of it.
        PathEscape, Refusal, ToolError: not a path of a file that can be erased.
        InvalidScope: the task wrote to directories that are not bound here.
        StoreConflict: somebody wrote a file anew meanwhile; run it again.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: run it again.
    """
    ground = erasing.EraseGround(place.state, place.roots, place.policy, place.patience(cancel))
    carry_out = erasing.plan if dry_run else erasing.erase
    return carry_out(path_of_address(target), ground)
