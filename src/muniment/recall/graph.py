"""The context of a conversation as nodes in their order, which several may change without losing anything.

- G1. What runs under the graph's lock (`edit`) sees all nodes as they are, and nobody else changes them.
- G2. What takes long works on a *snapshot* and proposes: it claims every node that it was given, as it was
  then. Where all of them still stand so, side by side, its nodes come in their place; where one was changed
  or went meanwhile, or another came between, nothing is changed (`store.rebase`). Newer is never overwritten.
- G3. A node keeps its id while its content changes, and its digest tells which content it has. Messages are
  not copied: one that is changed in place after a snapshot is a change like any other.
- G4. Nodes that nobody changed or replaced keep their order, and no two have one id.

Attacked in tests/recall/test_graph.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from muniment.names import Digest
from muniment.store.judge import Node, ProposalPart, rebase

Message = Mapping[str, Any]
"""A message as JSON has it."""

_UNCLAIMED: Final = Digest("")
"""Stands for the content of a node that nobody claims: to compute it would be for nothing."""


@dataclass(frozen=True, slots=True)
class ContextNode:
    """Messages that stay together: a message, or one with tool calls and the results of these.

    Attributes:
        id: unique in its graph.
        messages: JSON values.
    """

    id: str
    messages: tuple[Message, ...]

    @property
    def digest(self) -> Digest:
        """Of its messages, as they are now.

        Cost: linear in their length.
        """
        text = json.dumps(self.messages, sort_keys=True, ensure_ascii=False, default=str)
        return Digest(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Nodes that stood side by side when it was taken. Made by `ContextGraph.snapshot`.

    Attributes:
        nodes: in order.
        claims: their ids and digests at that time.
    """

    nodes: tuple[ContextNode, ...]
    claims: tuple[Node, ...]


Edit = Callable[[tuple[ContextNode, ...]], Iterable[ContextNode]]
"""Given the nodes, what they are to be; quick, since everybody waits for it. It may read the graph."""


class ContextGraph:
    """Nodes in their order. Threads may share one.

    Args:
        nodes: to begin with.

    Raises:
        ValueError: two of them have one id.
    """

    def __init__(self, nodes: Iterable[ContextNode] = ()) -> None:
        # Reentrant: what an edit calls may read the graph.
        self._lock = threading.RLock()
        self._is_changing = False
        self._numbers = itertools.count(1)
        self._nodes = _by_id(nodes)

    def nodes(self) -> tuple[ContextNode, ...]:
        """The nodes, in order."""
        with self._lock:
            return tuple(self._nodes.values())

    def messages(self) -> list[Message]:
        """The messages of all nodes, in order."""
        return [message for node in self.nodes() for message in node.messages]

    def append(self, messages: Sequence[Message]) -> ContextNode:
        """Add a node at the end.

        Raises:
            RuntimeError: called by an edit.
        """
        with self._changing():
            node = self._made(messages)
            self._nodes[node.id] = node
            return node

    def edit(self, edit: Edit) -> None:
        """Change the nodes at once (G1).

        Raises:
            ValueError: two of the new ones have one id; nothing is changed.
            RuntimeError: called by an edit; the outer one would undo it.
            Whatever `edit` does; then, too, nothing is changed.
        """
        with self._changing():
            self._nodes = _by_id(edit(tuple(self._nodes.values())))

    def snapshot(self, nodes: Sequence[ContextNode] | None = None) -> Snapshot:
        """Nodes to work on.

        Args:
            nodes: some of `nodes()`, side by side and in order; None: all of them.

        Cost: linear in the length of their messages.
        """
        found = self.nodes() if nodes is None else tuple(nodes)
        return Snapshot(found, tuple(Node(node.id, node.digest) for node in found))

    def propose(self, snapshot: Snapshot, contents: Sequence[Sequence[Message]]) -> tuple[str, ...]:
        """Put nodes with `contents` in the place of those of a snapshot (G2).

        A snapshot of nothing claims nothing, so that this is always done: at the end.

        Returns:
            The ids of nodes that were not as the snapshot has them; empty: it was done.

        Raises:
            RuntimeError: called by an edit.

        Cost: linear in the number of nodes, and in the length of the messages that are claimed or added.
        """
        claims = snapshot.claims
        with self._changing():
            adds = tuple(self._made(messages) for messages in contents)
            claimed = {claim.id for claim in claims}
            live = [
                Node(node.id, node.digest if node.id in claimed else _UNCLAIMED)
                for node in self._nodes.values()
            ]
            part = ProposalPart(
                claims,
                tuple(claim.id for claim in claims),
                tuple(Node(node.id, _UNCLAIMED) for node in adds),
                contiguous=True,
            )
            rebased = rebase(live, [part])
            if rebased.rejected:
                return rebased.rejected[0].broken
            known = self._nodes | {node.id: node for node in adds}
            self._nodes = {node.id: known[node.id] for node in rebased.nodes}
            return ()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self._is_changing:
                raise RuntimeError("an edit of a graph must not change it by other means")
            self._is_changing = True
            try:
                yield
            finally:
                self._is_changing = False

    def _made(self, messages: Sequence[Message]) -> ContextNode:
        names = (f"n{number}" for number in self._numbers)
        return ContextNode(next(name for name in names if name not in self._nodes), tuple(messages))


def truncated(node: ContextNode, limit: int) -> ContextNode:
    """A node whose tool results are at most `limit` characters long, as an `edit` may want it.

    One that was shortened before is not changed again.
    """
    return ContextNode(node.id, tuple(_shortened(message, limit) for message in node.messages))


def _shortened(message: Message, limit: int) -> Message:
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, str) or len(content) <= limit:
        return message
    note = f"… (shortened from {len(content)} characters)"
    return {**message, "content": (content[: max(0, limit - len(note))] + note)[:limit]}


def _by_id(nodes: Iterable[ContextNode]) -> dict[str, ContextNode]:
    listed = tuple(nodes)
    found = {node.id: node for node in listed}
    if len(found) != len(listed):
        raise ValueError("two nodes have one id")
    return found
