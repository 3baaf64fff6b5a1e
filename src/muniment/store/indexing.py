"""Keeps `MEMORY.md` of a root equal to what its entries say.

The index is derived, so it claims nothing and may be rebuilt at any time; but a person's own
`MEMORY.md` is never lost: what is not ours is first saved whole as an entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.confine.writing import lock_roots
from muniment.errors import NotFound, PathEscape, ToolError
from muniment.names import INDEX_NAME, RelPath, Trust, Via
from muniment.policy.grammar import FILE_SUFFIX
from muniment.store.apply import Expected, Write, apply
from muniment.store.index import is_generated, render_index
from muniment.store.naming import free_name
from muniment.store.scan import Scan, index_rows, scan

SAVED_NAME: Final = "memory-before-muniment"
"""Stem of the entry that keeps an index which we did not write."""

_REPLACED: Final = frozenset({Via.SYMLINK, Via.HARDLINK})


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """What is to be written so that an index is right, and what a person should know of it."""

    writes: tuple[Write, ...] = ()
    notes: tuple[str, ...] = ()


def plan_index(root: BoundRoot, after: Scan, trust: Trust) -> IndexPlan:
    """The writes that make the index of `root` say what `after` says.

    A scan that could not read everything never overwrites an index. A link or hard link at the name is
    replaced, not followed; anything else that cannot be read as a file is left alone and told.

    Raises:
        QuotaExceeded: as `free_name`, for the entry that keeps what is not ours.
    """
    name = f"{root.scope}/{INDEX_NAME}"
    if not after.complete:
        return IndexPlan(notes=(f"{name} cannot be rebuilt: the memory could not be read completely",))
    before: bytes | Expected
    notes: tuple[str, ...] = ()
    try:
        before = root.root.read_bytes(INDEX_NAME)
    except NotFound:
        before = Expected.ABSENT
    except PathEscape as escape:
        if escape.via not in _REPLACED:
            return IndexPlan(
                notes=(
                    f"{name} cannot be rebuilt: something special has its name ({escape.via}); move it away",
                )
            )
        before = Expected.LINK
        notes = (f"{name} was a link; the index takes its place, what it led to is left alone",)
    except ToolError as error:
        return IndexPlan(notes=(f"{name} cannot be rebuilt: {error}; move it away",))
    if before is Expected.ABSENT and not after.entries:
        return IndexPlan()  # An empty memory needs no index.
    saved: tuple[Write, ...] = ()
    if isinstance(before, bytes) and not is_generated(before):
        taken = {"": after.names.get("", ())}
        rel = RelPath(free_name(root.scope, "", SAVED_NAME, FILE_SUFFIX, taken))
        saved = (Write(root, rel, Expected.ABSENT, before),)
        notes = (f"{name} was not ours; it is saved as {root.scope}/{rel}",)
        after = after.patched({rel: before})
    index = render_index(root.scope, index_rows(after, trust))
    if index == before:
        return IndexPlan(saved, notes)
    return IndexPlan((*saved, Write(root, RelPath(INDEX_NAME), before, index)), notes)


def rebuild_index(root: BoundRoot, trust: Trust, patience: Patience) -> tuple[str, ...]:
    """Rebuild one index under the lock of its root; what a person should know.

    Raises:
        StoreConflict: someone changed it meanwhile.
        QuotaExceeded: as `plan_index`.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: as a commit.
    """
    with lock_roots([root], patience):
        plan = plan_index(root, scan(root.root), trust)
        patience.check()
        apply(plan.writes)
    return plan.notes


def verify_index(root: BoundRoot, trust: Trust) -> tuple[str, ...]:
    """What is wrong with the index of `root`; empty if it is what a rebuild would write."""
    name = f"{root.scope}/{INDEX_NAME}"
    plan = plan_index(root, scan(root.root), trust)
    if any(write.rel != INDEX_NAME for write in plan.writes):
        return (f"{name} is not ours; a rebuild will first save it as an entry",)
    if not plan.writes:
        return plan.notes
    match plan.writes[0].before:
        case Expected.ABSENT:
            problem = "is missing"
        case Expected.LINK:
            problem = "is a link"
        case _:
            problem = "differs from its entries"
    return (f"{name} {problem}; run: muniment index rebuild",)
