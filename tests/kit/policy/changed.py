"""Pairs of policies that differ as edits differ, and paths on which that may show."""

import itertools
import json
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from kit.policy.reading import SCOPES, some_name, some_pattern
from muniment.errors import PathEscape, PolicyInvalid, Refusal
from muniment.names import Verb
from muniment.policy.grammar import canonicalise
from muniment.policy.load import parse_policy

VERBS = tuple(verb.value for verb in Verb)
BOTH = "user = {}\nteam-2 = {}\n"


class RuleText(NamedTuple):
    """One rule, as it will stand in a file."""

    kind: str
    verbs: list[str]
    paths: list[str]


def made(rules, scopes=BOTH, terms=""):
    """The policy of some rules."""
    tables = "".join(
        f'[[{rule.kind}]]\nid = "{rule.kind}-{at}"\nverbs = {json.dumps(rule.verbs)}\n'
        f"paths = {json.dumps(rule.paths, ensure_ascii=False)}\n"
        for at, rule in enumerate(rules)
    )
    text = f'schema = "muniment-policy/1"\nname = "own"\n[scopes]\n{scopes}{tables}{terms}'
    return parse_policy(text, where="own", parents={}.__getitem__)


def allow(*paths, verbs=("read",)):
    return RuleText("allow", list(verbs), list(paths))


def deny(*paths, verbs=("*",)):
    return RuleText("deny", list(verbs), list(paths))


def some_rules(rng, names):
    """A few rules about a few names. Some patterns match no path, so that not every policy of them loads."""

    def rule(kind):
        every = ["*"] if kind == "deny" else list(VERBS)
        verbs = rng.choice([every, ["read"], ["modify", "create"], ["delete"], ["list", "modify"]])
        deny, count = kind == "deny", rng.choice((1, 1, 2))
        return RuleText(kind, verbs, [some_pattern(rng, deny=deny, names=names) for _ in range(count)])

    wide = [allow(rng.choice(("/**", "/user/**", "/*/*.md", "/user/**/*.md")), verbs=VERBS)]
    rules = [rule("allow") for _ in range(rng.choice((0, 1, 2)))]
    rules += [rule("deny") for _ in range(rng.choice((0, 1, 2, 3)))]
    return rules + (wide if rng.random() < 0.7 else [])


def edited(rng, rules, names):
    """The rules after one or two edits."""
    rules = list(rules)
    for _ in range(rng.choice((0, 1, 1, 2))):
        if not rules or rng.random() < 0.2:
            rules.append(rng.choice(some_rules(rng, names) or [allow("/**")]))
            continue
        at = rng.randrange(len(rules))
        rule = rules[at]
        patterns = [*rule.paths[1:], some_pattern(rng, deny=rule.kind == "deny", names=names)]
        changes = (
            *([], [rule._replace(verbs=[rng.choice(VERBS)])], [rule._replace(paths=patterns)]),
            *([rule._replace(paths=patterns)], [rule._replace(paths=[each.lower() for each in rule.paths])]),
            [rule._replace(paths=[each]) for each in rule.paths],
        )
        rules[at : at + 1] = rng.choice(changes)
    return rules


def loaded(rules):
    """The policy, or None where one of its patterns matches no path."""
    try:
        return made(rules)
    except PolicyInvalid:
        return None


def some_pair(rng):
    """Two policies, the one an edit of the other, and their patterns."""
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
    """Every canonical path over a few characters, the shortest first; up to `longest` below the scope."""
    texts = [
        f"{scope}/{''.join(rest)}"
        for length in range(1, longest + 1)
        for rest in itertools.product(ALPHABET, repeat=length)
        for scope in scopes
    ]
    found = []
    for text in sorted(texts, key=len):
        with suppress(PathEscape, Refusal):
            found.append(canonicalise(text, scopes))
    return found
