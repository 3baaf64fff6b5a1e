"""The results of operations, and the responses of the daemon: each class once.

The meaning of a member is written next to its type: for readers, for docs/http.md and for the OpenAPI
document, which pydantic generates from these classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal, cast

from muniment.errors import MunimentError, PendingReview
from muniment.kernel.change import ChangeKind
from muniment.kernel.names import Digest, Enforcement, Trust
from muniment.names import ContextMode, FenceLayer
from muniment.types.documents import (
    LOCAL,
    REQUIRED,
    Discriminator,
    ErrorCodes,
    OpaqueType,
    WireDocument,
    select_members,
)
from muniment.types.keys import EntryKey

MAX_RETAINED: Final = 100
"""Retained entries of a forget that a response lists."""

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]


# -- results of jobs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as counted by the server; zero if it did not count."""

    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, other: Usage) -> Usage:
        """Return the sum of both."""
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True, slots=True)
class Turn:
    """The cost of one turn of the model.

    Attributes:
        seconds: from the request to the response or failure.
        usage: zero after a failure.
    """

    seconds: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class SupersededEntry(WireDocument):
    """An outdated entry: the fact replaced it, under its path and id."""

    noun = "a superseded entry"
    path: str
    id: Annotated[str, "Of its provenance; empty if it had none."]
    previous_text: Annotated[str, "The beginning of its text, one line."] = field(default="", metadata=LOCAL)


@dataclass(frozen=True, slots=True)
class SimilarEntry(WireDocument):
    """An entry about the same subject that stays: the new entry is linked to it."""

    noun = "a similar entry"
    path: str
    id: Annotated[str, "Of its provenance; empty if it has none."]


@dataclass(frozen=True, slots=True)
class Change:
    """A change as callers see it.

    Attributes:
        path: logical path.
        kind: whether the file is created, modified or deleted.
        sha256_before: digest of the old content, None for a new file.
        sha256_after: digest of the new content, None for a deleted file.
        superseded: the entry that a fact replaced at this path.
    """

    path: str
    kind: ChangeKind
    sha256_before: Digest | None
    sha256_after: Digest | None
    superseded: SupersededEntry | None = None


