"""Prove or refute properties of policies: invariants, the strength of inline tests, and differences."""

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
    Layer,
    Policy,
    PolicyEvaluator,
    Quota,
    Rule,
)
from muniment.kernel.names import Scope, Verb
from muniment.kernel.path import CanonicalPath, fold
from muniment.lab.explain import consult_rules
from muniment.policy.automaton import (
    MAX_WORK,
    Complement,
    EmptySet,
    FoundPath,
    Intersection,
    Language,
    Memo,
    Patterns,
    SearchOutcome,
    StepBudget,
    Undecided,
    build_letters,
    find_shortest_path,
)
from muniment.policy.combine import SECTIONS, meet
from muniment.policy.files import LoadedPolicy
from muniment.policy.frozen import Frozen
from muniment.policy.grammar import check_creatable
from muniment.policy.load import (
    ACTS,
    Act,
    find_failure,
    get_denying_verbs,
    get_granting_verb,
    is_granted,
)
from muniment.policy.pattern import MAX_TREE_WILDCARDS, check_pattern
from muniment.policy.tables import build_quota

# -- prover ------------------------------------------------------------------------------------------
#
# Queries about the grants of policies, answered by a path or by a proof.
#
# A `Prover` contains the automata of some policies over one alphabet. Shared rules are read once: equal rules
# have the same language object.
#
#     `prover = Prover([old, new])`
#     `prover.find_path(new.scopes, prover.grant(new, act), ~prover.grant(old, act))`
#
# Attacked by tests/units/policy/test_diff.py: random paths against every proof, brute force over small path
# sets for every witness, pathspec for the automata.


@dataclass(frozen=True, slots=True)
class PathSet:
    """A set of paths in two forms. `~path_set` is the set of all other paths.

    Attributes:
        language: an automaton that accepts the paths, used to search for a path.
        contains: the kernel's decision whether a path is in the set; it confirms a path that the search
            found.
    """

    language: Language
    contains: Callable[[CanonicalPath], bool]

    def __invert__(self) -> PathSet:
        return PathSet(Complement(self.language), lambda path: not self.contains(path))


_ByPatterns = Memo[frozenset[str], Language]


