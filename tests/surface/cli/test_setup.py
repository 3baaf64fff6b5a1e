"""`muniment setup`: into the settings of five coding tools, and out again, over files as those have them.

The files are made up in the formats that the tools' pages tell, which docs/setup.md names.
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

from muniment.cli import setup
from muniment.integrations.coding_tools import files as setup_files
from muniment.integrations.coding_tools.tools import TOOLS, Program

WORDS = ("/opt/it's here/muniment",)
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
COMMAND = {"command": WORDS[0], "args": ["mcp"]}
SERVERS = {
    "claude-code": (".claude.json", "mcpServers", {"type": "stdio", **COMMAND}),
    "codex": (".codex/config.toml", "mcp_servers", {**COMMAND, "tool_timeout_sec": 300}),
    "cursor": (".cursor/mcp.json", "mcpServers", COMMAND),
    "qwen-code": (".qwen/settings.json", "mcpServers", COMMAND),
    "gemini-cli": (".gemini/settings.json", "mcpServers", COMMAND),
}
"""Where the entry of the server stands, and all that it says."""

COMMENTS = re.compile(r"# .*|(?<!:)//.*|/\*.*?\*/")
IN_SECONDS = [{"hooks": [{"type": "command", "command": HOOK, "timeout": 10}]}]
IN_MILLISECONDS = [{"hooks": [{"type": "command", "command": HOOK, "name": "muniment", "timeout": 10_000}]}]
FLAT = [{"command": HOOK, "timeout": 10}]
HOOKS = {
    "claude-code": (".claude/settings.json", ("UserPromptSubmit", "SessionStart"), IN_SECONDS),
    "codex": (".codex/config.toml", ("UserPromptSubmit", "SessionStart"), IN_SECONDS),
    "cursor": (".cursor/hooks.json", ("beforeSubmitPrompt", "sessionStart", "preCompact"), FLAT),
    "qwen-code": (".qwen/settings.json", ("UserPromptSubmit", "SessionStart"), IN_MILLISECONDS),
    "gemini-cli": (".gemini/settings.json", ("BeforeAgent", "SessionStart", "PreCompress"), IN_MILLISECONDS),
}


@pytest.fixture
def user(tmp_path):
    """The home directory of a person."""
    directory = tmp_path / "me"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def run(muniment, user, monkeypatch):
    """Runs commands for that person, whose `muniment` is somewhere."""
    monkeypatch.setattr(setup, "find_program", lambda _: Program(WORDS))
    none = dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "QWEN_HOME"))
    return lambda *words, **more: muniment(*words, **{"HOME": str(user), **none, **more})


@pytest.fixture
def placed(user):
    """Puts the files of a tool there; what they hold, by path."""

    def placed(tool, mode=0o600):
        for name, text in FILES[tool].items():
            path = user / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(text.encode())
            path.chmod(mode)
        return {user / name: text.encode() for name, text in FILES[tool].items()}

    return placed


def now(files):
    return {path: path.read_bytes() if path.exists() else None for path in files}


def meant(path):
    """What a settings file says, its comments put aside by a way of the test's own."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    bare = re.sub(
        r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', lambda each: each[1] or "", text, flags=re.DOTALL
    )
    return json.loads(bare)


def without_ours(tool, path):
    """What a settings file says besides."""
    document = meant(path)
    for _, member, _ in (SERVERS[tool],):
        document.get(member, {}).pop("muniment", None)
    for event in HOOKS[tool][1]:
        document.get("hooks", {}).pop(event, None)
    return {name: value for name, value in document.items() if value != {}}


