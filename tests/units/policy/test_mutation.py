"""Mutants of a policy: every weakening is generated, and no effective one is missed."""

from functools import partial

import pytest

from kit.policy.files import (
    CHECK,
    READS,
    SCOPES,
    format_allow,
    format_deny,
    format_quota,
    format_rule,
    write_policy,
)
from muniment.lab import proofs
from muniment.lab.proofs import Prover, generate_mutants
from muniment.policy.load import load_files

WRITE = format_rule("allow", "w", ["create", "modify"], ["/user/**"])


@pytest.fixture
def make_mutants(tmp_path):
    """Return a function that creates every mutant of a policy, by its change."""

    def make_mutants(body, extends=()):
        path = write_policy(tmp_path / "own.toml", body=SCOPES + body, extends=extends)
        return {each.what: each for each in generate_mutants(load_files(path))}

    return make_mutants


def get_statuses(found):
    """Return the statuses of the mutants; only survivors have a suggested test."""
    assert all(bool(each.suggestion) == (each.status == "survived") for each in found.values())
    return {each.status for each in found.values()}


def test_every_pattern_and_verb_of_a_deny_rule_is_dropped_once(make_mutants):
    found = make_mutants(READS + format_deny("x", "y/", verbs=["read", "list"]))
    dropped = {"pattern 'x'": "x", "pattern 'y/'": "y/", "verb list": None, "verb read": None}
    changes = {what: (each.kind, each.rule, each.pattern) for what, each in found.items()}
    assert changes == {f"deny[d] without {what}": ("deny", "d", each) for what, each in dropped.items()}


WIDER = """/user/*.md /user/**/*.md /user/* | /user/a/b.md /user/a/**/b.md /user/a/* |
/user/**/*.md /user/**/* | /**/a/*.md /**/a/**/*.md /**/a/* | /**/a/**/b/*.md /**/a/**/b/* | /user/**"""


def test_allow_patterns_are_widened_and_quotas_doubled(make_mutants):
    for pattern, *wider in map(str.split, WIDER.split("|")):
        found = make_mutants(format_allow(pattern))
        assert list(found) == [f"allow[a] with {each!r} for {pattern!r}" for each in wider]
        assert all((each.kind, each.pattern) == ("allow", pattern) for each in found.values())
    greatest = proofs.MAX_BYTES
    found = make_mutants(
        WRITE + format_quota("q", max_file_bytes=greatest - 1, max_total_bytes=greatest, max_files=1)
    )
    assert list(found) == [f"quota[q] with max_file_bytes = {greatest}", "quota[q] with max_files = 2"]


def test_survivor_has_the_shortest_test_that_catches_it(make_mutants):
    body = READS + format_deny("secret/", verbs=["read"])
    mutant, _ = make_mutants(body).values()
    assert (mutant.status, mutant.test, mutant.act) == ("survived", None, "read")
    assert (mutant.path[:12], len(mutant.path)) == ("user/secret/", len("user/secret/x"))
    expected_test = ("[[test]]", 'verb = "read"', f'path = "/{mutant.path}"', 'expect = "deny"')
    assert mutant.suggestion == expected_test
    listed = format_allow("/user/a/*.md", "/*/b.md", verbs=["list", "create"])
    for more in ("", listed, WRITE + format_quota("q", max_files=3)):
        first = make_mutants(body + more)
        survived = [what for what, each in first.items() if each.status == "survived"]
        retested = make_mutants(
            body + more + "".join("\n".join(first[what].suggestion) + "\n" for what in survived)
        )
        assert {retested[what].status for what in survived} == {"caught"}
        assert "survived" not in get_statuses(retested)
    body = WRITE + format_deny("kept/", verbs=["delete"])  # A mutant lets code remove more.
    assert {(each.status, each.act) for each in make_mutants(body).values()} == {("survived", "removal")}
    assert get_statuses(make_mutants(body + CHECK.format("removal", "kept/a.md", "deny"))) == {"caught"}


def test_mutant_of_a_redundant_rule_is_equivalent(make_mutants, tmp_path):
    read = partial(format_deny, verbs=["read"])
    for body in (
        *(READS + read("x", name="a") + read("X", name="b"), format_allow("/user/*.md") + READS),
        *(READS + format_deny("x", verbs=["list"]), read("x")),  # It is never granted.
    ):
        assert get_statuses(make_mutants(body)) == {"equivalent"}, body
    rules = format_allow("/user/*.md") + read("x.md") + format_quota("q", max_files=3)
    write_policy(tmp_path / "mother.toml", body=SCOPES + rules.replace('id = "', 'id = "p'))
    found = make_mutants(rules.replace('"q"', '"pq"'), extends=["./mother.toml"])
    assert {each.rule for each in found.values()} == {"a", "d"}  # Rules of a parent are not mutated.
    assert get_statuses(found) == {"equivalent"}
    write_policy(tmp_path / "mother.toml", body=SCOPES + WRITE + format_quota("q", max_files=30))
    found = make_mutants(WRITE + format_quota("q", "/user/a/**", max_files=10), extends=["./mother.toml"])
    assert "quota[q] with max_files = 20" in found  # The quota of this file, not the one of the same id.
    assert "quota[q] with max_files = 60" not in found


def test_larger_quota_survives_until_a_test_exceeds_its_bound(make_mutants):
    body = WRITE + format_quota("q", max_file_bytes=5, max_files=6, max_total_bytes=7)
    found = make_mutants(body)
    for key, bound in (("file_bytes", 5), ("files", 6), ("total_bytes", 7)):
        name = f"quota[q] with max_{key} = {2 * bound}"
        mutant = found[name]
        assert (mutant.status, mutant.over, mutant.act) == ("survived", (key, bound + 1), "create")
        assert f"{key} = {bound + 1}" in mutant.suggestion
        for expect, size, status in ("allow", bound, "survived"), ("deny", bound + 1, "caught"):
            check = CHECK.format("create", "a.md", expect) + f"{key} = {size}\n"
            assert make_mutants(body + check)[name].status == status
    own = format_quota("q", "/user/a/**", max_files=3)
    tighter, nothing = (
        format_quota("tighter", "/user/**", max_files=3),
        format_deny("a/", verbs=["create", "modify"]),
    )
    for body in (READS + own, WRITE + own + tighter, WRITE + own + nothing):
        assert make_mutants(body)["quota[q] with max_files = 6"].status == "equivalent", body


def test_mutant_of_an_undecided_proof_is_undecided(make_mutants, monkeypatch):
    # A name of only dots is never suggested, and never accepted as a proof.
    found = make_mutants(format_allow("/user/....md", verbs=["create"]))
    assert found["allow[a] with '/user/**/....md' for '/user/....md'"].status == "undecided"
    assert found["allow[a] with '/user/*' for '/user/....md'"].status == "survived"
    monkeypatch.setattr(proofs, "Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    body = format_allow("/user/*.md", verbs=["create"]) + format_deny("x.md", verbs=["create"])
    assert get_statuses(make_mutants(body + format_quota("q", max_files=3))) == {"undecided"}
