"""`muniment policy …` as a program: terminals and pipes, exit codes, what is loaded, what is refused."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kit.cli.launched import launch, run
from kit.policy.files import SCOPES, write
from muniment.cli.app import app

READ = '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/**"]\n'
DENY = '[[deny]]\nid = "d"\nverbs = ["read"]\npaths = ["secret/"]\n'
CHECK = '[[test]]\nverb = "read"\npath = "user/a.md"\nexpect = "{}"\n'
NEVER = 'schema = "muniment-invariants/1"\n[[never]]\nid = "n"\nverbs = ["read"]\npaths = ["secret/"]\n'
COMMANDS = ("lint", "explain", "diff", "test", "prove", "show", "lock", "sign", "verify")


@pytest.fixture
def files(tmp_path):
    """A policy, a wider one, one that does not load, and a file of invariants."""
    (tmp_path / "invariants.toml").write_text(NEVER)
    return {
        "own": write(tmp_path / "a folder" / "own.toml", body=SCOPES + READ + DENY + CHECK.format("allow")),
        "wide": write(tmp_path / "a folder" / "wide.toml", "own", body=SCOPES + READ),
        "bad": write(tmp_path / "a folder" / "bad.toml", body="colour = 1\n"),
        "sentences": str(tmp_path / "invariants.toml"),
    }


def on_a_terminal(base, *arguments, **environment):
    """What the program prints where its standard output is a terminal, and its exit code."""
    (base / "home").mkdir(mode=0o700, exist_ok=True)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "muniment", *arguments],
        cwd=base,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={"PATH": "/usr/bin:/bin", "MUNIMENT_HOME": str(base / "home"), "HOME": str(base), **environment},
    )
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65_536):
            shown += block
    except OSError:  # EIO is the end, once nobody has the other side open.
        pass
    finally:
        os.close(ours)
        code = process.wait(30)
    return code, shown.decode()


RED, GREEN, DIM = "\x1b[31;1m", "\x1b[32m", "\x1b[2m"


@pytest.mark.slow
def test_on_a_terminal_what_is_bad_is_red_and_what_is_good_is_green(tmp_path, files):
    code, shown = on_a_terminal(tmp_path, "policy", "diff", files["own"], files["wide"])
    assert (code, shown.count(RED)) == (1, 3)
    code, shown = on_a_terminal(tmp_path, "policy", "diff", files["wide"], files["own"])
    assert (code, RED in shown) == (0, False)
    assert shown.startswith(f"{GREEN}proved: ")
    code, shown = on_a_terminal(tmp_path, "policy", "lint", files["bad"])
    assert (code, shown.startswith(RED)) == (1, True)
    assert f"{DIM}    fix: " in shown
    assert all(line.endswith("\x1b[0m") for line in shown.splitlines())


def test_on_a_terminal_nothing_that_a_file_or_a_path_holds_steers_it(tmp_path, files):
    asked = "user/a\x1b[2J\r\n\x1b]0;title\x07\u202e.md"
    for arguments in (("explain", files["own"], "read", asked), ("lint", f"./{asked}")):
        _, shown = on_a_terminal(tmp_path, "policy", *arguments)
        bare = shown.replace("\x1b[0m", "")
        for colour in (RED, GREEN, DIM):
            bare = bare.replace(colour, "")
        assert all(line.isprintable() for line in bare.split("\r\n"))


@pytest.mark.slow
def test_no_color_and_pipes_give_plain_text(tmp_path, files):
    code, shown = on_a_terminal(tmp_path, "policy", "diff", files["own"], files["wide"], NO_COLOR="1")
    assert (code, "\x1b" in shown) == (1, False)
    assert shown.startswith("WIDER: ")
    code, out, err = run(tmp_path, "policy", "diff", files["own"], files["wide"])
    assert (code, "\x1b" in out, err) == (1, False, "")
    assert out == shown.replace("\r\n", "\n")


def test_a_document_on_a_terminal_has_no_colours(tmp_path, files):
    code, shown = on_a_terminal(tmp_path, "policy", "lint", files["bad"], "--json")
    assert (code, json.loads(shown)["status"]) == (1, "unfit")


@pytest.fixture
def muniment(tmp_path):
    """Runs a command in this process: exit code, output, errors."""

    def run(*arguments):
        done = CliRunner().invoke(app, ["policy", *arguments], env={"MUNIMENT_HOME": str(tmp_path / "home")})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


def test_the_exit_code_is_0_where_all_is_well_and_1_where_it_is_not(muniment, files):
    own, wide, bad = files["own"], files["wide"], files["bad"]
    for code, arguments in (
        (0, ["lint", own]),
        (1, ["lint", own, bad]),
        (0, ["explain", own, "read", "user/secret/a"]),
        (1, ["explain", bad, "read", "user/a"]),
        (1, ["explain", own, "write", "user/a"]),
        (0, ["diff", wide, own]),
        (1, ["diff", own, wide]),
        (1, ["diff", bad, own]),
        (0, ["test", wide]),
        (1, ["test", own]),
        (1, ["test", bad]),
        (0, ["prove", files["sentences"], own]),
        (1, ["prove", files["sentences"], own, wide]),
        (1, ["prove", own, own]),
        (0, ["show", own]),
        (1, ["show", bad]),
    ):
        assert muniment(*arguments)[0] == code, arguments
        found, out, err = muniment(*arguments, "--json")
        assert (found, err) == (code, ""), arguments
        assert out.isascii()
        assert isinstance(json.loads(out), dict)


@pytest.mark.parametrize(
    "arguments",
    [
        ["lint"],
        ["explain", "strict", "read"],
        ["diff", "strict"],
        ["test"],
        ["prove", "strict"],
        ["lint", "--fix", "strict"],
        ["explain", "strict", "read", "-x.md"],
        ["approve", "strict"],
        ["sign", "strict"],
    ],
)
def test_the_exit_code_is_2_where_the_command_is_misspelt(muniment, arguments):
    assert muniment(*arguments)[0] == 2


def test_the_commands_of_keeping_policies_do_as_they_say(muniment, files, tmp_path):
    folder = tmp_path / "kept"
    write(folder / "own.toml", body=SCOPES + READ)
    assert muniment("lock", str(folder), "--check")[0] == 1
    assert muniment("lock", str(folder))[0] == 0
    assert muniment("lock", str(folder), "--check")[0] == 0
    code, out, _ = muniment("show", str(folder / "own.toml"), "--effective")
    assert (code, out.startswith("own@")) == (0, True)
    assert muniment("sign", "strict", "--key", str(tmp_path / "no key"))[0] == 1
    code, _, err = muniment("verify", files["own"], "--signers", str(tmp_path / "no signers"))
    assert (code, "policy_invalid" in err) == (1, True)


def test_a_path_that_begins_with_a_dash_is_asked_about_after_two_dashes(muniment, files):
    code, out, _ = muniment("explain", files["own"], "read", "--", "-rf")
    assert (code, out.startswith("DENY  read -rf")) == (0, True)


def test_a_widening_is_let_through_by_the_file_that_is_named(muniment, files, tmp_path):
    accepted = tmp_path / "agreed on.md"
    accepted.write_text(muniment("diff", files["own"], files["wide"])[1].splitlines()[-1])
    assert muniment("diff", files["own"], files["wide"], "--accepted", str(accepted))[0] == 0


def test_a_reader_who_goes_away_changes_no_exit_code(tmp_path, files):
    process = launch(tmp_path, "policy", "diff", files["own"], files["wide"])
    process.stdout.close()
    process.stdin.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(30), errors) == (1, b"")


HEAVY = {"pydantic", "openai", "starlette", "structlog", "pathspec", "re2", "httpx", "httpx2"}


def test_help_loads_none_of_what_a_command_needs(tmp_path):
    """All helps in one process; typer itself takes pydantic to parse options."""
    code = (
        "import sys\nfrom muniment.cli.app import app\n"
        "from typer.testing import CliRunner\n"
        "before = set(sys.modules)\n"
        f"for name in {('', *COMMANDS)!r}:\n"
        "    done = CliRunner().invoke(app, ['policy', *filter(None, [name]), '--help'])\n"
        "    assert done.exit_code == 0, done.output\n"
        "    assert 'policy' in done.output, done.output\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "ours = [name for name in sys.modules if name.startswith('muniment.policy.')]\n"
        "print('LOADED', *sorted(names), *ours)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "MUNIMENT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)},
    )
    loaded = set(done.stdout.rpartition("LOADED ")[2].split())
    assert "typer" in loaded
    assert not (HEAVY - {"pydantic"}) & loaded
    assert not [name for name in loaded if name.startswith("muniment.policy.")]


def test_the_help_of_the_program_names_every_command(muniment):
    code, out, _ = muniment("--help")
    assert code == 0
    assert all(f" {command} " in out for command in COMMANDS)


# -- bad input -------------------------------------------------------------------------------------------


BAD = {
    "not TOML": ("E102", "x = = 1\n"),
    "a key twice": ("E102", SCOPES + "[limits]\nturns = 1\nturns = 2\n"),
    "a table twice": ("E102", SCOPES + SCOPES),
    "a wrong type": ("E104", SCOPES + '[limits]\nturns = "6"\n'),
    "a boolean for a number": ("E104", SCOPES + "[limits]\nturns = true\n"),
    "an unknown key": ("E101", SCOPES + "[limits]\nturn = 3\n"),
    "an unknown table": ("E101", SCOPES + "[network]\nhosts = []\n"),
    "an unknown verb": ("E109", SCOPES + READ.replace("read", "write")),
    "one id for two rules": ("E107", SCOPES + READ + READ),
    "an empty list": ("E108", SCOPES + READ.replace('"/user/**"', "")),
    "a number out of bounds": ("E110", SCOPES + "[limits]\nturns = 7\n"),
    "a deny that is silent": ("E201", SCOPES + DENY.replace("secret/", "con")),
    "a pattern too dear": ("E202", SCOPES + DENY.replace("secret/", "*a*b*c*")),
    "a pattern outside the subset": ("E203", SCOPES + DENY.replace("secret/", "a[0-9")),
    "an allow that is not anchored": ("E205", SCOPES + READ.replace("/user/", "")),
    "a scope that there is not": ("E206", SCOPES + READ.replace("/user/", "/team/")),
    "no scope": ("E125", READ),
    "a test that fails": ("E401", SCOPES + READ + CHECK.format("deny")),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", BAD)
def test_each_mistake_has_a_code_and_neither_loads_nor_is_shown(name, muniment, tmp_path):
    code, body = BAD[name]
    path = write(tmp_path / "own.toml", body=body)
    found, out, _ = muniment("lint", path, "--json")
    (finding,) = json.loads(out)["findings"][path]
    assert (found, finding["code"]) == (1, code)
    for arguments in (("show", path), ("explain", path, "read", "user/a"), ("diff", "strict", path)):
        found, out, err = muniment(*arguments)
        assert (found, out) == (1, "")
        assert f" {code} {path}" in err


def test_toml_that_is_wrong_is_told_with_line_and_column(muniment, tmp_path):
    path = write(tmp_path / "own.toml", body="x = = 1\n")
    assert "(at line 4, column 5)" in muniment("show", path)[2]
    assert muniment("lint", path)[1].startswith(f"{path}:4: E102 ")


def family(tmp_path, **extends):
    for name, parents in extends.items():
        write(tmp_path / f"{name}.toml", body=SCOPES, extends=parents)
    return str(tmp_path / f"{next(iter(extends))}.toml")


def chain(length):
    return {f"g{number}": [f"./g{number + 1}.toml"] for number in range(length)} | {f"g{length}": []}


@pytest.mark.parametrize(
    ("code", "extends"),
    [
        ("E120", {"own": ["nobody"]}),
        ("E120", {"own": ["./nobody.toml"]}),
        ("E121", {"own": ["./own.toml"]}),
        ("E121", {"own": ["./mother.toml"], "mother": ["./own.toml"]}),
        ("E122", chain(8)),
        ("E127", {"own": ["/etc/passwd.toml"]}),
        ("E111", {"own": ["Not A Name"]}),
    ],
)
def test_a_family_that_is_no_family_has_a_code(code, extends, muniment, tmp_path):
    path = family(tmp_path, **extends)
    assert f" {code} " in muniment("show", path)[2]
    _, out, _ = muniment("lint", path, "--json")
    assert [each["code"] for each in json.loads(out)["findings"][path]] == [code]


def test_files_that_cannot_be_read_have_a_code(muniment, tmp_path):
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "long.toml").write_bytes(b"#" * 262_145)
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    for name in ("folder", "fifo", "bytes", "long", "loop", "nothing"):
        path = str(tmp_path / f"{name}.toml")
        assert f"E100 {path}: " in muniment("show", path)[2]
        assert f"{path}: E100 " in muniment("lint", path)[1]


def test_a_lock_that_does_not_match_stops_what_runs_and_not_what_reviews(muniment, tmp_path):
    path = write(tmp_path / "own.toml", body=SCOPES + READ)
    muniment("lock", str(tmp_path))
    write(tmp_path / "own.toml", body=SCOPES + READ + DENY)
    assert "E130" in muniment("show", path)[2]
    assert muniment("lint", path)[0] == muniment("diff", path, path)[0] == 0
    write(tmp_path / "new.toml", body=SCOPES + READ)
    assert "E131" in muniment("show", str(tmp_path / "new.toml"))[2]
    (tmp_path / "policy.lock").write_text("rubbish")
    assert "E132" in muniment("show", path)[2]


def test_a_policy_inside_a_root_of_a_run_is_refused(tmp_path):
    root = tmp_path / "work" / "user"
    path = write(root / "own.toml", body=SCOPES + READ)
    code, _, err = run(tmp_path, "tool", "--policy", path, "--root", f"user={root}")
    assert code == 1
    assert "E126" in err
