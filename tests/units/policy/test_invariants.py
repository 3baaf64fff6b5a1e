"""Invariants of a policy: each kind is proved, refuted by the shortest path, or undecided."""

import random

import pytest

from kit.policy.edits import (
    ALPHABET,
    VERBS,
    list_short_paths,
    make_allow,
    make_deny,
    make_policy,
    make_rules,
    try_load,
)
from kit.policy.files import catch_invalid
from kit.policy.patterns import make_path, make_pattern
from muniment.kernel.decide import AllowPatterns, DenyPatterns, PolicyEvaluator
from muniment.kernel.path import canonicalise, fold
from muniment.lab.proofs import InvariantFinding, Prover, prove_invariants, read_invariants
from muniment.policy.load import ACTS, is_granted

BOMB = [f"*-draft-{number}*.md" for number in range(60)]


def find_results(policy, **tables):
    return prove_invariants(read_invariants({"schema": "muniment-invariants/1", **tables}, "own"), policy)


def get_status(policy, **tables):
    (finding,) = find_results(policy, **tables)
    return finding.status, *((each.act, each.path) for each in finding.witnesses)


def make_rule(*paths, verbs=("*",)):
    return {"id": "n", "verbs": list(verbs), "paths": list(paths)}


def make_implies(verbs, *others):
    return {"implies": [{"id": "i", "verbs": verbs.split(), "then": list(others)}]}


def make_apart(*sides):
    one, other = ({"verbs": [verb], "paths": [path]} for verb, path in sides)
    return {"apart": [{"id": "a", "one": one, "other": other}]}


GUARDED = make_policy(
    [make_allow("/**", verbs=["list", "read", "modify"]), make_deny("MEMORY.md", verbs=["modify"])]
)
PROVED = [
    *(
        {"never": [make_rule("MEMORY.md", verbs=["modify"])]},
        {"only": [make_rule("/user/**", verbs=["create"])]},
    ),
    {"never": [make_rule("memory.md", verbs=["create", "removal", "modify"])]},
    *({"never": [make_rule("/elsewhere/")]}, {"only": [make_rule("/user/**", "/team-2/**")]}),
    *(make_implies("modify removal", "read", "list"), make_implies("create", "*")),
    *(
        make_apart(("create", "/**"), ("read", "/**")),
        make_apart(("read", "/**"), ("modify", "/*/MEMORY.md")),
    ),
]
BROKEN = [
    ({"never": [make_rule("MEMORY.md", verbs=["read"])]}, ("read", "user/memory.md")),
    ({"never": [make_rule("memory?md")]}, ("list", "user/memory.md")),
    ({"only": [make_rule("/user/**")]}, ("list", "team-2/b")),
    (make_implies("read", "modify"), ("read", "user/memory.md")),
    (make_implies("read", "list", "modify"), ("read", "user/memory.md")),
    (make_apart(("modify", "/team-2/**"), ("read", "/user/**")), ("modify", "team-2/b"), ("read", "user/a")),
]


def test_invariant_is_proved_or_refuted_by_the_shortest_path():
    for tables in PROVED:
        assert (get_status(GUARDED, **tables), tables) == (("proved",), tables)
    judge = PolicyEvaluator(GUARDED)
    for tables, *expected in BROKEN:
        is_broken, *found = get_status(GUARDED, **tables)
        assert is_broken == "broken", tables
        assert [(act, len(path)) for act, path in found] == [(act, len(path)) for act, path in expected]
        assert all(is_granted(act, canonicalise(path, GUARDED.scopes), judge) for act, path in found)


def test_invariants_are_reported_in_order_with_their_reason():
    table = {"id": "b", "verbs": ["read"], "paths": ["/**"], "why": "said so"}
    found = find_results(GUARDED, only=[table], never=[make_rule("x"), make_rule("/team-3/")])
    assert [(each.kind, each.status) for each in found[:2]] == [("never", "broken"), ("never", "proved")]
    assert found[2:] == (InvariantFinding("b", "only", "said so", "proved"),)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(15))
