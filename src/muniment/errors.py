"""The errors of Muniment: one tree of classes, and one table of codes. Import every error from this module.

The errors of the kernel are defined in `kernel/refusal.py`, because the kernel does not import this module.
All other errors are defined in this module. An error has its own class if a caller catches it or if it has
fields. The `code` of an error is its stable name. A class with several codes lists them in `codes`, and the
code that raises the error chooses one. The daemon does not send the message of an error, but the sentence of
its code in the table `CODES`.

    MunimentError
    ├── ConfigInvalid             config_invalid
    ├── PlatformUnsupported       platform_unsupported
    ├── PolicyInvalid             policy_invalid
    ├── InvalidScope              invalid_scope
    ├── ConfinementUnavailable    confinement_unavailable
    ├── ManagedMemoryUnavailable  managed_memory_unavailable
    │   ├── RollbackFailed        (the code of its parent)
    │   ├── LedgerUnreachable            ledger_away
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
    ├── Refusal                   (the path is invalid or the policy denies it; reported in one line)
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

A model receives the message of a `PathEscape`, `Refusal` or `ToolError`: these never contain a host path or a
file's content. Messages of the other classes are for people and may contain host paths.
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
"""The errors of the kernel, for import from here."""

# -- codes -------------------------------------------------------------------------------------------


class CodeInfo(NamedTuple):
    """The meaning of an error code.

    Attributes:
        status: the HTTP status of a response with this code; 0: no response has this code.
        sentence: the daemon's message. It is fixed, so that no response, event or task can contain content, a
            token or a host path. Other data for the user is in separate fields: ids, paths, scopes.
        ends_task: whether a task can fail with this code.
        response_code: if `status` is 0 and the library raises an error with this code: the code that the
            response has instead; "": `internal_error`.
        recall_sentence: the message if a recall is empty because of this code; "": `recall_failed` is used.
    """

    status: int
    sentence: str
    ends_task: bool = False
    response_code: str = ""
    recall_sentence: str = ""


RETRYABLE_STATUSES: Final = frozenset({429, 503})
"""HTTP statuses of temporary errors: the same request may succeed later."""

CODES: Final[Mapping[str, CodeInfo]] = MappingProxyType(
    {
        "invalid_request": CodeInfo(
            400, "The body has an unknown field, or a field of the wrong type or size."
        ),
        "invalid_json": CodeInfo(
            400, "The body is not a JSON object. Each key must be unique, and the text must be valid UTF-8."
        ),
        "invalid_content": CodeInfo(
            400, "`content` must be a string of 1 to 65536 bytes of UTF-8 after trimming."
        ),
        "invalid_context_mode": CodeInfo(400, '`contextMode` must be "workspace", "clean", or omitted.'),
        "invalid_expires": CodeInfo(
            400, "`expires` must be today or a later day such as 2026-12-31, or a number of days such as 30d."
        ),
        "invalid_scope": CodeInfo(400, "`scope` must be a scope of the policy, or omitted."),
        "invalid_query": CodeInfo(
            400, "`query` must be a string of 1 to 65536 bytes of UTF-8 with 1 to 64 significant words."
        ),
        "workspace_required": CodeInfo(
            400,
            "The daemon serves several workspaces. Select one in the path: /workspaces/KEY-OR-PATH/memory/… "
            "or /workspaces/KEY-OR-PATH/mcp. /readyz lists the keys.",
        ),
        "invalid_client_id": CodeInfo(400, "The client id is not registered for this token."),
        "invalid_http": CodeInfo(400, "Invalid HTTP request."),
        "token_required": CodeInfo(401, "Send the token: Authorization: Bearer …"),
        "untrusted_workspace": CodeInfo(
            403,
            "The daemon does not serve this workspace; start it with one `--workspace DIRECTORY` for each.",
        ),
        "owner_required": CodeInfo(403, "Only the owner's token may do this."),
        "foreign_origin": CodeInfo(403, "Pages of other origins may not call the daemon."),
        "not_found": CodeInfo(404, "Not found."),
        "remember_task_not_found": CodeInfo(404, "Workspace memory remember task not found."),
        "forget_task_not_found": CodeInfo(404, "Workspace memory forget task not found."),
        "dream_task_not_found": CodeInfo(404, "Workspace memory dream task not found."),
        "bad_name": CodeInfo(400, "Invalid path of an entry; use one such as user/editor/dark-mode.md."),
        "task_not_found": CodeInfo(404, "No task of this id has changed the memory."),
        "nothing_to_erase": CodeInfo(404, "No entry has or had this name."),
        "review_not_found": CodeInfo(404, "Review not found."),
        "method_not_allowed": CodeInfo(405, "This path does not support this method."),
        "request_timeout": CodeInfo(408, "The request did not arrive in time."),
        "ui_not_local": CodeInfo(
            409,
            "The page is for browsers of this machine, and the daemon does not listen at 127.0.0.1 or ::1.",
        ),
        "ui_port_taken": CodeInfo(
            409,
            "Another program also uses this port, so browsers cannot open the page; use another port.",
        ),
        "managed_memory_unavailable": CodeInfo(
            409,
            "Managed memory is unavailable for this workspace.",
            ends_task=True,
            recall_sentence="The memory of this workspace cannot be used now.",
        ),
        "review_closed": CodeInfo(409, "The review is already decided."),
        "review_changed": CodeInfo(
            409, "The digest does not match the current review; read the review again."
        ),
        "store_conflict": CodeInfo(
            409, "Another process changed the memory meanwhile; try again.", ends_task=True
        ),
        "undo_overlap": CodeInfo(409, "Later changes would be lost; undo those first."),
        "already_undone": CodeInfo(409, "The task is already undone."),
        "erased": CodeInfo(409, "The data of the task was erased.", ends_task=True),
        "pending_review": CodeInfo(
            409, "The change waits for the owner's approval; nothing was written.", ends_task=True
        ),
        "path_escape": CodeInfo(409, "A path of the change is outside the memory; nothing was written."),
        "refused": CodeInfo(409, "The policy denied the change; nothing was written."),
        "quota": CodeInfo(409, "The change exceeds a quota of the policy; nothing was written."),
        "content_rejected": CodeInfo(409, "A content gate rejected the change; nothing was written."),
        "body_too_large": CodeInfo(413, "The body is too large."),
        "unsupported_media_type": CodeInfo(415, "Send JSON: Content-Type: application/json"),
        "misdirected_request": CodeInfo(421, "The Host header is not one of this daemon's names."),
        "idempotency_mismatch": CodeInfo(422, "This Idempotency-Key was sent before with another request."),
        "remember_queue_full": CodeInfo(
            429, "Too many tasks of this workspace are pending; try again later."
        ),
        "remember_failed": CodeInfo(500, "Workspace memory remember failed.", ends_task=True),
        "forget_failed": CodeInfo(500, "Workspace memory forget failed.", ends_task=True),
        "dream_failed": CodeInfo(500, "Workspace memory dream failed.", ends_task=True),
        "internal_error": CodeInfo(500, "The daemon failed; see its log."),
        "ui_not_installed": CodeInfo(
            501,
            "The page is not installed; run pip install 'muniment[ui]' at the daemon and restart it.",
        ),
        "mcp_not_installed": CodeInfo(
            501,
            "MCP is not installed; run pip install 'muniment[mcp]' at the daemon and restart it.",
        ),
        "ledger_away": CodeInfo(503, "The database of the fleet does not respond; try again."),
        "not_ready": CodeInfo(503, "The daemon accepts no tasks now."),
        "busy": CodeInfo(503, "The daemon serves too many requests at once; try again."),
        "workspace_draining": CodeInfo(
            503, "The daemon is stopping; send the request again after its restart."
        ),
        "deadline": CodeInfo(
            503,
            "Another process has locked the memory; try again.",
            recall_sentence="The memory did not respond in time.",
        ),
        "remember_path_escape": CodeInfo(
            0, "Remember agent touched a path outside managed memory; nothing was written.", ends_task=True
        ),
        "remember_no_update": CodeInfo(0, "Remember agent did not update any memory.", ends_task=True),
        "remember_scope_mismatch": CodeInfo(
            0, "Remember agent found no place in the requested scope.", ends_task=True
        ),
        "remember_refused": CodeInfo(
            0,
            "The policy or a content gate rejected the change; nothing was written.",
            ends_task=True,
            response_code="refused",
        ),
        "remember_timeout": CodeInfo(
            0, "Workspace memory remember timed out; nothing was written.", ends_task=True
        ),
        "forget_timeout": CodeInfo(
            0, "Workspace memory forget timed out; nothing was removed.", ends_task=True
        ),
        "preview_changed": CodeInfo(
            0,
            "The matches changed since the dry run of this digest; nothing was removed. Repeat the dry run.",
            ends_task=True,
        ),
        "dream_timeout": CodeInfo(
            0, "Workspace memory dream timed out; nothing was changed.", ends_task=True
        ),
        "interrupted": CodeInfo(
            0,
            "The daemon ended too often while it ran this task; the task is not tried again.",
            ends_task=True,
        ),
        "cancelled": CodeInfo(
            0,
            "The task was cancelled; nothing was written.",
            ends_task=True,
            response_code="workspace_draining",
        ),  # For a response: the owner's requests are only cancelled when the daemon stops.
        "recall_failed": CodeInfo(0, "", recall_sentence="The daemon failed; see its log."),
        "lease_lost": CodeInfo(0, "", response_code="deadline"),
        **dict.fromkeys(
            ("config_invalid", "policy_invalid", "confinement_unavailable", "state_too_new"),
            CodeInfo(0, "", response_code="managed_memory_unavailable"),
        ),
        **dict.fromkeys(
            (
                *("not_a_file", "not_text", "too_large", "exists_as", "unreadable", "not_read", "no_match"),
                *("not_unique", "bad_arguments", "unknown_tool", "budget"),
            ),
            CodeInfo(0, "", response_code="refused"),
        ),
        **dict.fromkeys(("platform_unsupported", "worker_lost"), CodeInfo(0, "")),
    }
)
"""The meaning of each error code: of the classes in this module, and of the daemon's responses."""


