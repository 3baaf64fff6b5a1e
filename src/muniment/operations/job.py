"""The parts that all jobs share: a task from its request to its record.

K1  A job never raises. A failure is recorded, and returned in the result as an error that callers know.
K2  A task with an id from its caller commits at most once, and waits for a review at most once. A repeated
    request returns the result of its commit, or that its review is pending; also if another attempt was
    faster.
K3  A task has one deadline and one budget from the start of its work, for all attempts.
K4  If another process wrote during the commit, the task is retried once, if the policy allows it.

A job is a function that reads from top to bottom (`remember`, `forget`, `dream`). It opens a span, creates a
`Job`, checks for an earlier commit of the task, does its work, and logs the end (`log_end`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from muniment import events
from muniment.agent.model import Budget, Model, ModelError
from muniment.cancelling import Cancel
from muniment.content.admission import replace_if_rejected
from muniment.content.gates import clean_foreign_line
from muniment.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidContent,
    JobFailed,
    JobTimeout,
    MunimentError,
    PathEscape,
    PendingReview,
    Refusal,
    RememberRefused,
    StoreConflict,
    ToolError,
)
from muniment.events import Span
from muniment.kernel.cancel import CancelToken, Deadline
from muniment.kernel.change import ChangeSet, FileChange
from muniment.kernel.decide import Limits, Policy
from muniment.kernel.names import Scope, Trust
from muniment.kernel.path import CanonicalPath
from muniment.operations.job_context import JobContext
from muniment.operations.request import MAX_TASK_CHARS
from muniment.operations.visibility import Reader, Visibility
from muniment.store.audit import append, timestamp
from muniment.store.commit import CommitOptions, CommitResult, Stamp, commit
from muniment.store.ledger import ChangeRow, CommitRow, Run, find_commit
from muniment.store.review import find_pending
from muniment.store.trust import TrustRule, generate_ulid, stamp_entry
from muniment.types import UndoResult
from muniment.types.results import JobResult

_TASK_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TASK_CHARS}}}", re.ASCII)


class Job:
    """A task in progress, over all its attempts.

    Args:
        place: the policy, roots and state; the caller closes them.
        model: makes the decisions of the task.
        cancel: cancels the task; a commit that has begun to write is completed.
        trust: of the caller.
        task_id: as requested, not yet checked; None: a new one.
        is_dry: write nothing; a dry run does not return an earlier result of the task.

    Attributes:
        kind: such as `forget`.
        decided_by: the model that chooses paths and texts, as the ledger records it.
        fact: keyed digest of the request; None: it has none.
        notes: notices for the user.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        context: JobContext,
        model: Model,
        cancel: CancelToken,
        trust: Trust,
        task_id: str | None,
        *,
        is_dry: bool,
    ) -> None:
        self.context, self.model, self.cancel, self.trust, self.is_dry = context, model, cancel, trust, is_dry
        self.decided_by = model.name
        self.id = choose_task_id(self.kind, task_id)
        self.fact: str | None = None
        self.notes: list[str] = []
        self._budget: Budget | None = None

    @property
    def uses_rules(self) -> bool:
        """Return whether the embedded rules decide, and not a language model."""
        from muniment.agent.filing import (
            RuleWriter,  # Imported here: an undo imports this module, and starts faster without it.
        )

        return isinstance(self.model, RuleWriter)

    @property
    def budget(self) -> Budget:
        """Return the remaining budget; the task must have begun."""
        assert self._budget is not None  # noqa: S101  for the type checker: the work begins first
        return self._budget

    def create_common_members(self) -> dict[str, Any]:
        """Return the members that results of all jobs share, as if nothing was written."""
        begun = self._budget
        turns, seconds, timeline = (begun.turns, begun.seconds, begun.timeline) if begun else (0, 0.0, ())
        return {
            "task_id": self.id,
            "summary": "",
            "touched_scopes": (),
            "decided_by": self.decided_by,
            "policy": self.context.policy.label,
            "turns": turns,
            "seconds": seconds,
            "timeline": tuple(timeline),
            "notes": tuple(self.notes),
        }

    def start_budget(self, limits: Limits) -> None:
        """Start the clock of the task (K3)."""
        self._budget = Budget(limits, self.cancel, self.context.clock)

    def create_run(self) -> Run:
        """Return the author and cause of a commit at this moment."""
        return replace(
            create_run(self.context, self.kind, self.id, self.trust, self.decided_by), fact=self.fact
        )

    def create_commit_options(self, trust: TrustRule) -> CommitOptions:
        """Return the options of its commit."""
        deadline = Deadline(self.budget.deadline, self.budget.cancel)
        return replace(
            create_commit_options(self.context, self.create_run(), deadline, trust), dry_run=self.is_dry
        )

    def find_earlier(self, fact: str | None) -> CommitRow | None:
        """Return the commit that the task made before, or None if it must be carried out (K2).

        Args:
            fact: keyed digest of the request; None: it has none.

        Raises:
            InvalidContent: invalid task id; or as `find_done_commit`.
            PendingReview: as `find_done_commit`.
            ManagedMemoryUnavailable: the state cannot be read or written.
        """
        self.fact = fact
        check_task_id(self.id)
        done = None if self.is_dry else find_done_commit(self.context, self.kind, self.id, fact)
        if done is None and not self.is_dry:
            self.context.state.require_writable()
        return done

    def find_faster_commit(self, done: CommitResult) -> CommitRow | None:
        """Return the commit of an abandoned attempt that was faster, or None (K2)."""
        earlier = find_done_commit(self.context, self.kind, self.id, self.fact) if done.is_repeated else None
        if earlier is not None:
            self._budget = None  # The result is that of the other attempt.
        return earlier

    def record_failure(self, problem: MunimentError | ModelError) -> MunimentError:
        """Record a failure, and return the error that callers get."""
        match problem:
            case ModelError():  # No raise here: its context would contain the text of the model.
                error: MunimentError = create_model_error(
                    self.kind, self.model.name, replace_if_rejected(str(problem), "the model failed")
                )
            case DeadlineExceeded():
                error = JobTimeout(str(problem), code=f"{self.kind}_timeout")
            case _:
                error = problem
        error = Visibility(self.context, Reader(self.trust)).redact_error(error)
        record_result(self.context, self.kind, self.id, error, decided_by=self.decided_by)
        return error


