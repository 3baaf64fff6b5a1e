"""`muniment setup` over entries that a user wrote manually or extended."""

import json
import shlex
import subprocess
import sys
import tomllib

import pytest

from muniment.cli import setup

COMMAND = "/opt/muniment recall --hook"


@pytest.fixture
def user(user):
    """Create the directories of the tools in the home directory of the user."""
    for name in (".claude", ".codex", ".cursor", ".qwen", ".gemini"):
        (user / name).mkdir(mode=0o700)
    return user


def make_settings(command):
    """Return settings of Claude Code with this hook for each prompt."""
    return json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": command}]}]}})


# -- hooks of a user -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run_command",
    [
        "muniment recall --hook; /usr/bin/my-audit-log",
        "/opt/muniment recall --hook && /usr/bin/my-audit-log",
        "/opt/muniment recall --hook || true",
        "/opt/muniment recall --hook --budget 9 2>/dev/null",
        "/opt/muniment recall --hook | tee log",
        "/opt/muniment recall --hook &",
        "/opt/muniment recall --hook\nrm -f x",
        "/opt/muniment recall --hook --root user=$HOME/mem",
        "/opt/muniment recall --hook --root user=`pwd`",
        "/opt/muniment recall --hook --root 'it",
        "cd /work; muniment recall --hook",
        "$HOME/bin/muniment recall --hook",
        "TOKEN=x muniment recall --hook",
        "MUNIMENT_HOME=$HOME/m muniment recall --hook",
        "muniment recall --limit 3 --hook",
        "timeout 5 muniment recall --hook",
        "bash -c 'muniment recall --hook'",
    ],
)
def test_setup_keeps_complex_user_hook_and_adds_no_second(run, user, run_command):
    path = user / ".claude/settings.json"
    path.write_text(text := make_settings(run_command))
    done = run("setup", "claude-code", "--yes")
    note = f"{path} has your own hook for UserPromptSubmit that calls muniment; it is not changed"
    assert (done.exit_code, note in done.stderr) == (0, True), done.output
    hooks = json.loads(path.read_text())["hooks"]
    assert hooks["UserPromptSubmit"] == json.loads(text)["hooks"]["UserPromptSubmit"]
    assert [each["command"] for group in hooks["SessionStart"] for each in group["hooks"]] == [COMMAND]
    path.write_text(path.read_text() + "\n")  # The content changed, so the line itself is examined again.
    done = run("setup", "claude-code", "--remove", "--yes")
    assert (done.exit_code, note in done.stderr) == (0, True)
    assert path.read_text() == text + "\n"
    for arguments in (("setup", "claude-code", "--remove"), ("uninstall",)):
        assert run(*arguments, "--yes").exit_code == 0
        assert path.read_text() == text + "\n"


@pytest.mark.parametrize(
    ("program", "tail"),
    [
        ("muniment", ""),
        ("~/bin/muniment", " --limit  3"),
        ("'/old place/muniment'", " --root 'user=/my mem'  --limit=3"),
        ("""'/it'"'"'s/muniment'""", ' --root "user=/my mem"'),
        ("MUNIMENT_HOME='/x y' /old/python -m muniment", r" --root user=/my\ mem"),
    ],
)
def test_setup_updates_program_of_hook_and_keeps_options(run, user, program, tail):
    path = user / ".claude/settings.json"
    path.write_text(make_settings(f"{program} recall --hook{tail}"))
    assert run("setup", "claude-code", "--yes").exit_code == 0
    (group,) = json.loads(path.read_text())["hooks"]["UserPromptSubmit"]
    assert [each["command"] for each in group["hooks"]] == [COMMAND + tail]


def test_setup_codex_respects_user_hook_in_other_file(run, user):
    (user / ".codex/hooks.json").write_text("{}")
    lines = [
        "[[hooks.SessionStart]]",
        "[[hooks.SessionStart.hooks]]",
        'command = "muniment recall --hook; x"',
    ]
    (user / ".codex/config.toml").write_text("\n".join(lines))
    assert run("setup", "codex", "--yes").exit_code == 0
    added = ["UserPromptSubmit", "SubagentStart"]
    assert list(json.loads((user / ".codex/hooks.json").read_text())["hooks"]) == added


