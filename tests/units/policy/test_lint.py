"""Lint: files that do not load, hostile files, and policies that do less or risk more than they seem to."""

import os

import pytest

from kit.policy.files import (
    CHECK,
    READS,
    SCOPES,
    TESTED,
    format_allow,
    format_deny,
    format_quota,
    format_rule,
    write_policy,
)
from muniment.lab import review as subject
from muniment.lab.proofs import Prover
from muniment.lab.review import lint_policy


@pytest.fixture
def lint_own(tmp_path):
    """Return a function that lints `own`: (code, line) pairs, the findings (`whole`), or the only finding
    (`one`).
    """

    def lint_own(body, *, extends=(), whole=False, one=False, mother=None):
        if mother is not None:
            extends = [write_policy(tmp_path / "mother.toml", body=mother) and "./mother.toml"]
        findings = lint_policy(write_policy(tmp_path / "own.toml", body=body, extends=extends))
        assert all(each.fix and each.problem for each in findings)
        assert not one or len(findings) == 1, findings
        return findings[0] if one else findings if whole else [(each.code, each.line) for each in findings]

    return lint_own


# -- files that do not load -----------------------------------------------------------------------------


UNFIT = [
    *(("E101", 4, "colour = 1\n", "correct or remove the key"), ("E101", 4, "scope = 1\n", "write 'scopes'")),
    *(("E102", 4, "x = = 1\n", "correct the TOML"), ("E102", 6, SCOPES + "[scopes]\n", "correct the TOML")),
    ("E103", 6, SCOPES + '[[quota]]\nid = "q"\n', "add the key"),
    ("E104", 7, SCOPES + '[confinement]\nrequire = "most"\n', "the possible values"),
    ("E107", 10, SCOPES + READS * 2, "one of the two ids"),
    ("E108", 8, SCOPES + format_deny("x", verbs=[]), "at least one"),
    ("E109", 6, SCOPES + format_allow("/**", verbs=["read", "*"]), "* in deny rules only"),
    ("E109", 8, SCOPES + format_deny("x", verbs=["write"]), "verbs list, read, create"),
    ("E104", 9, SCOPES + format_deny("x").replace('"x"', "3"), "the possible values"),
    ("E110", 7, SCOPES + "[limits]\nturns = 7\n", "within the bounds"),
    ("E201", 9, SCOPES + format_deny("con"), "remove the pattern"),
    ("E202", 9, SCOPES + format_deny("**/a/**/b/**/c"), "fewer wildcards"),
    *(("E203", 9, SCOPES + format_deny(each), "literals, *, ? and **") for each in ("a[0-9]", "a\u200b")),
    ("E111", 5, '[scopes]\n"A B" = {}\n', "another name"),
    *(
        ("E203", 9, SCOPES + format_deny(" a "), "write 'a'"),
        ("E203", 9, SCOPES + format_deny("\ufb01le"), "write 'file'"),
    ),
    ("E203", 9, SCOPES + format_deny("its ").replace("its", "it's"), 'write "it\'s"'),
    ("E205", 9, SCOPES + format_allow("*.md"), "write '/**/*.md'"),
    ("E205", 9, SCOPES + format_allow("user/*.md"), "write '/user/*.md'"),
    *(
        ("E206", 9, SCOPES + format_deny("pinned/a/"), "write /**/ in front"),
        ("E125", None, "", "declare a scope"),
    ),
    ("E401", 10, SCOPES + READS + CHECK.format("read", "a.md", "deny"), "correct the rule"),
]


def test_load_error_is_reported_with_line_and_fix(lint_own):
    for code, line, body, fix in UNFIT:
        finding = lint_own(body, one=True)
        assert (finding.code, finding.line, fix in finding.fix, finding.is_error) == (code, line, True, True)


