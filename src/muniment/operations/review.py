"""Operations of the owner on past and pending changes: history, review and undo.

An approval commits a pending review: the owner accepts exactly the displayed change set.

A1 The digest of a review covers the final text, its preconditions, the trusts and roots, and the current
   policy. An approval with another digest is rejected.
A2 The judge runs again: paths, quotas, secrets and every other content gate apply as always. An approval only
   satisfies the reasons for the review.
A3 The preconditions must still be true; otherwise nothing is written, and the review stays pending.
A4 A review commits at most once, under a separate task, with the displayed trusts. The result of the approval
   is read from the ledger, even if an operation fails after the commit.
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
from muniment.events import span, track_progress
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeKind, ChangeSet, FileChange
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath, canonicalise
from muniment.operations.edit import widen_for_move
from muniment.operations.job import (
    choose_task_id,
    create_commit_options,
    create_run,
    determine_status,
    log_end,
)
from muniment.operations.job_context import JobContext
from muniment.operations.undoable import resolve_task
from muniment.operations.visibility import resolve_for_owner, resolve_place
from muniment.policy.combine import grant_readable
from muniment.store.audit import timestamp
from muniment.store.commit import commit
from muniment.store.erase import remove_empty_directories
from muniment.store.handles import build_task_handle
from muniment.store.ledger import (
    MAX_STEPS,
    ChangeRow,
    CommitRow,
    Run,
    explain_origin,
    find_commit,
    find_undoing_task,
    read_content_after,
    read_content_before,
    read_history,
    read_label,
)
from muniment.store.renames import read_whole_history
from muniment.store.review import (
    PendingChange,
    build_approval_task,
    check_roots,
    format_difference,
    format_preview,
    load_pending,
    read_pending,
    record_decision,
    reject_pending,
    resolve_review,
)
from muniment.store.state import State
from muniment.store.trust import TrustDecision
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


STATE_TEXTS: Final[Mapping[str, str]] = {
    "committed": "is unchanged since this task",
    "edited": "was edited by hand since this task",
    "foreign": "was not written by Muniment; it has the trust of its scope",
    "removed": "was removed by this task",
    "missing": "existed after this task, and was removed by hand since",
}
"""The text that describes the present state of a file, by `Origin.state`."""

CHANGE_TEXTS: Final[Mapping[ChangeKind, str]] = {"create": "new", "modify": "changed", "delete": "removed"}
"""The word for a change of a file, by `Change.kind`."""


def load_history(
    context: JobContext, unsafe_path: str | None = None, limit: int = MAX_STEPS, *, since: str = ""
) -> tuple[CommittedStep, ...]:
    """Return the commits to the bound roots, the newest first; see `store.ledger.read_history`.

    The history of an entry includes its steps under earlier names.

    Args:
        context: the bound roots and the state.
        unsafe_path: only commits that changed this file, directory or scope; None: the whole memory.
        limit: the maximum number of steps.
        since: only steps since this time, ISO-8601 in UTC; empty: all.

    Raises:
        PathEscape, Refusal: the path is invalid in this memory.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    below = resolve_place(context, unsafe_path) if unsafe_path else None
    if below is not None and below.rel.endswith(FILE_SUFFIX) and below.scope in context.roots:
        steps = read_whole_history(context.state, context.map_keys_to_scopes(), below, limit)
        return tuple(each for each in steps if each.at >= since)
    return read_history(context.state, context.map_keys_to_scopes(), below, limit, since)


def load_origin(context: JobContext, unsafe_path: str) -> Origin:
    """Return the origin of a file, and whether it still has the committed content.

    Raises:
        PathEscape, Refusal: the path is invalid in this memory, or does not lead to a regular file.
        NotFound: the file does not exist, and the ledger does not know it.
        Erased: the file was erased.
        ToolError: the file cannot be read.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = resolve_for_owner(context, unsafe_path)
    try:
        present = context.read_file(path)
    except NotFound:
        present = None
    key = context.read_root_key(path.scope)
    found = explain_origin(context.state, key, path, present, context.policy.get_trust(path.scope))
    title, handle = read_label(path, present)
    return replace(
        found,
        title=title,
        handle=handle,
        task_handle=None if found.task is None else build_task_handle(found.task),
    )


def read_content(context: JobContext, unsafe_path: str, task: str) -> bytes | None:
    """Return the content that a file had after a task, or None if the task removed the file.

    Raises:
        PathEscape, Refusal: the path is invalid in this memory.
        NotFound: the task did not change the file.
        Erased: the bytes are no longer known.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = resolve_for_owner(context, unsafe_path)
    task = resolve_task(context.state, task)
    return read_content_after(context.state, context.read_root_key(path.scope), path, task)


def diff_task(context: JobContext, unsafe_path: str, task: str) -> tuple[str, ...]:
    """Return the changes of a task to a file, line by line, in the format of a review.

    Raises as `read_content`.
    """
    path = resolve_for_owner(context, unsafe_path)
    key = context.read_root_key(path.scope)
    before = read_content_before(context.state, key, path, task)
    return tuple(format_difference(before, read_content_after(context.state, key, path, task)))


