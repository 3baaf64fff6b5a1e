"""`muniment setup` shows the memory that a coding tool keeps itself, and offers to import it.

The files follow the pages of the tools that docs/setup.md names.
"""

import json
import os
import re
import shlex

import pytest

from kit.git import create_repository
from kit.memories import take_snapshot, write_file
from kit.privileges import enforce_file_modes
from muniment.integrations.coding_tools import own_memory

SECRET = "s3cret-of-me"


def encode(path):
    """Return the name of the folder of a project: every character but a letter or digit is a hyphen."""
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in str(path))


IMPORTED = re.compile(r"^imported: 1(, skipped: 1)? \(claude-code, trust agent\)$", re.MULTILINE)


@pytest.fixture
def projects(user):
    """Create two projects, and the notes of Claude Code for them: two files and one."""
    found = [user / "work" / name for name in ("my.api", "web")]
    for path in found:
        create_repository(path)
    one, two = (user / ".claude/projects" / encode(path) / "memory" for path in found)
    write_file(one, "MEMORY.md", "- [Deploys](deploys.md) - when\n")
    write_file(one, "deploys.md", "---\nname: deploys\ntype: project\n---\nWe deploy on Thursdays.\n")
    write_file(two, "MEMORY.md", "The web app runs on port 4000.\n")
    write_file(one.parent, "5f0c.jsonl", json.dumps({"type": "user", "message": SECRET}))
    return found


def get_own_memory(run, tool, **more):
    return json.loads(run("setup", tool, "--yes", "--json", **more).stdout)["own_memory"]


def test_setup_shows_notes_of_claude_code_and_how_to_import(run, user, projects):
    done = run("setup", "claude-code", "--yes")
    assert done.exit_code == 0, done.output
    assert "Claude Code has its own memory: 3 files, 2 notes for 2 projects\n" in done.stdout
    for path in projects:
        memory = user / ".claude/projects" / encode(path) / "memory"
        assert (
            f"  to import it: muniment import {memory} --from claude-code --workspace {path}\n" in done.stdout
        )
    switch = f'"autoMemoryEnabled": false in {user}/.claude/settings.json'
    assert f"it stays on, next to Muniment; to switch it off: {switch}, or the variable" in done.stdout
    assert SECRET not in done.output
    assert "autoMemoryEnabled" not in (user / ".claude/settings.json").read_text()


def test_printed_command_imports_notes_as_agent(run, projects):
    for source in get_own_memory(run, "claude-code")["sources"]:
        program, *arguments = shlex.split(source["command"])
        assert program == "muniment"
        done = run(*arguments)
        assert done.exit_code == 0, done.output
    listed = json.loads(run("ls", f"--workspace={projects[0]}", "--json").stdout)["entries"]
    assert [(each["path"], each["trust"]) for each in listed] == [("project/deploys.md", "agent")]


@pytest.mark.usefixtures("fake_terminal")
def test_setup_on_terminal_imports_notes_only_after_yes(run, home, projects):
    unasked = run("setup", "claude-code", "--yes", stdin="yes\n")
    assert ("import these notes now?" in unasked.stdout, (home / "projects").exists()) == (False, False)
    declined = run("setup", "claude-code", stdin="n\n")
    assert ("import these notes now? [y/N]" in declined.stdout, declined.exit_code) == (True, 0)
    assert not (home / "projects").exists()
    done = run("setup", "claude-code", stdin="yes\n")
    assert done.exit_code == 0, done.output
    assert len(IMPORTED.findall(done.stdout)) == len(projects)
    bodies = [path.read_text() for path in (home / "projects").rglob("*.md") if path.name != "MEMORY.md"]
    assert sorted(each.splitlines()[-1] for each in bodies) == [
        "The web app runs on port 4000.",
        "We deploy on Thursdays.",
    ]


@pytest.mark.usefixtures("fake_terminal")
def test_failed_import_during_setup_exits_with_1(run, user, projects, monkeypatch):
    real = own_memory.find_own_memory

    def remove_after_search(*arguments):
        found = real(*arguments)
        (user / ".claude/projects" / encode(projects[1]) / "memory" / "MEMORY.md").unlink()
        return found

    monkeypatch.setattr(own_memory, "find_own_memory", remove_after_search)
    done = run("setup", "claude-code", stdin="yes\nyes\n")
    assert (done.exit_code, "contains no file that can be imported" in done.stderr) == (1, True)
    assert IMPORTED.search(done.stdout)


def test_setup_without_notes_shows_memory_that_is_on(run):
    for tool, title in (("claude-code", "Claude Code"), ("qwen-code", "Qwen Code")):
        assert get_own_memory(run, tool) | {"switch_off": ""} == {
            "is_on": True,
            "switch_off": "",
            "sources": [],
        }
        assert f"{title} has its own memory: no notes yet\n" in run("setup", tool, "--yes").stdout
    for tool in ("codex", "gemini-cli", "cursor"):
        assert get_own_memory(run, tool) is None
        assert "own memory" not in run("setup", tool, "--yes").stdout