class Prover:
    """Builds sets of paths from policies, and searches sets for a path or proves that they are empty.

    Args:
        policies: the policies to query.
        exact: further patterns that queries use, with the syntax of allow rules.
        trees: further patterns that queries use, with the syntax of deny rules.
        work: maximum number of steps for all queries together; later queries are undecided.
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
        letters, budget = build_letters(sorted(exact), sorted(trees)), StepBudget(work)
        self._letters, self._budget = letters, budget
        self._exact = _ByPatterns(lambda paths: Patterns.exact(paths, letters, budget))
        self._tree = _ByPatterns(lambda paths: Patterns.tree(paths, letters, budget))
        self._all = Memo[tuple[Language, ...], Language](Intersection)
        self._not = Memo[Language, Language](Complement)
        self._judges = Memo(PolicyEvaluator)

    def exact(self, paths: Iterable[str]) -> PathSet:
        """Return the set of files that one of the patterns matches. Patterns match as in allow rules."""
        patterns = frozenset(paths)
        return PathSet(self._exact[patterns], AllowPatterns(sorted(patterns)).match)

    def match_tree(self, paths: Iterable[str]) -> PathSet:
        """Return the set of files that one of the patterns covers. Patterns match as in deny rules."""
        patterns = frozenset(paths)
        matcher = DenyPatterns(sorted(patterns))
        return PathSet(self._tree[patterns], lambda path: matcher.match(path.text, fold(path.text)))

    def build_requested_set(self, layers: Iterable[Layer], act: Act) -> PathSet:
        """Return the set of paths on which every layer allows the act. Deny rules are ignored.

        Args:
            layers: the layers of a policy.
            act: a verb, or `removal`: a deletion by code.
        """
        parts = [self.exact(_list_paths(layer.allow, {get_granting_verb(act)})) for layer in layers]
        language = self._all[tuple(part.language for part in parts)]
        return PathSet(language, lambda path: all(part.contains(path) for part in parts))

    def build_denied_set(self, layers: Iterable[Layer], act: Act) -> PathSet:
        """Return the set of paths on which a deny rule of one of the layers denies the act.

        Args:
            layers: the layers of a policy.
            act: a verb, or `removal`: a deletion by code.
        """
        verbs = get_denying_verbs(act)
        return self.match_tree(path for layer in layers for path in _list_paths(layer.deny, verbs))

    def build_granted_set(self, policy: Policy, act: Act) -> PathSet:
        """Return the set of paths on which the policy grants the act, in any scope.

        Equal rules share one language.

        Args:
            policy: the policy.
            act: a verb, or `removal`: a deletion by code.
        """
        requested = self.build_requested_set(policy.layers, act)
        denied = self.build_denied_set(policy.layers, act)
        language = self._all[requested.language, self._not[denied.language]]
        return PathSet(language, lambda path: is_granted(act, path, self._judges[policy]))

    def find_path(self, scopes: Collection[Scope], *sets: PathSet) -> SearchOutcome:
        """Search for the shortest path in `scopes` that is in all of `sets`.

        The kernel's decision confirms each path that the automata find, for each set.

        Returns:
            The path, or that none exists, or that the search is undecided.
        """
        return self._search(scopes, sets, partial(_is_in_all, sets))

    def is_empty(self, scopes: Collection[Scope], *sets: PathSet) -> bool:
        """Return whether it is proved that no path in `scopes` is in all of `sets`.

        A path that the automata find is not confirmed by the kernel.
        """
        return isinstance(self._search(scopes, sets, lambda _path: True), EmptySet)

    def _search(
        self, scopes: Collection[Scope], sets: Iterable[PathSet], confirms: Callable[[CanonicalPath], bool]
    ) -> SearchOutcome:
        language = Intersection(each.language for each in sets)
        return find_shortest_path(language, self._letters, scopes, self._budget, confirms)


def _is_in_all(sets: Iterable[PathSet], path: CanonicalPath) -> bool:
    return all(each.contains(path) for each in sets)


def _list_paths(rules: Iterable[Rule], verbs: Collection[Verb]) -> list[str]:
    return [path for rule in rules if set(verbs) & set(rule.verbs) for path in rule.paths]


# -- invariants --------------------------------------------------------------------------------------
#
# Properties that a policy must have, proved or refuted by a path.
#
# A file of invariants is TOML, `schema = "muniment-invariants/1"`, with tables of four kinds:
#
#     [[never]]    id, verbs, paths  never granted on paths that the patterns cover, as in deny rules
#     [[only]]     id, verbs, paths  granted only on paths that the patterns match, as in allow rules
#     [[implies]]  id, verbs, then   if one of `verbs` is granted on a path, each of `then` is also granted
#     [[apart]]    id, one, other    at most one is granted; both are { verbs, paths }, as in allow rules
#
# `verbs` are those of policies, `removal` (a deletion by code) or `*` for all. Each may have a `why`.
#
#     E150  invalid file

SCHEMA: Final = "muniment-invariants/1"

MAX_INVARIANTS: Final = 256
"""Maximum number of invariants of one kind, and of patterns in one invariant."""


def _validate_act(text: str) -> str:
    if text != "*" and text not in ACTS:
        raise ValueError(f"unknown verb {text!r}; use one of {', '.join(ACTS)}, *")
    return text


_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\z")]
_Acts = Annotated[
    tuple[Annotated[str, AfterValidator(_validate_act)], ...], Field(strict=False, min_length=1)
]
_Paths = Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=MAX_INVARIANTS)]


class _Side(Frozen):
    """One side of an `[[apart]]` invariant: the acts `verbs` on the paths that `paths` match."""

    verbs: _Acts
    paths: _Paths


class _Invariant(Frozen):
    id: _Id
    why: str = ""


class Never(_Invariant):
    """An invariant `[[never]]`: the acts are never granted on paths that the patterns cover."""

    verbs: _Acts
    paths: _Paths


class Only(Never):
    """An invariant `[[only]]`: the acts are granted only on paths that the patterns match."""


class Implies(_Invariant):
    """An invariant `[[implies]]`: if an act of `verbs` is granted on a path, all of `then` are granted."""

    verbs: _Acts
    then: _Acts


class MutuallyExclusive(_Invariant):
    """An invariant `[[apart]]`: the policy grants at most one of the two sides."""

    one: _Side
    other: _Side


class Invariants(Frozen):
    """The content of a file of invariants."""

    schema_: Literal["muniment-invariants/1"] = Field(alias="schema")
    never: Annotated[tuple[Never, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()
    only: Annotated[tuple[Only, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()
    implies: Annotated[tuple[Implies, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()
    apart: Annotated[tuple[MutuallyExclusive, ...], Field(strict=False, max_length=MAX_INVARIANTS)] = ()


@dataclass(frozen=True, slots=True)
class Witness:
    """An act and a path on which the policy grants it."""

    act: Act
    path: str


@dataclass(frozen=True, slots=True)
class InvariantFinding:
    """The result of checking one invariant.

    Attributes:
        id: id of the invariant.
        kind: kind of the invariant: the name of its table.
        why: the reason for the invariant, as in the file.
        status: `proved`, `broken` or `undecided`.
        witnesses: if the invariant is broken, a path that shows it; for `apart` two paths, one for each side.
        reason: why the result is undecided; otherwise empty.
    """

    id: str
    kind: str
    why: str
    status: Literal["proved", "broken", "undecided"]
    witnesses: tuple[Witness, ...] = ()
    reason: str = ""


def read_invariants(data: dict[str, Any], where: str) -> Invariants:
    """Parse the content of a file of invariants.

    Args:
        data: the result of `tomllib`.
        where: name of the file, for messages.

    Raises:
        PolicyInvalid: invalid file (E150), or a pattern has invalid syntax (E20x).
    """
    try:
        file = Invariants.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        location = ".".join(printable(str(part)) for part in first["loc"])
        raise PolicyInvalid("E150", where, f"{location}: {first['msg']}") from None
    for paths, location, deny in (
        *((each.paths, f"never[{each.id}]", True) for each in file.never),
        *((each.paths, f"only[{each.id}]", False) for each in file.only),
        *((side.paths, f"apart[{each.id}]", False) for each in file.apart for side in (each.one, each.other)),
    ):
        for path in paths:  # The scope may be declared only in other policies.
            scope = Scope(path.removeprefix("/").partition("/")[0])
            check_pattern(path, deny=deny, scopes=(scope,), where=f"{where} {location}")
    return file


def prove_invariants(invariants: Invariants, policy: Policy) -> tuple[InvariantFinding, ...]:
    """Prove each invariant, or find the shortest path that breaks it.

    Returns:
        One finding for each invariant: by kind, and within a kind in the order of the file.
    """
    return tuple(_InvariantProver(invariants, policy).find_all())


class _InvariantProver:
    """Checks all invariants against one policy."""

    def __init__(self, invariants: Invariants, policy: Policy) -> None:
        self._invariants, self._policy = invariants, policy
        sides = [side for each in invariants.apart for side in (each.one, each.other)]
        matched: list[Only | _Side] = [*invariants.only, *sides]
        self._prover = Prover(
            [policy],
            exact=[path for each in matched for path in each.paths],
            trees=[path for each in invariants.never for path in each.paths],
        )

    def find_all(self) -> Iterator[InvariantFinding]:
        """Yield one finding for each invariant."""
        for never in self._invariants.never:
            yield self._prove_one("never", never, never.verbs, [self._prover.match_tree(never.paths)])
        for only in self._invariants.only:
            yield self._prove_one("only", only, only.verbs, [~self._prover.exact(only.paths)])
        for implies in self._invariants.implies:
            missing_grants = [
                ~self._prover.build_granted_set(self._policy, act) for act in _expand_acts(implies.then)
            ]
            yield self._prove_one("implies", implies, implies.verbs, missing_grants)
        for apart in self._invariants.apart:
            yield self._prove_apart(apart)

    def _prove_one(
        self, kind: str, invariant: _Invariant, verbs: tuple[str, ...], sets: list[PathSet]
    ) -> InvariantFinding:
        """Return the finding for an invariant that is broken if an act is granted in one of the sets.

        Args:
            kind: kind of the invariant.
            invariant: the invariant.
            verbs: the acts to check.
            sets: the sets of paths on which they must not be granted.
        """
        found, undecided = [], []
        for act, where in product(_expand_acts(verbs), sets):
            granted = self._prover.build_granted_set(self._policy, act)
            outcome = self._prover.find_path(self._policy.scopes, granted, where)
            if isinstance(outcome, FoundPath):
                found.append(Witness(act, outcome.path.text))
            elif isinstance(outcome, Undecided):
                undecided.append(f"{act}: {outcome.reason}")
        if found:
            first = min(found, key=lambda each: (len(each.path), each.path))
            return InvariantFinding(invariant.id, kind, invariant.why, "broken", (first,))
        status: Literal["undecided", "proved"] = "undecided" if undecided else "proved"
        return InvariantFinding(invariant.id, kind, invariant.why, status, reason="; ".join(undecided))

    def _prove_apart(self, apart: MutuallyExclusive) -> InvariantFinding:
        """Return the finding for an `apart` invariant: broken if acts of both sides are granted."""
        sides = [
            self._prove_one("apart", apart, side.verbs, [self._prover.exact(side.paths)])
            for side in (apart.one, apart.other)
        ]
        for status in ("proved", "undecided"):
            for found in sides:
                if found.status == status:
                    return found
        return replace(sides[0], witnesses=(*sides[0].witnesses, *sides[1].witnesses))


def _expand_acts(verbs: tuple[str, ...]) -> list[Act]:
    return [act for act in ACTS if "*" in verbs or act in verbs]


# -- mutation ----------------------------------------------------------------------------------------
#
# Check whether the inline tests of a policy detect a weaker rule.
#
# Each mutant is the policy with one weakened rule in the file itself: a pattern or a verb of a deny rule is
# dropped, an allow pattern is widened, or a number of a quota is doubled. A mutant is
#
#     caught      an inline test of the file fails on it
#     equivalent  it is proved to grant nothing more: other rules, a parent, or the name grammar deny the same
#     survived    it is neither; a path shows the gap in the tests: a test with it would catch the mutant
#     undecided   it is neither, because the prover reached its limit
#
# Only the rules of the file are mutated; the tests of a parent cover its rules. A quota limits writes, so a
# quota on files that cannot be created or modified limits nothing.

Status = Literal["caught", "equivalent", "survived", "undecided"]

_CREATABLE: Final = ("/**/?*.md",)
_NOT_CREATABLE: Final = ("/**/..md", "/**/...md")
"""The paths that may be created, and exceptions to them: the name grammar does not allow names of dots only.
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A policy with one weakened rule, and the result of its check.

    Attributes:
        what: a description of the change: `deny[pinned] without pattern 'pinned/'`.
        kind: kind of the weakened rule: `allow`, `deny` or `quota`.
        rule: id of the weakened rule.
        pattern: the pattern that was dropped or widened; None for another change.
        status: the result of the check.
        test: number of the first inline test that fails; None if all pass.
        act: an act that a surviving mutant grants, but the policy does not.
        path: the shortest path on which `act` is granted.
        over: for a quota: the additional key of a test, such as `files`, and its number.
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
        """Return the lines of an inline test that catches a surviving mutant; empty for other mutants."""
        if self.status != "survived":
            return ()
        quota_line = (f"{self.over[0]} = {self.over[1]}",) if self.over else ()
        return ("[[test]]", f'verb = "{self.act}"', f'path = "/{self.path}"', *quota_line, 'expect = "deny"')


