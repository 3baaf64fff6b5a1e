"""Lint of policies that load: rules that do nothing, children that ask for more, and risks."""

from __future__ import annotations

import pytest

from kit.policy.files import CHECK, SCOPES, TESTED, rule
from kit.policy.files import READ_USER as READ
from muniment.lab import review as subject
from muniment.lab.proofs import Prover

TEAM = '[scopes]\nuser = { trust = "owner" }\nteam = { trust = "workspace" }\n'


# -- rules that do less than they seem to ---------------------------------------------------------------


def test_w301_an_allow_pattern_that_matches_no_path(found):
    idle = rule("allow", "a", ["read"], ["/user/a.md", "/user/ /b"])
    body = SCOPES + idle + CHECK.format("read", "a.md", "allow")
    (finding,) = found(body, whole=True)
    assert (finding.code, finding.line) == ("W301", 9)
    assert "'/user/ /b'" in finding.problem


def test_w302_an_allow_rule_all_of_which_is_denied_and_not_one_of_which_some_is_left(found):
    deny = rule("deny", "d", ["*"], ["a/"]) + CHECK.format("read", "a/b", "deny")
    whole = rule("allow", "a", ["read", "list"], ["/user/a/*"])
    assert found(SCOPES + TESTED + deny + whole) == [("W302", 22)]
    for rest in (["/user/a/*", "/user/b"], ["/user/*/c"]):
        partly = rule("allow", "a", ["read"], rest)
        assert "W302" not in dict(found(SCOPES + TESTED + deny + partly))


def test_w303_a_deny_pattern_that_another_one_covers(found):
    tests = CHECK.format("read", "a/b/c", "deny")
    covered = rule("deny", "d", ["read"], ["a/", "/user/a/b"])
    (finding,) = found(SCOPES + TESTED + covered + tests, whole=True)
    assert (finding.code, finding.line) == ("W303", 17)
    assert "'/user/a/b'" in finding.problem
    assert "not both" in finding.fix
    apart = rule("deny", "d", ["read"], ["/user/b/", "/user/a/b"])
    assert found(SCOPES + TESTED + apart + tests) == []


def test_w303_counts_only_what_is_denied_for_every_verb_of_the_rule(found):
    allow = rule("allow", "r", ["read", "list"], ["/user/**"])
    tests = CHECK.format("read", "x", "deny") + CHECK.format("list", "x", "deny")
    narrow = rule("deny", "d", ["read"], ["x"]) + rule("deny", "e", ["read", "list"], ["x"])
    assert found(SCOPES + allow + narrow + tests) == [("W303", 13)]


def test_w304_a_deny_pattern_where_nothing_is_granted(found):
    tests = CHECK.format("list", "x", "deny")
    assert found(SCOPES + TESTED + rule("deny", "d", ["list"], ["x"]) + tests) == [("W304", 17)]
    assert found(SCOPES + TESTED + rule("deny", "d", ["read"], ["x"]) + tests) == [("I501", 14)]


def test_w304_a_deny_of_delete_is_no_safeguard_alone_where_code_may_remove(found):
    write_rule = rule("allow", "w", ["modify"], ["/user/**"]) + CHECK.format("modify", "a", "allow")
    deny = rule("deny", "d", ["delete"], ["kept/"]) + CHECK.format("removal", "kept/a", "deny")
    assert found(SCOPES + write_rule + deny) == []
    assert found(SCOPES + TESTED + deny) == [("W304", 17)]


def test_i501_is_about_the_rules_of_the_file_itself(found):
    assert found(TESTED, extends=["./mother.toml"], mother=SCOPES + READ) == []


# -- a child that asks for more than its parent ---------------------------------------------------------


MOTHER = (
    '[scopes]\nuser = { trust = "workspace", commit = "review" }\n'
    + READ
    + "[limits]\nturns = 3\n[content]\nreject = ['ansi']\n"
    + '[[quota]]\nid = "q"\npaths = ["/user/**"]\nmax_files = 7\n'
)


