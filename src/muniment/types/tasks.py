"""The tasks of the daemon, and the reason why one failed.

The meaning of a member is in the `Annotated` text of its type, see `results`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from muniment.names import ContextMode
from muniment.types.documents import Discriminator, WireDocument
from muniment.types.results import DreamResult, ForgetResult, RememberResult, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError(WireDocument):
    """The reason why a task failed."""

    noun = "an error"
    code: str
    message: str
    review_id: str | None = None
    paths: Annotated[
        tuple[str, ...],
        "Files that changed in the meantime. Or, if too many entries match a forget, some of these entries.",
    ] = ()
    meant: Annotated[int | None, "If too many entries match a forget: the number of these entries."] = None
    limit: Annotated[int | None, "If too many entries match: the number that one forget may remove."] = None
    reason: Annotated[str | None, "If a model failed: its name and the reason, in one line."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyTask(WireDocument):
    """The members that every task has."""

    task_id: str
    status: Annotated[Status, "`cancelled` for the client that cancelled the task, `failed` for all others."]
    created_at: str
    updated_at: str
    error: Annotated[TaskError | None, "The reason of the failure; only of a failed task."] = None
    review_id: Annotated[str | None, "The id of the review, if the owner must approve the change."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberTask(AnyTask):
    """A task that remembers a fact."""

    kind: Literal["remember"] = "remember"
    context_mode: ContextMode
    scope: str | None = None
    result: Annotated[RememberResult | None, "The result; only of a completed task."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTask(AnyTask):
    """A task that forgets entries."""

    kind: Literal["forget"] = "forget"
    scope: str | None = None
    result: Annotated[ForgetResult | None, "The result; only of a completed task."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamTask(AnyTask):
    """A task that tidies the memory."""

    kind: Literal["dream"] = "dream"
    result: Annotated[DreamResult | None, "The result; only of a completed task."] = None


PublicTask = Annotated[RememberTask | ForgetTask | DreamTask, Discriminator("kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList(WireDocument):
    """The tasks of a workspace that the client may see, the newest first."""

    tasks: tuple[PublicTask, ...]
    next_cursor: Annotated[str | None, "The cursor for the next request, if there are more tasks."] = None