@pytest.mark.parametrize(
    ("tool", "file", "text"),
    [
        ("claude-code", ".claude/settings.json", '{"autoMemoryEnabled": false}'),
        ("qwen-code", ".qwen/settings.json", '{"memory": {"enableManagedAutoMemory": false}}'),
    ],
)
@pytest.mark.usefixtures("projects")
def test_setup_shows_that_memory_is_switched_off(run, user, tool, file, text):
    write_file(user, file, text)
    write_file(user, ".qwen/memories/a.md", "Tabs.\n")
    memory = get_own_memory(run, tool)
    assert (memory["is_on"], bool(memory["sources"])) == (False, True)
    assert "it is switched off" in run("setup", tool, "--yes").stdout


def test_setup_respects_variable_that_disables_memory(run):
    assert get_own_memory(run, "claude-code", CLAUDE_CODE_DISABLE_AUTO_MEMORY="1") is None


def test_setup_finds_moved_memory_of_claude_code(run, user):
    write_file(user, ".claude/settings.json", '{"autoMemoryDirectory": "~/notes"}')
    write_file(user, "notes/tea.md", "Tea is at four.\n")
    (source,) = get_own_memory(run, "claude-code")["sources"]
    assert (source["path"], source["workspace"], source["notes"]) == (str(user / "notes"), None, 1)


CODEX = """# Task Group: billing-api deploys
scope: how to deploy billing-api

- Deploys run on Thursdays.

# Task Group: editor
scope: editor settings

- The user prefers tabs.
"""


def test_setup_finds_memory_of_codex(run, user):
    write_file(user, ".codex/config.toml", "[features]\nmemories = true\n")
    memories = user / ".codex/memories"
    write_file(memories, "MEMORY.md", CODEX)
    write_file(memories, "raw_memories.md", SECRET)
    write_file(memories, "rollout_summaries/a.md", SECRET)
    memory = get_own_memory(run, "codex")
    assert memory["switch_off"] == f"memories = false under [features] in {user}/.codex/config.toml"
    (source,) = memory["sources"]
    assert (memory["is_on"], source["files"], source["notes"]) == (True, 1, 2)
    assert source["command"] == f"muniment import {memories}/MEMORY.md --from markdown"
    assert run(*shlex.split(source["command"])[1:]).exit_code == 0


def test_setup_finds_memory_of_gemini_cli(run, user):
    work = user / "work"
    work.mkdir()
    gemini = user / ".gemini"
    write_file(
        gemini, "GEMINI.md", "# Mine\n\nBe brief.\n\n## Gemini Added Memories\n- I use tabs.\n- I am Ana.\n"
    )
    write_file(gemini, "tmp/work/.project_root", str(work))
    write_file(gemini, "tmp/work/memory/MEMORY.md", "The staging server is called lab.\n")
    write_file(gemini, "tmp/work/logs.json", SECRET)
    write_file(gemini, "tmp/relative/.project_root", ".")
    write_file(gemini, "tmp/relative/memory/MEMORY.md", "The invoice server is called lab.\n")
    memory = get_own_memory(run, "gemini-cli")
    found = [(each["workspace"], each["notes"]) for each in memory["sources"]]
    assert found == [(None, 1), (str(work), 1), (None, 3)]
    assert "no setting prevents that it saves a fact" in run("setup", "gemini-cli", "--yes").stdout


def test_setup_ignores_gemini_file_that_user_wrote(run, user):
    write_file(user, ".gemini/GEMINI.md", "# Mine\n\nBe brief.\n")
    assert get_own_memory(run, "gemini-cli") is None


def test_setup_finds_all_memories_of_qwen_code(run, user):
    work = user / "work"
    work.mkdir()
    write_file(user, f".qwen/projects/{encode(work)}/memory/project/milestone.md", "Beta is in March.\n")
    write_file(user, ".qwen/memories/who.md", "---\ntype: user\nexpires: someday\n---\nMy name is Ana.\n")
    write_file(user, ".qwen/QWEN.md", "## Qwen Added Memories\n- I use tabs.\n")
    done = run("setup", "qwen-code", "--yes")
    assert "Qwen Code has its own memory: 3 files, 3 notes for 1 project\n" in done.stdout


@pytest.mark.usefixtures("fake_terminal")
def test_notes_of_unknown_project_are_not_offered(run, user):
    write_file(user, ".claude/projects/-gone-project/memory/a.md", "Tea is at four.\n")
    done = run("setup", "claude-code", stdin="yes\n")
    assert "to import it, in the directory of the project -gone-project: muniment import" in done.stdout
    assert "import these notes now?" not in done.stdout


