"""Results of operations that list, show, edit, pin or export entries, or that check their indexes.

The meaning of a member is in the `Annotated` text of its type, see `results`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from muniment.kernel.names import Trust
from muniment.types.documents import WireDocument


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
    handle: Annotated[str, "The short name of the entry, as in `EntryShown`; empty if it is withheld."] = ""
    at: Annotated[str, "The time of the last change, as the front matter or the file has it."] = ""


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
