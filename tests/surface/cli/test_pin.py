"""`muniment pin`, and the groups of `muniment --help`."""

import re
from collections import Counter

import pytest

from kit.memories import take_snapshot
from muniment.cli.table import TABLE

FACT = "The user prefers dark mode in every editor"


@pytest.fixture
def entry_path(cli):
    """Return the path of an entry."""
    (path,) = cli.run_for_document("remember", FACT, "--scope", "user")["files_touched"]
    return path


def test_pin_moves_entry_and_pin_again_restores_it(cli, entry_path, roots):
    pinned = entry_path.replace("user/", "user/pinned/")
    title = "Prefers dark mode in every editor"
    line, effect = cli.run_for_lines("pin", entry_path)
    assert effect == "  agents can no longer change it"
    found = re.fullmatch(rf'pinned: "{title}" \(user/pinned/editor, (\w{{5}})\)', line)
    assert cli.run_for_document("show", found[1])["path"] == pinned
    assert not (roots["user"].parent / entry_path).exists()
    assert FACT in (roots["user"].parent / pinned).read_text()
    step, _ = cli.run_for_records("history", pinned)
    assert step.text == f"~ {title} (moved from user/editor)"
    document = cli.run_for_document("pin", pinned)
    assert document.pop("task_id").startswith("edit-")
    assert document == {"path": entry_path, "previous_path": pinned, "pinned": False, "notes": []}
    assert FACT in (roots["user"].parent / entry_path).read_text()


def test_pin_undo_moves_entry_back(cli, entry_path, roots):
    task = cli.run_for_document("pin", entry_path)["task_id"]
    cli.run_for_document("undo", task)
    assert FACT in (roots["user"].parent / entry_path).read_text()
    assert not (roots["user"].parent / entry_path.replace("user/", "user/pinned/")).exists()


def test_pin_dry_run_writes_nothing(cli, entry_path, roots):
    before = take_snapshot(roots["user"])
    pinned = entry_path.replace("user/", "user/pinned/")
    (line,) = cli.run_for_lines("pin", entry_path, "--dry-run")
    assert re.fullmatch(r'would be pinned: "Prefers dark mode in every editor" \(user/editor, \w{5}\)', line)
    document = cli.run_for_document("pin", entry_path, "--dry-run")
    assert document == {
        "task_id": None,
        "path": pinned,
        "previous_path": entry_path,
        "pinned": True,
        "notes": [],
    }
    assert take_snapshot(roots["user"]) == before


def test_pin_of_missing_entry_or_escape_fails(cli):
    assert cli.run_for_error_code("pin", "user/nothing.md") == "not_found"
    assert cli.run_for_error_code("pin", "../outside.md") == "path_escape"
    (line,) = cli.run_for_lines("pin", "user/nothing.md", code=1)
    assert line.startswith("not pinned: ")


def test_help_lists_every_command_in_one_group(cli):
    text = cli("--help", bound=False).output
    groups = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert groups == ["Options", "Memory", "History", "Tools", "Operate", "Policy"]
    listed = Counter(re.findall(r"^  ([a-z]+) ", text.partition("Memory:")[2], re.MULTILINE))
    assert listed == Counter(words for words in TABLE if " " not in words)
