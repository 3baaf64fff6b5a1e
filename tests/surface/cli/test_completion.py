"""`muniment completion`: its scripts, in real shells on a pseudo-terminal, and its output for each shell."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kit.cli.shells import TAB, Shell
from kit.memories import take_snapshot, write_file
from kit.policy.files import format_allow, format_deny, write_policy
from muniment.cli.completion import complete_word

PROGRAM = Path(sys.executable).with_name("muniment")
SHELLS = ["bash", "zsh", "fish"]
LINES = {
    "muniment unin": "muniment uninstall",
    "muniment policy li": "muniment policy lint",
    "muniment review a": "muniment review approve",
    "muniment remember --sym": "muniment remember --symlinks",
    "muniment remember fact --symlinks b": "muniment remember fact --symlinks beneath",
    "muniment remember fact --on-model-failure r": "muniment remember fact --on-model-failure rules",
    "muniment setup claude": "muniment setup claude-code",
    "muniment completion f": "muniment completion fish",
    "muniment recall tea --scope pr": "muniment recall tea --scope project",
    "muniment ls user/dri": "muniment ls user/drinks",
    "muniment log user/dri": "muniment log user/drinks",
    "muniment history user/drinks/": "muniment history user/drinks/tea.md",
    "muniment show user/drinks/t": "muniment show user/drinks/tea.md",
}
"""Incomplete command lines of a memory with the entry `user/drinks/tea.md`, with the completed ones."""

READING = format_allow("/**", verbs=["list", "read"])

HOSTILE_TITLES = [
    "$(touch {})",
    "`touch {}`",
    "\\$(touch {})",
    "\\`touch {}\\`",
    '"; touch {}; "',
    '\\" ); touch {}; (',
    "'; touch {}; '",
    "'' )); touch {} #",
    "; touch {} &",
    "| touch {}",
    "${{(e):-$(touch {})}}",
    "a:b:((touch {}))",
    "%{{touch {}%}}",
    "!touch {}",
    "[red]bold[/red] {}",
]
"""Titles with a command that creates a file."""

LINE_PATTERNS = {
    "bash": re.compile(r"[\w./-]+"),
    "zsh": re.compile(r"""\"[\w./-]+\"(?::"[^"'`$\\]+")?"""),
    "fish": re.compile(r"""[\w./-]+(?:\t[^"'`$\\]+)?"""),
}
"""The lines that a shell can evaluate without running a command."""

