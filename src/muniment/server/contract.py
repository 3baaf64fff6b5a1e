"""Request bodies and problems of the HTTP contract.

A request with an unknown field is rejected: if a misspelt `dryRun` were ignored, entries would be deleted.
`muniment.types` defines the response bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, FailFast, Field, RootModel
from pydantic.alias_generators import to_camel

from muniment import types as answers
from muniment.errors import (
    CODES,
    InvalidContent,
    InvalidScope,
    JobFailed,
    LedgerUnreachable,
    MunimentError,
    PathEscape,
    PendingReview,
    StoreConflict,
    UndoOverlap,
)
from muniment.kernel.names import Trust
from muniment.names import MAX_RECALLED, ContextMode

# -- contract ----------------------------------------------------------------------------------------

MAX_BODY_BYTES: Final = 512 * 1024
"""Maximum bytes of a request body: a fact of 64 KiB, each byte written as `\\u00xx`, plus white space."""

MAX_REF_CHARS: Final = 512
"""Maximum characters of the reference to a source: an address, or an id of another system."""

MAX_WAIT_SECONDS: Final = 60
"""Maximum seconds that a client may wait in one request for the end of a task."""

MAX_LISTED: Final = 1_000
"""Maximum entries in one page of a list."""

MAX_EXCLUDED: Final = 500
"""Maximum ids that one recall excludes: the entries injected in a long conversation."""

MAX_EXPIRES_CHARS: Final = 32
"""Maximum characters of an expiry date; a valid date is shorter."""

MAX_DIGEST_CHARS: Final = 128
"""Maximum characters of the digest of a dry run; a valid digest is shorter."""

MAX_ID_CHARS: Final = 1_200
"""Maximum characters of the id of an entry: its path and 65 more."""


class _Request(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # The daemon starts without building them.
        alias_generator=to_camel,  # Each field has exactly one spelling.
    )


class Source(_Request):
    """The origin of a fact. If `trust` is higher than that of the token, the trust of the token applies."""

    trust: Annotated[Trust, Field(strict=False)] = Trust.OWNER
    ref: Annotated[str, Field(max_length=MAX_REF_CHARS)] | None = None


class RememberBody(_Request):
    """A fact to remember."""

    content: str = Field(description="The fact: 1 to 65536 bytes of UTF-8 after trimming.")
    context_mode: Annotated[ContextMode, Field(strict=False)] | None = None
    scope: str | None = None
    source: Source = Source()
    expires: Annotated[str, Field(max_length=MAX_EXPIRES_CHARS)] | None = Field(
        None,
        description="The last day on which it is recalled, such as `2026-12-31`, or a number of days, such "
        "as `30d`; null: it never expires, even if its text contains a date.",
    )


class ForgetBody(_Request):
    """A request to forget entries."""

    query: str = Field(
        description="The path of an entry, such as `user/editor.md`, or a description of the entries. "
        "Without a language model, an entry matches if it contains all words of the description, or if "
        "it is the only one that contains all of them except question words and articles."
    )
    scope: str | None = None
    dry_run: bool = Field(False, description="Only list what would be deleted, even if it exceeds the limit.")
    digest: Annotated[str, Field(max_length=MAX_DIGEST_CHARS)] | None = Field(
        None,
        description="Digest of a dry run's result; if the matches have changed since, nothing is deleted.",
    )


class DreamBody(_Request):
    """A request to tidy one scope or all scopes."""

    scope: str | None = Field(None, description="The only scope to tidy; null: all.")
    dry_run: bool = Field(False, description="Only report what would be done.")


class RecallBody(_Request):
    """A message to a model; the memory is searched for entries that help with it."""

    query: str = Field(description="The message, or some words: 1 to 65536 bytes of UTF-8 after trimming.")
    exclude: Annotated[list[Annotated[str, Field(max_length=MAX_ID_CHARS)]], FailFast()] = Field(
        [],
        max_length=MAX_EXCLUDED,
        description="Ids of entries that the model has seen. A changed entry is returned again; "
        "unknown ids have no effect.",
    )
    limit: int = Field(5, ge=1, le=MAX_RECALLED, description="Maximum number of entries.")
    scope: str | None = Field(None, description="The only scope to search; null: all.")


class ContextQuery(_Request):
    """Query parameters of the route of the standing context; all values arrive as text."""

    model_config = ConfigDict(strict=False)
    budget: int | None = Field(None, ge=0)


class EditBody(_Request):
    """A new text for an entry."""

    path: str = Field(description="An entry, such as `user/editor.md`, its address or its handle.")
    text: str = Field(description="The new text without front matter; the front matter stays unchanged.")
    digest: Annotated[str, Field(max_length=MAX_DIGEST_CHARS)] | None = Field(
        None, description="Digest of the entry when it was read; if it has changed since: `store_conflict`."
    )
    dry_run: bool = Field(False, description="Judge and report, write nothing.")


class PinBody(_Request):
    """A request to pin or unpin an entry."""

    path: str = Field(description="An entry, such as `user/editor.md`, its address or its handle.")
    dry_run: bool = Field(False, description="Judge and report, write nothing.")


class IndexBody(_Request):
    """A request to rebuild or verify the indexes of all scopes."""

    dry_run: bool = Field(False, description="Only verify the indexes.")


class PathQuery(_Request):
    """Query parameters of a route that concerns one entry."""

    path: str


class HistoryQuery(_Request):
    """Query parameters of the route that lists committed changes."""

    path: str | None = None


class ExportQuery(_Request):
    """Query parameters of the route that exports entries."""

    scope: str | None = None
    format: str = "tar"


class ListQuery(_Request):
    """Query parameters of the route that lists entries; all values arrive as text."""

    model_config = ConfigDict(strict=False)
    scope: str | None = None
    limit: int = Field(100, ge=1, le=MAX_LISTED)
    cursor: str | None = None
    expired: bool = False


class UndoBody(_Request):
    """The task whose changes are undone."""

    task_id: str = Field(description="The id of the task, or its handle.")


class EraseBody(_Request):
    """The entry or task whose changes are permanently erased."""

    target: str
    dry_run: bool = Field(
        description="true: only list what would be erased; false: erase it. Required: it cannot be undone."
    )


class ApproveBody(_Request):
    """The digest of the review as the user has seen it."""

    digest: str


class RejectBody(_Request):
    """An empty body; the path of the request contains the id of the review."""


class UiBody(_Request):
    """An empty body; the daemon has only one page to open."""


class Erasure(RootModel[answers.Erasure]):
    """The plan or the result of an erasure."""


# -- problems ----------------------------------------------------------------------------------------
#
# Maps the codes of `muniment.errors` to responses, task errors and reasons for an empty recall.

_CONFLICT: Final = 409

DATABASE_RETRY_SECONDS: Final = 5
"""Seconds after which a client may retry if the database of a fleet does not respond."""


class HttpProblem(Exception):
    """An error response.

    Attributes:
        code: stable code of the error, see `muniment.errors`.
        headers: headers of the response.
        fields: additional members of the response body.
        status: HTTP status of the response.
        sentence: fixed sentence for the code.
    """

    def __init__(self, code: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> None:
        self.code, self.headers, self.fields = code, dict(headers or {}), fields
        self.status, self.sentence = CODES[code].status, CODES[code].sentence
        super().__init__(code)

    def body(self) -> dict[str, Any]:
        """Return the members of the error's response body."""
        return {
            "type": "about:blank",
            "title": self.sentence,
            "status": self.status,
            "error": self.sentence,
            "code": self.code,
            **self.fields,
        }


