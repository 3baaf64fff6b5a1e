"""Use Muniment as a store of LangGraph.

Run this program with `python examples/langgraph_store.py`; it needs `pip install 'muniment[langgraph]'`. The
nodes of the graph are plain functions, which this program calls one after the other. In a real graph,
`builder.compile(store=store)` gives them the same store.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langgraph.store.base import BaseStore

import muniment
from muniment.integrations.langgraph import MunimentStore

NAMESPACE = ("memories", "ann")


def learn(store: BaseStore) -> None:
    """Store facts in a node."""
    store.put(NAMESPACE, "drinks", {"text": "Ann drinks green tea.", "confidence": 0.9})
    store.put(NAMESPACE, "city", {"text": "Ann lives in Lisbon."})


def answer(store: BaseStore) -> None:
    """Search for a fact in a node."""
    for item in store.search(NAMESPACE, query="what does Ann drink?", limit=1):
        print(f"{item.namespace} {item.key}: {item.value}")


def main() -> None:
    """Run two nodes, print the entry in the memory, and undo a put of the store."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        muniment.open(scratch, home=Path(scratch, "home")) as memory,
    ):
        store = MunimentStore(memory, scope="user")
        learn(store)
        answer(store)
        (path,) = (step.path for step in memory.history() if "drinks" in step.path)
        print(path)
        memory.undo(memory.history()[0].task)
        print("left:", [item.key for item in store.search(NAMESPACE)])


if __name__ == "__main__":
    main()