def use_or_create_cancel(cancel: Cancel | None) -> AbstractContextManager[Cancel]:
    """Return a context with the caller's cancellation, or with a new one if the caller has none."""
    return Cancel() if cancel is None else nullcontext(cancel)


def log_end(kind: str, result: JobResult | UndoResult, task_span: Span, **fields: object) -> None:
    """Log the end of a task as an event with some fields, and add it to the task's span."""
    code = None if result.error is None else result.error.code
    task_span.set_attributes(task_id=result.task_id, status=result.status, error=code)
    events.emit(f"{kind}_ended", task_id=result.task_id, status=result.status, code=code, **fields)


def determine_status(error: MunimentError) -> Literal["failed", "cancelled"]:
    """Return the status of a task that ended with an error."""
    return "cancelled" if isinstance(error, Cancelled) else "failed"


def create_model_error(kind: str, model: str, why: str) -> JobFailed:
    """Return the error of a job whose model failed; `why` has passed the gates (`replace_if_rejected`)."""
    reason = describe_model_failure(model, why)
    return JobFailed(f"{why}; nothing was written", code=f"{kind}_failed", reason=reason)


MODEL_ADVICE: Final = "if this happens often: muniment doctor, --protocol decide, or a larger model"
"""Advice for users whose model fails."""


def describe_model_failure(model: str, why: str) -> str:
    """Return a line that reports the failure of a model and its reason."""
    return clean_foreign_line(f"the model {model} failed: {why}")


def log_retry_or_raise(
    policy: Policy, kind: str, task: str, conflict: StoreConflict, *, turns_left: int | None = None
) -> None:
    """Check that a task may be retried after a conflict, and log the retry (K4).

    Args:
        policy: of the task.
        kind: of job.
        task: its id.
        conflict: another process wrote during the commit.
        turns_left: remaining turns of the model; None: not required.

    Raises:
        StoreConflict: a retry is not allowed.
    """
    if policy.changes.conflict != "retry" or turns_left == 0:
        raise conflict
    events.emit(f"{kind}_repeated", task_id=task)


