"""Every code that the daemon answers with: its sentence and, where it is that of a problem, its HTTP status.

The sentences are fixed, so that no answer, event or task can hold content, a token or a host path by them.
What a person needs beyond them stands in fields of their own: ids, logical paths, names of scopes.

Source: RFC 9457.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from muniment.errors import (
    Cancelled,
    ConfigInvalid,
    ConfinementUnavailable,
    InvalidContent,
    InvalidScope,
    MunimentError,
    PathEscape,
    PendingReview,
    PolicyInvalid,
    Refusal,
    StateTooNew,
    StoreConflict,
    ToolError,
    UndoOverlap,
)

HTTP: Final[Mapping[str, tuple[int, str]]] = MappingProxyType(
    {
        "invalid_request": (
            400,
            "The body has a field that this request does not take, or one of the wrong type or size.",
        ),
        "invalid_json": (
            400,
            "The body is no JSON object: see that no key is double and every character whole.",
        ),
        "invalid_content": (400, "`content` must be a text of 1 to 65536 bytes of UTF-8 after trimming."),
        "invalid_context_mode": (400, '`contextMode` must be "workspace", "clean", or omitted.'),
        "invalid_scope": (400, "`scope` must be a scope of the policy, or omitted."),
        "invalid_query": (
            400,
            "`query` must be a text of 1 to 65536 bytes of UTF-8 with 1 to 64 words that say something.",
        ),
        "invalid_client_id": (400, "The client id is not registered for this token."),
        "invalid_http": (400, "This is no valid HTTP request."),
        "token_required": (401, "Send the token: Authorization: Bearer …"),
        "untrusted_workspace": (
            403,
            "The daemon does not serve this workspace; start it with one `--workspace DIRECTORY` for each.",
        ),
        "owner_required": (403, "Only the owner's token may do this."),
        "foreign_origin": (403, "Pages of other origins may not call the daemon."),
        "not_found": (404, "There is nothing here."),
        "remember_task_not_found": (404, "Workspace memory remember task not found."),
        "forget_task_not_found": (404, "Workspace memory forget task not found."),
        "dream_task_not_found": (404, "Workspace memory dream task not found."),
        "bad_name": (400, "This is no path of an entry, such as user/editor/dark-mode.md."),
        "task_not_found": (404, "No task of this id has changed the memory."),
        "nothing_to_erase": (404, "Nothing of this name is remembered, nor was it."),
        "review_not_found": (404, "There is no review of this id."),
        "method_not_allowed": (405, "This path does not take this method."),
        "request_timeout": (408, "The request did not arrive in time."),
        "managed_memory_unavailable": (409, "Managed memory is unavailable for this workspace."),
        "review_closed": (409, "The review was decided before."),
        "review_changed": (409, "The digest is not that of the review as it is now; look at it again."),
        "store_conflict": (409, "The memory was changed by somebody else meanwhile."),
        "undo_overlap": (409, "Later changes would be lost; undo those first."),
        "already_undone": (409, "The task was undone before."),
        "erased": (409, "What the task did, or was to do, was erased."),
        "pending_review": (409, "The change waits for the owner's approval; nothing was written."),
        "path_escape": (409, "The change leads outside the memory; nothing was written."),
        "refused": (409, "The policy refused the change; nothing was written."),
        "quota": (409, "A quota of the policy would be passed; nothing was written."),
        "content_rejected": (409, "A content gate refused the change; nothing was written."),
        "body_too_large": (413, "The body is too large."),
        "unsupported_media_type": (415, "Send JSON: Content-Type: application/json"),
        "misdirected_request": (421, "The Host header is not one of this daemon's names."),
        "idempotency_mismatch": (422, "This Idempotency-Key was sent before with another request."),
        "remember_queue_full": (429, "Too many tasks of this workspace are pending; try again later."),
        "remember_failed": (500, "Workspace memory remember failed."),
        "forget_failed": (500, "Workspace memory forget failed."),
        "dream_failed": (500, "Workspace memory dream failed."),
        "internal_error": (500, "The daemon failed; its log says more."),
        "not_ready": (503, "The daemon accepts no tasks now."),
        "busy": (503, "The daemon serves too many requests at once; try again."),
        "workspace_draining": (503, "The daemon is stopping; send it again to the next one."),
        "deadline": (503, "Somebody else holds the memory; try again."),
    }
)
"""Status and sentence by code, of answers."""

TASK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "remember_path_escape": "Remember agent touched a path outside managed memory; nothing was written.",
        "remember_no_update": "Remember agent did not update any memory.",
        "remember_scope_mismatch": "Remember agent found no place in the requested scope.",
        "remember_refused": "The policy or a content gate refused the change; nothing was written.",
        "remember_timeout": "Workspace memory remember timed out; nothing was written.",
        "forget_timeout": "Workspace memory forget timed out; nothing was removed.",
        "dream_timeout": "Workspace memory dream timed out; nothing was changed.",
        "interrupted": "The daemon ended while it carried out this task, too often to try it again.",
        "cancelled": "The task was cancelled; nothing was written.",
    }
)
"""Sentence by code, of tasks; they may also fail with those of answers."""

RECALL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "managed_memory_unavailable": "The memory of this workspace cannot be used now.",
        "deadline": "The memory did not answer in time.",
        "recall_failed": "The daemon failed; its log says more.",
    }
)
"""Sentence by code, of recalls that are empty because something went wrong."""


class Problem(Exception):
    """An answer that says why not.

    Attributes:
        code: one of `HTTP`.
        headers: of the answer.
        fields: further members of its body.
    """

    def __init__(self, code: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> None:
        self.code, self.headers, self.fields = code, dict(headers or {}), fields
        self.status, self.sentence = HTTP[code]
        super().__init__(code)

    def body(self) -> dict[str, Any]:
        """The members of the answer's body."""
        return {
            "type": "about:blank",
            "title": self.sentence,
            "status": self.status,
            "error": self.sentence,
            "code": self.code,
            **self.fields,
        }


