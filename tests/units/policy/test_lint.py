"""Lint of files that do not load, and of hostile ones: each code, with its line and what to write."""

from __future__ import annotations

import os

import pytest

from kit.policy.files import CHECK, SCOPES, TESTED, rule
from kit.policy.files import READ_USER as READ
from muniment.lab.review import lint

# -- files that do not load -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "line", "body", "fix"),
    [
        ("E101", 4, "colour = 1\n", "correct or remove the key"),
        ("E101", 4, "scope = 1\n", "write 'scopes'"),
        ("E102", 4, "x = = 1\n", "correct the TOML"),
        ("E102", 6, SCOPES + "[scopes]\n", "correct the TOML"),
        ("E103", 6, SCOPES + '[[quota]]\nid = "q"\n', "add the key"),
        ("E104", 7, SCOPES + '[confinement]\nrequire = "most"\n', "values that are possible"),
        ("E107", 10, SCOPES + READ + READ, "another id"),
        ("E108", 8, SCOPES + '[[deny]]\nid = "d"\nverbs = []\npaths = ["x"]\n', "at least one"),
        ("E109", 6, SCOPES + rule("allow", "a", ["read", "*"], ["/**"]), "* in deny rules only"),
        ("E109", 8, SCOPES + rule("deny", "d", ["write"], ["x"]), "out of list, read, create"),
        ("E104", 9, SCOPES + rule("deny", "d", ["*"], ["x"]).replace('"x"', "3"), "values that are possible"),
        ("E110", 7, SCOPES + "[limits]\nturns = 7\n", "within the bounds"),
        ("E111", 5, '[scopes]\n"A B" = {}\n', "another name"),
        ("E201", 9, SCOPES + rule("deny", "d", ["*"], ["con"]), "remove the pattern"),
        ("E202", 9, SCOPES + rule("deny", "d", ["*"], ["**/a/**/b/**/c"]), "fewer wildcards"),
        ("E203", 9, SCOPES + rule("deny", "d", ["*"], ["a[0-9]"]), "literals, *, ? and **"),
        ("E203", 9, SCOPES + rule("deny", "d", ["*"], [" a "]), "write 'a'"),
        ("E203", 9, SCOPES + rule("deny", "d", ["*"], ["\ufb01le"]), "write 'file'"),
        ("E203", 9, SCOPES + rule("deny", "d", ["*"], ["a\u200b"]), "literals"),
        ("E203", 9, SCOPES + rule("deny", "d", ["*"], [" "]), "literals"),
        ("E203", 9, SCOPES + rule("deny", "d", ["*"], ["its [ "]), "literals"),
        ("E203", 9, SCOPES + rule("deny", "d", ["*"], ["its "]).replace("its", "it's"), 'write "it\'s"'),
        ("E205", 9, SCOPES + rule("allow", "a", ["read"], ["*.md"]), "write '/**/*.md'"),
        ("E205", 9, SCOPES + rule("allow", "a", ["read"], ["user/*.md"]), "write '/user/*.md'"),
        ("E206", 9, SCOPES + rule("deny", "d", ["*"], ["pinned/a/"]), "write /**/ in front"),
        ("E125", None, "", "declare a scope"),
        ("E401", 10, SCOPES + READ + CHECK.format("read", "a.md", "deny"), "correct the rule"),
    ],
)
def test_what_keeps_a_file_from_loading_is_told_with_its_line_and_what_to_write(found, code, line, body, fix):
    (finding,) = found(body, whole=True)
    assert (finding.code, finding.line) == (code, line)
    assert fix in finding.fix
    assert finding.is_error


def test_all_complaints_of_a_stage_are_told_at_once_in_the_order_of_lines(found):
    tables = SCOPES + "[limits]\nturns = 7\nminutes = 1\n[[deny]]\npaths = ['a', 1]\n"
    assert found(tables) == [("E110", 7), ("E101", 8), ("E103", 9), ("E103", 9), ("E104", 10)]
    patterns = rule("deny", "d", ["*"], ["b", "a["]) + rule("allow", "a", ["read"], ["x", "/no/**"])
    assert found(SCOPES + patterns) == [("E203", 9), ("E205", 13), ("E206", 13)]
    silent = rule("deny", "d", ["*"], ["con", "a", "nul"])
    assert found(SCOPES + silent) == [("E201", 9), ("E201", 9)]
    tests = CHECK.format("read", "a.md", "deny") + CHECK.format("list", "a.md", "allow")
    assert found(SCOPES + READ + tests) == [("E401", 10), ("E401", 14)]