@pytest.mark.parametrize("flags", ["extra words", "--unknown", "--limit many", "--json"])
def test_hook_with_invalid_options_prints_usage_and_exits_0(tmp_path, flags):
    done = subprocess.run(
        [sys.executable, "-m", "muniment", "recall", "--hook", *shlex.split(flags)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={"HOME": str(tmp_path)},
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "{}\n")
    assert "Usage: " in done.stderr


# -- user content in a created file --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "name", "old", "new"),
    [
        ("codex", ".codex/config.toml", "[mcp_servers", "# my notes\n[mcp_servers"),
        ("qwen-code", ".qwen/settings.json", "{\n", '{\n  // "model": "corp-7b"\n'),
        ("gemini-cli", ".gemini/settings.json", "{\n", "/* mine */ {\n"),
        ("cursor", ".cursor/hooks.json", '"version": 1', '"version": 2'),
    ],
)
def test_remove_keeps_created_file_with_user_content(run, user, tool, name, old, new):
    run("setup", tool, "--yes")
    path = user / name
    path.write_text(path.read_text().replace(old, new, 1))
    assert run("setup", tool, "--remove", "--yes").exit_code == 0
    assert new.split("\n")[0 if "\n" not in new or new[0] in "#/" else 1].strip() in path.read_text()
    assert "muniment" not in path.read_text()


def test_remove_deletes_reformatted_file(run, user):
    run("setup", "cursor", "--yes")
    for name in ("hooks.json", "mcp.json"):
        path = user / ".cursor" / name
        path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    run("setup", "cursor", "--remove", "--yes")
    assert list((user / ".cursor").iterdir()) == []


def test_setup_rejects_read_only_file_with_advice(run, user):
    path = user / ".gemini/settings.json"
    path.write_text("{}")
    path.chmod(0o444)
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, path.read_text()) == (1, "{}")
    assert "is read-only (mode 0444); to allow the change: chmod u+w" in done.stderr


def test_setup_reports_server_started_differently(run, user):
    path = user / ".cursor/mcp.json"
    path.write_text(text := '{"mcpServers": {"muniment": {"command": "uvx", "args": ["muniment", "mcp"]}}}')
    done = run("setup", "cursor", "--yes")
    assert "has a server 'muniment' that is started in another way; it was not changed" in done.stderr
    assert path.read_text() == text


# -- manual entries before the first setup -------------------------------------------------------------

ENTRY = '{"command": "muniment", "args": ["mcp", "--model", "m"], "env": {"OPENAI_API_KEY": "s3cret"}}'
ENTRY_JSON = '{\n  "n": 1, "mcpServers": {"muniment": ' + ENTRY + "}\n}\n"
ENTRY_TOML = (
    '[mcp_servers.muniment]\ncommand = "muniment" # mine\nargs = ["mcp"]\n\n'
    '[[hooks.SessionStart]]\n[[hooks.SessionStart.hooks]]\ncommand = "muniment recall --hook --limit 3"\n'
)


@pytest.mark.parametrize("home", [None, "/my home"])
@pytest.mark.parametrize(
    ("tool", "name", "text"),
    [("claude-code", ".claude.json", ENTRY_JSON), ("codex", ".codex/config.toml", ENTRY_TOML)],
)
def test_remove_restores_earlier_user_entry(run, user, install_program, tool, name, text, home):
    path = user / name
    path.write_text(text)
    install_program("/opt/muniment", home=home)
    assert run("setup", tool, "--yes").exit_code == 0
    assert "/opt/muniment" in path.read_text()
    install_program("/new/muniment", home=home)
    assert run("setup", tool, "--yes").exit_code == 0
    done = run("setup", tool, "--remove", "--yes")
    assert (done.exit_code, path.read_text()) == (0, text), done.output
    assert "s3cret" not in done.output


