"""The code that all jobs share, from the request of a task to the record of its result.

K1  A job never raises. It records a failure, and returns it in the result as an error that callers know.
K2  A task with an id from its caller commits at most once, and waits for a review at most once. If the same
    task is requested again, the result is that of its commit, or that its review is pending. This also
    applies if another attempt of the task was faster.
K3  All attempts of a task share one deadline and one budget, which start with the work.
K4  If another process wrote the same files before the commit, the task is retried once, if the policy allows
    it.

A job is a function that reads from top to bottom (`remember`, `forget`, `dream`). It starts the task, creates
a `Job`, checks for an earlier commit of the task, does its work, and logs the end (`log_end`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

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
from muniment.types.results import JobResult

if TYPE_CHECKING:
    from muniment.types import UndoResult

_TASK_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TASK_CHARS}}}", re.ASCII)


class Job:
    """One task, from its start to its end. All attempts of the task use the same object.

    Args:
        context: the policy, roots and state; the caller closes them.
        model: makes the decisions of the task.
        cancel: cancels the task; a commit that has begun to write is completed.
        trust: the trust of the caller.
        task_id: the id that the caller requested, not yet checked; None: generate an id.
        is_dry: write nothing; a dry run does not return an earlier result of the task.

    Attributes:
        kind: the name of the job, such as `forget`.
        id: the id of the task.
        decided_by: the name of the model that chooses paths and texts, as the ledger records it.
        fact: keyed digest of the request's content; None: requests of this job have no content to compare.
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
        """Return whether the embedded rules make the decisions, and not a language model."""
        from muniment.agent.filing import (
            RuleWriter,  # Imported here: an undo imports this module, and starts faster without it.
        )

        return isinstance(self.model, RuleWriter)

    @property
    def budget(self) -> Budget:
        """Return the budget of the task; `start_budget` must have been called."""
        assert self._budget is not None  # noqa: S101  for the type checker: the work begins first
        return self._budget

    def create_common_members(self) -> dict[str, Any]:
        """Return the fields that the results of all jobs share, for a task that wrote nothing."""
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
        """Start the deadline and the budget that all attempts of the task share."""
        self._budget = Budget(limits, self.cancel, self.context.clock)

    def create_run(self) -> Run:
        """Return the description of this task for the ledger, with the current time."""
        return replace(
            create_run(self.context, self.kind, self.id, self.trust, self.decided_by), fact=self.fact
        )

    def create_commit_options(self, trust: TrustRule) -> CommitOptions:
        """Return the options for the commit of this task.

        Args:
            trust: returns the trust of each new text.
        """
        deadline = Deadline(self.budget.deadline, self.budget.cancel)
        return replace(
            create_commit_options(self.context, self.create_run(), deadline, trust), dry_run=self.is_dry
        )

    def find_earlier(self, fact: str | None) -> CommitRow | None:
        """Return the commit that this task made before, or None if the task must be carried out.

        A dry run always gets None.

        Args:
            fact: keyed digest of the request's content; None: requests of this job have no content.

        Raises:
            InvalidContent: the task id is invalid, or belongs to another request (`find_done_commit`).
            PendingReview: the change of this task waits for a review.
            ManagedMemoryUnavailable: the state cannot be read or written.
        """
        self.fact = fact
        check_task_id(self.id)
        done = None if self.is_dry else find_done_commit(self.context, self.kind, self.id, fact)
        if done is None and not self.is_dry:
            self.context.state.require_writable()
        return done

    def find_faster_commit(self, done: CommitResult) -> CommitRow | None:
        """If another attempt of this task committed first, return its commit; otherwise return None.

        Args:
            done: the result of this attempt's commit.
        """
        earlier = find_done_commit(self.context, self.kind, self.id, self.fact) if done.is_repeated else None
        if earlier is not None:
            self._budget = None  # The result is that of the other attempt.
        return earlier

    def record_failure(self, problem: MunimentError | ModelError) -> MunimentError:
        """Record that the task failed, and return the error for the caller.

        The error does not contain paths that the caller may not see.
        """
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


@contextmanager
def start_task(kind: str, doing: str, cancel: Cancel | None) -> Iterator[tuple[Cancel, Span]]:
    """Yield what a task needs from its start to its end: a token that cancels it, and its tracing span.

    Args:
        kind: the name of the job.
        doing: the work, as in `events.Progress`.
        cancel: the token of the caller; None: create one.
    """
    with (
        Cancel() if cancel is None else nullcontext(cancel) as used_cancel,
        events.span("task", kind=kind) as task_span,
        events.track_progress(doing),
    ):
        yield used_cancel, task_span


def log_end(kind: str, result: JobResult | UndoResult, task_span: Span, **fields: object) -> None:
    """Log the event of a finished task, such as `remember_ended`, and set its status in the task's span.

    Args:
        kind: the name of the job.
        result: the result of the task.
        task_span: the tracing span of the task.
        fields: further fields of the event.
    """
    code = None if result.error is None else result.error.code
    task_span.set_attributes(task_id=result.task_id, status=result.status, error=code)
    events.emit(f"{kind}_ended", task_id=result.task_id, status=result.status, code=code, **fields)


def determine_status(error: MunimentError) -> Literal["failed", "cancelled"]:
    """Return the status of a task that ended with `error`."""
    return "cancelled" if isinstance(error, Cancelled) else "failed"


