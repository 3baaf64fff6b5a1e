"""What the failures of a case come to.

1. The outcome is the first of `Outcome`, in the order there, that any failure leads to; `held` if none does.
2. `MEANS` says where each kind of failure leads.
3. What was to succeed and did not is `broken` only where the case asks for success and accepts nothing else.
4. Of a tool that never promised our wording, an index, separate scopes or logical paths, nobody is blamed
   for other wording, a missing index, a change in another scope (if it was given both), or host paths in
   its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muniment.testing.corpus import Case, Failure, Kind


class Outcome(StrEnum):
    """What became of a case, the worst first."""

    ESCAPED = "escaped"
    """Something outside the roots was changed, created or replaced, or in a scope that was not named."""
    LEAKED = "leaked"
    """The canary or a host path came out, or a forbidden file was read."""
    HUNG = "hung"
    """It did not end in time, and was ended."""
    CRASHED = "crashed"
    """The tool died, or answered what is none."""
    BROKEN = "broken"
    """An ordinary call does not work."""
    DIFFERS = "differs"
    """Stricter or laxer than the corpus asks, but nothing left the roots."""
    SKIPPED = "skipped"
    """The tool cannot express it, or the attacker of a race was not at work: nothing is known."""
    HELD = "held"
    """As the corpus asks."""


BAD: Final = frozenset({Outcome.ESCAPED, Outcome.LEAKED, Outcome.HUNG, Outcome.CRASHED})
"""What no tool may come to that is put to the test."""

MEANS: Final[Mapping[Kind, Outcome]] = {
    Kind.LEFT: Outcome.ESCAPED,
    Kind.CROSSED: Outcome.ESCAPED,
    Kind.READ: Outcome.LEAKED,
    Kind.CANARY: Outcome.LEAKED,
    Kind.PATH: Outcome.LEAKED,
    Kind.HUNG: Outcome.HUNG,
    Kind.DIED: Outcome.CRASHED,
    Kind.REFUSED: Outcome.BROKEN,
    Kind.EFFECT: Outcome.BROKEN,
    Kind.ALLOWED: Outcome.DIFFERS,
    Kind.DETACHED: Outcome.DIFFERS,
    Kind.STRAYED: Outcome.DIFFERS,
    Kind.WORDING: Outcome.DIFFERS,
    Kind.MANNER: Outcome.DIFFERS,
    Kind.INDEX: Outcome.DIFFERS,
    Kind.LOOKED: Outcome.DIFFERS,
    Kind.NO_RACE: Outcome.SKIPPED,
    Kind.INEXPRESSIBLE: Outcome.SKIPPED,
}


@dataclass(frozen=True, slots=True)
class Promises:
    """What a tool is held to beyond staying inside.

    Attributes:
        is_exact: every word of the corpus: its verdicts, its codes, and no look around when it starts.
        separates_scopes: that a call on one scope leaves the other alone.
        hides_paths: that no host path comes out.
        keeps_index: that there is an index of what is in each scope.
    """

    is_exact: bool = False
    separates_scopes: bool = True
    hides_paths: bool = True
    keeps_index: bool = True


ORDINARY: Final = Promises()


def outcome_of(case: Case, failures: Iterable[Failure], promises: Promises = ORDINARY) -> Outcome:
    """What a case came to.

    Args:
        case: that was run.
        failures: what `run_case` or a driver told of it.
        promises: of the tool that it was run against.
    """
    found = {_meaning(case, failure.kind, promises) for failure in failures}
    return next(outcome for outcome in Outcome if outcome in {*found, Outcome.HELD})


def _meaning(case: Case, kind: Kind, promises: Promises) -> Outcome:
    if kind in {Kind.WORDING, Kind.LOOKED} and not promises.is_exact:
        return Outcome.HELD
    if kind is Kind.PATH and not promises.hides_paths:
        return Outcome.HELD
    if kind is Kind.INDEX and not promises.keeps_index:
        return Outcome.HELD
    if kind is Kind.CROSSED and not promises.separates_scopes:
        return Outcome.DIFFERS
    means = MEANS[kind]
    has_to_succeed = {case["expect"], *case.get("accept", ())} == {"allow"}
    return Outcome.DIFFERS if means is Outcome.BROKEN and not has_to_succeed else means