def convert_error(error: MunimentError) -> HttpProblem:
    """Return the response for an error of the library.

    If users can fix the error, the response has the error's own code; otherwise a more general one.
    """
    if isinstance(error, LedgerUnreachable):
        return HttpProblem(error.code, headers={"Retry-After": str(DATABASE_RETRY_SECONDS)})
    code_info = CODES[error.code]
    if code_info.status:
        return HttpProblem(error.code, **list_error_fields(error))
    problem = HttpProblem(code_info.response_code or "internal_error")
    if problem.status == _CONFLICT:
        problem.fields["reason"] = error.code
    return problem


def build_task_error(error: MunimentError, kind: str) -> dict[str, Any]:
    """Return the error of a task that failed with `error`, as clients see it and as the ledger stores it.

    Args:
        error: the error that ended the task.
        kind: kind of the task: `remember`, `forget` or `dream`.
    """
    code = error.code
    if kind == "forget" and code == InvalidContent.code:
        code = "invalid_query"
    elif not CODES[code].sentence:
        code = f"{kind}_failed"
    return {"code": code, **list_error_fields(error)}


def choose_recall_code(error: MunimentError) -> str:
    """Return the code that explains to a client why a recall is empty."""
    # A root was moved or is invalid, or the ledger is on another machine that does not respond.
    if isinstance(error, PathEscape | InvalidScope | LedgerUnreachable):
        return "managed_memory_unavailable"
    code = convert_error(error).code
    return code if CODES[code].recall_sentence else "recall_failed"


def get_sentence(code: str) -> str:
    """Return the sentence that explains the code of a task or a response."""
    return CODES[code].sentence


def list_error_fields(error: MunimentError) -> dict[str, Any]:
    """Return the fields of an error that a client may see: ids, logical paths, and why a model failed."""
    fields: dict[str, Any] = {}
    match error:
        case PendingReview():
            fields["reviewId"] = error.review_id
        case StoreConflict() | UndoOverlap():
            fields["paths"] = list(error.paths)
        case JobFailed() if error.meant is not None:
            fields |= {"paths": list(error.paths), "meant": error.meant, "limit": error.limit}
        case JobFailed() if error.reason:
            fields["reason"] = error.reason
        case _:
            pass
    return fields