def list_superseded(changes: Sequence[Change]) -> tuple[SupersededEntry, ...]:
    """Return the entries that facts replaced."""
    return tuple(each.superseded for each in changes if each.superseded is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(WireDocument):
    """The local members of a result of every job.

    A result of a client has the id of its task. All other local members are empty there (0, False, None) for
    every job; the text of each states it.
    """

    noun = "a result"
    task_id: Annotated[str, "The argument of `undo`; the same over HTTP."] = field(default="", metadata=LOCAL)
    status: Annotated[str, "Only `completed` may have written something."] = field(
        default="completed", metadata=LOCAL
    )
    policy: Annotated[str, "Its name; empty over HTTP."] = field(default="", metadata=LOCAL)
    turns: Annotated[int, "Turns of the model; 0 over HTTP."] = field(default=0, metadata=LOCAL)
    seconds: Annotated[float, "Duration of the job; 0 over HTTP."] = field(default=0.0, metadata=LOCAL)
    timeline: Annotated[
        tuple[Turn, ...], "The cost of each turn of the model; empty over HTTP.", OpaqueType()
    ] = field(default=(), metadata=LOCAL)
    repeated: Annotated[
        bool,
        "The task had committed before; this is its earlier result. False over HTTP, see `TaskHandle`.",
    ] = field(default=False, metadata=LOCAL)
    error: Annotated[
        MunimentError | None, "The reason of the failure, with its stable code.", OpaqueType()
    ] = field(default=None, metadata=LOCAL)

    def create_ending_json(self) -> dict[str, Any]:
        """Return the end of the document that the command prints."""
        return {
            "seconds": round(self.seconds, 3),
            "timeline": [
                {
                    "seconds": round(turn.seconds, 3),
                    "input_tokens": turn.usage.input_tokens,
                    "output_tokens": turn.usage.output_tokens,
                }
                for turn in self.timeline
            ],
            "policy": self.policy,
            **create_error_json(self.error),
        }


def create_error_json(error: MunimentError | None) -> dict[str, Any]:
    """Return the part of a document with the failure and the pending review."""
    problem = None if error is None else {"code": error.code, "message": str(error)}
    document: dict[str, Any] = {"error": problem}
    if isinstance(error, PendingReview):
        document["review_id"] = error.review_id
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberResult(JobResult):
    """The result of a remember."""

    summary: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    enforcement: Enforcement | None = None
    decided_by: str = field(default_factory=str)
    trust: Annotated[
        Trust | None, "Of the written text; below the request's if a model used its own words."
    ] = None
    superseded: Annotated[tuple[SupersededEntry, ...], "The entries that the fact replaced."] = field(
        default_factory=tuple
    )
    similar: Annotated[
        tuple[SimilarEntry, ...],
        "Entries about the same subject that stay, because the fact does not state a change.",
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "Notices for the user."] = field(default_factory=tuple)
    expires: Annotated[str | None, "The last day on which it is shown, as requested."] = None
    ends: Annotated[
        str | None, "The last day on which it applies, by its own text; recall marks it as ended afterwards."
    ] = None
    status: Annotated[
        Literal["completed", "dry_run", "failed", "cancelled"],
        "Only `completed` wrote, or found the fact known (`unchanged`).",
    ] = field(default="completed", metadata=LOCAL)
    unchanged: Annotated[bool, "The fact was already known; False over HTTP."] = field(
        default=False, metadata=LOCAL
    )
    missing_layers: Annotated[
        tuple[FenceLayer, ...],
        "Layers of the confinement that were not in force around the run's worker; empty over HTTP.",
    ] = field(default=(), metadata=LOCAL)
    changes: Annotated[
        tuple[Change, ...],
        "The change set; of a dry run, the one that would be committed; empty over HTTP.",
    ] = field(default=(), metadata=LOCAL)
    detail: Annotated[
        str | None,
        "The model's last words, fenced as data; None: not requested, or empty. None over HTTP.",
    ] = field(default=None, metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `remember --json` prints."""
        names = "task_id status summary files_touched touched_scopes enforcement missing_layers decided_by"
        document = select_members(self, f"{names} trust turns") | self.create_ending_json()
        for name in ("expires", "ends"):
            if getattr(self, name) is not None:
                document |= select_members(self, name)
        for name in ("unchanged", "repeated", "superseded", "similar", "notes"):
            if getattr(self, name):
                document |= select_members(self, name)
        if self.detail is not None:
            document["detail"] = self.detail
        if self.status == "dry_run":
            document["changes"] = [
                {"path": change.path, "kind": change.kind, "sha256_after": change.sha256_after}
                for change in self.changes
            ]
        return document


class _FileItem(WireDocument):
    """An item about a file; it can be unpacked as the tuple of its members."""

    __slots__ = ()
    path: str

    @property
    def file_path(self) -> str:
        """Return the path, under its name in the contract."""
        return self.path

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, each.name) for each in fields(cast("Any", self)))

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]


@dataclass(frozen=True, slots=True, order=True)
class RemovedEntry(_FileItem):
    """A removed entry or part of one; of a dry run, one that would be removed."""

    noun = "a removed entry"
    topic: str
    summary: str
    path: str = field(metadata={"alias": "filePath"})
    line: Annotated[
        int | None, "The first removed line of the file; absent if the whole file is removed."
    ] = None
    text: Annotated[str | None, "The removed lines; absent if the whole file is removed."] = None


@dataclass(frozen=True, slots=True, order=True)
class RetainedEntry(_FileItem):
    """An entry that matched and stays."""

    noun = "a retained entry"
    path: str = field(metadata={"alias": "filePath"})
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(JobResult):
    """The result of a forget."""

    summary: str
    removed_entries: tuple[RemovedEntry, ...]
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    kept: Annotated[tuple[RetainedEntry, ...], "The first matches that stay; only the owner gets them."] = (
        field(default_factory=tuple, metadata={"max_length": MAX_RETAINED})
    )
    near: Annotated[
        tuple[str, ...], "If nothing matches: paths of entries that share a word with the query."
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "Notices for the user."] = field(default_factory=tuple)
    digest: Annotated[str | None, "Of a dry run: identifies the exact removals; absent without removals."] = (
        None
    )
    status: Annotated[
        Literal["completed", "preview", "failed", "cancelled"],
        "Only `completed` may have removed something.",
    ] = field(default="completed", metadata=LOCAL)
    decided_by: Annotated[str, "`rules`, or the model's name; empty over HTTP."] = field(
        default="", metadata=LOCAL
    )

    def as_json(self) -> dict[str, Any]:
        """Return the document that `forget --json` prints."""
        names = "task_id status summary removed_entries kept near touched_scopes decided_by turns notes"
        return {
            **select_members(self, names),
            **({"digest": self.digest} if self.digest is not None else {}),
            **({"repeated": True} if self.repeated else {}),
            **self.create_ending_json(),
        }


@dataclass(frozen=True, slots=True)
class Counts:
    """The findings and changes of a dream, in numbers of entries unless stated otherwise.

    Attributes:
        entries: checked.
        exact_duplicates: with the same text as another one.
        near_duplicates: similar to another one.
        expired: after their last day.
        unreadable: that cannot be read.
        broken_links: relative links without a target, in numbers of links.
        merged: removed as duplicate or outdated; of a preview, that would be removed.
        removed_expired: removed as expired; of a preview, that would be removed.
        ended: that have ended by their own text; they stay.
        rewritten: with a new text that replaces others too; of a preview, that would be rewritten.
        left: beyond the limit of one dream; the next one may change them.
        rejected: groups that changed in the meantime and were not changed by the dream.
    """

    entries: int = 0
    exact_duplicates: int = 0
    near_duplicates: int = 0
    expired: int = 0
    unreadable: int = 0
    broken_links: int = 0
    merged: int = 0
    removed_expired: int = 0
    ended: int = 0
    rewritten: int = 0
    left: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamResult(JobResult):
    """The result of a dream."""

    summary: str
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    deduped_entries: Annotated[int, "The number of entries that were removed as duplicate or outdated."]
    rejected: Annotated[
        int, "The number of groups that were skipped, since they changed in the meantime."
    ] = field(default_factory=int)
    ended_entries: Annotated[
        int | None,
        "The number of entries that have ended by their own text; they stay until a user removes them.",
    ] = None
    status: Annotated[
        Literal["completed", "preview", "failed", "cancelled"],
        "Only `completed` may have changed something.",
    ] = field(default="completed", metadata=LOCAL)
    decided_by: Annotated[str, "`rules`, or the model's name; empty over HTTP."] = field(
        default="", metadata=LOCAL
    )
    counts: Annotated[Counts, "All 0 over HTTP."] = field(default=Counts(), metadata=LOCAL)
    deduped_paths: Annotated[tuple[str, ...], "Paths of the `deduped_entries`; empty over HTTP."] = field(
        default=(), metadata=LOCAL
    )
    expired_paths: Annotated[
        tuple[str, ...], "Paths of entries that were removed as expired; empty over HTTP."
    ] = field(default=(), metadata=LOCAL)
    ended_paths: Annotated[tuple[str, ...], "Paths of the `ended_entries`; empty over HTTP."] = field(
        default=(), metadata=LOCAL
    )
    similar_paths: Annotated[
        tuple[tuple[str, ...], ...], "Groups of paths of entries with similar texts; empty over HTTP."
    ] = field(default=(), metadata=LOCAL)
    kept: Annotated[
        tuple[RetainedEntry, ...], "Entries that would have been removed, but may not be; empty over HTTP."
    ] = field(default=(), metadata=LOCAL)
    notes: Annotated[tuple[str, ...], "Notices for the user; empty over HTTP."] = field(
        default=(), metadata=LOCAL
    )
    digest: Annotated[
        str | None, "Of a dry run: identifies the exact changes; None without changes. None over HTTP."
    ] = field(default=None, metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `dream --json` prints."""
        return {
            **select_members(self, "task_id status summary counts"),
            "deduped_entries": list(self.deduped_paths),
            "expired_entries": list(self.expired_paths),
            "ended_entries": list(self.ended_paths),
            "alike": [list(group) for group in self.similar_paths],
            **select_members(self, "kept touched_topics touched_scopes decided_by turns notes"),
            **({"repeated": True} if self.repeated else {}),
            **self.create_ending_json(),
        }


# -- tasks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError(WireDocument):
    """The reason why a task failed."""

    noun = "an error"
    code: str
    message: str
    review_id: str | None = None
    paths: Annotated[
        tuple[str, ...],
        "Files that changed in the meantime; or some of the matches if they are too many to forget.",
    ] = ()
    meant: Annotated[int | None, "The number of matches, if more than may be forgotten."] = None
    limit: Annotated[int | None, "The number that may be forgotten at once, if exceeded."] = None
    reason: Annotated[str | None, "If a model failed: its name and the reason, on one line."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyTask(WireDocument):
    """The members of every task."""

    task_id: str
    status: Annotated[Status, "`cancelled` for the client that cancelled it; `failed` for all others."]
    created_at: str
    updated_at: str
    error: Annotated[TaskError | None, "Only of a failed task."] = None
    review_id: Annotated[str | None, "Of a task that waits for the owner's review."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberTask(AnyTask):
    """A task that remembers."""

    kind: Literal["remember"] = "remember"
    context_mode: ContextMode
    scope: str | None = None
    result: Annotated[RememberResult | None, "Only of a completed task."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTask(AnyTask):
    """A task that forgets."""

    kind: Literal["forget"] = "forget"
    scope: str | None = None
    result: Annotated[ForgetResult | None, "Only of a completed task."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamTask(AnyTask):
    """A task that tidies."""

    kind: Literal["dream"] = "dream"
    result: Annotated[DreamResult | None, "Only of a completed task."] = None


PublicTask = Annotated[RememberTask | ForgetTask | DreamTask, Discriminator("kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList(WireDocument):
    """Tasks, the newest first."""

    tasks: tuple[PublicTask, ...]
    next_cursor: Annotated[str | None, "For the next request, if there are more."] = None


# -- recalls -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledEntry(WireDocument):
    """An entry that helps with a message."""

    noun = "a recalled entry"
    id: Annotated[str, "For `exclude`: its path, and a digest of its current text."]
    path: str
    name: str
    trust: Annotated[Trust, "The trust of its author."]
    at: Annotated[str, "When it was written."]
    text: Annotated[str, "The part of it in the text of the response."]
    ended: Annotated[str | None, "The last day on which it applied, if that has passed."] = None
    key: Annotated[EntryKey | None, "The version of the entry.", OpaqueType()] = field(
        default=None, metadata=LOCAL
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(WireDocument):
    """The entries of the memory that help with a message."""

    entries: Annotated[tuple[RecalledEntry, ...], "The best first."] = field(
        default_factory=tuple, metadata=REQUIRED
    )
    text: Annotated[
        str, "The entries, fenced as data, to pass to a model unchanged. Empty without entries."
    ] = field(default_factory=str, metadata=REQUIRED)
    tokens: Annotated[int, "Approximate number of the text."] = field(default_factory=int, metadata=REQUIRED)
    abstained: Annotated[bool, "The memory contains no matching entry except excluded ones."] = field(
        default_factory=bool, metadata=REQUIRED
    )
    error: Annotated[
        MunimentError | None,
        "The reason why it is empty, if an error occurred.",
        ErrorCodes(("managed_memory_unavailable", "deadline", "recall_failed")),
    ] = None
    notes: Annotated[tuple[str, ...], "Notices for the user."] = ()
    withheld: Annotated[int, "The number of found entries that may not be shown."] = field(
        default=0, metadata=LOCAL
    )
    is_repeat: Annotated[
        bool, "The conversation restarts with it, since all entries were injected long ago."
    ] = field(default=False, metadata=LOCAL)

    @property
    def keys(self) -> frozenset[EntryKey]:
        """Return the keys of the entries."""
        return frozenset(each.key for each in self.entries if each.key is not None)


# -- for the owner -----------------------------------------------------------------------------------


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
    """The pending reviews of this workspace."""

    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewShown(WireDocument):
    """A pending review as it would be approved now."""

    review_id: str
    text: str
    digest: Annotated[str, "An approval must contain it."]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedResult(WireDocument):
    """The local members of the result of an owner's commit."""

    changes: tuple[Change, ...] = field(default=(), metadata=LOCAL)

    def create_effect_json(self) -> dict[str, Any]:
        """Return the part of the document with the committed changes."""
        changes = [{"path": change.path, "kind": change.kind} for change in self.changes]
        return {"changes": changes, **select_members(self, "touched_scopes notes")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewDecision(CommittedResult):
    """The result of a decision about a review."""

    review_id: str
    status: Literal["approved", "rejected"]
    task_id: Annotated[str | None, "The task of its commit, if it was approved."] = None
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document that `review approve --json` and `review reject --json` print."""
        return {**select_members(self, "review_id status task_id"), **self.create_effect_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult(CommittedResult):
    """The result of an undo."""

    task_id: Annotated[str, "Of the undo; undo it to restore the changes."]
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
    """The plan of an erasure; nothing was erased."""

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
    target: Annotated[str, "As requested."] = field(default="", metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `erase --json` prints without `--yes`."""
        names = "status target files versions others tasks reviews records lane_tasks copies not_covered"
        return select_members(self, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseResult(WireDocument):
    """The result of an erasure. It contains no name and no text."""

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
"""The plan of an erasure, or its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead(WireDocument):
    """The end of the chain of records.

    Store it in a place that a process with access to the ledger cannot change.
    """

    head: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(WireDocument):
    """The decision of the policy about a verb on a path."""

    policy: str
    verdict: Literal["allow", "deny"]
    rule: str | None = None
    layer: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UiOpened(WireDocument):
    """The address of the page, and a code to sign in."""

    url: Annotated[str, "With a random name below `localhost`, new at each start."]
    code: Annotated[str, "Signs in once. Put it after `#`, or type it in; never into a query."] = field(
        repr=False
    )
    seconds: Annotated[int, "The validity of the code."]


# -- the daemon --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(WireDocument):
    """A capability of this daemon."""

    since: Literal["v1"] = "v1"
    modes: tuple[ContextMode, ...] | None = None
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLimits(WireDocument):
    """The limits of a request, a lane and a task."""

    content_bytes: int
    body_bytes: int
    pending_tasks: int
    pending_tidying_tasks: int
    kept_tasks: int
    wait_seconds: int
    task_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolVersions(WireDocument):
    """The supported versions of the contract."""

    current: Literal["v1"] = "v1"
    supported: tuple[str, ...] = field(default_factory=lambda: ("v1",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities(WireDocument):
    """The capabilities of this daemon in a workspace, and its limits."""

    v: Literal[1] = 1
    protocol_versions: ProtocolVersions = ProtocolVersions()
    mode: Annotated[Literal["http-bridge"], "Without meaning here; use `features`."] = "http-bridge"
    version: str
    workspace: Annotated[str, "Its key, as in `/workspaces/{workspace}/memory/…`."]
    features: Annotated[tuple[str, ...], "The names of its capabilities."]
    feature_details: Annotated[Mapping[str, Feature], "More about some of them."]
    transports: tuple[str, ...] = field(default_factory=lambda: ("rest",))
    model_services: Annotated[tuple[str, ...], "Empty: a client does not need a model of the daemon."] = (
        field(default_factory=tuple)
    )
    limits: DaemonLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(WireDocument):
    """The state of the daemon."""

    status: Literal["ok"] = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(WireDocument):
    """The proof that the server knows a token."""

    proof: Annotated[str, "HMAC-SHA-256 by the token's key over the nonce and the address, hexadecimal."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness(WireDocument):
    """The readiness to accept tasks of each workspace, by key."""

    status: Literal["ready"] = "ready"
    workspaces: tuple[str, ...]