def test_all_errors_of_a_stage_are_reported_in_line_order(lint_own):
    tables = SCOPES + "[limits]\nturns = 7\nminutes = 1\n[[deny]]\npaths = ['a', 1]\n"
    assert lint_own(tables) == [("E110", 7), ("E101", 8), ("E103", 9), ("E103", 9), ("E104", 10)]
    patterns = format_deny("b", "a[") + format_allow("x", "/no/**")
    assert lint_own(SCOPES + patterns) == [("E203", 9), ("E205", 13), ("E206", 13)]
    assert lint_own(SCOPES + format_deny("con", "a", "nul")) == [("E201", 9), ("E201", 9)]
    tests = CHECK.format("read", "a.md", "deny") + CHECK.format("list", "a.md", "allow")
    assert lint_own(SCOPES + READS + tests) == [("E401", 10), ("E401", 14)]
    wrong = format_deny("/team/", "/user/x", "a[")
    # A parent declares the scopes.
    assert lint_own(wrong, mother=SCOPES + READS) == [("E203", 7), ("E206", 7)]


def test_error_in_a_parent_is_reported_with_its_file(lint_own, tmp_path):
    untrue = SCOPES + READS + CHECK.format("read", "a.md", "deny")
    bodies = {
        "E101": "colour = 1\n" + SCOPES,
        "E102": "= 3",
        "E203": SCOPES + format_deny("a["),
        "E401": untrue,
    }
    for code, body in bodies.items():
        finding = lint_own(SCOPES + TESTED, mother=body, one=True)
        assert (finding.code, finding.where.startswith(str(tmp_path / "mother.toml"))) == (code, True)


def test_unresolved_or_unreadable_parent_is_a_finding(lint_own, tmp_path):
    for code, extends, fix in (
        *(("E120", "nobody", "correct the name"), ("E120", "./nobody.toml", "correct the name")),
        *(("E121", "./own.toml", "closes the cycle"), ("E111", "A b", "another name")),
        ("E127", "/etc/x.toml", "relative to the folder of this file"),
    ):
        finding = lint_own(SCOPES, extends=[extends], one=True)
        assert (finding.code, fix in finding.fix) == (code, True)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    (tmp_path / "long.toml").write_text("#" * 262_145)
    unread = [str(tmp_path / f"{name}.toml") for name in ("folder", "fifo", "bytes", "long", "nothing")]
    names = {"./a\0b.toml": "E100", "nobody": "E120", "No One": "E111", "No\0One": "E111"}
    for name, code in (dict.fromkeys(unread, "E100") | names).items():
        assert [each.code for each in lint_policy(name)] == [code], name
    never = format_rule("never", "x", ["read"], ["a/"])
    (tmp_path / "own.toml").write_text('schema = "muniment-invariants/1"\n' + never)
    (finding,) = lint_policy(str(tmp_path / "own.toml"))  # A file of invariants is recognized as such.
    assert (finding.code, finding.fix) == ("E105", "run: muniment policy prove FILE POLICY")


# -- hostile files --------------------------------------------------------


HOSTILE = "\\u001b[2J\\u0007\\u202e\\nE999 forged"


def test_finding_never_contains_raw_text_of_a_hostile_file(lint_own):
    bodies = [
        *(f'"{HOSTILE}" = 1\n', f'[scopes]\n"{HOSTILE}" = {{}}\n', SCOPES + format_deny(HOSTILE)),
        *(SCOPES + f'[limits]\n"{HOSTILE}" = 1\n', SCOPES + f'[content]\nreject = ["{HOSTILE}"]\n'),
        *(SCOPES + format_deny("x", name=HOSTILE), SCOPES + format_deny("x", verbs=[HOSTILE])),
        *(
            SCOPES + READS + CHECK.format(*arguments, "allow")
            for arguments in (("read", HOSTILE), (HOSTILE, "a"))
        ),
        *("x = " + each for each in ("[" * 3_000, "{a=" * 3_000, "9" * 5_000)),
    ]
    cases = [lint_own(body, whole=True) for body in bodies]
    for findings in (*cases, lint_own(SCOPES, extends=[f"./{HOSTILE}.toml"], whole=True)):
        assert findings[0].is_error
        assert all((each.where + each.problem + each.fix).isprintable() for each in findings)


