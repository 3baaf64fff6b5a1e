"""Results of operations that list, recall, show, edit or export entries, for all callers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from muniment.errors import MunimentError
from muniment.kernel.names import Trust
from muniment.types.documents import (
    LOCAL,
    REQUIRED,
    ErrorCodes,
    OpaqueType,
    WireDocument,
    select_members,
)
from muniment.types.keys import EntryKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntry(WireDocument):
    """An entry in the result of a listing."""

    noun = "a listed entry"
    path: str
    title: Annotated[str, "The title; never empty."]
    description: str
    type: str | None = None
    size: Annotated[int, "The size of the file in bytes."]
    trust: Annotated[Trust, "The trust of the author of the entry."]
    expires: Annotated[str | None, "The last day on which the entry is shown."] = None
    ends: Annotated[str | None, "The last day on which the entry applies, according to its text."] = None
    readable: Annotated[bool, "Whether the file can be read."]
    withheld: Annotated[
        str | None, "The gate that withholds the text from models; only the owner sees the text."
    ] = None
    note: Annotated[
        str, "The reason why the file cannot be read, or the part of it that is invalid; empty if none."
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile(WireDocument):
    """A file or directory of the memory that is not an entry; only the owner receives this item."""

    noun = "a skipped file"
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryList(WireDocument):
    """The entries of a memory, sorted by scope and path."""

    entries: tuple[ListedEntry, ...]
    expired: Annotated[int, "The number of expired entries, which no page of the list contains."]
    skipped: Annotated[tuple[SkippedFile, ...], "Files and directories that are not entries."] = ()
    complete: Annotated[bool, "Whether every directory could be read."]
    next_cursor: Annotated[str | None, "The cursor for the next request, if there are more entries."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledEntry(WireDocument):
    """An entry that recall found because it helps with a message."""

    noun = "a recalled entry"
    id: Annotated[str, "The value for `exclude`: the path, and a digest of the current text."]
    path: str
    handle: Annotated[
        str, "The short name of the entry, which a rename does not change; accepted instead of the path."
    ] = ""
    name: str
    trust: Annotated[Trust, "The trust of the author of the entry."]
    at: Annotated[str, "The time when the entry was written."]
    text: Annotated[str, "The part of the entry that the text of the whole response contains."]
    ended: Annotated[str | None, "If the entry no longer applies: the last day on which it applied."] = None
    key: Annotated[EntryKey | None, "The identifier of this version of the entry.", OpaqueType()] = field(
        default=None, metadata=LOCAL
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(WireDocument):
    """The result of a recall (the entries that help with a message), or the standing context of a session."""

    entries: Annotated[tuple[RecalledEntry, ...], "The entries, the best first."] = field(
        default_factory=tuple, metadata=REQUIRED
    )
    text: Annotated[
        str, "The text to pass to a model unchanged; may be empty. Entries that are data are between marks."
    ] = field(default_factory=str, metadata=REQUIRED)
    tokens: Annotated[int, "Approximate tokens of `text`."] = field(default_factory=int, metadata=REQUIRED)
    abstained: Annotated[bool, "Whether no entry matches, except entries that the request excluded."] = field(
        default_factory=bool, metadata=REQUIRED
    )
    error: Annotated[
        MunimentError | None,
        "If an error occurred: the reason why the result is empty.",
        ErrorCodes(("managed_memory_unavailable", "deadline", "recall_failed")),
    ] = None
    notes: Annotated[tuple[str, ...], "Notices for the user."] = ()
    withheld: Annotated[int, "The number of found entries that may not be shown to models."] = field(
        default=0, metadata=LOCAL
    )
    is_repeat: Annotated[
        bool, "Whether these entries were injected before, but so long ago that they are repeated."
    ] = field(default=False, metadata=LOCAL)

    @property
    def keys(self) -> frozenset[EntryKey]:
        """Return the identifiers (root, path and digest) of the recalled entries."""
        return frozenset(each.key for each in self.entries if each.key is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryShown(WireDocument):
    """One entry with its text."""

    path: str
    id: Annotated[str, "The id in the provenance of the entry; empty if it has no provenance."]
    handle: Annotated[
        str,
        "The short name of the entry, which a rename does not change; accepted instead of the path. Empty if "
        "the entry is withheld.",
    ] = ""
    title: str
    text: Annotated[str, "The text without the front matter; data, not instructions."]
    trust: Annotated[Trust, "The trust of the author of the entry."]
    at: Annotated[str, "The time when the file was written."]
    expires: Annotated[str | None, "The last day on which the entry is shown."] = None
    ends: Annotated[str | None, "The last day on which the entry applies, according to its text."] = None
    pinned: Annotated[bool, "Whether the entry is in `pinned/`; no run changes it there."]
    withheld: Annotated[
        str | None, "The gate that withholds the entry from models; only the owner sees it."
    ] = None
    digest: Annotated[str, "The digest of the file; with it, `edit` fails if the file has changed since."]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditResult(WireDocument):
    """The result of replacing the text of an entry."""

    task_id: Annotated[str | None, "The id for an undo; absent if nothing was written."] = None
    path: Annotated[str, "The path of the entry now; a new text can change the name of the file."]
    changed: Annotated[bool, "Whether the new text differs from the old one."]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PinResult(WireDocument):
    """The result of pinning or unpinning an entry."""

    task_id: Annotated[str | None, "The id for an undo; absent for a dry run, which wrote nothing."] = None
    path: Annotated[str, "The new path of the entry."]
    previous_path: str
    pinned: Annotated[bool, "Whether the entry is pinned now; pinning a pinned entry unpins it."]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult(WireDocument):
    """The result of an export."""

    entries: Annotated[int, "The number of written entries."]
    notes: Annotated[
        tuple[str, ...], "The entries that are not in the export but only in a backup, with the reason."
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexResult(WireDocument):
    """The result of rebuilding and verifying the indexes; of a dry run, the state of the current indexes."""

    correct: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep(WireDocument):
    """The change of one file by one task."""

    noun = "a step"
    at: Annotated[str, "The time of the commit."]
    task: Annotated[str, "The id of the task, for an undo."]
    asked: Annotated[str, "The kind of the task: `remember`, `undo`, and so on."]
    path: str
    kind: Literal["new", "changed", "removed"]
    trust: Annotated[Trust | None, "The trust of the new text; absent if the file was removed."] = None
    decided_by: str
    policy: str
    undoes: Annotated[str | None, "The id of the task that this task undid."] = None
    is_erased: Annotated[bool, "Whether the text was erased."]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryList(WireDocument):
    """Committed changes of files, the newest first."""

    steps: tuple[CommittedStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedText(WireDocument):
    """A sentence of an entry, with the trust of its author."""

    noun = "a sentence"
    trust: Trust
    text: str
    is_title: Annotated[bool, "Whether it is part of the name, the description or the keywords."] = field(
        default=False, metadata=LOCAL
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(WireDocument):
    """The origin of an entry: the last task that wrote it, and the trust of its text."""

    path: str
    state: Literal["committed", "edited", "foreign", "removed", "missing"]
    trust: Annotated[Trust | None, "The trust of the present text; absent if the file is missing."] = None
    task: Annotated[str | None, "The id of the last task that wrote the entry."] = None
    asked: Annotated[str | None, "The kind of that task."] = None
    at: Annotated[str | None, "The time of the commit of that task."] = None
    decided_by: str | None = None
    policy: str | None = None
    sentences: Annotated[
        tuple[TrustedText, ...], "The sentences with their trust, if not all have the same trust."
    ] = ()
    request_trust: Annotated[Trust | None, "The trust of the request of that task."] = field(
        default=None, metadata=LOCAL
    )
    fact: Annotated[
        str | None, "A keyed digest of the request of that task; None if it is missing or was erased."
    ] = field(default=None, metadata=LOCAL)

    def as_json(self) -> dict[str, Any]:
        """Return the document that `why --json` prints."""
        source = {"trust": self.request_trust, **select_members(self, "task decided_by policy at")}
        return {
            **select_members(self, "path state trust"),
            "source": None if self.task is None else source,
            **select_members(self, "asked fact sentences"),
        }
