"""Verdicts: who may do what where, told by rule and layer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import Refused
from muniment.names import RelPath, Scope, Verb
from muniment.policy.decide import Allow, Deny, Judge
from muniment.policy.grammar import CanonicalPath, canonicalise
from muniment.policy.load import load_policy, parse_policy
from muniment.policy.tables import narrow_writes

STRICT = load_policy("strict")


def path(text):
    return canonicalise(text, ("user", "project"))


def policy(rules, scopes='user = { trust = "owner" }\nproject = { trust = "workspace" }'):
    text = f'schema = "muniment-policy/1"\nname = "own"\n[scopes]\n{scopes}\n{rules}'
    return parse_policy(text, where="own", parents=pytest.fail)


def allow(verbs, *paths, name="a"):
    return f'[[allow]]\nid = "{name}"\nverbs = {verbs}\npaths = {list(paths)}\n'


def deny(verbs, *paths, name="d"):
    return f'[[deny]]\nid = "{name}"\nverbs = {verbs}\npaths = {list(paths)}\n'


@pytest.mark.threat("T-POL-06", control="grants_needed")
@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize("text", ["user/a.md", "project/t/a.md", "user"])
def test_an_empty_policy_denies_everything(verb, text):
    judge = Judge(policy(""))
    verdict = judge.decide(verb, path(text))
    assert isinstance(verdict, Deny)
    assert (verdict.rule, verdict.layer) == ("default", "own")
    assert "nothing at all" in verdict.reason
    assert isinstance(judge.decide_directory(path(text)), Deny)
    assert not judge.reaches(verb, Scope("user"))


def test_a_grant_is_of_one_verb_on_exact_files():
    judge = Judge(policy(allow(["read"], "/user/*.md")))
    assert judge.decide(Verb.READ, path("user/a.md")) == Allow()
    assert judge.allows(Verb.READ, path("user/a.md"))
    assert not judge.allows(Verb.LIST, path("user/a.md"))
    assert not judge.allows(Verb.READ, path("user/a.md/evil.sh"))
    assert not judge.allows(Verb.READ, path("project/a.md"))


def test_a_scope_itself_is_no_file_that_any_verb_is_granted_on():
    judge = Judge(policy(allow([v.value for v in Verb], "/**", "/*", "/user")))
    assert not any(judge.allows(verb, path("user")) for verb in Verb)


def test_a_matching_deny_wins_and_is_named():
    judge = Judge(policy(allow(["read"], "/**") + deny(["*"], "secret/", name="no-secrets")))
    verdict = judge.decide(Verb.READ, path("user/Secret/a.md"))
    assert isinstance(verdict, Deny)
    assert (verdict.rule, verdict.layer) == ("no-secrets", "own")


def test_a_deny_of_one_verb_leaves_the_others():
    judge = Judge(policy(allow(["read", "modify"], "/**") + deny(["modify"], "a.md")))
    assert judge.allows(Verb.READ, path("user/a.md"))
    assert not judge.allows(Verb.MODIFY, path("user/a.md"))


def test_a_path_of_a_scope_that_is_not_declared_is_denied():
    judge = Judge(policy(allow(["list", "read"], "/**"), 'user = { trust = "owner" }'))
    stranger = path("project/a.md")
    assert judge.decide(Verb.READ, stranger).rule == "scopes"
    assert judge.decide_directory(path("project")).rule == "scopes"
    assert judge.covered(path("project"))
    assert not judge.reaches(Verb.READ, Scope("project"))


@pytest.mark.parametrize("rel", ["a\nb/pinned/a.md", "a\0.md", "\ud800.md"])
def test_a_path_that_no_grammar_let_through_is_denied_without_raising(rel):
    judge = Judge(policy(allow(["list", "read"], "/**") + deny(["*"], "pinned/")))
    stray = CanonicalPath(Scope("user"), RelPath(rel))
    assert judge.decide(Verb.READ, stray).rule == "name"
    assert judge.decide_directory(stray).rule == "name"
    assert judge.covered(stray)


def test_a_directory_is_open_where_something_may_be_listed_and_nothing_covers_it():
    judge = Judge(policy(allow(["list"], "/user/**/*.md") + deny(["list"], "/user/closed/", ".*")))
    assert judge.decide_directory(path("user")) == Allow()
    assert judge.decide_directory(path("user/any/deep")) == Allow()
    assert judge.decide_directory(path("project")).rule == "default"
    assert judge.decide_directory(path("user/Closed")).rule == "d"
    assert [judge.covered(path(p)) for p in ("user/closed", "user/closed/x", "user/.git", "user/open")] == [
        True,
        True,
        True,
        False,
    ]


def test_a_deny_on_reading_does_not_cover_a_directory():
    judge = Judge(policy(allow(["list", "read"], "/**") + deny(["read"], "/user/closed/")))
    assert not judge.covered(path("user/closed"))


def test_a_deny_of_a_whole_scope_closes_the_scope():
    judge = Judge(policy(allow(["list", "create"], "/**") + deny(["*"], "/user/")))
    assert judge.decide_directory(path("user")).rule == "d"
    assert not judge.reaches(Verb.CREATE, Scope("user"))
    assert judge.reaches(Verb.CREATE, Scope("project"))


def test_every_layer_must_grant():
    narrowed = Judge(narrow_writes(STRICT, Scope("user")))
    assert narrowed.allows(Verb.CREATE, path("user/a.md"))
    assert narrowed.allows(Verb.READ, path("project/a.md"))
    for verb in (Verb.CREATE, Verb.MODIFY, Verb.DELETE):
        verdict = narrowed.decide(verb, path("project/a.md"))
        assert (verdict.rule, verdict.layer) == ("request-scope", "request")
    assert narrowed.decide(Verb.READ, path("user/a.txt")).layer == "strict"
    assert not narrowed.reaches(Verb.CREATE, Scope("project"))


@pytest.mark.parametrize("second", [0, 1, 2])
def test_a_deny_of_any_layer_wins_over_the_grants_of_all(second):
    grants = policy(allow(["list", "read", "modify"], "/**"))
    (plain,) = grants.layers
    (denying,) = policy(allow(["list", "read", "modify"], "/**") + deny(["*"], "b.md", "c/")).layers
    layers = [plain, plain, plain]
    layers[second] = denying
    judge = Judge(grants.model_copy(update={"layers": tuple(layers)}))
    assert judge.allows(Verb.READ, path("user/a.md"))
    for verb in (Verb.LIST, Verb.READ, Verb.MODIFY):
        assert judge.decide(verb, path("user/b.md")).rule == "d"
    assert judge.decide_directory(path("user/c")).rule == "d"
    assert judge.decide_removal(path("user/c/x.md")).rule == "d"


def test_a_refusal_is_one_line_that_names_the_rule_and_what_would_be_granted():
    judge = Judge(STRICT)
    with pytest.raises(Refused) as caught:
        judge.require(Verb.MODIFY, path("user/pinned/a.md"))
    assert (caught.value.rule, caught.value.layer) == ("pinned", "strict")
    assert (
        str(caught.value)
        == "the rule 'pinned' forbids to modify user/pinned/a.md; use another name or folder"
    )
    with pytest.raises(Refused, match=r"lets you create only /project/\*\.md, ") as caught:
        judge.require(Verb.CREATE, path("user/a/b/c.md"))
    assert "\n" not in str(caught.value)
    with pytest.raises(Refused, match="'hidden'"):
        judge.require_directory(path("user/.git"))
    judge.require(Verb.READ, path("user/a.md"))
    judge.require_directory(path("user"))


def test_a_refusal_shows_only_a_few_of_many_patterns():
    judge = Judge(policy(allow(["read"], *[f"/user/{n}.md" for n in range(9)])))
    assert judge.decide(Verb.READ, path("user/x.md")).reason.endswith("/user/3.md, …")


def test_every_quota_that_matches_applies():
    quotas = (
        '[[quota]]\nid = "all"\npaths = ["/**"]\nmax_files = 9\n'
        '[[quota]]\nid = "logs"\npaths = ["/user/log/**"]\nmax_files = 2\n'
    )
    judge = Judge(policy(quotas))
    assert [q.id for q in judge.quotas_for(path("user/log/a.md"))] == ["all", "logs"]
    assert [q.id for q in judge.quotas_for(path("user/a.md"))] == ["all"]
    assert judge.quotas_for(path("user")) == ()


@pytest.mark.parametrize(
    ("patterns", "covered"),
    [([], set()), (["/user/**"], {"user"}), (["/*/**/*.md"], {"user", "project"}), (["/user/a/**"], set())],
)
def test_where_no_quota_covers_a_scope_the_built_in_one_does(patterns, covered):
    quota = f'[[quota]]\nid = "q"\npaths = {patterns}\nmax_file_bytes = 1_000_000' if patterns else ""
    judge = Judge(policy(quota))
    for scope in ("user", "project"):
        found = [q for q in judge.quotas_for(path(f"{scope}/a.md")) if q.id == "default"]
        assert bool(found) == (scope not in covered)
        assert all(
            (q.max_file_bytes, q.max_files, q.max_total_bytes) == (131_072, 20_000, 67_108_864) for q in found
        )


@given(st.sampled_from(list(Verb)), st.text(), st.text(alphabet=st.characters(codec=None)))
def test_decide_never_raises(verb, scope, rel):
    judge = Judge(STRICT)
    for name in (scope, "user"):
        stray = CanonicalPath(Scope(name), RelPath(rel))
        assert isinstance(judge.decide(verb, stray), Allow | Deny)
        assert isinstance(judge.decide_directory(stray), Allow | Deny)
        assert judge.covered(stray) in (True, False)
        judge.quotas_for(stray)
