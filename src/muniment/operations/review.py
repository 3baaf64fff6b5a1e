"""Approves a pending change-set: the owner's yes to exactly what was shown.

A1 The digest names the final text, what it rests on, the trusts and roots, and the policy as it is now.
   Another digest approves nothing.
A2 The judge runs again: paths, quotas, secrets and every other content gate hold as ever. An approval answers
   only what asked for it.
A3 What it rests on must still be so; else nothing is written, and the change-set stays pending.
A4 It commits at most once, under a task of its own, with the trusts that were shown; what is said of it is
   what the ledger says, also where something fails after its commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from muniment.cancelling import Cancel
from muniment.errors import (
    AlreadyUndone,
    Erased,
    InvalidScope,
    ManagedMemoryUnavailable,
    MunimentError,
    NotFound,
    PathEscape,
    ReviewChanged,
    ReviewClosed,
    StoreConflict,
    ToolError,
    UndoOverlap,
    printable,
)
from muniment.events import span
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeKind, ChangeSet, FileChange
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.operations.edit import for_move
from muniment.operations.job import emit_end, id_of_task, run_of, status_of, terms_of
from muniment.operations.place import Place, path_of_address
from muniment.policy.tables import grant_readable
from muniment.store.audit import timestamp
from muniment.store.commit import commit
from muniment.store.erase import remove_emptied
from muniment.store.ledger import (
    MAX_STEPS,
    ChangeRow,
    CommitRow,
    Run,
    content_at,
    content_before,
    history,
    of_task,
    undone_by,
    why,
)
from muniment.store.review import (
    Pending,
    approval_task,
    changed_lines,
    check_roots,
    close,
    load,
    pending,
    preview,
    turn_down,
)
from muniment.store.state import State
from muniment.store.trust import Ruling
from muniment.types import (
    CommittedStep,
    Origin,
    Review,
    ReviewDecision,
    ReviewShown,
    UndoResult,
)

# -- history -----------------------------------------------------------------------------------------
#
# What became of the memory of a place: its history, and where a file comes from.


STATES: Final[Mapping[str, str]] = {
    "committed": "is as this task left it",
    "edited": "was edited by hand since this task",
    "foreign": "was not written by Muniment; it has the trust of its scope",
    "removed": "was removed by this task",
    "missing": "was there after this task, and went by hand since",
}
"""What to say of a file by `Origin.state`."""

BECAME: Final[Mapping[ChangeKind, str]] = {"create": "new", "modify": "changed", "delete": "removed"}
"""What to say of it by `Change.kind`."""


def history_of(
    place: Place, unsafe_path: str | None = None, limit: int = MAX_STEPS
) -> tuple[CommittedStep, ...]:
    """What was committed to the roots that are bound here, the newest first; see `store.ledger.history`.

    Args:
        place: where.
        unsafe_path: a file, directory or scope; None: all of it.
        limit: how many steps at most.

    Raises:
        PathEscape, Refusal: it is no path of the memory.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    unsafe_path = None if unsafe_path is None else path_of_address(unsafe_path).removesuffix("/")
    below = canonicalise(unsafe_path, place.policy.scopes) if unsafe_path else None
    return history(place.state, place.scopes_by_key(), below, limit)


def why_of(place: Place, unsafe_path: str) -> Origin:
    """Where a file comes from, and whether it still is what was committed.

    Raises:
        PathEscape, Refusal: it is no path of the memory, or what stands there is no plain file.
        NotFound: nothing is there, nor was it.
        Erased: what was there was erased.
        ToolError: it cannot be read.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = place.path(unsafe_path)
    try:
        present = place.read(path)
    except NotFound:
        present = None
    return why(place.state, place.key(path.scope), path, present, place.policy.trust_of(path.scope))


def content_of(place: Place, unsafe_path: str, task: str) -> bytes | None:
    """The bytes of a file as a task left it; None if it removed the file.

    Raises:
        PathEscape, Refusal: it is no path of the memory.
        NotFound: the task did not change it.
        Erased: the bytes are no longer known.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = place.path(unsafe_path)
    return content_at(place.state, place.key(path.scope), path, task)


def diff_of(place: Place, unsafe_path: str, task: str) -> tuple[str, ...]:
    """What a task changed in a file, line by line, as a review shows it. Raises as `content_of`."""
    path = place.path(unsafe_path)
    key = place.key(path.scope)
    before = content_before(place.state, key, path, task)
    return tuple(changed_lines(before, content_at(place.state, key, path, task)))


# -- review ------------------------------------------------------------------------------------------


def waiting(place: Place) -> tuple[Pending, ...]:
    """What waits at a place: of nothing but the roots that are bound there."""
    keys = place.scopes_by_key().keys()
    return tuple(each for each in pending(place.state) if keys >= set(each.roots.values()))


