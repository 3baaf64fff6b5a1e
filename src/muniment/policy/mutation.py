"""Whether the inline tests of a policy would notice if one of its rules were weaker.

Each mutant is the policy with one thing made looser in the file itself: a deny pattern or one verb of a deny
rule dropped, an allow pattern widened, a number of a quota doubled. A mutant is

    caught      an inline test of the file fails on it
    equivalent  it is proved to grant nothing more: other rules, or a parent, hold the same
    survived    neither; a path shows what the tests do not see
    undecided   neither, and the prover gave up

Only the file's own rules are mutated: those of its parents are for their own tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from muniment.names import Verb
from muniment.policy.automaton import All, Not
from muniment.policy.checks import failure
from muniment.policy.decide import ACTS, Act, Judge
from muniment.policy.diff import changed_quotas
from muniment.policy.grammar import CanonicalPath
from muniment.policy.load import Loaded
from muniment.policy.meet import sorted_layers, sorted_quotas
from muniment.policy.model import MAX_BYTES, MAX_COUNT, Layer, Policy, Rule
from muniment.policy.pattern import MAX_TREE_WILDCARDS
from muniment.policy.prover import Prover
from muniment.policy.search import Found, Undecided

Status = Literal["caught", "equivalent", "survived", "undecided"]


_BY_TESTABILITY: Final = sorted(ACTS, key=lambda act: act == Verb.CREATE)
"""Creating comes last: of what may be created a test sees only names that end in `.md`."""


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
        act: what the mutant grants in addition, if it survived; None for quotas.
        path: the shortest on which it does.
    """

    what: str
    kind: Literal["allow", "deny", "quota"]
    rule: str
    pattern: str | None
    status: Status
    test: int | None = None
    act: Act | None = None
    path: str | None = None


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
        self._quotas = {table.id for table in loaded.files[0].tables.quota}

    def all(self) -> Iterator[Mutant]:
        for change, layer in (*self._without_denies(), *self._with_wider_allows()):
            layers = [each for each in self._policy.layers if each is not self._own]
            mutated = self._policy.model_copy(update={"layers": sorted_layers([*layers, layer])})
            yield self._judged(change, mutated)
        for change, mutated in self._with_larger_quotas():
            yield self._judged(change, mutated)

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

    def _with_larger_quotas(self) -> Iterator[tuple[_Change, Policy]]:
        for quota in self._policy.quotas:
            if quota.id not in self._quotas:
                continue
            for field, most in (
                ("max_file_bytes", MAX_BYTES),
                ("max_files", MAX_COUNT),
                ("max_total_bytes", MAX_BYTES),
            ):
                larger = min(2 * getattr(quota, field), most)
                if larger == getattr(quota, field):
                    continue
                raised = quota.model_copy(update={field: larger})
                quotas = [raised if each is quota else each for each in self._policy.quotas]
                change = _Change(f"quota[{quota.id}] with {field} = {larger}", "quota", quota.id, None)
                yield change, self._policy.model_copy(update={"quotas": sorted_quotas(quotas)})

    def _judged(self, change: _Change, mutated: Policy) -> Mutant:
        judge = Judge(mutated)
        for number, check in enumerate(self._checks, start=1):
            if failure(check, judge, mutated) is not None:
                return self._told(change, "caught", test=number)
        prover = Prover(
            [self._policy, mutated], exact=[path for quota in mutated.quotas for path in quota.paths]
        )
        if change.kind == "quota":
            is_looser = any(term.is_looser for term in changed_quotas(prover, self._policy, mutated))
            return self._told(change, "survived" if is_looser else "equivalent")
        undecided = False
        for act in _BY_TESTABILITY:
            outcome = prover.find(
                All([prover.grant(mutated, act), Not(prover.grant(self._policy, act))]),
                mutated.scopes,
                partial(self._is_gained, judge, act),
            )
            if isinstance(outcome, Found):
                return self._told(change, "survived", act=act, path=outcome.path.text)
            undecided = undecided or isinstance(outcome, Undecided)
        return self._told(change, "undecided" if undecided else "equivalent")

    def _is_gained(self, judge: Judge, act: Act, path: CanonicalPath) -> bool:
        return judge.grants(act, path) and not self._judge.grants(act, path)

    def _told(
        self,
        change: _Change,
        status: Status,
        *,
        test: int | None = None,
        act: Act | None = None,
        path: str | None = None,
    ) -> Mutant:
        return Mutant(change.what, change.kind, change.rule, change.pattern, status, test, act, path)


def _wider(pattern: str) -> Iterator[str]:
    """The pattern at any depth, and with any name: as `/user/*.md` becomes `/user/**/*.md` and `/user/*`."""
    folder, _, name = pattern.rpartition("/")
    if name == "**":
        return
    if folder.count("**") < MAX_TREE_WILDCARDS and not folder.endswith("**"):
        yield f"{folder}/**/{name}"
    if name != "*":
        yield f"{folder}/*"
