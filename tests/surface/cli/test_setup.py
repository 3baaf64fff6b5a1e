"""`muniment setup`: adds Muniment to the settings of five coding tools and removes it.

The files follow the formats of the tools' pages, which docs/setup.md names.
"""

import errno
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kit.memories import read_tree
from muniment.cli import setup
from muniment.integrations.coding_tools import files as setup_files
from muniment.integrations.coding_tools.tools import TOOLS, Program

PROGRAM_WORDS = ("/opt/it's here/muniment",)
HOOK = """'/opt/it'"'"'s here/muniment' recall --hook"""

CLAUDE_STATE = """{
  "numStartups": 41,
  "machineID": "ab12",
  "migrationVersion": 13,
  "projects": {
    "/home/me/p": {
      "allowedTools": [],
      "mcpServers": {},
      "hasTrustDialogAccepted": true
    }
  },
  "mcpServers": {
    "github": {
      "type": "http",
      "url": "https://mcp.example.org",
      "headers": {
        "Authorization": "Bearer ${GH}"
      }
    }
  },
  "oauthAccount": {"emailAddress": "me@example.org", "token": "s3cret-of-claude"}
}"""
CLAUDE_SETTINGS = r"""{
  "model": "claude-sonnet-5",
  "statusLine": {"type": "command", "command": "jq -r '\"[\\(.model.display_name)] ok\"'", "padding": 2},
  "permissions": {"allow": ["Bash(git diff *)", "Read(~/.zshrc)"]},
  "env": {"ANTHROPIC_API_KEY": "s3cret-in-env"},
  "hooks": {
    "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "~/.claude/hooks/guard.sh"}]}]
  }
}
"""
CODEX = """\
# Core model selection
model = "gpt-6-luna"              # my default
approval_policy = "on-request"

[features]
hooks = true

[mcp_servers.docs]
command = "npx"
args = ["-y", "@acme/docs-mcp"]   # pinned by hand
env = { DOCS_TOKEN = "s3cret-of-codex" }

[[hooks.Stop]]
[[hooks.Stop.hooks]]
type = "command"
command = "~/bin/bell.sh"

[hooks.state."/home/me/.codex/config.toml:stop:0:0"]
trusted_hash = "sha256:1234"
# and so on
"""
GEMINI = """{
  // my colours
  "ui": {"theme": "GitHub", "hideTips": false},
  "general": {"vimMode": true, "sessionRetention": {"enabled": true, "maxAge": "30d"}},
  /* company server: not to be removed, says "ops" */
  "mcpServers": {
    "mainServer": {"command": "bin/mcp_server.py", "env": {"KEY": "s3cret-of-gemini"}} // the main one
  }
}
"""
QWEN = """{ "$version": 4, "proxy": "http://me:s3cret@lab:7890", /* lab */ "tools": {"sandbox": true},
  "mcpServers": {"anotherServer": {"command": "node", "args": ["mcp_server.js", "--verbose"]}}
}"""
CURSOR_SERVERS = '{\r\n\t"mcpServers": {\r\n\t\t"db": {"command": "uvx", "args": ["db-mcp"]}\r\n\t}\r\n}\r\n'
CURSOR_HOOKS = """{"version": 1, "hooks": {
  "beforeShellExecution": [{"command": "./hooks/guard.sh", "failClosed": true}],
  "afterFileEdit": [{"command": "./hooks/format.sh"}]}}
"""
FILES = {
    "claude-code": {".claude.json": CLAUDE_STATE, ".claude/settings.json": CLAUDE_SETTINGS},
    "codex": {".codex/config.toml": CODEX},
    "cursor": {".cursor/mcp.json": CURSOR_SERVERS, ".cursor/hooks.json": CURSOR_HOOKS},
    "qwen-code": {".qwen/settings.json": QWEN},
    "gemini-cli": {".gemini/settings.json": GEMINI},
}
COMMAND = {"command": PROGRAM_WORDS[0], "args": ["mcp"]}
SERVERS = {
    "claude-code": (".claude.json", "mcpServers", {"type": "stdio", **COMMAND}),
    "codex": (".codex/config.toml", "mcp_servers", {**COMMAND, "tool_timeout_sec": 300}),
    "cursor": (".cursor/mcp.json", "mcpServers", COMMAND),
    "qwen-code": (".qwen/settings.json", "mcpServers", COMMAND),
    "gemini-cli": (".gemini/settings.json", "mcpServers", COMMAND),
}
"""The place of the server entry and its whole content."""