def list_reviews(place: Place) -> tuple[Review, ...]:
    """List what waits at a place, as the library and the daemon return it."""
    return tuple(
        Review(
            review_id=each.id,
            kind=each.run.kind,
            at=each.run.at,
            reasons=tuple(each.reasons),
            paths=tuple(path.text for path in each.change_set.paths),
        )
        for each in waiting(place)
    )


def show(review_id: str, place: Place) -> ReviewShown:
    """What waits, as it would be approved now.

    Raises:
        NotFound, ReviewClosed: there is nothing to decide.
        InvalidScope: it is about other directories.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    held = load(place.state, review_id)
    check_roots(place.state, held, place.roots)

    def current(path: str) -> bytes | None:
        found = canonicalise(path, place.roots)
        try:
            return place.read(found)
        except NotFound:
            return None
        except (ToolError, PathEscape) as error:
            return f"(cannot be read: {error.code})\n".encode()

    digest = place.policy.digest
    return ReviewShown(review_id=review_id, text=preview(held, current, digest), digest=held.digest(digest))


def approve(review_id: str, digest: str, place: Place, *, cancel: Cancel | None = None) -> ReviewDecision:
    """Commit a pending change-set (A1 to A4).

    Args:
        review_id: which.
        digest: what `show` showed.
        place: the policy, roots and state; they stay the caller's.
        cancel: ends it early; once the commit has begun to write it runs to its end.

    Raises:
        NotFound, ReviewClosed: there is nothing to decide, or somebody was quicker.
        ReviewChanged: the digest is another one.
        InvalidScope: it is about other directories.
        StoreConflict: what it rests on is no longer so. It stays pending.
        Refusal, ToolError, PathEscape: the judge does not allow it. It stays pending.
        DeadlineExceeded, Cancelled: nothing was written. It stays pending.
        ManagedMemoryUnavailable: likewise, or what was written will be taken back before anything else is.
    """
    state = place.state
    held = load(state, review_id)
    check_roots(state, held, place.roots)
    if digest != held.digest(place.policy.digest):
        raise ReviewChanged(review_id)
    asked = held.run
    run = replace(
        asked,
        task=approval_task(review_id),
        kind="approve",
        at=timestamp(),
        policy=place.policy.label,
        answers=asked.kind,
    )
    trusts = {each.path: each.trust for each in held.change_set.changes}

    def trust(draft: FileChange, _: Trust | None) -> Ruling:
        load(state, review_id)  # Asked under the locks: nobody can reject it from here on.
        return Ruling(trusts.get(draft.path) or asked.trust)

    patience = place.patience(cancel)
    terms = replace(terms_of(place, run, patience, trust), reviewed=True)
    try:
        done = commit([held.change_set], terms)
        if done.repeated:
            raise ReviewClosed(review_id, "approved")
        close(state, review_id, "approved", run.at, run.task)
    except ManagedMemoryUnavailable as problem:
        return _approved_all_the_same(state, review_id, run.task, problem)
    return ReviewDecision(
        review_id=review_id,
        status="approved",
        task_id=run.task,
        files_touched=tuple(each.path for each in done.changes),
        changes=done.changes,
        touched_scopes=done.touched_scopes,
        notes=done.notes,
    )


def _approved_all_the_same(
    state: State, review_id: str, task: str, problem: ManagedMemoryUnavailable
) -> ReviewDecision:
    """What an approval did before something went wrong; raises the problem where that was nothing."""
    kept = of_task(state, task)
    if kept is None:
        raise problem
    notes = (*kept.notes, f"it was written, but then: {problem}")
    return ReviewDecision(
        review_id=review_id,
        status="approved",
        task_id=task,
        files_touched=tuple(each.path for each in kept.known),
        changes=kept.known,
        touched_scopes=kept.touched_scopes,
        notes=notes,
    )


def reject(review_id: str, place: Place, *, cancel: Cancel | None = None) -> ReviewDecision:
    """Decide that a change-set is never committed.

    Raises:
        NotFound, ReviewClosed, InvalidScope: as `approve`.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: it stays pending.
    """
    turn_down(place.state, review_id, place.roots, place.patience(cancel), timestamp())
    return ReviewDecision(
        review_id=review_id, status="rejected", files_touched=(), touched_scopes=(), notes=()
    )


# -- undo --------------------------------------------------------------------------------------------
#
# Undo: takes back what a task did, as a commit of its own.
#
# U1 Each file gets the bytes back that it had before the task, and its trust is what the ledger says of
# those; a file that the task made goes, with the directories that were made for it, if nothing else stands
# there. U2 All of it or nothing: where any of the files is not what the task left, by a later task or by
# hand, nothing is written and those files are named. U3 An undo is a task like any other, and can be
# undone.

DECIDED_BY: Final = "code"
"""What the ledger says where no model and no rule chose anything."""


def undo(task: str, place: Place, *, trust: Trust = Trust.OWNER, cancel: Cancel | None = None) -> UndoResult:
    """Take back what `task` did; what goes wrong is in the result's `error`, never raised.

    Args:
        task: id of the task.
        place: the policy, roots and state; they stay the caller's.
        trust: of the one who asks; what would replace text of a higher trust waits for the owner.
        cancel: ends it early; once the commit has begun to write it runs to its end.
    """
    run = replace(run_of(place, "undo", id_of_task("undo", None), trust, DECIDED_BY), undoes=task)
    with span("task", kind="undo") as task_span:
        try:
            result = _undo(task, run, place, place.patience(cancel))
        except MunimentError as error:
            result = UndoResult(
                task_id=run.task,
                undone=task,
                status=status_of(error),
                files_touched=(),
                touched_scopes=(),
                notes=(),
                error=error,
            )
        undone = None if isinstance(result.error, NotFound) else task  # An id of no task may be any text.
        emit_end("undo", result, task_span, undone=undone, files=len(result.changes))
    return result


def _undo(task: str, run: Run, place: Place, patience: Patience) -> UndoResult:
    kept = of_task(place.state, task)
    if kept is None:
        raise NotFound(f"no task {printable(task)!r} has changed this memory; see: muniment history")
    undone = undone_by(place.state, task)
    if undone is not None:
        raise AlreadyUndone(task, undone)
    scopes = _scopes(kept, place)
    change_set = _change_set(kept.changes, scopes, place)
    terms = terms_of(place, run, patience, lambda draft, _: Ruling(_trust_of(draft, place), by=run.trust))
    if run.trust is Trust.OWNER:
        policy = for_move(place.policy, [each.path for each in change_set.changes])
        policy = grant_readable(policy) if policy is place.policy else policy
        terms = replace(terms, policy=policy, reviewed=True)
    try:
        done = commit([change_set], terms)
    except StoreConflict as conflict:
        raise UndoOverlap(conflict.paths) from conflict
    made = [
        CanonicalPath(scope, rel)
        for item, scope in zip(kept.changes, scopes, strict=True)
        for rel in item.made
    ]
    notes = done.notes
    try:
        remove_emptied(place.roots, made, patience)
    except MunimentError as error:  # It is committed: that empty directories stay does not make it fail.
        notes = (*notes, f"directories that are empty now are still there: {error}")
    return UndoResult(
        task_id=run.task,
        undone=task,
        files_touched=tuple(each.path for each in done.changes),
        changes=done.changes,
        touched_scopes=done.touched_scopes,
        notes=notes,
    )


def _scopes(kept: CommitRow, place: Place) -> list[Scope]:
    """The present scope of each change.

    Raises:
        Erased: what the task did is no longer known.
        InvalidScope: it changed a directory that is not bound here.
    """
    erased = [item.change.path.text for item in kept.changes if item.is_erased]
    if erased:
        raise Erased(f"what {kept.run.task} did was erased: {', '.join(erased)}; nothing was written")
    names = place.scopes_by_key()
    elsewhere = sorted({item.change.path.scope for item in kept.changes if item.root not in names})
    if elsewhere:
        raise InvalidScope(
            f"{kept.run.task} changed another directory of scope {', '.join(elsewhere)}; undo it in the "
            "workspace, or with the --root, in which it ran"
        )
    return [names[item.root] for item in kept.changes]


def _change_set(changes: Sequence[ChangeRow], scopes: Sequence[Scope], place: Place) -> ChangeSet:
    """What takes `changes` back.

    Raises:
        UndoOverlap: a file is not what the task left.
    """
    proposed: list[FileChange] = []
    overlapping: list[str] = []
    for item, scope in zip(changes, scopes, strict=True):
        path = CanonicalPath(scope, item.change.path.rel)
        if not _is_as_left(place, path, item.change.after):
            overlapping.append(path.text)
        proposed.append(FileChange(path, item.after_digest, item.change.before))
    if overlapping:
        raise UndoOverlap(tuple(overlapping))
    return ChangeSet(tuple(proposed))


def _is_as_left(place: Place, path: CanonicalPath, left: bytes | None) -> bool:
    try:
        return place.read(path) == left
    except NotFound:
        return left is None
    except (ToolError, PathEscape):
        return False


def _trust_of(draft: FileChange, place: Place) -> Trust:
    """The trust of bytes that come back (U1)."""
    if draft.after is None:
        return place.policy.trust_of(draft.path.scope)
    return place.trust_at(draft.path, draft.after)
