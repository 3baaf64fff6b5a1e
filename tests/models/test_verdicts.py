"""The kernel decides like expressions of pathspec for any policy, path and verb."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.policy.files import READ, SCOPES, format_deny, format_policy, parse_text
from kit.policy.oracle import Oracle, compare_triples, find_differences
from kit.strategies.hostile_paths import logical_paths
from kit.strategies.policies import SCOPE_NAMES, policies
from muniment.errors import PathEscape, Refusal
from muniment.kernel.decide import DenyPatterns, PolicyEvaluator
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.policy.combine import meet

NAMES = """
a.md A.md b.md ab.md t T t/a.md t/b.md t/u/b.md ß.md ss.md SS.md straße.md STRASSE.md x.txt .git
.a.md pinned Pinned/a.md MEMORY.md memory.md index index/a.md 日本/a.md 日.md
"""
PATHS = st.lists(logical_paths(NAMES.split(), scopes=SCOPE_NAMES), min_size=8, max_size=8)


def canonicalise_valid(texts):
    for text in texts:
        try:
            yield canonicalise(text, SCOPE_NAMES)
        except (PathEscape, Refusal):
            continue


@given(policies(), policies(), PATHS)
def test_policies_decide_like_the_pathspec_oracle(one, other, texts):
    first, second = parse_text(one), parse_text(other)
    sides = (first, Oracle(one)), (meet(first, second), Oracle(one, other))
    judged = [(oracle, PolicyEvaluator(policy)) for policy, oracle in sides]
    assert [
        each
        for path in canonicalise_valid(texts)
        for pair in judged
        for each in find_differences(*pair, path)
    ] == []


def test_near_matches_decide_like_the_pathspec_oracle():
    counts, differences = compare_triples("quick", 2_000)
    assert differences == []
    assert counts["triples"] > counts["allowed"] > 0


@pytest.mark.slow
def test_many_near_matches_decide_like_the_oracle():
    counts, differences = compare_triples("long", 100_000)
    assert (differences, counts["triples"]) == ([], 100_000)


def test_comparison_finds_a_matcher_without_folding(monkeypatch):
    text = format_policy("own", SCOPES + READ + format_deny("pinned/"))
    arguments = Oracle(text), PolicyEvaluator(parse_text(text)), canonicalise("user/Pinned/a.md", ("user",))
    assert list(find_differences(*arguments)) == []
    real = DenyPatterns.match
    monkeypatch.setattr(DenyPatterns, "match", lambda self, path, _folded: real(self, path, path))
    assert [question for question, *_ in find_differences(*arguments)] == [*Verb, "directory", "removal"]
