"""What policies grant, proved: questions answered by a path or by a proof, invariants, mutants, diffs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from muniment.errors import BadName, PolicyInvalid, printable
from muniment.kernel.decide import (
    MAX_BYTES,
    QUOTA_NUMBERS,
    AllowPatterns,
    DenyPatterns,
    Judge,
    Layer,
    Policy,
    Quota,
    Rule,
)
from muniment.kernel.names import Scope, Verb
from muniment.kernel.path import CanonicalPath, fold
from muniment.lab.explain import consult
from muniment.policy.automaton import (
    MAX_WORK,
    All,
    AskedOnce,
    FoundPath,
    Language,
    Not,
    Nothing,
    Patterns,
    SearchOutcome,
    Steps,
    Undecided,
    letters_for,
    shortest,
)
from muniment.policy.frozen import Frozen
from muniment.policy.grammar import check_creatable
from muniment.policy.load import ACTS, Act, Loaded, denying, failure, granting, grants
from muniment.policy.pattern import MAX_TREE_WILDCARDS, check_pattern
from muniment.policy.tables import SECTIONS, meet, quota_of

# -- prover ------------------------------------------------------------------------------------------
#
# Questions about what policies grant, answered by a path or by a proof.
#
# A `Prover` holds the automata of some policies over one alphabet, so that what two policies share is read
# once and stays in step: the languages of equal rules are one and the same.
#
#     `prover = Prover([old, new])`
#     `prover.find(new.scopes, prover.grant(new, act), ~prover.grant(old, act))`
#
# Attacked by tests/units/policy/test_diff.py: random paths against every proof, brute force over small worlds
# for every witness, pathspec for the automata.


@dataclass(frozen=True, slots=True)
class PathSet:
    """A set of paths, twice: `~each` is all that is not in it.

    Attributes:
        language: as an automaton, in which a path is sought.
        holds: as the kernel decides, which confirms that path.
    """

    language: Language
    holds: Callable[[CanonicalPath], bool]

    def __invert__(self) -> PathSet:
        return PathSet(Not(self.language), lambda path: not self.holds(path))


_ByPatterns = AskedOnce[frozenset[str], Language]


class Prover:
    """Automata of some policies.

    Args:
        policies: about which questions will be asked.
        exact: further patterns of questions, as in allow rules.
        trees: further patterns of questions, as in deny rules.
        work: steps that all questions together may take; what comes later is undecided.
    """

    def __init__(
        self,
        policies: Iterable[Policy],
        *,
        exact: Iterable[str] = (),
        trees: Iterable[str] = (),
        work: int = MAX_WORK,
    ) -> None:
        layers = [layer for policy in policies for layer in policy.layers]
        exact = {*exact, *(path for layer in layers for rule in layer.allow for path in rule.paths)}
        trees = {*trees, *(path for layer in layers for rule in layer.deny for path in rule.paths)}
        letters, budget = letters_for(sorted(exact), sorted(trees)), Steps(work)
        self._letters, self._budget = letters, budget
        self._exact = _ByPatterns(lambda paths: Patterns.exact(paths, letters, budget))
        self._tree = _ByPatterns(lambda paths: Patterns.tree(paths, letters, budget))
        self._all = AskedOnce[tuple[Language, ...], Language](All)
        self._not = AskedOnce[Language, Language](Not)
        self._judges = AskedOnce(Judge)

    def exact(self, paths: Iterable[str]) -> PathSet:
        """The files that one of the patterns matches, as in allow rules."""
        patterns = frozenset(paths)
        return PathSet(self._exact[patterns], AllowPatterns(sorted(patterns)).match)

    def tree(self, paths: Iterable[str]) -> PathSet:
        """The files that one of the patterns covers, as in deny rules."""
        patterns = frozenset(paths)
        matcher = DenyPatterns(sorted(patterns))
        return PathSet(self._tree[patterns], lambda path: matcher.match(path.text, fold(path.text)))

    def asked(self, layers: Iterable[Layer], act: Act) -> PathSet:
        """What every one of the layers has an allow rule for, whatever is denied."""
        parts = [self.exact(_paths(layer.allow, {granting(act)})) for layer in layers]
        language = self._all[tuple(part.language for part in parts)]
        return PathSet(language, lambda path: all(part.holds(path) for part in parts))

    def denied(self, layers: Iterable[Layer], act: Act) -> PathSet:
        """What a deny rule of one of the layers covers."""
        return self.tree(path for layer in layers for path in _paths(layer.deny, denying(act)))

    def grant(self, policy: Policy, act: Act) -> PathSet:
        """What the policy grants, whichever scopes it declares. Equal rules share one language."""
        asked, denied = self.asked(policy.layers, act), self.denied(policy.layers, act)
        language = self._all[asked.language, self._not[denied.language]]
        return PathSet(language, lambda path: grants(act, path, self._judges[policy]))

    def find(self, scopes: Collection[Scope], *sets: PathSet) -> SearchOutcome:
        """The shortest path in these scopes that is in all of these sets, or that there is none.

        Whatever path the automata lead to, each set is asked about it as the kernel decides.
        """
        return self._search(scopes, sets, partial(_are_in, sets))

    def is_empty(self, scopes: Collection[Scope], *sets: PathSet) -> bool:
        """Whether it is proved that there is none; no path is believed in, so none need be confirmed."""
        return isinstance(self._search(scopes, sets, lambda _path: True), Nothing)

    def _search(
        self, scopes: Collection[Scope], sets: Iterable[PathSet], confirms: Callable[[CanonicalPath], bool]
    ) -> SearchOutcome:
        language = All(each.language for each in sets)
        return shortest(language, self._letters, scopes, self._budget, confirms)


def _are_in(sets: Iterable[PathSet], path: CanonicalPath) -> bool:
    return all(each.holds(path) for each in sets)


def _paths(rules: Iterable[Rule], verbs: Collection[Verb]) -> list[str]:
    return [path for rule in rules if set(verbs) & set(rule.verbs) for path in rule.paths]


# -- invariants --------------------------------------------------------------------------------------
#
# Sentences that a policy must make true, proved or refuted by a path.
#
# A file of invariants is TOML, `schema = "muniment-invariants/1"`, with tables of four kinds:
#
#     [[never]]    id, verbs, paths  none of the verbs is granted on what the patterns cover, as deny rules do
#     [[only]]     id, verbs, paths  none is granted on anything but what they match, as allow rules do
#     [[implies]]  id, verbs, then   where one of `verbs` is granted, each of `then` is as well
#     [[apart]]    id, one, other    not both are granted: each is { verbs, paths }, matched as by allow rules
#
# `verbs` are those of policies, `removal` (what code may take away) or `*` for all. Each may have a `why`.
#
#     E150  the file cannot be understood

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
class InvariantFinding:
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
    for paths, place, deny in (
        *((each.paths, f"never[{each.id}]", True) for each in file.never),
        *((each.paths, f"only[{each.id}]", False) for each in file.only),
        *((side.paths, f"apart[{each.id}]", False) for each in file.apart for side in (each.one, each.other)),
    ):
        for path in paths:  # Of a scope that perhaps only other policies declare.
            scope = Scope(path.removeprefix("/").partition("/")[0])
            check_pattern(path, deny=deny, scopes=(scope,), where=f"{where} {place}")
    return file


def prove(invariants: Invariants, policy: Policy) -> tuple[InvariantFinding, ...]:
    """Each invariant in the order of the file, kind by kind: proved, or refuted by the shortest path."""
    return tuple(_Proving(invariants, policy).findings())


class _Proving:
    """All invariants against one policy."""

    def __init__(self, invariants: Invariants, policy: Policy) -> None:
        self._invariants, self._policy = invariants, policy
        sides = [side for each in invariants.apart for side in (each.one, each.other)]
        matched: list[Only | _Side] = [*invariants.only, *sides]
        self._prover = Prover(
            [policy],
            exact=[path for each in matched for path in each.paths],
            trees=[path for each in invariants.never for path in each.paths],
        )

    def findings(self) -> Iterator[InvariantFinding]:
        """One for each invariant."""
        for never in self._invariants.never:
            yield self._finding("never", never, never.verbs, [self._prover.tree(never.paths)])
        for only in self._invariants.only:
            yield self._finding("only", only, only.verbs, [~self._prover.exact(only.paths)])
        for implies in self._invariants.implies:
            lacking = [~self._prover.grant(self._policy, act) for act in _acts(implies.then)]
            yield self._finding("implies", implies, implies.verbs, lacking)
        for apart in self._invariants.apart:
            yield self._apart(apart)

    def _finding(
        self, kind: str, invariant: _Invariant, verbs: tuple[str, ...], sets: list[PathSet]
    ) -> InvariantFinding:
        """Broken if one of the acts is granted in one of the sets, shown by the shortest of those paths."""
        found, unknown = [], []
        for act, where in product(_acts(verbs), sets):
            granted = self._prover.grant(self._policy, act)
            outcome = self._prover.find(self._policy.scopes, granted, where)
            if isinstance(outcome, FoundPath):
                found.append(Witness(act, outcome.path.text))
            elif isinstance(outcome, Undecided):
                unknown.append(f"{act}: {outcome.why}")
        if found:
            first = min(found, key=lambda each: (len(each.path), each.path))
            return InvariantFinding(invariant.id, kind, invariant.why, "broken", (first,))
        status: Literal["undecided", "proved"] = "undecided" if unknown else "proved"
        return InvariantFinding(invariant.id, kind, invariant.why, status, reason="; ".join(unknown))

    def _apart(self, apart: Apart) -> InvariantFinding:
        """Proved if one of the sides is never granted; broken if both are, somewhere."""
        sides = [
            self._finding("apart", apart, side.verbs, [self._prover.exact(side.paths)])
            for side in (apart.one, apart.other)
        ]
        for status in ("proved", "undecided"):
            for found in sides:
                if found.status == status:
                    return found
        return replace(sides[0], witnesses=(*sides[0].witnesses, *sides[1].witnesses))


def _acts(verbs: tuple[str, ...]) -> list[Act]:
    return [act for act in ACTS if "*" in verbs or act in verbs]


# -- mutation ----------------------------------------------------------------------------------------
#
# Whether the inline tests of a policy would notice if one of its rules were weaker.
#
# Each mutant is the policy with one thing made looser in the file itself: a deny pattern or one verb of a
# deny rule dropped, an allow pattern widened, a number of a quota doubled. A mutant is
#
#     caught      an inline test of the file fails on it
#     equivalent  it is proved to grant nothing more: other rules, a parent, or the name grammar hold the same
#     survived    neither; a path shows what the tests do not see, and a test made of it would catch the
#                 mutant
#     undecided   neither, and the prover gave up
#
# Only the file's own rules are mutated: those of its parents are for their own tests. A quota bounds what
# is written, so one whose files nobody may create or modify bounds nothing.

Status = Literal["caught", "equivalent", "survived", "undecided"]

_CREATABLE: Final = ("/**/?*.md",)
_NOT_CREATABLE: Final = ("/**/..md", "/**/...md")
"""What may be created at all by the name grammar, but that it takes no name of dots only."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One weakened policy.

    Attributes:
        what: what was changed, in words: `deny[pinned] without pattern 'pinned/'`.
        kind: of the rule: `allow`, `deny` or `quota`.
        rule: its id.
        pattern: which one was dropped or widened; None if it was something else.
        status: what became of it.
        test: number of the first inline test that fails; None if none does.
        act: what the mutant grants in addition, if it survived.
        path: the shortest on which it does.
        over: of a quota: what a test has to ask besides, such as `files`, and the number.
    """

    what: str
    kind: Literal["allow", "deny", "quota"]
    rule: str
    pattern: str | None
    status: Status = "equivalent"
    test: int | None = None
    act: Act | None = None
    path: str | None = None
    over: tuple[str, int] | None = None

    @property
    def suggestion(self) -> tuple[str, ...]:
        """The lines of an inline test that would catch a mutant that survived; none for another."""
        if self.status != "survived":
            return ()
        asked = (f"{self.over[0]} = {self.over[1]}",) if self.over else ()
        return ("[[test]]", f'verb = "{self.act}"', f'path = "/{self.path}"', *asked, 'expect = "deny"')


def mutants(loaded: Loaded) -> Iterator[Mutant]:
    """Every mutant of a policy, with what became of it; rules in the order of their ids.

    Args:
        loaded: the policy with its files.

    Cost: its inline tests for each mutant, and a search for each that they miss; `strict` takes 0.5 s.
    """
    yield from _MutantTrial(loaded).all()


class _MutantTrial:
    def __init__(self, loaded: Loaded) -> None:
        self._policy, self._checks = loaded.policy, loaded.files[0].tables.test
        self._own = loaded.own
        own, *others = ([quota_of(table) for table in file.tables.quota] for file in loaded.files)
        self._quotas = [each for each in own if not any(each in quotas for quotas in others)]

    def all(self) -> Iterator[Mutant]:
        for mutant, layer in (*self._without_denies(), *self._with_wider_allows()):
            layers = tuple(layer if each is self._own else each for each in self._policy.layers)
            mutated = replace(self._policy, layers=layers)
            yield self._caught(mutant, mutated) or _told(mutant, self._gained(mutated))
        yield from self._with_larger_quotas()

    def _without_denies(self) -> Iterator[tuple[Mutant, Layer]]:
        """A rule without patterns or verbs denies nothing, and is left as it is."""
        for rule in self._own.deny:
            place = f"deny[{rule.id}] without"
            for path in rule.paths:
                left = replace(rule, paths=tuple(each for each in rule.paths if each != path))
                yield (
                    Mutant(f"{place} pattern {path!r}", "deny", rule.id, path),
                    self._with("deny", rule, left),
                )
            for verb in rule.verbs:
                left = replace(rule, verbs=tuple(each for each in rule.verbs if each != verb))
                yield Mutant(f"{place} verb {verb}", "deny", rule.id, None), self._with("deny", rule, left)

    def _with_wider_allows(self) -> Iterator[tuple[Mutant, Layer]]:
        for rule in self._own.allow:
            for path in rule.paths:
                for wider in _wider(path):
                    what = f"allow[{rule.id}] with {wider!r} for {path!r}"
                    paths = tuple(wider if each == path else each for each in rule.paths)
                    weaker = self._with("allow", rule, replace(rule, paths=paths))
                    yield Mutant(what, "allow", rule.id, path), weaker

    def _with(self, kind: Literal["allow", "deny"], rule: Rule, weaker: Rule) -> Layer:
        """The file's own layer with another rule in place of one."""
        rules: dict[str, Any] = {
            kind: tuple(weaker if each is rule else each for each in getattr(self._own, kind))
        }
        return replace(self._own, **rules)

    def _with_larger_quotas(self) -> Iterator[Mutant]:
        for quota, number in product(self._policy.quotas, fields(Quota)):
            if quota not in self._quotas or number.name not in QUOTA_NUMBERS:
                continue
            bound = getattr(quota, number.name)
            larger = min(2 * bound, number.metadata["most"])
            if larger == bound:
                continue
            raised = replace(quota, **{number.name: larger})
            quotas = tuple(raised if each is quota else each for each in self._policy.quotas)
            what = f"quota[{quota.id}] with {number.name} = {larger}"
            mutant, mutated = Mutant(what, "quota", quota.id, None), replace(self._policy, quotas=quotas)
            mutant = self._caught(mutant, mutated) or _told(mutant, self._bounded(quota, number.name))
            over = (number.name.removeprefix("max_"), bound + 1)
            yield replace(mutant, over=over) if mutant.status == "survived" else mutant

    def _caught(self, mutant: Mutant, mutated: Policy) -> Mutant | None:
        """The mutant, if an inline test fails on it."""
        judge = Judge(mutated)
        for number, check in enumerate(self._checks, start=1):
            if failure(check, judge, mutated) is not None:
                return replace(mutant, status="caught", test=number)
        return None

    def _gained(self, mutated: Policy) -> Iterator[tuple[Act, SearchOutcome]]:
        """What a mutant grants that the policy does not, by act."""
        prover = Prover([self._policy, mutated], exact=[*_CREATABLE, *_NOT_CREATABLE])
        for act in ACTS:
            sets = (*_granted(prover, mutated, act), ~prover.grant(self._policy, act))
            yield act, prover.find(mutated.scopes, *sets)

    def _bounded(self, quota: Quota, field: str) -> Iterator[tuple[Act, SearchOutcome]]:
        """What may be written that this number bounds, and none of another quota as tightly, by act."""
        others = [
            path
            for each in self._policy.quotas
            if each is not quota and getattr(each, field) <= getattr(quota, field)
            for path in each.paths
        ]
        prover = Prover([self._policy], exact=[*_CREATABLE, *_NOT_CREATABLE, *quota.paths, *others])
        for act in (Verb.CREATE, Verb.MODIFY):
            sets = (*_granted(prover, self._policy, act), prover.exact(quota.paths), ~prover.exact(others))
            yield act, prover.find(self._policy.scopes, *sets)


