"""What policies grant, proved: questions answered by a path or by a proof, invariants, mutants, diffs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from muniment.errors import PolicyInvalid, Refusal, printable
from muniment.kernel.decide import (
    MAX_BYTES,
    MAX_COUNT,
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
    FoundPath,
    Language,
    Not,
    Nothing,
    Outcome,
    Patterns,
    Steps,
    Undecided,
    letters_for,
    shortest,
)
from muniment.policy.frozen import Frozen
from muniment.policy.load import ACTS, REMOVAL, Act, Loaded, failure, grants, require
from muniment.policy.pattern import MAX_TREE_WILDCARDS, check_pattern
from muniment.policy.tables import meet, quota_of

# -- prover ------------------------------------------------------------------------------------------
#
# Questions about what policies grant, answered by a path or by a proof.
#
# A `Prover` holds the automata of some policies over one alphabet, so that what two policies share is read
# once and stays in step: the languages of equal rules are one and the same.
#
#     `prover = Prover([old, new])`
#     `prover.find(All([prover.grant(new, act), Not(prover.grant(old, act))]), new.scopes, confirms)`
#
# Attacked by tests/units/policy/test_diff.py: random paths against every proof, brute force over small worlds
# for every witness, pathspec for the automata.


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
        self._letters = letters_for(sorted(exact), sorted(trees))
        self._budget = Steps(work)
        self._patterns: dict[tuple[bool, frozenset[str]], Language] = {}
        self._asked: dict[tuple[Language, ...], Language] = {}
        self._grants: dict[tuple[Language, ...], Language] = {}

    def exact(self, paths: Iterable[str]) -> Language:
        """The files that one of the patterns matches, as in allow rules."""
        return self._language(frozenset(paths), tree=False)

    def tree(self, paths: Iterable[str]) -> Language:
        """The files that one of the patterns covers, as in deny rules."""
        return self._language(frozenset(paths), tree=True)

    def asked(self, layers: Iterable[Layer], act: Act) -> Language:
        """What every one of the layers has an allow rule for, whatever is denied."""
        verb = Verb.MODIFY if act == REMOVAL else act
        parts = tuple(self.exact(_paths(layer.allow, {verb})) for layer in layers)
        known = self._asked.get(parts)
        if known is None:
            known = self._asked[parts] = All(parts)
        return known

    def denied(self, layers: Iterable[Layer], act: Act) -> Language:
        """What a deny rule of one of the layers covers."""
        verbs = {Verb.MODIFY, Verb.DELETE} if act == REMOVAL else {act}
        return self.tree(path for layer in layers for path in _paths(layer.deny, verbs))

    def grant(self, policy: Policy, act: Act) -> Language:
        """What the policy grants, whichever scopes it declares."""
        parts = (self.asked(policy.layers, act), self.denied(policy.layers, act))
        known = self._grants.get(parts)
        if known is None:
            known = self._grants[parts] = All([parts[0], Not(parts[1])])
        return known

    def find(
        self, language: Language, scopes: Collection[Scope], confirms: Callable[[CanonicalPath], bool]
    ) -> Outcome:
        """The shortest path of a language, or that there is none.

        Args:
            language: made of languages of this prover.
            scopes: in which it is sought.
            confirms: asks the real decision about a path.
        """
        return shortest(language, self._letters, scopes, self._budget, confirms)

    def _language(self, paths: frozenset[str], *, tree: bool) -> Language:
        known = self._patterns.get((tree, paths))
        if known is None:
            make = Patterns.tree if tree else Patterns.exact
            known = self._patterns[tree, paths] = make(paths, self._letters, self._budget)
        return known


def _paths(rules: Iterable[Rule], verbs: Collection[Verb | str]) -> list[str]:
    return [path for rule in rules if set(verbs) & set(rule.verbs) for path in rule.paths]


# -- invariants --------------------------------------------------------------------------------------
#
# Sentences that a policy must make true, proved or refuted by a path.
#
# A file of invariants is TOML, `schema = "muniment-invariants/1"`, with tables of four kinds:
#
#     [[never]]    id, verbs, paths   none of the verbs is granted on what the patterns cover, as deny rules
#     do
#     [[only]]     id, verbs, paths   none is granted on anything but what they match, as allow rules do
#     [[implies]]  id, verbs, then    where one of `verbs` is granted, each of `then` is as well
#     [[apart]]    id, one, other     not both are granted: each is { verbs, paths }, matched as by allow
#     rules
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
    for each in file.never:
        _check(each.paths, f"{where} never[{each.id}]", deny=True)
    for paths, place in (
        *((each.paths, f"only[{each.id}]") for each in file.only),
        *((side.paths, f"apart[{each.id}]") for each in file.apart for side in (each.one, each.other)),
    ):
        _check(paths, f"{where} {place}", deny=False)
    return file


def prove(invariants: Invariants, policy: Policy) -> tuple[InvariantFinding, ...]:
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

    def findings(self) -> Iterator[InvariantFinding]:
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
        return _Set(Not(granted), lambda path: not grants(act, path, self._judge))

    def _finding(self, kind: str, invariant: _Invariant, cases: list[tuple[Act, _Set]]) -> InvariantFinding:
        """Broken if an act is granted somewhere in its set, shown by the shortest of those paths."""
        outcomes = [(act, self._granted(act, where)) for act, where in cases]
        found = [
            Witness(act, outcome.path.text) for act, outcome in outcomes if isinstance(outcome, FoundPath)
        ]
        unknown = [f"{act}: {outcome.why}" for act, outcome in outcomes if isinstance(outcome, Undecided)]
        if found:
            first = min(found, key=lambda each: (len(each.path), each.path))
            return InvariantFinding(invariant.id, kind, invariant.why, "broken", (first,))
        if unknown:
            return InvariantFinding(invariant.id, kind, invariant.why, "undecided", reason="; ".join(unknown))
        return InvariantFinding(invariant.id, kind, invariant.why, "proved")

    def _apart(self, apart: Apart) -> InvariantFinding:
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
        return InvariantFinding(apart.id, "apart", apart.why, "broken", witnesses)

    def _granted(self, act: Act, where: _Set) -> Outcome:
        return self._prover.find(
            All([self._prover.grant(self._policy, act), where.language]),
            self._policy.scopes,
            lambda path: grants(act, path, self._judge) and where.confirms(path),
        )


def _acts(verbs: tuple[str, ...]) -> list[Act]:
    return [act for act in ACTS if "*" in verbs or act in verbs]


def _check(paths: tuple[str, ...], where: str, *, deny: bool) -> None:
    """Hold patterns to the dialect; their scopes may be ones that only other policies declare."""
    for path in paths:
        scope = Scope(path.removeprefix("/").partition("/")[0])
        check_pattern(path, deny=deny, scopes=(scope,), where=where)


# -- mutation ----------------------------------------------------------------------------------------
#
# Whether the inline tests of a policy would notice if one of its rules were weaker.
#
# Each mutant is the policy with one thing made looser in the file itself: a deny pattern or one verb of a
# deny rule dropped, an allow pattern widened, a number of a quota doubled. A mutant is
#
#     caught      an inline test of the file fails on it
#     equivalent  it is proved to grant nothing more: other rules, a parent, or the name grammar hold the
#     same
#     survived    neither; a path shows what the tests do not see, and a test made of it would catch the
#     mutant
#     undecided   neither, and the prover gave up
#
# Only the file's own rules are mutated: those of its parents are for their own tests. A quota bounds what
# is written, so one whose files nobody may create or modify bounds nothing.

Status = Literal["caught", "equivalent", "survived", "undecided"]

_CREATABLE: Final = ("/**/?*.md",)
_NOT_CREATABLE: Final = ("/**/..md", "/**/...md")
"""What may be created at all by the name grammar, but that it takes no name of dots only."""

_NUMBERS: Final = (
    ("file_bytes", "max_file_bytes", MAX_BYTES),
    ("files", "max_files", MAX_COUNT),
    ("total_bytes", "max_total_bytes", MAX_BYTES),
)
"""Of a quota: how a test asks about each number, its name, and how large it can be."""


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
    status: Status
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


@dataclass(frozen=True, slots=True)
class _Mutation:
    what: str
    kind: Literal["allow", "deny", "quota"]
    rule: str
    pattern: str | None


class _MutantTrial:
    def __init__(self, loaded: Loaded) -> None:
        self._policy, self._checks = loaded.policy, loaded.files[0].tables.test
        self._judge = Judge(self._policy)
        self._own = next(layer for layer in self._policy.layers if layer.name == loaded.files[0].name)
        own, *others = ([quota_of(table) for table in file.tables.quota] for file in loaded.files)
        self._quotas = [each for each in own if not any(each in quotas for quotas in others)]

    def all(self) -> Iterator[Mutant]:
        for change, layer in (*self._without_denies(), *self._with_wider_allows()):
            layers = [each for each in self._policy.layers if each is not self._own]
            mutated = replace(self._policy, layers=(*layers, layer))
            yield self._judged(change, mutated)
        yield from self._with_larger_quotas()

    def _without_denies(self) -> Iterator[tuple[_Mutation, Layer]]:
        for rule in self._own.deny:
            place = f"deny[{rule.id}]"
            for path in rule.paths:
                left = tuple(each for each in rule.paths if each != path)
                change = _Mutation(f"{place} without pattern {path!r}", "deny", rule.id, path)
                yield change, self._with_deny(rule, replace(rule, paths=left))
            for verb in rule.verbs:
                verbs = tuple(each for each in rule.verbs if each != verb)
                change = _Mutation(f"{place} without verb {verb}", "deny", rule.id, None)
                yield change, self._with_deny(rule, replace(rule, verbs=verbs))

    def _with_deny(self, rule: Rule, weaker: Rule) -> Layer:
        """A rule without patterns or verbs denies nothing, and is left as it is."""
        denies = tuple(weaker if each is rule else each for each in self._own.deny)
        return replace(self._own, deny=denies)

    def _with_wider_allows(self) -> Iterator[tuple[_Mutation, Layer]]:
        for rule in self._own.allow:
            for path in rule.paths:
                for wider in _wider(path):
                    paths = tuple(wider if each == path else each for each in rule.paths)
                    allows = (
                        replace(rule, paths=paths) if each is rule else each for each in self._own.allow
                    )
                    change = _Mutation(
                        f"allow[{rule.id}] with {wider!r} for {path!r}", "allow", rule.id, path
                    )
                    yield change, replace(self._own, allow=tuple(allows))

    def _with_larger_quotas(self) -> Iterator[Mutant]:
        for quota in self._policy.quotas:
            for asked, field, most in _NUMBERS if quota in self._quotas else ():
                bound = getattr(quota, field)
                larger = min(2 * bound, most)
                if larger == bound:
                    continue
                raised = replace(quota, **{field: larger})
                quotas = [raised if each is quota else each for each in self._policy.quotas]
                change = _Mutation(f"quota[{quota.id}] with {field} = {larger}", "quota", quota.id, None)
                mutated = replace(self._policy, quotas=tuple(quotas))
                mutant = self._caught(change, mutated) or self._bounded(change, quota, field)
                yield replace(mutant, over=(asked, bound + 1)) if mutant.status == "survived" else mutant

    def _judged(self, change: _Mutation, mutated: Policy) -> Mutant:
        return self._caught(change, mutated) or self._compared(change, mutated)

    def _caught(self, change: _Mutation, mutated: Policy) -> Mutant | None:
        """The mutant, if an inline test fails on it."""
        judge = Judge(mutated)
        for number, check in enumerate(self._checks, start=1):
            if failure(check, judge, mutated) is not None:
                return Mutant(change.what, change.kind, change.rule, change.pattern, "caught", test=number)
        return None

    def _compared(self, change: _Mutation, mutated: Policy) -> Mutant:
        """What a mutant grants that the policy does not."""
        prover, judge = Prover([self._policy, mutated], exact=[*_CREATABLE, *_NOT_CREATABLE]), Judge(mutated)
        outcomes = (
            (
                act,
                prover.find(
                    All([_granted(prover, mutated, act), Not(prover.grant(self._policy, act))]),
                    mutated.scopes,
                    partial(self._is_gained, judge, act),
                ),
            )
            for act in ACTS
        )
        return _told(change, outcomes)

    def _is_gained(self, judge: Judge, act: Act, path: CanonicalPath) -> bool:
        return _grants(act, path, judge) and not grants(act, path, self._judge)

    def _bounded(self, change: _Mutation, quota: Quota, field: str) -> Mutant:
        """What may be written that this number bounds, and none of another quota as tightly."""
        others = [
            path
            for each in self._policy.quotas
            if each is not quota and getattr(each, field) <= getattr(quota, field)
            for path in each.paths
        ]
        prover = Prover([self._policy], exact=[*_CREATABLE, *_NOT_CREATABLE, *quota.paths, *others])
        only = [prover.exact(quota.paths), Not(prover.exact(others))]
        writing: tuple[Act, ...] = (Verb.CREATE, Verb.MODIFY)
        outcomes = (
            (
                act,
                prover.find(
                    All([_granted(prover, self._policy, act), *only]),
                    self._policy.scopes,
                    partial(self._is_bounded, quota, field, act),
                ),
            )
            for act in writing
        )
        return _told(change, outcomes)

    def _is_bounded(self, quota: Quota, field: str, act: Act, path: CanonicalPath) -> bool:
        bound, counting = getattr(quota, field), self._judge.quotas_for(path)
        holding = [each for each in counting if getattr(each, field) <= bound]
        return _grants(act, path, self._judge) and holding == [quota]


def _told(change: _Mutation, outcomes: Iterator[tuple[Act, Outcome]]) -> Mutant:
    """The mutant, by the first path that was found."""
    mutant = Mutant(change.what, change.kind, change.rule, change.pattern, "equivalent")
    for act, outcome in outcomes:
        if isinstance(outcome, FoundPath):
            return replace(mutant, status="survived", act=act, path=outcome.path.text)
        if not isinstance(outcome, Nothing):
            mutant = replace(mutant, status="undecided")
    return mutant


def _granted(prover: Prover, policy: Policy, act: Act) -> Language:
    """What the policy and the name grammar grant."""
    granted = prover.grant(policy, act)
    if act != Verb.CREATE:
        return granted
    return All([granted, prover.exact(_CREATABLE), Not(prover.exact(_NOT_CREATABLE))])


def _grants(act: Act, path: CanonicalPath, judge: Judge) -> bool:
    with suppress(Refusal):
        require(act, path, judge)
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
    tables = ("limits", "confinement", "changes", "content", "provenance", "retention")
    terms: dict[str, Value] = {
        f"{table}.{key}": ", ".join(value) or "none" if isinstance(value, tuple) else value
        for table in tables
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
#     1. For every act: is there a path that the one grants and the other does not? If there is none, that
#        is
#        proved (`search`). If there is, the shortest one is shown, with the rule that makes the difference,
#        and
#        what that pattern accounts for is left out of the next search, until nothing is left.
#     2. Every quota of the other is kept: one of the one covers at least its files, with no larger number.
#     3. Every other term is at least as strict (`terms`).
#
# Contract:
#     D1  `proved` means that the new policy grants nothing that the old one does not, and loosens no term.
#     D2  Each path was put to both real decisions. Undecided is never taken for proved.
#
# Cost: for two policies like `strict` 0.3 s; it is bounded by `search.MAX_WORK` for each act and direction.

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
        self._judges = Judge(less), Judge(more)
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
            less, more = (self._prover.grant(policy, act) for policy in (self._less, self._more))
            if less is not more or self._common != list(self._more.scopes):
                by_patterns.setdefault((less, more), []).append(act)
        return [tuple(acts) for acts in by_patterns.values()]

    def _in_common(self, acts: tuple[Act, ...]) -> Iterator[tuple[CanonicalPath, Cause]]:
        """In scopes that both declare: one path for each pattern that makes a difference."""
        act = acts[0]
        gained = [self._prover.grant(self._more, act), Not(self._prover.grant(self._less, act))]
        told: list[Cause] = []
        while len(told) <= MAX_GAINS:
            language = All([*gained, *self._without(told)])
            outcome = self._prover.find(language, self._common, lambda path: self._confirms(act, path))
            if not isinstance(outcome, FoundPath):
                self._note(outcome, acts)
                return
            cause = self._cause(act, outcome.path)
            told.append(cause)
            yield outcome.path, cause

    def _in_new_scopes(self, acts: tuple[Act, ...]) -> Iterator[tuple[CanonicalPath, Cause]]:
        act = acts[0]
        for scope in self._more.scopes:
            if scope not in self._less.scopes:
                granted = self._prover.grant(self._more, act)
                outcome = self._prover.find(granted, [scope], lambda path: self._confirms(act, path))
                self._note(outcome, acts)
                if isinstance(outcome, FoundPath):
                    yield outcome.path, Cause("scope", "", scope, "")

    def _without(self, told: list[Cause]) -> Iterator[Language]:
        """All that the patterns of these causes do not account for."""
        denying = [cause.pattern for cause in told if cause.kind == "deny"]
        granting = [cause.pattern for cause in told if cause.kind != "deny"]
        yield Not(self._prover.tree(denying))
        yield Not(self._prover.exact(granting))

    def _confirms(self, act: Act, path: CanonicalPath) -> bool:
        less, more = self._judges
        return grants(act, path, more) and not grants(act, path, less)

    def _note(self, outcome: Outcome, acts: tuple[Act, ...]) -> None:
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
            counted = [scope for scope in common if _counts(prover, quota, scope)]
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


def _counts(prover: Prover, quota: Quota, scope: Scope) -> bool:
    """Whether the quota counts some files of the scope, or may do so."""
    outcome = prover.find(prover.exact(quota.paths), [scope], AllowPatterns(quota.paths).match)
    return not isinstance(outcome, Nothing)


def _covers(prover: Prover, quota: Quota, other: Quota, scope: Scope) -> bool:
    """Whether `quota` counts every file of the scope that `other` counts."""
    if set(other.paths) <= set(quota.paths):
        return True
    counts, counted = AllowPatterns(quota.paths), AllowPatterns(other.paths)
    uncovered = All([prover.exact(other.paths), Not(prover.exact(quota.paths))])
    outcome = prover.find(uncovered, [scope], lambda path: counted.match(path) and not counts.match(path))
    return isinstance(outcome, Nothing)
