"""The results of operations for the owner: review, undo, erase, audit, explain, and opening the page.

The meaning of a member is in the `Annotated` text of its type, see `results`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from muniment.errors import MunimentError
from muniment.types.documents import LOCAL, Discriminator, OpaqueType, WireDocument, select_members
from muniment.types.results import create_error_json
from muniment.types.runs import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(WireDocument):
    """A change set that waits for the owner's decision."""

    noun = "a review"
    review_id: str
    kind: str
    at: str
    reasons: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewList(WireDocument):
    """The pending reviews of a workspace."""

    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewShown(WireDocument):
    """A pending review, with the changes that an approval would commit now."""

    review_id: str
    text: str
    digest: Annotated[str, "The digest of these changes; an approval must contain it."]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedResult(WireDocument):
    """The members that the results of an approval and of an undo have in common; they are never sent."""

    changes: tuple[Change, ...] = field(default=(), metadata=LOCAL)

    def create_effect_json(self) -> dict[str, Any]:
        """Return the members of a JSON document that describe the committed changes."""
        changes = [{"path": change.path, "kind": change.kind} for change in self.changes]
        return {"changes": changes, **select_members(self, "touched_scopes notes")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewDecision(CommittedResult):
    """The result of approving or rejecting a review."""

    review_id: str
    status: Literal["approved", "rejected"]
    task_id: Annotated[str | None, "If the review was approved: the id of the task that committed it."] = None
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document that `review approve --json` and `review reject --json` print."""
        return {**select_members(self, "review_id status task_id"), **self.create_effect_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult(CommittedResult):
    """The result of undoing a task."""

    task_id: Annotated[str, "The id of the undo itself; undo this id to restore the changes."]
    undone: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]
    status: Literal["completed", "failed", "cancelled"] = field(default="completed", metadata=LOCAL)
    error: Annotated[
        MunimentError | None, "The reason of the failure, with its stable code.", OpaqueType()
    ] = field(default=None, metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `undo --json` prints."""
        return {
            **select_members(self, "task_id undone status"),
            **self.create_effect_json(),
            **create_error_json(self.error),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasePlan(WireDocument):
    """A preview of an erasure: the data that would be erased. Nothing was erased."""

    status: Literal["preview"]
    files: tuple[str, ...]
    versions: int
    others: tuple[str, ...]
    reviews: tuple[str, ...]
    records: int
    lane_tasks: int = field(default_factory=int)
    tasks: tuple[str, ...]
    copies: tuple[str, ...]
    not_covered: str
    target: Annotated[str, "The path or task id to erase, as requested."] = field(default="", metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `erase --json` prints without `--yes`."""
        names = "status target files versions others tasks reviews records lane_tasks copies not_covered"
        return select_members(self, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseResult(WireDocument):
    """The result of an erasure. It contains no file name and no erased text."""

    status: Literal["erased"]
    task_id: str
    at: str
    erased: tuple[str, ...]
    tasks: tuple[str, ...]
    files: int
    versions: int
    reviews: int
    records: int
    lane_tasks: int = field(default_factory=int)
    notes: tuple[str, ...]
    not_covered: str

    def as_json(self) -> dict[str, Any]:
        """Return the document that `erase --yes --json` prints."""
        return select_members(
            self,
            "status task_id at erased tasks files versions reviews records lane_tasks notes not_covered",
        )


Erasure = Annotated[ErasePlan | EraseResult, Discriminator("status")]
"""A preview of an erasure, or the result of an erasure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead(WireDocument):
    """The digest of the last audit record, and the number of records.

    To detect a changed ledger later, store this digest outside of the reach of processes that can access the
    ledger.
    """

    head: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(WireDocument):
    """The decision of the policy about an action (a verb) on a path, with the reason of a denial."""

    policy: str
    verdict: Literal["allow", "deny"]
    rule: str | None = None
    layer: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UiOpened(WireDocument):
    """The address of the daemon's web page, and a code to sign in."""

    url: Annotated[str, "The address, with a random name below `localhost` that is new at each start."]
    code: Annotated[
        str, "Signs in once. Append it to the address after `#`, or type it in; never send it in a query."
    ] = field(repr=False)
    seconds: Annotated[int, "The number of seconds for which the code is valid."]
