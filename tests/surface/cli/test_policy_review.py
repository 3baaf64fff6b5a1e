"""`muniment policy lint`, `explain` and `test`, as functions that print and return an exit code."""

from __future__ import annotations

import pytest

from kit.policy.files import SCOPES, write
from muniment.cli import policy as command
from muniment.lab import proofs
from muniment.lab.proofs import Prover
from muniment.policy.load import load_policy

READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\nwhy = "to know"\n'
DENY = '[[deny]]\nid = "d"\nverbs = ["read"]\npaths = ["x", "secret/"]\nwhy = """not\n\\u001bhere"""\n'
CHECK = '[[test]]\nverb = "{}"\npath = "{}"\nexpect = "{}"\n'
TESTED = READ + CHECK.format("read", "user/a.md", "allow")
FORBIDDEN = "the rule 'd' forbids to read user/secret/a.md; use another name or folder"
NOT_GRANTED = "not allowed to list user/a.md; this memory lets you list nothing at all; go on without it"
HOSTILE = "a\x1b[2J\n\u202eWIDER\x07.md"

pytestmark = pytest.mark.usefixtures("own_home")


# -- lint ------------------------------------------------------------------------------------------------


def test_lint_says_place_code_problem_and_fix_and_exits_by_whether_the_file_is_fit(own, said):
    path = own(TESTED)
    assert command.lint([path], as_json=False) == 0
    assert said() == [f"{path}: nothing to say"]
    path = own(READ)
    assert command.lint([path], as_json=False) == 0
    assert said() == [
        f"{path}:6: I501 allow[r]: is reached by no inline test",
        "    fix: add a [[test]] with a path that it matches",
    ]
    path = own(READ.replace("/user/**", "*.md"))
    assert command.lint([path], as_json=False) == 1
    assert said()[0].startswith(f"{path}:9: E205 allow[r]: pattern '*.md' is not anchored")
    path = own("= 3\n")
    assert command.lint([path], as_json=False) == 1
    assert said()[0].startswith(f"{path}:6: E102 not TOML: ")
    assert "column 1" in str(load_error(path))


def load_error(path):
    try:
        return load_policy(path)
    except Exception as error:  # noqa: BLE001  its text is what is looked at
        return error


def test_lint_tells_the_file_of_a_parent_with_its_line(own, said, tmp_path):
    mother = write(
        tmp_path / "own.toml.d" / "a b.toml", "mother", body=SCOPES + "colour = 1\n[limits]\nx = 1"
    )
    path = own("", extends=["own.toml.d/a b.toml"])
    assert command.lint([path], as_json=False) == 1
    assert said()[0].startswith(f"{mother}:6: E104 scopes.colour: ")
    mother = write(tmp_path / "own.toml.d" / "a b.toml", "mother", body="= 3")
    assert command.lint([path], as_json=False) == 1
    assert said()[0].startswith(f"{mother}:4: E102 not TOML")


def test_lint_does_not_take_a_parent_with_a_longer_name_for_the_policy(tmp_path, said):
    policies = tmp_path / "home" / "policies"
    write(policies / "own.toml", body="", extends=["own-mother"])
    write(policies / "own-mother.toml", body="[scopes]\nuser = 3\n")
    assert command.lint(["own"], as_json=False) == 1
    assert said()[0].startswith("own-mother:5: E104 scopes.user: ")


def test_lint_gives_one_document_with_the_findings_of_each_policy(own, said, tmp_path):
    good, path = write(tmp_path / "good.toml", body=SCOPES + TESTED), own("[limits]\nturns = 9\n")
    assert command.lint([good, path, "nobody"], as_json=True) == 1
    found = said(as_json=True)
    assert found["status"] == "unfit"
    assert list(found["findings"]) == [good, path, "nobody"]
    assert found["findings"][good] == []
    (finding,) = found["findings"][path]
    assert finding == {
        "code": "E110",
        "where": f"{path} limits.turns",
        "line": 7,
        "problem": "should be less than or equal to 6",
        "fix": "choose a number within the bounds",
    }
    assert [each["code"] for each in found["findings"]["nobody"]] == ["E120"]
    assert command.lint([good], as_json=True) == 0
    assert said(as_json=True) == {"status": "fit", "findings": {good: []}}


@pytest.mark.parametrize("run", ["lint", "test"])
def test_settings_that_cannot_be_read_fail_with_a_code(run, own, said, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text("= 3")
    path = own(TESTED)
    assert getattr(command, run)([path], as_json=True) == 1
    assert said(as_json=True)["status"] == "failed"


def test_lint_of_a_hostile_file_prints_nothing_that_steers_and_a_line_for_each_thing(own, said, tmp_path):
    hostile = "\\u001b[2J\\nE999 forged\\u202e"
    path = own(f'[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["{hostile}"]\n')
    assert command.lint([path, str(tmp_path / HOSTILE)], as_json=False) == 1
    lines = said()
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith(("E999", "WIDER")) for line in lines)


