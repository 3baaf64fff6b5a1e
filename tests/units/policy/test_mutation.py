"""Mutants of a policy: each weakening is made, and none that matters goes unseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.policy.files import SCOPES, write
from muniment.lab import proofs
from muniment.lab.proofs import Prover, diff, mutants
from muniment.policy.decide import ACTS, Judge
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_files

READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\n'
WRITE = '[[allow]]\nid = "w"\nverbs = ["create", "modify"]\npaths = ["/user/**"]\n'


def rule(kind, name, verbs, paths):
    return f'[[{kind}]]\nid = "{name}"\nverbs = {list(verbs)}\npaths = {list(paths)}\n'.replace("'", '"')


def quota(name, path="/**", **numbers):
    said = "".join(f"{key} = {number}\n" for key, number in numbers.items())
    return f'[[quota]]\nid = "{name}"\npaths = ["{path}"]\n{said}'


def check(verb, path, expect, **sizes):
    said = "".join(f"{key} = {size}\n" for key, size in sizes.items())
    return f'[[test]]\nverb = "{verb}"\npath = "{path}"\nexpect = "{expect}"\n{said}'


@pytest.fixture
def made(tmp_path):
    """Every mutant of a policy of some rules, by what was changed."""

    def made(body, extends=(), scopes=SCOPES):
        path = write(tmp_path / "own.toml", body=scopes + body, extends=extends)
        return {each.what: each for each in mutants(load_files(path))}

    return made


def test_every_pattern_and_every_verb_of_a_deny_rule_is_dropped_once(made):
    found = made(READ + rule("deny", "d", ["read", "list"], ["x", "y/"]))
    assert list(found) == [
        "deny[d] without pattern 'x'",
        "deny[d] without pattern 'y/'",
        "deny[d] without verb list",
        "deny[d] without verb read",
    ]
    assert [(each.kind, each.rule, each.pattern) for each in found.values()] == [
        ("deny", "d", "x"),
        ("deny", "d", "y/"),
        ("deny", "d", None),
        ("deny", "d", None),
    ]


@pytest.mark.parametrize(
    ("pattern", "wider"),
    [
        ("/user/*.md", ["/user/**/*.md", "/user/*"]),
        ("/user/a/b.md", ["/user/a/**/b.md", "/user/a/*"]),
        ("/user/*", ["/user/**/*"]),
        ("/user/**/*.md", ["/user/**/*"]),
        ("/**/a/*.md", ["/**/a/**/*.md", "/**/a/*"]),
        ("/**/a/**/b/*.md", ["/**/a/**/b/*"]),
        ("/user/**", []),
        ("/**", []),
    ],
)
def test_every_allow_pattern_is_widened_to_any_depth_and_to_any_name(made, pattern, wider):
    found = made(rule("allow", "a", ["read"], [pattern]))
    assert list(found) == [f"allow[a] with {each!r} for {pattern!r}" for each in wider]
    assert all((each.kind, each.pattern) == ("allow", pattern) for each in found.values())


def test_every_number_of_a_quota_is_doubled_up_to_the_greatest_there_is(made):
    found = made(WRITE + quota("q", max_file_bytes=5, max_files=6, max_total_bytes=7))
    assert list(found) == [
        "quota[q] with max_file_bytes = 10",
        "quota[q] with max_files = 12",
        "quota[q] with max_total_bytes = 14",
    ]
    greatest = proofs.MAX_BYTES
    found = made(WRITE + quota("q", max_file_bytes=greatest - 1, max_total_bytes=greatest, max_files=1))
    assert list(found) == [f"quota[q] with max_file_bytes = {greatest}", "quota[q] with max_files = 2"]


def test_a_policy_that_denies_without_any_grant_survives_nothing(made):
    assert {each.status for each in made(rule("deny", "d", ["read"], ["x"])).values()} == {"equivalent"}


def test_a_mutant_that_no_test_fails_on_survives_with_the_shortest_path_that_shows_it(made):
    found = made(READ + rule("deny", "d", ["read"], ["secret/"]))
    (mutant, _) = found.values()
    assert (mutant.status, mutant.test, mutant.act) == ("survived", None, "read")
    assert mutant.path.startswith("user/secret/")
    assert len(mutant.path) == len("user/secret/x")
    assert mutant.suggestion == (
        "[[test]]",
        'verb = "read"',
        f'path = "/{mutant.path}"',
        'expect = "deny"',
    )


@pytest.mark.parametrize(
    "body",
    [
        READ + rule("deny", "a", ["read"], ["x"]) + rule("deny", "b", ["read"], ["X"]),
        READ + rule("deny", "a", ["list"], ["x"]),
        rule("allow", "a", ["read"], ["/user/*.md"]) + READ,
    ],
    ids=["another rule", "never granted", "granted anyway"],
)
def test_what_other_rules_of_the_file_hold_as_well_is_equivalent(made, body):
    found = made(body)
    assert {each.status for each in found.values()} == {"equivalent"}
    assert all(each.suggestion == () for each in found.values())


def test_what_a_parent_holds_as_well_is_equivalent_and_its_own_rules_are_not_mutated(made, tmp_path):
    parent = rule("allow", "p", ["read"], ["/user/*.md"]) + rule("deny", "pd", ["read"], ["x.md"])
    write(tmp_path / "mother.toml", body=SCOPES + parent + quota("q", max_files=3))
    own = rule("allow", "a", ["read"], ["/user/*.md"]) + rule("deny", "d", ["read"], ["x.md"])
    found = made(own + quota("q", max_files=3), extends=["./mother.toml"])
    assert {each.rule for each in found.values()} == {"a", "d"}
    assert {each.status for each in found.values()} == {"equivalent"}


def test_a_quota_of_a_parent_with_the_same_id_is_not_taken_for_the_files_own(made, tmp_path):
    write(tmp_path / "mother.toml", body=SCOPES + WRITE + quota("q", max_files=30))
    found = made(WRITE + quota("q", "/user/a/**", max_files=10), extends=["./mother.toml"])
    assert "quota[q] with max_files = 20" in found
    assert "quota[q] with max_files = 60" not in found


def test_a_mutant_that_lets_code_remove_more_is_seen_and_can_be_caught(made):
    body = WRITE + rule("deny", "d", ["delete"], ["kept/"])
    found = made(body)
    assert {(each.status, each.act) for each in found.values()} == {("survived", "removal")}
    found = made(body + check("removal", "user/kept/a.md", "deny"))
    assert {each.status for each in found.values()} == {"caught"}


@pytest.mark.parametrize(
    ("key", "asked", "bound"),
    [("max_file_bytes", "file_bytes", 5), ("max_files", "files", 6), ("max_total_bytes", "total_bytes", 7)],
)
def test_a_larger_quota_survives_until_a_test_asks_one_beyond_its_bound(made, key, asked, bound):
    body = WRITE + quota("q", max_file_bytes=5, max_files=6, max_total_bytes=7)
    name = f"quota[q] with {key} = {2 * bound}"
    mutant = made(body)[name]
    assert (mutant.status, mutant.over, mutant.act) == ("survived", (asked, bound + 1), "create")
    assert f"{asked} = {bound + 1}" in mutant.suggestion
    at_bound = check("create", "user/a.md", "allow", **{asked: bound})
    assert made(body + at_bound)[name].status == "survived"
    beyond = check("create", "user/a.md", "deny", **{asked: bound + 1})
    assert made(body + beyond)[name].status == "caught"


@pytest.mark.parametrize(
    "body",
    [
        READ + quota("q", max_files=3),
        WRITE + quota("q", "/user/a/**", max_files=3) + quota("tighter", "/user/**", max_files=3),
        WRITE + quota("q", "/user/a/**", max_files=3) + rule("deny", "d", ["create", "modify"], ["a/"]),
    ],
    ids=["nothing is written", "another holds it", "denied there"],
)
def test_a_quota_that_bounds_nothing_by_itself_is_equivalent(made, body):
    assert made(body)["quota[q] with max_files = 6"].status == "equivalent"


def test_what_the_prover_gives_up_on_is_undecided_and_not_equivalent(made, monkeypatch):
    monkeypatch.setattr(proofs, "Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    body = rule("allow", "a", ["create"], ["/user/*.md"]) + rule("deny", "d", ["create"], ["x.md"])
    found = made(body + quota("q", max_files=3))
    assert {each.status for each in found.values()} == {"undecided"}
    assert all(each.suggestion == () for each in found.values())


@pytest.mark.slow
def test_the_shipped_policies_notice_every_weakening_of_their_own():
    for name in ("strict", "hardened", "clean"):
        missed = [each.what for each in mutants(load_files(name)) if each.status == "survived"]
        assert (name, missed) == (name, [])


PATTERNS = ["/user/*.md", "/user/*", "/user/a/*.md", "/user/**", "/user/**/b.md", "/*/a/b.md"]
COVERED = ["a/", "b.md", "/user/a/", "*.md", "?.md", "/user/*/b.md", ".*"]
VERBS = ["list", "read", "create", "modify", "delete"]
BODIES = st.builds(
    "".join,
    st.tuples(
        st.builds(
            rule,
            st.just("allow"),
            st.just("a"),
            st.lists(st.sampled_from(VERBS), min_size=1, max_size=3, unique=True),
            st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True),
        ),
        st.builds(
            rule,
            st.just("deny"),
            st.just("d"),
            st.lists(st.sampled_from(VERBS), min_size=1, max_size=3, unique=True),
            st.lists(st.sampled_from(COVERED), min_size=1, max_size=2, unique=True),
        ),
        st.builds(quota, st.just("q"), st.sampled_from(PATTERNS), max_files=st.integers(1, 9)),
        st.builds(quota, st.just("r"), st.just("/**"), max_files=st.integers(1, 9)),
    ),
)


@pytest.mark.slow
@given(BODIES)
def test_the_test_that_is_suggested_loads_and_catches_its_mutant(tmp_path_factory, body):
    path = tmp_path_factory.mktemp("own") / "own.toml"
    first = {each.what: each for each in mutants(load_files(write(path, body=SCOPES + body)))}
    survived = {what: each for what, each in first.items() if each.status == "survived"}
    tests = "".join("\n".join(each.suggestion) + "\n" for each in survived.values())
    again = {each.what: each for each in mutants(load_files(write(path, body=SCOPES + body + tests)))}
    assert {what: again[what].status for what in survived} == dict.fromkeys(survived, "caught")
    assert "survived" not in {each.status for each in again.values()}


@pytest.mark.slow
@given(BODIES)
def test_no_test_at_all_can_tell_an_equivalent_mutant_from_its_policy(tmp_path_factory, body):
    """By brute force over the paths of a small world, with the real decision."""
    loaded = load_files(write(tmp_path_factory.mktemp("own") / "own.toml", body=SCOPES + body))
    trial = proofs._MutantTrial(loaded)
    world = [canonicalise(f"user/{each}", loaded.policy.scopes) for each in WORLD]
    for change, layer in (*trial._without_denies(), *trial._with_wider_allows()):
        mutated = loaded.policy.model_copy(update={"layers": (layer,)})
        judge, own = Judge(mutated), Judge(loaded.policy)
        gained = [
            (act, path.text)
            for path in world
            for act in ACTS
            if judge.grants(act, path) and not own.grants(act, path)
            if act != "create" or path.text.endswith("c.md") or path.text.endswith(("a.md", "b.md"))
        ]
        if trial._compared(change, mutated).status == "equivalent":
            assert gained == []


WORLD = [
    f"{folder}{name}"
    for folder in ("", "a/", "b/", "a/b/", "c/a/", ".c/")
    for name in ("a.md", "b.md", "c.md", "a", "c.txt", "aa.md")
]


def test_a_mutant_is_wider_than_its_policy_or_equal_and_never_narrower(made, tmp_path):
    made(READ + WRITE + rule("deny", "d", ["*"], ["x/", "*.tmp"]) + rule("allow", "b", ["list"], ["/user/*"]))
    loaded = load_files(str(tmp_path / "own.toml"))
    trial = proofs._MutantTrial(loaded)
    for _, layer in (*trial._without_denies(), *trial._with_wider_allows()):
        mutated = loaded.policy.model_copy(update={"layers": (layer,)})
        assert diff(mutated, loaded.policy).verdict == "proved"


def test_a_name_of_dots_alone_is_never_suggested_and_never_taken_for_a_proof(made):
    found = made(rule("allow", "a", ["create"], ["/user/....md"]))
    assert found["allow[a] with '/user/**/....md' for '/user/....md'"].status == "undecided"
    assert found["allow[a] with '/user/*' for '/user/....md'"].status == "survived"