def generate_mutants(loaded: LoadedPolicy) -> Iterator[Mutant]:
    """Yield every mutant of a policy with its result, in the order of the rules' ids.

    Args:
        loaded: the policy with its files.

    Cost: the inline tests for each mutant, and a search for each mutant that they miss; `strict` takes 0.5 s.
    """
    yield from _MutantGenerator(loaded).generate_all()


class _MutantGenerator:
    def __init__(self, loaded: LoadedPolicy) -> None:
        self._policy, self._checks = loaded.policy, loaded.files[0].tables.test
        self._own = loaded.own_layer
        own, *others = ([build_quota(table) for table in file.tables.quota] for file in loaded.files)
        self._quotas = [each for each in own if not any(each in quotas for quotas in others)]

    def generate_all(self) -> Iterator[Mutant]:
        for mutant, layer in (*self._drop_denies(), *self._widen_allows()):
            layers = tuple(layer if each is self._own else each for each in self._policy.layers)
            mutated = replace(self._policy, layers=layers)
            yield self._run_tests(mutant, mutated) or _set_status(mutant, self._find_gained_paths(mutated))
        yield from self._enlarge_quotas()

    def _drop_denies(self) -> Iterator[tuple[Mutant, Layer]]:
        """Yield a mutant for each pattern and each verb of the deny rules that is dropped.

        A rule whose last pattern or verb is dropped denies nothing.
        """
        for rule in self._own.deny:
            prefix = f"deny[{rule.id}] without"
            for path in rule.paths:
                left = replace(rule, paths=tuple(each for each in rule.paths if each != path))
                mutant = Mutant(f"{prefix} pattern {path!r}", "deny", rule.id, path)
                yield mutant, self._replace_rule("deny", rule, left)
            for verb in rule.verbs:
                left = replace(rule, verbs=tuple(each for each in rule.verbs if each != verb))
                mutant = Mutant(f"{prefix} verb {verb}", "deny", rule.id, None)
                yield mutant, self._replace_rule("deny", rule, left)

    def _widen_allows(self) -> Iterator[tuple[Mutant, Layer]]:
        for rule in self._own.allow:
            for path in rule.paths:
                for wider in _widen_pattern(path):
                    what = f"allow[{rule.id}] with {wider!r} for {path!r}"
                    paths = tuple(wider if each == path else each for each in rule.paths)
                    weaker = self._replace_rule("allow", rule, replace(rule, paths=paths))
                    yield Mutant(what, "allow", rule.id, path), weaker

    def _replace_rule(self, kind: Literal["allow", "deny"], rule: Rule, weaker: Rule) -> Layer:
        """Return the layer of the policy file with `rule` replaced by `weaker`."""
        changed = tuple(weaker if each is rule else each for each in getattr(self._own, kind))
        rules: dict[str, Any] = {kind: changed}
        return replace(self._own, **rules)

    def _enlarge_quotas(self) -> Iterator[Mutant]:
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
            mutant = self._run_tests(mutant, mutated) or _set_status(
                mutant, self._find_bounded_paths(quota, number.name)
            )
            over = (number.name.removeprefix("max_"), bound + 1)
            yield replace(mutant, over=over) if mutant.status == "survived" else mutant

    def _run_tests(self, mutant: Mutant, mutated: Policy) -> Mutant | None:
        """Return the mutant with the status `caught` if an inline test fails on it, otherwise None."""
        judge = PolicyEvaluator(mutated)
        for number, check in enumerate(self._checks, start=1):
            if find_failure(check, judge, mutated) is not None:
                return replace(mutant, status="caught", test=number)
        return None

    def _find_gained_paths(self, mutated: Policy) -> Iterator[tuple[Act, SearchOutcome]]:
        """Yield for each act the result of a search for a path that only the mutant grants."""
        prover = Prover([self._policy, mutated], exact=[*_CREATABLE, *_NOT_CREATABLE])
        for act in ACTS:
            sets = (*_build_granted_sets(prover, mutated, act), ~prover.build_granted_set(self._policy, act))
            yield act, prover.find_path(mutated.scopes, *sets)

    def _find_bounded_paths(self, quota: Quota, field: str) -> Iterator[tuple[Act, SearchOutcome]]:
        """Yield for each writing act the result of a search for a path that only this number limits.

        The number is the field `field` of `quota`. Paths that another quota limits as strictly are excluded.
        """
        others = [
            path
            for each in self._policy.quotas
            if each is not quota and getattr(each, field) <= getattr(quota, field)
            for path in each.paths
        ]
        prover = Prover([self._policy], exact=[*_CREATABLE, *_NOT_CREATABLE, *quota.paths, *others])
        for act in (Verb.CREATE, Verb.MODIFY):
            sets = (
                *_build_granted_sets(prover, self._policy, act),
                prover.exact(quota.paths),
                ~prover.exact(others),
            )
            yield act, prover.find_path(self._policy.scopes, *sets)


