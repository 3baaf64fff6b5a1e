"""Whether the inline tests of a policy would notice if one of its rules were weaker.

Each mutant is the policy with one thing made looser in the file itself: a deny pattern or one verb of a deny
rule dropped, an allow pattern widened, a number of a quota doubled. A mutant is

    caught      an inline test of the file fails on it
    equivalent  it is proved to grant nothing more: other rules, a parent, or the name grammar hold the same
    survived    neither; a path shows what the tests do not see, and a test made of it would catch the mutant
    undecided   neither, and the prover gave up

Only the file's own rules are mutated: those of its parents are for their own tests. A quota bounds what is
written, so one whose files nobody may create or modify bounds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from muniment.errors import BadName
from muniment.names import Verb
from muniment.policy.automaton import All, Language, Not
from muniment.policy.checks import failure
from muniment.policy.decide import ACTS, Act, Judge
from muniment.policy.grammar import CanonicalPath, check_creatable
from muniment.policy.load import Loaded
from muniment.policy.meet import sorted_layers, sorted_quotas
from muniment.policy.model import MAX_BYTES, MAX_COUNT, Layer, Policy, Quota, Rule
from muniment.policy.pattern import MAX_TREE_WILDCARDS
from muniment.policy.prover import Prover
from muniment.policy.search import Found, Nothing, Outcome

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
    yield from _Trial(loaded).all()


@dataclass(frozen=True, slots=True)
class _Change:
    what: str
    kind: Literal["allow", "deny", "quota"]
    rule: str
    pattern: str | None


class _Trial:
    def __init__(self, loaded: Loaded) -> None:
        self._policy, self._checks = loaded.policy, loaded.files[0].tables.test
        self._judge = Judge(self._policy)
        self._own = next(layer for layer in self._policy.layers if layer.name == loaded.files[0].name)
        own, *others = ([_of(table) for table in file.tables.quota] for file in loaded.files)
        self._quotas = [each for each in own if not any(each in quotas for quotas in others)]

    def all(self) -> Iterator[Mutant]:
        for change, layer in (*self._without_denies(), *self._with_wider_allows()):
            layers = [each for each in self._policy.layers if each is not self._own]
            mutated = self._policy.model_copy(update={"layers": sorted_layers([*layers, layer])})
            yield self._judged(change, mutated)
        yield from self._with_larger_quotas()

    def _without_denies(self) -> Iterator[tuple[_Change, Layer]]:
        for rule in self._own.deny:
            place = f"deny[{rule.id}]"
            for path in rule.paths:
                left = tuple(each for each in rule.paths if each != path)
                change = _Change(f"{place} without pattern {path!r}", "deny", rule.id, path)
                yield change, self._with_deny(rule, rule.model_copy(update={"paths": left}))
            for verb in rule.verbs:
                verbs = tuple(each for each in rule.verbs if each != verb)
                change = _Change(f"{place} without verb {verb}", "deny", rule.id, None)
                yield change, self._with_deny(rule, rule.model_copy(update={"verbs": verbs}))

    def _with_deny(self, rule: Rule, weaker: Rule) -> Layer:
        """A rule without patterns or verbs denies nothing, and is left as it is."""
        denies = tuple(weaker if each is rule else each for each in self._own.deny)
        return self._own.model_copy(update={"deny": denies})

    def _with_wider_allows(self) -> Iterator[tuple[_Change, Layer]]:
        for rule in self._own.allow:
            for path in rule.paths:
                for wider in _wider(path):
                    paths = tuple(wider if each == path else each for each in rule.paths)
                    allows = (
                        rule.model_copy(update={"paths": paths}) if each is rule else each
                        for each in self._own.allow
                    )
                    change = _Change(f"allow[{rule.id}] with {wider!r} for {path!r}", "allow", rule.id, path)
                    yield change, self._own.model_copy(update={"allow": tuple(allows)})

    def _with_larger_quotas(self) -> Iterator[Mutant]:
        for quota in self._policy.quotas:
            for asked, field, most in _NUMBERS if _of(quota) in self._quotas else ():
                bound = getattr(quota, field)
                larger = min(2 * bound, most)
                if larger == bound:
                    continue
                raised = quota.model_copy(update={field: larger})
                quotas = [raised if each is quota else each for each in self._policy.quotas]
                change = _Change(f"quota[{quota.id}] with {field} = {larger}", "quota", quota.id, None)
                mutated = self._policy.model_copy(update={"quotas": sorted_quotas(quotas)})
                mutant = self._caught(change, mutated) or self._bounded(change, quota, field)
                yield replace(mutant, over=(asked, bound + 1)) if mutant.status == "survived" else mutant

    def _judged(self, change: _Change, mutated: Policy) -> Mutant:
        return self._caught(change, mutated) or self._compared(change, mutated)

    def _caught(self, change: _Change, mutated: Policy) -> Mutant | None:
        """The mutant, if an inline test fails on it."""
        judge = Judge(mutated)
        for number, check in enumerate(self._checks, start=1):
            if failure(check, judge, mutated) is not None:
                return Mutant(change.what, change.kind, change.rule, change.pattern, "caught", test=number)
        return None

    def _compared(self, change: _Change, mutated: Policy) -> Mutant:
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
        return _grants(judge, act, path) and not self._judge.grants(act, path)

    def _bounded(self, change: _Change, quota: Quota, field: str) -> Mutant:
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
        return _grants(self._judge, act, path) and holding == [quota]


def _told(change: _Change, outcomes: Iterator[tuple[Act, Outcome]]) -> Mutant:
    """The mutant, by the first path that was found."""
    mutant = Mutant(change.what, change.kind, change.rule, change.pattern, "equivalent")
    for act, outcome in outcomes:
        if isinstance(outcome, Found):
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


def _grants(judge: Judge, act: Act, path: CanonicalPath) -> bool:
    with suppress(BadName):
        if act == Verb.CREATE:
            check_creatable(path)
        return judge.grants(act, path)
    return False


def _of(quota: Quota) -> Quota:
    """The quota as it is in a policy, wherever it comes from."""
    return Quota(**{**dict(quota), "paths": tuple(sorted(set(quota.paths)))})


def _wider(pattern: str) -> Iterator[str]:
    """The pattern at any depth, and with any name: as `/user/*.md` becomes `/user/**/*.md` and `/user/*`."""
    folder, _, name = pattern.rpartition("/")
    if name == "**":
        return
    if folder.count("**") < MAX_TREE_WILDCARDS and not folder.endswith("**"):
        yield f"{folder}/**/{name}"
    if name != "*":
        yield f"{folder}/*"