def test_random_invariants_agree_with_random_paths(seed):
    rng = random.Random(f"invariants {seed}")
    names = ["".join(rng.choices(ALPHABET[:4] + ".", k=rng.choice((1, 1, 2)))) for _ in range(3)]
    policy = try_load(make_rules(rng, names)) or make_policy(
        [make_allow("/**", verbs=VERBS), make_deny("a?")]
    )
    covered, matched = (make_pattern(rng, deny=kind, names=names) for kind in (True, False))
    found = find_results(
        policy, never=[make_rule(covered)], only=[make_rule(matched)], **make_implies("*", "read")
    )
    judge, trees, exact = PolicyEvaluator(policy), DenyPatterns([covered]), AllowPatterns([matched])
    breaks = (
        lambda path: trees.match(path.text, fold(path.text)),
        *(lambda path: not exact.match(path), lambda path: not is_granted("read", path, judge)),
    )
    paths = [*list_short_paths(3), *(make_path(rng, [covered, matched]) for _ in range(100))]
    for finding, is_broken in zip(found, breaks, strict=True):
        shortest = min((len(each.path) for each in finding.witnesses), default=None)
        for witness in finding.witnesses:
            path = canonicalise(witness.path, policy.scopes)
            assert (is_granted(witness.act, path, judge), bool(is_broken(path))) == (True, True)
        for path in paths:
            if is_broken(path) and any(is_granted(act, path, judge) for act in ACTS):
                assert finding.status != "proved", (finding, path.text)
                assert shortest is None or shortest <= len(path.text)


def test_apart_is_proved_if_one_side_is_never_granted(monkeypatch):
    monkeypatch.setattr(Prover.__init__, "__kwdefaults__", {"exact": (), "trees": (), "work": 50_000})
    policy = make_policy(
        [make_allow("/user/*-x.md"), make_deny(*BOMB, "*x.md")]
    )  # The other side costs too much.
    assert get_status(policy, **make_apart(("create", "/user/a"), ("read", "/**"))) == ("proved",)
    monkeypatch.undo()
    monkeypatch.setattr(Prover, "build_denied_set", lambda self, *_: self.match_tree(()))
    assert get_status(make_policy([make_allow("/user/a"), make_deny("a")]), never=[make_rule("a")]) == (
        "undecided",
    )


UNFIT = [
    *(({"schema": "muniment-invariants/2"}, "schema"), ({"nevr": []}, "nevr"), ({"never": 1}, "never")),
    *(
        ({"never": [{**make_rule("x"), "path": []}]}, "never.0.path"),
        ({"never": [make_rule()]}, "never.0.paths"),
    ),
    ({"never": [make_rule("x", verbs=[])]}, "never.0.verbs"),
    ({"never": [make_rule("x", verbs=["scribble"])]}, "unknown verb 'scribble'"),
    *(
        ({"never": [{**make_rule("x"), "id": "A b"}]}, "never.0.id"),
        ({"only": [make_rule("/x/**")] * 257}, "only"),
    ),
    ({"apart": [{"id": "a", "one": 1, "other": 2}]}, "apart.0.one"),
]
PATTERNS = [
    *(
        ({"never": [make_rule("a[")]}, "E203", "own never[n]"),
        ({"only": [make_rule("x")]}, "E205", "own only[n]"),
    ),
    ({"never": [make_rule("x" * 513)]}, "E202", "own never[n]"),
    (make_apart(("read", "/**"), ("read", "!x")), "E203", "own apart[a]"),
]


def test_invalid_invariants_file_is_rejected_with_its_position():
    right = {"schema": "muniment-invariants/1"}
    for tables, code, fragment in (*((tables, "E150", fragment) for tables, fragment in UNFIT), *PATTERNS):
        problem = catch_invalid(read_invariants, right | tables, "own")
        assert (problem.rule, fragment in str(problem)) == (code, True), tables
    assert "schema: Field required" in str(catch_invalid(read_invariants, {}, "own"))
