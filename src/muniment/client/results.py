"""Tasks and events as clients receive them.

All other values that clients receive are defined in `muniment.types`. Some members of these values are newer
than the contract. If another implementation of the contract does not send them, they are empty or None.
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
"""A JSON object from the daemon; its keys are the names that the daemon uses."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_FINISHED: Final = frozenset({"completed", "failed", "cancelled"})

Result = RememberResult | ForgetResult | DreamResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(AnyTask):
    """The state of a task, as the daemon returned it.

    Attributes:
        created_at, updated_at: times in ISO 8601, in UTC, with milliseconds.
        context_mode: `workspace` or `clean`; only for a remember task.
        result: the result; only for a completed task.
        error: the reason for the failure; only for a failed task.
    """

    kind: Kind
    context_mode: str | None = None
    scope: str | None = None
    result: Result | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether the task is over: its status is `completed`, `failed` or `cancelled`."""
        return self.status in _FINISHED

    @property
    def outcome(self) -> Result:
        """Return the result of a task that is over.

        Raises:
            TaskFailed: the task failed or was cancelled; the class of the exception depends on the code.
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
        id: the position of the event, for `events(after=…)`; empty if the daemon sent none.
        type: `memory_changed`, `task` or `resync`. `resync` means that earlier events were missed: load all
            data again.
        data: the members of the event, with the names that the daemon uses.
        originator_client_id: id of the client that caused the event, if the daemon sent it.
    """

    id: str
    type: str
    data: Document
    originator_client_id: str | None = None


# -- normal ------------------------------------------------------------------------------------------
#
# Converts events to the form that user interfaces of this contract use: one shape for every change of the
# memory.
#
# Source: the event normaliser of the contract's TypeScript SDK. Scopes other than `user` and `project` are
# also accepted, since a policy may declare them.

_TYPE: Final = "workspace.memory.changed"


def normalize(event: Event | Document) -> dict[str, Any] | None:
    """Convert an event to a change of the memory, in the form that user interfaces of this contract use.

    Args:
        event: an event from `events()`, or a dictionary `{"type": …, "data": {…}}` as in the stream.

    Returns:
        A dictionary with `"type": "workspace.memory.changed"`. For a change of entries it also contains
        `"scope": "managed"`, `source`, `taskId` and `touchedScopes`. For a change of a context file it also
        contains `scope` (`workspace` or `global`), `filePath`, `mode` and `bytesWritten`.
        None if the event has another type or lacks one of these members.
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