def test_patterns_are_held_to_the_scopes_that_parents_declare(found):
    wrong = rule("deny", "d", ["*"], ["/team/", "/user/x", "a["])
    assert found(wrong, extends=["./mother.toml"], mother=SCOPES + READ) == [("E203", 7), ("E206", 7)]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("E101", "colour = 1\n" + SCOPES),
        ("E102", "= 3"),
        ("E203", SCOPES + rule("deny", "d", ["*"], ["a["])),
        ("E401", SCOPES + READ + CHECK.format("read", "a.md", "deny")),
    ],
)
def test_a_complaint_in_a_parent_is_told_with_the_name_of_its_file(found, tmp_path, code, body):
    (finding,) = found(SCOPES + TESTED, extends=["./mother.toml"], mother=body, whole=True)
    assert finding.code == code
    assert finding.where.startswith(str(tmp_path / "mother.toml"))


@pytest.mark.parametrize(
    ("code", "extends", "fix"),
    [
        ("E120", "nobody", "correct the name"),
        ("E120", "./nobody.toml", "correct the name"),
        ("E121", "./own.toml", "leads back"),
        ("E127", "/etc/x.toml", "from the folder of this file"),
        ("E111", "A b", "another name"),
    ],
)
def test_what_a_file_extends_in_vain_is_told(found, code, extends, fix):
    (finding,) = found(SCOPES, extends=[extends], whole=True)
    assert finding.code == code
    assert fix in finding.fix


def test_files_that_cannot_be_read_are_findings_and_no_crash(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    (tmp_path / "long.toml").write_text("#" * 262_145)
    for name in ("folder", "fifo", "bytes", "long", "nothing"):
        assert [each.code for each in lint(str(tmp_path / f"{name}.toml"))] == ["E100"], name
    assert [each.code for each in lint("./a\0b.toml")] == ["E100"]
    assert [each.code for each in lint("nobody")] == ["E120"]
    assert [each.code for each in lint("No One")] == ["E111"]
    assert [each.code for each in lint("No\0One")] == ["E111"]


# -- what is hostile --------------------------------------------------------


HOSTILE = "\\u001b[2J\\u0007\\u202e\\nE999 forged"


@pytest.mark.parametrize(
    "body",
    [
        f'"{HOSTILE}" = 1\n',
        SCOPES + f'[limits]\n"{HOSTILE}" = 1\n',
        SCOPES + rule("deny", "d", ["*"], [HOSTILE]),
        SCOPES + rule("deny", HOSTILE, ["*"], ["x"]),
        SCOPES + rule("deny", "d", [HOSTILE], ["x"]),
        SCOPES + f"[content]\nreject = ['{HOSTILE}']\n".replace("'", '"'),
        f'[scopes]\n"{HOSTILE}" = {{}}\n',
        SCOPES + READ + CHECK.format("read", HOSTILE, "allow"),
        SCOPES + READ + CHECK.format(HOSTILE, "a", "allow"),
        "x = " + "[" * 3_000,
        "x = " + "{a=" * 3_000,
        "x = " + "9" * 5_000,
    ],
)
def test_nothing_that_a_hostile_file_holds_reaches_a_finding_as_it_is(found, body):
    findings = found(body, whole=True)
    assert findings
    assert findings[0].is_error
    for each in findings:
        assert (each.where + each.problem + each.fix).isprintable()


def test_a_parent_named_by_control_characters_is_told_by_its_escaped_name(found):
    (finding,) = found(SCOPES, extends=[f"./{HOSTILE}.toml"], whole=True)
    assert finding.code == "E111"
    assert (finding.where + finding.problem).isprintable()


@pytest.mark.parametrize("count", [40, pytest.param(256, marks=pytest.mark.slow)])
def test_a_file_of_the_greatest_size_and_of_many_rules_is_examined(found, count):
    rules = "".join(rule("deny", f"d{number}", ["read"], [f"x{number}/"]) for number in range(count))
    grown = SCOPES + TESTED + rules + "#" * (200_000 - len(rules)) + "\n"
    assert {code for code, _ in found(grown)} <= {"I501", "W303", "W304"}
    too_many = "".join(rule("deny", f"d{number}", ["read"], ["x"]) for number in range(257))
    assert [code for code, _ in found(SCOPES + TESTED + too_many)] == ["E108"]


def test_a_file_of_invariants_is_told_apart_from_a_policy(tmp_path):
    path = tmp_path / "invariants.toml"
    path.write_text(
        'schema = "muniment-invariants/1"\n[[never]]\nid = "x"\nverbs = ["read"]\npaths = ["a/"]\n'
    )
    (found,) = lint(str(path))
    assert (found.code, found.fix) == ("E105", "run: muniment policy prove FILE POLICY")
