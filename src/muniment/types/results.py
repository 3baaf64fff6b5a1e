"""The results of operations, and the answers of the daemon: each class once.

A member's meaning stands beside its type, for who reads this, for docs/http.md and for the OpenAPI document,
which pydantic makes of these classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal, cast

from muniment.errors import MunimentError, PendingReview
from muniment.kernel.change import ChangeKind
from muniment.kernel.names import Digest, Enforcement, Trust
from muniment.names import ContextMode, FenceLayer
from muniment.types.documents import LOCAL, NEEDED, CodeOf, OpaqueType, ToldApartBy, WireAnswer, members
from muniment.types.keys import EntryKey

MAX_KEPT: Final = 100
"""Entries that a forget leaves alone of which an answer tells."""

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]


# -- what jobs did -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; zero where it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took of the model.

    Attributes:
        seconds: from asking it to its answer, or to its failure.
        usage: zero where it failed.
    """

    seconds: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class SupersededEntry(WireAnswer):
    """An entry that no longer holds: the fact stands in its place, under its path and id."""

    noun = "what was superseded"
    path: str
    id: Annotated[str, "Of its provenance; empty where it had none."]
    was: Annotated[str, "The beginning of its text, one line."] = field(default="", metadata=LOCAL)


@dataclass(frozen=True, slots=True)
class SimilarEntry(WireAnswer):
    """An entry about the same that stays: the new entry is linked to it."""

    noun = "a similar entry"
    path: str
    id: Annotated[str, "Of its provenance; empty if it has none."]


@dataclass(frozen=True, slots=True)
class Change:
    """A change as callers see it.

    Attributes:
        path: logical path.
        kind: whether the file comes, changes or goes.
        sha256_before: digest of what was there, None for a new file.
        sha256_after: digest of what the change-set puts there, None for a file that goes.
        superseded: the entry that a fact replaced at this path.
    """

    path: str
    kind: ChangeKind
    sha256_before: Digest | None
    sha256_after: Digest | None
    superseded: SupersededEntry | None = None


def superseded_by(changes: Sequence[Change]) -> tuple[SupersededEntry, ...]:
    """Return the entries that facts replaced."""
    return tuple(each.superseded for each in changes if each.superseded is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(WireAnswer):
    """The members of a result of every job that no document has.

    A result of a client has the id of its task. All other members that no document has are empty there (0,
    False, None), whatever the job did; the text of each says so.
    """

    noun = "a result"
    task_id: Annotated[str, "What `undo` takes; the same over HTTP."] = field(default="", metadata=LOCAL)
    status: Annotated[str, "Only `completed` wrote anything, and maybe nothing."] = field(
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
        "The task had committed before; this is what it did then. False over HTTP, see `TaskHandle`.",
    ] = field(default=False, metadata=LOCAL)
    error: Annotated[MunimentError | None, "Why it failed, with its stable code.", OpaqueType()] = field(
        default=None, metadata=LOCAL
    )

    def ending_json(self) -> dict[str, Any]:
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
            **error_json(self.error),
        }


