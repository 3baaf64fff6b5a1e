"""Sentences that a policy must make true, proved or refuted by a path.

A file of invariants is TOML, `schema = "muniment-invariants/1"`, with tables of four kinds:

    [[never]]    id, verbs, paths   none of the verbs is granted on what the patterns cover, as deny rules do
    [[only]]     id, verbs, paths   none is granted on anything but what they match, as allow rules do
    [[implies]]  id, verbs, then    where one of `verbs` is granted, each of `then` is as well
    [[apart]]    id, one, other     not both are granted: each is { verbs, paths }, matched as by allow rules

`verbs` are those of policies, `removal` (what code may take away) or `*` for all. Each may have a `why`.

    E150  the file cannot be understood
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from muniment.errors import PolicyInvalid, printable
from muniment.names import Scope
from muniment.policy.automaton import All, Language, Not
from muniment.policy.decide import ACTS, Act, Judge
from muniment.policy.grammar import CanonicalPath, fold
from muniment.policy.model import Frozen, Policy
from muniment.policy.pattern import AllowPatterns, DenyPatterns, check_pattern
from muniment.policy.prover import Prover
from muniment.policy.search import Found, Outcome, Undecided

SCHEMA: Final = "muniment-invariants/1"

MAX_INVARIANTS: Final = 256
"""Of one kind, and patterns of one."""


def _act(text: str) -> str:
    if text != "*" and text not in ACTS:
        raise ValueError(f"{text!r} is no verb; there are {', '.join(ACTS)} and *")
    return text


_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\z")]
_Acts = Annotated[tuple[Annotated[str, AfterValidator(_act)], ...], Field(strict=False, min_length=1)]
_Paths = Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=MAX_INVARIANTS)]


class _Side(Frozen):
    """What is granted: `verbs` on `paths`."""

    verbs: _Acts
    paths: _Paths


class _Invariant(Frozen):
    id: _Id
    why: str = ""


class Never(_Invariant):
    """`[[never]]`."""

    verbs: _Acts
    paths: _Paths


class Only(Never):
    """`[[only]]`."""


class Implies(_Invariant):
    """`[[implies]]`."""

    verbs: _Acts
    then: _Acts


class Apart(_Invariant):
    """`[[apart]]`."""

    one: _Side
    other: _Side


class Invariants(Frozen):
    """One file of invariants."""

    schema_: Literal["muniment-invariants/1"] = Field(alias="schema")
    never: Annotated[tuple[Never, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()
    only: Annotated[tuple[Only, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()
    implies: Annotated[tuple[Implies, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()
    apart: Annotated[tuple[Apart, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()


@dataclass(frozen=True, slots=True)
class Witness:
    """A path on which the policy grants an act."""

    act: Act
    path: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one invariant.

    Attributes:
        id: of the invariant.
        kind: the name of its table.
        why: as the file says.
        status: `proved`, `broken` or `undecided`.
        witnesses: where it is broken: one path; for `apart` two, one granted by each side.
        reason: why it is undecided; else empty.
    """

    id: str
    kind: str
    why: str
    status: Literal["proved", "broken", "undecided"]
    witnesses: tuple[Witness, ...] = ()
    reason: str = ""


def read_invariants(data: dict[str, Any], where: str) -> Invariants:
    """A file of invariants as a value.

    Args:
        data: what `tomllib` returned.
        where: the name of the file, for messages.

    Raises:
        PolicyInvalid: it is none, or a pattern is outside the dialect; E150, E20x.
    """
    try:
        file = Invariants.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(printable(str(part)) for part in first["loc"])
        raise PolicyInvalid("E150", where, f"{place}: {first['msg']}") from None
    for each in file.never:
        _check(each.paths, f"{where} never[{each.id}]", deny=True)
    for paths, place in (
        *((each.paths, f"only[{each.id}]") for each in file.only),
        *((side.paths, f"apart[{each.id}]") for each in file.apart for side in (each.one, each.other)),
    ):
        _check(paths, f"{where} {place}", deny=False)
    return file


def prove(invariants: Invariants, policy: Policy) -> tuple[Finding, ...]:
    """Each invariant in the order of the file, kind by kind: proved, or refuted by the shortest path."""
    return tuple(_Proving(invariants, policy).findings())