def create_run(context: JobContext, kind: str, task: str, trust: Trust, decided_by: str) -> Run:
    """Return the author and cause of a change at this moment, under the policy of a memory."""
    return Run(task, timestamp(), trust, decided_by, context.policy.label, kind)


def create_commit_options(
    context: JobContext, run: Run, deadline: Deadline, trust: TrustRule
) -> CommitOptions:
    """Return the options of a commit to a memory; the bytes stay as proposed."""
    return CommitOptions(context.policy, context.roots, deadline, context.state, run, trust)


def record_result(
    context: JobContext, kind: str, task: str, error: MunimentError, *, decided_by: str
) -> None:
    """Record that a task ended without effect; if the ledger cannot be written, only log this."""
    body = {"kind": kind, "code": error.code, "decided_by": decided_by, "policy": context.policy.label}
    if isinstance(error, PathEscape):
        body |= {"via": error.via, "requested": error.requested, "tool": error.tool or ""}
    try:
        append(context.state, timestamp(), "ended", task, body)
    except MunimentError as problem:
        events.emit("record_lost", task_id=task, code=problem.code)


# -- repeated tasks ----------------------------------------------------------------------------------


def choose_task_id(kind: str, requested_id: str | None) -> str:
    """Return the requested task id, not yet checked, or a new one."""
    return f"{kind}-{generate_ulid()}" if requested_id is None else requested_id


def check_task_id(task: str) -> None:
    """Check that a text is valid as the id of a task.

    Raises:
        InvalidContent: it is empty, too long, or has other characters.
    """
    if _TASK_ID.fullmatch(task) is None:
        raise InvalidContent(f"invalid task id: use 1 to {MAX_TASK_CHARS} of A-Z a-z 0-9 . _ -")


def find_done_commit(context: JobContext, kind: str, task: str, fact: str | None) -> CommitRow | None:
    """Return the commit of a task, with the current names of its scopes, or None if it must be carried out.

    Args:
        context: the context of the request.
        kind: of the requested job.
        task: its id.
        fact: keyed digest of the request; None: not compared.

    Raises:
        InvalidContent: the id belongs to another kind of job, to another workspace, or to a request with
            other content, as far as that was not erased. That commit must not be returned for this request.
        PendingReview: it waits for the owner's review; the model is not queried again.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    scopes_by_key = context.map_keys_to_scopes()
    done, pending_review = find_commit(context.state, task), find_pending(context.state, task)
    if done is not None:
        _check_same_request(
            task, kind, fact, done.run, is_here=all(item.root in scopes_by_key for item in done.changes)
        )
        return replace(
            done, changes=tuple(_update_scope(item, scopes_by_key[item.root]) for item in done.changes)
        )
    if pending_review is not None:
        _check_same_request(
            task,
            kind,
            fact,
            pending_review.run,
            is_here=scopes_by_key.keys() >= set(pending_review.roots.values()),
        )
        raise PendingReview(pending_review.id, pending_review.reasons)
    return None


def _update_scope(row: ChangeRow, scope: Scope) -> ChangeRow:
    """Return a row with the current name of its scope."""
    path = replace(row.change.path, scope=scope)
    return row._replace(change=replace(row.change, path=path))


def _check_same_request(task: str, kind: str, fact: str | None, run: Run, *, is_here: bool) -> None:
    is_other = None not in (fact, run.fact) and fact != run.fact
    if run.kind != kind or is_other or not is_here:
        raise InvalidContent(f"another task has the id {task!r}; nothing was written; choose another id")


# -- edits -------------------------------------------------------------------------------------------
# A change that a caller makes to given entries is a task too, but not a job: it raises its errors.

EDIT: Final = "edit"


def commit_edit(changes: Sequence[FileChange], options: CommitOptions) -> CommitResult:
    """Commit changes that a caller makes to given entries.

    Raises:
        RememberRefused: gates, quotas or the policy deny it.
        MunimentError: as `store.commit`.
    """
    try:
        return commit([ChangeSet(tuple(changes))], options)
    except (Refusal, ToolError) as error:
        raise RememberRefused(f"the change was denied: {error}") from error


def create_identity_stamp(old_bytes: Mapping[CanonicalPath, bytes]) -> Stamp:
    """Return a stamp for moved entries, by their new paths: it retains the ids of the old bytes."""
    return lambda data, _base, path, run: stamp_entry(data, old_bytes[path], path, run)
