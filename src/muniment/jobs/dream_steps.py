"""What a dream would do about its findings, step by step, within what it may change.

S1 A step is a part of the commit: it claims everything that it rests on, and no two change the same entry.
S2 No more entries of a scope are written or removed than its share, which is one at least, nor by a model
   than a run may write. What is over takes none of it.
S3 What a model proposes is taken only if its text, or the entry that stays, is made of whole units of the
   entries that it stands for, with each that turns a meaning or holds a number (`content.provenance`, P4);
   entries that agents wrote may be told in other words that they have in common. It passes the gates; and
   only for entries that may all be removed. Nothing from outside is shown to it, and nothing that is too long
   to be answered with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from muniment.agent.decision import title_of
from muniment.agent.runner import MAX_TEXT_CHARS, Merge
from muniment.content.admission import addressed_to_agent, check_entry
from muniment.content.entry import MAX_DESCRIPTION_CHARS, complete, shortened
from muniment.content.gates import encode, one_line
from muniment.content.provenance import is_made_of
from muniment.content.words import STOP_WORDS, features
from muniment.errors import ToolError
from muniment.jobs.dream_findings import Findings, Same
from muniment.jobs.holding import Holding, reason_to_keep
from muniment.names import Trust
from muniment.policy.decide import Judge, Policy
from muniment.tools.overlay import ChangeSet, Claim, Proposed

GROUP: Final = 8
"""Entries that one question to a model is about."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a dream.

    Attributes:
        change_set: what it does.
        is_over: whether it removes an entry because its time is over, not because others say the same.
    """

    change_set: ChangeSet
    is_over: bool = False

    @property
    def size(self) -> int:
        """How many entries it writes or removes."""
        return len(self.change_set.unsafe_paths)


class Room:
    """How many entries of a scope a dream may still change.

    Attributes:
        left: how many more would have been changed, had there been room.
    """

    def __init__(self, entries: int, share: float) -> None:
        # As the decimal that the policy says: 0.29 of 100 are 29, not 28.
        self._free = max(1, math.floor(Decimal(str(share)) * entries))
        self.left = 0

    def take(self, wanted: int) -> int:
        """As much of `wanted` as there is; what is missing counts as left."""
        taken = min(wanted, self._free)
        self._free -= taken
        self.left += wanted - taken
        return taken

    def take_whole(self, wanted: int) -> bool:
        """All of `wanted` or nothing."""
        if wanted > self._free:
            self.left += wanted
            return False
        self._free -= wanted
        return True


def steps_by_code(findings: Findings, room: Room) -> Iterator[Step]:
    """What goes without asking anybody: first what is over, then what says the same as another entry."""
    for holding in findings.expired:
        yield Step(ChangeSet(removals=(_claim(holding),)), is_over=True)
    for same in findings.same:
        if going := same.going[: room.take(len(same.going))]:
            yield _removal(Same(same.stays, going))


def questions(findings: Findings, policy: Policy, request: Trust) -> Iterator[tuple[Holding, ...]]:
    """The groups of entries that a model may be asked about (S3)."""
    judge = Judge(policy)
    for group in findings.alike:
        asked = [
            each
            for each in group
            if each.trust is not Trust.EXTERNAL
            and len(each.entry.body) <= MAX_TEXT_CHARS
            and reason_to_keep(judge, each.path, each.trust, request) is None
        ]
        for start in range(0, len(asked), GROUP):
            if len(part := asked[start : start + GROUP]) > 1:
                yield tuple(part)


def step_of_merge(merge: Merge, group: Sequence[Holding], policy: Policy) -> Step | None:
    """What a model's merge comes to; None if it is not taken (S3).

    Args:
        merge: by numbers of `group`.
        group: what it was asked about.
        policy: says which gates a text passes.
    """
    stays, going = group[merge.keep], tuple(group[number] for number in merge.drop)
    sources = [each.entry.body for each in (stays, *going)]
    if stays.trust.satisfies(Trust.WORKSPACE) and not is_made_of(merge.text or stays.entry.body, sources):
        return None
    if not merge.text:
        if any(each.outlasts(stays) for each in going):
            return None
        return _removal(Same(stays, going))
    said, used = features(merge.text), [features(each) for each in sources]
    shared, any_of_them = frozenset.intersection(*used), frozenset.union(*used)
    if not shared - STOP_WORDS <= said <= any_of_them | STOP_WORDS:
        return None
    written = _written(merge.text, stays, policy)
    if written is None:
        return None
    return Step(ChangeSet((Proposed(stays.path.text, stays.digest, written),), (), tuple(map(_claim, going))))


def _removal(same: Same) -> Step:
    return Step(ChangeSet((), (_claim(same.stays),), tuple(map(_claim, same.going))))


def _written(text: str, stays: Holding, policy: Policy) -> bytes | None:
    """An entry that says `text` in place of another one; None if a gate refuses it."""
    description = shortened(one_line(text), MAX_DESCRIPTION_CHARS)
    kind = stays.entry.type or "reference"
    try:
        data = encode(complete(f"{text}\n", name=title_of(text), description=description, type=kind))
        check_entry(data, stays.path.rel, policy.content)
    except ToolError:
        return None
    if policy.content.instructions == "quarantine" and addressed_to_agent(text, stays.trust) is not None:
        return None
    return data


def _claim(holding: Holding) -> Claim:
    return Claim(holding.path.text, holding.digest)
