"""The results of jobs: remember, forget and dream. The same classes describe the responses of the daemon.

The meaning of a member is in the `Annotated` text of its type. docs/http.md and the OpenAPI document, which
pydantic generates from these classes, contain this text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal, cast

from muniment.errors import MunimentError, PendingReview
from muniment.kernel.names import Enforcement, Trust
from muniment.names import FenceLayer
from muniment.types.documents import (
    LOCAL,
    OpaqueType,
    WireDocument,
    select_members,
)
from muniment.types.requests import EntryPart
from muniment.types.runs import Change, SupersededEntry, Turn

MAX_RETAINED: Final = 100
"""Maximum number of entries in `ForgetResult.kept`."""

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class SimilarEntry(WireDocument):
    """An existing entry about the same subject as a new fact; it stays, and the new entry links to it."""

    noun = "a similar entry"
    path: str
    id: Annotated[str, "The id in the provenance of the entry; empty if it has no provenance."]


def list_superseded(changes: Sequence[Change]) -> tuple[SupersededEntry, ...]:
    """Return the outdated entries that facts replaced in these changes."""
    return tuple(each.superseded for each in changes if each.superseded is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(WireDocument):
    """The members that the results of remember, forget and dream have in common.

    The daemon does not send these members. In a result that a client of the daemon returns, only `task_id` is
    set; all others are empty (0, False, None).
    """

    noun = "a result"
    task_id: Annotated[str, "The task's id, for `undo`; also over HTTP."] = field(default="", metadata=LOCAL)
    status: Annotated[str, "If it is not `completed`, nothing was written."] = field(
        default="completed", metadata=LOCAL
    )
    policy: Annotated[str, "The name of the policy; empty over HTTP."] = field(default="", metadata=LOCAL)
    turns: Annotated[int, "The number of turns of the model; 0 over HTTP."] = field(default=0, metadata=LOCAL)
    seconds: Annotated[float, "The duration of the job; 0 over HTTP."] = field(default=0.0, metadata=LOCAL)
    timeline: Annotated[
        tuple[Turn, ...], "The cost of each turn of the model; empty over HTTP.", OpaqueType()
    ] = field(default=(), metadata=LOCAL)
    repeated: Annotated[
        bool,
        "Whether a task with this id committed earlier; this is its result. False over HTTP (`TaskHandle`).",
    ] = field(default=False, metadata=LOCAL)
    error: Annotated[
        MunimentError | None, "The reason of the failure, with its stable code.", OpaqueType()
    ] = field(default=None, metadata=LOCAL)

    def create_ending_json(self) -> dict[str, Any]:
        """Return the last members of the JSON document that a command prints: costs, policy and error."""
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
    """Return the members `error` and, if a review is pending, `review_id` of a document of a command."""
    problem = None if error is None else {"code": error.code, "message": str(error)}
    document: dict[str, Any] = {"error": problem}
    if isinstance(error, PendingReview):
        document["review_id"] = error.review_id
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberResult(JobResult):
    """The result of remembering a fact."""

    summary: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    enforcement: Enforcement | None = None
    decided_by: str = field(default_factory=str)
    trust: Annotated[
        Trust | None, "The trust of the written text; lower than requested if a model used its own words."
    ] = None
    superseded: Annotated[tuple[SupersededEntry, ...], "The entries that the fact replaced."] = field(
        default_factory=tuple
    )
    similar: Annotated[
        tuple[SimilarEntry, ...],
        "Entries about the same subject. They stay, because the fact does not state a change.",
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "Notices for the user."] = field(default_factory=tuple)
    expires: Annotated[str | None, "The last day on which the entry is shown, as requested."] = None
    ends: Annotated[
        str | None, "The last day on which the entry applies, by its text; later, recall marks it as ended."
    ] = None
    status: Annotated[
        Literal["completed", "dry_run", "failed", "cancelled"],
        "`completed`: the fact was written, or already known (`unchanged`). Otherwise nothing was written.",
    ] = field(default="completed", metadata=LOCAL)
    unchanged: Annotated[bool, "Whether the memory already contained the fact; False over HTTP."] = field(
        default=False, metadata=LOCAL
    )
    missing_layers: Annotated[
        tuple[FenceLayer, ...],
        "Layers of the confinement that were not in force around the run's worker; empty over HTTP.",
    ] = field(default=(), metadata=LOCAL)
    changes: Annotated[
        tuple[Change, ...],
        "The committed changes; of a dry run, the changes that would be committed; empty over HTTP.",
    ] = field(default=(), metadata=LOCAL)
    detail: Annotated[
        str | None,
        "The model's last text, marked as data; None if it was not requested or is empty. None over HTTP.",
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
    """The base of list items about a file; an item can be unpacked like a tuple of its members."""

    __slots__ = ()
    path: str

    @property
    def file_path(self) -> str:
        """Return the path of the file; HTTP documents use this name (`filePath`)."""
        return self.path

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, each.name) for each in fields(cast("Any", self)))

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]


@dataclass(frozen=True, slots=True, order=True)
class RemovedEntry(_FileItem):
    """An entry, or a part of an entry, that was removed; of a dry run, one that would be removed."""

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
    """An entry that matched the request but was not removed, with the reason."""

    noun = "a retained entry"
    path: str = field(metadata={"alias": "filePath"})
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(JobResult):
    """The result of forgetting entries or parts of entries."""

    summary: str
    removed_entries: tuple[RemovedEntry, ...]
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    kept: Annotated[
        tuple[RetainedEntry, ...], "Matches that were not removed, up to a limit; only for the owner."
    ] = field(default_factory=tuple, metadata={"max_length": MAX_RETAINED})
    near: Annotated[
        tuple[str, ...], "If nothing matches: paths of entries that share a word with the query."
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "Notices for the user."] = field(default_factory=tuple)
    digest: Annotated[
        str | None, "Of a dry run that finds something: identifies exactly this text for a later request."
    ] = None
    status: Annotated[
        Literal["completed", "preview", "failed", "cancelled"],
        "If it is not `completed`, nothing was removed.",
    ] = field(default="completed", metadata=LOCAL)
    decided_by: Annotated[str, "`rules`, or the model's name; empty over HTTP."] = field(
        default="", metadata=LOCAL
    )
    entries: Annotated[
        tuple[EntryPart, ...],
        "The removed entries; if nothing matches, the near ones. Empty if there are too many, and over HTTP.",
        OpaqueType(),
    ] = field(default=(), metadata=LOCAL)

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
    """The numbers of entries that a dream found and changed; a preview counts the changes that it would make.

    Attributes:
        entries: entries that were checked.
        exact_duplicates: entries with the same text as another entry.
        near_duplicates: entries that are similar to another entry.
        expired: entries whose last day has passed.
        unreadable: entries whose file cannot be read.
        broken_links: links (not entries) to a file that does not exist.
        merged: entries that were removed because they are duplicate or outdated.
        removed_expired: entries that were removed because they have expired.
        ended: entries that no longer apply according to their text; they are not removed.
        rewritten: entries with a new text that also replaces other entries.
        left: entries that this dream did not change because of its limit; the next dream may change them.
        rejected: groups of entries that this dream did not change, because they changed in the meantime.
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


