"""What goes over the wire: the models of requests and answers, in the words of the contract.

Requests are closed: a field that is not known is refused, since a misspelt `dryRun` would delete. Answers are
built from these models, and so is the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from muniment.names import ContextMode, Enforcement, Trust

MAX_BODY_BYTES: Final = 512 * 1024
"""Bytes of a request's body: a fact of 64 KiB, each byte written as `\\u00xx`, and white space."""

MAX_REF_CHARS: Final = 512
"""Characters of a source's reference: an address, or an id of another system."""

MAX_WAIT_SECONDS: Final = 60
"""Seconds for which a request for a task may wait."""


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class Source(_Model):
    """Where a fact comes from; its trust counts up to that of the token."""

    trust: Annotated[Trust, Field(strict=False)] = Trust.OWNER
    ref: Annotated[str, Field(max_length=MAX_REF_CHARS)] | None = None


class RememberBody(_Model):
    """A fact to be remembered."""

    content: str = Field(description="The fact: 1 to 65536 bytes of UTF-8 after trimming.")
    context_mode: Annotated[ContextMode, Field(strict=False)] | None = None
    scope: str | None = None
    source: Source = Source()


class ForgetBody(_Model):
    """Words that what is to be forgotten holds."""

    query: str
    scope: str | None = None
    dry_run: bool = False


class DreamBody(_Model):
    """Nothing: a dream tidies all scopes."""


class UndoBody(_Model):
    """The task whose changes are to be taken back."""

    task_id: str


class EraseBody(_Model):
    """What is to be erased for good; without `yes` it is only said what would go."""

    target: str
    yes: bool = False


class ApproveBody(_Model):
    """The digest that the review showed."""

    digest: str


class RememberResult(_Model):
    """What a remember did."""

    summary: str
    files_touched: list[str]
    touched_scopes: list[str]
    enforcement: Enforcement | None
    decided_by: str


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

    context_mode: ContextMode
    scope: str | None = None
    result: RememberResult | None = Field(None, description="Of a completed task alone.")


class ForgetTask(_Task):
    """A task that forgets."""

    scope: str | None = None
    result: ForgetResult | None = Field(None, description="Of a completed task alone.")


class DreamTask(_Task):
    """A task that tidies."""

    result: DreamResult | None = Field(None, description="Of a completed task alone.")


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