def test_ambiguous_project_is_not_guessed(run, user):
    for name in ("a.b", "a-b"):
        (user / name).mkdir()
    write_file(user, f".claude/projects/{encode(user / 'a.b')}/memory/a.md", "Tea is at four.\n")
    (source,) = get_own_memory(run, "claude-code")["sources"]
    assert source["workspace"] is None


def make_link(memory, outside):
    memory.rmdir()
    memory.symlink_to(outside)


def make_project_link(memory, outside):
    memory.rmdir()
    memory.parent.rmdir()
    (outside / "memory").mkdir()
    write_file(outside / "memory", "a.md", SECRET)
    memory.parent.symlink_to(outside)


HOSTILE = {
    "link": make_link,
    "project_link": make_project_link,
    "file_link": lambda memory, outside: (memory / "a.md").symlink_to(outside / "a.md"),
    "fifo": lambda memory, _: os.mkfifo(memory / "a.md"),
    "memory_fifo": lambda memory, _: (memory.rmdir(), os.mkfifo(memory)),
    "binary": lambda memory, _: (memory / "a.md").write_bytes(b"\xff\xfe\0"),
    "directory": lambda memory, _: (memory / "MEMORY.md").mkdir(),
    "empty": lambda *_: None,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_notes_are_not_counted(run, user, tmp_path, kind):
    memory, outside = user / ".claude/projects/-p/memory", tmp_path / "others"
    memory.mkdir(parents=True)
    outside.mkdir()
    write_file(outside, "a.md", SECRET)
    HOSTILE[kind](memory, outside)
    before = take_snapshot(outside)
    done = run("setup", "claude-code", "--yes")
    assert (done.exit_code, SECRET in done.output) == (0, False), done.output
    assert sum(each["notes"] for each in get_own_memory(run, "claude-code")["sources"]) == 0
    assert take_snapshot(outside) == before


def test_too_large_file_of_codex_is_not_parsed(run, user, monkeypatch):
    write_file(user, ".codex/memories/MEMORY.md", CODEX)
    for limit, notes in ((len(CODEX), 2), (len(CODEX) - 1, None)):
        monkeypatch.setattr(own_memory, "MAX_BYTES", limit)
        assert [each["notes"] for each in get_own_memory(run, "codex")["sources"]] == [notes]


def test_linked_folder_of_codex_is_not_read(run, user, tmp_path):
    write_file(tmp_path / "others", "MEMORY.md", CODEX)
    (user / ".codex").mkdir(mode=0o700)
    (user / ".codex/memories").symlink_to(tmp_path / "others")
    assert get_own_memory(run, "codex") is None


def test_names_with_control_characters_are_escaped(run, user):
    write_file(user, ".claude/projects/-a\x1b[31m\nb/memory/a.md", "Tea is at four.\n")
    done = run("setup", "claude-code", "--yes")
    assert ("\x1b[31m" in done.stdout, done.exit_code) == (False, 0)
    assert "1 file, 1 note for 1 project" in done.stdout


@pytest.mark.usefixtures("projects")
@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES"])
def test_too_many_notes_are_not_parsed(run, monkeypatch, limit):
    monkeypatch.setattr(own_memory, limit, 1)  # Each project has more bytes; one project has more files.
    done = run("setup", "claude-code", "--yes")
    assert "more than" in done.stdout
    assert done.exit_code == 0
    notes = [each["notes"] for each in get_own_memory(run, "claude-code")["sources"]]
    assert None in notes


@pytest.mark.usefixtures("projects")
@pytest.mark.parametrize("path", ["a\0b", "\ud800", "/dev/null/x", "x" * 5_000])
def test_invalid_path_of_moved_memory_is_ignored(run, user, projects, path):
    write_file(user, ".claude/settings.json", json.dumps({"autoMemoryDirectory": path}))
    assert len(get_own_memory(run, "claude-code")["sources"]) == len(projects)


def test_unreadable_folder_of_a_project_is_ignored(run, user, projects):
    (user / ".claude/projects/closed").mkdir(mode=0)
    with enforce_file_modes():
        found = get_own_memory(run, "claude-code")
    assert len(found["sources"]) == len(projects)


def test_remove_does_not_mention_own_memory(run):
    run("setup", "claude-code", "--yes")
    assert "own memory" not in run("setup", "claude-code", "--remove", "--yes").stdout


def test_commands_beyond_limit_are_only_in_json(run, user):
    for number in range(22):
        write_file(user, f".claude/projects/-gone-{number:02}/memory/a.md", "Tea is at four.\n")
    done = run("setup", "claude-code", "--yes")
    assert (done.stdout.count("to import it"), "and 2 more commands; --json lists them" in done.stdout) == (
        20,
        True,
    )
    assert len(get_own_memory(run, "claude-code")["sources"]) == 22
