"""Sentences about a policy: each kind proved, refuted by the shortest path, and left open."""

from __future__ import annotations

import random

import pytest

from kit.policy.changed import VERBS, all_paths, allow, deny, made, some_rules
from kit.policy.reading import some_path, some_pattern
from muniment.errors import PolicyInvalid
from muniment.lab.proofs import InvariantFinding, Prover, Witness, prove, read_invariants
from muniment.policy.decide import ACTS, AllowPatterns, DenyPatterns, Judge
from muniment.policy.grammar import canonicalise, fold
from muniment.policy.load import load_policy

WORLD = list(all_paths("aA\xdfs. /", 4))
BOMB = [f"*-draft-{number}*.md" for number in range(60)]


def file(**tables):
    return read_invariants({"schema": "muniment-invariants/1", **tables}, "own")


def findings(policy, **tables):
    return prove(file(**tables), policy)


def status(policy, **tables):
    (finding,) = findings(policy, **tables)
    return finding.status, *((each.act, each.path) for each in finding.witnesses)


def never(*paths, verbs=("*",)):
    return {"id": "n", "verbs": list(verbs), "paths": list(paths)}


def side(verbs, *paths):
    return {"verbs": [verbs], "paths": list(paths)}


GUARDED = made([allow("/**", verbs=["list", "read", "modify"]), deny("MEMORY.md", verbs=["modify"])])


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"never": [never("MEMORY.md", verbs=["modify"])]}, ("proved",)),
        ({"never": [never("memory.md", verbs=["create", "removal", "modify"])]}, ("proved",)),
        ({"never": [never("MEMORY.md", verbs=["read"])]}, ("broken", ("read", "user/memory.md"))),
        ({"never": [never("memory?md")]}, ("broken", ("list", "user/memory.md"))),
        ({"never": [never("/elsewhere/")]}, ("proved",)),
        ({"only": [never("/user/**", "/team-2/**")]}, ("proved",)),
        ({"only": [never("/user/**")]}, ("broken", ("list", "team-2/b"))),
        ({"only": [never("/user/**", verbs=["create"])]}, ("proved",)),
        ({"implies": [{"id": "i", "verbs": ["modify", "removal"], "then": ["read", "list"]}]}, ("proved",)),
        (
            {"implies": [{"id": "i", "verbs": ["read"], "then": ["modify"]}]},
            ("broken", ("read", "user/memory.md")),
        ),
        ({"implies": [{"id": "i", "verbs": ["create"], "then": ["*"]}]}, ("proved",)),
        (
            {"apart": [{"id": "a", "one": side("modify", "/team-2/**"), "other": side("read", "/user/**")}]},
            ("broken", ("modify", "team-2/b"), ("read", "user/a")),
        ),
        (
            {"apart": [{"id": "a", "one": side("create", "/**"), "other": side("read", "/**")}]},
            ("proved",),
        ),
        (
            {"apart": [{"id": "a", "one": side("read", "/**"), "other": side("modify", "/*/MEMORY.md")}]},
            ("proved",),
        ),
    ],
)
def test_an_invariant_is_proved_or_refuted_by_the_shortest_path(tables, expected):
    answer = status(GUARDED, **tables)
    assert answer[0] == expected[0]
    assert [(act, len(path)) for act, path in answer[1:]] == [(act, len(path)) for act, path in expected[1:]]
    judge = Judge(GUARDED)
    assert all(judge.grants(act, canonicalise(path, GUARDED.scopes)) for act, path in answer[1:])


def test_invariants_are_answered_kind_by_kind_in_their_order_with_their_reason():
    table = {"id": "b", "verbs": ["read"], "paths": ["/**"], "why": "said so"}
    found = findings(GUARDED, only=[table], never=[never("x"), never("/team-3/")])
    assert [(each.kind, each.id, each.status) for each in found] == [
        ("never", "n", "broken"),
        ("never", "n", "proved"),
        ("only", "b", "proved"),
    ]
    assert found[2] == InvariantFinding("b", "only", "said so", "proved")


def test_the_default_policy_keeps_what_it_is_for():
    strict = load_policy("strict")
    writing = ["create", "modify", "delete", "removal"]
    found = findings(
        strict,
        never=[never("MEMORY.md", "pinned/", "CLAUDE.md", verbs=writing), never(".*")],
        only=[never("/*/**/*.md")],
        implies=[{"id": "w", "verbs": ["create", "modify"], "then": ["read", "list"]}],
    )
    assert {each.status for each in found} == {"proved"}