# -- classes -----------------------------------------------------------------------------------------


class ConfigInvalid(MunimentError):
    """The value of a flag, of an environment variable or of a key in `config.toml` cannot be used."""

    code = "config_invalid"


class InvalidScope(MunimentError):
    """The policy does not declare the requested scope, or the scope has no directory."""

    code = "invalid_scope"


class ConfinementUnavailable(MunimentError):
    """The policy requires stronger confinement than the worker of this run would have."""

    code = "confinement_unavailable"

    def __init__(self, required: str, offered: str, remedy: str) -> None:
        self.required, self.offered = required, offered
        super().__init__(
            f"the policy requires confinement '{required}', but this run would have '{offered}'; {remedy}"
        )


class LedgerUnreachable(ManagedMemoryUnavailable):
    """The shared database of a fleet does not respond; a commit in progress may have succeeded or failed."""

    code = "ledger_away"

    def __init__(self, what: str) -> None:
        super().__init__(what, "the database does not respond; try again")


class LeaseLost(ManagedMemoryUnavailable):
    """This node may no longer write to a home: another node took it over, or it was removed."""

    code = "lease_lost"

    def __init__(self, home: str) -> None:
        super().__init__(f"the home {home}", "another node has taken it over, or it was removed")


class StateTooNew(MunimentError):
    """A newer version of Muniment wrote the state directory; this version does not change it."""

    code = "state_too_new"

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"{what} has version {version}, but this Muniment supports only up to {known}; use a newer one"
        )


