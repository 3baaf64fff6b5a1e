"""`muniment policy diff`: what is wider is told with its place, and only a known widening is let through."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.policy.files import SCOPES, write
from muniment.cli import policy as command
from muniment.lab.proofs import Prover
from muniment.policy.load import load_policy

READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\n'
DENY = '[[deny]]\nid = "d"\nverbs = ["read"]\npaths = ["secret/"]\n'
HOSTILE = "a\x1b[2J\nproved: forged\u202e"

pytestmark = pytest.mark.usefixtures("own_home")
KEYS = {
    "status",
    "verdict",
    "accepted",
    "entry",
    "old",
    "new",
    "widenings",
    "narrowings",
    "terms",
    "undecided",
}


@pytest.fixture
def pair(tmp_path):
    """Writes an old and a new policy; their paths."""

    def pair(old, new, scopes=SCOPES, **more):
        before = write(tmp_path / "old" / "own.toml", body=scopes + old)
        return before, write(tmp_path / "new" / "own.toml", body=more.pop("new_scopes", scopes) + new, **more)

    return pair


def diff(old, new, accepted=None, *, as_json=False):
    return command.diff(old, new, accepted, as_json=as_json)


def entry(old, new):
    before, after = load_policy(old), load_policy(new)
    return f"## {after.name} {before.digest[:32]} → {after.digest[:32]}"


def test_a_policy_that_grants_nothing_more_is_proved_so(pair, said):
    old, new = pair(READ, READ + DENY)
    assert diff(old, new) == 0
    first, path, why = said()
    assert first == f"proved: {load_policy(new).label} grants nothing that {load_policy(old).label} does not"
    assert path.startswith("  narrower  read  user/secret/")
    assert why.strip() == f"the deny rule 'd', pattern 'secret/' ({new}:13), denies it now"
    assert diff(old, old) == 0
    assert len(said()) == 1


def test_a_policy_that_no_longer_denies_is_wider_by_the_rule_of_the_old_one(pair, said):
    old, new = pair(READ + DENY, READ)
    assert diff(old, new) == 1
    lines = said()
    assert lines[0] == f"WIDER: {load_policy(new).label} grants what {load_policy(old).label} does not"
    assert lines[1].startswith("  wider     read  user/secret/")
    assert lines[2].strip() == f"the deny rule 'd', pattern 'secret/' ({old}:13), no longer denies it"
    assert lines[3] == "to accept it, add to a file that you name with --accepted, with who agreed and why:"
    assert lines[4] == entry(old, new)


def test_a_rule_that_grants_is_told_in_the_direction_of_the_change(pair, said):
    old, new = pair(READ, READ.replace('"r"', '"s"').replace("/user/**", "/user/a/*"))
    assert diff(old, new) == 0
    assert f"  the allow rule 'r', pattern '/user/**' ({old}:9), no longer grants it".strip() in said()[2]
    assert diff(new, old) == 1
    assert f"the allow rule 'r', pattern '/user/**' ({old}:9), grants it now" in said()[2]


def test_a_scope_that_only_one_declares_is_told_with_its_line(pair, said):
    two = "[scopes]\nuser = {}\nteam = {}\n"
    old, new = pair(READ.replace("/user", "/*"), READ.replace("/user", "/*"), new_scopes=two)
    assert diff(old, new) == 1
    assert f"            the scope 'team' ({new}:6) is declared now" in said()
    assert diff(new, old) == 1
    assert f"            the scope 'team' ({new}:6) is declared no longer" in said()


def test_a_parent_that_is_left_out_is_told_with_its_file(pair, said, tmp_path):
    mother = write(tmp_path / "new" / "mother.toml", body=SCOPES + READ.replace("/user/**", "/user/a"))
    old, new = pair(READ, READ, extends=["./mother.toml"])
    assert diff(new, old) == 1
    told = [line.strip() for line in said()]
    assert f"the file 'mother' ({mother}), which denies it, is part of the policy no longer" in told
    assert diff(old, new) == 0
    assert f"the file 'mother' ({mother}), which denies it, is part of the policy now" in said()[2]


def test_terms_and_quotas_are_told_with_both_values(pair, said):
    old, new = pair(READ + "[limits]\nturns = 3\nseconds = 9\n", READ + "[limits]\nturns = 4\nseconds = 8\n")
    assert diff(old, new) == 1
    lines = said()
    assert "  LOOSER    limits.turns: 3 → 4" in lines
    assert "  stricter  limits.seconds: 9 → 8" in lines


def test_where_a_line_is_not_known_the_file_is_told(pair, said, monkeypatch):
    monkeypatch.setattr(command, "line_of", lambda *_: None)
    old, new = pair(
        READ.replace("/user", "/*"),
        READ.replace("/user", "/*"),
        new_scopes="scopes.user = {}\nscopes.team = {}\n",
    )
    assert diff(old, new) == 1
    assert f"            the scope 'team' ({new}) is declared now" in said()


# -- what was agreed on ----------------------------------------------------------------------------------


def test_a_widening_that_is_agreed_on_passes(pair, said, tmp_path):
    old, new = pair(READ + DENY, READ)
    accepted = tmp_path / "WIDENINGS.md"
    accepted.write_text(f"# Widenings\n\nnothing yet\n\n{entry(old, new)}\n\nAlice, since it is needed.\n")
    assert diff(old, new, accepted) == 0
    lines = said()
    assert lines[0].startswith("WIDER: ")
    assert lines[-1] == f"accepted in {accepted}"
    assert not any(line.startswith("##") for line in lines)
    assert diff(old, new, accepted, as_json=True) == 0
    assert (said(as_json=True)["accepted"], diff(old, new)) == (True, 1)


def other_digest(line):
    return line[:-1] + ("0" if line[-1] != "0" else "1")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line[:0],
        lambda line: line[:-1],
        lambda line: line.replace(" → ", "0 → "),
        other_digest,
        lambda line: line.replace("own", "own2"),
        lambda line: line.replace("→", "->"),
        lambda line: line.removeprefix("## "),
        lambda line: line.replace("##", "#"),
        lambda line: line.replace("##", "###"),
        lambda line: f"    {line}",
        lambda line: f"> {line}",
        lambda line: f"{line} is not accepted",
        lambda line: f"text\u2028{line}",
        lambda line: f"```\n{line}\n```",
        lambda line: f"~~~~ text\n{line}\n~~~\n{line}\n~~~~",
        lambda line: f"```\n```not the end\n{line}",
        lambda line: f"````\n```\n{line}\n````",
        lambda line: f"<!--\n{line}\n-->",
        lambda line: f"<!-- {line}",
        lambda line: f"<!--\n{line}",
        lambda line: f"## {' '.join(line.split()[:0:-1])}",
    ],
)
def test_what_is_no_heading_for_this_very_change_accepts_nothing(pair, tmp_path, spoil):
    old, new = pair(READ + DENY, READ)
    accepted = tmp_path / "WIDENINGS.md"
    accepted.write_text(f"# Widenings\n\n{spoil(entry(old, new))}\n", encoding="utf-8")
    assert diff(old, new, accepted) == 1


@pytest.mark.parametrize(
    "around", ["```\ncode\n```\n{}\n", "<!-- a\nb -->\n{}", "{}  \r\n", "~~~\n```\n~~~\n{}"]
)
def test_a_heading_after_code_and_comments_counts(pair, tmp_path, around):
    old, new = pair(READ + DENY, READ)
    accepted = tmp_path / "WIDENINGS.md"
    accepted.write_bytes(around.format(entry(old, new)).encode())
    assert diff(old, new, accepted) == 0


def test_an_entry_is_for_one_change_and_for_one_direction(pair, tmp_path):
    old, new = pair(READ.replace("/user/**", "/user/a"), READ.replace("/user/**", "/user/b"))
    accepted = tmp_path / "WIDENINGS.md"
    accepted.write_text(entry(old, new))
    assert diff(old, new, accepted) == 0
    assert diff(new, old, accepted) == 1
    Path(new).write_text(Path(new).read_text().replace("/user/b", "/user/c"))
    assert diff(old, new, accepted) == 1


def test_nothing_has_to_be_accepted_where_all_is_proved(pair, said, tmp_path):
    old, new = pair(READ, READ + DENY)
    accepted = tmp_path / "WIDENINGS.md"
    accepted.write_text(entry(old, new))
    assert diff(old, new, accepted, as_json=True) == 0
    assert said(as_json=True)["accepted"] is False


def test_a_file_of_entries_that_cannot_be_read_accepts_nothing(pair, said, tmp_path):
    old, new = pair(READ + DENY, READ)
    huge = tmp_path / "huge.md"
    huge.write_text(f"{entry(old, new)}\n" + "x" * command.MAX_ACCEPTED_BYTES)
    for accepted in (tmp_path / "nothing.md", tmp_path, huge, tmp_path / HOSTILE):
        assert diff(old, new, accepted) == 1
        (line,) = said()
        assert line.startswith("not compared: ")
        assert line.endswith(" [config_invalid]")
        assert line.isprintable()
    assert diff(old, new, huge, as_json=True) == 1
    assert said(as_json=True)["error"]["code"] == "config_invalid"


def test_bytes_that_are_no_text_are_no_entry_and_spoil_none(pair, tmp_path):
    old, new = pair(READ + DENY, READ)
    accepted = tmp_path / "WIDENINGS.md"
    accepted.write_bytes(b"\xff\xfe\n" + entry(old, new).encode())
    assert diff(old, new, accepted) == 0
    accepted.write_bytes(entry(old, new).encode() + b"\xff\n")
    assert diff(old, new, accepted) == 1


def test_what_nobody_can_decide_counts_as_wider_and_can_be_agreed_on(pair, said, tmp_path, monkeypatch):
    monkeypatch.setattr("muniment.lab.proofs.Prover", lambda *args, **kept: Prover(*args, **kept, work=1))
    old, new = pair(READ, READ + DENY)
    assert diff(old, new) == 1
    lines = said()
    assert lines[0].startswith("UNDECIDED, which counts as wider: ")
    assert any(line.startswith("  undecided read: ") for line in lines)
    assert lines[-1] == entry(old, new)
    accepted = tmp_path / "WIDENINGS.md"
    accepted.write_text(entry(old, new))
    assert diff(old, new, accepted) == 0
    assert diff(old, new, accepted, as_json=True) == 0
    found = said()
    assert '"verdict": "undecided"' in "\n".join(found)


# -- documents and failures ------------------------------------------------------------------------------


def test_the_difference_is_one_document_with_the_place_of_each_cause(pair, said):
    old, new = pair(READ + DENY, READ.replace('"read"', '"read", "list"') + DENY.replace("secret", "other"))
    assert diff(old, new, as_json=True) == 1
    found = said(as_json=True)
    assert set(found) == KEYS
    assert (found["verdict"], found["accepted"]) == ("wider", False)
    assert f"## {found['entry']}" == entry(old, new)
    assert found["new"] == {"name": "own", "digest": load_policy(new).digest}
    by_acts = {tuple(each["acts"]): each for each in found["widenings"]}
    assert by_acts["read",]["at"] == f"{old}:13"
    assert by_acts["read",]["cause"] == {"kind": "deny", "layer": "own", "rule": "d", "pattern": "secret/"}
    assert by_acts["list",]["at"] == f"{new}:9"
    assert found["narrowings"][0]["at"] == f"{new}:13"
    assert diff(old, old, as_json=True) == 0
    same = said(as_json=True)
    assert set(same) == KEYS
    assert (same["widenings"], same["narrowings"], same["terms"], same["undecided"]) == ([], [], [], [])


def test_a_policy_that_does_not_load_is_not_compared(pair, said):
    old, new = pair(READ, "colour = 1\n")
    assert diff(old, new) == 1
    assert said()[0].startswith(f"not compared: E104 {new} scopes.colour: ")
    assert diff("nobody", old, as_json=True) == 1
    assert set(said(as_json=True)) == {"status", "error"}


def test_policies_that_are_being_edited_are_compared_whatever_a_lock_says(pair):
    old, new = pair(READ, READ + DENY)
    for path in (old, new):
        (Path(path).parent / "policy.lock").write_text("rubbish")
    assert diff(old, new) == 0


def test_a_file_that_is_named_to_steer_a_terminal_does_not(pair, said, tmp_path):
    old, new = pair(READ + DENY, READ)
    hostile = tmp_path / f"{HOSTILE}.toml"
    hostile.write_text(Path(old).read_text())
    accepted = tmp_path / HOSTILE
    accepted.write_text("")
    for paths in ((hostile, new), (new, hostile)):
        diff(*map(str, paths), accepted)
        lines = said()
        assert lines
        assert all(line.isprintable() for line in lines)
        assert not any("forged" in line and line.startswith("proved: forged") for line in lines)
