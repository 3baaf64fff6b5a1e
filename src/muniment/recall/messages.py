"""Find the places in chat messages of Chat Completions where text may be inserted. Pure.

Messages are mappings, or objects with attributes of the same names, as SDKs return them. A call is *pending*
until a later message is its result. Meanwhile nothing may be inserted, since servers reject a call whose
result is not next to it. The functions here do not check this: callers call `has_pending_call` first.

Attacked in tests/units/recall/test_messages.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from muniment.recall.block import Count

Message = Mapping[str, Any]
"""A message as a JSON object."""


def read_field(message: Any, name: str) -> Any:
    """Return a field of a message, or None if it is missing."""
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


class PendingCalls:
    """The calls of a conversation, message by message, and which of them are pending.

    Some models give several calls the same id, or none: each of these calls needs its own result.
    """

    def __init__(self) -> None:
        self._pending: Counter[str] = Counter()

    def add_message(self, message: Any) -> None:
        """Process the next message."""
        role = read_field(message, "role")
        if role == "assistant":
            self._pending.update(
                str(read_field(call, "id")) for call in read_field(message, "tool_calls") or ()
            )
        elif role == "tool":
            call = str(read_field(message, "tool_call_id"))
            self._pending[call] = max(0, self._pending[call] - 1)

    @property
    def has_pending(self) -> bool:
        """Return whether any call has no result yet."""
        return self._pending.total() > 0


def has_pending_call(messages: Sequence[Any]) -> bool:
    """Return whether a call of any message has no result yet."""
    calls = PendingCalls()
    for message in messages:
        calls.add_message(message)
    return calls.has_pending


def group_messages(messages: Sequence[Any]) -> list[list[Any]]:
    """Split messages into runs that must stay together: calls with their results; any other message alone."""
    found: list[list[Any]] = []
    for message in messages:
        if read_field(message, "role") == "tool" and found and read_field(found[-1][0], "tool_calls"):
            found[-1].append(message)
        else:
            found.append([message])
    return found


def insert_reminders(messages: Sequence[Any], reminders: Sequence[str]) -> list[Any]:
    """Return messages with `reminders` as one user message, before the last message of the user.

    Without a user message, it becomes the last message. No call may be pending.
    """
    if not reminders:
        return list(messages)
    users = [number for number, each in enumerate(messages) if read_field(each, "role") == "user"]
    at = users[-1] if users else len(messages)
    return [*messages[:at], build_user_message("\n\n".join(reminders)), *messages[at:]]


def insert_after_results(messages: Sequence[Any], text: str) -> list[Any]:
    """Return messages with `text` as a user message after the last result of a tool.

    Without a result, it becomes the last message. No call may be pending.
    """
    results = [number for number, each in enumerate(messages) if read_field(each, "role") == "tool"]
    at = results[-1] + 1 if results else len(messages)
    return [*messages[:at], build_user_message(text), *messages[at:]]


def build_user_message(text: str) -> dict[str, str]:
    """Return a user message."""
    return {"role": "user", "content": text}


def read_text(message: Any) -> str:
    """Return the text of a message; for a message in parts, the texts of its parts."""
    content = read_field(message, "content")
    if isinstance(content, str):
        return content
    return "\n".join(text for part in content or () if isinstance(text := read_field(part, "text"), str))


def count_tokens(messages: Sequence[Message], count: Count) -> int:
    """Return the tokens of messages in JSON."""
    return count(json.dumps(messages, ensure_ascii=False, default=str))