COMMENTS = re.compile(r"# .*|(?<!:)//.*|/\*.*?\*/")
STARTS = ("UserPromptSubmit", "SessionStart", "SubagentStart")
IN_SECONDS = [{"hooks": [{"type": "command", "command": HOOK, "timeout": 10}]}]
IN_MILLISECONDS = [{"hooks": [{"type": "command", "command": HOOK, "name": "muniment", "timeout": 10_000}]}]
FLAT = [{"command": HOOK, "timeout": 10}]
HOOKS = {
    "claude-code": (".claude/settings.json", STARTS, IN_SECONDS),
    "codex": (".codex/config.toml", STARTS, IN_SECONDS),
    "cursor": (".cursor/hooks.json", ("beforeSubmitPrompt", "sessionStart", "preCompact"), FLAT),
    "qwen-code": (".qwen/settings.json", ("UserPromptSubmit", "SessionStart"), IN_MILLISECONDS),
    "gemini-cli": (".gemini/settings.json", ("BeforeAgent", "SessionStart", "PreCompress"), IN_MILLISECONDS),
}


@pytest.fixture
def run(run, install_program):
    """Return a function that runs commands as `user`, whose program has an unusual path."""
    install_program(*PROGRAM_WORDS)
    return run


@pytest.fixture
def write_tool_files(user):
    """Return a function that writes the files of a tool and returns their content by path."""

    def write_tool_files(tool, mode=0o600):
        for name, text in FILES[tool].items():
            path = user / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(text.encode())
            path.chmod(mode)
        return {user / name: text.encode() for name, text in FILES[tool].items()}

    return write_tool_files


def read_files(files):
    return {path: path.read_bytes() if path.exists() else None for path in files}