class WorkerLost(MunimentError):
    """The worker process of a run died, hung, or sent invalid or too much data; the run has ended."""

    code = "worker_lost"


class PendingReview(MunimentError):
    """The change set waits for the owner's approval; nothing was written.

    Attributes:
        review_id: the id of the review to approve or reject.
        reasons: why the change needs an approval, each in one line.
    """

    code = "pending_review"

    def __init__(self, review_id: str, reasons: tuple[str, ...]) -> None:
        self.review_id, self.reasons = review_id, reasons
        super().__init__(
            f"the change waits for review {review_id} ({'; '.join(reasons)}); nothing was written; "
            f"show it with: muniment review show {review_id}"
        )


class ReviewClosed(MunimentError):
    """The review is already approved or rejected.

    Attributes:
        decision: `approved` or `rejected`.
    """

    code = "review_closed"

    def __init__(self, review_id: str, decision: str) -> None:
        self.decision = decision
        super().__init__(f"review {review_id} is already {decision}; nothing was written")


class ReviewChanged(MunimentError):
    """The digest of an approval does not match the current review; nothing was written."""

    code = "review_changed"

    def __init__(self, review_id: str) -> None:
        super().__init__(
            f"the digest does not match review {review_id} under the current policy; nothing was written; "
            f"show it again with: muniment review show {review_id}"
        )


