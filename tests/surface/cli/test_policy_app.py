"""`muniment policy …` as a program: terminals, pipes, exit codes and rejections."""

import os
import re

from kit.policy.files import READS, SCOPES, format_rule, write_policy

DENY = format_rule("deny", "d", ["read"], ["secret/"])
CHECK = '[[test]]\nverb = "read"\npath = "user/a.md"\nexpect = "{}"\n'
RED, GREEN, DIM, PLAIN = "\x1b[31;1m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def test_policy_output_is_coloured_only_on_terminal_and_escaped(policy, tmp_path, request):
    bodies = {"own": SCOPES + READS + DENY, "wide": SCOPES + READS, "bad": "colour = 1\n"}
    files = {
        name: write_policy(tmp_path / "a folder" / f"{name}.toml", body=body) for name, body in bodies.items()
    }
    plain = policy.run_for_lines("diff", files["own"], files["wide"], code=1)
    assert (plain[0].startswith("WIDER: "), "\x1b" in "".join(plain)) == (True, False)
    request.getfixturevalue("fake_terminal")
    assert policy.run_for_lines("diff", files["own"], files["wide"], code=1, NO_COLOR="1") == plain
    assert "".join(policy.run_for_lines("diff", files["own"], files["wide"], code=1)).count(RED) == 3
    output = "".join(policy.run_for_lines("diff", files["wide"], files["own"]))
    assert (output.startswith(f"{GREEN}proved: "), RED in output) == (True, False)
    output = policy.run_for_lines("lint", files["bad"], code=1)
    assert (output[0].startswith(RED), output[1].startswith(f"{DIM}    fix: ")) == (True, True)
    assert all(line.endswith(PLAIN) for line in output)
    assert policy.run_for_document("lint", files["bad"], code=1)["status"] == "unfit"
    hostile_path = "user/a\x1b[2J\r\n\x1b]0;title\x07\u202e.md"
    for arguments in (("explain", files["own"], "read", hostile_path), ("lint", f"./{hostile_path}")):
        plain_output = re.sub(r"\x1b\[(31;1|32|2|0)m", "", policy(*arguments).output)
        assert all(line.isprintable() for line in plain_output.split("\n"))


# -- bad input -----------------------------------------------------------------------------------------


def test_policy_error_has_code_and_policy_is_not_shown(policy, tmp_path):
    """`tests/units/policy` covers every error."""
    path = str(tmp_path / "own.toml")
    for code, body in (("E401", SCOPES + READS + CHECK.format("deny")), ("E102", "x = = 1\n")):
        write_policy(tmp_path / "own.toml", body=body)
        (finding,) = policy.run_for_document("lint", path, code=1)["findings"][path]
        assert finding["code"] == code
        for arguments in (("show", path), ("explain", path, "read", "user/a"), ("diff", "strict", path)):
            done = policy(*arguments)
            assert (done.exit_code, done.stdout, f" {code} {path}" in done.stderr) == (1, "", True)
    assert "(at line 4, column 5)" in done.stderr
    (tmp_path / "own.toml").unlink()
    os.mkfifo(path)
    assert f"E100 {path}: " in policy("show", path).stderr
    assert f"{path}: E100 " in policy("lint", path).stdout
