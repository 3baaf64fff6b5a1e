"""Chat with a long-term memory: a plain loop of the `openai` SDK with recall.

Run this program with `python examples/chat_with_memory.py BASE_URL MODEL`, for example with a local
llama-server:

    python examples/chat_with_memory.py http://127.0.0.1:8080/v1 qwen3-4b

The program reads your messages from standard input, one line per message. It uses the memory of the current
directory.
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

PROMPT = "You are a helpful assistant. Pass facts that the user wants stored to remember_this."
CONTEXT_TOKENS = 32_000
MAX_CALLS = 14
TRANSCRIPT = Path("chat.json")
REMEMBER = {
    "name": "remember_this",
    "description": "Store one fact beyond this conversation.",
    "parameters": {"type": "object", "properties": {"fact": {"type": "string"}}, "required": ["fact"]},
}


def main() -> None:
    """Chat until the input ends."""
    base_url, model = sys.argv[1:]
    client = OpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))

    def query_model(messages: Sequence[Any], tools: Sequence[dict[str, Any]]) -> Any:
        options: dict[str, Any] = {"tools": [{"type": "function", "function": each} for each in tools]}
        reply = client.chat.completions.create(
            model=model, messages=list(messages), **(options if tools else {})
        )
        return reply.choices[0].message

    def summarise(messages: Sequence[Any], _: Any) -> str:
        return str(query_model(messages, ()).content)

    with (
        muniment.open() as memory,
        memory.conversation(compacting=muniment.CompactionOptions(CONTEXT_TOKENS, summarise)) as conversation,
    ):
        messages: list[Any] = []
        for line in sys.stdin:
            conversation.on_user_turn(line)  # Starts the recall in the background.
            messages.append({"role": "user", "content": line})
            TRANSCRIPT.write_text(json.dumps(messages))
            messages = run_turn(memory, conversation, messages, query_model)
            print(messages[-1].get("content"), flush=True)


def run_turn(
    memory: muniment.Memory, conversation: muniment.Conversation, messages: list[Any], query_model: Any
) -> list[Any]:
    """Return the history with the model's response to its last message added."""
    messages = conversation.before_turn(messages)  # Entries found until now are inserted before the message.
    for _ in range(MAX_CALLS):
        system = {"role": "system", "content": PROMPT + conversation.system_part}
        reply = query_model([system, *messages], [REMEMBER])
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = remember_fact(memory, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        messages = conversation.after_tools(messages)  # Entries found later are inserted after the results.
    return messages


def remember_fact(memory: muniment.Memory, arguments: str) -> str:
    """Remember a fact from the model, with the trust of an agent."""
    try:
        fact = json.loads(arguments)["fact"]
    except (ValueError, KeyError, TypeError):
        return "error: remember_this takes one text, fact"
    result = memory.try_remember(RememberRequest(str(fact), trust=muniment.Trust.AGENT))
    return result.summary if result.error is None else f"error: {result.error.code}"


if __name__ == "__main__":
    main()