def _told(mutant: Mutant, outcomes: Iterator[tuple[Act, SearchOutcome]]) -> Mutant:
    """The mutant, by the first path that was found."""
    for act, outcome in outcomes:
        if isinstance(outcome, FoundPath):
            return replace(mutant, status="survived", act=act, path=outcome.path.text)
        if not isinstance(outcome, Nothing):
            mutant = replace(mutant, status="undecided")
    return mutant


def _granted(prover: Prover, policy: Policy, act: Act) -> Iterator[PathSet]:
    """What the policy and the name grammar grant: what is in all of these sets."""
    yield prover.grant(policy, act)
    if act == Verb.CREATE:
        named = All([prover.exact(_CREATABLE).language, Not(prover.exact(_NOT_CREATABLE).language)])
        yield PathSet(named, _is_creatable)


def _is_creatable(path: CanonicalPath) -> bool:
    with suppress(BadName):
        check_creatable(path)
        return True
    return False


def _wider(pattern: str) -> Iterator[str]:
    """The pattern at any depth, and with any name: as `/user/*.md` becomes `/user/**/*.md` and `/user/*`."""
    folder, _, name = pattern.rpartition("/")
    if name == "**":
        return
    if folder.count("**") < MAX_TREE_WILDCARDS and not folder.endswith("**"):
        yield f"{folder}/**/{name}"
    if name != "*":
        yield f"{folder}/*"


