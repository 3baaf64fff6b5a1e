"""Give the memory to the messages of a LangGraph thread.

Run this program with `python examples/langgraph_memory_node.py`; it needs `pip install
'muniment[langgraph]'`. This program calls the node itself. In a real graph, the node is added with
`builder.add_node("memory", node)`, and an edge leads from it to the node that calls the model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain_core.messages import BaseMessage, HumanMessage

import muniment
from muniment.integrations.langgraph import create_memory_node

FACTS = ("Always answer in British English", "On 2026-03-01 the staging database moved to Postgres 16")


def main() -> None:
    """Run the node at the start of a thread and before its second turn, and print the messages."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        muniment.open(scratch, home=Path(scratch, "home")) as memory,
    ):
        for fact in FACTS:
            memory.remember(fact, scope="user")
        node = create_memory_node(memory)
        messages: list[BaseMessage] = []
        for number, text in enumerate(("Good morning", "Which Postgres does staging run?")):
            messages.append(HumanMessage(text, id=f"turn-{number}"))
            update = node({"messages": messages})["messages"]
            messages = (
                update[1:] if update else messages
            )  # The first one removes all, as `add_messages` does.
        for message in messages:
            print(f"--- {message.id}\n{message.content}")


if __name__ == "__main__":
    main()
