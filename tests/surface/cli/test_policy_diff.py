"""`muniment policy diff`: reports widenings with their place and accepts only known ones."""

from pathlib import Path

import pytest

from kit.policy.files import READS, SCOPES, format_rule, write_policy
from muniment.cli import policy as command
from muniment.lab.proofs import Prover
from muniment.policy.load import load_policy

DENY = format_rule("deny", "d", ["read"], ["secret/"])
HOSTILE = "a\x1b[2J\nproved: forged\u202e"
CHANGES = ("widenings", "narrowings", "terms", "undecided")
KEYS = {"status", "verdict", "accepted", "entry", "old", "new", *CHANGES}


@pytest.fixture
def write_pair(tmp_path):
    """Return a function that writes an old and a new policy and returns their paths."""

    def write_pair(old, new, **more):
        before = write_policy(tmp_path / "old" / "own.toml", body=SCOPES + old)
        return before, write_policy(
            tmp_path / "new" / "own.toml", body=more.pop("scopes", SCOPES) + new, **more
        )

    return write_pair


@pytest.fixture
def diff(policy):
    """Return a function that runs the diff and returns its lines, or its exit code if `code` is None."""

    def diff(old, new, accepted=None, *, code=None):
        arguments = ("diff", old, new, *([] if accepted is None else ["--accepted", accepted]))
        return policy(*arguments).exit_code if code is None else policy.run_for_lines(*arguments, code=code)

    return diff


accepted = pytest.fixture(lambda tmp_path: tmp_path / "WIDENINGS.md")


def heading_line(old, new):
    before, after = load_policy(old), load_policy(new)
    return f"## {after.name} {before.digest[:32]} → {after.digest[:32]}"


def test_diff_proves_narrowing_and_explains_widening(write_pair, diff):
    old, new = write_pair(READS, READS + DENY)
    small, large = load_policy(new).label, load_policy(old).label
    first, path, why = diff(old, new, code=0)
    assert first == f"proved: {small} allows nothing that {large} denies"
    assert path.startswith("  narrower  read  user/secret/")
    assert why.strip() == f"the deny rule 'd', pattern 'secret/' ({new}:13), now denies it"
    assert len(diff(old, old, code=0)) == 1
    first, path, why, how, heading = diff(new, old, code=1)
    assert first == f"WIDER: {large} allows requests that {small} denies"
    assert path.startswith("  wider     read  user/secret/")
    assert why.strip() == f"the deny rule 'd', pattern 'secret/' ({new}:13), no longer denies it"
    assert (
        how
        == "to accept it, add this heading to a file given with --accepted, with the approver and the reason:"
    )
    assert heading == heading_line(new, old)


def test_diff_names_cause_and_line_for_each_direction(write_pair, diff, tmp_path):
    old, new = write_pair(READS, READS.replace('"r"', '"s"').replace("/user/**", "/user/a/*"))
    cause = f"the allow rule 'r', pattern '/user/**' ({old}:9)"
    assert f"{cause}, no longer allows it" in diff(old, new, code=0)[2]
    assert f"{cause}, now allows it" in diff(new, old, code=1)[2]
    everywhere = READS.replace("/user", "/*")
    old, new = write_pair(everywhere, everywhere, scopes="[scopes]\nuser = {}\nteam = {}\n")
    assert f"            the scope 'team' ({new}:6) is now declared" in diff(old, new, code=1)
    assert f"            the scope 'team' ({new}:6) is no longer declared" in diff(new, old, code=1)
    mother = write_policy(
        tmp_path / "new" / "mother.toml", body=SCOPES + READS.replace("/user/**", "/user/a")
    )
    old, new = write_pair(READS, READS, extends=["./mother.toml"])
    cause = f"            the file 'mother' ({mother}), which denies it, is"
    assert f"{cause} no longer part of the policy" in diff(new, old, code=1)
    assert diff(old, new, code=0)[2] == f"{cause} now part of the policy"
    old, new = write_pair(
        READS + "[limits]\nturns = 3\nseconds = 9\n", READS + "[limits]\nturns = 4\nseconds = 8\n"
    )
    lines = diff(old, new, code=1)
    assert {"  LOOSER    limits.turns: 3 → 4", "  stricter  limits.seconds: 9 → 8"} <= set(lines)


# -- accepted widenings --------------------------------------------------------------------------------


def test_diff_accepts_agreed_widening_for_that_change_only(write_pair, diff, policy, accepted):
    old, new = write_pair(READS.replace("/user/**", "/user/a"), READS.replace("/user/**", "/user/b"))
    accepted.write_text(
        f"# Widenings\n\nnothing yet\n\n{heading_line(old, new)}\n\nAlice, since it is needed.\n"
    )
    lines = diff(old, new, accepted, code=0)
    assert (lines[0].startswith("WIDER: "), lines[-1]) == (True, f"accepted in {accepted}")
    assert not any(line.startswith("##") for line in lines)
    assert policy.run_for_document("diff", old, new, "--accepted", accepted)["accepted"] is True
    assert [diff(old, new), diff(new, old, accepted)] == [1, 1]
    Path(new).write_text(Path(new).read_text().replace("/user/b", "/user/c"))
    assert diff(old, new, accepted) == 1
    old, new = write_pair(READS, READS + DENY)
    accepted.write_text(heading_line(old, new))  # A proved narrowing needs no acceptance.
    assert policy.run_for_document("diff", old, new, "--accepted", accepted)["accepted"] is False


