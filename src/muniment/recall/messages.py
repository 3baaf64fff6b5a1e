"""Find the position in chat messages (format: Chat Completions) at which a text may be inserted. Pure.

A message is a mapping, or an object with attributes of the same names, as SDKs return it. A tool call is
*pending* until a later message is its result. While a call is pending, nothing may be inserted, because
servers reject a call whose result does not follow directly. The functions that insert do not check this:
their callers call `has_pending_call` first.

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
    """Return the field `name` of a message, or None if it is missing."""
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


class PendingCalls:
    """Tracks which tool calls of a conversation have no result yet; messages are added one by one.

    Some models give several calls the same id or no id. Each of these calls needs its own result.
    """

    def __init__(self) -> None:
        self._pending: Counter[str] = Counter()

    def add_message(self, message: Any) -> None:
        """Process the next message: add its tool calls, or remove the call that it is the result of."""
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
        """Return whether any call of the added messages has no result yet."""
        return self._pending.total() > 0


def has_pending_call(messages: Sequence[Any]) -> bool:
    """Return whether a tool call in `messages` has no result yet."""
    calls = PendingCalls()
    for message in messages:
        calls.add_message(message)
    return calls.has_pending


def group_messages(messages: Sequence[Any]) -> list[list[Any]]:
    """Group messages that must stay together: a message with tool calls and their results.

    Each other message is a separate group.
    """
    found: list[list[Any]] = []
    for message in messages:
        if read_field(message, "role") == "tool" and found and read_field(found[-1][0], "tool_calls"):
            found[-1].append(message)
        else:
            found.append([message])
    return found


def insert_reminders(messages: Sequence[Any], reminders: Sequence[str]) -> list[Any]:
    """Return the messages with `reminders` added as one user message before the last message of the user.

    If the user has no message, add the reminders at the end. No tool call may be pending.
    """
    if not reminders:
        return list(messages)
    users = [number for number, each in enumerate(messages) if read_field(each, "role") == "user"]
    position = users[-1] if users else len(messages)
    return [*messages[:position], build_user_message("\n\n".join(reminders)), *messages[position:]]


def insert_after_results(messages: Sequence[Any], text: str) -> list[Any]:
    """Return the messages with `text` added as a user message after the last result of a tool.

    Without a result, add the text at the end. No tool call may be pending.
    """
    results = [number for number, each in enumerate(messages) if read_field(each, "role") == "tool"]
    position = results[-1] + 1 if results else len(messages)
    return [*messages[:position], build_user_message(text), *messages[position:]]


def build_user_message(text: str) -> dict[str, str]:
    """Return a message with the role `user` and the given text."""
    return {"role": "user", "content": text}


def read_text(message: Any) -> str:
    """Return the text of a message; if its content is a list of parts, join the texts of the parts."""
    content = read_field(message, "content")
    if isinstance(content, str):
        return content
    return "\n".join(text for part in content or () if isinstance(text := read_field(part, "text"), str))


def count_tokens(messages: Sequence[Message], count: Count) -> int:
    """Return the number of tokens of the messages in JSON."""
    return count(json.dumps(messages, ensure_ascii=False, default=str))
