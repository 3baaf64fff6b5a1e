"""Questions about what policies grant, answered by a path or by a proof.

A `Prover` holds the automata of some policies over one alphabet, so that what two policies share is read once
and stays in step: the languages of equal rules are one and the same.

    prover = Prover([old, new])
    prover.find(All([prover.grant(new, act), Not(prover.grant(old, act))]), new.scopes, confirms)

Attacked by tests/policy/test_prover.py: random paths against every proof, brute force over small worlds for
every witness, pathspec for the automata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from muniment.names import Scope, Verb
from muniment.policy.alphabet import letters_for
from muniment.policy.automaton import All, Budget, Language, Not, Patterns
from muniment.policy.decide import REMOVAL, Act
from muniment.policy.grammar import CanonicalPath
from muniment.policy.model import Layer, Policy, Rule
from muniment.policy.search import MAX_WORK, Outcome, shortest


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
        self._budget = Budget(work)
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
