"""Typos in policy files: a loaded policy is complete and bounded, and no typo silently removes a deny."""

import re
from dataclasses import asdict
from importlib import resources

from hypothesis import given
from hypothesis import strategies as st

from kit.strategies.policies import near_policies, policies
from muniment.errors import PolicyInvalid
from muniment.kernel.decide import PolicyEvaluator, parse
from muniment.kernel.names import RelPath, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.policy.load import load_policy, parse_policy
from muniment.policy.tables import LimitsTable

PACKAGED = {
    file.name.removesuffix(".toml"): file.read_text()
    for file in (resources.files("muniment") / "policies").iterdir()
    if file.name.endswith(".toml") and file.name != "invariants.toml"
}
CODE = re.compile(r"E1(0[0-9]|1[01]|2[0-5])|E20[1-6]|E401")
RELS = """a.md A.md t/a.md t/u/a.md a.txt .x.md .git/a.md pinned/a.md t/Pinned/a.md MEMORY.md t/memory.md
index/a.md t/index/a.md CLAUDE.md t/agents.md SKILL.md copilot-instructions.md AGENTS.override.md 日本/a.md
straße.md STRASSE.md b.md/c.md"""
PATHS = [
    CanonicalPath(Scope(scope), RelPath(rel)) for scope in ("user", "project", "team") for rel in RELS.split()
]


def read_parent(name):
    if name not in PACKAGED:
        raise PolicyInvalid("E120", name, "not found")
    return PACKAGED[name]


def parse_or_reject(text):
    """Return the policy, or None if it is rejected; check that the reason is one line with a code."""
    try:
        return parse_policy(text, where="own", parents=read_parent)
    except PolicyInvalid as problem:
        refusal = problem
    assert CODE.fullmatch(refusal.rule), refusal
    assert str(refusal).isprintable()
    assert len(str(refusal)) < 2_000
    return None


def grants(policy):
    judge = PolicyEvaluator(policy)
    return {(verb, path) for verb in Verb for path in PATHS if judge.allows(verb, path)}


def assert_no_looser(policy, original):
    """Check that every decision, gate and term is as strict, except numbers, which are bounded anyway."""
    assert grants(policy) <= grants(original)
    assert set(policy.content.reject) >= set(original.content.reject)
    assert policy.content.secrets == "reject" or original.content.secrets == "redact"
    assert policy.content.instructions == "quarantine" or original.content.instructions == "allow"
    assert policy.content.poison == "quarantine" or original.content.poison == "allow"
    assert policy.confinement.require.satisfies(original.confinement.require)
    assert policy.confinement.on_escape == original.confinement.on_escape
    trusts = list(Trust)
    for scope in policy.scopes:
        assert trusts.index(policy.get_trust(scope)) >= trusts.index(original.get_trust(scope))
        assert policy.get_commit_mode(scope) == "review" or original.get_commit_mode(scope) == "auto"


@given(near_policies(list(PACKAGED.values())) | near_policies() | policies())
def test_any_policy_is_complete_or_rejected_with_a_reason(text):
    if (policy := parse_or_reject(text)) is None:
        return
    copy = parse(policy.text, policy.name)
    assert (copy, copy.digest) == (policy, policy.digest)
    assert LimitsTable(**asdict(policy.limits))
    assert policy.scopes
    judge = PolicyEvaluator(policy)
    for path in (path for path in PATHS if any(judge.allows(verb, path) for verb in Verb)):
        assert (path.scope in policy.scopes, judge.quotas_for(path) != ()) == (True, True)


PLAIN = 'schema = "muniment-policy/1"\nname = "own"\nextends = ["strict"]\n'


@given(near_policies([PLAIN, *PACKAGED.values()]))
def test_child_of_strict_is_as_strict(text):
    child = re.sub(r"(?m)^extends = .*$", 'extends = ["strict"]', text)
    policy, original = parse_or_reject(child), load_policy("strict")
    if policy is not None and 'extends = ["strict"]' in child.splitlines():
        assert_no_looser(policy, original)
        assert [
            name for name, number in asdict(policy.limits).items() if number > getattr(original.limits, name)
        ] == []


FREE = re.compile(r'(?m)#.*$|^(?:why|name|description|id|path|schema) = ".*"$|^paths = \[(?:[^\]]*)\]$')
"""Comments, texts for people, and patterns: only an inline test can find a typo in these."""


PUT = [*"aye0_-.,\"'=[]* \n", "{{", "}}"]
TYPOS = ["{1}", "{0}{0}{1}", "{1}{0}", *(put + kept for put in PUT for kept in ("{1}", "{0}{1}"))]
"""Replacements of a character and the next one."""


def list_positions(text):
    free = {at for found in FREE.finditer(text) for at in range(*found.span())}
    return [at for at in range(len(text)) if at not in free]


@given(st.data(), st.sampled_from(sorted(PACKAGED)), st.sampled_from(TYPOS))
def test_typo_outside_texts_removes_no_deny(data, name, typo):
    at, text = data.draw(st.sampled_from(list_positions(PACKAGED[name]))), PACKAGED[name]
    policy = parse_or_reject(text[:at] + typo.format(text[at], text[at + 1 : at + 2]) + text[at + 2 :])
    if policy is not None:
        assert_no_looser(policy, load_policy(name))
