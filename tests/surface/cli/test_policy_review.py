"""`muniment policy lint`, `explain`, `test` and `prove`, as text and as JSON."""

import json

import pytest

from kit.policy.files import SCOPES, write_policy
from muniment.cli import policy as command
from muniment.lab import proofs
from muniment.lab.proofs import Prover
from muniment.policy.load import load_policy

READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\nwhy = "to know"\n'
DENY = '[[deny]]\nid = "d"\nverbs = ["read"]\npaths = ["x", "secret/"]\nwhy = """not\n\\u001bhere"""\n'
SECRET = DENY.replace('"x", ', "")
CHECK = '[[test]]\nverb = "{}"\npath = "{}"\nexpect = "{}"\n'
TESTED = READ + CHECK.format("read", "user/a.md", "allow")
FORBIDDEN = "the rule 'd' does not let you read user/secret/a.md; use another name or folder"
NOT_GRANTED = "not allowed to list user/a.md; this memory lets you list nothing; continue without it"
HOSTILE = "a\x1b[2J\n\u202eWIDER\x07.md"


# -- lint ----------------------------------------------------------------------------------------------


def test_lint_prints_place_code_problem_and_fix(write_own_policy, policy):
    path = write_own_policy(TESTED)
    assert policy.run_for_lines("lint", path) == [f"{path}: no findings"]
    write_own_policy(READ)
    fix = "    fix: add a [[test]] with a path that it matches"
    assert policy.run_for_lines("lint", path) == [
        f"{path}:6: I501 allow[r]: is not used by any inline test",
        fix,
    ]
    write_own_policy(READ.replace("/user/**", "*.md"))
    problem = f"{path}:9: E205 allow[r]: pattern '*.md' is not anchored"
    assert policy.run_for_lines("lint", path, code=1)[0].startswith(problem)
    write_own_policy("= 3\n")
    assert policy.run_for_lines("lint", path, code=1)[0].startswith(f"{path}:6: E102 not TOML: ")


def test_lint_names_parent_file_and_line(write_own_policy, policy, home, tmp_path):
    mother = tmp_path / "own.toml.d" / "a b.toml"
    path = write_own_policy("", extends=["own.toml.d/a b.toml"])
    write_policy(mother, "mother", body=SCOPES + "colour = 1\n[limits]\nx = 1")
    assert policy.run_for_lines("lint", path, code=1)[0].startswith(f"{mother}:6: E104 scopes.colour: ")
    write_policy(mother, "mother", body="= 3")
    assert policy.run_for_lines("lint", path, code=1)[0].startswith(f"{mother}:4: E102 not TOML")
    # The name of this parent is longer.
    write_policy(home / "policies" / "own.toml", body="", extends=["own-mother"])
    write_policy(home / "policies" / "own-mother.toml", body="[scopes]\nuser = 3\n")
    assert policy.run_for_lines("lint", "own", code=1)[0].startswith("own-mother:5: E104 scopes.user: ")


def test_lint_json_groups_findings_by_policy(write_own_policy, policy, home, tmp_path):
    good, path = (
        write_policy(tmp_path / "good.toml", body=SCOPES + TESTED),
        write_own_policy("[limits]\nturns = 9\n"),
    )
    found = policy.run_for_document("lint", good, path, "nobody", code=1)
    assert (found["status"], list(found["findings"])) == ("unfit", [good, path, "nobody"])
    assert found["findings"][good] == []
    location = {"code": "E110", "where": f"{path} limits.turns", "line": 7}
    bounds = {"problem": "should be less than or equal to 6", "fix": "choose a number within the bounds"}
    assert found["findings"][path] == [location | bounds]
    assert [each["code"] for each in found["findings"]["nobody"]] == ["E120"]
    assert policy.run_for_document("lint", good) == {"status": "fit", "findings": {good: []}}
    home.mkdir()
    (home / "config.toml").write_text("= 3")
    for name in ("lint", "test"):
        assert policy.run_for_document(name, good, code=1)["status"] == "failed"


def test_lint_of_hostile_file_escapes_output(write_own_policy, policy, tmp_path):
    hostile = "\\u001b[2J\\nE999 forged\\u202e"
    path = write_own_policy(f'[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["{hostile}"]\n')
    lines = policy.run_for_lines("lint", path, tmp_path / HOSTILE, code=1)
    assert (len(lines), all(line.isprintable() for line in lines)) == (4, True)
    assert not any(line.startswith(("E999", "WIDER")) for line in lines)


# -- explain -------------------------------------------------------------------------------------------


