"""What goes over the wire: the models of requests and answers, in the words of the contract.

Requests are closed: a field that is not known is refused, since a misspelt `dryRun` would delete. Answers are
built from these models, and so is the OpenAPI document. A member of an answer that has no value is left out,
and never null, as the types of the original contract have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, RootModel
from pydantic.alias_generators import to_camel

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
from muniment.kernel.names import Enforcement, Trust
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

MAX_KEPT: Final = 100
"""Entries that a forget leaves alone of which an answer tells."""

MAX_DIGEST_CHARS: Final = 128
"""Characters of the digest of a dry run, and more than one has."""

MAX_ID_CHARS: Final = 1_200
"""Characters of the id of an entry: its path, and 65 more."""


def _leave_out(schema: dict[str, Any]) -> None:
    """Have a schema say that what may be None is left out."""
    members, required = schema.get("properties", {}), schema.get("required", [])
    for name, member in members.items():
        kinds = member.get("anyOf", [])
        others = [each for each in kinds if each != {"type": "null"}]
        if len(others) == len(kinds):
            continue
        rest = {word: value for word, value in member.items() if word not in {"anyOf", "default"}}
        members[name] = rest | (others[0] if len(others) == 1 else {"anyOf": others})
        if name in required:
            required.remove(name)


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # A daemon starts without them.
        json_schema_serialization_defaults_required=True,
        json_schema_extra=_leave_out,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class _Request(_Model):
    # No second spelling of a field; and null may be sent.
    model_config = ConfigDict(validate_by_name=False, json_schema_extra=None)


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


class SupersededEntry(_Model):
    """An entry that no longer holds: the fact stands in its place, under its path and id."""

    path: str
    id: str = Field(description="Of its provenance; empty where it had none.")


class RememberResult(_Model):
    """What a remember did."""

    summary: str
    files_touched: list[str]
    touched_scopes: list[str]
    enforcement: Annotated[Enforcement, Field(strict=False)] | None = None
    decided_by: str
    trust: Annotated[Trust, Field(strict=False)] | None = Field(
        None, description="Of what was written; below the request's where a model used words of its own."
    )
    superseded: list[SupersededEntry] = Field(default_factory=list, description="What no longer holds.")
    notes: list[str] = Field(default_factory=list, description="What a person should know.")
    expires: str | None = Field(
        None, description="The day on which it is no longer told; without one it lasts."
    )


class RemovedEntry(_Model):
    """An entry, or a part of one, that went; of a dry run, that would go."""

    topic: str
    summary: str
    file_path: str
    line: int | None = Field(
        None, description="Where in the file what goes begins; without it all of it goes."
    )
    text: str | None = Field(None, description="The lines that go; without them all of the file.")


class KeptEntry(_Model):
    """An entry that was meant and stays."""

    file_path: str
    reason: str


class ForgetResult(_Model):
    """What a forget did."""

    summary: str
    removed_entries: list[RemovedEntry]
    touched_topics: list[str]
    touched_scopes: list[str]
    kept: list[KeptEntry] = Field(
        default_factory=list,
        max_length=MAX_KEPT,
        description="What was meant and stays, the first of it; told to the owner alone.",
    )
    near: list[str] = Field(
        default_factory=list,
        description="Where nothing was meant, paths of entries that share a word with the query.",
    )
    notes: list[str] = Field(default_factory=list, description="What a person should know.")
    digest: str | None = Field(
        None, description="Of a dry run: names exactly what would go; absent: nothing would."
    )


class DreamResult(_Model):
    """What a dream did."""

    summary: str
    touched_topics: list[str]
    touched_scopes: list[str]
    deduped_entries: int = Field(description="How many entries went because another one says the same.")
    rejected: int = Field(description="How many groups were left alone, since they changed meanwhile.")


class TaskError(_Model):
    """Why a task failed."""

    code: str
    message: str
    review_id: str | None = None
    paths: list[str] | None = Field(
        None, description="What was changed meanwhile; or some of what would be too much to forget."
    )
    meant: int | None = Field(None, description="How much that is, where it is more than may be forgotten.")
    limit: int | None = Field(None, description="How much may be forgotten at once, where it is more.")


Status = Literal["queued", "running", "completed", "failed", "cancelled"]


class _Task(_Model):
    task_id: str
    status: Status = Field(description="`cancelled` for whoever cancelled it; `failed` for everybody else.")
    created_at: str
    updated_at: str
    error: TaskError | None = Field(None, description="Of a failed task alone.")
    review_id: str | None = Field(None, description="Of a task that waits for the owner's approval.")


class RememberTask(_Task):
    """A task that remembers."""

    kind: Literal["remember"] = "remember"
    context_mode: Annotated[ContextMode, Field(strict=False)]
    scope: str | None = None
    result: RememberResult | None = Field(None, description="Of a completed task alone.")


class ForgetTask(_Task):
    """A task that forgets."""

    kind: Literal["forget"] = "forget"
    scope: str | None = None
    result: ForgetResult | None = Field(None, description="Of a completed task alone.")


class DreamTask(_Task):
    """A task that tidies."""

    kind: Literal["dream"] = "dream"
    result: DreamResult | None = Field(None, description="Of a completed task alone.")


class TaskList(_Model):
    """Tasks, the newest first."""

    tasks: list[Annotated[RememberTask | ForgetTask | DreamTask, Field(discriminator="kind")]]
    next_cursor: str | None = Field(None, description="For the next request, if there are more.")


class RecalledEntry(_Model):
    """An entry that helps."""

    id: str = Field(description="What `exclude` takes: its path, and a digest of what it says now.")
    path: str
    name: str
    trust: Annotated[Trust, Field(strict=False)] = Field(description="Whom it comes from.")
    at: str = Field(description="When it was written.")
    text: str = Field(description="What of it stands in the text of the answer.")


class Recalled(_Model):
    """What of the memory helps with a message."""

    entries: list[RecalledEntry] = Field(description="The best first.")
    text: str = Field(
        description="To be put before a model as it is: the entries, fenced as data. Empty without entries."
    )
    tokens: int = Field(description="Of the text, about.")
    abstained: bool = Field(description="Nothing in the memory is about it but what was excluded.")
    error: Literal["managed_memory_unavailable", "deadline", "recall_failed"] | None = Field(
        None, description="Why it is empty; without it nothing went wrong."
    )


class Review(_Model):
    """A change-set that waits for the owner."""

    review_id: str
    kind: str
    at: str
    reasons: list[str]
    paths: list[str]


class ReviewList(_Model):
    """What waits in this workspace."""

    reviews: list[Review]


class ReviewShown(_Model):
    """A review, as it would be approved now."""

    review_id: str
    text: str
    digest: str = Field(description="What an approval names.")


class Decided(_Model):
    """What came of a decision about a review."""

    review_id: str
    status: Literal["approved", "rejected"]
    task_id: str | None = Field(None, description="As which it was committed, where it was approved.")
    files_touched: list[str]
    touched_scopes: list[str]
    notes: list[str]


class Undone(_Model):
    """What an undo did."""

    task_id: str = Field(description="Of the undo; undo that to have the changes again.")
    undone: str
    files_touched: list[str]
    touched_scopes: list[str]
    notes: list[str]


class ErasePlan(_Model):
    """What an erasure would do; nothing was erased."""

    status: Literal["preview"]
    files: list[str]
    versions: int
    others: list[str]
    reviews: list[str]
    records: int
    lane_tasks: int
    tasks: list[str]
    copies: list[str]
    not_covered: str


class EraseReceipt(_Model):
    """What an erasure did. It holds no name and no text."""

    status: Literal["erased"]
    task_id: str
    at: str
    erased: list[str]
    tasks: list[str]
    files: int
    versions: int
    reviews: int
    records: int
    lane_tasks: int
    notes: list[str]
    not_covered: str


class Erasure(RootModel[Annotated[ErasePlan | EraseReceipt, Field(discriminator="status")]]):
    """What an erasure would do, or did."""


class AuditHead(_Model):
    """The end of the chain of records, to be kept where nobody can change it with the ledger."""

    head: str
    records: int


class Explained(_Model):
    """What the policy says to a verb on a path."""

    policy: str
    verdict: Literal["allow", "deny"]
    rule: str | None = None
    layer: str | None = None
    reason: str | None = None


class Feature(_Model):
    """Something that this daemon can do."""

    since: Literal["v1"] = "v1"
    modes: list[ContextMode] | None = None
    scopes: list[str] | None = None


class Limits(_Model):
    """What a request, a lane and a task may take."""

    content_bytes: int
    body_bytes: int
    pending_tasks: int
    pending_tidying_tasks: int
    kept_tasks: int
    wait_seconds: int
    task_seconds: float


class ProtocolVersions(_Model):
    """Which versions of the contract are spoken."""

    current: Literal["v1"] = "v1"
    supported: list[str] = Field(default_factory=lambda: ["v1"])


class Capabilities(_Model):
    """What this daemon can do in a workspace, and its limits."""

    v: Literal[1] = 1
    protocol_versions: ProtocolVersions = ProtocolVersions()
    mode: Literal["http-bridge"] = Field("http-bridge", description="Means nothing here; ask `features`.")
    version: str
    workspace: str = Field(description="Its key, as in `/workspaces/{workspace}/memory/…`.")
    features: list[str] = Field(description="The names of what it can do.")
    feature_details: dict[str, Feature] = Field(description="More about some of them.")
    transports: list[str] = Field(default_factory=lambda: ["rest"])
    model_services: list[str] = Field(
        default_factory=list, description="None: a client needs no model of the daemon."
    )
    limits: Limits


class Health(_Model):
    """Whether the daemon runs."""

    status: Literal["ok"] = "ok"


class UiOpened(_Model):
    """Where the page is, and how to sign in there."""

    url: str = Field(description="Of a name that is drawn anew at each start, below `localhost`.")
    code: str = Field(description="Signs in once. Put it behind `#`, or type it in; never into a query.")
    seconds: int = Field(description="For how long the code works.")


class Hello(_Model):
    """That whoever answers knows a token."""

    proof: str = Field(
        description="HMAC-SHA-256 by the token's key over the nonce and the address, hexadecimal."
    )


class Readiness(_Model):
    """That it accepts tasks of each workspace, by key."""

    status: Literal["ready"] = "ready"
    workspaces: list[str]


class Problem(_Model):
    """Why a request was not carried out; RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: Literal["about:blank"]
    title: str
    status: int
    error: str
    code: str


def as_wire(model: BaseModel) -> dict[str, Any]:
    """A model as the JSON document that is sent, without what has no value."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


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
    """What of an error a client may be told besides its code: ids and logical paths."""
    fields: dict[str, Any] = {}
    match error:
        case PendingReview():
            fields["reviewId"] = error.review_id
        case StoreConflict() | UndoOverlap():
            fields["paths"] = list(error.paths)
        case JobFailed() if error.meant is not None:
            fields |= {"paths": list(error.paths), "meant": error.meant, "limit": error.limit}
        case _:
            pass
    return fields