@dataclass(frozen=True, slots=True)
class TidyStep:
    """The entries that one step of a dream removes, with the reason.

    Attributes:
        reason: `expired`; `duplicate`: they have the text of the entry that stays; `outdated`: the entry that
            stays is newer and contradicts them; `merged`: a model merged them.
        removed: the removed entries.
        stays: the entry that stays, as it was before; None for expired entries.
        new_text: the text that a model gives to the entry that stays; empty: its text stays unchanged.
    """

    reason: Literal["expired", "duplicate", "outdated", "merged"]
    removed: tuple[EntryPart, ...]
    stays: EntryPart | None = None
    new_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamResult(JobResult):
    """The result of tidying the memory (a dream)."""

    summary: str
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    deduped_entries: Annotated[int, "The number of entries that were removed as duplicate or outdated."]
    rejected: Annotated[
        int, "The number of groups that were skipped, since they changed in the meantime."
    ] = field(default_factory=int)
    ended_entries: Annotated[
        int | None,
        "The number of entries that no longer apply according to their text; only a user removes them.",
    ] = None
    status: Annotated[
        Literal["completed", "preview", "failed", "cancelled"],
        "If it is not `completed`, nothing was changed.",
    ] = field(default="completed", metadata=LOCAL)
    decided_by: Annotated[str, "`rules`, or the model's name; empty over HTTP."] = field(
        default="", metadata=LOCAL
    )
    counts: Annotated[Counts, "Numbers of entries; 0 over HTTP."] = field(default=Counts(), metadata=LOCAL)
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
        tuple[RetainedEntry, ...], "Entries that should be removed, but must not be; empty over HTTP."
    ] = field(default=(), metadata=LOCAL)
    notes: Annotated[tuple[str, ...], "Notices for the user; empty over HTTP."] = field(
        default=(), metadata=LOCAL
    )
    digest: Annotated[
        str | None, "Of a dry run that finds something: identifies exactly these changes. None over HTTP."
    ] = field(default=None, metadata=LOCAL)
    steps: Annotated[tuple[TidyStep, ...], "The removals, with texts; empty over HTTP.", OpaqueType()] = (
        field(default=(), metadata=LOCAL)
    )
    similar: Annotated[
        tuple[tuple[EntryPart, ...], ...],
        "The entries of `similar_paths`, with texts; empty over HTTP.",
        OpaqueType(),
    ] = field(default=(), metadata=LOCAL)

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
