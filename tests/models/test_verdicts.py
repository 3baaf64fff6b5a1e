"""The kernel decides as pathspec's expressions did, whatever the policy, the path and the verb."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kit.policy.files import READ, SCOPES, deny, named, parsed
from kit.policy.oracle import Oracle, apart, compared
from kit.strategies.hostile_paths import logical_paths
from kit.strategies.policies import SCOPE_NAMES, policies
from muniment.errors import PathEscape, Refusal
from muniment.kernel.decide import DenyPatterns, Judge
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.policy.tables import meet

NAMES = """
a.md A.md b.md ab.md t T t/a.md t/b.md t/u/b.md ß.md ss.md SS.md straße.md STRASSE.md x.txt .git
.a.md pinned Pinned/a.md MEMORY.md memory.md index index/a.md 日本/a.md 日.md
"""
PATHS = some.lists(logical_paths(NAMES.split(), scopes=SCOPE_NAMES), min_size=8, max_size=8)


def canonical(texts):
    for text in texts:
        try:
            yield canonicalise(text, SCOPE_NAMES)
        except (PathEscape, Refusal):
            continue


@given(policies(), policies(), PATHS)
def test_a_policy_and_what_two_of_them_meet_in_decide_as_the_old_matchers_of_their_files(one, other, texts):
    first, second = parsed(one), parsed(other)
    sides = (first, Oracle(one)), (meet(first, second), Oracle(one, other))
    judged = [(oracle, Judge(policy)) for policy, oracle in sides]
    assert [each for path in canonical(texts) for pair in judged for each in apart(*pair, path)] == []


def test_policies_that_almost_match_their_paths_are_decided_as_they_were():
    said, parted = compared("quick", 2_000)
    assert parted == []
    assert said["triples"] > said["allowed"] > 0


@pytest.mark.slow
def test_likewise_a_hundred_thousand_times():
    said, parted = compared("long", 100_000)
    assert (parted, said["triples"]) == ([], 100_000)


def test_the_comparison_notices_a_matcher_that_forgets_to_fold(monkeypatch):
    text = named("own", SCOPES + READ + deny("pinned/"))
    asked = Oracle(text), Judge(parsed(text)), canonicalise("user/Pinned/a.md", ("user",))
    assert list(apart(*asked)) == []
    real = DenyPatterns.match
    monkeypatch.setattr(DenyPatterns, "match", lambda self, path, _folded: real(self, path, path))
    assert [question for question, *_ in apart(*asked)] == [*Verb, "directory", "removal"]
