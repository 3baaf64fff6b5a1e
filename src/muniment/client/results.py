"""Tasks and events as clients receive them; the other values are those of `muniment.types`.

Members that were added to the contract later, and that other implementations omit, are then empty or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from muniment.client.errors import TaskFailed, choose_error_class
from muniment.types import AnyTask, DreamResult, ForgetResult, Kind, RememberResult, Status, TaskError
from muniment.types.documents import WireDocument

# -- results -----------------------------------------------------------------------------------------

Document = Mapping[str, Any]
"""A JSON object from the daemon, with its names."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_FINISHED: Final = frozenset({"completed", "failed", "cancelled"})

Result = RememberResult | ForgetResult | DreamResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(AnyTask):
    """A task as the daemon returned it.

    Attributes:
        created_at, updated_at: ISO-8601, UTC, milliseconds.
        context_mode: only for remember.
        result: only for a completed task.
        error: only for a failed task.
    """

    kind: Kind
    context_mode: str | None = None
    scope: str | None = None
    result: Result | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether it will never change again."""
        return self.status in _FINISHED

    @property
    def outcome(self) -> Result:
        """Return the result of a task that is over.

        Raises:
            TaskFailed: it has no result; the class depends on the code.
        """
        if self.result is not None:
            return self.result
        error = self.error or TaskError(
            code="cancelled", message="The task was cancelled; nothing was written."
        )
        message = error.message
        if error.meant is not None:
            message += f" {error.meant} items match, and one forget may remove {error.limit}."
        if error.reason is not None:
            message += f" {error.reason}"
        raise choose_error_class(TaskFailed, error.code)(
            error.code,
            message,
            task_id=self.task_id,
            review_id=error.review_id,
            paths=error.paths,
            meant=error.meant,
            limit=error.limit,
        )


@dataclass(frozen=True, slots=True)
class Event(WireDocument):
    """An event of a workspace.

    Attributes:
        id: position for `events(after=…)`; "" if the daemon sent none.
        type: `memory_changed`, `task`, or `resync`: earlier events were missed, reload cached data.
        data: the data, with the daemon's names.
        originator_client_id: id of the client that caused it, if it sent one.
    """

    id: str
    type: str
    data: Document
    originator_client_id: str | None = None


# -- normal ------------------------------------------------------------------------------------------
#
# Events in the form that user interfaces of this contract use: one shape for every change of the memory.
#
# Source: the event normaliser of the contract's TypeScript SDK; scopes other than `user` and `project` are
# also accepted, since a policy may declare them.

_TYPE: Final = "workspace.memory.changed"


def normalize(event: Event | Document) -> dict[str, Any] | None:
    """Return a change of the memory, or None if the event is of another type, or incomplete.

    Args:
        event: from `events()`, or as in a stream: `{"type": …, "data": {…}}`.

    Returns:
        `{"type": "workspace.memory.changed", "scope": "managed", "source", "taskId", "touchedScopes"}`; for a
        change of a context file, whose scope is `workspace` or `global`, `filePath`, `mode` and
        `bytesWritten` instead of the last three.
    """
    document = {"type": event.type, "data": event.data} if isinstance(event, Event) else event
    kind, data = document.get("type"), document.get("data")
    if kind != "memory_changed" or not isinstance(data, dict):
        return None
    match data:
        case {
            "scope": "managed",
            "source": str(source),
            "taskId": str(task_id),
            "touchedScopes": list(scopes),
        }:
            is_complete = bool(source and task_id) and all(isinstance(each, str) for each in scopes)
            names = ("scope", "source", "taskId", "touchedScopes")
        case {
            "scope": "workspace" | "global",
            "filePath": str(path),
            "mode": "append" | "replace",
            "bytesWritten": int(written),
        }:
            is_complete = bool(path) and not isinstance(written, bool)
            names = ("scope", "filePath", "mode", "bytesWritten")
        case _:
            return None
    return {"type": _TYPE, **{name: data[name] for name in names}} if is_complete else None