def parse_settings(path):
    """Parse a settings file; comments are removed independently of the code under test."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    bare = re.sub(
        r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', lambda each: each[1] or "", text, flags=re.DOTALL
    )
    return json.loads(bare)


def read_other_settings(tool, path):
    """Return the content of a settings file without the entries of Muniment."""
    document = parse_settings(path)
    for _, member, _ in (SERVERS[tool],):
        document.get(member, {}).pop("muniment", None)
    for event in HOOKS[tool][1]:
        document.get("hooks", {}).pop(event, None)
    return {name: value for name, value in document.items() if value != {}}


@pytest.mark.parametrize("tool", TOOLS)
def test_setup_and_remove_restore_files_byte_for_byte(run, write_tool_files, user, home, tool):
    before = write_tool_files(tool)
    other_settings = {path: read_other_settings(tool, path) for path in before}
    done = run("setup", tool, "--yes")
    assert (done.exit_code, "is set up" in done.stdout) == (0, True), done.output
    name, member, entry = SERVERS[tool]
    assert parse_settings(user / name)[member]["muniment"] == entry
    name, events, hooks = HOOKS[tool]
    assert {event: parse_settings(user / name)["hooks"][event] for event in events} == dict.fromkeys(
        events, hooks
    )
    assert {path: read_other_settings(tool, path) for path in before} == other_settings
    for path, text in before.items():
        assert COMMENTS.findall(path.read_text()) == COMMENTS.findall(text.decode())
        assert list(parse_settings(path))[: len(other_settings[path])] == list(other_settings[path])
    written = read_files(before)
    second = run("setup", tool, "--yes")
    assert (second.exit_code, "is already set up" in second.stdout, read_files(before)) == (0, True, written)
    assert run("setup", tool, "--remove", "--yes").exit_code == 0
    assert read_files(before) == before
    assert not home.exists()
    last = run("setup", tool, "--remove", "--yes")
    assert (last.exit_code, "do not contain Muniment" in last.stdout) == (0, True)


@pytest.mark.parametrize("tool", TOOLS)
def test_setup_creates_private_files_and_remove_deletes_them(run, user, tool):
    done = run("setup", tool, "--yes")
    assert done.exit_code == 0
    created = [user / name for name in FILES[tool]]
    assert [stat.S_IMODE(path.stat().st_mode) for path in created] == [0o600] * len(created)
    assert all(f"new file {path}" in done.stdout for path in created)
    assert f"{created[-1].parent} not found" in done.stderr
    run("setup", tool, "--remove", "--yes")
    assert not any(path.exists() for path in created)


@pytest.mark.parametrize("tool", TOOLS)
def test_remove_keeps_later_changes_of_others(run, write_tool_files, tool):
    before = write_tool_files(tool)
    run("setup", tool, "--yes")
    other_settings = {path: read_other_settings(tool, path) for path in before}
    for path in before:
        text = path.read_bytes().decode()
        if path.suffix == ".toml":
            path.write_bytes(f"{text}\n[added]\na = 1\n".encode())
        else:
            head, brace, tail = text.rpartition("}")
            path.write_bytes(f'{head.rstrip()}, "added": {{"a": 1}} {brace}{tail}'.encode())
    done = run("setup", tool, "--remove", "--yes")
    assert done.exit_code == 0, done.output
    for path, text in before.items():
        assert "muniment" not in path.read_text()
        assert parse_settings(path) == other_settings[path] | {"added": {"a": 1}}
        assert COMMENTS.findall(path.read_text()) == COMMENTS.findall(text.decode())


# -- created directories -------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
def test_remove_deletes_directories_that_setup_made(run, user, home, tool):
    before = read_tree(user, home)
    assert run("setup", tool, "--yes").exit_code == 0
    assert run("setup", tool, "--remove", "--yes").exit_code == 0
    assert read_tree(user, home) == before


@pytest.mark.parametrize("tool", TOOLS)
def test_remove_keeps_directories_that_were_there_before(run, user, home, tool):
    home.mkdir(mode=0o700)
    for name in FILES[tool]:
        (user / name).parent.mkdir(mode=0o700, exist_ok=True)
    before = read_tree(user, home)
    run("setup", tool, "--yes")
    run("setup", tool, "--remove", "--yes")
    assert read_tree(user, home) == before


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
@pytest.mark.parametrize("tool", TOOLS)
def test_remove_keeps_made_directories_that_hold_something_else(run, user, tool, kind):
    run("setup", tool, "--yes")
    directory = (user / HOOKS[tool][0]).parent
    other = directory / "theirs"
    {"file": other.touch, "directory": other.mkdir, "link": lambda: other.symlink_to("nowhere")}[kind]()
    run("setup", tool, "--remove", "--yes")
    assert list(directory.iterdir()) == [other]


@pytest.mark.parametrize(
    ("tool", "variable"),
    [("codex", "CODEX_HOME"), ("qwen-code", "QWEN_HOME"), ("gemini-cli", "GEMINI_CLI_HOME")],
)
def test_remove_deletes_nested_directories_of_moved_tool(run, tmp_path, tool, variable):
    (tmp_path / "a").mkdir()
    moved = {variable: str(tmp_path / "a" / "b" / "c")}
    before = read_tree(tmp_path)
    run("setup", tool, "--yes", **moved)
    assert (tmp_path / "a" / "b" / "c").is_dir()
    run("setup", tool, "--remove", "--yes", **moved)
    assert read_tree(tmp_path) == before


def test_remove_after_second_setup_deletes_directories(run, user, home, install_program):
    before = read_tree(user, home)
    for tool in TOOLS:
        run("setup", tool, "--yes")
    install_program("/new/muniment")
    for tool in TOOLS:
        assert run("setup", tool, "--yes").exit_code == 0
    (user / ".cursor/mcp.json").unlink()
    for tool in TOOLS:
        run("setup", tool, "--remove", "--yes")
    assert read_tree(user, home) == before


def test_uninstall_deletes_directories_that_setup_made(run, user):
    before = read_tree(user)
    for tool in TOOLS:
        run("setup", tool, "--yes")
    assert run("uninstall", "--yes").exit_code == 0
    assert read_tree(user) == before


def test_remove_keeps_recreated_directory(run, user):
    run("setup", "cursor", "--yes")
    directory = user / ".cursor"
    for each in directory.iterdir():
        each.unlink()
    directory.rmdir()
    directory.mkdir()
    run("setup", "cursor", "--remove", "--yes")
    assert directory.is_dir()


def test_remove_keeps_link_that_replaced_directory(run, user, tmp_path):
    run("setup", "cursor", "--yes")
    (user / ".cursor").rename(tmp_path / "moved")
    (user / ".cursor").symlink_to(tmp_path / "moved")
    run("setup", "cursor", "--remove", "--yes")
    assert list((user / ".cursor").iterdir()) == []
    assert (user / ".cursor").is_symlink()


def test_repeated_remove_finishes_a_killed_one(run, user, home, monkeypatch):
    before = read_tree(user, home)
    run("setup", "cursor", "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", raise_killed)
        patch.setattr(setup, "write_settings_file", raise_killed_after(setup.write_settings_file))
        for _ in FILES["cursor"]:
            with pytest.raises(Killed):
                run("setup", "cursor", "--remove", "--yes")
    assert (user / ".cursor").is_dir()
    run("setup", "cursor", "--remove", "--yes")
    assert read_tree(user, home) == before


def test_setup_on_full_disk_leaves_no_directory(run, user, monkeypatch):
    before = read_tree(user)

    def fsync(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert run("setup", "cursor", "--yes").exit_code == 1
    assert read_tree(user) == before


class Killed(BaseException):
    """The process is killed."""


def raise_killed(*_):
    raise Killed


def raise_killed_after(real):
    """Return a function that does the work and then kills the process."""

    def call_and_raise(*arguments):
        real(*arguments)
        raise Killed

    return call_and_raise


# -- confirmation and output ---------------------------------------------------------------------------


def test_setup_writes_nothing_without_consent(run, write_tool_files, home, monkeypatch, request):
    before = write_tool_files("codex")
    done = run("setup", "codex", stdin="yes\n")
    assert (done.exit_code, read_files(before) == before) == (1, True)
    assert "+[mcp_servers.muniment]" in done.stdout
    assert "nothing was written; answer yes at a terminal, or use --yes" in done.stderr
    document = json.loads(run("setup", "codex", "--json", stdin="yes\n").stdout)
    assert document["status"] == "not_written"
    request.getfixturevalue("fake_terminal")
    for answer in ("", "n\n", "yess\n", "\x04"):
        assert run("setup", "codex", stdin=answer).exit_code == 1
        assert read_files(before) == before
    assert not home.exists()
    monkeypatch.setenv("NO_COLOR", "1")
    done = run("setup", "codex", stdin="yes\n")
    assert (done.exit_code, read_files(before) == before) == (0, False)
    assert "trust the hooks with /hooks" in done.stdout


@pytest.mark.threat("T-LEAK-17", control="own_lines")
@pytest.mark.threat("T-LEAK-17", control="private_backups")
@pytest.mark.parametrize("tool", TOOLS)
def test_setup_never_shows_secrets_and_keeps_copies_private(run, write_tool_files, home, tool):
    before = write_tool_files(tool, mode=0o644)
    done = run("setup", tool, "--yes")
    removed = run("setup", tool, "--remove")
    for result in (done, removed):
        assert "s3cret" not in result.output
        assert "example.org" not in result.output
    assert [stat.S_IMODE(path.stat().st_mode) for path in before] == [0o644] * len(before)
    assert stat.S_IMODE((home / "setup").stat().st_mode) == 0o700
    copies = list((home / "setup").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in copies} == {0o600}
    assert sorted(path.read_bytes() for path in copies if path.suffix == ".original") == sorted(
        before.values()
    )


@pytest.mark.threat("T-LEAK-17", control="masked_keys")
def test_remove_masks_key_added_to_server_entry(run, write_tool_files, user):
    write_tool_files("gemini-cli")
    run("setup", "gemini-cli", "--yes")
    path = user / ".gemini/settings.json"
    text = path.read_text().replace('"args": [', '"env": {"MUNIMENT_API_KEY": "s3cret"}, "args": [')
    path.write_text(text)
    done = run("setup", "gemini-cli", "--remove", "--yes")
    assert '"MUNIMENT_API_KEY": "…"' in done.stdout
    assert ("s3cret" in done.output, done.exit_code) == (False, 0)


def test_setup_escapes_control_characters(run, write_tool_files, install_program):
    write_tool_files("codex")
    install_program("/opt/\x1b[2J\u202e/muniment")
    done = run("setup", "codex")
    assert not set("\x1b\u202e") & set(done.output)


# -- unusual files -------------------------------------------------------------------------------------


def test_setup_follows_link_and_keeps_it(run, write_tool_files, tmp_path):
    (before,) = write_tool_files("gemini-cli")
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir(mode=0o700)
    target = before.rename(dotfiles / "gemini.json")
    target.chmod(0o640)
    (dotfiles / "step").symlink_to("gemini.json")
    before.symlink_to(dotfiles / "step")
    done = run("setup", "gemini-cli", "--yes")
    assert f"{before} (a link to {target})" in done.stdout
    assert (before.is_symlink(), before.readlink()) == (True, dotfiles / "step")
    assert "muniment" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    run("setup", "gemini-cli", "--remove", "--yes")
    assert (target.read_text(), before.is_symlink()) == (GEMINI, True)
    target.unlink()
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, "is a broken link" in done.stderr) == (1, True)
    before.unlink()
    before.symlink_to(before)
    assert "form a loop" in run("setup", "gemini-cli", "--yes").stderr


@pytest.mark.threat("T-HUM-05", control="own_settings")
def test_setup_rejects_settings_file_shared_with_others(run, write_tool_files, tmp_path, monkeypatch):
    (path,) = before = write_tool_files("gemini-cli")

    def assert_rejected(message):
        done = run("setup", "gemini-cli", "--yes")
        assert (done.exit_code, read_files(before) == before) == (1, True)
        assert message in done.stderr

    path.chmod(0o666)
    assert_rejected("is writable by others (mode 0666)")
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert_rejected("is writable by others (mode 0777)")
    path.parent.chmod(0o700)
    (tmp_path / "again").hardlink_to(path)
    assert_rejected("has 2 hard links")
    (tmp_path / "again").unlink()
    shared = tmp_path / "shared"
    shared.mkdir()
    path.rename(shared / "settings.json")
    path.symlink_to(shared / "settings.json")
    shared.chmod(0o777)
    assert_rejected("is writable by others (mode 0777)")
    shared.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12_345)
        assert_rejected("belongs to user")
    path.unlink()
    path.mkdir()
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, "is not a file" in done.stderr) == (1, True)
    path.rmdir()
    os.mkfifo(path)
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, "is not a file" in done.stderr) == (1, True)


@pytest.mark.parametrize("tool", TOOLS)
def test_setup_leaves_broken_settings_file_with_advice(run, write_tool_files, tool):
    for spoil in (lambda text: text + b"\nx = {", lambda text: text + b",", lambda text: b"\xff" + text):
        before = write_tool_files(tool)
        name = list(before)[-1]
        name.write_bytes(spoil(before[name]))
        broken = read_files(before)
        done = run("setup", tool, "--yes")
        assert (done.exit_code, read_files(before)) == (1, broken)
        assert re.match(f"not set up: .*{re.escape(str(name))} is not (JSON|TOML|UTF-8)", done.stderr), (
            done.stderr
        )
        if "UTF-8" not in done.stderr:
            assert "fix it and run this again; or add this yourself:\n" in done.stderr
            assert "recall --hook" in done.stderr
        assert run("setup", tool, "--remove", "--yes").exit_code == 1
        assert read_files(before) == broken


def test_setup_rejects_comment_in_claude_code_settings(run, write_tool_files, user):
    write_tool_files("claude-code")
    path = user / ".claude/settings.json"
    path.write_text("// mine\n" + CLAUDE_SETTINGS)
    done = run("setup", "claude-code", "--yes")
    assert (done.exit_code, "is not JSON: expecting value in line 1" in done.stderr) == (1, True)
    assert path.read_text().startswith("// mine\n")
    assert (user / ".claude.json").read_text() == CLAUDE_STATE, "the other file is also unchanged"


def test_setup_keeps_byte_order_mark(run, write_tool_files):
    (path,) = write_tool_files("gemini-cli")
    path.write_bytes(b"\xef\xbb\xbf" + GEMINI.encode())
    run("setup", "gemini-cli", "--yes")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf{")
    path.write_bytes(path.read_bytes() + b"\n")
    run("setup", "gemini-cli", "--remove", "--yes")
    assert path.read_bytes() == b"\xef\xbb\xbf" + GEMINI.encode() + b"\n"


@pytest.mark.parametrize(
    ("tool", "variable", "file", "usual"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json", ".claude.json"),
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json", ".claude/settings.json"),
        ("codex", "CODEX_HOME", "config.toml", ".codex/config.toml"),
        ("qwen-code", "QWEN_HOME", "settings.json", ".qwen/settings.json"),
        ("gemini-cli", "GEMINI_CLI_HOME", ".gemini/settings.json", ".gemini/settings.json"),
    ],
)
def test_setup_uses_environment_variables_for_locations(run, user, tmp_path, tool, variable, file, usual):
    moved = {variable: str(tmp_path / "moved")}
    run("setup", tool, "--yes", **moved)
    assert "muniment" in (tmp_path / "moved" / file).read_text()
    assert not (user / usual).exists()
    assert run("setup", tool, "--remove", "--yes", **moved).exit_code == 0
    assert not (tmp_path / "moved" / file).exists()
    run("setup", tool, "--yes", **{variable: ""})
    assert (user / usual).exists()


# -- existing entries ----------------------------------------------------------------------------------


def test_setup_updates_program_and_keeps_user_options(run, write_tool_files, user, install_program):
    before = write_tool_files("gemini-cli") | write_tool_files("codex")
    for tool in ("gemini-cli", "codex"):
        run("setup", tool, "--yes")
    gemini, codex = user / ".gemini/settings.json", user / ".codex/config.toml"
    gemini.write_text(
        gemini.read_text()
        .replace('"mcp"', '"mcp", "--trust", "owner"')
        .replace('"args"', '"timeout": 7, "args"')
        .replace("recall --hook", "recall --hook --limit 3")
    )
    codex.write_text(codex.read_text().replace('["mcp"]', '["mcp"] # mine\nenabled = true'))
    install_program("/new/python", "-m", "muniment")
    for tool in ("gemini-cli", "codex"):
        done = run("setup", tool, "--yes")
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert [f"-{PROGRAM_WORDS[0]}", "+/new/python"] == lines[2:4], "the old and the new program"
    found = parse_settings(gemini)
    args = ["-m", "muniment", "mcp", "--trust", "owner"]
    assert found["mcpServers"]["muniment"] == {"command": "/new/python", "timeout": 7, "args": args}
    (group,) = found["hooks"]["BeforeAgent"]
    assert group["hooks"][0]["command"] == "/new/python -m muniment recall --hook --limit 3"
    server = parse_settings(codex)["mcp_servers"]["muniment"]
    assert (server["command"], server["args"], server["enabled"]) == ("/new/python", args[:3], True)
    assert "# mine" in codex.read_text()
    for tool in ("gemini-cli", "codex"):
        run("setup", tool, "--remove", "--yes")
    assert read_files(before) == before


def test_setup_keeps_user_server_of_same_name(run, write_tool_files):
    (path,) = write_tool_files("gemini-cli")
    own = '"muniment": {"command": "ssh", "args": ["box", "muniment", "mcp"]}'
    path.write_text(text := GEMINI.replace('"mainServer"', f'{own},\n    "mainServer"'))
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, own in path.read_text(), "BeforeAgent" in path.read_text()) == (0, True, True)
    assert "a server 'muniment' that is started in another way" in done.stderr
    run("setup", "gemini-cli", "--remove", "--yes")
    assert path.read_text() == text


def test_setup_adds_hook_after_hooks_of_others(run, write_tool_files, user):
    write_tool_files("claude-code")
    path = user / ".claude/settings.json"
    other_hook = '{"matcher": "", "hooks": [{"type": "command", "command": "echo muniment recall"}]}'
    path.write_text(
        text := CLAUDE_SETTINGS.replace('"PreToolUse"', f'"UserPromptSubmit": [{other_hook}], "PreToolUse"')
    )
    run("setup", "claude-code", "--yes")
    assert parse_settings(path)["hooks"]["UserPromptSubmit"] == [json.loads(other_hook), *IN_SECONDS]
    path.write_text(path.read_text() + "\n")
    run("setup", "claude-code", "--remove", "--yes")
    assert path.read_text() == text + "\n"


def test_remove_deletes_only_muniment_hook_from_user_group(run, write_tool_files, user):
    write_tool_files("claude-code")
    path = user / ".claude/settings.json"
    hook = '{"type": "command", "command": "/x/muniment recall --hook"}'
    path.write_text(
        CLAUDE_SETTINGS.replace('"~/.claude/hooks/guard.sh"}', f'"~/.claude/hooks/guard.sh"}}, {hook}')
    )
    run("setup", "claude-code", "--remove", "--yes")
    assert path.read_text() == CLAUDE_SETTINGS


def test_setup_codex_uses_existing_hooks_file(run, write_tool_files, user):
    before = write_tool_files("codex")
    path = user / ".codex/hooks.json"
    path.write_text(text := '{"description": "mine", "hooks": {"Stop": []}}')
    assert run("setup", "codex", "--yes").exit_code == 0
    assert parse_settings(path)["hooks"] == {
        "Stop": [],
        "UserPromptSubmit": IN_SECONDS,
        "SessionStart": IN_SECONDS,
        "SubagentStart": IN_SECONDS,
    }
    assert "recall --hook" not in (user / ".codex/config.toml").read_text()
    run("setup", "codex", "--remove", "--yes")
    assert (path.read_text(), read_files(before)) == (text, before)
    path.unlink()
    run("setup", "codex", "--yes")
    path.write_text("{}")  # Later: the hook is not added twice.
    assert "is already set up" in run("setup", "codex", "--yes").stdout


def test_setup_warns_if_hooks_or_servers_are_disabled(run, write_tool_files, user):
    for tool, name, old, new, message in (
        (
            "claude-code",
            ".claude/settings.json",
            '"model"',
            '"disableAllHooks": true, "model"',
            "disableAllHooks",
        ),
        ("codex", ".codex/config.toml", "hooks = true", "hooks = false", "features.hooks = false"),
        ("gemini-cli", ".gemini/settings.json", '"ui"', '"mcp": {"allowed": ["a"]}, "ui"', "mcp.allowed"),
        (
            "gemini-cli",
            ".gemini/settings.json",
            '"ui"',
            '"hooksConfig": {"enabled": false}, "ui"',
            "enabled = false",
        ),
    ):
        write_tool_files(tool)
        path = user / name
        path.write_text(path.read_text().replace(old, new, 1))
        assert message in run("setup", tool, "--yes").stderr


# -- concurrent changes --------------------------------------------------------------------------------


@pytest.mark.threat("T-HUM-05", control="settings_as_read")
@pytest.mark.usefixtures("fake_terminal")
def test_setup_keeps_change_made_during_confirmation(run, write_tool_files, user, monkeypatch):
    write_tool_files("claude-code")
    path = user / ".claude.json"

    def confirm(_):
        path.write_text(path.read_text().replace('"numStartups": 41', '"numStartups": 42'))
        return True

    monkeypatch.setattr(setup, "confirm_change", confirm)
    assert run("setup", "claude-code").exit_code == 0
    assert (parse_settings(path)["numStartups"], "muniment" in parse_settings(path)["mcpServers"]) == (
        42,
        True,
    )
    run("setup", "claude-code", "--remove", "--yes")
    assert path.read_text() == CLAUDE_STATE.replace("41", "42")


@pytest.mark.usefixtures("fake_terminal")
def test_setup_aborts_if_change_would_differ(run, write_tool_files, user, monkeypatch):
    write_tool_files("claude-code")
    path = user / ".claude.json"

    def confirm(_):
        path.write_text(
            '{"mcpServers": {"muniment": {"command": "/evil", "args": ["-m", "muniment", "mcp"]}}}'
        )
        return True

    monkeypatch.setattr(setup, "confirm_change", confirm)
    done = run("setup", "claude-code")
    assert (done.exit_code, "was changed by another program; run this again" in done.stderr) == (1, True)
    assert "/evil" in path.read_text()


@pytest.mark.usefixtures("fake_terminal")
def test_setup_succeeds_if_done_concurrently(run, write_tool_files, monkeypatch):
    before = write_tool_files("codex")

    def confirm(_):
        run("setup", "codex", "--yes")
        return True

    monkeypatch.setattr(setup, "confirm_change", confirm)
    assert run("setup", "codex").exit_code == 0
    run("setup", "codex", "--remove", "--yes")
    assert read_files(before) == before


def test_setup_never_overwrites_file_created_meanwhile(run, user, monkeypatch):
    path, real = user / ".qwen/settings.json", os.link

    def link_after_write(source, target):
        if Path(target) == path:
            path.write_text('{"$version": 4}')
        real(source, target)

    monkeypatch.setattr(os, "link", link_after_write)
    done = run("setup", "qwen-code", "--yes")
    assert (done.exit_code, "was changed by another program" in done.stderr) == (1, True)
    assert path.read_text() == '{"$version": 4}'
    assert list(path.parent.iterdir()) == [path]


def test_setup_on_full_disk_restores_everything(run, write_tool_files, user, monkeypatch):
    before = write_tool_files("claude-code")
    names = {path.name for path in user.iterdir()}
    real = os.fsync
    for good in range(6):
        calls = iter(range(100))

        def fsync(fd, good=good, calls=calls):
            if next(calls) >= good:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            done = run("setup", "claude-code", "--yes")
        assert (done.exit_code, "No space left on device" in done.stderr) == (1, True)
        assert {path.name for path in user.iterdir()} == names
        assert read_files(before)[user / ".claude/settings.json"] == before[user / ".claude/settings.json"]
    assert run("setup", "claude-code", "--yes").exit_code == 0
    run("setup", "claude-code", "--remove", "--yes")
    assert read_files(before) == before


def test_killed_setup_loses_nothing(run, write_tool_files, user, home, monkeypatch):
    before = write_tool_files("codex")
    with monkeypatch.context() as patch:
        patch.setattr(setup, "write_settings_file", raise_killed)
        with pytest.raises(Killed):
            run("setup", "codex", "--yes")
    assert read_files(before) == before
    (user / ".codex/config.toml").write_text(CODEX + "# later\n")
    assert "do not contain Muniment" in run("setup", "codex", "--remove", "--yes").stdout
    assert (user / ".codex/config.toml").read_text() == CODEX + "# later\n"
    assert not home.exists()


def test_remove_without_stored_copies_deletes_known_entries(run, write_tool_files, home):
    before = write_tool_files("cursor")
    run("setup", "cursor", "--yes")
    for path in (home / "setup").iterdir():
        path.unlink()
    assert run("setup", "cursor", "--remove", "--yes").exit_code == 0
    assert read_files(before) == before


# -- the program ---------------------------------------------------------------------------------------


def script(path, output="muniment 0.1.0", code=0):
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && [ -z "$PYTHONPATH" ] && echo "{output}"\nexit {code}\n'
    )
    path.chmod(0o755)
    return str(path)


def test_setup_writes_tested_absolute_program(tmp_path, monkeypatch):
    monkeypatch.delenv("MUNIMENT_HOME", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    good, bad = script(tmp_path / "a" / "muniment"), script(tmp_path / "b" / "muniment", "other 1", 0)
    python = script(tmp_path / "a" / "python", code=1)
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(sys, "argv", [bad])
    assert setup.find_program(tmp_path) == Program((good,))
    link = tmp_path / "muniment"
    link.symlink_to(good)
    monkeypatch.setattr(sys, "argv", [str(link)])
    assert setup.find_program(tmp_path) == Program((str(link),)), (
        "a link is kept, because an upgrade keeps it"
    )
    monkeypatch.setenv("MUNIMENT_HOME", "elsewhere")
    assert setup.find_program(tmp_path / "x y").home == str(tmp_path / "x y")
    for path in (good, bad):
        script(Path(path), code=1)
    with pytest.raises(setup.ConfigInvalid, match="cannot be started from another directory"):
        setup.find_program(tmp_path)


def test_setup_passes_other_home_to_server_and_hook(run, user, install_program):
    install_program(*PROGRAM_WORDS, home="/my home")
    for tool in TOOLS:
        run("setup", tool, "--yes")
        name, member, entry = SERVERS[tool]
        assert parse_settings(user / name)[member]["muniment"] == entry | {
            "env": {"MUNIMENT_HOME": "/my home"}
        }
        assert f"MUNIMENT_HOME='/my home' {HOOK}" in json.dumps(
            parse_settings(user / HOOKS[tool][0])
        ).replace('\\"', '"')
        assert "is already set up" in run("setup", tool, "--yes").stdout
    for other, env in (("/other", {"MUNIMENT_HOME": "/other"}), (None, {})):
        install_program(*PROGRAM_WORDS, home=other)
        for tool in TOOLS:
            assert run("setup", tool, "--yes").exit_code == 0
            name, member, _ = SERVERS[tool]
            assert parse_settings(user / name)[member]["muniment"]["env"] == env
            assert "/my home" not in (user / HOOKS[tool][0]).read_text()
            assert "is already set up" in run("setup", tool, "--yes").stdout
    for tool in TOOLS:
        assert run("setup", tool, "--remove", "--yes").exit_code == 0
        assert not any((user / name).exists() for name in FILES[tool])


@pytest.mark.parametrize(
    "path", ["/home/me/.cache/uv/archive-v0/abc/bin/muniment", "/home/me/.cache/pipx/abc/bin/muniment"]
)
def test_setup_warns_about_temporary_environment(run, install_program, path):
    install_program(path)
    assert "temporary environment" in run("setup", "codex").stderr
    install_program(*PROGRAM_WORDS)
    assert "temporary environment" not in run("setup", "codex").stderr


@pytest.mark.slow
def test_installed_hook_runs_in_a_shell(cli, user):
    done = cli("setup", "codex", "--yes", HOME=str(user), CODEX_HOME=None, MUNIMENT_HOME=None)
    assert done.exit_code == 0, done.output
    (group,) = parse_settings(user / ".codex/config.toml")["hooks"]["UserPromptSubmit"]
    command = group["hooks"][0]["command"]
    assert Path(shlex.split(command)[0]).is_absolute()
    event = json.dumps({"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "anything?"})
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        input=event,
        capture_output=True,
        text=True,
        check=True,
        cwd=user,
        env={"HOME": str(user)},
        timeout=30,
    )
    assert (ended.stdout, ended.stderr) == ("{}\n", "")


def test_invalid_setup_notes_are_ignored(run, write_tool_files, home):
    before = write_tool_files("codex")
    run("setup", "codex", "--yes")
    for path in (home / "setup").glob("*.json"):
        path.write_text("[1]")
    assert run("setup", "codex", "--remove", "--yes").exit_code == 0
    assert read_files(before) == before
    assert setup_files.list_saved_files(home / "setup") == []