# -- explain ---------------------------------------------------------------------------------------------


def test_explain_says_the_verdict_the_rule_its_reason_and_who_is_told_what(own, said):
    path = own(READ + DENY)
    assert command.explain(path, "read", "/memories/user/secret/a.md", as_json=False) == 0
    assert said() == [
        "DENY  read user/secret/a.md: by the rule 'd' of the layer 'own'",
        "  why             not here",
        f"  the model       is told: {FORBIDDEN}",
        "  the operator    refused: denied by rule 'd' of layer 'own'; the run goes on",
        f"  allow r                        matches by '/user/**'  ({path}:9)",
        f"  deny  d                        matches by 'secret/'  ({path}:14)",
    ]
    assert command.explain(path, "read", "user/a.md", as_json=False) == 0
    assert said() == [
        "ALLOW  read user/a.md: every layer grants it",
        f"  allow r                        matches by '/user/**'  ({path}:9)",
        f"  deny  d                        does not match  ({path}:14)",
    ]
    assert command.explain(path, "list", "user/a.md", as_json=False) == 0
    assert said()[0] == "DENY  list user/a.md: nothing in the layer 'own' grants it"


def test_explain_says_that_an_escape_ends_the_run_and_that_the_model_is_told_nothing(own, said):
    assert command.explain(own(READ), "read", "../a.md", as_json=False) == 0
    lines = said()
    assert lines[0].startswith("DENY  read ../a.md: by the rule 'name' of the layer 'grammar'")
    assert lines[1] == "  the model       is told nothing: the run ends"
    assert "remember_path_escape" in lines[2]


@pytest.mark.parametrize("act", ["list", "read", "create", "modify", "delete", "removal"])
def test_explain_answers_for_every_act(act, own, said):
    body = READ.replace('"read"', '"list", "read", "create", "modify"') + DENY.replace('"read"', '"delete"')
    path = own(body)
    granted = {"list", "read", "create", "modify", "removal"}
    assert command.explain(path, act, "user/a.md", as_json=True) == 0
    found = said(as_json=True)
    assert (found["act"], found["verdict"]) == (act, "allow" if act in granted else "deny")
    assert command.explain(path, act, "user/x", as_json=True) == 0
    found = said(as_json=True)
    assert found["verdict"] == ("deny" if act in {"delete", "removal", "create"} else "allow")
    assert found["rule"] == {"delete": "d", "removal": "d", "create": "name"}.get(act)


def test_explain_gives_one_document_with_the_place_of_every_rule(own, said):
    path = own(READ + DENY)
    assert command.explain(path, "read", "user/x", as_json=True) == 0
    found = said(as_json=True)
    assert found["policy"] == "own"
    assert found["digest"] == load_policy(path).digest
    assert (found["verdict"], found["code"], found["layer"], found["rule"]) == ("deny", "refused", "own", "d")
    assert found["consulted"] == [
        {
            "layer": "own",
            "kind": "allow",
            "rule": "r",
            "pattern": "/user/**",
            "at": f"{path}:9",
            "why": "to know",
        },
        {
            "layer": "own",
            "kind": "deny",
            "rule": "d",
            "pattern": "x",
            "at": f"{path}:14",
            "why": "not\n\x1bhere",
        },
    ]


def test_explain_names_the_file_of_a_rule_that_a_parent_has(own, said, tmp_path):
    mother = write(tmp_path / "mother.toml", body=SCOPES + READ + DENY)
    command.explain(own(READ, extends=["./mother.toml"]), "read", "user/x", as_json=False)
    assert f"  deny  d                        matches by 'x'  ({mother}:14)" in said()


@pytest.mark.parametrize(
    "asked",
    [f"user/{HOSTILE}", HOSTILE, "user/\udcff.md", "-rf", "", " ", "user/a b.md", "user/ä.md", "a" * 9_000],
)
def test_explain_prints_any_path_that_is_asked_on_one_line_and_steers_no_terminal(own, said, asked):
    path = own(READ)
    assert command.explain(path, "read", asked, as_json=False) == 0
    lines = said()
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if not line.startswith("  ")] == lines[:1]
    assert command.explain(path, "read", asked, as_json=True) == 0
    assert said(as_json=True)["asked"] == asked