HOSTILE_CHARACTERS = "first\\nsecond\\ttab\\rline \\ue000 end"


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Create a memory with one entry, and return the environment of its user."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "user").mkdir(mode=0o700)
    (home / "projects").mkdir(mode=0o700)
    write_entry(home, "drinks/tea", "Drinks green tea")
    environment = {
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "MUNIMENT_HOME": str(home),
        "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
    }
    run(environment, "ls")
    return environment


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path, memory):
    """Start a shell in which the completion script is loaded."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with Shell(request.param, tmp_path / request.param, memory) as found:
        yield found


def write_entry(home, name, title, more=""):
    """Write an entry whose title is a text in double quotes; return its path."""
    write_file(Path(home, "user"), f"{name}.md", f'---\nname: "{title}"\n{more}---\n\nSome text.\n')


def run(environment, *arguments):
    """Run a command, and return its output."""
    done = subprocess.run(
        [PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def complete(environment, *words, shell="fish"):
    """Return the completions that the program prints for the last word: each value with its help."""
    variables = {
        "_MUNIMENT_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": " ".join(["muniment", *words]),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [PROGRAM], env={**environment, **variables}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return dict(line.partition("\t")[::2] for line in done.stdout.splitlines() if line)


def test_shell_completes_commands_options_and_values(shell):
    assert {line: shell.complete(line).rstrip() for line in LINES} == LINES


def test_shell_completes_names_of_files(shell):
    Path("facts.jsonl").write_text("")
    assert shell.complete("muniment import fac") == "muniment import facts.jsonl "
    assert shell.complete("muniment remember fact --api-key-file fac").endswith(" facts.jsonl ")


def test_shell_completes_handles_of_entries_and_tasks(shell, memory):
    run(memory, "remember", "The deploy day is Thursday", "--scope", "user")
    handles, tasks = complete(memory, "show", ""), complete(memory, "undo", "")
    deploy = next(handle for handle, title in handles.items() if "Thursday" in title)
    assert shell.complete(f"muniment show {deploy[:4]}") == f"muniment show {deploy} "
    assert shell.complete(f"muniment pin {deploy[:4]}") == f"muniment pin {deploy} "
    (task,) = tasks
    assert tasks[task] == "remember: The deploy day is Thursday"
    assert shell.complete(f"muniment undo {task[:4]}") == f"muniment undo {task} "
    assert complete(memory, "redo", "") == {}
    run(memory, "undo", task)
    assert complete(memory, "undo", "") == {}
    assert list(complete(memory, "redo", "").values()) == ["undo"]


def test_shell_lists_handles_with_titles(shell, memory):
    write_entry(memory["MUNIMENT_HOME"], "other", "A second entry")
    run(memory, "ls")
    handles = complete(memory, "show", "")
    assert sorted(handles.values()) == ["A second entry", "Drinks green tea"]
    shell.press(f"muniment show {TAB}")
    shown = [shell.wait_for(handle) for handle in handles]
    if shell.name != "bash":
        shown = [shell.wait_for(title) for title in handles.values()]
    assert all(shown)


def test_hostile_titles_run_no_command(shell, memory, tmp_path):
    mark = tmp_path / "mark"
    for number, title in enumerate(HOSTILE_TITLES):
        quoted = title.format(mark).replace("\\", "\\\\").replace('"', '\\"')
        write_entry(memory["MUNIMENT_HOME"], f"hostile-{number}", quoted)
    write_entry(memory["MUNIMENT_HOME"], "hostile-characters", HOSTILE_CHARACTERS)
    run(memory, "ls")
    handles = complete(memory, "show", "")
    assert len(handles) == len(HOSTILE_TITLES) + 2
    for handle in handles:
        assert shell.complete(f"muniment show {handle[:4]}") == f"muniment show {handle} "
    shell.press(f"muniment show {TAB}")
    for handle in handles:
        shell.wait_for(handle)
    assert not mark.exists()


def test_help_of_values_is_one_line_without_shell_characters(memory):
    home = memory["MUNIMENT_HOME"]
    write_entry(home, "characters", HOSTILE_CHARACTERS)
    write_entry(home, "long", "word " * 100)
    write_entry(home, "quotes", 'it\'s $5 \\\\ `or` \\"more\\"')
    run(memory, "ls")
    titles = complete(memory, "show", "").values()
    assert len(titles) == 4
    assert all(len(each) <= 72 and each.isprintable() for each in titles)
    assert not any(set("'\"`$\\") & set(each) for each in titles)
    assert "it\u2019s \uff045 \uff3c \u2019or\u2019 \u201dmore\u201d" in titles


@pytest.mark.threat("T-LOG-04", control="plain_completions")
@pytest.mark.parametrize("name", SHELLS)
def test_completions_contain_no_shell_characters(cli, roots, monkeypatch, capsys, name):
    for number, title in enumerate(HOSTILE_TITLES):
        quoted = title.format("mark").replace("\\", "\\\\").replace('"', '\\"')
        write_file(roots["user"], f"it's; mark &/{number}.md", f'---\nname: "{quoted}"\n---\ntext\n')
    assert len(cli.run_for_document("ls")["entries"]) == len(HOSTILE_TITLES)
    options = [f"--root={scope}={path}" for scope, path in roots.items()]
    monkeypatch.setenv("MUNIMENT_HOME", str(cli.base / "home"))
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COMP_CWORD", str(len(options) + 2))
    lines = []
    for command in ("show", "ls"):
        words = ["muniment", command, *options, ""]
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(words))
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        with pytest.raises(SystemExit):
            complete_word(f"complete_{name}")
        lines += capsys.readouterr().out.removeprefix("_arguments '*: :((").replace("))'", "").splitlines()
    assert len(lines) == len(HOSTILE_TITLES) + 2
    assert [line for line in lines if not LINE_PATTERNS[name].fullmatch(line.replace(r"\\:", ":"))] == []


def test_invisible_entries_are_not_suggested(memory, tmp_path):
    home = Path(memory["MUNIMENT_HOME"])
    write_entry(home, "expired", "Expired", "expires: 2020-01-01\n")
    write_entry(home, "tomorrow", "Ends later", "expires: 2999-01-01\n")
    write_entry(home, "withheld", "Withheld", "type: \x1b[31m\n")
    write_entry(home, "secret/hidden", "Hidden")
    policy = write_policy(
        tmp_path / "own.toml", None, READING + format_deny("/user/secret/**"), extends=["strict"]
    )
    own = {**memory, "MUNIMENT_POLICY": policy}
    assert '"held": "ansi"' in run(own, "ls", "--json")
    assert sorted(complete(own, "show", "").values()) == ["Drinks green tea", "Ends later"]
    assert list(complete(own, "show", "user/")) == ["user/drinks/tea.md", "user/tomorrow.md"]
    assert list(complete(own, "ls", "user")) == ["user", "user/drinks"]
    assert "user/secret/hidden.md" in complete(memory, "show", "user/")
    assert "user/secret" in complete(memory, "ls", "user")


def test_rows_of_another_policy_are_not_suggested(memory, tmp_path):
    body = f"{READING}[retention]\nuntrusted = 3\n"
    policy = write_policy(tmp_path / "own.toml", None, body, extends=["strict"])
    own = {**memory, "MUNIMENT_POLICY": policy}
    assert complete(own, "show", "") == {}
    assert list(complete(own, "recall", "--scope", "")) == ["user", "project"]
    run(own, "ls")
    assert list(complete(own, "show", "").values()) == ["Drinks green tea"]


def test_completion_uses_the_options_of_the_line(memory, tmp_path):
    other = tmp_path / "other"
    write_file(other, "coffee.md", "# Drinks coffee\n")
    other.chmod(0o700)
    options = f"--root=user={other}"
    run(memory, "ls", options)
    assert list(complete(memory, "show", options, "").values()) == ["Drinks coffee"]
    assert list(complete(memory, "show", "--root", f"user={other}", "").values()) == ["Drinks coffee"]


def test_missing_memory_gives_no_handles_and_creates_nothing(memory, tmp_path):
    other = {**memory, "MUNIMENT_HOME": str(tmp_path / "missing")}
    assert (complete(other, "show", ""), complete(other, "undo", "")) == ({}, {})
    assert list(complete(other, "ls", "")) == ["user", "project"]
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("name", ["catalog.db", "ledger.db"])
def test_damaged_memory_gives_no_completions(memory, name):
    Path(memory["MUNIMENT_HOME"], "state", name).write_bytes(b"no database" * 1000)
    assert complete(memory, "show", "") == {}


def test_locked_memory_gives_no_completions_at_once(memory):
    with closing(sqlite3.connect(Path(memory["MUNIMENT_HOME"], "state", "catalog.db"))) as writer:
        writer.execute("PRAGMA locking_mode = EXCLUSIVE")
        writer.execute("BEGIN EXCLUSIVE")
        assert complete(memory, "show", "") == {}


def test_completion_changes_no_file_of_the_home(memory):
    home = Path(memory["MUNIMENT_HOME"])
    before = take_snapshot(home)
    assert len(complete(memory, "show", "")) == 1
    assert take_snapshot(home) == before
    with closing(sqlite3.connect(home / "state" / "catalog.db")) as reader:
        reader.execute("SELECT * FROM entry").fetchone()
        assert len(complete(memory, "show", "")) == 1


def test_values_with_shell_characters_are_omitted(memory):
    write_entry(memory["MUNIMENT_HOME"], "with space/a", "Space")
    write_entry(memory["MUNIMENT_HOME"], "h\u00f4tel/b", "Letters")
    run(memory, "ls")
    assert list(complete(memory, "ls", "user/")) == ["user/drinks", "user/h\u00f4tel"]
    assert len(complete(memory, "show", "")) == 3


def test_many_entries_are_limited_but_all_can_be_completed(memory):
    home = memory["MUNIMENT_HOME"]
    for number in range(120):
        write_entry(home, f"many-{number}", f"Entry {number}")
    run(memory, "ls")
    handles = complete(memory, "show", "")
    assert len(handles) == 50
    listed = json.loads(run(memory, "ls", "--json"))["entries"]
    letters = "0123456789bcdfghjkmnpqrstvwxyz"
    found = {handle for letter in letters for handle in complete(memory, "show", letter)}
    assert len(found) == len(listed) == 121


def test_zsh_escapes_colons_and_bash_prints_only_values(memory):
    write_entry(memory["MUNIMENT_HOME"], "colon", "Note: a colon")
    run(memory, "ls")
    zsh = run({**memory, "_MUNIMENT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "muniment show "})
    assert r'":"Note\\: a colon"' in zsh
    words = {"COMP_WORDS": "muniment\nshow\n", "COMP_CWORD": "2", "_MUNIMENT_COMPLETE": "complete_bash"}
    handles = complete(memory, "show", "")
    assert sorted(run({**memory, **words}).split()) == sorted(handles)


def test_unknown_instruction_prints_nothing(memory):
    done = subprocess.run(
        [PROGRAM, "ls"],
        env={**memory, "_MUNIMENT_COMPLETE": "source_zsh"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_completion_rejects_unknown_shell(cli):
    done = cli("completion", "csh")
    assert (done.exit_code, "'bash', 'zsh', 'fish'" in done.stderr) == (2, True)
