"""The errors of Muniment: one tree of classes, and one table of codes. Import every error from here.

The kernel imports nothing of this, so its refusals are defined in `kernel/refusal.py`; all others are here.
A class exists if somebody catches it or if it has fields; its `code` is the stable name of what happened.
If one class has several codes, it lists them, and the raising code chooses one. Messages are derived from
fields; the daemon sends the sentences of the table instead.

    MunimentError
    ├── ConfigInvalid             config_invalid
    ├── PlatformUnsupported       platform_unsupported
    ├── PolicyInvalid             policy_invalid
    ├── InvalidScope              invalid_scope
    ├── ConfinementUnavailable    confinement_unavailable
    ├── ManagedMemoryUnavailable  managed_memory_unavailable
    │   ├── RollbackFailed        (the code of its parent)
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
    ├── ToolError                 not_text, exists_as, not_read, no_match, not_unique, unknown_tool
    │   ├── NotFound              not_found
    │   ├── NotAFile              not_a_file
    │   ├── TooLarge              too_large
    │   ├── Unreadable            unreadable
    │   ├── BadArguments          bad_arguments
    │   ├── ContentRejected       content_rejected
    │   ├── QuotaExceeded         quota
    │   └── BudgetSpent           budget
    ├── JobError                  remember_scope_mismatch, preview_changed
    │   ├── InvalidContent        invalid_content, invalid_expires, invalid_context_mode
    │   ├── RememberNoUpdate      remember_no_update
    │   └── RememberRefused       remember_refused
    ├── JobTimeout                remember_timeout, forget_timeout, dream_timeout
    ├── JobFailed                 remember_failed, forget_failed, dream_failed, recall_failed
    └── LaneError                 workspace_draining
        ├── QueueFull             remember_queue_full
        └── IdempotencyMismatch   idempotency_mismatch

What a model is told is the message of a `PathEscape`, `Refusal` or `ToolError`: these never hold a
host path or a file's content. Messages of the other classes are for people and may name host paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from muniment.kernel.refusal import (
    BadName,
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
    RollbackFailed,
    StoreConflict,
    TooLarge,
    ToolError,
    Unreadable,
    printable,
)

__all__ = [
    "BadName",
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
    "RollbackFailed",
    "StoreConflict",
    "TooLarge",
    "ToolError",
    "Unreadable",
    "printable",
]
"""The refusals of the kernel, for import from here."""

# -- codes -------------------------------------------------------------------------------------------


class Meaning(NamedTuple):
    """What a code means.

    Attributes:
        status: of an HTTP answer with it; 0: no answer has it.
        sentence: what the daemon says; fixed, so that no answer, event or task can hold content, a token or a
            host path by it. What a person needs beyond it stands in fields of its own: ids, paths, scopes.
        ends_task: whether tasks end with it.
        answer: the code of an answer where the library raises one without a status; "": of a defect.
        recall: what it means where a recall is empty because of it; "": none is.
    """

    status: int
    sentence: str
    ends_task: bool = False
    answer: str = ""
    recall: str = ""


NOT_NOW: Final = frozenset({429, 503})
"""Statuses of codes that may be others soon: the same may be asked again."""

CODES: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "invalid_request": Meaning(
            400, "The body has a field that this request does not take, or one of the wrong type or size."
        ),
        "invalid_json": Meaning(
            400, "The body is no JSON object: see that no key is double and every character whole."
        ),
        "invalid_content": Meaning(
            400, "`content` must be a text of 1 to 65536 bytes of UTF-8 after trimming."
        ),
        "invalid_context_mode": Meaning(400, '`contextMode` must be "workspace", "clean", or omitted.'),
        "invalid_expires": Meaning(
            400, "`expires` must be today or a later day such as 2026-12-31, or days such as 30d."
        ),
        "invalid_scope": Meaning(400, "`scope` must be a scope of the policy, or omitted."),
        "invalid_query": Meaning(
            400, "`query` must be a text of 1 to 65536 bytes of UTF-8 with 1 to 64 words that say something."
        ),
        "workspace_required": Meaning(
            400,
            "The daemon serves several workspaces. Name yours in the path: /workspaces/KEY-OR-PATH/memory/… "
            "or /workspaces/KEY-OR-PATH/mcp. /readyz lists the keys.",
        ),
        "invalid_client_id": Meaning(400, "The client id is not registered for this token."),
        "invalid_http": Meaning(400, "This is no valid HTTP request."),
        "token_required": Meaning(401, "Send the token: Authorization: Bearer …"),
        "untrusted_workspace": Meaning(
            403,
            "The daemon does not serve this workspace; start it with one `--workspace DIRECTORY` for each.",
        ),
        "owner_required": Meaning(403, "Only the owner's token may do this."),
        "foreign_origin": Meaning(403, "Pages of other origins may not call the daemon."),
        "not_found": Meaning(404, "There is nothing here."),
        "remember_task_not_found": Meaning(404, "Workspace memory remember task not found."),
        "forget_task_not_found": Meaning(404, "Workspace memory forget task not found."),
        "dream_task_not_found": Meaning(404, "Workspace memory dream task not found."),
        "bad_name": Meaning(400, "This is no path of an entry, such as user/editor/dark-mode.md."),
        "task_not_found": Meaning(404, "No task of this id has changed the memory."),
        "nothing_to_erase": Meaning(404, "Nothing of this name is remembered, nor was it."),
        "review_not_found": Meaning(404, "There is no review of this id."),
        "method_not_allowed": Meaning(405, "This path does not take this method."),
        "request_timeout": Meaning(408, "The request did not arrive in time."),
        "ui_not_local": Meaning(
            409,
            "The page is for browsers of this machine, and the daemon does not listen at 127.0.0.1 or ::1.",
        ),
        "ui_port_taken": Meaning(
            409,
            "Browsers would find another program at this port, not the page; restart the daemon at another.",
        ),
        "managed_memory_unavailable": Meaning(
            409,
            "Managed memory is unavailable for this workspace.",
            ends_task=True,
            recall="The memory of this workspace cannot be used now.",
        ),
        "review_closed": Meaning(409, "The review was decided before."),
        "review_changed": Meaning(
            409, "The digest is not that of the review as it is now; look at it again."
        ),
        "store_conflict": Meaning(409, "The memory was changed by somebody else meanwhile.", ends_task=True),
        "undo_overlap": Meaning(409, "Later changes would be lost; undo those first."),
        "already_undone": Meaning(409, "The task was undone before."),
        "erased": Meaning(409, "What the task did, or was to do, was erased.", ends_task=True),
        "pending_review": Meaning(
            409, "The change waits for the owner's approval; nothing was written.", ends_task=True
        ),
        "path_escape": Meaning(409, "The change leads outside the memory; nothing was written."),
        "refused": Meaning(409, "The policy refused the change; nothing was written."),
        "quota": Meaning(409, "A quota of the policy would be passed; nothing was written."),
        "content_rejected": Meaning(409, "A content gate refused the change; nothing was written."),
        "body_too_large": Meaning(413, "The body is too large."),
        "unsupported_media_type": Meaning(415, "Send JSON: Content-Type: application/json"),
        "misdirected_request": Meaning(421, "The Host header is not one of this daemon's names."),
        "idempotency_mismatch": Meaning(422, "This Idempotency-Key was sent before with another request."),
        "remember_queue_full": Meaning(429, "Too many tasks of this workspace are pending; try again later."),
        "remember_failed": Meaning(500, "Workspace memory remember failed.", ends_task=True),
        "forget_failed": Meaning(500, "Workspace memory forget failed.", ends_task=True),
        "dream_failed": Meaning(500, "Workspace memory dream failed.", ends_task=True),
        "internal_error": Meaning(500, "The daemon failed; its log says more."),
        "ui_not_installed": Meaning(
            501,
            "This daemon was installed without the page; there: pip install 'muniment[ui]', and restart it.",
        ),
        "mcp_not_installed": Meaning(
            501,
            "This daemon was installed without MCP; there: pip install 'muniment[mcp]', and start it again.",
        ),
        "ledger_away": Meaning(503, "The database of the fleet does not answer; try again."),
        "not_ready": Meaning(503, "The daemon accepts no tasks now."),
        "busy": Meaning(503, "The daemon serves too many requests at once; try again."),
        "workspace_draining": Meaning(503, "The daemon is stopping; send it again to the next one."),
        "deadline": Meaning(
            503, "Somebody else holds the memory; try again.", recall="The memory did not answer in time."
        ),
        "remember_path_escape": Meaning(
            0, "Remember agent touched a path outside managed memory; nothing was written.", ends_task=True
        ),
        "remember_no_update": Meaning(0, "Remember agent did not update any memory.", ends_task=True),
        "remember_scope_mismatch": Meaning(
            0, "Remember agent found no place in the requested scope.", ends_task=True
        ),
        "remember_refused": Meaning(
            0,
            "The policy or a content gate refused the change; nothing was written.",
            ends_task=True,
            answer="refused",
        ),
        "remember_timeout": Meaning(
            0, "Workspace memory remember timed out; nothing was written.", ends_task=True
        ),
        "forget_timeout": Meaning(
            0, "Workspace memory forget timed out; nothing was removed.", ends_task=True
        ),
        "preview_changed": Meaning(
            0,
            "What would go is not what the dry run of this digest said; nothing was removed.",
            ends_task=True,
        ),
        "dream_timeout": Meaning(0, "Workspace memory dream timed out; nothing was changed.", ends_task=True),
        "interrupted": Meaning(
            0,
            "The daemon ended while it carried out this task, too often to try it again.",
            ends_task=True,
        ),
        "cancelled": Meaning(
            0, "The task was cancelled; nothing was written.", ends_task=True, answer="workspace_draining"
        ),  # Of an answer: what the owner asked for is cancelled when the daemon stops, and only then.
        "recall_failed": Meaning(0, "", recall="The daemon failed; its log says more."),
        "lease_lost": Meaning(0, "", answer="deadline"),
        **dict.fromkeys(
            ("config_invalid", "policy_invalid", "confinement_unavailable", "state_too_new"),
            Meaning(0, "", answer="managed_memory_unavailable"),
        ),
        **dict.fromkeys(
            (
                *("not_a_file", "not_text", "too_large", "exists_as", "unreadable", "not_read", "no_match"),
                *("not_unique", "bad_arguments", "unknown_tool", "budget"),
            ),
            Meaning(0, "", answer="refused"),
        ),
        **dict.fromkeys(("platform_unsupported", "worker_lost"), Meaning(0, "")),
    }
)
"""Every code that stands in this tree, or that the daemon answers with, and what it means."""


# -- classes -----------------------------------------------------------------------------------------


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


class BadArguments(ToolError):
    """The arguments do not fit the tool's closed model."""

    code = "bad_arguments"


