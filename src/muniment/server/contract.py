"""What is asked over the wire, in the words of the contract, and why it may not be done.

Requests are closed: a field that is not known is refused, since a misspelt `dryRun` would delete. What is
answered stands in `muniment.types`.
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
    LedgerAway,
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
"""Bytes of a request's body: a fact of 64 KiB, each byte written as `\\u00xx`, and white space."""

MAX_REF_CHARS: Final = 512
"""Characters of a source's reference: an address, or an id of another system."""

MAX_WAIT_SECONDS: Final = 60
"""Seconds for which a request for a task may wait."""

MAX_LISTED: Final = 1_000
"""Entries of one page of a list."""

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
        description="The last day on which it is shown, such as `2026-12-31`, or in how many days, such as "
        "`30d`; null: it is never hidden, whatever its words say.",
    )


class ForgetBody(_Request):
    """What is to be forgotten."""

    query: str = Field(
        description="The path of an entry, such as `user/editor.md`, or a description of what is meant. "
        "Without a language model, an entry matches if it has all of its words, or if it is the only one "
        "with all of them but question words and articles."
    )
    scope: str | None = None
    dry_run: bool = Field(False, description="Only say what would go, all of it, also if it is too much.")
    digest: Annotated[str, Field(max_length=MAX_DIGEST_CHARS)] | None = Field(
        None, description="Of a dry run's result: where something else would go by now, nothing does."
    )


class DreamBody(_Request):
    """The scope that is to be tidied."""

    scope: str | None = Field(None, description="The only scope to tidy; null: all.")
    dry_run: bool = Field(False, description="Only report what would be done.")


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
    scope: str | None = Field(None, description="The only scope to search; null: all.")


class EditBody(_Request):
    """Another text of an entry."""

    path: str = Field(description="An entry, such as `user/editor.md`, or its address.")
    text: str = Field(description="The new text, without front matter, which stays.")
    digest: Annotated[str, Field(max_length=MAX_DIGEST_CHARS)] | None = Field(
        None, description="That the entry had when it was shown; if it has another one now: `store_conflict`."
    )
    dry_run: bool = Field(False, description="Judge and report, write nothing.")


class PinBody(_Request):
    """An entry that is to be pinned, or to be unpinned."""

    path: str = Field(description="An entry, such as `user/editor.md`, or its address.")
    dry_run: bool = Field(False, description="Judge and report, write nothing.")


class IndexBody(_Request):
    """Indexes of all scopes."""

    dry_run: bool = Field(False, description="Only verify them as they are.")


class PathQuery(_Request):
    """The query of a route about one path."""

    path: str


class HistoryQuery(_Request):
    """The query of a history."""

    path: str | None = None


class ExportQuery(_Request):
    """The query of an export."""

    scope: str | None = None
    format: str = "tar"


class ListQuery(_Request):
    """The query of a list of entries, whose values are texts."""

    model_config = ConfigDict(strict=False)
    scope: str | None = None
    limit: int = Field(100, ge=1, le=MAX_LISTED)
    cursor: str | None = None
    expired: bool = False


class UndoBody(_Request):
    """The task whose changes are to be taken back."""

    task_id: str


class EraseBody(_Request):
    """What is to be erased for good."""

    target: str
    dry_run: bool = Field(
        description="true: only say what would go; false: erase it. Required, since no undo brings it back."
    )


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
# How the codes of `muniment.errors` are told: as an answer, as the end of a task, as why a recall is empty.
#
# Source: RFC 9457.

_CONFLICT: Final = 409

AWAY_SECONDS: Final = 5
"""Seconds after which to try again where the database of a fleet does not answer."""


class HttpProblem(Exception):
    """An answer that says why not.

    Attributes:
        code: one that answers have.
        headers: of the answer.
        fields: further members of its body.
    """

    def __init__(self, code: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> None:
        self.code, self.headers, self.fields = code, dict(headers or {}), fields
        self.status, self.sentence = CODES[code].status, CODES[code].sentence
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
    """The answer for an error of the library; its own code beside another one if people can mend it."""
    if isinstance(error, LedgerAway):
        return HttpProblem(error.code, headers={"Retry-After": str(AWAY_SECONDS)})
    meaning = CODES[error.code]
    if meaning.status:
        return HttpProblem(error.code, **fields_of(error))
    problem = HttpProblem(meaning.answer or "internal_error")
    if problem.status == _CONFLICT:
        problem.fields["reason"] = error.code
    return problem


def task_error(error: MunimentError, kind: str) -> dict[str, Any]:
    """What a task says that failed with `error`, and what the ledger keeps of it."""
    code = error.code
    if kind == "forget" and code == InvalidContent.code:
        code = "invalid_query"
    elif not CODES[code].sentence:
        code = f"{kind}_failed"
    return {"code": code, **fields_of(error)}


def recall_code(error: MunimentError) -> str:
    """Why a recall is empty: a code with a meaning for recalls."""
    # A root is not where it was bound, or may be none; or the ledger is elsewhere, and cannot be asked.
    if isinstance(error, PathEscape | InvalidScope | LedgerAway):
        return "managed_memory_unavailable"
    code = problem_of(error).code
    return code if CODES[code].recall else "recall_failed"


def sentence_of(code: str) -> str:
    """The sentence of a code of a task or an answer."""
    return CODES[code].sentence


def fields_of(error: MunimentError) -> dict[str, Any]:
    """What of an error a client may be told besides its code: ids, logical paths, and why a model failed."""
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
