"""A chat with a long-term memory: the plain loop of the `openai` SDK, and what recall adds to it.

Run it with `python examples/chat_with_memory.py BASE_URL MODEL`, for example with a llama-server at hand:

    python examples/chat_with_memory.py http://127.0.0.1:8080/v1 qwen3-4b

What you write comes from standard input, a line a turn. The memory is that of the current directory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import OpenAI

import muniment
from muniment.types import RememberRequest

PROMPT = "You are a helpful assistant. Hand facts that the user wants kept to remember_this."
CONTEXT_TOKENS = 32_000
MAX_CALLS = 14
TRANSCRIPT = Path("chat.json")
REMEMBER = {
    "name": "remember_this",
    "description": "Keep one fact beyond this conversation.",
    "parameters": {"type": "object", "properties": {"fact": {"type": "string"}}, "required": ["fact"]},
}


def main() -> None:
    """Chat until the input ends."""
    base_url, model = sys.argv[1:]
    client = OpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))

    def ask(messages: Sequence[Any], tools: Sequence[dict[str, Any]]) -> Any:
        offered: dict[str, Any] = {"tools": [{"type": "function", "function": each} for each in tools]}
        reply = client.chat.completions.create(
            model=model, messages=list(messages), **(offered if tools else {})
        )
        return reply.choices[0].message

    def summarise(messages: Sequence[Any], _: Any) -> str:
        return str(ask(messages, ()).content)

    with (
        muniment.open() as memory,
        memory.conversation(compacting=muniment.Compacting(CONTEXT_TOKENS, summarise)) as conversation,
    ):
        messages: list[Any] = []
        for line in sys.stdin:
            conversation.on_user_turn(line)  # The recall begins; nobody waits for it.
            messages.append({"role": "user", "content": line})
            TRANSCRIPT.write_text(json.dumps(messages))
            messages = turn(memory, conversation, messages, ask)
            print(messages[-1].get("content"), flush=True)


def turn(
    memory: muniment.Memory, conversation: muniment.Conversation, messages: list[Any], ask: Any
) -> list[Any]:
    """The history after the model's answer to its last message."""
    messages = conversation.before_turn(messages)  # What is there by now comes before the message.
    for _ in range(MAX_CALLS):
        system = {"role": "system", "content": PROMPT + conversation.system_part}
        reply = ask([system, *messages], [REMEMBER])
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = remembered(memory, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        messages = conversation.after_tools(messages)  # What was late comes behind the results.
    return messages


def remembered(memory: muniment.Memory, arguments: str) -> str:
    """Remember what the model asks for, as something that an agent says."""
    try:
        fact = json.loads(arguments)["fact"]
    except (ValueError, KeyError, TypeError):
        return "error: remember_this takes one text, fact"
    result = memory.try_remember(RememberRequest(str(fact), trust=muniment.Trust.AGENT))
    return result.summary if result.error is None else f"error: {result.error.code}"


if __name__ == "__main__":
    main()
