"""What is explained is what is decided, for any text and any act."""

from hypothesis import given
from hypothesis import strategies as st

from kit.policy.changed import allow, deny, made
from kit.strategies.hostile_paths import unsafe_paths
from muniment.errors import PathEscape, Refusal, Refused
from muniment.kernel.decide import Judge
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.lab.explain import explain
from muniment.policy.grammar import check_creatable
from muniment.policy.load import ACTS, REMOVAL, load_policy
from muniment.policy.tables import meet, narrow_writes

STRICT = load_policy("strict")
WRITES = allow("/user/*", "/user/**/*.md", verbs=["read", "modify", "create"])
DENIES = [deny("a*", "pinned/", verbs=["modify"]), deny("b*", verbs=["delete"])]
RULES = made([WRITES, allow("/**", verbs=["list", "read"]), *DENIES])
POLICIES = [STRICT, RULES, narrow_writes(STRICT, STRICT.scopes[0]), meet(RULES, STRICT), made([])]


def asked(judge, policy, act, text):
    """What happens to the request by the real parts: code, layer and rule, or None if it is allowed."""
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
def test_the_explanation_has_the_verdict_of_the_decision_by_the_rules_that_were_consulted(text, act, policy):
    judge = Judge(policy)
    told = explain(policy, act, text, judge)
    expected = asked(judge, policy, act, text)
    assert (told.verdict == "allow") is (expected is None)
    assert (told.code, told.layer, told.rule) == (expected or (None, None, None))
    assert (told.act, told.asked) == (act, text)
    assert told.operator_is_told.isprintable()
    ends = told.operator_is_told.startswith("remember_path_escape: the run ends")
    assert ends is (told.code == PathEscape.code and policy.confinement.on_escape == "abort")
    assert (told.model_is_told == "") is (ends or told.verdict == "allow")
    assert not ends or (told.path, told.consulted) == (None, ())
    assert told == explain(policy, act, text)
    if told.rule in {"name", "scopes"}:
        return
    matched = [each for each in told.consulted if each.pattern is not None]
    layers = {each.layer for each in matched if each.kind == "allow"}
    denied = [(each.layer, each.rule) for each in matched if each.kind == "deny"]
    every = all(layer.name in layers for layer in policy.layers)
    assert (told.verdict == "allow") is (every and not denied)
    if denied:
        assert (told.layer, told.rule) in denied
    elif told.verdict == "deny":
        assert (told.rule, told.layer in layers) == ("default", False)