@pytest.mark.parametrize("tool", TOOLS)
def test_server_and_hook_are_put_in_beside_what_is_there_once_and_taken_out_byte_for_byte(
    run, placed, user, home, tool
):
    before = placed(tool)
    said = {path: without_ours(tool, path) for path in before}
    done = run("setup", tool, "--yes")
    assert (done.exit_code, "is set up" in done.stdout) == (0, True), done.output
    name, member, entry = SERVERS[tool]
    assert meant(user / name)[member]["muniment"] == entry
    name, events, hooks = HOOKS[tool]
    assert {event: meant(user / name)["hooks"][event] for event in events} == dict.fromkeys(events, hooks)
    assert {path: without_ours(tool, path) for path in before} == said
    for path, text in before.items():
        assert COMMENTS.findall(path.read_text()) == COMMENTS.findall(text.decode())
        assert list(meant(path))[: len(said[path])] == list(said[path])
    written = now(before)
    again = run("setup", tool, "--yes")
    assert (again.exit_code, "is already set up" in again.stdout, now(before)) == (0, True, written)
    assert run("setup", tool, "--remove", "--yes").exit_code == 0
    assert now(before) == before
    assert not home.exists()
    last = run("setup", tool, "--remove", "--yes")
    assert (last.exit_code, "do not contain Muniment" in last.stdout) == (0, True)


@pytest.mark.parametrize("tool", TOOLS)
def test_files_that_were_not_there_are_made_for_their_owner_alone_and_go_again(run, user, tool):
    done = run("setup", tool, "--yes")
    assert done.exit_code == 0
    made = [user / name for name in FILES[tool]]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o600] * len(made)
    assert all(f"new file {path}" in done.stdout for path in made)
    assert f"{made[-1].parent} not found" in done.stderr
    run("setup", tool, "--remove", "--yes")
    assert not any(path.exists() for path in made)


@pytest.mark.parametrize("tool", TOOLS)
def test_where_others_changed_a_file_since_ours_alone_is_taken_out_of_it(run, placed, tool):
    before = placed(tool)
    run("setup", tool, "--yes")
    said = {path: without_ours(tool, path) for path in before}
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
        assert meant(path) == said[path] | {"added": {"a": 1}}
        assert COMMENTS.findall(path.read_text()) == COMMENTS.findall(text.decode())


# -- directories that setup makes --------------------------------------------------------------------


