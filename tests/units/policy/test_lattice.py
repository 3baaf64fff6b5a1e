"""Policies form a meet-semilattice on decisions: combining policies and adding denies can only narrow."""

import json
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.policy.files import format_quota, format_rule, parse_text
from muniment.kernel.decide import Allow, PolicyEvaluator
from muniment.kernel.names import Enforcement, RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.lab.proofs import compare_policies
from muniment.policy.combine import meet, narrow_writes

SCOPES = ("user", "project", "team")
ALLOWS = ["/**", "/*/*.md", "/user/**/*.md", "/user/a.md", "/*/t/**", "/*/?.md"]
DENIES = ["t/", "a.md", ".*", "/*/t/", "**", "A*", "/user/", "/*/t/b.md"]
RELS = "a.md b.md A.md t/a.md t/b.md T/b.md t/u/c.md .x.md b.txt a.md/b.md"
PATHS = [CanonicalPath(Scope(scope), RelPath(rel)) for scope in SCOPES for rel in RELS.split()]
# The options of a policy, from loose to strict.
OPTIONS = {
    "limits.turns": [*range(6, 0, -1)],
    "confinement.require": [each.value for each in Enforcement][::-1],
    "confinement.on_escape": ["refuse", "abort"],
    "changes.conflict": ["retry", "fail"],
    "changes.max_scope_share": [1.0, 0.2, 0.05],
    "content.secrets": ["redact", "reject"],
    "content.instructions": ["allow", "quarantine"],
    "content.poison": ["allow", "quarantine"],
    "provenance.untrusted_sources": ["allow", "quarantine", "reject"],
    **{key: [99, 9, 2, 1] for key in ("limits.tool_calls", "changes.max_forget")},
    **{f"retention.{key}": ["never", 36_500, 14, 1] for key in ("default", "untrusted")},
}
GATES = [[], ["bidi"], ["ansi", "bidi"], ["active-markup"]]
VERBS = st.lists(st.sampled_from([verb.value for verb in Verb]), min_size=1, max_size=3)


FEW = settings(max_examples=settings.default.max_examples // 4)


def rules(kind, paths):
    made = st.tuples(VERBS, st.lists(st.sampled_from(paths), min_size=1, max_size=2))
    found = st.lists(made, max_size=3)
    return found.map(lambda each: [format_rule(kind, f"{kind}{at}", *one) for at, one in enumerate(each)])


@st.composite
def sources(draw):
    """Draw the parts of a policy file: head, root lines in any order, tables in any order."""
    head = f'schema = "muniment-policy/1"\nname = "{draw(st.sampled_from(["one", "two"]))}"\n'
    values = {f"scopes.{name}.trust": list(Trust) for name in SCOPES if name == "user" or draw(st.booleans())}
    values |= {name.replace("trust", "commit"): ["auto", "review"] for name in values} | OPTIONS
    lines = [f"{name} = {json.dumps(draw(st.sampled_from(order)))}\n" for name, order in values.items()]
    lines.append(f"content.reject = {draw(st.sampled_from(GATES))}\n")
    tables = [format_quota("q", max_files=draw(st.integers(1, 9)))]
    return head, lines, tables + draw(rules("allow", ALLOWS)) + draw(rules("deny", DENIES))


def build(source):
    return parse_text(source[0] + "".join(source[1]) + "".join(source[2]))


POLICIES = sources().map(build)


def find_grants(policy):
    judge = PolicyEvaluator(policy)
    return {(verb, path) for verb in Verb for path in PATHS if judge.decide(verb, path) == Allow()}


@pytest.mark.threat("T-POL-03", control="meets")
@pytest.mark.threat("T-POL-02", control="meets")
@FEW
@given(POLICIES, POLICIES, POLICIES)
def test_meet_is_the_strictest_of_both_and_never_wider(a, b, c):
    both = meet(a, b)
    assert find_grants(both) == find_grants(a) & find_grants(b)
    assert [compare_policies(one, both).verdict for one in (a, b)] == ["proved", "proved"]
    assert both.digest == meet(b, a).digest
    assert meet(both, c).digest == meet(a, meet(b, c)).digest
    assert meet(a, a) == a
    for name, order in OPTIONS.items():
        one, other, met = (attrgetter(name)(each) for each in (a, b, both))
        assert met == order[max(map(order.index, (one, other)))], name
    assert {*both.content.reject} == {*a.content.reject, *b.content.reject}


@pytest.mark.threat("T-MEM-11", control="narrowed_writes")
@FEW
@given(POLICIES, st.sampled_from([*SCOPES, "unknown"]))
def test_narrowed_writes_only_narrow_and_keep_reads(policy, scope):
    narrowed = narrow_writes(policy, Scope(scope))
    reading = {(verb, path) for verb, path in find_grants(policy) if verb in {Verb.LIST, Verb.READ}}
    writing = {(verb, path) for verb, path in find_grants(policy) - reading if path.scope == scope}
    assert find_grants(narrowed) == reading | writing
    assert narrow_writes(narrowed, Scope(scope)) == narrowed


@pytest.mark.threat("T-POL-03", control="every_deny")
@FEW
@given(sources(), st.sampled_from(DENIES), VERBS, st.randoms(use_true_random=False))
def test_added_deny_never_grants_and_file_order_is_irrelevant(source, deny, verbs, rng):
    head, lines, tables = source
    policy, more = build(source), build((head, lines, [*tables, format_rule("deny", "extra", verbs, [deny])]))
    assert find_grants(more) <= find_grants(policy)
    narrowed = compare_policies(policy, more)
    assert (narrowed.verdict, narrowed.widenings, narrowed.terms) == ("proved", (), ())
    shuffled = build((head, rng.sample(lines, len(lines)), rng.sample(tables, len(tables))))
    assert (shuffled.digest, find_grants(shuffled)) == (policy.digest, find_grants(policy))