@pytest.mark.parametrize("verb", ["write", "*", "", "READ", HOSTILE, "\udcff"])
def test_a_verb_that_there_is_not_is_told_with_those_that_there_are(verb, own, said):
    assert command.explain(own(READ), verb, "user/a.md", as_json=False) == 1
    (line,) = said()
    assert line.startswith("not explained: ")
    assert line.endswith("there are list, read, create, modify, delete, removal [config_invalid]")
    assert command.explain(own(READ), verb, "user/a.md", as_json=True) == 1
    assert said(as_json=True)["error"]["code"] == "config_invalid"


def test_a_rule_of_a_file_whose_lines_are_not_known_is_told_without_a_line(own, said, monkeypatch):
    monkeypatch.setattr(command, "line_of", lambda *_: None)
    path = own(READ)
    command.explain(path, "read", "user/a.md", as_json=False)
    assert said()[1].endswith(f"({path})")
    assert command.place_of([], "request", "deny", "r", None) == "request"


# -- test ------------------------------------------------------------------------------------------------


def test_the_tests_of_a_policy_that_miss_nothing_pass(own, said):
    path = own(TESTED + DENY.replace('"x", ', "") + CHECK.format("read", "user/secret/a", "deny"))
    assert command.test([path], as_json=False) == 0
    assert said() == [
        f"{path}: 2 tests, all hold; weakened in 2 ways: 2 caught, 0 equivalent, 0 survived, 0 undecided"
    ]


def test_a_weakening_that_no_test_notices_is_told_with_its_line_and_a_test_to_paste(own, said):
    path = own(READ + DENY.replace('"x", ', ""))
    assert command.test([path], as_json=False) == 1
    lines = said()
    assert lines[0] == f"{path}:14: no test notices deny[d] without pattern 'secret/'"
    assert lines[1] == "    fix: correct the rule if it is idle, or add"
    pasted = "\n".join(lines[2:6]) + "\n"
    assert pasted.split()[:1] == ["[[test]]"]
    assert lines[-1].endswith(
        "0 tests, all hold; weakened in 2 ways: 0 caught, 0 equivalent, 2 survived, 0 undecided"
    )
    path = own(READ + DENY.replace('"x", ', "") + pasted)
    assert command.test([path], as_json=False) == 0


def test_a_test_that_fails_is_told_with_its_line_and_nothing_is_weakened(own, said, monkeypatch):
    path = own(READ + CHECK.format("read", "user/a.md", "deny") + CHECK.format("list", "user/a.md", "allow"))
    assert command.test([path], as_json=False) == 1
    assert said() == [
        f"{path}:11: test 1 expects deny, the policy says allow: every layer grants it",
        f"{path}:15: test 2 expects allow, the policy says deny: {NOT_GRANTED}",
        f"{path}: 2 tests, 2 failed",
    ]
    monkeypatch.setattr("muniment.policy.load.line_at", lambda *_: None)
    assert command.test([path], as_json=False) == 1
    assert said()[0].startswith(f"{path}: test 1 expects deny")


def test_what_nobody_can_decide_fails_and_says_so(own, said, monkeypatch):
    monkeypatch.setattr(proofs, "Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    assert command.test([own(READ + DENY)], as_json=False) == 1
    lines = said()
    assert "    fix: make the policy simpler; nobody can tell what this rule does" in lines
    assert lines[-1].endswith("3 undecided")


def test_the_results_are_one_document(own, said, tmp_path):
    path = own(READ + DENY.replace('"x", ', ""))
    bad = write(tmp_path / "bad.toml", body=SCOPES + READ + CHECK.format("read", "user/a.md", "deny"))
    assert command.test([path, bad], as_json=True) == 1
    found = said(as_json=True)
    assert found["status"] == "failed"
    good, failed = found["policies"]
    assert (good["policy"], good["tests"], good["failed"]) == (path, 0, [])
    mutant = good["mutants"][0]
    assert mutant["path"].startswith("user/secret/")
    assert mutant == {
        "what": "deny[d] without pattern 'secret/'",
        "kind": "deny",
        "rule": "d",
        "pattern": "secret/",
        "status": "survived",
        "test": None,
        "act": "read",
        "path": mutant["path"],
        "over": None,
        "suggestion": f'[[test]]\nverb = "read"\npath = "/{mutant["path"]}"\nexpect = "deny"',
    }
    assert (failed["failed"][0]["line"], failed["mutants"]) == (11, [])
    assert command.test([own(TESTED)], as_json=True) == 0
    assert said(as_json=True)["status"] == "passed"
    assert command.test([path, "nobody"], as_json=True) == 1
    assert said(as_json=True)["error"]["code"] == "policy_invalid"