def tree(*directories):
    """Every path below some directories, and what the files hold."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for directory in directories
        for path in [directory, *directory.rglob("*")]
        if path.exists()
    }


@pytest.mark.parametrize("tool", TOOLS)
def test_remove_deletes_directories_that_setup_made(run, user, home, tool):
    before = tree(user, home)
    assert run("setup", tool, "--yes").exit_code == 0
    assert run("setup", tool, "--remove", "--yes").exit_code == 0
    assert tree(user, home) == before


@pytest.mark.parametrize("tool", TOOLS)
def test_remove_keeps_directories_that_were_there_before(run, user, home, tool):
    home.mkdir(mode=0o700)
    for name in FILES[tool]:
        (user / name).parent.mkdir(mode=0o700, exist_ok=True)
    before = tree(user, home)
    run("setup", tool, "--yes")
    run("setup", tool, "--remove", "--yes")
    assert tree(user, home) == before


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
    before = tree(tmp_path)
    run("setup", tool, "--yes", **moved)
    assert (tmp_path / "a" / "b" / "c").is_dir()
    run("setup", tool, "--remove", "--yes", **moved)
    assert tree(tmp_path) == before


def test_remove_after_second_setup_deletes_directories(run, user, home, monkeypatch):
    before = tree(user, home)
    for tool in TOOLS:
        run("setup", tool, "--yes")
    monkeypatch.setattr(setup, "find_program", lambda _: Program(("/new/muniment",)))
    for tool in TOOLS:
        assert run("setup", tool, "--yes").exit_code == 0
    (user / ".cursor/mcp.json").unlink()
    for tool in TOOLS:
        run("setup", tool, "--remove", "--yes")
    assert tree(user, home) == before


def test_uninstall_deletes_directories_that_setup_made(run, user):
    before = tree(user)
    for tool in TOOLS:
        run("setup", tool, "--yes")
    assert run("uninstall", "--yes").exit_code == 0
    assert tree(user) == before


def test_remove_keeps_a_directory_that_a_person_made_anew(run, user):
    run("setup", "cursor", "--yes")
    directory = user / ".cursor"
    for each in directory.iterdir():
        each.unlink()
    directory.rmdir()
    directory.mkdir()
    run("setup", "cursor", "--remove", "--yes")
    assert directory.is_dir()


def test_remove_keeps_a_link_in_place_of_a_made_directory(run, user, tmp_path):
    run("setup", "cursor", "--yes")
    (user / ".cursor").rename(tmp_path / "moved")
    (user / ".cursor").symlink_to(tmp_path / "moved")
    run("setup", "cursor", "--remove", "--yes")
    assert list((user / ".cursor").iterdir()) == []
    assert (user / ".cursor").is_symlink()


def test_remove_killed_before_directories_goes_on_when_repeated(run, user, home, monkeypatch):
    before = tree(user, home)
    run("setup", "cursor", "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", killed)
        patch.setattr(setup, "write_settings_file", killed_after(setup.write_settings_file))
        for _ in FILES["cursor"]:
            with pytest.raises(Killed):
                run("setup", "cursor", "--remove", "--yes")
    assert (user / ".cursor").is_dir()
    run("setup", "cursor", "--remove", "--yes")
    assert tree(user, home) == before


def test_setup_on_full_disk_leaves_no_directory(run, user, monkeypatch):
    before = tree(user)

    def fsync(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert run("setup", "cursor", "--yes").exit_code == 1
    assert tree(user) == before


class Killed(BaseException):
    """The process ends."""


def killed(*_):
    raise Killed


def killed_after(real):
    """What does the work, and then the process ends."""

    def done(*given):
        real(*given)
        raise Killed

    return done


# -- asking and showing ------------------------------------------------------------------------------


def test_nothing_is_written_without_a_yes(run, placed, home, monkeypatch, request):
    before = placed("codex")
    done = run("setup", "codex", stdin="yes\n")
    assert (done.exit_code, now(before) == before) == (1, True)
    assert "+[mcp_servers.muniment]" in done.stdout
    assert "nothing was written; answer yes at a terminal, or use --yes" in done.stderr
    document = json.loads(run("setup", "codex", "--json", stdin="yes\n").stdout)
    assert document["status"] == "not_written"
    request.getfixturevalue("terminal")
    for answer in ("", "n\n", "yess\n", "\x04"):
        assert run("setup", "codex", stdin=answer).exit_code == 1
        assert now(before) == before
    assert not home.exists()
    monkeypatch.setenv("NO_COLOR", "1")
    done = run("setup", "codex", stdin="yes\n")
    assert (done.exit_code, now(before) == before) == (0, False)
    assert "trust the hooks with /hooks" in done.stdout


@pytest.mark.threat("T-LEAK-17", control="own_lines")
@pytest.mark.threat("T-LEAK-17", control="kept_privately")
@pytest.mark.parametrize("tool", TOOLS)
def test_no_secret_of_a_settings_file_is_shown_or_kept_where_others_read(run, placed, home, tool):
    before = placed(tool, mode=0o644)
    done = run("setup", tool, "--yes")
    removed = run("setup", tool, "--remove")
    for said in (done, removed):
        assert "s3cret" not in said.output
        assert "example.org" not in said.output
    assert [stat.S_IMODE(path.stat().st_mode) for path in before] == [0o644] * len(before)
    assert stat.S_IMODE((home / "setup").stat().st_mode) == 0o700
    kept = list((home / "setup").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert sorted(path.read_bytes() for path in kept if path.suffix == ".original") == sorted(before.values())


@pytest.mark.threat("T-LEAK-17", control="masked_keys")
def test_a_key_that_a_person_gave_our_server_is_not_shown_when_it_goes(run, placed, user):
    placed("gemini-cli")
    run("setup", "gemini-cli", "--yes")
    path = user / ".gemini/settings.json"
    text = path.read_text().replace('"args": [', '"env": {"MUNIMENT_API_KEY": "s3cret"}, "args": [')
    path.write_text(text)
    done = run("setup", "gemini-cli", "--remove", "--yes")
    assert '"MUNIMENT_API_KEY": "…"' in done.stdout
    assert ("s3cret" in done.output, done.exit_code) == (False, 0)


def test_what_is_shown_steers_no_terminal(run, placed, monkeypatch):
    placed("codex")
    monkeypatch.setattr(setup, "find_program", lambda _: Program(("/opt/\x1b[2J\u202e/muniment",)))
    done = run("setup", "codex")
    assert not set("\x1b\u202e") & set(done.output)


# -- files that are not as usual ---------------------------------------------------------------------


def test_a_link_is_followed_and_stays_a_link_to_the_file_that_was_changed(run, placed, tmp_path):
    (before,) = placed("gemini-cli")
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
def test_a_file_that_is_not_this_persons_alone_is_neither_read_nor_written(
    run, placed, tmp_path, monkeypatch
):
    (path,) = before = placed("gemini-cli")

    def refused(told):
        done = run("setup", "gemini-cli", "--yes")
        assert (done.exit_code, now(before) == before) == (1, True)
        assert told in done.stderr

    path.chmod(0o666)
    refused("is writable by others (mode 0666)")
    path.chmod(0o600)
    path.parent.chmod(0o777)
    refused("is writable by others (mode 0777)")
    path.parent.chmod(0o700)
    (tmp_path / "again").hardlink_to(path)
    refused("has 2 hard links")
    (tmp_path / "again").unlink()
    shared = tmp_path / "shared"
    shared.mkdir()
    path.rename(shared / "settings.json")
    path.symlink_to(shared / "settings.json")
    shared.chmod(0o777)
    refused("is writable by others (mode 0777)")
    shared.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12_345)
        refused("belongs to user")
    path.unlink()
    path.mkdir()
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, "is not a file" in done.stderr) == (1, True)
    path.rmdir()
    os.mkfifo(path)
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, "is not a file" in done.stderr) == (1, True)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_broken_settings_file_is_left_alone_and_it_is_said_what_to_do(run, placed, tool):
    for spoil in (lambda text: text + b"\nx = {", lambda text: text + b",", lambda text: b"\xff" + text):
        before = placed(tool)
        name = list(before)[-1]
        name.write_bytes(spoil(before[name]))
        broken = now(before)
        done = run("setup", tool, "--yes")
        assert (done.exit_code, now(before)) == (1, broken)
        assert re.match(f"not set up: .*{re.escape(str(name))} is not (JSON|TOML|UTF-8)", done.stderr), (
            done.stderr
        )
        if "UTF-8" not in done.stderr:
            assert "fix it and run this again; or add this yourself:\n" in done.stderr
            assert "recall --hook" in done.stderr
        assert run("setup", tool, "--remove", "--yes").exit_code == 1
        assert now(before) == broken


def test_a_comment_breaks_the_settings_of_claude_code_which_takes_none(run, placed, user):
    placed("claude-code")
    path = user / ".claude/settings.json"
    path.write_text("// mine\n" + CLAUDE_SETTINGS)
    done = run("setup", "claude-code", "--yes")
    assert (done.exit_code, "is not JSON: expecting value in line 1" in done.stderr) == (1, True)
    assert path.read_text().startswith("// mine\n")
    assert (user / ".claude.json").read_text() == CLAUDE_STATE, "neither is the other file"


def test_a_mark_of_the_byte_order_stays(run, placed):
    (path,) = placed("gemini-cli")
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
def test_variables_that_move_a_tools_files_are_obeyed(run, user, tmp_path, tool, variable, file, usual):
    moved = {variable: str(tmp_path / "moved")}
    run("setup", tool, "--yes", **moved)
    assert "muniment" in (tmp_path / "moved" / file).read_text()
    assert not (user / usual).exists()
    assert run("setup", tool, "--remove", "--yes", **moved).exit_code == 0
    assert not (tmp_path / "moved" / file).exists()
    run("setup", tool, "--yes", **{variable: ""})
    assert (user / usual).exists()


# -- entries that are there --------------------------------------------------------------------------


def test_a_program_that_moved_is_corrected_and_what_a_person_added_to_the_entries_stays(
    run, placed, user, monkeypatch
):
    before = placed("gemini-cli") | placed("codex")
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
    monkeypatch.setattr(setup, "find_program", lambda _: Program(("/new/python", "-m", "muniment")))
    for tool in ("gemini-cli", "codex"):
        done = run("setup", tool, "--yes")
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert [f"-{WORDS[0]}", "+/new/python"] == lines[2:4], "what was replaced, and by what"
    found = meant(gemini)
    args = ["-m", "muniment", "mcp", "--trust", "owner"]
    assert found["mcpServers"]["muniment"] == {"command": "/new/python", "timeout": 7, "args": args}
    (group,) = found["hooks"]["BeforeAgent"]
    assert group["hooks"][0]["command"] == "/new/python -m muniment recall --hook --limit 3"
    server = meant(codex)["mcp_servers"]["muniment"]
    assert (server["command"], server["args"], server["enabled"]) == ("/new/python", args[:3], True)
    assert "# mine" in codex.read_text()
    for tool in ("gemini-cli", "codex"):
        run("setup", tool, "--remove", "--yes")
    assert now(before) == before


def test_a_server_of_that_name_that_is_a_persons_own_is_left_as_it_is(run, placed):
    (path,) = placed("gemini-cli")
    own = '"muniment": {"command": "ssh", "args": ["box", "muniment", "mcp"]}'
    path.write_text(text := GEMINI.replace('"mainServer"', f'{own},\n    "mainServer"'))
    done = run("setup", "gemini-cli", "--yes")
    assert (done.exit_code, own in path.read_text(), "BeforeAgent" in path.read_text()) == (0, True, True)
    assert "a server 'muniment' that is started in another way" in done.stderr
    run("setup", "gemini-cli", "--remove", "--yes")
    assert path.read_text() == text


def test_hooks_of_others_below_the_same_events_stay_before_ours(run, placed, user):
    placed("claude-code")
    path = user / ".claude/settings.json"
    theirs = '{"matcher": "", "hooks": [{"type": "command", "command": "echo muniment recall"}]}'
    path.write_text(
        text := CLAUDE_SETTINGS.replace('"PreToolUse"', f'"UserPromptSubmit": [{theirs}], "PreToolUse"')
    )
    run("setup", "claude-code", "--yes")
    assert meant(path)["hooks"]["UserPromptSubmit"] == [json.loads(theirs), *IN_SECONDS]
    path.write_text(path.read_text() + "\n")
    run("setup", "claude-code", "--remove", "--yes")
    assert path.read_text() == text + "\n"


def test_a_hook_that_a_person_put_into_a_group_of_theirs_goes_alone(run, placed, user):
    placed("claude-code")
    path = user / ".claude/settings.json"
    ours = '{"type": "command", "command": "/x/muniment recall --hook"}'
    path.write_text(
        CLAUDE_SETTINGS.replace('"~/.claude/hooks/guard.sh"}', f'"~/.claude/hooks/guard.sh"}}, {ours}')
    )
    run("setup", "claude-code", "--remove", "--yes")
    assert path.read_text() == CLAUDE_SETTINGS


def test_codex_has_its_hooks_where_it_has_others(run, placed, user):
    before = placed("codex")
    path = user / ".codex/hooks.json"
    path.write_text(text := '{"description": "mine", "hooks": {"Stop": []}}')
    assert run("setup", "codex", "--yes").exit_code == 0
    assert meant(path)["hooks"] == {"Stop": [], "UserPromptSubmit": IN_SECONDS, "SessionStart": IN_SECONDS}
    assert "recall --hook" not in (user / ".codex/config.toml").read_text()
    run("setup", "codex", "--remove", "--yes")
    assert (path.read_text(), now(before)) == (text, before)
    path.unlink()
    run("setup", "codex", "--yes")
    path.write_text("{}")  # Afterwards: the hook is not put in twice.
    assert "is already set up" in run("setup", "codex", "--yes").stdout


def test_what_keeps_hooks_or_servers_from_running_is_said(run, placed, user):
    for tool, name, old, new, told in (
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
        placed(tool)
        path = user / name
        path.write_text(path.read_text().replace(old, new, 1))
        assert told in run("setup", tool, "--yes").stderr


# -- at the same time --------------------------------------------------------------------------------


@pytest.mark.threat("T-HUM-05", control="settings_as_read")
@pytest.mark.usefixtures("terminal")
def test_what_a_tool_writes_while_a_person_looks_is_kept_and_ours_comes_to_it(run, placed, user, monkeypatch):
    placed("claude-code")
    path = user / ".claude.json"

    def says_yes(_):
        path.write_text(path.read_text().replace('"numStartups": 41', '"numStartups": 42'))
        return True

    monkeypatch.setattr(setup, "says_yes", says_yes)
    assert run("setup", "claude-code").exit_code == 0
    assert (meant(path)["numStartups"], "muniment" in meant(path)["mcpServers"]) == (42, True)
    run("setup", "claude-code", "--remove", "--yes")
    assert path.read_text() == CLAUDE_STATE.replace("41", "42")


@pytest.mark.usefixtures("terminal")
def test_what_would_be_another_change_by_now_is_not_made(run, placed, user, monkeypatch):
    placed("claude-code")
    path = user / ".claude.json"

    def says_yes(_):
        path.write_text(
            '{"mcpServers": {"muniment": {"command": "/evil", "args": ["-m", "muniment", "mcp"]}}}'
        )
        return True

    monkeypatch.setattr(setup, "says_yes", says_yes)
    done = run("setup", "claude-code")
    assert (done.exit_code, "was changed by another program; run this again" in done.stderr) == (1, True)
    assert "/evil" in path.read_text()


@pytest.mark.usefixtures("terminal")
def test_what_another_setup_did_meanwhile_is_done(run, placed, monkeypatch):
    before = placed("codex")

    def says_yes(_):
        run("setup", "codex", "--yes")
        return True

    monkeypatch.setattr(setup, "says_yes", says_yes)
    assert run("setup", "codex").exit_code == 0
    run("setup", "codex", "--remove", "--yes")
    assert now(before) == before


def test_a_file_that_comes_into_being_meanwhile_is_not_written_over(run, user, monkeypatch):
    path, real = user / ".qwen/settings.json", os.link

    def link(source, target):
        if Path(target) == path:
            path.write_text('{"$version": 4}')
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    done = run("setup", "qwen-code", "--yes")
    assert (done.exit_code, "was changed by another program" in done.stderr) == (1, True)
    assert path.read_text() == '{"$version": 4}'
    assert list(path.parent.iterdir()) == [path]


def test_where_the_disk_is_full_everything_is_as_it_was_and_nothing_is_left_lying(
    run, placed, user, monkeypatch
):
    before = placed("claude-code")
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
        assert now(before)[user / ".claude/settings.json"] == before[user / ".claude/settings.json"]
    assert run("setup", "claude-code", "--yes").exit_code == 0
    run("setup", "claude-code", "--remove", "--yes")
    assert now(before) == before


def test_who_is_killed_between_keeping_and_writing_loses_nothing(run, placed, user, home, monkeypatch):
    before = placed("codex")
    with monkeypatch.context() as patch:
        patch.setattr(setup, "write_settings_file", killed)
        with pytest.raises(Killed):
            run("setup", "codex", "--yes")
    assert now(before) == before
    (user / ".codex/config.toml").write_text(CODEX + "# later\n")
    assert "do not contain Muniment" in run("setup", "codex", "--remove", "--yes").stdout
    assert (user / ".codex/config.toml").read_text() == CODEX + "# later\n"
    assert not home.exists()


def test_a_home_without_what_was_kept_takes_out_what_is_known_as_ours(run, placed, home):
    before = placed("cursor")
    run("setup", "cursor", "--yes")
    for path in (home / "setup").iterdir():
        path.unlink()
    assert run("setup", "cursor", "--remove", "--yes").exit_code == 0
    assert now(before) == before


# -- the program -------------------------------------------------------------------------------------


def script(path, said="muniment 0.1.0", code=0):
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && [ -z "$PYTHONPATH" ] && echo "{said}"\nexit {code}\n'
    )
    path.chmod(0o755)
    return str(path)


def test_the_program_that_is_written_is_absolute_and_was_tried(tmp_path, monkeypatch):
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
    assert setup.find_program(tmp_path) == Program((str(link),)), "a link stays, which an upgrade keeps"
    monkeypatch.setenv("MUNIMENT_HOME", "elsewhere")
    assert setup.find_program(tmp_path / "x y").home == str(tmp_path / "x y")
    for path in (good, bad):
        script(Path(path), code=1)
    with pytest.raises(setup.ConfigInvalid, match="cannot be started from another directory"):
        setup.find_program(tmp_path)


def test_another_home_is_told_to_server_and_hook(run, user, monkeypatch):
    monkeypatch.setattr(setup, "find_program", lambda _: Program(WORDS, "/my home"))
    for tool in TOOLS:
        run("setup", tool, "--yes")
        name, member, entry = SERVERS[tool]
        assert meant(user / name)[member]["muniment"] == entry | {"env": {"MUNIMENT_HOME": "/my home"}}
        assert f"MUNIMENT_HOME='/my home' {HOOK}" in json.dumps(meant(user / HOOKS[tool][0])).replace(
            '\\"', '"'
        )
        assert "is already set up" in run("setup", tool, "--yes").stdout
    for other, env in (("/other", {"MUNIMENT_HOME": "/other"}), (None, {})):
        monkeypatch.setattr(setup, "find_program", lambda _, other=other: Program(WORDS, other))
        for tool in TOOLS:
            assert run("setup", tool, "--yes").exit_code == 0
            name, member, _ = SERVERS[tool]
            assert meant(user / name)[member]["muniment"]["env"] == env
            assert "/my home" not in (user / HOOKS[tool][0]).read_text()
            assert "is already set up" in run("setup", tool, "--yes").stdout
    for tool in TOOLS:
        assert run("setup", tool, "--remove", "--yes").exit_code == 0
        assert not any((user / name).exists() for name in FILES[tool])


@pytest.mark.parametrize(
    "path", ["/home/me/.cache/uv/archive-v0/abc/bin/muniment", "/home/me/.cache/pipx/abc/bin/muniment"]
)
def test_an_environment_that_is_cleared_away_is_noticed(run, monkeypatch, path):
    monkeypatch.setattr(setup, "find_program", lambda _: Program((path,)))
    assert "temporary environment" in run("setup", "codex").stderr
    monkeypatch.setattr(setup, "find_program", lambda _: Program(WORDS))
    assert "temporary environment" not in run("setup", "codex").stderr


@pytest.mark.slow
def test_the_hook_that_is_written_runs_in_a_shell_and_the_program_is_this_one(muniment, user):
    done = muniment("setup", "codex", "--yes", HOME=str(user), CODEX_HOME=None, MUNIMENT_HOME=None)
    assert done.exit_code == 0, done.output
    (group,) = meant(user / ".codex/config.toml")["hooks"]["UserPromptSubmit"]
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


def test_kept_notes_that_are_no_notes_keep_nothing(run, placed, home):
    before = placed("codex")
    run("setup", "codex", "--yes")
    for path in (home / "setup").glob("*.json"):
        path.write_text("[1]")
    assert run("setup", "codex", "--remove", "--yes").exit_code == 0
    assert now(before) == before
    assert setup_files.kept_files(home / "setup") == []