def _set_status(mutant: Mutant, outcomes: Iterator[tuple[Act, SearchOutcome]]) -> Mutant:
    """Return the mutant with the status that its search results mean; the first path found decides."""
    for act, outcome in outcomes:
        if isinstance(outcome, FoundPath):
            return replace(mutant, status="survived", act=act, path=outcome.path.text)
        if not isinstance(outcome, EmptySet):
            mutant = replace(mutant, status="undecided")
    return mutant


def _build_granted_sets(prover: Prover, policy: Policy, act: Act) -> Iterator[PathSet]:
    """Yield sets of paths. A path in all of them is granted by the policy and valid in the name grammar."""
    yield prover.build_granted_set(policy, act)
    if act == Verb.CREATE:
        named = Intersection(
            [prover.exact(_CREATABLE).language, Complement(prover.exact(_NOT_CREATABLE).language)]
        )
        yield PathSet(named, _is_creatable)


def _is_creatable(path: CanonicalPath) -> bool:
    with suppress(BadName):
        check_creatable(path)
        return True
    return False


def _widen_pattern(pattern: str) -> Iterator[str]:
    """Yield patterns that match more than `pattern`: at any depth, and with any name.

    For example, `/user/*.md` yields `/user/**/*.md` and `/user/*`.
    """
    folder, _, name = pattern.rpartition("/")
    if name == "**":
        return
    if folder.count("**") < MAX_TREE_WILDCARDS and not folder.endswith("**"):
        yield f"{folder}/**/{name}"
    if name != "*":
        yield f"{folder}/*"


