"""The one error tree. Every class has one stable `code`; messages are derived from the fields.

    MunimentError
    ├── ConfigInvalid             config_invalid
    ├── PlatformUnsupported       platform_unsupported
    ├── PolicyInvalid             policy_invalid
    ├── InvalidScope              invalid_scope
    ├── ConfinementUnavailable    confinement_unavailable
    ├── ManagedMemoryUnavailable  managed_memory_unavailable
    │   ├── LedgerAway            ledger_away
    │   └── LeaseLost             lease_lost
    ├── StateTooNew               state_too_new
    ├── WorkerLost                worker_lost
    ├── StoreConflict             store_conflict
    ├── PendingReview             pending_review
    ├── ReviewClosed              review_closed
    ├── ReviewChanged             review_changed
    ├── UndoOverlap               undo_overlap
    ├── AlreadyUndone             already_undone
    ├── Erased                    erased
    ├── DeadlineExceeded          deadline
    ├── Cancelled                 cancelled
    ├── PathEscape                path_escape
    │   └── RememberPathEscape    remember_path_escape
    ├── Refusal                   (deny by name grammar or policy; expected, told in one line)
    │   ├── BadName               bad_name
    │   └── Refused               refused
    ├── ToolError                 (an ordinary mistake of a tool's caller, told in one line)
    │   ├── NotFound              not_found
    │   ├── NotAFile              not_a_file
    │   ├── NotText               not_text
    │   ├── TooLarge              too_large
    │   ├── ExistsAs              exists_as
    │   ├── Unreadable            unreadable
    │   ├── NotRead               not_read
    │   ├── NoMatch               no_match
    │   ├── NotUnique             not_unique
    │   ├── BadArguments          bad_arguments
    │   ├── UnknownTool           unknown_tool
    │   ├── ContentRejected       content_rejected
    │   ├── QuotaExceeded         quota
    │   └── BudgetSpent           budget
    ├── JobError                  (a job ended without effect)
    │   ├── InvalidContent        invalid_content
    │   ├── InvalidExpiry         invalid_expires
    │   ├── InvalidContextMode    invalid_context_mode
    │   ├── RememberNoUpdate      remember_no_update
    │   ├── RememberScopeMismatch remember_scope_mismatch
    │   ├── RememberRefused       remember_refused
    │   ├── RememberTimeout       remember_timeout
    │   ├── RememberFailed        remember_failed
    │   ├── ForgetTimeout         forget_timeout
    │   ├── ForgetFailed          forget_failed
    │   ├── PreviewChanged        preview_changed
    │   ├── DreamTimeout          dream_timeout
    │   ├── DreamFailed           dream_failed
    │   └── RecallFailed          recall_failed
    └── LaneError                 (a lane does not accept a task)
        ├── QueueFull             remember_queue_full
        ├── IdempotencyMismatch   idempotency_mismatch
        └── WorkspaceDraining     workspace_draining

How jobs end without effect, and why none is begun, is told by the last two branches.

What a model is told is the message of a `PathEscape`, `Refusal` or `ToolError`: these never hold a
host path or a file's content. Messages of the other classes are for people and may name host paths.
"""

from __future__ import annotations

from collections.abc import Sequence

from muniment.kernel.refusal import (
    BadName,
    BudgetSpent,
    Cancelled,
    DeadlineExceeded,
    ManagedMemoryUnavailable,
    MunimentError,
    NotAFile,
    NotFound,
    PathEscape,
    PlatformUnsupported,
    PolicyInvalid,
    QuotaExceeded,
    Refusal,
    Refused,
    StoreConflict,
    TooLarge,
    ToolError,
    Unreadable,
    printable,
)

__all__ = [
    "BadName",
    "BudgetSpent",
    "Cancelled",
    "DeadlineExceeded",
    "ManagedMemoryUnavailable",
    "MunimentError",
    "NotAFile",
    "NotFound",
    "PathEscape",
    "PlatformUnsupported",
    "PolicyInvalid",
    "QuotaExceeded",
    "Refusal",
    "Refused",
    "StoreConflict",
    "TooLarge",
    "ToolError",
    "Unreadable",
    "printable",
]
"""What the kernel raises itself; all else stands here."""


