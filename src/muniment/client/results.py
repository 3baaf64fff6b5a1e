"""Tasks and events as clients have them; the other values are those of `muniment.types`.

What the contract gained later, and other implementations of it leave out, is empty or None then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from muniment.client.errors import TaskFailed, told_as
from muniment.types import AnyTask, DreamResult, ForgetResult, Kind, RememberResult, Status, TaskError
from muniment.types.documents import WireAnswer

# -- results -----------------------------------------------------------------------------------------

Document = Mapping[str, Any]
"""What the daemon says, under its own names."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_OVER: Final = frozenset({"completed", "failed", "cancelled"})

Result = RememberResult | ForgetResult | DreamResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(AnyTask):
    """A task as the daemon knows it.

    Attributes:
        created_at, updated_at: ISO-8601, UTC, milliseconds.
        context_mode: of a remember alone.
        result: of a completed one alone.
        error: of a failed one alone.
    """

    kind: Kind
    context_mode: str | None = None
    scope: str | None = None
    result: Result | None = None

    @property
    def is_over(self) -> bool:
        """Whether it will never change again."""
        return self.status in _OVER

    @property
    def outcome(self) -> Result:
        """The result of a task that is over.

        Raises:
            TaskFailed: it has none; a class of it, by the code.
        """
        if self.result is not None:
            return self.result
        error = self.error or TaskError(
            code="cancelled", message="The task was cancelled; nothing was written."
        )
        message = error.message
        if error.meant is not None:
            message += f" Meant are {error.meant} things, and {error.limit} may go at once."
        if error.reason is not None:
            message += f" {error.reason}"
        raise told_as(TaskFailed, error.code)(
            error.code,
            message,
            task_id=self.task_id,
            review_id=error.review_id,
            paths=error.paths,
            meant=error.meant,
            limit=error.limit,
        )


@dataclass(frozen=True, slots=True)
class Event(WireAnswer):
    """Something that happened in a workspace.

    Attributes:
        id: what `events(after=…)` goes on from; "" where the daemon gave none.
        type: `memory_changed`, `task`, or `resync`: what came before was missed, read anew what you keep.
        data: under the daemon's own names.
        originator_client_id: of the client that asked for it, where it gave one.
    """

    id: str
    type: str
    data: Document
    originator_client_id: str | None = None


# -- normal ------------------------------------------------------------------------------------------
#
# Events as user interfaces of this contract know them: one shape for every change of the memory.
#
# Source: the event normaliser of the contract's TypeScript SDK; scopes other than `user` and `project` pass
# as well, since a policy may declare them.

_TYPE: Final = "workspace.memory.changed"


def normalize(event: Event | Document) -> dict[str, Any] | None:
    """A change of the memory; None: the event is about something else, or is not whole.

    Args:
        event: as `events()` gave it, or as it stands in a stream: `{"type": …, "data": {…}}`.

    Returns:
        `{"type": "workspace.memory.changed", "scope": "managed", "source", "taskId", "touchedScopes"}`; of a
        change to a context file, whose scope is `workspace` or `global`, instead of the last three
        `filePath`, `mode` and `bytesWritten`.
    """
    wire = {"type": event.type, "data": event.data} if isinstance(event, Event) else event
    kind, data = wire.get("type"), wire.get("data")
    if kind != "memory_changed" or not isinstance(data, dict):
        return None
    match data:
        case {
            "scope": "managed",
            "source": str(source),
            "taskId": str(task_id),
            "touchedScopes": list(scopes),
        }:
            is_whole = bool(source and task_id) and all(isinstance(each, str) for each in scopes)
            names = ("scope", "source", "taskId", "touchedScopes")
        case {
            "scope": "workspace" | "global",
            "filePath": str(path),
            "mode": "append" | "replace",
            "bytesWritten": int(written),
        }:
            is_whole = bool(path) and not isinstance(written, bool)
            names = ("scope", "filePath", "mode", "bytesWritten")
        case _:
            return None
    return {"type": _TYPE, **{name: data[name] for name in names}} if is_whole else None