class UndoOverlap(MunimentError):
    """An undo would also revert later changes; nothing was written.

    Attributes:
        paths: the paths (such as `user/editor.md`) that were changed after the task to undo.
    """

    code = "undo_overlap"

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(
            f"these files changed again later: {', '.join(paths)}; undo the later changes first, "
            "or restore the files"
        )


class AlreadyUndone(MunimentError):
    """The changes of a task are already undone; nothing was written.

    Attributes:
        by: the id of the task that undid the changes.
    """

    code = "already_undone"

    def __init__(self, task: str, by: str) -> None:
        self.by = by
        super().__init__(f"{task} was undone by {by}; to restore its changes, run: muniment undo {by}")


class Erased(MunimentError):
    """The requested data was erased, and cannot be shown or restored."""

    code = "erased"


class RememberPathEscape(PathEscape):
    """The agent of a remember task tried to use a path outside the memory; nothing was committed."""

    code = "remember_path_escape"


class BadArguments(ToolError):
    """The arguments of a tool call or of a method are missing, or have a wrong type or value."""

    code = "bad_arguments"


class BudgetSpent(ToolError):
    """A run has used up one of its budgets, for example its number of tool calls."""

    code = "budget"


class ContentRejected(ToolError):
    """A check of the content (gate) found something that the policy rejects.

    Attributes:
        rule: the name of the gate, such as `bidi`.
    """

    code = "content_rejected"

    def __init__(self, message: str, *, rule: str) -> None:
        self.rule = rule
        super().__init__(message)


# -- jobs and lanes ------------------------------------------------------------------------------------


class JobError(MunimentError):
    """A remember, forget or dream cannot be carried out as requested; nothing was changed."""

    codes: ClassVar[tuple[str, ...]] = ("remember_scope_mismatch", "preview_changed")


class InvalidContent(JobError):
    """A text, date, context mode or task id of a request is invalid."""

    code = "invalid_content"
    codes: ClassVar[tuple[str, ...]] = ("invalid_content", "invalid_expires", "invalid_context_mode")


class RememberNoUpdate(JobError):
    """The agent ended without proposing a change."""

    code = "remember_no_update"


class RememberRefused(JobError):
    """The policy, or a check of the content, rejected the proposed change; nothing was written."""

    code = "remember_refused"


class JobTimeout(MunimentError):
    """A remember, forget or dream reached its time limit; nothing was changed."""

    codes: ClassVar[tuple[str, ...]] = ("remember_timeout", "forget_timeout", "dream_timeout")


class JobFailed(MunimentError):
    """The model or the worker failed, or a description matched too many entries; nothing was changed.

    Attributes:
        paths: if a description matched too many entries, the paths of some of them.
        meant: the number of matches; None if the job failed for another reason.
        limit: the number of matches that one forget may remove; None if the job failed for another reason.
        reason: one line with the model's name and its failure; empty if the model is not the cause.
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


def build_recall_failure(problem: str) -> JobFailed:
    """Return the error of a recall that failed because of a defect of this program.

    Args:
        problem: the class of the unexpected exception.
    """
    return JobFailed(
        f"nothing was recalled: {problem}; this is a defect, please report it", code="recall_failed"
    )


class LaneError(MunimentError):
    """A lane (the queue of one workspace) does not accept a task; nothing was queued."""

    codes: ClassVar[tuple[str, ...]] = ("workspace_draining",)


class QueueFull(LaneError):
    """The workspace has too many pending tasks, or too many pending forget and dream tasks."""

    code = "remember_queue_full"

    def __init__(self, pending: int) -> None:
        super().__init__(f"{pending} tasks of this workspace are pending; try again later")


class IdempotencyMismatch(LaneError):
    """The Idempotency-Key of a request was used before for a different request.

    Attributes:
        task_id: the id of the task of the earlier request.
    """

    code = "idempotency_mismatch"

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__("this Idempotency-Key was sent before with another request; use a new one")