class ConfigInvalid(MunimentError):
    """A flag, environment variable or line of `config.toml` cannot be used."""

    code = "config_invalid"


class InvalidScope(MunimentError):
    """The asked scope is not declared by the policy or not bound."""

    code = "invalid_scope"


class ConfinementUnavailable(MunimentError):
    """The policy requires stronger confinement than this run would have."""

    code = "confinement_unavailable"

    def __init__(self, required: str, offered: str, remedy: str) -> None:
        self.required, self.offered = required, offered
        super().__init__(
            f"the policy requires confinement '{required}', this run would have '{offered}'; {remedy}"
        )


class LedgerAway(ManagedMemoryUnavailable):
    """The database that nodes share does not answer; of a commit that was cut off nobody can tell."""

    code = "ledger_away"

    def __init__(self, what: str) -> None:
        super().__init__(what, "the database does not answer; try again")


class LeaseLost(ManagedMemoryUnavailable):
    """Another node has taken a home over, or it is gone; nothing that this one does there lands any more."""

    code = "lease_lost"

    def __init__(self, home: str) -> None:
        super().__init__(f"the home {home}", "another node has taken it over, or it was removed")


class StateTooNew(MunimentError):
    """A newer version of Muniment wrote the state directory; nothing of it was touched."""

    code = "state_too_new"

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"{what} has version {version}, this Muniment knows versions up to {known}; use a newer Muniment"
        )


class WorkerLost(MunimentError):
    """The worker or zygote died, lied, flooded or hung; its run is over."""

    code = "worker_lost"


class PendingReview(MunimentError):
    """The change-set waits for the owner's approval; nothing was written.

    Attributes:
        review_id: what to approve or reject.
        reasons: why it waits, each in one line.
    """

    code = "pending_review"

    def __init__(self, review_id: str, reasons: tuple[str, ...]) -> None:
        self.review_id, self.reasons = review_id, reasons
        super().__init__(
            f"waits for review {review_id} ({'; '.join(reasons)}); nothing was written; "
            f"look at it with: muniment review show {review_id}"
        )


class ReviewClosed(MunimentError):
    """A review that was approved or rejected already.

    Attributes:
        decision: which of the two.
    """

    code = "review_closed"

    def __init__(self, review_id: str, decision: str) -> None:
        self.decision = decision
        super().__init__(f"review {review_id} was {decision} already; nothing was written")


class ReviewChanged(MunimentError):
    """What would be approved is not what was shown; nothing was written."""

    code = "review_changed"

    def __init__(self, review_id: str) -> None:
        super().__init__(
            f"the digest is not that of review {review_id} under the present policy; nothing was written; "
            f"look at it again with: muniment review show {review_id}"
        )


class UndoOverlap(MunimentError):
    """Later changes would be lost with those that were to be undone; nothing was written.

    Attributes:
        paths: logical paths that were changed since.
    """

    code = "undo_overlap"

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(
            f"changed again since: {', '.join(paths)}; undo the later changes, or put the files back"
        )


class AlreadyUndone(MunimentError):
    """A task whose changes were taken back already; nothing was written.

    Attributes:
        by: the task that took them back.
    """

    code = "already_undone"

    def __init__(self, task: str, by: str) -> None:
        self.by = by
        super().__init__(f"{task} was undone by {by}; to have its changes again: muniment undo {by}")


class Erased(MunimentError):
    """What is asked for was erased, and cannot be shown or brought back."""

    code = "erased"


class RememberPathEscape(PathEscape):
    """An escape ended a remember; nothing was committed."""

    code = "remember_path_escape"


class NotText(ToolError):
    """The bytes are not UTF-8 text, or hold NUL."""

    code = "not_text"


class ExistsAs(ToolError):
    """The new name differs from an existing one only by case or normalisation."""

    code = "exists_as"


class NotRead(ToolError):
    """A run may replace only a file that it has read."""

    code = "not_read"


