"""The history of the memory, and the origin of an entry: committed steps, and sentences with their trust.

The meaning of a member is in the `Annotated` text of its type, see `results`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from muniment.kernel.names import Trust
from muniment.types.documents import LOCAL, WireDocument, select_members


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
    title: Annotated[
        str,
        "The title of the entry after the step; before it, if the step removed the file. Empty if erased.",
    ] = ""
    previous_title: Annotated[str, "The title before the step, if the step changed the file."] = ""
    handle: Annotated[str, "The short name of the entry; empty if its text was erased."] = ""
    task_handle: Annotated[str, "The short name of the task, accepted instead of its id."] = ""


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
    title: Annotated[str, "The title of the present text; empty if the file is missing."] = ""
    handle: Annotated[str, "The short name of the entry; empty if the file is missing."] = ""
    task_handle: Annotated[str | None, "The short name of that task, accepted instead of its id."] = None
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
            **select_members(self, "asked fact sentences title handle task_handle"),
        }
