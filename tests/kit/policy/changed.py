"""Pairs of policies that differ like edits, and paths on which they may differ."""

import itertools
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from kit.policy.files import parsed, rule
from kit.policy.reading import SCOPES, some_name, some_pattern
from muniment.errors import PathEscape, PolicyInvalid, Refusal
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise

VERBS = tuple(verb.value for verb in Verb)
BOTH = "user = {}\nteam-2 = {}\n"


class RuleText(NamedTuple):
    """One rule, as text for a file."""

    kind: str
    verbs: list[str]
    paths: list[str]


def made(rules, scopes=BOTH, terms=""):
    """Build the policy of some rules."""
    tables = "".join(rule(one.kind, f"{one.kind}-{at}", one.verbs, one.paths) for at, one in enumerate(rules))
    return parsed(f'schema = "muniment-policy/1"\nname = "own"\n[scopes]\n{scopes}{tables}{terms}')


def allow(*paths, verbs=("read",)):
    return RuleText("allow", list(verbs), list(paths))


def deny(*paths, verbs=("*",)):
    return RuleText("deny", list(verbs), list(paths))


def some_rules(rng, names):
    """Return a few random rules about a few names. Some patterns match no path, so not every policy loads."""

    def some_rule(kind):
        every = ["*"] if kind == "deny" else list(VERBS)
        verbs = rng.choice([every, ["read"], ["modify", "create"], ["delete"], ["list", "modify"]])
        patterns = [some_pattern(rng, deny=kind == "deny", names=names) for _ in range(rng.choice((1, 1, 2)))]
        return RuleText(kind, verbs, patterns)

    rules = [some_rule("allow") for _ in range(rng.choice((0, 1, 2)))]
    rules += [some_rule("deny") for _ in range(rng.choice((0, 1, 2, 3)))]
    wide = allow(rng.choice(("/**", "/user/**", "/*/*.md", "/user/**/*.md")), verbs=VERBS)
    return [*rules, wide] if rng.random() < 0.7 else rules


def edited(rng, rules, names):
    """Return the rules after one or two random edits."""
    rules = list(rules)
    for _ in range(rng.choice((0, 1, 1, 2))):
        if not rules or rng.random() < 0.2:
            rules.append(rng.choice(some_rules(rng, names) or [allow("/**")]))
            continue
        at = rng.randrange(len(rules))
        one = rules[at]
        patterns = [*one.paths[1:], some_pattern(rng, deny=one.kind == "deny", names=names)]
        changes = (
            *([], [one._replace(verbs=[rng.choice(VERBS)])], [one._replace(paths=patterns)]),
            *([one._replace(paths=patterns)], [one._replace(paths=[each.lower() for each in one.paths])]),
            [one._replace(paths=[each]) for each in one.paths],
        )
        rules[at : at + 1] = rng.choice(changes)
    return rules


def loaded(rules):
    """Return the policy, or None if one of its patterns matches no path."""
    with suppress(PolicyInvalid):
        return made(rules)


def some_pair(rng):
    """Return two policies, one an edit of the other, and their patterns."""
    while True:
        names = [some_name(rng) for _ in range(3)]
        rules = some_rules(rng, names)
        later = edited(rng, rules, names)
        old, new = loaded(rules), loaded(later)
        patterns = [path for rule in (*rules, *later) for path in rule.paths]
        if old is not None and new is not None and patterns:
            return old, new, patterns


ALPHABET = "aA\xdfs\u0130. /"


@cache
def small_world(longest=4, scopes=SCOPES):
    """Return every canonical path over a few characters, shortest first, up to `longest` after the scope."""
    lengths = range(1, longest + 1)
    rests = ("".join(rest) for length in lengths for rest in itertools.product(ALPHABET, repeat=length))
    found = []
    for text in sorted((f"{scope}/{rest}" for rest in rests for scope in scopes), key=len):
        with suppress(PathEscape, Refusal):
            found.append(canonicalise(text, scopes))
    return found