# -- review ------------------------------------------------------------------------------------------


def list_pending(context: JobContext) -> tuple[PendingChange, ...]:
    """Return the pending reviews of a memory that concern only its bound roots."""
    keys = context.map_keys_to_scopes().keys()
    return tuple(each for each in read_pending(context.state) if keys >= set(each.roots.values()))


def list_reviews(context: JobContext) -> tuple[Review, ...]:
    """Return the pending reviews of a memory in the form for callers of the library and the daemon."""
    return tuple(
        Review(
            review_id=each.id,
            kind=each.run.kind,
            at=each.run.at,
            reasons=tuple(each.reasons),
            paths=tuple(path.text for path in each.change_set.paths),
        )
        for each in list_pending(context)
    )


def show_review(review_id: str, context: JobContext) -> ReviewShown:
    """Return a pending review as it would be approved now, with the digest that an approval needs.

    Raises:
        NotFound, ReviewClosed: the id is unknown, or the review was already decided.
        InvalidScope: the review concerns directories that are not bound.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    review_id = resolve_review(context.state, review_id)
    pending_review = load_pending(context.state, review_id)
    check_roots(context.state, pending_review, context.roots)

    def read_current(path: str) -> bytes | None:
        found = canonicalise(path, context.roots)
        try:
            return context.read_file(found)
        except NotFound:
            return None
        except (ToolError, PathEscape) as error:
            return f"(cannot be read: {error.code})\n".encode()

    digest = context.policy.digest
    return ReviewShown(
        review_id=review_id,
        text=format_preview(pending_review, read_current, digest),
        digest=pending_review.compute_digest(digest),
    )


def approve_review(
    review_id: str, digest: str, context: JobContext, *, cancel: Cancel | None = None
) -> ReviewDecision:
    """Commit a pending review (rules A1 to A4 in the module docstring).

    Args:
        review_id: the id of the review.
        digest: the digest that `show_review` returned.
        context: the policy, roots and state; the caller closes them.
        cancel: cancels the call; a commit that has begun to write is completed.

    Raises:
        NotFound, ReviewClosed: the id is unknown, or another request decided the review first.
        ReviewChanged: the review has another digest now.
        InvalidScope: the review concerns directories that are not bound.
        StoreConflict: a precondition is no longer true. The review stays pending.
        Refusal, ToolError, PathEscape: the judge denies the change. The review stays pending.
        DeadlineExceeded, Cancelled: nothing was written. The review stays pending.
        ManagedMemoryUnavailable: nothing was written, or the write is rolled back before the next change.
    """
    state = context.state
    review_id = resolve_review(state, review_id)
    pending_review = load_pending(state, review_id)
    check_roots(state, pending_review, context.roots)
    if digest != pending_review.compute_digest(context.policy.digest):
        raise ReviewChanged(review_id)
    original_run = pending_review.run
    run = replace(
        original_run,
        task=build_approval_task(review_id),
        kind="approve",
        at=timestamp(),
        policy=context.policy.label,
        answers=original_run.kind,
    )
    trusts = {each.path: each.trust for each in pending_review.change_set.changes}

    def decide_trust(draft: FileChange, _: Trust | None) -> TrustDecision:
        load_pending(state, review_id)  # Checked under the locks: from here on it cannot be rejected.
        return TrustDecision(trusts.get(draft.path) or original_run.trust)

    deadline = context.start_deadline(cancel)
    options = replace(create_commit_options(context, run, deadline, decide_trust), is_reviewed=True)
    try:
        done = commit([pending_review.change_set], options)
        if done.is_repeated:
            raise ReviewClosed(review_id, "approved")
        record_decision(state, review_id, "approved", run.at, run.task)
    except ManagedMemoryUnavailable as problem:
        return _recover_approval(state, review_id, run.task, problem)
    return ReviewDecision(
        review_id=review_id,
        status="approved",
        task_id=run.task,
        files_touched=tuple(each.path for each in done.changes),
        changes=done.changes,
        touched_scopes=done.touched_scopes,
        notes=done.notes,
    )


def _recover_approval(
    state: State, review_id: str, task: str, problem: ManagedMemoryUnavailable
) -> ReviewDecision:
    """Return the result of an approval if it was committed before an error; otherwise raise the error.

    Args:
        state: the state of the memory.
        review_id: the id of the review.
        task: the id of the task that commits the review.
        problem: the error.
    """
    commit_row = find_commit(state, task)
    if commit_row is None:
        raise problem
    notes = (*commit_row.notes, f"the change was written, but then this failed: {problem}")
    return ReviewDecision(
        review_id=review_id,
        status="approved",
        task_id=task,
        files_touched=tuple(each.path for each in commit_row.known_changes),
        changes=commit_row.known_changes,
        touched_scopes=commit_row.touched_scopes,
        notes=notes,
    )


def reject_review(review_id: str, context: JobContext, *, cancel: Cancel | None = None) -> ReviewDecision:
    """Reject a pending review, so that its change is never committed.

    Raises:
        NotFound, ReviewClosed, InvalidScope: as `approve_review`.
        ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: the review stays pending.
    """
    review_id = resolve_review(context.state, review_id)
    reject_pending(context.state, review_id, context.roots, context.start_deadline(cancel), timestamp())
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


def undo_task(
    task: str,
    context: JobContext,
    *,
    trust: Trust = Trust.OWNER,
    accepts_handle: bool = False,
    cancel: Cancel | None = None,
) -> UndoResult:
    """Undo the changes of a task; return an error in the result's `error`, never raise it.

    Args:
        task: the id of the task to undo.
        context: the policy, roots and state; the caller closes them.
        trust: the trust of the caller; a change that would replace text of a higher trust waits for the
            owner's review.
        accepts_handle: whether `task` may also be the handle of any task; only for the owner.
        cancel: cancels the call; a commit that has begun to write is completed.
    """
    run = create_run(context, "undo", choose_task_id("undo", None), trust, DECIDED_BY)
    with track_progress("undoing"), span("task", kind="undo") as task_span:
        try:
            if accepts_handle:
                task = resolve_task(context.state, task)
            run = replace(run, undoes=task)
            result = _run_undo(task, run, context, context.start_deadline(cancel))
        except MunimentError as error:
            result = UndoResult(
                task_id=run.task,
                undone=task,
                status=determine_status(error),
                files_touched=(),
                touched_scopes=(),
                notes=(),
                error=error,
            )
        undone = None if isinstance(result.error, NotFound) else task  # An unknown id may be any text.
        log_end("undo", result, task_span, undone=undone, files=len(result.changes))
    return result


def _run_undo(task: str, run: Run, context: JobContext, deadline: Deadline) -> UndoResult:
    commit_row = find_commit(context.state, task)
    if commit_row is None:
        raise NotFound(f"task {printable(task)!r} not found; see: muniment history")
    undone = find_undoing_task(context.state, task)
    if undone is not None:
        raise AlreadyUndone(task, undone)
    scopes = _find_scopes(commit_row, context)
    change_set = _build_undo(commit_row.changes, scopes, context)
    options = create_commit_options(
        context,
        run,
        deadline,
        lambda draft, _: TrustDecision(_read_trust(draft, context), author_trust=run.trust),
    )
    if run.trust is Trust.OWNER:
        policy = widen_for_move(context.policy, [each.path for each in change_set.changes])
        policy = grant_readable(policy) if policy is context.policy else policy
        options = replace(options, policy=policy, is_reviewed=True)
    try:
        done = commit([change_set], options)
    except StoreConflict as conflict:
        raise UndoOverlap(conflict.paths) from conflict
    created_directories = [
        CanonicalPath(scope, rel)
        for item, scope in zip(commit_row.changes, scopes, strict=True)
        for rel in item.made
    ]
    notes = done.notes
    try:
        remove_empty_directories(context.roots, created_directories, deadline)
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


def _find_scopes(commit_row: CommitRow, context: JobContext) -> list[Scope]:
    """Return the current scope of each change in a commit.

    Raises:
        Erased: the changes of the commit are no longer known.
        InvalidScope: the commit changed a directory that is not bound in this memory.
    """
    erased = [item.change.path.text for item in commit_row.changes if item.is_erased]
    if erased:
        raise Erased(
            f"the changes of {commit_row.run.task} were erased: {', '.join(erased)}; nothing was written"
        )
    names = context.map_keys_to_scopes()
    unbound_scopes = sorted({item.change.path.scope for item in commit_row.changes if item.root not in names})
    if unbound_scopes:
        raise InvalidScope(
            f"{commit_row.run.task} changed another directory of scope {', '.join(unbound_scopes)}; "
            "undo it in the workspace, or with the --root, in which it ran"
        )
    return [names[item.root] for item in commit_row.changes]


def _build_undo(changes: Sequence[ChangeRow], scopes: Sequence[Scope], context: JobContext) -> ChangeSet:
    """Return the change set that undoes `changes`.

    Args:
        changes: the changes of the task.
        scopes: the current scope of each change.
        context: the memory.

    Raises:
        UndoOverlap: a file was changed since the task.
    """
    proposed: list[FileChange] = []
    overlapping: list[str] = []
    for item, scope in zip(changes, scopes, strict=True):
        path = CanonicalPath(scope, item.change.path.rel)
        if not _is_unchanged_since(context, path, item.change.after):
            overlapping.append(path.text)
        proposed.append(FileChange(path, item.after_digest, item.change.before))
    if overlapping:
        raise UndoOverlap(tuple(overlapping))
    return ChangeSet(tuple(proposed))


def _is_unchanged_since(context: JobContext, path: CanonicalPath, left: bytes | None) -> bool:
    try:
        return context.read_file(path) == left
    except NotFound:
        return left is None
    except (ToolError, PathEscape):
        return False


def _read_trust(draft: FileChange, context: JobContext) -> Trust:
    """Return the trust of the bytes that an undo restores, as the ledger has it."""
    if draft.after is None:
        return context.policy.get_trust(draft.path.scope)
    return context.read_trust(draft.path, draft.after)
