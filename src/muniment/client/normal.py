"""Events as user interfaces of this contract know them: one shape for every change of the memory.

Source: the event normaliser of the contract's TypeScript SDK; scopes other than `user` and `project` pass as
well, since a policy may declare them.
"""

from __future__ import annotations

from typing import Any, Final

from muniment.client.results import Document, Event

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