def create_model_error(kind: str, model: str, why: str) -> JobFailed:
    """Return the error of a job whose model failed.

    Args:
        kind: the name of the job.
        model: the name of the model.
        why: the reason, already checked by `replace_if_rejected` because it may quote the model.
    """
    reason = describe_model_failure(model, why)
    return JobFailed(f"{why}; nothing was written", code=f"{kind}_failed", reason=reason)


MODEL_ADVICE: Final = "if this happens often, run muniment doctor, use --protocol decide or a larger model"
"""Advice for users whose model fails."""


def describe_model_failure(model: str, why: str) -> str:
    """Return one line of text that states which model failed, and why."""
    return clean_foreign_line(f"the model {model} failed: {why}")


def log_retry_or_raise(
    policy: Policy, kind: str, task: str, conflict: StoreConflict, *, turns_left: int | None = None
) -> None:
    """Log that a task is retried after a conflict, or raise the conflict if no retry is allowed.

    Args:
        policy: the policy of the task.
        kind: the name of the job.
        task: the id of the task.
        conflict: the error of the commit, because another process wrote in the meantime.
        turns_left: the remaining turns of the model; with 0 no retry is possible. None: a retry needs no
            turn.

    Raises:
        StoreConflict: the policy does not allow a retry, or no turns are left.
    """
    if policy.changes.conflict != "retry" or turns_left == 0:
        raise conflict
    events.emit(f"{kind}_repeated", task_id=task)


def create_run(context: JobContext, kind: str, task: str, trust: Trust, decided_by: str) -> Run:
    """Return the description of a task for the ledger, with the current time and policy.

    Args:
        context: the memory that the task changes.
        kind: the name of the job.
        task: the id of the task.
        trust: the trust of the caller.
        decided_by: the author of the paths and texts, such as the name of a model.
    """
    return Run(task, timestamp(), trust, decided_by, context.policy.label, kind)


def create_commit_options(
    context: JobContext, run: Run, deadline: Deadline, trust: TrustRule
) -> CommitOptions:
    """Return the options of a commit that writes the proposed bytes unchanged.

    Args:
        context: the memory to which the commit writes.
        run: the description of the task for the ledger.
        deadline: the time limit of the commit.
        trust: returns the trust of each new text.
    """
    return CommitOptions(context.policy, context.roots, deadline, context.state, run, trust)


def record_result(
    context: JobContext, kind: str, task: str, error: MunimentError, *, decided_by: str
) -> None:
    """Record in the ledger that a task ended with an error; if the ledger cannot be written, log this."""
    body = {"kind": kind, "code": error.code, "decided_by": decided_by, "policy": context.policy.label}
    if isinstance(error, PathEscape):
        body |= {"via": error.via, "requested": error.requested, "tool": error.tool or ""}
    try:
        append(context.state, timestamp(), "ended", task, body)
    except MunimentError as problem:
        events.emit("record_lost", task_id=task, code=problem.code)


# -- repeated tasks ----------------------------------------------------------------------------------


def choose_task_id(kind: str, requested_id: str | None) -> str:
    """Return the requested task id without checking it, or a new id if it is None."""
    return f"{kind}-{generate_ulid()}" if requested_id is None else requested_id


def check_task_id(task: str) -> None:
    """Check that a text is a valid task id.

    Raises:
        InvalidContent: the text is empty, too long, or contains an invalid character.
    """
    if _TASK_ID.fullmatch(task) is None:
        raise InvalidContent(f"invalid task id: use 1 to {MAX_TASK_CHARS} characters of A-Z a-z 0-9 . _ -")


def find_done_commit(context: JobContext, kind: str, task: str, fact: str | None) -> CommitRow | None:
    """Return the earlier commit of a task, with the current names of its scopes, or None if it has none.

    Args:
        context: the memory of the request.
        kind: the name of the requested job.
        task: the id of the task.
        fact: keyed digest of the request's content; None: do not compare it.

    Raises:
        InvalidContent: the id belongs to another kind of job, to a task in other directories, or to a request
            with other content. Content that was erased is not compared.
        PendingReview: the change of the task waits for the owner's review.
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
    """Return a copy of a ledger row with `scope` as the scope of its path."""
    path = replace(row.change.path, scope=scope)
    return row._replace(change=replace(row.change, path=path))


def _check_same_request(task: str, kind: str, fact: str | None, run: Run, *, is_here: bool) -> None:
    is_other = None not in (fact, run.fact) and fact != run.fact
    if run.kind != kind or is_other or not is_here:
        raise InvalidContent(f"another task has the id {task!r}; nothing was written; choose another id")


# -- edits -------------------------------------------------------------------------------------------
# An edit is a change that a caller makes to given entries. It is a task, but not a job: it raises its errors.

EDIT: Final = "edit"


def commit_edit(changes: Sequence[FileChange], options: CommitOptions) -> CommitResult:
    """Commit changes that a caller makes to given entries, without an agent.

    Raises:
        RememberRefused: a gate, a quota or the policy denies a change.
        MunimentError: as `store.commit`.
    """
    try:
        return commit([ChangeSet(tuple(changes))], options)
    except (Refusal, ToolError) as error:
        raise RememberRefused(f"the change was denied: {error}") from error


def create_identity_stamp(old_bytes: Mapping[CanonicalPath, bytes]) -> Stamp:
    """Return a function that completes the files of moved entries, so that each entry keeps its id.

    Args:
        old_bytes: the bytes of each entry before the move, by its new path.
    """
    return lambda data, _base, path, run: stamp_entry(data, old_bytes[path], path, run)