@pytest.mark.parametrize("count", [12, pytest.param(256, marks=pytest.mark.slow)])
def test_largest_file_with_many_rules_is_examined(lint_own, count):
    too_many = [format_deny(f"x{n}/", verbs=["read"], name=f"d{n}") for n in range(257)]
    rules = "".join(too_many[:count])
    grown = SCOPES + TESTED + rules + "#" * (200_000 - len(rules)) + "\n"
    assert {code for code, _ in lint_own(grown)} <= {"I501", "W303", "W304"}
    assert [code for code, _ in lint_own(SCOPES + TESTED + "".join(too_many))] == ["E108"]


# -- rules that do less than they seem to ---------------------------------------------------------------


def test_useless_allow_pattern_is_reported(lint_own):
    finding = lint_own(
        SCOPES + format_allow("/user/a.md", "/user/ /b") + CHECK.format("read", "a.md", "allow"), one=True
    )
    assert (finding.code, finding.line, "'/user/ /b'" in finding.problem) == ("W301", 9, True)
    denied = SCOPES + TESTED + format_deny("a/") + CHECK.format("read", "a/b", "deny")
    assert lint_own(denied + format_allow("/user/a/*", verbs=["read", "list"])) == [("W302", 22)]
    for some_is_left in (["/user/a/*", "/user/b"], ["/user/*/c"]):
        assert "W302" not in dict(lint_own(denied + format_allow(*some_is_left)))


def test_redundant_deny_pattern_is_reported(lint_own, tmp_path):
    tested, checks = SCOPES + TESTED, CHECK.format("read", "a/b/c", "deny")
    finding = lint_own(tested + format_deny("a/", "/user/a/b", verbs=["read"]) + checks, one=True)
    assert (finding.code, finding.line, "'/user/a/b'" in finding.problem) == ("W303", 17, True)
    assert "not both" in finding.fix
    both, listed = format_allow("/user/**", verbs=["read", "list"]), CHECK.format("list", "x", "deny")
    narrow = format_deny("x", verbs=["read"]) + format_deny("x", verbs=["read", "list"], name="e")
    writes = format_allow("/user/**", verbs=["modify"]) + CHECK.format("modify", "a", "allow")
    kwargs = format_deny("kept/", verbs=["delete"]) + CHECK.format("removal", "kept/a", "deny")
    for body, expected in (
        (tested + format_deny("/user/b/", "/user/a/b", verbs=["read"]) + checks, []),
        (SCOPES + both + narrow + CHECK.format("read", "x", "deny") + listed, [("W303", 13)]),
        (tested + format_deny("x", verbs=["list"]) + listed, [("W304", 17)]),
        (tested + format_deny("x", verbs=["read"]) + listed, [("I501", 14)]),
        # Code may remove what may be modified.
        *((SCOPES + writes + kwargs, []), (tested + kwargs, [("W304", 17)])),
    ):
        assert lint_own(body) == expected, body
    (tmp_path / "policy.lock").write_text("")  # Locks and rules of a parent do not count.
    assert lint_own(TESTED, mother=SCOPES + READS) == []


# -- a child that requests more than its parent ---------------------------------------------------------