def test_explain_prints_decision_rule_and_reason(write_own_policy, policy, tmp_path):
    path = write_own_policy(READ + DENY)
    grants = f"  allow r                        matches '/user/**'  ({path}:9)"
    denies = "  deny  d                        {}  ({}:14)"
    assert policy.run_for_lines("explain", path, "read", "/memories/user/secret/a.md") == [
        *("DENY  read user/secret/a.md: by the rule 'd' of the layer 'own'", "  why             not here"),
        f"  the model       receives: {FORBIDDEN}",
        "  the operator    refused: denied by rule 'd' of layer 'own'; the run continues",
        *(grants, denies.format("matches 'secret/'", path)),
    ]
    verdict = "ALLOW  read user/a.md: every layer allows it"
    expected = [verdict, grants, denies.format("does not match", path)]
    assert policy.run_for_lines("explain", path, "read", "user/a.md") == expected
    line = policy.run_for_lines("explain", path, "list", "user/a.md")[0]
    assert line == "DENY  list user/a.md: no rule of the layer 'own' allows it"
    escape, model, operator, *_ = policy.run_for_lines("explain", path, "read", "../a.md")
    assert escape.startswith("DENY  read ../a.md: by the rule 'name' of the layer 'grammar'")
    assert model == "  the model       receives no message: the run ends"
    assert "remember_path_escape" in operator
    mother = write_policy(tmp_path / "mother.toml", body=SCOPES + READ + DENY)
    lines = policy.run_for_lines(
        "explain", write_own_policy(READ, extends=["./mother.toml"]), "read", "user/x"
    )
    assert denies.format("matches 'x'", mother) in lines


def test_explain_json_names_place_of_every_rule(write_own_policy, policy, monkeypatch):
    path = write_own_policy(READ + DENY)
    found = policy.run_for_document("explain", path, "read", "user/x")
    assert (found["policy"], found["digest"]) == ("own", load_policy(path).digest)
    assert (found["verdict"], found["code"], found["layer"], found["rule"]) == ("deny", "refused", "own", "d")
    keys = ("layer", "kind", "rule", "pattern", "at", "why")
    assert found["consulted"] == [
        dict(zip(keys, ("own", "allow", "r", "/user/**", f"{path}:9", "to know"), strict=True)),
        dict(zip(keys, ("own", "deny", "d", "x", f"{path}:14", "not\n\x1bhere"), strict=True)),
    ]
    for act in ("list", "create", "modify", "delete", "removal"):
        found = policy.run_for_document("explain", path, act, "user/x")
        assert (found["act"], found["rule"]) == (act, "name" if act == "create" else "default")
    granted = policy.run_for_document("explain", path, "read", "/memories/user/a.md")
    assert (granted["path"], granted["operator_is_told"]) == ("user/a.md", "no message: it is granted")
    monkeypatch.setattr("muniment.policy.tables.find_line", lambda *_: None)
    assert policy.run_for_lines("explain", path, "read", "user/a.md")[1].endswith(f"({path})")
    assert command.locate_rule([], "request", "deny", "r", None) == "request"


def test_explain_escapes_any_input_on_one_line(write_own_policy, policy):
    path = write_own_policy(READ)
    for path_argument in (
        f"user/{HOSTILE}",
        HOSTILE,
        "user/\udcff.md",
        "-rf",
        "",
        " ",
        "user/ä.md",
        "a" * 9_000,
    ):
        lines = policy.run_for_lines("explain", path, "read", "--", path_argument)
        assert all(line.isprintable() for line in lines)
        assert [line for line in lines if not line.startswith("  ")] == lines[:1]
        found = json.loads(policy("explain", "--json", path, "read", "--", path_argument).stdout)
        assert found["asked"] == path_argument
    message = "use one of list, read, create, modify, delete, removal [config_invalid]"
    for verb in ("write", "*", "", "READ", HOSTILE, "\udcff"):
        (line,) = policy.run_for_lines("explain", path, verb, "user/a.md", code=1)
        assert (line.startswith("not explained: "), line.endswith(message)) == (True, True)


# -- test ----------------------------------------------------------------------------------------------


def test_policy_test_detects_failures_and_unnoticed_mutants(write_own_policy, policy, monkeypatch):
    tally = "2 weakened variants: {} caught, 0 equivalent, {} survived, 0 undecided"
    path = write_own_policy(TESTED + SECRET + CHECK.format("read", "user/secret/a", "deny"))
    assert policy.run_for_lines("test", path) == [f"{path}: 2 tests, all passed; {tally.format(2, 0)}"]
    write_own_policy(READ + SECRET)
    lines = policy.run_for_lines("test", path, code=1)
    notice = f"{path}:14: no test detects deny[d] without pattern 'secret/'"
    assert lines[:2] == [notice, "    fix: correct the rule if it has no effect, or add this test:"]
    assert lines[-1].endswith(f"0 tests, all passed; {tally.format(0, 2)}")
    suggestion = "\n".join(lines[2:6]) + "\n"
    assert suggestion.split()[0] == "[[test]]"
    write_own_policy(READ + SECRET + suggestion)
    assert policy("test", path).exit_code == 0
    write_own_policy(
        READ + CHECK.format("read", "user/a.md", "deny") + CHECK.format("list", "user/a.md", "allow")
    )
    assert policy.run_for_lines("test", path, code=1) == [
        f"{path}:11: test 1 expects deny, the policy returns allow: every layer grants it",
        f"{path}:15: test 2 expects allow, the policy returns deny: {NOT_GRANTED}",
        f"{path}: 2 tests, 2 failed",
    ]
    monkeypatch.setattr("muniment.policy.load.find_nearest_line", lambda *_: None)
    assert policy.run_for_lines("test", path, code=1)[0].startswith(f"{path}: test 1 expects deny")