@pytest.mark.parametrize("home", [None, "/my home"])
def test_remove_restores_earlier_user_entry_in_changed_file(run, user, install_program, home):
    path, codex = user / ".claude.json", user / ".codex/config.toml"
    path.write_text(ENTRY_JSON)
    codex.write_text(ENTRY_TOML)
    for program in ("/opt/muniment", "/new/muniment"):
        install_program(program, home=home)
        for tool in ("claude-code", "codex"):
            assert run("setup", tool, "--yes").exit_code == 0
        path.write_text(path.read_text().replace('"n": 1', '"n": 2'))
        codex.write_text(codex.read_text() + f"\n[other.{program[1:4]}]\n")
    for tool in ("claude-code", "codex"):
        assert run("setup", tool, "--remove", "--yes").exit_code == 0
    assert json.loads(path.read_text()) == json.loads(ENTRY_JSON.replace('"n": 1', '"n": 2'))
    before, after = tomllib.loads(ENTRY_TOML), tomllib.loads(codex.read_text())
    assert (after["mcp_servers"], after["hooks"]) == (before["mcp_servers"], before["hooks"])


def test_killed_setup_keeps_manual_entry(run, user, monkeypatch):
    path = user / ".claude.json"
    path.write_text(ENTRY_JSON)
    with monkeypatch.context() as patch:
        patch.setattr(setup, "write_settings_file", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run("setup", "claude-code", "--yes")
    assert path.read_text() == ENTRY_JSON
    run("setup", "claude-code", "--yes")
    run("setup", "claude-code", "--remove", "--yes")
    assert path.read_text() == ENTRY_JSON


# -- keys in the entries -------------------------------------------------------------------------------


@pytest.mark.threat("T-LEAK-17", control="masked_keys")
@pytest.mark.parametrize(
    "entry",
    [
        '"env": {"OPENAI": "s3cret", "MUNIMENT_HOME": "/z"}, "args": ["mcp"]',
        '"env": {"API_KEY":"s3cret",\n"MUNIMENT_HOME":"/z", "PIN": 90210}, "args": ["mcp"]',
        '"env": {"DSN": "postgres://me:s3cret@db"}, "headers": {"X": "s3cret"}, "args": ["mcp"]',
        r'"env": {"DSN": "\u00733cret", "N": "s3\/cret"}, "args": ["mcp"]',
        '"args": ["mcp", "--token", "s3cret", "--api-key=s3cret", "--header", "Authorization: s3cret"]',
    ],
)
def test_setup_masks_keys_in_json(run, user, entry):
    for tool, name in (("claude-code", ".claude.json"), ("gemini-cli", ".gemini/settings.json")):
        path = user / name
        path.write_text('{"mcpServers": {"muniment": {"command": "/old/muniment", ' + entry + "}}}")
        for arguments in (
            (),
            ("--json",),
            ("--yes",),
            ("--remove",),
            ("--remove", "--json"),
            ("--remove", "--yes"),
        ):
            done = run("setup", tool, *arguments)
            for each in ("s3cret", "90210", "u00733", "s3\\\\/c"):
                assert each not in done.output, (arguments, done.output)
            assert "/opt/muniment" in done.output


@pytest.mark.threat("T-LEAK-17", control="masked_keys")
def test_setup_masks_keys_in_toml(run, user):
    path = user / ".codex/config.toml"
    path.write_text(
        "[mcp_servers.muniment]\ncommand = '/old/muniment'\nargs = ['mcp', '--key', 's3cret']\n"
        'env = { DSN = \'s3cret\', "A.B" = """\ns3cret""", PIN = 90210, MUNIMENT_HOME = "/z" }\n'
        '[mcp_servers.muniment.http_headers]\nX = "s3cret"\n'
    )
    for arguments in ((), ("--json",), ("--yes",), ("--remove",), ("--remove", "--yes")):
        done = run("setup", "codex", *arguments)
        assert not {"s3cret", "90210"} & {each for each in ("s3cret", "90210") if each in done.output}, (
            done.output
        )