def problem_of(error: MunimentError) -> Problem:
    """The answer for an error of the library."""
    if error.code in HTTP:
        return Problem(error.code, **fields_of(error))
    match error:
        case Cancelled():  # What the owner asked for is cancelled when the daemon stops, and only then.
            return Problem("workspace_draining")
        case ToolError() | Refusal():
            return Problem("refused", reason=error.code)
        case PolicyInvalid() | ConfinementUnavailable() | ConfigInvalid() | StateTooNew():
            return Problem("managed_memory_unavailable", reason=error.code)
        case _:
            return Problem("internal_error")


def task_error(error: MunimentError, kind: str) -> dict[str, Any]:
    """What a task says that failed with `error`, and what the ledger keeps of it."""
    code = error.code
    if kind == "forget" and code == InvalidContent.code:
        code = "invalid_query"
    elif code not in TASK and code not in HTTP:
        code = f"{kind}_failed"
    return {"code": code, **fields_of(error)}


def recall_code(error: MunimentError) -> str:
    """Why a recall is empty: one of `RECALL`."""
    if isinstance(error, PathEscape | InvalidScope):  # A root is not where it was bound, or may be none.
        return "managed_memory_unavailable"
    code = problem_of(error).code
    return code if code in RECALL else "recall_failed"


def sentence_of(code: str) -> str:
    """The sentence of a code of a task or an answer."""
    return TASK[code] if code in TASK else HTTP[code][1]


def fields_of(error: MunimentError) -> dict[str, Any]:
    """What of an error a client may be told besides its code: ids and logical paths."""
    fields: dict[str, Any] = {}
    match error:
        case PendingReview():
            fields["reviewId"] = error.review_id
        case StoreConflict() | UndoOverlap():
            fields["paths"] = list(error.paths)
        case _:
            pass
    return fields
