"""A deny rule that does nothing is found when the policy loads, whatever makes it do nothing."""

from __future__ import annotations

import pytest

from kit.policy.changed import allow, made
from kit.policy.files import SCOPES as HEAD
from kit.policy.files import named, parsed, refusal, rule
from kit.policy.reading import SCOPES
from muniment.names import RelPath, Scope, Verb
from muniment.policy import load
from muniment.policy.decide import DenyPatterns, Judge, Layer, Rule
from muniment.policy.grammar import CanonicalPath, fold
from muniment.policy.load import Silent, shortest_match, silent_denies

SILENT = """a.|con|aux.*|LPT1/|..|/user/.|/user/...|a./x| ?|\u2044*|com1.txt|?./|/user/a/b/c/d/e/f/g/h/i|
/user/a/b/c/d/e/f/g/h/|H\u0331/\u2044|e/?. |/**/nul.md|a/.."""
"""Patterns of the dialect that no canonical path can match."""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Every test begins with no policy known to pass."""
    monkeypatch.setattr(load, "_passed", {})


def with_denies(*patterns, verbs=("modify",), name="d"):
    """A policy that `load` may refuse, built beside it."""
    rule = Rule(id=name, verbs=tuple(map(Verb, verbs)), paths=patterns)
    layers = (Layer(name="own", allow=(), deny=(rule,)),)
    return made([allow("/**")]).model_copy(update={"layers": layers})


def test_a_pattern_that_no_path_can_match_is_silent():
    long = ("x" * 256, "*" + "x" * 256, "\xe9" * 128)
    for pattern in (*SILENT.replace("\n", "").split("|"), *long):
        assert list(silent_denies(with_denies(pattern))) == [Silent("own", "d", pattern, None, None)]


TRIED = """con* user/cona|aux* user/auxb|nul*/ user/nula/a|con? user/cona|?\u0301.md user/-\u0301.md|
e*\u0301 user/e-\u0301|H\u0331.md user/\u1e96.md|\u0130.md user/i\u0307.md|STRA\xdfE user/strasse|
MEMORY.md user/memory.md|.* user/.a|* user/a|** user/a|/** user/a|user user/a|team-2/ team-2/b|
/us?r/*.md user/.md|/*/** user/a|/*/index/ user/index/a|/**/x user/x|*-????-??-??.md user/-aaaa-aa-aa.md|
/user/a/b/c/d/e/f/g/h user/a/b/c/d/e/f/g/h"""


def test_what_a_pattern_is_tried_with_is_the_shortest_path_that_it_matches():
    long = "x" * 254
    for row in (*TRIED.replace("\n", "").split("|"), f"{long}* user/{long}"):
        pattern, path = row.split()
        assert shortest_match(pattern, SCOPES).text == path
        assert DenyPatterns((pattern,)).match(path, fold(path))


def test_a_pattern_that_does_not_fire_for_one_verb_is_told_and_does_not_load(monkeypatch):
    real = Judge._denying
    monkeypatch.setattr(
        Judge, "_denying", lambda self, verb, text: None if verb == Verb.READ else real(self, verb, text)
    )
    memory = [CanonicalPath(Scope("user"), RelPath(rel)) for rel in ("b", "c/a")]
    assert list(silent_denies(with_denies("b", "c/", verbs=("modify", "read")))) == [
        Silent("own", "d", "b", Verb.READ, memory[0]),
        Silent("own", "d", "c/", Verb.READ, memory[1]),
    ]
    text = named("own", HEAD + rule("deny", "d", ["modify", "read"], ["b"]))
    for _ in range(2):  # It is not known to pass when it is tried again.
        problem = refusal(parsed, text)
        assert "pattern 'b' does not keep user/b from read" in problem.problem
        assert (problem.rule, problem.where, problem.line) == ("E201", "own deny[d]", 9)


def test_a_rule_may_be_called_like_what_nothing_grants(monkeypatch):
    assert list(silent_denies(with_denies("b", name="default"))) == []
    monkeypatch.setattr(Judge, "_denying", lambda *_: None)
    monkeypatch.setattr(load, "_passed", {})
    assert len(list(silent_denies(with_denies("b", name="default")))) == 1
