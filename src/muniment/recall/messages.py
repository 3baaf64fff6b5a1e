"""Messages of a chat as hosts of Chat Completions hold them: where text may be put between them. Pure.

Messages are mappings, or objects with attributes of the same names, as SDKs return them. A call is
*pending* while no message behind it is its result; while one is, nothing may be put in, since servers
refuse a call whose result is not next to it. Nothing here looks after that: whoever puts something in
asks `has_pending_call` first.

Attacked in tests/units/recall/test_messages.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from muniment.recall.block import Count

Message = Mapping[str, Any]
"""A message as JSON has it."""


def field(message: Any, name: str) -> Any:
    """A field of a message; None where it has none."""
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


class Calls:
    """The calls of a conversation, message by message, and which of them are pending.

    Some models give several calls one id, or none: each of these wants a result of its own.
    """

    def __init__(self) -> None:
        self._pending: Counter[str] = Counter()

    def see(self, message: Any) -> None:
        """The next message."""
        role = field(message, "role")
        if role == "assistant":
            self._pending.update(str(field(call, "id")) for call in field(message, "tool_calls") or ())
        elif role == "tool":
            call = str(field(message, "tool_call_id"))
            self._pending[call] = max(0, self._pending[call] - 1)

    @property
    def are_pending(self) -> bool:
        """Whether any has no result yet."""
        return self._pending.total() > 0


def has_pending_call(messages: Sequence[Any]) -> bool:
    """Whether a call of any message has no result yet."""
    calls = Calls()
    for message in messages:
        calls.see(message)
    return calls.are_pending


def groups(messages: Sequence[Any]) -> list[list[Any]]:
    """Messages in runs that must not be parted: one with calls and the results behind it; any other alone."""
    found: list[list[Any]] = []
    for message in messages:
        if field(message, "role") == "tool" and found and field(found[-1][0], "tool_calls"):
            found[-1].append(message)
        else:
            found.append([message])
    return found


def with_reminders(messages: Sequence[Any], reminders: Sequence[str]) -> list[Any]:
    """Messages with `reminders` as one message of the user, before the last one that the user wrote.

    At the end where the user wrote none. No call may be pending.
    """
    if not reminders:
        return list(messages)
    users = [number for number, each in enumerate(messages) if field(each, "role") == "user"]
    at = users[-1] if users else len(messages)
    return [*messages[:at], user("\n\n".join(reminders)), *messages[at:]]


def behind_results(messages: Sequence[Any], text: str) -> list[Any]:
    """Messages with `text` as a message of the user behind the last result of a tool.

    At the end where there is none. No call may be pending.
    """
    results = [number for number, each in enumerate(messages) if field(each, "role") == "tool"]
    at = results[-1] + 1 if results else len(messages)
    return [*messages[:at], user(text), *messages[at:]]


def user(text: str) -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": text}


def said(message: Any) -> str:
    """The text of a message; of one in parts that of its parts."""
    content = field(message, "content")
    if isinstance(content, str):
        return content
    return "\n".join(text for part in content or () if isinstance(text := field(part, "text"), str))


def size_of(messages: Sequence[Message], count: Count) -> int:
    """Return the tokens of messages as JSON has them."""
    return count(json.dumps(messages, ensure_ascii=False, default=str))
