"""Approve a pending review: the owner accepts exactly the displayed change set.

A1 The digest covers the final text, its preconditions, the trusts and roots, and the current policy. Another
   digest approves nothing.
A2 The judge runs again: paths, quotas, secrets and every other content gate apply as always. An approval only
   satisfies the reasons for the review.
A3 The preconditions must still be true; otherwise nothing is written, and the review stays pending.
A4 It commits at most once, under a separate task, with the displayed trusts. Its result is read from the
   ledger, also if an operation fails after the commit.
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
# The history of a memory, and the origin of a file.


STATES: Final[Mapping[str, str]] = {
    "committed": "is unchanged since this task",
    "edited": "was edited by hand since this task",
    "foreign": "was not written by Muniment; it has the trust of its scope",
    "removed": "was removed by this task",
    "missing": "existed after this task, and was removed by hand since",
}
"""The text about a file, by `Origin.state`."""

BECAME: Final[Mapping[ChangeKind, str]] = {"create": "new", "modify": "changed", "delete": "removed"}
"""The text about a file, by `Change.kind`."""


def history_of(
    place: Place, unsafe_path: str | None = None, limit: int = MAX_STEPS
) -> tuple[CommittedStep, ...]:
    """Return the commits to the bound roots, the newest first; see `store.ledger.history`.

    Args:
        place: the bound roots and the state.
        unsafe_path: a file, directory or scope; None: the whole memory.
        limit: the maximum number of steps.

    Raises:
        PathEscape, Refusal: not a path of the memory.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    unsafe_path = None if unsafe_path is None else path_of_address(unsafe_path).removesuffix("/")
    below = canonicalise(unsafe_path, place.policy.scopes) if unsafe_path else None
    return history(place.state, place.scopes_by_key(), below, limit)


def why_of(place: Place, unsafe_path: str) -> Origin:
    """Return the origin of a file, and whether it still is as committed.

    Raises:
        PathEscape, Refusal: not a path of the memory, or not a plain file.
        NotFound: the file does not exist and never did.
        Erased: the file was erased.
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
    """Return the bytes of a file after a task, or None if the task removed it.

    Raises:
        PathEscape, Refusal: not a path of the memory.
        NotFound: the task did not change it.
        Erased: the bytes are no longer known.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = place.path(unsafe_path)
    return content_at(place.state, place.key(path.scope), path, task)


def diff_of(place: Place, unsafe_path: str, task: str) -> tuple[str, ...]:
    """Return the changes of a task to a file, line by line.

    The format is that of a review. Raises as `content_of`.
    """
    path = place.path(unsafe_path)
    key = place.key(path.scope)
    before = content_before(place.state, key, path, task)
    return tuple(changed_lines(before, content_at(place.state, key, path, task)))


# -- review ------------------------------------------------------------------------------------------


def waiting(place: Place) -> tuple[Pending, ...]:
    """Return the pending reviews of a memory that only concern its bound roots."""
    keys = place.scopes_by_key().keys()
    return tuple(each for each in pending(place.state) if keys >= set(each.roots.values()))


def list_reviews(place: Place) -> tuple[Review, ...]:
    """List the pending reviews of a memory, as the library and the daemon return them."""
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
    """Return a pending review as it would be approved now.

    Raises:
        NotFound, ReviewClosed: no such pending review.
        InvalidScope: it concerns other directories.
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
    """Commit a pending review (A1 to A4).

    Args:
        review_id: of the review.
        digest: as `show` returned it.
        place: the policy, roots and state; the caller closes them.
        cancel: cancels the call; a commit that has begun to write is completed.

    Raises:
        NotFound, ReviewClosed: no such pending review, or another request decided it first.
        ReviewChanged: the digest differs.
        InvalidScope: it concerns other directories.
        StoreConflict: a precondition is no longer true. It stays pending.
        Refusal, ToolError, PathEscape: the judge denies it. It stays pending.
        DeadlineExceeded, Cancelled: nothing was written. It stays pending.
        ManagedMemoryUnavailable: nothing was written, or the write is rolled back before the next change.
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
        load(state, review_id)  # Checked under the locks: from here on it cannot be rejected.
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
    """Return the result of an approval that was committed before an error; raise the error if it was not."""
    kept = of_task(state, task)
    if kept is None:
        raise problem
    notes = (*kept.notes, f"the change was written, but then this failed: {problem}")
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
    """Decide that a change set is never committed.

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
# An undo reverses the changes of a task, as a separate commit.
#
# U1 Each file gets the bytes back that it had before the task, with the trust that the ledger has for them. A
# file that the task created is removed, with the directories that were created for it, if they are empty.
# U2 All or nothing: if a later task or a user changed any of the files since, nothing is written and the
# error lists these files.
# U3 An undo is a task like any other, and can be undone.

DECIDED_BY: Final = "code"
"""The author in the ledger if neither a model nor a rule made a choice."""


def undo(task: str, place: Place, *, trust: Trust = Trust.OWNER, cancel: Cancel | None = None) -> UndoResult:
    """Undo the changes of `task`; errors are returned in the result's `error`, never raised.

    Args:
        task: id of the task.
        place: the policy, roots and state; the caller closes them.
        trust: of the caller; a change that would replace text of a higher trust waits for the owner's review.
        cancel: cancels the call; a commit that has begun to write is completed.
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
        undone = None if isinstance(result.error, NotFound) else task  # An unknown id may be any text.
        emit_end("undo", result, task_span, undone=undone, files=len(result.changes))
    return result


def _undo(task: str, run: Run, place: Place, patience: Patience) -> UndoResult:
    kept = of_task(place.state, task)
    if kept is None:
        raise NotFound(f"task {printable(task)!r} not found; see: muniment history")
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
    except MunimentError as error:  # It is committed: remaining empty directories are not a failure.
        notes = (*notes, f"empty directories could not be removed: {error}")
    return UndoResult(
        task_id=run.task,
        undone=task,
        files_touched=tuple(each.path for each in done.changes),
        changes=done.changes,
        touched_scopes=done.touched_scopes,
        notes=notes,
    )


def _scopes(kept: CommitRow, place: Place) -> list[Scope]:
    """Return the current scope of each change.

    Raises:
        Erased: the changes of the task are no longer known.
        InvalidScope: it changed a directory that is not bound in this memory.
    """
    erased = [item.change.path.text for item in kept.changes if item.is_erased]
    if erased:
        raise Erased(f"the changes of {kept.run.task} were erased: {', '.join(erased)}; nothing was written")
    names = place.scopes_by_key()
    elsewhere = sorted({item.change.path.scope for item in kept.changes if item.root not in names})
    if elsewhere:
        raise InvalidScope(
            f"{kept.run.task} changed another directory of scope {', '.join(elsewhere)}; undo it in the "
            "workspace, or with the --root, in which it ran"
        )
    return [names[item.root] for item in kept.changes]


def _change_set(changes: Sequence[ChangeRow], scopes: Sequence[Scope], place: Place) -> ChangeSet:
    """Return the change set that undoes `changes`.

    Raises:
        UndoOverlap: a file was changed since the task.
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
    """Return the trust of restored bytes (U1)."""
    if draft.after is None:
        return place.policy.trust_of(draft.path.scope)
    return place.trust_at(draft.path, draft.after)