def test_diff_accepts_only_exact_headings(write_pair, diff, accepted):
    old, new = write_pair(READS + DENY, READS)
    line = heading_line(old, new)
    bare = line.removeprefix("## ")
    other = line[:-1] + ("1" if line[-1] == "0" else "0")
    for text in (
        *("", line[:-1], line.replace(" → ", "0 → "), other, line.replace("own", "own2"), f"### {bare}"),
        *(f"    {line}", f"> {line}", f"{line} is not accepted", f"text\u2028{line}"),
        *(f"~~~~ text\n{line}\n~~~\n{line}\n~~~~", f"```\n```not the end\n{line}", f"```\n{line}\n```"),
        *(f"<!--\n{line}\n-->", f"<!-- {line}", f"<!--\n{line}", f"## {' '.join(line.split()[:0:-1])}"),
    ):
        accepted.write_text(f"# Widenings\n\n{text}\n", encoding="utf-8")
        assert diff(old, new, accepted) == 1, text
    accepted.write_bytes(line.encode() + b"\xff\n")
    assert diff(old, new, accepted) == 1
    after = b"```\ncode\n```\n%b\n", b"<!-- a\nb -->\n%b", b"~~~\n```\n~~~\n%b", b"\xff\xfe\n%b"
    for around in (*after, b"%b  \r\n"):
        accepted.write_bytes(around % line.encode())
        assert diff(old, new, accepted) == 0, around


def test_diff_rejects_unreadable_files_and_escapes_names(write_pair, diff, policy, tmp_path):
    old, new = write_pair(READS + DENY, READS)
    huge, hostile = tmp_path / "huge.md", tmp_path / f"{HOSTILE}.toml"
    huge.write_text(f"{heading_line(old, new)}\n" + "x" * command.MAX_ACCEPTED_BYTES)
    for accepted in (tmp_path / "nothing.md", tmp_path, huge, tmp_path / HOSTILE):
        (line,) = diff(old, new, accepted, code=1)
        assert (line.startswith("not compared: "), line.endswith(" [config_invalid]")) == (True, True)
        assert line.isprintable()
    assert policy.run_for_error_code("diff", old, new, "--accepted", huge) == "config_invalid"
    hostile.write_text(Path(old).read_text())
    (tmp_path / HOSTILE).write_text("")
    for code, paths in ((1, (hostile, new)), (0, (new, hostile))):
        lines = diff(*paths, tmp_path / HOSTILE, code=code)
        assert all(line.isprintable() and not line.startswith("proved: forged") for line in lines)
    old, new = write_pair(READS, "colour = 1\n")
    assert diff(old, new, code=1)[0].startswith(f"not compared: E104 {new} scopes.colour: ")
    assert set(policy.run_for_document("diff", "nobody", old, code=1)) == {"status", "error"}


def test_diff_counts_undecided_as_wider(write_pair, diff, policy, accepted, monkeypatch):
    monkeypatch.setattr(
        "muniment.lab.proofs.Prover", lambda *args, **options: Prover(*args, **options, work=1)
    )
    old, new = write_pair(READS, READS + DENY)
    lines = diff(old, new, code=1)
    assert lines[0].startswith("UNDECIDED, which counts as wider: ")
    assert any(line.startswith("  undecided read: ") for line in lines)
    assert lines[-1] == heading_line(old, new)
    accepted.write_text(heading_line(old, new))
    assert policy.run_for_document("diff", old, new, "--accepted", accepted)["verdict"] == "undecided"


# -- documents and failures ----------------------------------------------------------------------------


def test_diff_json_names_place_of_each_cause(write_pair, policy):
    old, new = write_pair(
        READS + DENY, READS.replace('"read"', '"read", "list"') + DENY.replace("secret", "other")
    )
    found = policy.run_for_document("diff", old, new, code=1)
    assert (set(found), found["verdict"], found["accepted"]) == (KEYS, "wider", False)
    assert (f"## {found['entry']}", found["new"]["digest"]) == (
        heading_line(old, new),
        load_policy(new).digest,
    )
    by_acts = {tuple(each["acts"]): each for each in found["widenings"]}
    assert by_acts["read",]["at"] == f"{old}:13"
    assert by_acts["read",]["cause"] == {"kind": "deny", "layer": "own", "rule": "d", "pattern": "secret/"}
    assert by_acts["list",]["at"] == f"{new}:9"
    assert found["narrowings"][0]["at"] == f"{new}:13"
    same = policy.run_for_document("diff", old, old)
    assert set(same) == KEYS
    assert not any(same[name] for name in CHANGES)