@pytest.mark.parametrize(
    ("body", "line", "problem"),
    [
        (rule("allow", "a", ["list"], ["/user/*"]), 4, "asks for list on user/"),
        (rule("allow", "a", ["read", "modify"], ["/user/*"]), 4, "asks for modify on user/"),
        ("[scopes]\nuser = {}\nteam = {}\n", 6, "declares the scope 'team'"),
        ('[scopes]\nuser = { trust = "owner" }\n', 5, "asks for trust = 'owner'; a parent has 'workspace'"),
        ('[scopes]\nuser = { commit = "auto" }\n', 5, "asks for commit = 'auto'; a parent has 'review'"),
        ("[limits]\nturns = 4\n", 5, "is looser than a parent has it; 3 holds"),
        ("[content]\nreject = ['bidi']\n", 5, "is looser than a parent has it; ansi, bidi holds"),
        (
            '[[quota]]\nid = "q"\npaths = ["/user/a/**"]\nmax_files = 8\n',
            7,
            "max_files is looser than a parent has it; 7 holds",
        ),
    ],
)
def test_e601_a_child_that_asks_for_more_is_told_where(found, body, line, problem):
    findings = found(body, extends=["./mother.toml"], mother=MOTHER, whole=True)
    (finding,) = (each for each in findings if each.code == "E601")
    assert finding.line == line
    assert finding.problem.startswith(problem)


@pytest.mark.parametrize(
    "body",
    [
        rule("allow", "a", ["read"], ["/user/*.md", "/*/a/*"]),
        '[scopes]\nuser = { trust = "external" }\n',
        '[scopes]\nuser = { trust = "workspace", commit = "review" }\n',
        "[limits]\nturns = 3\nseconds = 9\n",
        "[content]\nreject = ['ansi', 'bidi']\n",
        '[[quota]]\nid = "q"\npaths = ["/user/a/**"]\nmax_files = 7\n',
        '[[quota]]\nid = "q"\npaths = ["/user/a/**"]\nmax_total_bytes = 7\n',
        '[[quota]]\nid = "q"\npaths = ["/user/a/**"]\n',
        "",
    ],
)
def test_e601_a_child_that_asks_for_no_more_is_not_complained_about(found, body):
    found_codes = [code for code, _ in found(body, extends=["./mother.toml"], mother=MOTHER)]
    assert "E601" not in found_codes


# -- risks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "line", "body"),
    [
        (
            "W801",
            6,
            SCOPES + rule("allow", "d", ["delete"], ["/user/*"]) + CHECK.format("delete", "a", "allow"),
        ),
        ("W802", 15, SCOPES + TESTED + '[confinement]\nrequire = "none"\n'),
        ("W803", 15, SCOPES + TESTED + '[provenance]\nuntrusted_sources = "allow"\n'),
        ("W805", 15, SCOPES + TESTED + '[content]\nreject = ["bidi"]\n'),
        ("W805", 15, SCOPES + TESTED + '[content]\ninstructions = "allow"\n'),
        ("W806", 15, SCOPES + TESTED + '[confinement]\non_escape = "refuse"\n'),
        (
            "W804",
            6,
            TEAM
            + rule("allow", "r", ["read"], ["/user/*"])
            + rule("allow", "w", ["create"], ["/team/*"])
            + CHECK.format("read", "a", "allow")
            + CHECK.format("create", "a.md", "allow").replace("user/", "team/"),
        ),
    ],
)
def test_a_policy_that_is_risky_is_told_where(found, code, line, body):
    (finding,) = found(body, whole=True)
    assert (finding.code, finding.line, finding.is_error) == (code, line, False)


@pytest.mark.parametrize(
    ("user", "team"),
    [(["read"], ["read", "list", "delete"]), (["list", "create"], ["modify"]), (["read"], [])],
)
def test_w804_needs_one_run_that_reads_the_one_and_writes_the_other(found, user, team):
    rules = rule("allow", "u", user, ["/user/*"]) + (rule("allow", "t", team, ["/team/*"]) if team else "")
    assert "W804" not in dict(found(TEAM + rules))


def test_what_a_child_inherits_is_its_risk_too_though_no_line_of_its_own_says_so(found):
    mother = SCOPES + TESTED + '[confinement]\nrequire = "none"\n'
    child = '[confinement]\nrequire = "none"\n' + TESTED
    assert found(child, extends=["./mother.toml"], mother=mother) == [("W802", 5)]
    bare = rule("allow", "d", ["delete"], ["/user/*"])
    mother = SCOPES + bare
    body = bare.replace("allow", "allow") + CHECK.format("delete", "a", "allow")
    assert found(body, extends=["./mother.toml"], mother=mother) == [("W801", 4)]


def test_what_the_prover_gives_up_on_is_not_reported(found, monkeypatch):
    monkeypatch.setattr(subject, "Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    body = rule("allow", "a", ["read", "delete"], ["/user/con"]) + rule("deny", "d", ["read"], ["x"])
    assert {code for code, _ in found(SCOPES + body)} == {"I501"}
