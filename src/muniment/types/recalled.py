"""The results of a recall, or the standing context.

The meaning of a member is in the `Annotated` text of its type, see `results`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from muniment.errors import MunimentError
from muniment.kernel.names import Trust
from muniment.types.documents import LOCAL, REQUIRED, ErrorCodes, OpaqueType, WireDocument
from muniment.types.keys import EntryKey


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