# -- terms -------------------------------------------------------------------------------------------
#
# What a policy says besides rules, as named values, and which of two values is the looser one.
#
# Which value is stricter is defined in one place, `meet`: of two policies, the one whose value is not that
# of their meet is the looser one.

Value = str | int | float


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term on which two policies differ.

    Attributes:
        name: as in a policy file, such as `limits.turns` or `scopes.user.trust`.
        old: the value of the first.
        new: the value of the second.
        is_looser: the second binds a run less than the first in this.
    """

    name: str
    old: Value
    new: Value
    is_looser: bool


def terms_of(policy: Policy) -> dict[str, Value]:
    """Every term but quotas, by name. Gates are joined by commas."""
    terms: dict[str, Value] = {
        f"{table}.{key}": ", ".join(value) or "none" if isinstance(value, tuple) else value
        for table in SECTIONS
        for key, value in asdict(getattr(policy, table)).items()
    }
    for scope in policy.scope_terms:
        terms[f"scopes.{scope.name}.trust"] = str(scope.trust)
        terms[f"scopes.{scope.name}.commit"] = scope.commit
    return terms


def changed_terms(old: Policy, new: Policy) -> Iterator[TermChange]:
    """The terms on which they differ, but for quotas and for scopes that only one of them declares."""
    before, after, both = terms_of(old), terms_of(new), terms_of(meet(old, new))
    for name, strict in both.items():
        if before[name] != after[name]:
            yield TermChange(name, before[name], after[name], is_looser=after[name] != strict)


# -- diff --------------------------------------------------------------------------------------------
#
# What one policy grants that another does not, each time with the shortest path that shows it.
#
#     1. For every act: is there a path that the one grants and the other does not? If there is none, that is
#        proved (`search`). If there is, the shortest one is shown, with the rule that makes the difference,
#        and what that pattern accounts for is left out of the next search, until nothing is left.
#     2. Every quota of the other is kept: one of the one covers at least its files, with no larger number.
#     3. Every other term is at least as strict (`terms`).
#
# Contract:
#     D1  `proved` means that the new policy grants nothing that the old one does not, and loosens no term.
#     D2  Each path was put to both real decisions. Undecided is never taken for proved.
#
# Cost: for two policies like `strict` 0.3 s; it is bounded by `policy.automaton.MAX_WORK` for each act and
# direction.

MAX_GAINS: Final = 32
"""Differences of one kind that are told apart; more of them nobody reads one by one."""

_UNBOUNDED: Final = MAX_BYTES + 1
"""More than any number of a quota."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The rule that makes a difference.

    Attributes:
        kind: `deny`: a rule of the policy that grants less, which has no effect in the other; `allow`: a rule
            of the one that grants more; `layer`: a whole file of the one that grants less, which is no part
            of the other; `scope`: only the one that grants more declares it.
        layer: the name of the file; empty for a scope.
        rule: the id of the rule; of the rule that grants, for a layer; the name of the scope.
        pattern: of that rule; empty for a scope.
    """

    kind: Literal["deny", "allow", "layer", "scope"]
    layer: str
    rule: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Gain:
    """Something that one policy grants and another does not.

    Attributes:
        acts: on the path.
        path: the shortest that shows it.
        cause: the rule that makes the difference.
    """

    acts: tuple[Act, ...]
    path: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Difference:
    """How a new policy differs from an old one.

    Attributes:
        verdict: `proved`: it grants nothing more; `wider`: it does; `undecided`: nobody knows.
        widenings: what it grants more.
        narrowings: what it grants less.
        terms: limits, quotas and other terms that changed.
        undecided: acts about which the search gave up, with the reason; only widenings count.
    """

    verdict: Literal["proved", "wider", "undecided"]
    widenings: tuple[Gain, ...]
    narrowings: tuple[Gain, ...]
    terms: tuple[TermChange, ...]
    undecided: tuple[str, ...]


def diff(old: Policy, new: Policy) -> Difference:
    """Compare two policies."""
    quotas = [*old.quotas, *new.quotas]
    prover = Prover([old, new], exact=[path for quota in quotas for path in quota.paths])
    wider, narrower = _Comparison(prover, old, new), _Comparison(prover, new, old)
    widenings = wider.gains()
    terms = (*changed_terms(old, new), *changed_quotas(prover, old, new))
    is_wider = bool(widenings) or any(term.is_looser for term in terms)
    return Difference(
        verdict="wider" if is_wider else "undecided" if wider.unknown else "proved",
        widenings=widenings,
        narrowings=narrower.gains(),
        terms=terms,
        undecided=tuple(wider.unknown),
    )


class _Comparison:
    """What `more` grants and `less` does not."""

    def __init__(self, prover: Prover, less: Policy, more: Policy) -> None:
        self._prover, self._less, self._more = prover, less, more
        self._common = [scope for scope in more.scopes if scope in less.scopes]
        self.unknown: list[str] = []

    def gains(self) -> tuple[Gain, ...]:
        """Each difference, with its shortest path; acts that differ alike together."""
        acts_of: dict[tuple[str, Cause], list[Act]] = {}
        for acts in self._acts_alike():
            for path, cause in (*self._in_common(acts), *self._in_new_scopes(acts)):
                acts_of.setdefault((path.text, cause), []).extend(acts)
        gains = [Gain(tuple(acts), path, cause) for (path, cause), acts in acts_of.items()]
        return tuple(sorted(gains, key=lambda gain: (len(gain.path), gain.path)))

    def _acts_alike(self) -> list[tuple[Act, ...]]:
        """Acts for which both policies have the same patterns, so that one search answers for all of them."""
        by_patterns: dict[object, list[Act]] = {}
        for act in ACTS:
            less, more = (self._prover.grant(policy, act).language for policy in (self._less, self._more))
            if less is not more or self._common != list(self._more.scopes):
                by_patterns.setdefault((less, more), []).append(act)
        return [tuple(acts) for acts in by_patterns.values()]

    def _in_common(self, acts: tuple[Act, ...]) -> Iterator[tuple[CanonicalPath, Cause]]:
        """In scopes that both declare: one path for each pattern that makes a difference.

        What the patterns of causes that are told already account for is left out.
        """
        granted, before = (self._prover.grant(policy, acts[0]) for policy in (self._more, self._less))
        told: list[Cause] = []
        while len(told) <= MAX_GAINS:
            denying = self._prover.tree(each.pattern for each in told if each.kind == "deny")
            granting = self._prover.exact(each.pattern for each in told if each.kind != "deny")
            outcome = self._prover.find(self._common, granted, ~before, ~denying, ~granting)
            if not isinstance(outcome, FoundPath):
                self._note(outcome, acts)
                return
            cause = self._cause(acts[0], outcome.path)
            told.append(cause)
            yield outcome.path, cause

    def _in_new_scopes(self, acts: tuple[Act, ...]) -> Iterator[tuple[CanonicalPath, Cause]]:
        for scope in self._more.scopes:
            if scope not in self._less.scopes:
                outcome = self._prover.find([scope], self._prover.grant(self._more, acts[0]))
                self._note(outcome, acts)
                if isinstance(outcome, FoundPath):
                    yield outcome.path, Cause("scope", "", scope, "")

    def _note(self, outcome: SearchOutcome, acts: tuple[Act, ...]) -> None:
        if isinstance(outcome, Undecided):
            self.unknown.append(f"{', '.join(acts)}: {outcome.why}")

    def _cause(self, act: Act, path: CanonicalPath) -> Cause:
        consulted = list(consult(self._less, act, path))
        for each in consulted:
            if each.kind == "deny" and each.pattern is not None:
                return Cause("deny", each.layer, each.rule, each.pattern)
        known = {paths for layer in self._less.layers for rule in layer.allow for paths in rule.paths}
        granting = [
            Cause("allow", each.layer, each.rule, each.pattern)
            for each in consult(self._more, act, path)
            if each.kind == "allow" and each.pattern is not None
        ]
        for cause in granting:
            if cause.pattern not in known:
                return cause
        granted_by = {each.layer for each in consulted if each.kind == "allow" and each.pattern is not None}
        missing = {layer.name for layer in self._less.layers} - granted_by
        gone = sorted(missing - {layer.name for layer in self._more.layers})
        first = granting[0]
        return Cause("layer", gone[0], first.rule, first.pattern) if gone else first


def changed_quotas(prover: Prover, old: Policy, new: Policy) -> Iterator[TermChange]:
    """Numbers of quotas that are not the same, in scopes that both declare: each, looked for in the other.

    A quota counts scope by scope, so in each of them another one may keep its number.
    """
    common = [scope for scope in new.scopes if scope in old.scopes]
    for one, other, is_looser in ((old, new, True), (new, old, False)):
        for quota in one.quotas:
            if quota in other.quotas:
                continue
            counted = [scope for scope in common if not prover.is_empty([scope], prover.exact(quota.paths))]
            covering = [
                [each for each in other.quotas if _covers(prover, each, quota, scope)] for scope in counted
            ]
            for field in QUOTA_NUMBERS:
                number = getattr(quota, field)
                kept = max((_bound(quotas, field) for quotas in covering), default=number)
                if kept > number:
                    found: Value = "none" if kept == _UNBOUNDED else kept
                    before, after = (number, found) if is_looser else (found, number)
                    yield TermChange(f"quota[{quota.id}].{field}", before, after, is_looser)


def _bound(quotas: list[Quota], field: str) -> int:
    return min((getattr(quota, field) for quota in quotas), default=_UNBOUNDED)


def _covers(prover: Prover, quota: Quota, other: Quota, scope: Scope) -> bool:
    """Whether `quota` counts every file of the scope that `other` counts."""
    if set(other.paths) <= set(quota.paths):
        return True
    return prover.is_empty([scope], prover.exact(other.paths), ~prover.exact(quota.paths))
