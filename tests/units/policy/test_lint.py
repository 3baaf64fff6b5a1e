"""Lint: files that do not load, hostile ones, and policies that do less or risk more than they seem."""

import os

import pytest

from kit.policy.files import CHECK, READS, SCOPES, TESTED, allow, deny, quota, rule, write
from muniment.lab import review as subject
from muniment.lab.proofs import Prover
from muniment.lab.review import lint


@pytest.fixture
def found(tmp_path):
    """What lint says of `own`, as (code, line); with `whole`, all of it; with `one`, the only finding."""

    def found(body, *, extends=(), whole=False, one=False, mother=None):
        if mother is not None:
            extends = [write(tmp_path / "mother.toml", body=mother) and "./mother.toml"]
        findings = lint(write(tmp_path / "own.toml", body=body, extends=extends))
        assert all(each.fix and each.problem for each in findings)
        assert not one or len(findings) == 1, findings
        return findings[0] if one else findings if whole else [(each.code, each.line) for each in findings]

    return found


# -- files that do not load -----------------------------------------------------------------------------


UNFIT = [
    *(("E101", 4, "colour = 1\n", "correct or remove the key"), ("E101", 4, "scope = 1\n", "write 'scopes'")),
    *(("E102", 4, "x = = 1\n", "correct the TOML"), ("E102", 6, SCOPES + "[scopes]\n", "correct the TOML")),
    ("E103", 6, SCOPES + '[[quota]]\nid = "q"\n', "add the key"),
    ("E104", 7, SCOPES + '[confinement]\nrequire = "most"\n', "the possible values"),
    ("E107", 10, SCOPES + READS * 2, "one of the two ids"),
    ("E108", 8, SCOPES + deny("x", verbs=[]), "at least one"),
    ("E109", 6, SCOPES + allow("/**", verbs=["read", "*"]), "* in deny rules only"),
    ("E109", 8, SCOPES + deny("x", verbs=["write"]), "verbs list, read, create"),
    ("E104", 9, SCOPES + deny("x").replace('"x"', "3"), "the possible values"),
    ("E110", 7, SCOPES + "[limits]\nturns = 7\n", "within the bounds"),
    ("E201", 9, SCOPES + deny("con"), "remove the pattern"),
    ("E202", 9, SCOPES + deny("**/a/**/b/**/c"), "fewer wildcards"),
    *(("E203", 9, SCOPES + deny(each), "literals, *, ? and **") for each in ("a[0-9]", "a\u200b")),
    ("E111", 5, '[scopes]\n"A B" = {}\n', "another name"),
    *(("E203", 9, SCOPES + deny(" a "), "write 'a'"), ("E203", 9, SCOPES + deny("\ufb01le"), "write 'file'")),
    ("E203", 9, SCOPES + deny("its ").replace("its", "it's"), 'write "it\'s"'),
    ("E205", 9, SCOPES + allow("*.md"), "write '/**/*.md'"),
    ("E205", 9, SCOPES + allow("user/*.md"), "write '/user/*.md'"),
    *(("E206", 9, SCOPES + deny("pinned/a/"), "write /**/ in front"), ("E125", None, "", "declare a scope")),
    ("E401", 10, SCOPES + READS + CHECK.format("read", "a.md", "deny"), "correct the rule"),
]


def test_what_keeps_a_file_from_loading_is_told_with_its_line_and_what_to_write(found):
    for code, line, body, fix in UNFIT:
        told = found(body, one=True)
        assert (told.code, told.line, fix in told.fix, told.is_error) == (code, line, True, True)


def test_all_complaints_of_a_stage_are_told_at_once_in_the_order_of_lines(found):
    tables = SCOPES + "[limits]\nturns = 7\nminutes = 1\n[[deny]]\npaths = ['a', 1]\n"
    assert found(tables) == [("E110", 7), ("E101", 8), ("E103", 9), ("E103", 9), ("E104", 10)]
    patterns = deny("b", "a[") + allow("x", "/no/**")
    assert found(SCOPES + patterns) == [("E203", 9), ("E205", 13), ("E206", 13)]
    assert found(SCOPES + deny("con", "a", "nul")) == [("E201", 9), ("E201", 9)]
    tests = CHECK.format("read", "a.md", "deny") + CHECK.format("list", "a.md", "allow")
    assert found(SCOPES + READS + tests) == [("E401", 10), ("E401", 14)]
    wrong = deny("/team/", "/user/x", "a[")
    assert found(wrong, mother=SCOPES + READS) == [("E203", 7), ("E206", 7)]  # A parent declares the scopes.


def test_a_complaint_in_a_parent_is_told_with_the_name_of_its_file(found, tmp_path):
    untrue = SCOPES + READS + CHECK.format("read", "a.md", "deny")
    bodies = {"E101": "colour = 1\n" + SCOPES, "E102": "= 3", "E203": SCOPES + deny("a["), "E401": untrue}
    for code, body in bodies.items():
        told = found(SCOPES + TESTED, mother=body, one=True)
        assert (told.code, told.where.startswith(str(tmp_path / "mother.toml"))) == (code, True)


