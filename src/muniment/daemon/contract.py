"""What is asked over the wire, in the words of the contract, and why it may not be done.

Requests are closed: a field that is not known is refused, since a misspelt `dryRun` would delete. What is
answered stands in `muniment.contract`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, FailFast, Field, RootModel
from pydantic.alias_generators import to_camel

from muniment import contract as answers
from muniment.errors import (
    Cancelled,
    ConfigInvalid,
    ConfinementUnavailable,
    ForgetFailed,
    InvalidContent,
    InvalidScope,
    LeaseLost,
    LedgerAway,
    MunimentError,
    PathEscape,
    PendingReview,
    PolicyInvalid,
    Refusal,
    RememberRefused,
    StateTooNew,
    StoreConflict,
    ToolError,
    UndoOverlap,
)
from muniment.kernel.names import Trust
from muniment.names import ContextMode

# -- contract ----------------------------------------------------------------------------------------

MAX_BODY_BYTES: Final = 512 * 1024
"""Bytes of a request's body: a fact of 64 KiB, each byte written as `\\u00xx`, and white space."""

MAX_REF_CHARS: Final = 512
"""Characters of a source's reference: an address, or an id of another system."""

MAX_WAIT_SECONDS: Final = 60
"""Seconds for which a request for a task may wait."""

MAX_RECALLED: Final = 20
"""Entries of one recall, which share some 2000 tokens."""

MAX_EXCLUDED: Final = 500
"""Ids that one recall leaves out: what was shown in a long conversation."""

MAX_EXPIRES_CHARS: Final = 32
"""Characters of a day, and more than one has."""

MAX_DIGEST_CHARS: Final = 128
"""Characters of the digest of a dry run, and more than one has."""

MAX_ID_CHARS: Final = 1_200
"""Characters of the id of an entry: its path, and 65 more."""


class _Request(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # A daemon starts without them.
        alias_generator=to_camel,  # No second spelling of a field.
    )


class Source(_Request):
    """Where a fact comes from; its trust counts up to that of the token."""

    trust: Annotated[Trust, Field(strict=False)] = Trust.OWNER
    ref: Annotated[str, Field(max_length=MAX_REF_CHARS)] | None = None


class RememberBody(_Request):
    """A fact to be remembered."""

    content: str = Field(description="The fact: 1 to 65536 bytes of UTF-8 after trimming.")
    context_mode: Annotated[ContextMode, Field(strict=False)] | None = None
    scope: str | None = None
    source: Source = Source()
    expires: Annotated[str, Field(max_length=MAX_EXPIRES_CHARS)] | None = Field(
        None,
        description="The day on which it is no longer told, such as `2026-12-31`, or in how many days, such "
        "as `30d`; null: as its words say, else never.",
    )


class ForgetBody(_Request):
    """What is to be forgotten."""

    query: str = Field(
        description="The path of an entry, such as `user/editor.md`, or a description of what is meant. "
        "Where no language model says what it means, its words must all be there."
    )
    scope: str | None = None
    dry_run: bool = Field(False, description="Only say what would go, all of it, also if it is too much.")
    digest: Annotated[str, Field(max_length=MAX_DIGEST_CHARS)] | None = Field(
        None, description="Of a dry run's result: where something else would go by now, nothing does."
    )


class DreamBody(_Request):
    """Nothing: a dream tidies all scopes."""


class RecallBody(_Request):
    """A message to a model: what of the memory helps with it is looked for."""

    query: str = Field(description="The message, or some words: 1 to 65536 bytes of UTF-8 after trimming.")
    exclude: Annotated[list[Annotated[str, Field(max_length=MAX_ID_CHARS)]], FailFast()] = Field(
        [],
        max_length=MAX_EXCLUDED,
        description="Ids of entries that the model has seen. An entry that was changed since comes again; "
        "what is the id of none leaves nothing out.",
    )
    limit: int = Field(5, ge=1, le=MAX_RECALLED, description="How many entries at most.")


class UndoBody(_Request):
    """The task whose changes are to be taken back."""

    task_id: str


class EraseBody(_Request):
    """What is to be erased for good; without `yes` it is only said what would go."""

    target: str
    yes: bool = False


class ApproveBody(_Request):
    """The digest that the review showed."""

    digest: str


class RejectBody(_Request):
    """Nothing: which review it is stands in the path."""


class UiBody(_Request):
    """Nothing: there is one page."""


class Erasure(RootModel[answers.Erasure]):
    """What an erasure would do, or did."""


# -- problems ----------------------------------------------------------------------------------------
#
# Every code that the daemon answers with: its sentence and, where it is that of a problem, its HTTP status.
#
# The sentences are fixed, so that no answer, event or task can hold content, a token or a host path by
# them. What a person needs beyond them stands in fields of their own: ids, logical paths, names of scopes.
#
# Source: RFC 9457.

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
        "invalid_expires": (400, "`expires` must be a day to come such as 2026-12-31, or days such as 30d."),
        "invalid_scope": (400, "`scope` must be a scope of the policy, or omitted."),
        "invalid_query": (
            400,
            "`query` must be a text of 1 to 65536 bytes of UTF-8 with 1 to 64 words that say something.",
        ),
        "workspace_required": (
            400,
            "The daemon serves several workspaces; name yours: /workspaces/KEY-OR-PATH/memory/…",
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
        "ui_not_local": (
            409,
            "The page is for browsers of this machine, and the daemon does not listen at 127.0.0.1 or ::1.",
        ),
        "ui_port_taken": (
            409,
            "Browsers would find another program at this port, not the page; restart the daemon at another.",
        ),
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
        "ui_not_installed": (
            501,
            "This daemon was installed without the page; there: pip install 'muniment[ui]', and restart it.",
        ),
        "mcp_not_installed": (
            501,
            "This daemon was installed without MCP; there: pip install 'muniment[mcp]', and start it again.",
        ),
        "ledger_away": (503, "The database of the fleet does not answer; try again."),
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
        "preview_changed": "What would go is not what the dry run of this digest said; nothing was removed.",
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


AWAY_SECONDS: Final = 5
"""Seconds after which to try again where the database of a fleet does not answer."""


class HttpProblem(Exception):
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


def problem_of(error: MunimentError) -> HttpProblem:
    """The answer for an error of the library."""
    if isinstance(error, LedgerAway):
        return HttpProblem(error.code, headers={"Retry-After": str(AWAY_SECONDS)})
    if error.code in HTTP:
        return HttpProblem(error.code, **fields_of(error))
    match error:
        case LeaseLost():
            return HttpProblem("deadline")
        case Cancelled():  # What the owner asked for is cancelled when the daemon stops, and only then.
            return HttpProblem("workspace_draining")
        case ToolError() | Refusal() | RememberRefused():
            return HttpProblem("refused", reason=error.code)
        case PolicyInvalid() | ConfinementUnavailable() | ConfigInvalid() | StateTooNew():
            return HttpProblem("managed_memory_unavailable", reason=error.code)
        case _:
            return HttpProblem("internal_error")


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
    # A root is not where it was bound, or may be none; or the ledger is elsewhere, and cannot be asked.
    if isinstance(error, PathEscape | InvalidScope | LedgerAway):
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
        case ForgetFailed() if error.meant is not None:
            fields |= {"paths": list(error.paths), "meant": error.meant, "limit": error.limit}
        case _:
            pass
    return fields
