"""What goes over the wire: the models of requests and answers, in the words of the contract.

Requests are closed: a field that is not known is refused, since a misspelt `dryRun` would delete. Answers are
built from these models, and so is the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, RootModel
from pydantic.alias_generators import to_camel

from muniment.names import ContextMode, Enforcement, Trust

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

MAX_ID_CHARS: Final = 1_200
"""Characters of the id of an entry: its path, and 65 more."""


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # A daemon starts without them.
        json_schema_serialization_defaults_required=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class _Request(_Model):
    model_config = ConfigDict(validate_by_name=False)  # No second spelling of a field.


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


class ForgetBody(_Request):
    """What is to be forgotten."""

    query: str = Field(
        description="The path of an entry, such as `user/editor.md`, or words that it holds, all of them."
    )
    scope: str | None = None
    dry_run: bool = False


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


class RememberResult(_Model):
    """What a remember did."""

    summary: str
    files_touched: list[str]
    touched_scopes: list[str]
    enforcement: Annotated[Enforcement, Field(strict=False)] | None
    decided_by: str
    trust: Annotated[Trust, Field(strict=False)] | None = Field(
        None, description="Of what was written; below the request's where a model used words of its own."
    )
    notes: list[str] = Field(default_factory=list, description="What a person should know.")


class RemovedEntry(_Model):
    """An entry, or an item of one, that went; of a dry run, that would go."""

    topic: str
    summary: str
    file_path: str


class ForgetResult(_Model):
    """What a forget did."""

    summary: str
    removed_entries: list[RemovedEntry]
    touched_topics: list[str]
    touched_scopes: list[str]


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
    paths: list[str] | None = None


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
    next_cursor: str | None = Field(None, description="For the next request; null: there are no more.")


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
        description="Why it is empty; null: nothing went wrong."
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
    task_id: str | None
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


class Capabilities(_Model):
    """What this daemon can do in a workspace, and its limits."""

    v: Literal[1] = 1
    version: str
    workspace: str = Field(description="Its key, as in `/workspaces/{workspace}/memory/…`.")
    features: dict[str, Feature]
    limits: Limits


class Health(_Model):
    """Whether the daemon runs."""

    status: Literal["ok"] = "ok"


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
    """A model as the JSON document that is sent."""
    return model.model_dump(mode="json", by_alias=True)
