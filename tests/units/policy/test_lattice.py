"""Policies form a meet-semilattice on verdicts: combining and adding denies can only narrow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.lab.proofs import diff
from muniment.names import Enforcement, RelPath, Scope, Trust, Verb
from muniment.policy.decide import Allow, Judge
from muniment.policy.grammar import CanonicalPath
from muniment.policy.load import parse_policy
from muniment.policy.tables import meet, narrow_writes

SCOPES = ("user", "project", "team")
ALLOWS = ["/**", "/*/*.md", "/user/**/*.md", "/user/a.md", "/*/t/**", "/*/?.md"]
DENIES = ["t/", "a.md", ".*", "/*/t/", "**", "A*", "/user/", "/*/t/b.md"]
PATHS = [
    CanonicalPath(Scope(scope), RelPath(rel))
    for scope in SCOPES
    for rel in [
        "a.md",
        "b.md",
        "A.md",
        "t/a.md",
        "t/b.md",
        "T/b.md",
        "t/u/c.md",
        ".x.md",
        "b.txt",
        "a.md/b.md",
    ]
]
REQUIRED = st.sampled_from(list(Enforcement))
ESCAPES = st.sampled_from(["abort", "refuse"])
GATES = st.sampled_from([[], ["bidi"], ["ansi", "bidi"], ["active-markup"]])
DAYS = st.sampled_from(['"never"', 1, 14, 36_500])
SECRETS = ["redact", "reject"]
INSTRUCTIONS = ["allow", "quarantine"]
SOURCES = ["allow", "quarantine", "reject"]
COMMITS = ["auto", "review"]
"""Each from loose to strict."""
VERBS = st.lists(st.sampled_from([verb.value for verb in Verb]), min_size=1, max_size=3)


def rules(kind, paths):
    rule = st.tuples(VERBS, st.lists(st.sampled_from(paths), min_size=1, max_size=2))
    return st.lists(rule, max_size=3).map(
        lambda found: [
            f'[[{kind}]]\nid = "{kind}{n}"\nverbs = {v}\npaths = {p}\n' for n, (v, p) in enumerate(found)
        ]
    )


@st.composite
def sources(draw):
    """The parts of a policy file: head, and tables in any order."""
    head = f'schema = "muniment-policy/1"\nname = "{draw(st.sampled_from(["one", "two"]))}"\n'
    terms = st.tuples(st.sampled_from(list(Trust)), st.sampled_from(COMMITS))
    scopes = [
        f'{name} = {{ trust = "{trust}", commit = "{commit}" }}\n'
        for name, (trust, commit) in ((name, draw(terms)) for name in SCOPES)
    ]
    tables = [
        "[limits]\n" + f"turns = {draw(st.integers(1, 6))}\ntool_calls = {draw(st.integers(1, 99))}\n",
        f'[confinement]\nrequire = "{draw(REQUIRED)}"\non_escape = "{draw(ESCAPES)}"\n',
        (
            f'[changes]\nconflict = "{draw(st.sampled_from(["retry", "fail"]))}"\n'
            f"max_forget = {draw(st.integers(1, 9))}\n"
            f"max_scope_share = {draw(st.sampled_from([0.05, 0.2, 1]))}\n"
        ),
        (
            f'[content]\nreject = {draw(GATES)}\nsecrets = "{draw(st.sampled_from(SECRETS))}"\n'
            f'instructions = "{draw(st.sampled_from(INSTRUCTIONS))}"\n'
        ),
        f'[provenance]\nuntrusted_sources = "{draw(st.sampled_from(SOURCES))}"\n',
        f"[retention]\ndefault = {draw(DAYS)}\nuntrusted = {draw(DAYS)}\n",
        f'[[quota]]\nid = "q"\npaths = ["/**"]\nmax_files = {draw(st.integers(1, 9))}\n',
    ]
    named = [scope for scope in scopes if scope.startswith("user") or draw(st.booleans())]
    own = tuple(scope.split()[0] for scope in named)
    fitting = [p for p in DENIES if not p.startswith("/user") or "user" in own]
    tables += draw(rules("allow", ALLOWS)) + draw(rules("deny", fitting))
    return head, named, tables


def build(source):
    head, scopes, tables = source
    return parse_policy(
        f"{head}[scopes]\n{''.join(scopes)}{''.join(tables)}", where="x", parents=lambda _: ""
    )


POLICIES = sources().map(build)


def stricter(order, asked):
    """The last of `asked` in an order that goes from loose to strict."""
    return order[max(map(order.index, asked))]


def grants(policy):
    judge = Judge(policy)
    return {(verb, path) for verb in Verb for path in PATHS if judge.decide(verb, path) == Allow()}


@pytest.mark.threat("T-POL-03", control="meets")
@given(POLICIES, POLICIES)
def test_a_meet_grants_exactly_what_both_grant(a, b):
    assert grants(meet(a, b)) == grants(a) & grants(b)


@pytest.mark.threat("T-POL-03", control="meets")
@given(POLICIES, POLICIES, POLICIES)
def test_meet_is_commutative_associative_and_idempotent(a, b, c):
    assert meet(a, b).digest == meet(b, a).digest
    assert meet(meet(a, b), c).digest == meet(a, meet(b, c)).digest
    assert meet(a, a) == a


@pytest.mark.threat("T-POL-02", control="meets")
@given(POLICIES, POLICIES)
def test_a_meet_is_proved_to_be_no_wider_than_either(a, b):
    both = meet(a, b)
    assert [diff(one, both).verdict for one in (a, b)] == ["proved", "proved"]


@pytest.mark.threat("T-POL-03", control="meets")
@given(POLICIES, POLICIES)
def test_what_a_meet_says_of_content_and_change_is_exactly_the_stricter(a, b):
    both = meet(a, b)
    for order, table, name in (
        (SECRETS, "content", "secrets"),
        (INSTRUCTIONS, "content", "instructions"),
        (SOURCES, "provenance", "untrusted_sources"),
        (["never", *range(36_500, 0, -1)], "retention", "default"),
        (["never", *range(36_500, 0, -1)], "retention", "untrusted"),
        (range(9, 0, -1), "changes", "max_forget"),
        ([1.0, 0.2, 0.05], "changes", "max_scope_share"),
    ):
        asked = [getattr(getattr(one, table), name) for one in (a, b)]
        assert getattr(getattr(both, table), name) == stricter(list(order), asked)


@pytest.mark.threat("T-MEM-11", control="narrowed_writes")
@given(POLICIES, st.sampled_from([Scope(name) for name in (*SCOPES, "unknown")]))
def test_narrowing_writes_only_narrows_and_reads_stay(policy, scope):
    narrowed = narrow_writes(policy, scope)
    reading = {(verb, path) for verb, path in grants(policy) if verb in {Verb.LIST, Verb.READ}}
    writing = {(verb, path) for verb, path in grants(policy) - reading if path.scope == scope}
    assert grants(narrowed) == reading | writing
    assert narrow_writes(narrowed, scope) == narrowed


@pytest.mark.threat("T-POL-03", control="every_deny")
@given(sources(), st.sampled_from([p for p in DENIES if not p.startswith("/user/")]), VERBS)
def test_adding_a_deny_never_grants(source, pattern, verbs):
    head, scopes, tables = source
    more = [*tables, f'[[deny]]\nid = "extra"\nverbs = {verbs}\npaths = ["{pattern}"]\n']
    assert grants(build((head, scopes, more))) <= grants(build(source))


@given(sources(), st.sampled_from([p for p in DENIES if not p.startswith("/user/")]), VERBS)
def test_adding_a_deny_is_proved_to_grant_nothing(source, pattern, verbs):
    head, scopes, tables = source
    more = [*tables, f'[[deny]]\nid = "extra"\nverbs = {verbs}\npaths = ["{pattern}"]\n']
    narrowed = diff(build(source), build((head, scopes, more)))
    assert (narrowed.verdict, narrowed.widenings, narrowed.terms) == ("proved", (), ())


@pytest.mark.slow
@given(sources(), st.randoms(use_true_random=False))
def test_shuffling_a_file_changes_neither_verdict_nor_digest(source, rng: random.Random):
    head, scopes, tables = source
    shuffled = head, rng.sample(scopes, len(scopes)), rng.sample(tables, len(tables))
    a, b = build(source), build(shuffled)
    assert a.digest == b.digest
    judges = Judge(a), Judge(b)
    for path in PATHS:
        assert all(len({judge.decide(verb, path) for judge in judges}) == 1 for verb in Verb)
    assert diff(a, b) == diff(b, a) == diff(a, a)