MOTHER = (
    '[scopes]\nuser = { trust = "workspace", commit = "review" }\n[limits]\nturns = 3\n[content]\n'
    "reject = ['ansi']\n" + READS + format_quota("q", "/user/**", max_files=7)
)
WIDER_CHILDREN = [
    (format_allow("/user/*", verbs=["list"]), 4, "requests list on user/"),
    (format_allow("/user/*", verbs=["read", "modify"]), 4, "requests modify on user/"),
    ("[scopes]\nuser = {}\nteam = {}\n", 6, "declares the scope 'team'"),
    ('[scopes]\nuser = { trust = "owner" }\n', 5, "sets trust = 'owner'; 'workspace' of a parent applies"),
    ('[scopes]\nuser = { commit = "auto" }\n', 5, "sets commit = 'auto'; 'review' of a parent applies"),
    ("[limits]\nturns = 4\n", 5, "is looser than in a parent policy; 3 applies"),
    ("[content]\nreject = ['bidi']\n", 5, "is looser than in a parent policy; ansi, bidi applies"),
    (
        format_quota("q", "/user/a/**", max_files=8),
        7,
        "max_files is looser than in a parent policy; 7 applies",
    ),
]
EQUAL_CHILDREN = [
    *(format_allow("/user/*.md", "/*/a/*"), '[scopes]\nuser = { trust = "external" }\n'),
    '[scopes]\nuser = { trust = "workspace", commit = "review" }\n',
    *("[limits]\nturns = 3\nseconds = 9\n", "[content]\nreject = ['ansi', 'bidi']\n"),
    *(
        *(format_quota("q", "/user/a/**", **more) for more in ({"max_files": 7}, {"max_total_bytes": 7}, {})),
        "",
    ),
]


def test_e601_child_that_requests_more_is_reported_with_its_line(lint_own):
    for body, line, problem in WIDER_CHILDREN:
        findings = lint_own(body, mother=MOTHER, whole=True)
        (finding,) = (each for each in findings if each.code == "E601")
        assert (finding.line, finding.problem.startswith(problem)) == (line, True), finding.problem
    for body in EQUAL_CHILDREN:
        assert "E601" not in dict(lint_own(body, mother=MOTHER)), body


# -- risks ----------------------------------------------------------------------------------------------


TEAM = '[scopes]\nuser = { trust = "owner" }\nteam = { trust = "workspace" }\n'
TO_TEAM = CHECK.replace("user/", "team/").format("create", "a.md", "allow")
READS_AND_WRITES = format_allow("/user/*", name="r") + format_allow("/team/*", name="w", verbs=["create"])
READS_AND_WRITES += CHECK.format("read", "a", "allow") + TO_TEAM
DELETES = format_allow("/user/*", verbs=["delete"]) + CHECK.format("delete", "a", "allow")
RISKS = [
    *(("W801", 6, SCOPES + DELETES), ("W802", 15, SCOPES + TESTED + '[confinement]\nrequire = "none"\n')),
    ("W803", 15, SCOPES + TESTED + '[provenance]\nuntrusted_sources = "allow"\n'),
    ("W805", 15, SCOPES + TESTED + '[content]\nreject = ["bidi"]\n'),
    ("W805", 15, SCOPES + TESTED + '[content]\ninstructions = "allow"\n'),
    ("W805", 15, SCOPES + TESTED + '[content]\npoison = "allow"\n'),
    ("W806", 15, SCOPES + TESTED + '[confinement]\non_escape = "refuse"\n'),
    ("W804", 6, TEAM + READS_AND_WRITES),
]


def test_risky_policy_is_reported_including_inherited_risk(lint_own):
    for code, line, body in RISKS:
        finding = lint_own(body, one=True)
        assert (finding.code, finding.line, finding.is_error) == (code, line, False)
    unconfined = '[confinement]\nrequire = "none"\n'
    assert lint_own(unconfined + TESTED, mother=SCOPES + TESTED + unconfined) == [("W802", 5)]
    assert lint_own(DELETES, mother=SCOPES + format_allow("/user/*", verbs=["delete"])) == [("W801", 4)]
    # W804 needs one run that reads one scope and writes the other.
    for user, team in (["read"], ["read", "list"]), (["list", "create"], ["modify"]), (["read"], []):
        rules = format_allow("/user/*", name="u", verbs=user)
        rules += format_allow("/team/*", name="t", verbs=team) if team else ""
        assert "W804" not in dict(lint_own(TEAM + rules)), team


def test_undecided_proof_is_not_reported(lint_own, monkeypatch):
    monkeypatch.setattr(subject, "Prover", lambda *args, **kwargs: Prover(*args, **kwargs, work=1))
    body = format_allow("/user/con", verbs=["read", "delete"]) + format_deny("x", verbs=["read"])
    assert {code for code, _ in lint_own(SCOPES + body)} == {"I501"}
