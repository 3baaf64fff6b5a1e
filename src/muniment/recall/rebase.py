"""Applies proposals to what is there now, as far as nothing that they rest on has changed. Pure.

*Ancestral replacement* (optimistic concurrency with proof of claim): a proposal names what it read as it was
then. Where all of that still stands unmodified, the proposal is fast-forwarded; where anything of it has
changed, gone or come, it is rejected whole. Newer is never overwritten by older.

Apart from a conversation, whose compaction uses it for its summaries: it knows of nodes in an order alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from muniment.kernel.names import Digest


@dataclass(frozen=True, slots=True)
class Node:
    """Something that has an identity and a state.

    Attributes:
        digest: of its content; None, in a claim only: there must be no such node.
    """

    id: str
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class ProposalPart:
    """A proposal, of which all is applied or nothing.

    Attributes:
        claims: what it rests on, as it was; what it replaces too.
        replaces: ids among the claims that go.
        adds: nodes that come, where the first replaced one stood; at the end where it replaces nothing.
        contiguous: whether the replaced nodes must still stand side by side, in the order of `replaces`.
    """

    claims: tuple[Node, ...]
    replaces: tuple[str, ...] = ()
    adds: tuple[Node, ...] = ()
    contiguous: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """A part that was not applied, and the ids of the nodes that were not as it needs them."""

    part: ProposalPart
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebased:
    """What came of it.

    Attributes:
        nodes: afterwards, in order.
        applied: the numbers of the parts that were applied, from 0.
        rejected: the others.
    """

    nodes: tuple[Node, ...]
    applied: tuple[int, ...]
    rejected: tuple[Rejected, ...]


def rebase(live: Sequence[Node], parts: Sequence[ProposalPart]) -> Rebased:
    """Apply `parts` in order to `live`; each sees what those before it left.

    Raises:
        ValueError: two live nodes have one id, or a part replaces what it does not claim: then nothing
            proves that it knew what it replaces.

    Cost: linear in the nodes and in what all parts claim, replace and add; for each part that replaces more
        than one node a walk over the nodes besides.
    """
    standing = _Standing(live)
    applied: list[int] = []
    rejected: list[Rejected] = []
    for number, part in enumerate(parts):
        if not set(part.replaces) <= {claim.id for claim in part.claims if claim.digest is not None}:
            raise ValueError("a part replaces what it does not claim")
        broken = standing.broken(part)
        if broken:
            rejected.append(Rejected(part, broken))
        else:
            standing.apply(part)
            applied.append(number)
    return Rebased(standing.nodes(), tuple(applied), tuple(rejected))


class _Standing:
    """Nodes in their order, as a ring of ids that begins and ends at None."""

    def __init__(self, live: Sequence[Node]) -> None:
        self._digests = {node.id: node.digest for node in live}
        if len(self._digests) != len(live):
            raise ValueError("two nodes have one id")
        ring = [None, *self._digests, None]
        self._next: dict[str | None, str | None] = dict(pairwise(ring))
        self._before: dict[str | None, str | None] = {after: before for before, after in pairwise(ring)}

    def nodes(self) -> tuple[Node, ...]:
        found: list[Node] = []
        at = self._next[None]
        while at is not None:
            found.append(Node(at, self._digests[at]))
            at = self._next[at]
        return tuple(found)

    def broken(self, part: ProposalPart) -> tuple[str, ...]:
        broken = [claim.id for claim in part.claims if self._digests.get(claim.id) != claim.digest]
        broken += [
            node.id
            for node in part.adds
            if node.id in self._digests and node.id not in part.replaces and node.id not in broken
        ]
        if not broken and part.contiguous:
            is_in_order = all(self._next[first] == second for first, second in pairwise(part.replaces))
            broken += () if is_in_order else part.replaces
        return tuple(broken)

    def apply(self, part: ProposalPart) -> None:
        gone = set(part.replaces)
        behind = self._first(gone) if gone else None
        while behind in gone:
            behind = self._next[behind]
        for each in gone:
            self._remove(each)
        for node in part.adds:
            self._digests[node.id] = node.digest
            self._link(self._before[behind], node.id)
            self._link(node.id, behind)

    def _first(self, gone: Collection[str]) -> str:
        """The one of `gone` that stands first."""
        if len(gone) == 1:
            return next(iter(gone))
        return next(node.id for node in self.nodes() if node.id in gone)

    def _remove(self, each: str) -> None:
        del self._digests[each]
        self._link(self._before.pop(each), self._next.pop(each))

    def _link(self, before: str | None, after: str | None) -> None:
        self._next[before], self._before[after] = after, before
