"""A deny rule that does nothing is found when the policy loads, whatever makes it do nothing."""

from __future__ import annotations

import pytest

from kit.policy.changed import allow, deny, made
from kit.policy.reading import SCOPES
from muniment.errors import PolicyInvalid
from muniment.names import RelPath, Scope, Verb
from muniment.policy import load
from muniment.policy.decide import DenyPatterns, Judge, Layer, Rule
from muniment.policy.grammar import CanonicalPath, fold
from muniment.policy.load import Silent, parse_policy, shortest_match, silent_denies

SILENT = (
    *(
        "a.",
        "con",
        "aux.*",
        "LPT1/",
        "..",
        "/user/.",
        "/user/...",
        "a./x",
        " ?",
        "\u2044*",
        "com1.txt",
        "?./",
    ),
    *("/user/a/b/c/d/e/f/g/h/i", "/user/a/b/c/d/e/f/g/h/", "x" * 256, "*" + "x" * 256, "H\u0331/\u2044"),
    *("e/?. ", "/**/nul.md", "\xe9" * 128, "a/.."),
)
"""Patterns of the dialect that no canonical path can match."""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Every test begins with no policy known to pass."""
    monkeypatch.setattr(load, "_passed", {})


def with_denies(*patterns, verbs=("modify",)):
    """A policy that `load` may refuse, built beside it."""
    policy = made([allow("/**")])
    rule = Rule(id="d", verbs=tuple(map(Verb, verbs)), paths=patterns)
    return policy.model_copy(update={"layers": (Layer(name="own", allow=(), deny=(rule,)),)})


@pytest.mark.parametrize("pattern", SILENT)
def test_a_pattern_that_no_path_can_match_is_silent(pattern):
    assert list(silent_denies(with_denies(pattern))) == [Silent("own", "d", pattern, None, None)]


@pytest.mark.threat("T-POL-01", control="firing_denies")
def test_a_policy_with_a_silent_pattern_does_not_load():
    for pattern in ("con", "a.", "x" * 256):
        with pytest.raises(PolicyInvalid) as caught:
            made([allow("/**"), deny("b", pattern)])
        assert caught.value.rule == "E201"
        assert pattern in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("con*", "user/cona"),
        ("aux*", "user/auxb"),
        ("nul*/", "user/nula/a"),
        ("con?", "user/cona"),
        ("?\u0301.md", "user/-\u0301.md"),
        ("e*\u0301", "user/e-\u0301"),
        ("H\u0331.md", "user/\u1e96.md"),
        ("\u0130.md", "user/i\u0307.md"),
        ("STRA\xdfE", "user/strasse"),
        ("MEMORY.md", "user/memory.md"),
        (".*", "user/.a"),
        ("*", "user/a"),
        ("**", "user/a"),
        ("/**", "user/a"),
        ("user", "user/a"),
        ("team-2/", "team-2/b"),
        ("/us?r/*.md", "user/.md"),
        ("/*/**", "user/a"),
        ("/*/index/", "user/index/a"),
        ("/**/x", "user/x"),
        ("/user/" + "/".join("abcdefgh"), "user/" + "/".join("abcdefgh")),
        ("x" * 254 + "*", "user/" + "x" * 254),
        ("*-????-??-??.md", "user/-aaaa-aa-aa.md"),
    ],
)
def test_what_a_pattern_is_tried_with_is_the_shortest_path_that_it_matches(pattern, path):
    found = shortest_match(pattern, SCOPES)
    assert found is not None
    assert found.text == path
    assert DenyPatterns((pattern,)).match(path, fold(path))


def test_a_pattern_that_does_not_fire_for_one_verb_is_told_with_the_path_and_the_verb(monkeypatch):
    real = Judge._denying
    monkeypatch.setattr(
        Judge, "_denying", lambda self, verb, text: None if verb == Verb.READ else real(self, verb, text)
    )
    policy = with_denies("b", "c/", verbs=("modify", "read"))
    memory = [CanonicalPath(Scope("user"), RelPath(rel)) for rel in ("b", "c/a")]
    assert list(silent_denies(policy)) == [
        Silent("own", "d", "b", Verb.READ, memory[0]),
        Silent("own", "d", "c/", Verb.READ, memory[1]),
    ]


def test_a_policy_whose_deny_does_not_fire_for_one_verb_does_not_load(monkeypatch):
    real = Judge._denying
    monkeypatch.setattr(
        Judge, "_denying", lambda self, verb, text: None if verb == Verb.READ else real(self, verb, text)
    )
    text = (
        'schema = "muniment-policy/1"\nname = "own"\n[scopes]\nuser = {}\n'
        '[[deny]]\nid = "d"\nverbs = ["modify", "read"]\npaths = ["b"]\n'
    )
    with pytest.raises(PolicyInvalid, match="pattern 'b' does not keep user/b from read") as caught:
        parse_policy(text, where="own", parents={}.__getitem__)
    assert (caught.value.rule, caught.value.where, caught.value.line) == ("E201", "own deny[d]", 8)


def test_a_rule_may_be_called_like_what_nothing_grants(monkeypatch):
    policy = with_denies("b")
    renamed = Rule(id="default", verbs=(Verb.READ,), paths=("b",))
    named = policy.model_copy(update={"layers": (Layer(name="own", allow=(), deny=(renamed,)),)})
    assert list(silent_denies(named)) == []
    monkeypatch.setattr(Judge, "_denying", lambda *_: None)
    monkeypatch.setattr(load, "_passed", {})
    assert len(list(silent_denies(named))) == 1