# -- terms -------------------------------------------------------------------------------------------
#
# The terms of a policy (everything except rules) as named values, and a comparison of two values.
#
# Only `meet` defines which value is stricter: the policy whose value differs from the meet is looser.

Value = str | int | float


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term, such as a limit, whose value differs between two policies.

    Attributes:
        name: name of the term as in a policy file, such as `limits.turns` or `scopes.user.trust`.
        old: its value in the first policy.
        new: its value in the second policy.
        is_looser: whether the second policy restricts a run less than the first in this term.
    """

    name: str
    old: Value
    new: Value
    is_looser: bool


def list_terms(policy: Policy) -> dict[str, Value]:
    """Return the values of a policy's terms by name, except quotas. Several gates are joined by commas."""
    terms: dict[str, Value] = {
        f"{table}.{key}": ", ".join(value) or "none" if isinstance(value, tuple) else value
        for table in SECTIONS
        for key, value in asdict(getattr(policy, table)).items()
    }
    for scope in policy.scope_options:
        terms[f"scopes.{scope.name}.trust"] = str(scope.trust)
        terms[f"scopes.{scope.name}.commit"] = scope.commit
    return terms


def compare_terms(old: Policy, new: Policy) -> Iterator[TermChange]:
    """Yield the terms whose values differ between two policies.

    Quotas and scopes that only one policy declares are not compared.
    """
    before, after, both = list_terms(old), list_terms(new), list_terms(meet(old, new))
    for name, strict in both.items():
        if before[name] != after[name]:
            yield TermChange(name, before[name], after[name], is_looser=after[name] != strict)