class BudgetSpent(ToolError):
    """The run has used up one of its budgets."""

    code = "budget"


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
    """A job is not carried out as it was asked for; nothing was changed."""

    codes: ClassVar[tuple[str, ...]] = ("remember_scope_mismatch", "preview_changed")


class InvalidContent(JobError):
    """The fact, its end, its context mode, or the id of its task cannot be."""

    code = "invalid_content"
    codes: ClassVar[tuple[str, ...]] = ("invalid_content", "invalid_expires", "invalid_context_mode")


class RememberNoUpdate(JobError):
    """The agent ended without proposing a change."""

    code = "remember_no_update"


class RememberRefused(JobError):
    """The policy or a content gate refused what the agent wanted to write."""

    code = "remember_refused"


class JobTimeout(MunimentError):
    """The time of a job passed before anything was changed."""

    codes: ClassVar[tuple[str, ...]] = ("remember_timeout", "forget_timeout", "dream_timeout")


class JobFailed(MunimentError):
    """The model or the worker failed, or more was meant than may be; nothing was changed.

    Attributes:
        paths: where more was meant, logical paths of some of it.
        meant: how many things were; None: it failed otherwise.
        limit: how many one forget may remove.
        reason: one line that names the model and why it failed; empty: it is not the cause.
    """

    codes: ClassVar[tuple[str, ...]] = ("remember_failed", "forget_failed", "dream_failed", "recall_failed")

    def __init__(
        self,
        message: str,
        *,
        code: str,
        paths: Sequence[str] = (),
        meant: int | None = None,
        limit: int | None = None,
        reason: str = "",
    ) -> None:
        self.paths, self.meant, self.limit, self.reason = tuple(paths), meant, limit, reason
        super().__init__(message, code=code)


def recall_failed(problem: str) -> JobFailed:
    """That nothing was recalled, because of a defect of this program."""
    return JobFailed(
        f"nothing was recalled: {problem}; this is a defect, please report it", code="recall_failed"
    )


class LaneError(MunimentError):
    """A lane does not accept a task; nothing was queued."""

    codes: ClassVar[tuple[str, ...]] = ("workspace_draining",)


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