def test_policy_test_json_lists_results(write_own_policy, policy, tmp_path):
    path = write_own_policy(READ + SECRET)
    bad = write_policy(tmp_path / "bad.toml", body=SCOPES + READ + CHECK.format("read", "user/a.md", "deny"))
    found = policy.run_for_document("test", path, bad, code=1)
    good, failed = found["policies"]
    assert (found["status"], good["policy"], good["tests"], good["failed"]) == ("failed", path, 0, [])
    mutant = good["mutants"][0]
    assert mutant["path"].startswith("user/secret/")
    suggestion = f'[[test]]\nverb = "read"\npath = "/{mutant["path"]}"\nexpect = "deny"'
    expected = {
        "act": "read",
        "status": "survived",
        "rule": "d",
        "pattern": "secret/",
        "suggestion": suggestion,
    }
    assert expected.items() <= mutant.items()
    assert (failed["failed"][0]["line"], failed["mutants"]) == (11, [])
    assert policy.run_for_document("test", write_own_policy(TESTED))["status"] == "passed"
    assert policy.run_for_error_code("test", path, "nobody") == "policy_invalid"


# -- prove ---------------------------------------------------------------------------------------------


@pytest.fixture
def write_invariants(tmp_path):
    def write_invariants(body, schema="muniment-invariants/1", name="invariants.toml"):
        path = tmp_path / name
        path.write_text(f'schema = "{schema}"\n{body}')
        return str(path)

    return write_invariants


NEVER = '[[never]]\nid = "no-x"\nverbs = ["read"]\npaths = ["x"]\nwhy = """because\n\\u001bso"""\n'
SEPARATE = '[[apart]]\nid = "apart"\none = { verbs = ["read"], paths = ["/user/*"] }\n'
SEPARATE += 'other = { verbs = ["read"], paths = ["/user/a/*"] }\n'


def test_prove_reports_proof_or_counterexample(write_own_policy, write_invariants, policy):
    invariants, path = write_invariants(NEVER), write_own_policy(READ + DENY)
    assert policy.run_for_lines("prove", invariants, path) == [f"proved    {path}: never[no-x]"]
    assert policy.run_for_document("prove", invariants, path)["status"] == "proved"
    write_own_policy(READ)
    found = policy.run_for_document("prove", invariants, path, code=1)
    assert found["status"] == "not proved"
    never = {"id": "no-x", "kind": "never", "why": "because\n\x1bso", "status": "broken", "reason": ""}
    assert found["findings"][path] == [never | {"witnesses": [{"act": "read", "path": "user/x"}]}]
    never, why, separate_line = policy.run_for_lines(
        "prove", write_invariants(NEVER + SEPARATE), path, code=1
    )
    assert never == f"broken    {path}: never[no-x]: allows read user/x"
    assert why == "          because so"
    assert " and read user/a/" in separate_line


def test_undecided_proof_fails(write_own_policy, write_invariants, policy, monkeypatch):
    monkeypatch.setattr(proofs, "Prover", lambda *args, **options: Prover(*args, **options, work=1))
    path = write_own_policy(READ + DENY)
    assert policy.run_for_lines("prove", write_invariants(NEVER), path, code=1)[0].startswith("undecided ")
    lines = policy.run_for_lines("test", path, code=1)
    assert "    fix: simplify the policy; it is too complex to compute the effect of this rule" in lines
    assert lines[-1].endswith("3 undecided")


def test_prove_rejects_invalid_sentences_and_policies(write_own_policy, write_invariants, policy, tmp_path):
    path, schema = write_own_policy(READ), "muniment-invariants/1"
    for code, invariants in (
        *(
            ("E102", write_invariants("= 3", schema, HOSTILE)),
            ("E150", write_invariants("", "muniment-policy/1", "policy")),
        ),
        *(("E100", tmp_path), ("E100", tmp_path / f"no{HOSTILE}")),
        ("E150", write_invariants('"\\u001b\\nE999" = 1\n')),
        ("E203", write_invariants(NEVER.replace('["x"]', '["x["]'), schema, "pattern")),
    ):
        (line,) = policy.run_for_lines("prove", invariants, path, code=1)
        assert (line.startswith(f"not proved: {code} "), line.isprintable()) == (True, True)
    assert policy.run_for_document("prove", invariants, path, code=1)["error"]["message"].startswith("E203 ")
    assert "E120" in policy.run_for_lines("prove", write_invariants(NEVER), "nobody", code=1)[0]
