"""`muniment setup` where a person has put something of Muniment there by hand, or more into ours."""

import json
import shlex
import subprocess
import sys

import pytest

from muniment.cli import setup
from muniment.cli.setup_tools import Program

OURS = "/opt/muniment recall --hook"
VARIABLES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "QWEN_HOME")


@pytest.fixture
def user(tmp_path):
    directory = tmp_path / "me"
    directory.mkdir(mode=0o700)
    for name in (".claude", ".codex", ".cursor", ".qwen", ".gemini"):
        (directory / name).mkdir(mode=0o700)
    return directory


@pytest.fixture
def run(muniment, user, monkeypatch):
    """Runs commands for that person, whose `muniment` is `/opt/muniment`."""
    monkeypatch.setattr(setup, "find_program", lambda _: Program(("/opt/muniment",)))
    return lambda *words, **more: muniment(*words, **{"HOME": str(user), **dict.fromkeys(VARIABLES), **more})


def hooks_of(command):
    """Settings of Claude Code with this hook for each prompt."""
    return json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": command}]}]}})


# -- hooks of a person's own -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
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
def test_a_hook_line_that_does_more_than_ours_is_left_and_said_and_gets_no_second_one(run, user, command):
    path = user / ".claude/settings.json"
    path.write_text(text := hooks_of(command))
    done = run("setup", "claude-code", "--yes")
    told = f"{path} has a hook of your own for UserPromptSubmit that calls muniment; it is left as it is"
    assert (done.exit_code, told in done.stderr) == (0, True), done.output
    hooks = json.loads(path.read_text())["hooks"]
    assert hooks["UserPromptSubmit"] == json.loads(text)["hooks"]["UserPromptSubmit"]
    assert [each["command"] for group in hooks["SessionStart"] for each in group["hooks"]] == [OURS]
    path.write_text(path.read_text() + "\n")  # So that the line itself is looked at again.
    done = run("setup", "claude-code", "--remove", "--yes")
    assert (done.exit_code, told in done.stderr) == (0, True)
    assert path.read_text() == text + "\n"
    for words in (("setup", "claude-code", "--remove"), ("uninstall",)):
        assert run(*words, "--yes").exit_code == 0
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
def test_of_a_hook_line_of_ours_the_program_is_corrected_and_what_follows_stays_as_typed(
    run, user, program, tail
):
    path = user / ".claude/settings.json"
    path.write_text(hooks_of(f"{program} recall --hook{tail}"))
    assert run("setup", "claude-code", "--yes").exit_code == 0
    (group,) = json.loads(path.read_text())["hooks"]["UserPromptSubmit"]
    assert [each["command"] for each in group["hooks"]] == [OURS + tail]


def test_codex_gets_no_second_hook_for_one_of_a_persons_own_in_its_other_file(run, user):
    (user / ".codex/hooks.json").write_text("{}")
    lines = [
        "[[hooks.SessionStart]]",
        "[[hooks.SessionStart.hooks]]",
        'command = "muniment recall --hook; x"',
    ]
    (user / ".codex/config.toml").write_text("\n".join(lines))
    assert run("setup", "codex", "--yes").exit_code == 0
    assert list(json.loads((user / ".codex/hooks.json").read_text())["hooks"]) == ["UserPromptSubmit"]


@pytest.mark.parametrize("flags", ["words besides", "--unknown", "--limit many", "--json"])
def test_a_hook_that_is_called_wrongly_says_so_and_blocks_no_prompt(tmp_path, flags):
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