def test_what_a_file_extends_in_vain_or_cannot_be_read_is_a_finding_and_no_crash(found, tmp_path):
    for code, extends, fix in (
        *(("E120", "nobody", "correct the name"), ("E120", "./nobody.toml", "correct the name")),
        *(("E121", "./own.toml", "closes the cycle"), ("E111", "A b", "another name")),
        ("E127", "/etc/x.toml", "relative to the folder of this file"),
    ):
        told = found(SCOPES, extends=[extends], one=True)
        assert (told.code, fix in told.fix) == (code, True)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    (tmp_path / "long.toml").write_text("#" * 262_145)
    unread = [str(tmp_path / f"{name}.toml") for name in ("folder", "fifo", "bytes", "long", "nothing")]
    names = {"./a\0b.toml": "E100", "nobody": "E120", "No One": "E111", "No\0One": "E111"}
    for name, code in (dict.fromkeys(unread, "E100") | names).items():
        assert [each.code for each in lint(name)] == [code], name
    never = rule("never", "x", ["read"], ["a/"])
    (tmp_path / "own.toml").write_text('schema = "muniment-invariants/1"\n' + never)
    (told,) = lint(str(tmp_path / "own.toml"))  # A file of invariants is told apart from a policy.
    assert (told.code, told.fix) == ("E105", "run: muniment policy prove FILE POLICY")


# -- what is hostile --------------------------------------------------------


HOSTILE = "\\u001b[2J\\u0007\\u202e\\nE999 forged"


def test_nothing_that_a_hostile_file_holds_reaches_a_finding_as_it_is(found):
    bodies = [
        *(f'"{HOSTILE}" = 1\n', f'[scopes]\n"{HOSTILE}" = {{}}\n', SCOPES + deny(HOSTILE)),
        *(SCOPES + f'[limits]\n"{HOSTILE}" = 1\n', SCOPES + f'[content]\nreject = ["{HOSTILE}"]\n'),
        *(SCOPES + deny("x", name=HOSTILE), SCOPES + deny("x", verbs=[HOSTILE])),
        *(SCOPES + READS + CHECK.format(*asked, "allow") for asked in (("read", HOSTILE), (HOSTILE, "a"))),
        *("x = " + each for each in ("[" * 3_000, "{a=" * 3_000, "9" * 5_000)),
    ]
    cases = [found(body, whole=True) for body in bodies]
    for findings in (*cases, found(SCOPES, extends=[f"./{HOSTILE}.toml"], whole=True)):
        assert findings[0].is_error
        assert all((each.where + each.problem + each.fix).isprintable() for each in findings)


@pytest.mark.parametrize("count", [12, pytest.param(256, marks=pytest.mark.slow)])
def test_a_file_of_the_greatest_size_and_of_many_rules_is_examined(found, count):
    too_many = [deny(f"x{n}/", verbs=["read"], name=f"d{n}") for n in range(257)]
    rules = "".join(too_many[:count])
    grown = SCOPES + TESTED + rules + "#" * (200_000 - len(rules)) + "\n"
    assert {code for code, _ in found(grown)} <= {"I501", "W303", "W304"}
    assert [code for code, _ in found(SCOPES + TESTED + "".join(too_many))] == ["E108"]


# -- rules that do less than they seem to ---------------------------------------------------------------


def test_an_allow_pattern_that_matches_no_path_or_only_what_is_denied_is_told(found):
    told = found(SCOPES + allow("/user/a.md", "/user/ /b") + CHECK.format("read", "a.md", "allow"), one=True)
    assert (told.code, told.line, "'/user/ /b'" in told.problem) == ("W301", 9, True)
    denied = SCOPES + TESTED + deny("a/") + CHECK.format("read", "a/b", "deny")
    assert found(denied + allow("/user/a/*", verbs=["read", "list"])) == [("W302", 22)]
    for some_is_left in (["/user/a/*", "/user/b"], ["/user/*/c"]):
        assert "W302" not in dict(found(denied + allow(*some_is_left)))


def test_a_deny_pattern_that_another_covers_for_every_verb_or_denies_nothing_granted_is_told(found, tmp_path):
    tested, checks = SCOPES + TESTED, CHECK.format("read", "a/b/c", "deny")
    told = found(tested + deny("a/", "/user/a/b", verbs=["read"]) + checks, one=True)
    assert (told.code, told.line, "'/user/a/b'" in told.problem) == ("W303", 17, True)
    assert "not both" in told.fix
    both, listed = allow("/user/**", verbs=["read", "list"]), CHECK.format("list", "x", "deny")
    narrow = deny("x", verbs=["read"]) + deny("x", verbs=["read", "list"], name="e")
    writes = allow("/user/**", verbs=["modify"]) + CHECK.format("modify", "a", "allow")
    kept = deny("kept/", verbs=["delete"]) + CHECK.format("removal", "kept/a", "deny")
    for body, expected in (
        (tested + deny("/user/b/", "/user/a/b", verbs=["read"]) + checks, []),
        (SCOPES + both + narrow + CHECK.format("read", "x", "deny") + listed, [("W303", 13)]),
        (tested + deny("x", verbs=["list"]) + listed, [("W304", 17)]),
        (tested + deny("x", verbs=["read"]) + listed, [("I501", 14)]),
        # Code may remove what may be modified.
        *((SCOPES + writes + kept, []), (tested + kept, [("W304", 17)])),
    ):
        assert found(body) == expected, body
    (tmp_path / "policy.lock").write_text("")  # It does not count, nor do rules of a parent.
    assert found(TESTED, mother=SCOPES + READS) == []