class NoMatch(ToolError):
    """`old_string` does not occur in the file."""

    code = "no_match"


class NotUnique(ToolError):
    """`old_string` occurs more than once and `replace_all` was not asked for."""

    code = "not_unique"


class BadArguments(ToolError):
    """The arguments do not fit the tool's closed model."""

    code = "bad_arguments"


class UnknownTool(ToolError):
    """There is no tool of that name."""

    code = "unknown_tool"


class ContentRejected(ToolError):
    """A content gate found something that the policy rejects.

    Attributes:
        rule: the gate's name, such as `bidi`.
    """

    code = "content_rejected"

    def __init__(self, message: str, *, rule: str) -> None:
        self.rule = rule
        super().__init__(message)


# -- of jobs and lanes -------------------------------------------------------------------------------


class JobError(MunimentError):
    """A job ended without effect on the memory."""


class InvalidContent(JobError):
    """The fact is empty, too long or not text."""

    code = "invalid_content"


class InvalidExpiry(JobError):
    """When the fact is to end is no day to come."""

    code = "invalid_expires"


class InvalidContextMode(JobError):
    """The context mode is neither `workspace` nor `clean`."""

    code = "invalid_context_mode"


class RememberNoUpdate(JobError):
    """The agent ended without proposing a change."""

    code = "remember_no_update"


class RememberScopeMismatch(JobError):
    """The agent wanted to write, but only outside the scope that was asked for."""

    code = "remember_scope_mismatch"


class RememberRefused(JobError):
    """The policy or a content gate refused what the agent wanted to write."""

    code = "remember_refused"


class RememberTimeout(JobError):
    """The run's deadline passed before anything was committed."""

    code = "remember_timeout"


class RememberFailed(JobError):
    """The model or the worker failed, or the turns ran out."""

    code = "remember_failed"


class ForgetTimeout(JobError):
    """The time of a forget passed before anything was removed."""

    code = "forget_timeout"


class ForgetFailed(JobError):
    """More was meant than one forget may remove, or the model failed; nothing was removed.

    Attributes:
        paths: where more was meant, logical paths of some of it.
        meant: how many things were; None: it failed otherwise.
        limit: how many one forget may remove.
    """

    code = "forget_failed"

    def __init__(
        self, message: str, paths: Sequence[str] = (), meant: int | None = None, limit: int | None = None
    ) -> None:
        self.paths, self.meant, self.limit = tuple(paths), meant, limit
        super().__init__(message)


class PreviewChanged(JobError):
    """What would be forgotten now is not what the preview showed; nothing was removed."""

    code = "preview_changed"

    def __init__(self) -> None:
        super().__init__(
            "what would go now is not what the preview of this digest showed; nothing was removed; "
            "look at a preview again, and give its digest"
        )


class DreamTimeout(JobError):
    """The time of a dream passed before anything was changed."""

    code = "dream_timeout"


class DreamFailed(JobError):
    """The model failed; nothing was changed."""

    code = "dream_failed"


class RecallFailed(JobError):
    """Nothing was recalled, because of a defect of this program."""

    code = "recall_failed"

    def __init__(self, problem: str) -> None:
        super().__init__(f"nothing was recalled: {problem}; this is a defect, please report it")


class LaneError(MunimentError):
    """A lane does not accept a task; nothing was queued."""


class QueueFull(LaneError):
    """Too many tasks of the workspace are pending, or too many that forget and dream."""

    code = "remember_queue_full"

    def __init__(self, pending: int) -> None:
        super().__init__(f"{pending} tasks of this workspace are pending; try again later")


class IdempotencyMismatch(LaneError):
    """The idempotency key names a task that was asked something else.

    Attributes:
        task_id: of that task.
    """

    code = "idempotency_mismatch"

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__("this Idempotency-Key was sent before with another request; take a new one")


class WorkspaceDraining(LaneError):
    """The daemon is about to stop, and accepts no tasks."""

    code = "workspace_draining"

    def __init__(self) -> None:
        super().__init__("the daemon is stopping; send it again to the next one")
