"""Whether every deny rule of a policy fires: shown at load time by a path for each pattern and verb.

A deny rule that does nothing is the commonest defect of policies, and the quietest. So for each pattern the
shortest canonical path that it should match is sought by an automaton of our own, whatever the allow rules
say, and put to the real decision for every verb of its rule. A pattern without such a path is silent as well.

Cost: 0.4 ms a pattern, once for each digest in a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muniment.errors import PathEscape, Refusal
from muniment.names import Digest, Scope, Verb
from muniment.policy.alphabet import plain_letters_for
from muniment.policy.automaton import Budget, Patterns
from muniment.policy.decide import Judge
from muniment.policy.grammar import CanonicalPath, canonicalise, fold
from muniment.policy.model import Policy, Rule
from muniment.policy.pattern import DenyPatterns, is_anchored
from muniment.policy.search import Found, Undecided, shortest

MAX_WORK: Final = 300_000
"""Steps for one pattern; a pattern of the greatest length takes a tenth."""

MAX_KNOWN: Final = 256
"""Digests of policies that passed and are kept in mind."""

_passed: dict[Digest, None] = {}


@dataclass(frozen=True, slots=True)
class Silent:
    """A deny pattern that does nothing.

    Attributes:
        layer: the name of the file.
        rule: the id of the rule.
        pattern: as it stands there.
        verb: for which it does not fire; None if it matches no path at all.
        path: the one that it should deny; None if there is none.
    """

    layer: str
    rule: str
    pattern: str
    verb: Verb | None
    path: CanonicalPath | None


def silent_denies(policy: Policy) -> Iterator[Silent]:
    """Every deny pattern of the policy that does not fire; a policy that passed is not tried again."""
    digest = policy.digest
    if digest in _passed:
        return
    judge, fires = Judge(_granting_all(policy)), True
    for layer in policy.layers:
        for rule in layer.deny:
            for found in _silent(rule, layer.name, judge, policy.scopes):
                fires = False
                yield found
    if fires:
        _passed[digest] = None
        if len(_passed) > MAX_KNOWN:
            del _passed[next(iter(_passed))]


def _granting_all(policy: Policy) -> Policy:
    """The policy with nothing left of it but its deny rules."""
    everything = Rule(id="all", verbs=tuple(sorted(Verb)), paths=("/**",))
    layers = tuple(layer.model_copy(update={"allow": (everything,)}) for layer in policy.layers)
    return policy.model_copy(update={"layers": layers})


def shortest_match(pattern: str, scopes: tuple[Scope, ...]) -> CanonicalPath | None:
    """The shortest canonical path that a deny pattern matches; None if there is none, or none is found.

    Where the search gives up, as on `*-` before twenty `?`, it is a path made of the pattern's literals.
    """
    letters, budget = plain_letters_for(pattern), Budget(MAX_WORK)
    matcher = DenyPatterns((pattern,))
    outcome = shortest(
        Patterns.tree([pattern], letters, budget),
        letters,
        scopes,
        budget,
        lambda path: matcher.match(path.text, fold(path.text)),
    )
    if isinstance(outcome, Found):
        return outcome.path
    samples = (_sample(pattern, scope) for scope in scopes if isinstance(outcome, Undecided))
    return next((path for path in samples if path and matcher.match(path.text, fold(path.text))), None)


def _sample(pattern: str, scope: Scope) -> CanonicalPath | None:
    """The path below `scope` that has `-` for each `*` and `?` of the pattern, and nothing for `**`."""
    segments = pattern.removeprefix("/").removesuffix("/").split("/")
    below = segments[1:] if is_anchored(pattern) and segments[0] != "**" else segments
    names = [name.replace("*", "-").replace("?", "-") for name in below if name != "**"]
    inside = ["-"] if not names or pattern.endswith(("/", "/**")) else []
    try:
        return canonicalise("/".join([scope, *names, *inside]), (scope,))
    except (PathEscape, Refusal):
        return None


def _silent(rule: Rule, layer: str, judge: Judge, scopes: tuple[Scope, ...]) -> Iterator[Silent]:
    for pattern in rule.paths:
        path = shortest_match(pattern, scopes)
        if path is None:
            yield Silent(layer, rule.id, pattern, None, None)
            continue
        for verb in rule.verbs:
            if judge.allows(verb, path):
                yield Silent(layer, rule.id, pattern, verb, path)
                break