# -- diff --------------------------------------------------------------------------------------------
#
# The grants of one policy (new) that another (old) does not have, each with the shortest path.
#
#     1. For every act: search for a path that new grants and old does not. If none exists, that is proved
#        (`search`). Otherwise report the shortest path with the rule that causes the difference. Exclude the
#        paths that this pattern explains from the next search, until no path is left.
#     2. For every quota of old: a quota of new covers at least its files, with no larger number.
#     3. Every other term is at least as strict (`terms`).
#
# Contract:
#     D1  `proved` means that the new policy grants nothing that the old one does not, and loosens no term.
#     D2  Both real decisions were checked for each path. Undecided never counts as proved.
#
# Cost: for two policies like `strict` 0.3 s, limited by `policy.automaton.MAX_WORK` for each act and
# direction.

MAX_GAINS: Final = 32
"""Maximum number of differences of one kind; a longer list is not readable."""

_NO_LIMIT: Final = MAX_BYTES + 1
"""A number that is larger than any number of a quota."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The rule that causes a difference between two policies.

    In the attributes, the wider policy is the one that grants more on a path, the narrower one grants less.

    Attributes:
        kind: `deny`: a deny rule of the narrower policy, without effect in the wider one; `allow`: an allow
            rule of the wider policy; `layer`: a file of the narrower policy that is not part of the wider
            one; `scope`: a scope that only the wider policy declares.
        layer: name of the file; empty for a scope.
        rule: id of the rule; for `layer`, of the rule that grants the path; for `scope`, name of the scope.
        pattern: pattern of that rule; empty for a scope.
    """

    kind: Literal["deny", "allow", "layer", "scope"]
    layer: str
    rule: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Gain:
    """A path that one policy grants and another policy does not.

    Attributes:
        acts: the acts that are granted on the path: verbs, or `removal`.
        path: the shortest path with this difference.
        cause: the rule that causes the difference.
    """

    acts: tuple[Act, ...]
    path: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between a new policy and an old policy.

    Attributes:
        verdict: `proved`: the new policy does not grant more; `wider`: it does; `undecided`: unknown.
        widenings: the grants that only the new policy has.
        narrowings: the grants that only the old policy has.
        terms: limits, quotas and other terms that changed.
        undecided: acts for which the search for widenings has no result, with the reason.
    """

    verdict: Literal["proved", "wider", "undecided"]
    widenings: tuple[Gain, ...]
    narrowings: tuple[Gain, ...]
    terms: tuple[TermChange, ...]
    undecided: tuple[str, ...]


def compare_policies(old: Policy, new: Policy) -> Difference:
    """Compare two policies, and return what the new policy grants more or less than the old one."""
    quotas = [*old.quotas, *new.quotas]
    prover = Prover([old, new], exact=[path for quota in quotas for path in quota.paths])
    wider, narrower = _Comparison(prover, old, new), _Comparison(prover, new, old)
    widenings = wider.find_gains()
    terms = (*compare_terms(old, new), *compare_quotas(prover, old, new))
    is_wider = bool(widenings) or any(term.is_looser for term in terms)
    return Difference(
        verdict="wider" if is_wider else "undecided" if wider.unknown else "proved",
        widenings=widenings,
        narrowings=narrower.find_gains(),
        terms=terms,
        undecided=tuple(wider.unknown),
    )


class _Comparison:
    """Finds the paths that the policy `more` grants and the policy `less` does not."""

    def __init__(self, prover: Prover, less: Policy, more: Policy) -> None:
        self._prover, self._less, self._more = prover, less, more
        self._common = [scope for scope in more.scopes if scope in less.scopes]
        self.unknown: list[str] = []

    def find_gains(self) -> tuple[Gain, ...]:
        """Return each difference with its shortest path. Acts with the same difference are combined."""
        acts_by_cause: dict[tuple[str, Cause], list[Act]] = {}
        for acts in self._group_acts():
            for path, cause in (*self._compare_common_scopes(acts), *self._compare_new_scopes(acts)):
                acts_by_cause.setdefault((path.text, cause), []).extend(acts)
        gains = [Gain(tuple(acts), path, cause) for (path, cause), acts in acts_by_cause.items()]
        return tuple(sorted(gains, key=lambda gain: (len(gain.path), gain.path)))

    def _group_acts(self) -> list[tuple[Act, ...]]:
        """Return groups of acts with the same patterns in both policies; one search covers a group."""
        by_patterns: dict[object, list[Act]] = {}
        for act in ACTS:
            less, more = (
                self._prover.build_granted_set(policy, act).language for policy in (self._less, self._more)
            )
            if less is not more or self._common != list(self._more.scopes):
                by_patterns.setdefault((less, more), []).append(act)
        return [tuple(acts) for acts in by_patterns.values()]

    def _compare_common_scopes(self, acts: tuple[Act, ...]) -> Iterator[tuple[CanonicalPath, Cause]]:
        """Yield one path, with its cause, for each pattern that causes a difference in a common scope.

        Paths that the patterns of earlier causes explain are excluded.
        """
        granted, before = (
            self._prover.build_granted_set(policy, acts[0]) for policy in (self._more, self._less)
        )
        causes: list[Cause] = []
        while len(causes) <= MAX_GAINS:
            explained_denies = self._prover.match_tree(each.pattern for each in causes if each.kind == "deny")
            explained_grants = self._prover.exact(each.pattern for each in causes if each.kind != "deny")
            outcome = self._prover.find_path(
                self._common, granted, ~before, ~explained_denies, ~explained_grants
            )
            if not isinstance(outcome, FoundPath):
                self._note_undecided(outcome, acts)
                return
            cause = self._find_cause(acts[0], outcome.path)
            causes.append(cause)
            yield outcome.path, cause

    def _compare_new_scopes(self, acts: tuple[Act, ...]) -> Iterator[tuple[CanonicalPath, Cause]]:
        for scope in self._more.scopes:
            if scope not in self._less.scopes:
                outcome = self._prover.find_path([scope], self._prover.build_granted_set(self._more, acts[0]))
                self._note_undecided(outcome, acts)
                if isinstance(outcome, FoundPath):
                    yield outcome.path, Cause("scope", "", scope, "")

    def _note_undecided(self, outcome: SearchOutcome, acts: tuple[Act, ...]) -> None:
        if isinstance(outcome, Undecided):
            self.unknown.append(f"{', '.join(acts)}: {outcome.reason}")

    def _find_cause(self, act: Act, path: CanonicalPath) -> Cause:
        consulted = list(consult_rules(self._less, act, path))
        for each in consulted:
            if each.kind == "deny" and each.pattern is not None:
                return Cause("deny", each.layer, each.rule, each.pattern)
        known = {paths for layer in self._less.layers for rule in layer.allow for paths in rule.paths}
        granting = [
            Cause("allow", each.layer, each.rule, each.pattern)
            for each in consult_rules(self._more, act, path)
            if each.kind == "allow" and each.pattern is not None
        ]
        if new_causes := [cause for cause in granting if cause.pattern not in known]:
            return new_causes[0]
        granted_by = {each.layer for each in consulted if each.kind == "allow" and each.pattern is not None}
        missing = {layer.name for layer in self._less.layers} - granted_by
        removed = sorted(missing - {layer.name for layer in self._more.layers})
        first = granting[0]
        return Cause("layer", removed[0], first.rule, first.pattern) if removed else first


def compare_quotas(prover: Prover, old: Policy, new: Policy) -> Iterator[TermChange]:
    """Yield the numbers of quotas that differ between two policies, in scopes that both declare.

    A quota counts each scope separately, so a different quota of the other policy may cover each scope.
    """
    common = [scope for scope in new.scopes if scope in old.scopes]
    for first, second, is_looser in ((old, new, True), (new, old, False)):
        for quota in first.quotas:
            if quota in second.quotas:
                continue
            counted = [scope for scope in common if not prover.is_empty([scope], prover.exact(quota.paths))]
            covering = [
                [each for each in second.quotas if _covers(prover, each, quota, scope)] for scope in counted
            ]
            for field in QUOTA_NUMBERS:
                number = getattr(quota, field)
                applied = max((_strictest_limit(quotas, field) for quotas in covering), default=number)
                if applied > number:
                    found: Value = "none" if applied == _NO_LIMIT else applied
                    before, after = (number, found) if is_looser else (found, number)
                    yield TermChange(f"quota[{quota.id}].{field}", before, after, is_looser)


def _strictest_limit(quotas: list[Quota], field: str) -> int:
    return min((getattr(quota, field) for quota in quotas), default=_NO_LIMIT)


def _covers(prover: Prover, quota: Quota, other: Quota, scope: Scope) -> bool:
    """Return whether `quota` counts every file of the scope that `other` counts."""
    return set(other.paths) <= set(quota.paths) or prover.is_empty(
        [scope], prover.exact(other.paths), ~prover.exact(quota.paths)
    )