@dataclass(frozen=True, slots=True)
class _Set:
    """A set of paths: as an automaton, and as a decision that confirms its paths."""

    language: Language
    confirms: Callable[[CanonicalPath], bool]


class _Proving:
    """All invariants against one policy."""

    def __init__(self, invariants: Invariants, policy: Policy) -> None:
        self._invariants, self._policy, self._judge = invariants, policy, Judge(policy)
        sides = [side for each in invariants.apart for side in (each.one, each.other)]
        matched = [*(each.paths for each in invariants.only), *(side.paths for side in sides)]
        self._prover = Prover(
            [policy],
            exact=[path for paths in matched for path in paths],
            trees=[path for each in invariants.never for path in each.paths],
        )

    def findings(self) -> Iterator[Finding]:
        """One for each invariant."""
        for never in self._invariants.never:
            covered = self._covered(never.paths)
            yield self._finding("never", never, [(act, covered) for act in _acts(never.verbs)])
        for only in self._invariants.only:
            outside = self._outside(only.paths)
            yield self._finding("only", only, [(act, outside) for act in _acts(only.verbs)])
        for implies in self._invariants.implies:
            lacking = [self._not_granted(act) for act in _acts(implies.then)]
            cases = [(act, lack) for act in _acts(implies.verbs) for lack in lacking]
            yield self._finding("implies", implies, cases)
        for apart in self._invariants.apart:
            yield self._apart(apart)

    def _covered(self, paths: tuple[str, ...]) -> _Set:
        patterns = DenyPatterns(paths)
        return _Set(self._prover.tree(paths), lambda path: patterns.match(path.text, fold(path.text)))

    def _matched(self, paths: tuple[str, ...]) -> _Set:
        return _Set(self._prover.exact(paths), AllowPatterns(paths).match)

    def _outside(self, paths: tuple[str, ...]) -> _Set:
        matched = self._matched(paths)
        return _Set(Not(matched.language), lambda path: not matched.confirms(path))

    def _not_granted(self, act: Act) -> _Set:
        granted = self._prover.grant(self._policy, act)
        return _Set(Not(granted), lambda path: not self._judge.grants(act, path))

    def _finding(self, kind: str, invariant: _Invariant, cases: list[tuple[Act, _Set]]) -> Finding:
        """Broken if an act is granted somewhere in its set, shown by the shortest of those paths."""
        outcomes = [(act, self._granted(act, where)) for act, where in cases]
        found = [Witness(act, outcome.path.text) for act, outcome in outcomes if isinstance(outcome, Found)]
        unknown = [f"{act}: {outcome.why}" for act, outcome in outcomes if isinstance(outcome, Undecided)]
        if found:
            first = min(found, key=lambda each: (len(each.path), each.path))
            return Finding(invariant.id, kind, invariant.why, "broken", (first,))
        if unknown:
            return Finding(invariant.id, kind, invariant.why, "undecided", reason="; ".join(unknown))
        return Finding(invariant.id, kind, invariant.why, "proved")

    def _apart(self, apart: Apart) -> Finding:
        """Proved if one of the sides is never granted; broken if both are, somewhere."""
        sides = []
        for side in (apart.one, apart.other):
            matched = self._matched(side.paths)
            sides.append(self._finding("apart", apart, [(act, matched) for act in _acts(side.verbs)]))
        for status in ("proved", "undecided"):
            for found in sides:
                if found.status == status:
                    return found
        witnesses = tuple(witness for found in sides for witness in found.witnesses)
        return Finding(apart.id, "apart", apart.why, "broken", witnesses)

    def _granted(self, act: Act, where: _Set) -> Outcome:
        return self._prover.find(
            All([self._prover.grant(self._policy, act), where.language]),
            self._policy.scopes,
            lambda path: self._judge.grants(act, path) and where.confirms(path),
        )


def _acts(verbs: tuple[str, ...]) -> list[Act]:
    return [act for act in ACTS if "*" in verbs or act in verbs]


def _check(paths: tuple[str, ...], where: str, *, deny: bool) -> None:
    """Hold patterns to the dialect; their scopes may be ones that only other policies declare."""
    for path in paths:
        scope = Scope(path.removeprefix("/").partition("/")[0])
        check_pattern(path, deny=deny, scopes=(scope,), where=where)