def error_json(error: MunimentError | None) -> dict[str, Any]:
    """Return the part of a document that says why it failed, and which review it waits for."""
    document: dict[str, Any] = {
        "error": None if error is None else {"code": error.code, "message": str(error)}
    }
    if isinstance(error, PendingReview):
        document["review_id"] = error.review_id
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberResult(JobResult):
    """What a remember did."""

    summary: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    enforcement: Enforcement | None = None
    decided_by: str = field(default_factory=str)
    trust: Annotated[
        Trust | None, "Of what was written; below the request's where a model used words of its own."
    ] = None
    superseded: Annotated[tuple[SupersededEntry, ...], "What no longer holds."] = field(default_factory=tuple)
    similar: Annotated[
        tuple[SimilarEntry, ...],
        "Entries about the same that stay, because the fact does not say that something changed.",
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "What a person should know."] = field(default_factory=tuple)
    expires: Annotated[str | None, "The last day on which it is shown, as the request said."] = None
    ends: Annotated[
        str | None, "The last day on which it holds, by its own words; recall marks it as ended afterwards."
    ] = None
    status: Annotated[
        Literal["completed", "dry_run", "failed", "cancelled"],
        "Only `completed` wrote, or found the fact known (`unchanged`).",
    ] = field(default="completed", metadata=LOCAL)
    unchanged: Annotated[bool, "The fact was known already; False over HTTP."] = field(
        default=False, metadata=LOCAL
    )
    missing_layers: Annotated[
        tuple[FenceLayer, ...],
        "Layers of the confinement that were not in force around the run's worker; empty over HTTP.",
    ] = field(default=(), metadata=LOCAL)
    changes: Annotated[
        tuple[Change, ...],
        "The change-set; of a dry run, what would have been committed; empty over HTTP.",
    ] = field(default=(), metadata=LOCAL)
    detail: Annotated[
        str | None,
        "The model's last words, fenced as data; None: not asked for, or none. None over HTTP.",
    ] = field(default=None, metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `remember --json` prints."""
        names = "task_id status summary files_touched touched_scopes enforcement missing_layers decided_by"
        document = members(self, f"{names} trust turns") | self.ending_json()
        for name in ("expires", "ends"):
            if getattr(self, name) is not None:
                document |= members(self, name)
        for name in ("unchanged", "repeated", "superseded", "similar", "notes"):
            if getattr(self, name):
                document |= members(self, name)
        if self.detail is not None:
            document["detail"] = self.detail
        if self.status == "dry_run":
            document["changes"] = [
                {"path": change.path, "kind": change.kind, "sha256_after": change.sha256_after}
                for change in self.changes
            ]
        return document


class _OfFile(WireAnswer):
    """Something in a file; it can be taken apart as the tuple of its members."""

    __slots__ = ()
    path: str

    @property
    def file_path(self) -> str:
        """The path, as clients of the contract know it."""
        return self.path

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, each.name) for each in fields(cast("Any", self)))

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]


@dataclass(frozen=True, slots=True, order=True)
class RemovedEntry(_OfFile):
    """An entry, or a part of one, that went; of a dry run, that would go."""

    noun = "a removed entry"
    topic: str
    summary: str
    path: str = field(metadata={"alias": "filePath"})
    line: Annotated[int | None, "Where in the file what goes begins; without it all of it goes."] = None
    text: Annotated[str | None, "The lines that go; without them all of the file."] = None


@dataclass(frozen=True, slots=True, order=True)
class KeptEntry(_OfFile):
    """An entry that was meant and stays."""

    noun = "a kept entry"
    path: str = field(metadata={"alias": "filePath"})
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(JobResult):
    """What a forget did."""

    summary: str
    removed_entries: tuple[RemovedEntry, ...]
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    kept: Annotated[
        tuple[KeptEntry, ...], "What was meant and stays, the first of it; told to the owner alone."
    ] = field(default_factory=tuple, metadata={"max_length": MAX_KEPT})
    near: Annotated[
        tuple[str, ...], "Where nothing was meant, paths of entries that share a word with the query."
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "What a person should know."] = field(default_factory=tuple)
    digest: Annotated[str | None, "Of a dry run: names exactly what would go; absent: nothing would."] = None
    status: Annotated[
        Literal["completed", "preview", "failed", "cancelled"],
        "Only `completed` removed anything, and maybe nothing.",
    ] = field(default="completed", metadata=LOCAL)
    decided_by: Annotated[str, "`rules`, or the model's name; empty over HTTP."] = field(
        default="", metadata=LOCAL
    )

    def as_json(self) -> dict[str, Any]:
        """Return the document that `forget --json` prints."""
        names = "task_id status summary removed_entries kept near touched_scopes decided_by turns notes"
        return {
            **members(self, names),
            **({"digest": self.digest} if self.digest is not None else {}),
            **({"repeated": True} if self.repeated else {}),
            **self.ending_json(),
        }


@dataclass(frozen=True, slots=True)
class Counts:
    """What was found and what became of it, in numbers of entries unless said otherwise.

    Attributes:
        entries: looked at.
        exact_duplicates: that say what another one says.
        near_duplicates: that are alike to another one.
        expired: whose time is over.
        unreadable: that cannot be read.
        broken_links: relative links to nothing, in numbers of links.
        merged: removed because another one says it, or that it is no longer so; of a preview, that would be.
        removed_expired: removed because their time is over; likewise.
        ended: that no longer hold, as their words say; they stay.
        rewritten: that were given a new text, which stands for others as well; likewise.
        left: that one dream may not change any more; the next one may.
        rejected: groups that changed meanwhile, and so were left alone.
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
    """What a dream did."""

    summary: str
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    deduped_entries: Annotated[int, "How many entries went because another one says the same."]
    rejected: Annotated[int, "How many groups were left alone, since they changed meanwhile."] = field(
        default_factory=int
    )
    ended_entries: Annotated[
        int | None,
        "How many entries no longer hold, as their words say; they stay until a person removes them.",
    ] = None
    status: Annotated[
        Literal["completed", "preview", "failed", "cancelled"],
        "Only `completed` changed anything, and maybe nothing.",
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
    alike: Annotated[
        tuple[tuple[str, ...], ...], "Groups of paths of entries with similar texts; empty over HTTP."
    ] = field(default=(), metadata=LOCAL)
    kept: Annotated[
        tuple[KeptEntry, ...], "Entries that would have been removed, but may not be; empty over HTTP."
    ] = field(default=(), metadata=LOCAL)
    notes: Annotated[tuple[str, ...], "What a person should know; empty over HTTP."] = field(
        default=(), metadata=LOCAL
    )
    digest: Annotated[
        str | None, "Of a dry run: names exactly what would change; None: nothing would. None over HTTP."
    ] = field(default=None, metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `dream --json` prints."""
        return {
            **members(self, "task_id status summary counts"),
            "deduped_entries": list(self.deduped_paths),
            "expired_entries": list(self.expired_paths),
            "ended_entries": list(self.ended_paths),
            **members(self, "alike kept touched_topics touched_scopes decided_by turns notes"),
            **({"repeated": True} if self.repeated else {}),
            **self.ending_json(),
        }


# -- tasks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError(WireAnswer):
    """Why a task failed."""

    noun = "an error"
    code: str
    message: str
    review_id: str | None = None
    paths: Annotated[
        tuple[str, ...], "What was changed meanwhile; or some of what would be too much to forget."
    ] = ()
    meant: Annotated[int | None, "How much that is, where it is more than may be forgotten."] = None
    limit: Annotated[int | None, "How much may be forgotten at once, where it is more."] = None
    reason: Annotated[str | None, "If a model failed: its name and why, on one line."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyTask(WireAnswer):
    """What is told of every task."""

    task_id: str
    status: Annotated[Status, "`cancelled` for whoever cancelled it; `failed` for everybody else."]
    created_at: str
    updated_at: str
    error: Annotated[TaskError | None, "Of a failed task alone."] = None
    review_id: Annotated[str | None, "Of a task that waits for the owner's approval."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberTask(AnyTask):
    """A task that remembers."""

    kind: Literal["remember"] = "remember"
    context_mode: ContextMode
    scope: str | None = None
    result: Annotated[RememberResult | None, "Of a completed task alone."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTask(AnyTask):
    """A task that forgets."""

    kind: Literal["forget"] = "forget"
    scope: str | None = None
    result: Annotated[ForgetResult | None, "Of a completed task alone."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamTask(AnyTask):
    """A task that tidies."""

    kind: Literal["dream"] = "dream"
    result: Annotated[DreamResult | None, "Of a completed task alone."] = None


ToldTask = Annotated[RememberTask | ForgetTask | DreamTask, ToldApartBy("kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList(WireAnswer):
    """Tasks, the newest first."""

    tasks: tuple[ToldTask, ...]
    next_cursor: Annotated[str | None, "For the next request, if there are more."] = None


# -- recalls -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledEntry(WireAnswer):
    """An entry that helps."""

    noun = "a recalled entry"
    id: Annotated[str, "What `exclude` takes: its path, and a digest of what it says now."]
    path: str
    name: str
    trust: Annotated[Trust, "Whom it comes from."]
    at: Annotated[str, "When it was written."]
    text: Annotated[str, "What of it stands in the text of the answer."]
    ended: Annotated[str | None, "The last day on which it held, if that has passed."] = None
    key: Annotated[EntryKey | None, "Which entry it is, and what it said.", OpaqueType()] = field(
        default=None, metadata=LOCAL
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(WireAnswer):
    """What of the memory helps with a message."""

    entries: Annotated[tuple[RecalledEntry, ...], "The best first."] = field(
        default_factory=tuple, metadata=NEEDED
    )
    text: Annotated[
        str, "To be put before a model as it is: the entries, fenced as data. Empty without entries."
    ] = field(default_factory=str, metadata=NEEDED)
    tokens: Annotated[int, "Of the text, about."] = field(default_factory=int, metadata=NEEDED)
    abstained: Annotated[bool, "Nothing in the memory is about it but what was excluded."] = field(
        default_factory=bool, metadata=NEEDED
    )
    error: Annotated[
        MunimentError | None,
        "Why it is empty; without it nothing went wrong.",
        CodeOf(("managed_memory_unavailable", "deadline", "recall_failed")),
    ] = None
    notes: Annotated[tuple[str, ...], "What the user should know."] = ()
    withheld: Annotated[int, "How many were found that may not be shown."] = field(default=0, metadata=LOCAL)
    is_repeat: Annotated[bool, "The conversation begins anew with it, as all was told long ago."] = field(
        default=False, metadata=LOCAL
    )

    @property
    def keys(self) -> frozenset[EntryKey]:
        """The keys of the entries."""
        return frozenset(each.key for each in self.entries if each.key is not None)


# -- the owner's -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(WireAnswer):
    """A change-set that waits for the owner."""

    noun = "a review"
    review_id: str
    kind: str
    at: str
    reasons: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewList(WireAnswer):
    """What waits in this workspace."""

    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewShown(WireAnswer):
    """A review, as it would be approved now."""

    review_id: str
    text: str
    digest: Annotated[str, "What an approval names."]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedResult(WireAnswer):
    """The members of the result of an owner's commit that never leave the process."""

    changes: tuple[Change, ...] = field(default=(), metadata=LOCAL)

    def effect_json(self) -> dict[str, Any]:
        """Return the part of the document that says what was committed."""
        changes = [{"path": change.path, "kind": change.kind} for change in self.changes]
        return {"changes": changes, **members(self, "touched_scopes notes")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewDecision(CommittedResult):
    """What came of a decision about a review."""

    review_id: str
    status: Literal["approved", "rejected"]
    task_id: Annotated[str | None, "As which it was committed, where it was approved."] = None
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the document that `review approve --json` and `review reject --json` print."""
        return {**members(self, "review_id status task_id"), **self.effect_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult(CommittedResult):
    """What an undo did."""

    task_id: Annotated[str, "Of the undo; undo that to have the changes again."]
    undone: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]
    status: Literal["completed", "failed", "cancelled"] = field(default="completed", metadata=LOCAL)
    error: Annotated[MunimentError | None, "Why it failed, with its stable code.", OpaqueType()] = field(
        default=None, metadata=LOCAL
    )

    def as_json(self) -> dict[str, Any]:
        """Return the document that `undo --json` prints."""
        return {
            **members(self, "task_id undone status"),
            **self.effect_json(),
            **error_json(self.error),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasePlan(WireAnswer):
    """What an erasure would do; nothing was erased."""

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
    target: Annotated[str, "As it was asked for."] = field(default="", metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `erase --json` prints without `--yes`."""
        return members(
            self,
            "status target files versions others tasks reviews records lane_tasks copies not_covered",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseResult(WireAnswer):
    """What an erasure did. It holds no name and no text."""

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
        return members(
            self,
            "status task_id at erased tasks files versions reviews records lane_tasks notes not_covered",
        )


Erasure = Annotated[ErasePlan | EraseResult, ToldApartBy("status")]
"""What an erasure would do, or did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead(WireAnswer):
    """The end of the chain of records, to be kept where nobody can change it with the ledger."""

    head: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(WireAnswer):
    """What the policy says to a verb on a path."""

    policy: str
    verdict: Literal["allow", "deny"]
    rule: str | None = None
    layer: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UiOpened(WireAnswer):
    """Where the page is, and how to sign in there."""

    url: Annotated[str, "Of a name that is drawn anew at each start, below `localhost`."]
    code: Annotated[str, "Signs in once. Put it behind `#`, or type it in; never into a query."] = field(
        repr=False
    )
    seconds: Annotated[int, "For how long the code works."]


# -- the daemon itself -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(WireAnswer):
    """Something that this daemon can do."""

    since: Literal["v1"] = "v1"
    modes: tuple[ContextMode, ...] | None = None
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLimits(WireAnswer):
    """What a request, a lane and a task may take."""

    content_bytes: int
    body_bytes: int
    pending_tasks: int
    pending_tidying_tasks: int
    kept_tasks: int
    wait_seconds: int
    task_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolVersions(WireAnswer):
    """Which versions of the contract are spoken."""

    current: Literal["v1"] = "v1"
    supported: tuple[str, ...] = field(default_factory=lambda: ("v1",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities(WireAnswer):
    """What this daemon can do in a workspace, and its limits."""

    v: Literal[1] = 1
    protocol_versions: ProtocolVersions = ProtocolVersions()
    mode: Annotated[Literal["http-bridge"], "Means nothing here; ask `features`."] = "http-bridge"
    version: str
    workspace: Annotated[str, "Its key, as in `/workspaces/{workspace}/memory/…`."]
    features: Annotated[tuple[str, ...], "The names of what it can do."]
    feature_details: Annotated[Mapping[str, Feature], "More about some of them."]
    transports: tuple[str, ...] = field(default_factory=lambda: ("rest",))
    model_services: Annotated[tuple[str, ...], "None: a client needs no model of the daemon."] = field(
        default_factory=tuple
    )
    limits: DaemonLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(WireAnswer):
    """Whether the daemon runs."""

    status: Literal["ok"] = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(WireAnswer):
    """That whoever answers knows a token."""

    proof: Annotated[str, "HMAC-SHA-256 by the token's key over the nonce and the address, hexadecimal."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness(WireAnswer):
    """That it accepts tasks of each workspace, by key."""

    status: Literal["ready"] = "ready"
    workspaces: tuple[str, ...]