@pytest.mark.sweep(3)
@pytest.mark.threat("T-POL-02", control="prover_denies")
@pytest.mark.parametrize("seed", range(15))
def test_random_invariants_hold_on_random_paths_or_are_refuted_by_the_shortest(seed):
    rng = random.Random(f"invariants {seed}")
    names = ["".join(rng.choices("aA\xdfs.", k=rng.choice((1, 1, 2)))) for _ in range(3)]
    try:
        policy = made(some_rules(rng, names))
    except PolicyInvalid:
        policy = made([allow("/**", verbs=VERBS), deny("a?")])
    covered, matched = (some_pattern(rng, deny=kind, names=names) for kind in (True, False))
    one, other, _ = found = findings(
        policy,
        never=[never(covered)],
        only=[never(matched)],
        implies=[{"id": "i", "verbs": ["*"], "then": ["read"]}],
    )
    judge, trees, exact = Judge(policy), DenyPatterns([covered]), AllowPatterns([matched])
    breaks = (
        lambda act, path: judge.grants(act, path) and trees.match(path.text, fold(path.text)),
        lambda act, path: judge.grants(act, path) and not exact.match(path),
        lambda act, path: judge.grants(act, path) and not judge.grants("read", path),
    )
    patterns = [covered, matched]
    for finding, is_broken in zip(found, breaks, strict=True):
        shortest = min((len(each.path) for each in finding.witnesses), default=None)
        for witness in finding.witnesses:
            assert is_broken(witness.act, canonicalise(witness.path, policy.scopes))
        for path in (*WORLD, *(some_path(rng, patterns) for _ in range(100))):
            if any(is_broken(act, path) for act in ACTS):
                assert finding.status != "proved", (finding, path.text)
                assert shortest is None or shortest <= len(path.text)
    assert {one.kind, other.kind} == {"never", "only"}


def test_a_side_that_is_never_granted_is_enough_whatever_the_other_costs(monkeypatch):
    monkeypatch.setattr(Prover.__init__, "__kwdefaults__", {"exact": (), "trees": (), "work": 50_000})
    policy = made([allow("/user/*-x.md"), deny(*BOMB, "*x.md")])
    apart = [{"id": "a", "one": side("create", "/user/a"), "other": side("read", "/**")}]
    assert status(policy, apart=apart) == ("proved",)


def test_no_path_is_shown_that_the_decision_does_not_grant(monkeypatch):
    monkeypatch.setattr(Prover, "denied", lambda self, *_: self.tree(()))
    policy = made([allow("/user/a"), deny("a")])
    assert status(policy, never=[never("a")]) == ("undecided",)


def test_a_witness_is_a_value():
    assert Witness("read", "user/a") == Witness("read", "user/a")


@pytest.mark.parametrize(
    ("data", "code", "told"),
    [
        ({}, "E150", "schema: Field required"),
        ({"schema": "muniment-invariants/2"}, "E150", "schema"),
        ({"schema": "muniment-invariants/1", "nevr": []}, "E150", "nevr"),
        ({"schema": "muniment-invariants/1", "never": 1}, "E150", "never"),
        ({"schema": "muniment-invariants/1", "never": [{**never("x"), "path": []}]}, "E150", "never.0.path"),
        ({"schema": "muniment-invariants/1", "never": [never()]}, "E150", "never.0.paths"),
        ({"schema": "muniment-invariants/1", "never": [never("x", verbs=[])]}, "E150", "never.0.verbs"),
        (
            {"schema": "muniment-invariants/1", "never": [never("x", verbs=["scribble"])]},
            "E150",
            "'scribble' is no verb",
        ),
        ({"schema": "muniment-invariants/1", "never": [{**never("x"), "id": "A b"}]}, "E150", "never.0.id"),
        ({"schema": "muniment-invariants/1", "only": [never("/x/**")] * 257}, "E150", "only"),
        (
            {"schema": "muniment-invariants/1", "apart": [{"id": "a", "one": 1, "other": 2}]},
            "E150",
            "apart.0.one",
        ),
        ({"schema": "muniment-invariants/1", "never": [never("a[")]}, "E203", "own never[n]"),
        ({"schema": "muniment-invariants/1", "only": [never("x")]}, "E205", "own only[n]"),
        ({"schema": "muniment-invariants/1", "only": [never("/user/x/")]}, "E203", "own only[n]"),
        ({"schema": "muniment-invariants/1", "never": [never("x" * 513)]}, "E202", "own never[n]"),
        (
            {
                "schema": "muniment-invariants/1",
                "apart": [{"id": "a", "one": side("read", "/**"), "other": side("read", "!x")}],
            },
            "E203",
            "own apart[a]",
        ),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_with_its_place(data, code, told):
    with pytest.raises(PolicyInvalid) as caught:
        read_invariants(data, "own")
    assert caught.value.rule == code
    assert told in str(caught.value)
