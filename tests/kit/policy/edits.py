"""Pairs of policies that differ like edits, and paths on which they may differ."""

import itertools
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from kit.policy.files import format_rule, parse_text
from kit.policy.patterns import SCOPES, make_name, make_pattern
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


def make_policy(rules, scopes=BOTH, more=""):
    """Build the policy of some rules."""
    tables = "".join(
        format_rule(one.kind, f"{one.kind}-{at}", one.verbs, one.paths) for at, one in enumerate(rules)
    )
    return parse_text(f'schema = "muniment-policy/1"\nname = "own"\n[scopes]\n{scopes}{tables}{more}')


def make_allow(*paths, verbs=("read",)):
    return RuleText("allow", list(verbs), list(paths))


def make_deny(*paths, verbs=("*",)):
    return RuleText("deny", list(verbs), list(paths))


def make_rules(rng, names):
    """Return a few random rules about a few names. Some patterns match no path, so not every policy loads."""

    def make_rule(kind):
        every = ["*"] if kind == "deny" else list(VERBS)
        verbs = rng.choice([every, ["read"], ["modify", "create"], ["delete"], ["list", "modify"]])
        patterns = [make_pattern(rng, deny=kind == "deny", names=names) for _ in range(rng.choice((1, 1, 2)))]
        return RuleText(kind, verbs, patterns)

    rules = [make_rule("allow") for _ in range(rng.choice((0, 1, 2)))]
    rules += [make_rule("deny") for _ in range(rng.choice((0, 1, 2, 3)))]
    wide = make_allow(rng.choice(("/**", "/user/**", "/*/*.md", "/user/**/*.md")), verbs=VERBS)
    return [*rules, wide] if rng.random() < 0.7 else rules


def edit_rules(rng, rules, names):
    """Return the rules after one or two random edits."""
    rules = list(rules)
    for _ in range(rng.choice((0, 1, 1, 2))):
        if not rules or rng.random() < 0.2:
            rules.append(rng.choice(make_rules(rng, names) or [make_allow("/**")]))
            continue
        at = rng.randrange(len(rules))
        one = rules[at]
        patterns = [*one.paths[1:], make_pattern(rng, deny=one.kind == "deny", names=names)]
        changes = (
            *([], [one._replace(verbs=[rng.choice(VERBS)])], [one._replace(paths=patterns)]),
            *([one._replace(paths=patterns)], [one._replace(paths=[each.lower() for each in one.paths])]),
            [one._replace(paths=[each]) for each in one.paths],
        )
        rules[at : at + 1] = rng.choice(changes)
    return rules


def try_load(rules):
    """Return the policy, or None if one of its patterns matches no path."""
    with suppress(PolicyInvalid):
        return make_policy(rules)


def make_policy_pair(rng):
    """Return two policies, one an edit of the other, and their patterns."""
    while True:
        names = [make_name(rng) for _ in range(3)]
        rules = make_rules(rng, names)
        later = edit_rules(rng, rules, names)
        old, new = try_load(rules), try_load(later)
        patterns = [path for rule in (*rules, *later) for path in rule.paths]
        if old is not None and new is not None and patterns:
            return old, new, patterns


ALPHABET = "aA\xdfs\u0130. /"


@cache
def list_short_paths(max_length=4, scopes=SCOPES):
    """Return every canonical path over a few characters, shortest first, up to `max_length` after the
    scope.
    """
    lengths = range(1, max_length + 1)
    rests = ("".join(rest) for length in lengths for rest in itertools.product(ALPHABET, repeat=length))
    found = []
    for text in sorted((f"{scope}/{rest}" for rest in rests for scope in scopes), key=len):
        with suppress(PathEscape, Refusal):
            found.append(canonicalise(text, scopes))
    return found