# -- a child that asks for more than its parent ---------------------------------------------------------


MOTHER = (
    '[scopes]\nuser = { trust = "workspace", commit = "review" }\n[limits]\nturns = 3\n[content]\n'
    "reject = ['ansi']\n" + READS + quota("q", "/user/**", max_files=7)
)
ASKS = [
    (allow("/user/*", verbs=["list"]), 4, "requests list on user/"),
    (allow("/user/*", verbs=["read", "modify"]), 4, "requests modify on user/"),
    ("[scopes]\nuser = {}\nteam = {}\n", 6, "declares the scope 'team'"),
    ('[scopes]\nuser = { trust = "owner" }\n', 5, "sets trust = 'owner'; 'workspace' of a parent applies"),
    ('[scopes]\nuser = { commit = "auto" }\n', 5, "sets commit = 'auto'; 'review' of a parent applies"),
    ("[limits]\nturns = 4\n", 5, "is looser than in a parent; 3 applies"),
    ("[content]\nreject = ['bidi']\n", 5, "is looser than in a parent; ansi, bidi applies"),
    (quota("q", "/user/a/**", max_files=8), 7, "max_files is looser than in a parent; 7 applies"),
]
ASKS_NO_MORE = [
    *(allow("/user/*.md", "/*/a/*"), '[scopes]\nuser = { trust = "external" }\n'),
    '[scopes]\nuser = { trust = "workspace", commit = "review" }\n',
    *("[limits]\nturns = 3\nseconds = 9\n", "[content]\nreject = ['ansi', 'bidi']\n"),
    *(*(quota("q", "/user/a/**", **more) for more in ({"max_files": 7}, {"max_total_bytes": 7}, {})), ""),
]


def test_e601_a_child_that_asks_for_more_is_told_where_and_no_other(found):
    for body, line, problem in ASKS:
        findings = found(body, mother=MOTHER, whole=True)
        (finding,) = (each for each in findings if each.code == "E601")
        assert (finding.line, finding.problem.startswith(problem)) == (line, True), finding.problem
    for body in ASKS_NO_MORE:
        assert "E601" not in dict(found(body, mother=MOTHER)), body


# -- risks ----------------------------------------------------------------------------------------------


TEAM = '[scopes]\nuser = { trust = "owner" }\nteam = { trust = "workspace" }\n'
TO_TEAM = CHECK.replace("user/", "team/").format("create", "a.md", "allow")
READS_AND_WRITES = allow("/user/*", name="r") + allow("/team/*", name="w", verbs=["create"])
READS_AND_WRITES += CHECK.format("read", "a", "allow") + TO_TEAM
DELETES = allow("/user/*", verbs=["delete"]) + CHECK.format("delete", "a", "allow")
RISKS = [
    *(("W801", 6, SCOPES + DELETES), ("W802", 15, SCOPES + TESTED + '[confinement]\nrequire = "none"\n')),
    ("W803", 15, SCOPES + TESTED + '[provenance]\nuntrusted_sources = "allow"\n'),
    ("W805", 15, SCOPES + TESTED + '[content]\nreject = ["bidi"]\n'),
    ("W805", 15, SCOPES + TESTED + '[content]\ninstructions = "allow"\n'),
    ("W805", 15, SCOPES + TESTED + '[content]\npoison = "allow"\n'),
    ("W806", 15, SCOPES + TESTED + '[confinement]\non_escape = "refuse"\n'),
    ("W804", 6, TEAM + READS_AND_WRITES),
]


def test_a_policy_that_is_risky_is_told_where_and_what_a_child_inherits_is_its_risk_too(found):
    for code, line, body in RISKS:
        told = found(body, one=True)
        assert (told.code, told.line, told.is_error) == (code, line, False)
    unconfined = '[confinement]\nrequire = "none"\n'
    assert found(unconfined + TESTED, mother=SCOPES + TESTED + unconfined) == [("W802", 5)]
    assert found(DELETES, mother=SCOPES + allow("/user/*", verbs=["delete"])) == [("W801", 4)]
    # W804 needs one run that reads the one and writes the other.
    for user, team in (["read"], ["read", "list"]), (["list", "create"], ["modify"]), (["read"], []):
        rules = allow("/user/*", name="u", verbs=user)
        rules += allow("/team/*", name="t", verbs=team) if team else ""
        assert "W804" not in dict(found(TEAM + rules)), team


def test_what_the_prover_gives_up_on_is_not_reported(found, monkeypatch):
    monkeypatch.setattr(subject, "Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    body = allow("/user/con", verbs=["read", "delete"]) + deny("x", verbs=["read"])
    assert {code for code, _ in found(SCOPES + body)} == {"I501"}
