"""Mutants of a policy: each weakening is made, and none that matters goes unseen."""

from functools import partial

import pytest

from kit.policy.files import CHECK, READS, SCOPES, allow, deny, quota, rule, write
from muniment.lab import proofs
from muniment.lab.proofs import Prover, mutants
from muniment.policy.load import load_files

WRITE = rule("allow", "w", ["create", "modify"], ["/user/**"])


@pytest.fixture
def made(tmp_path):
    """Every mutant of a policy of some rules, by what was changed."""

    def made(body, extends=()):
        path = write(tmp_path / "own.toml", body=SCOPES + body, extends=extends)
        return {each.what: each for each in mutants(load_files(path))}

    return made


def statuses(found):
    """How the mutants ended; a test is suggested for each that survived and for no other."""
    assert all(bool(each.suggestion) == (each.status == "survived") for each in found.values())
    return {each.status for each in found.values()}


def test_every_pattern_and_every_verb_of_a_deny_rule_is_dropped_once(made):
    found = made(READS + deny("x", "y/", verbs=["read", "list"]))
    dropped = {"pattern 'x'": "x", "pattern 'y/'": "y/", "verb list": None, "verb read": None}
    told = {what: (each.kind, each.rule, each.pattern) for what, each in found.items()}
    assert told == {f"deny[d] without {what}": ("deny", "d", each) for what, each in dropped.items()}


WIDER = """/user/*.md /user/**/*.md /user/* | /user/a/b.md /user/a/**/b.md /user/a/* |
/user/**/*.md /user/**/* | /**/a/*.md /**/a/**/*.md /**/a/* | /**/a/**/b/*.md /**/a/**/b/* | /user/**"""


def test_every_allow_pattern_is_widened_and_every_number_of_a_quota_is_doubled_up_to_the_greatest(made):
    for pattern, *wider in map(str.split, WIDER.split("|")):
        found = made(allow(pattern))
        assert list(found) == [f"allow[a] with {each!r} for {pattern!r}" for each in wider]
        assert all((each.kind, each.pattern) == ("allow", pattern) for each in found.values())
    greatest = proofs.MAX_BYTES
    found = made(WRITE + quota("q", max_file_bytes=greatest - 1, max_total_bytes=greatest, max_files=1))
    assert list(found) == [f"quota[q] with max_file_bytes = {greatest}", "quota[q] with max_files = 2"]


def test_a_mutant_that_no_test_fails_on_survives_with_the_shortest_test_that_catches_it(made):
    body = READS + deny("secret/", verbs=["read"])
    mutant, _ = made(body).values()
    assert (mutant.status, mutant.test, mutant.act) == ("survived", None, "read")
    assert (mutant.path[:12], len(mutant.path)) == ("user/secret/", len("user/secret/x"))
    asked = ("[[test]]", 'verb = "read"', f'path = "/{mutant.path}"', 'expect = "deny"')
    assert mutant.suggestion == asked
    listed = allow("/user/a/*.md", "/*/b.md", verbs=["list", "create"])
    for more in ("", listed, WRITE + quota("q", max_files=3)):
        first = made(body + more)
        survived = [what for what, each in first.items() if each.status == "survived"]
        again = made(body + more + "".join("\n".join(first[what].suggestion) + "\n" for what in survived))
        assert {again[what].status for what in survived} == {"caught"}
        assert "survived" not in statuses(again)
    body = WRITE + deny("kept/", verbs=["delete"])  # A mutant lets code remove more.
    assert {(each.status, each.act) for each in made(body).values()} == {("survived", "removal")}
    assert statuses(made(body + CHECK.format("removal", "kept/a.md", "deny"))) == {"caught"}


def test_what_other_rules_of_the_file_or_of_a_parent_hold_as_well_is_equivalent(made, tmp_path):
    read = partial(deny, verbs=["read"])
    for body in (
        *(READS + read("x", name="a") + read("X", name="b"), allow("/user/*.md") + READS),
        *(READS + deny("x", verbs=["list"]), read("x")),  # It is never granted.
    ):
        assert statuses(made(body)) == {"equivalent"}, body
    rules = allow("/user/*.md") + read("x.md") + quota("q", max_files=3)
    write(tmp_path / "mother.toml", body=SCOPES + rules.replace('id = "', 'id = "p'))
    found = made(rules.replace('"q"', '"pq"'), extends=["./mother.toml"])
    assert {each.rule for each in found.values()} == {"a", "d"}  # A parent's own are not mutated.
    assert statuses(found) == {"equivalent"}
    write(tmp_path / "mother.toml", body=SCOPES + WRITE + quota("q", max_files=30))
    found = made(WRITE + quota("q", "/user/a/**", max_files=10), extends=["./mother.toml"])
    assert "quota[q] with max_files = 20" in found  # The file's own, not the one of the same id.
    assert "quota[q] with max_files = 60" not in found


def test_a_larger_quota_survives_until_a_test_asks_one_beyond_its_bound_or_bounds_nothing_by_itself(made):
    body = WRITE + quota("q", max_file_bytes=5, max_files=6, max_total_bytes=7)
    found = made(body)
    for key, bound in (("file_bytes", 5), ("files", 6), ("total_bytes", 7)):
        name = f"quota[q] with max_{key} = {2 * bound}"
        mutant = found[name]
        assert (mutant.status, mutant.over, mutant.act) == ("survived", (key, bound + 1), "create")
        assert f"{key} = {bound + 1}" in mutant.suggestion
        for expect, size, status in ("allow", bound, "survived"), ("deny", bound + 1, "caught"):
            check = CHECK.format("create", "a.md", expect) + f"{key} = {size}\n"
            assert made(body + check)[name].status == status
    own = quota("q", "/user/a/**", max_files=3)
    tighter, nothing = quota("tighter", "/user/**", max_files=3), deny("a/", verbs=["create", "modify"])
    for body in (READS + own, WRITE + own + tighter, WRITE + own + nothing):
        assert made(body)["quota[q] with max_files = 6"].status == "equivalent", body


def test_what_the_prover_gives_up_on_is_undecided_and_not_equivalent(made, monkeypatch):
    # A name of dots alone is never suggested, and never taken for a proof.
    found = made(allow("/user/....md", verbs=["create"]))
    assert found["allow[a] with '/user/**/....md' for '/user/....md'"].status == "undecided"
    assert found["allow[a] with '/user/*' for '/user/....md'"].status == "survived"
    monkeypatch.setattr(proofs, "Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    body = allow("/user/*.md", verbs=["create"]) + deny("x.md", verbs=["create"])
    assert statuses(made(body + quota("q", max_files=3))) == {"undecided"}
