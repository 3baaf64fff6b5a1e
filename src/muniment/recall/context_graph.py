"""Store the messages of a conversation as ordered nodes that several threads may change without lost updates.

- G1. While `edit` runs a function, it sees all current nodes, and no other thread changes them.
- G2. Slow work, such as a summary, uses a *snapshot* of some nodes and later proposes new nodes for them. The
  new nodes replace the old ones only if all nodes of the snapshot are unchanged and still adjacent. If one of
  them was changed or removed, or another node was inserted between them, nothing changes. Therefore newer
  content is never overwritten. This is called *ancestral replacement*: optimistic concurrency with proof of
  the known state.
- G3. A node keeps its id while its content changes; its digest identifies the content. Messages are not
  copied: a message that is changed in place after a snapshot is a change like any other.
- G4. Ids are unique, and nodes that were not changed or replaced keep their order.

Attacked in tests/models/test_context_graph.py.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from muniment.kernel.change import digest
from muniment.kernel.names import Digest
from muniment.recall.block import Count, estimate_tokens
from muniment.recall.messages import Message, read_field, read_text

MAX_SHORTENED_CHARS: Final = 400
"""Characters that remain of an old tool result when it is shortened: enough to show its subject."""


@dataclass(frozen=True, slots=True)
class ContextNode:
    """Messages that must stay together: a message, or a message with tool calls and their results.

    Attributes:
        id: the id of the node, unique in its graph.
        messages: the messages as JSON values.
    """

    id: str
    messages: tuple[Message, ...]

    @property
    def digest(self) -> Digest:
        """Return the digest of the current messages of the node.

        Cost: linear in the length of the messages.
        """
        text = json.dumps(self.messages, sort_keys=True, ensure_ascii=False, default=str)
        return digest(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Adjacent nodes with their content at one time, from `ContextGraph.snapshot`.

    Attributes:
        nodes: the nodes, in order.
        digests: the digest of each node when the snapshot was created.
    """

    nodes: tuple[ContextNode, ...]
    digests: tuple[Digest, ...]


Edit = Callable[[tuple[ContextNode, ...]], Iterable[ContextNode]]
"""Function that gets the current nodes and returns the new nodes.

It must be quick, because all threads wait for it. It may read the graph.
"""


class ContextGraph:
    """The ordered nodes of a conversation. Threads may share one graph.

    Args:
        nodes: the initial nodes.

    Raises:
        ValueError: two initial nodes have the same id.
    """

    def __init__(self, nodes: Iterable[ContextNode] = ()) -> None:
        # Reentrant: code that an edit calls may read the graph.
        self._lock = threading.RLock()
        self._is_changing = False
        self._numbers = itertools.count(1)
        self._nodes = _index_by_id(nodes)

    def nodes(self) -> tuple[ContextNode, ...]:
        """Return the current nodes, in order."""
        with self._lock:
            return tuple(self._nodes.values())

    def messages(self) -> list[Message]:
        """Return the messages of all nodes, in order."""
        return [message for node in self.nodes() for message in node.messages]

    def append(self, messages: Sequence[Message]) -> ContextNode:
        """Add a node with `messages` at the end, and return it.

        Raises:
            RuntimeError: the function of an `edit` called this method.
        """
        with self._lock_for_change():
            node = self._create_node(messages)
            self._nodes[node.id] = node
            return node

    def edit(self, edit: Edit) -> None:
        """Replace all nodes by the nodes that `edit` returns; no other thread changes the graph meanwhile.

        Raises:
            ValueError: two of the new nodes have the same id; nothing is changed.
            RuntimeError: the function of another `edit` called this method.
            Exception: an error of `edit`; nothing is changed.
        """
        with self._lock_for_change():
            self._nodes = _index_by_id(edit(tuple(self._nodes.values())))

    def snapshot(self, nodes: Sequence[ContextNode] | None = None) -> Snapshot:
        """Return a snapshot of nodes, for slow work that later replaces them with `propose`.

        Args:
            nodes: adjacent nodes from `nodes()`, in order; None: all nodes.

        Cost: linear in the length of their messages.
        """
        found = self.nodes() if nodes is None else tuple(nodes)
        return Snapshot(found, tuple(node.digest for node in found))

    def propose(self, snapshot: Snapshot, contents: Sequence[Sequence[Message]]) -> tuple[str, ...]:
        """Replace the nodes of a snapshot, if they have not changed since; otherwise change nothing.

        If the snapshot is empty, append the new nodes.

        Args:
            snapshot: the nodes to replace.
            contents: the messages of each new node.

        Returns:
            The ids of the nodes that differ from the snapshot; empty if the nodes were replaced.

        Raises:
            RuntimeError: the function of an `edit` called this method.

        Cost: linear in the number of nodes, and in the length of the replaced and the new messages.
        """
        claimed = tuple(node.id for node in snapshot.nodes)
        with self._lock_for_change():
            ids, nodes = tuple(self._nodes), tuple(self._nodes.values())
            claims = zip(claimed, snapshot.digests, strict=True)
            broken = [id_ for id_, was in claims if id_ not in self._nodes or self._nodes[id_].digest != was]
            if broken:
                return tuple(broken)
            position = ids.index(claimed[0]) if claimed else len(ids)
            end = position + len(claimed)
            if ids[position:end] != claimed:  # Another one was inserted, or the order changed.
                return claimed
            self._nodes = _index_by_id([*nodes[:position], *map(self._create_node, contents), *nodes[end:]])
            return ()

    @contextmanager
    def _lock_for_change(self) -> Iterator[None]:
        with self._lock:
            if self._is_changing:
                raise RuntimeError("an edit of a graph must not change it by other means")
            self._is_changing = True
            try:
                yield
            finally:
                self._is_changing = False

    def _create_node(self, messages: Sequence[Message]) -> ContextNode:
        names = (f"n{number}" for number in self._numbers)
        return ContextNode(next(name for name in names if name not in self._nodes), tuple(messages))


def truncate_results(node: ContextNode, limit: int) -> ContextNode:
    """Return a node whose tool results have at most `limit` characters, for use in an `edit`.

    A result that was shortened to this limit before stays unchanged.
    """
    return ContextNode(node.id, tuple(_shorten_result(message, limit) for message in node.messages))


def limit_results(
    nodes: Sequence[ContextNode], budget: int, count: Count = estimate_tokens
) -> list[ContextNode]:
    """Return the nodes, with old tool results shortened so that all results take about `budget` tokens.

    Results are counted from the newest node on. When the budget is used up, each older result is shortened to
    `MAX_SHORTENED_CHARS` characters. The results of the newest node with results always stay complete.

    Cost: a count of every tool result.
    """
    found: list[ContextNode] = []
    left, is_newest = budget, True
    for node in reversed(nodes):
        results = [read_text(message) for message in node.messages if read_field(message, "role") == "tool"]
        left -= sum(map(count, results))
        found.append(truncate_results(node, MAX_SHORTENED_CHARS) if left < 0 and not is_newest else node)
        is_newest &= not results
    return found[::-1]


def _shorten_result(message: Message, limit: int) -> Message:
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, str) or len(content) <= limit:
        return message
    note = f"… (shortened from {len(content)} characters)"
    return {**message, "content": (content[: max(0, limit - len(note))] + note)[:limit]}


def _index_by_id(nodes: Iterable[ContextNode]) -> dict[str, ContextNode]:
    listed = tuple(nodes)
    found = {node.id: node for node in listed}
    if len(found) != len(listed):
        raise ValueError("two nodes have the same id")
    return found
