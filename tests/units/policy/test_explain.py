"""Explanations agree with decisions, for any text and any act."""

from hypothesis import given
from hypothesis import strategies as st

from kit.policy.edits import make_allow, make_deny, make_policy
from kit.strategies.hostile_paths import unsafe_paths
from muniment.errors import PathEscape, Refusal, Refused
from muniment.kernel.decide import PolicyEvaluator
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.lab.explain import explain_decision
from muniment.policy.combine import meet, narrow_writes
from muniment.policy.grammar import check_creatable
from muniment.policy.load import ACTS, REMOVAL, load_policy

STRICT = load_policy("strict")
WRITES = make_allow("/user/*", "/user/**/*.md", verbs=["read", "modify", "create"])
DENIES = [make_deny("a*", "pinned/", verbs=["modify"]), make_deny("b*", verbs=["delete"])]
RULES = make_policy([WRITES, make_allow("/**", verbs=["list", "read"]), *DENIES])
POLICIES = [STRICT, RULES, narrow_writes(STRICT, STRICT.scopes[0]), meet(RULES, STRICT), make_policy([])]


def decide_request(judge, policy, act, text):
    """Return the code, layer and rule that the real parts answer, or None if they allow the request."""
    try:
        path = canonicalise(text, policy.scopes)
        if act == Verb.CREATE:
            check_creatable(path)
        judge.require_removal(path) if act == REMOVAL else judge.require(act, path)
    except Refused as refused:
        return refused.code, refused.layer, refused.rule
    except (PathEscape, Refusal) as refusal:
        return refusal.code, "grammar", "name"
    return None


@given(unsafe_paths(), st.sampled_from(ACTS), st.sampled_from(POLICIES))
def test_explanation_agrees_with_the_decision(text, act, policy):
    judge = PolicyEvaluator(policy)
    explanation = explain_decision(policy, act, text, judge)
    expected = decide_request(judge, policy, act, text)
    assert (explanation.verdict == "allow") is (expected is None)
    assert (explanation.code, explanation.layer, explanation.rule) == (expected or (None, None, None))
    assert (explanation.act, explanation.asked) == (act, text)
    assert explanation.operator_message.isprintable()
    ends = explanation.operator_message.startswith("remember_path_escape: the run ends")
    assert ends is (explanation.code == PathEscape.code and policy.confinement.on_escape == "abort")
    assert (explanation.model_message == "") is (ends or explanation.verdict == "allow")
    assert not ends or (explanation.path, explanation.consulted) == (None, ())
    assert explanation == explain_decision(policy, act, text)
    if explanation.rule in {"name", "scopes"}:
        return
    matched = [each for each in explanation.consulted if each.pattern is not None]
    layers = {each.layer for each in matched if each.kind == "allow"}
    denied = [(each.layer, each.rule) for each in matched if each.kind == "deny"]
    every = all(layer.name in layers for layer in policy.layers)
    assert (explanation.verdict == "allow") is (every and not denied)
    if denied:
        assert (explanation.layer, explanation.rule) in denied
    elif explanation.verdict == "deny":
        assert (explanation.rule, explanation.layer in layers) == ("default", False)
