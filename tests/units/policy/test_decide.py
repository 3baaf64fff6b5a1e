"""Decisions of the policy, with the rule and the layer that decide."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.paths import forge_path
from kit.policy.files import format_quota, format_rule, parse_text
from muniment.errors import Refused
from muniment.kernel.decide import Allow, Deny, PolicyEvaluator
from muniment.kernel.names import Scope, Verb
from muniment.kernel.path import canonicalise
from muniment.policy.combine import narrow_writes
from muniment.policy.load import load_policy

STRICT = load_policy("strict")


def path(text):
    return canonicalise(text, ("user", "project"))


def policy(rules, scopes='user = { trust = "owner" }\nproject = { trust = "workspace" }'):
    return parse_text(f'schema = "muniment-policy/1"\nname = "own"\n[scopes]\n{scopes}\n{rules}')


def judge(rules, **options):
    return PolicyEvaluator(policy(rules, **options))


def allow(verbs, *paths):
    return format_rule("allow", "a", verbs, paths)


def deny(verbs, *paths, name="d"):
    return format_rule("deny", name, verbs, paths)


@pytest.mark.threat("T-POL-06", control="grants_needed")
def test_empty_policy_denies_everything():
    empty = judge("")
    for verb in Verb:
        for text in ("user/a.md", "project/t/a.md", "user"):
            verdict = empty.decide(verb, path(text))
            assert isinstance(verdict, Deny), (verb, text)
            assert (verdict.rule, verdict.layer) == ("default", "own")
            assert "nothing; continue without it" in verdict.reason
            assert isinstance(empty.decide_directory(path(text)), Deny)
        assert not empty.may_grant_in(verb, Scope("user"))


def test_grant_covers_one_verb_on_exact_files_and_no_scope():
    one = judge(allow(["read"], "/user/*.md"))
    assert one.decide(Verb.READ, path("user/a.md")) == Allow()
    assert one.allows(Verb.READ, path("user/a.md"))
    assert not one.allows(Verb.LIST, path("user/a.md"))
    assert not one.allows(Verb.READ, path("user/a.md/evil.sh"))
    assert not one.allows(Verb.READ, path("project/a.md"))
    everything = judge(allow([v.value for v in Verb], "/**", "/*", "/user"))
    assert not any(everything.allows(verb, path("user")) for verb in Verb)


def test_deny_wins_names_its_rule_and_covers_only_its_verb():
    one = judge(allow(["read"], "/**") + deny(["*"], "secret/", name="no-secrets"))
    verdict = one.decide(Verb.READ, path("user/Secret/a.md"))
    assert isinstance(verdict, Deny)
    assert (verdict.rule, verdict.layer) == ("no-secrets", "own")
    one = judge(allow(["read", "modify"], "/**") + deny(["modify"], "a.md"))
    assert one.allows(Verb.READ, path("user/a.md"))
    assert not one.allows(Verb.MODIFY, path("user/a.md"))


def test_path_of_undeclared_scope_is_denied():
    one = judge(allow(["list", "read"], "/**"), scopes='user = { trust = "owner" }')
    assert one.decide(Verb.READ, path("project/a.md")).rule == "scopes"
    assert one.decide_directory(path("project")).rule == "scopes"
    assert one.is_directory_denied(path("project"))
    assert not one.may_grant_in(Verb.READ, Scope("project"))


def test_path_outside_the_grammar_is_denied_without_raising():
    one = judge(allow(["list", "read"], "/**") + deny(["*"], "pinned/"))
    for rel in ("a\nb/pinned/a.md", "a\0.md", "\ud800.md"):
        stray = forge_path("user", rel)
        assert one.decide(Verb.READ, stray).rule == "name"
        assert one.decide_directory(stray).rule == "name"
        assert one.is_directory_denied(stray)


def test_directory_is_open_if_listable_and_not_denied():
    one = judge(allow(["list"], "/user/**/*.md") + deny(["list"], "/user/closed/", ".*"))
    assert one.decide_directory(path("user")) == Allow()
    assert one.decide_directory(path("user/any/deep")) == Allow()
    assert one.decide_directory(path("project")).rule == "default"
    assert one.decide_directory(path("user/Closed")).rule == "d"
    assert all(one.is_directory_denied(path(text)) for text in ("user/closed", "user/closed/x", "user/.git"))
    assert not one.is_directory_denied(path("user/open"))
    unread = judge(allow(["list", "read"], "/**") + deny(["read"], "/user/closed/"))
    assert not unread.is_directory_denied(path("user/closed"))
    scope = judge(allow(["list", "create"], "/**") + deny(["*"], "/user/"))
    assert scope.decide_directory(path("user")).rule == "d"
    assert [scope.may_grant_in(Verb.CREATE, Scope(each)) for each in ("user", "project")] == [False, True]


def test_every_layer_must_grant_and_any_deny_wins():
    narrowed = PolicyEvaluator(narrow_writes(STRICT, Scope("user")))
    assert narrowed.allows(Verb.CREATE, path("user/a.md"))
    assert narrowed.allows(Verb.READ, path("project/a.md"))
    for verb in (Verb.CREATE, Verb.MODIFY, Verb.DELETE):
        verdict = narrowed.decide(verb, path("project/a.md"))
        assert (verdict.rule, verdict.layer) == ("request-scope", "request")
    assert narrowed.decide(Verb.READ, path("user/a.txt")).layer == "strict"
    assert not narrowed.may_grant_in(Verb.CREATE, Scope("project"))
    granting = allow(["list", "read", "modify"], "/**")
    grants = policy(granting)
    (plain,), (denying,) = grants.layers, policy(granting + deny(["*"], "b.md", "c/")).layers
    for layers in ((denying, plain, plain), (plain, denying, plain), (plain, plain, denying)):
        one = PolicyEvaluator(replace(grants, layers=layers))
        assert one.allows(Verb.READ, path("user/a.md"))
        denied_rules = [
            one.decide(verb, path("user/b.md")).rule for verb in (Verb.LIST, Verb.READ, Verb.MODIFY)
        ]
        assert [*denied_rules, one.decide_directory(path("user/c")).rule] == ["d"] * 4
        assert one.decide_removal(path("user/c/x.md")).rule == "d"


def test_denial_is_one_line_with_the_rule_and_allowed_examples():
    strict = PolicyEvaluator(STRICT)
    with pytest.raises(Refused) as caught:
        strict.require(Verb.MODIFY, path("user/pinned/a.md"))
    assert (caught.value.rule, caught.value.layer) == ("pinned", "strict")
    message = "the rule 'pinned' does not let you modify user/pinned/a.md; use another name or folder"
    assert str(caught.value) == message
    with pytest.raises(Refused, match=r"lets you create only /project/\*\.md, ") as caught:
        strict.require(Verb.CREATE, path("user/a/b/c.md"))
    assert "\n" not in str(caught.value)
    assert strict.decide_directory(path("user/.git")).rule == "hidden"
    strict.require(Verb.READ, path("user/a.md"))
    assert strict.decide_directory(path("user")) == Allow()
    many = judge(allow(["read"], *[f"/user/{n}.md" for n in range(9)]))
    assert many.decide(Verb.READ, path("user/x.md")).reason.endswith("/user/3.md, …")


def test_all_matching_quotas_apply():
    one = judge(format_quota("all", max_files=9) + format_quota("logs", "/user/log/**", max_files=2))
    assert [q.id for q in one.quotas_for(path("user/log/a.md"))] == ["all", "logs"]
    assert [q.id for q in one.quotas_for(path("user/a.md"))] == ["all"]
    assert one.quotas_for(path("user")) == ()


def test_default_quota_covers_scopes_without_a_quota():
    patterns = {None: "", "/user/**": "user", "/*/**/*.md": "user project", "/user/a/**": ""}
    for pattern, covered in patterns.items():
        one = judge(format_quota("q", pattern, max_file_bytes=1_000_000) if pattern else "")
        for scope in ("user", "project"):
            found = [q for q in one.quotas_for(path(f"{scope}/a.md")) if q.id == "default"]
            assert bool(found) == (scope not in covered.split())
            numbers = [(q.max_file_bytes, q.max_files, q.max_total_bytes) for q in found]
            assert numbers == [(131_072, 20_000, 67_108_864)] * len(found)


@given(st.sampled_from(list(Verb)), st.text(), st.text(alphabet=st.characters(codec=None)))
def test_decide_never_raises(verb, scope, rel):
    strict = PolicyEvaluator(STRICT)
    for name in (scope, "user"):
        stray = forge_path(name, rel)
        assert isinstance(strict.decide(verb, stray), Allow | Deny)
        assert isinstance(strict.decide_directory(stray), Allow | Deny)
        assert strict.is_directory_denied(stray) in (True, False)
        strict.quotas_for(stray)
