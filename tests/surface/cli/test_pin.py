"""`muniment pin`, and the groups of `muniment --help`."""

import re
from collections import Counter

import pytest

from kit.memories import photograph
from muniment.cli.table import TABLE

FACT = "The user prefers dark mode in every editor"


@pytest.fixture
def entry_path(muniment):
    """Return the path of an entry."""
    (path,) = muniment.document("remember", FACT, "--scope", "user")["files_touched"]
    return path


def test_pin_moves_entry_and_pin_again_restores_it(muniment, entry_path, roots):
    pinned = entry_path.replace("user/", "user/pinned/")
    line, how = muniment.lines("pin", entry_path)
    assert line == f"pinned: {pinned}"
    assert not (roots["user"].parent / entry_path).exists()
    assert FACT in (roots["user"].parent / pinned).read_text()
    task = how.removeprefix("  to undo it: muniment undo ")
    assert task in muniment.lines("history", pinned)[0]
    document = muniment.document("pin", pinned)
    assert document.pop("task_id").startswith("edit-")
    assert document == {"path": entry_path, "previous_path": pinned, "pinned": False, "notes": []}
    assert FACT in (roots["user"].parent / entry_path).read_text()


def test_pin_undo_moves_entry_back(muniment, entry_path, roots):
    task = muniment.document("pin", entry_path)["task_id"]
    muniment.document("undo", task)
    assert FACT in (roots["user"].parent / entry_path).read_text()
    assert not (roots["user"].parent / entry_path.replace("user/", "user/pinned/")).exists()


def test_pin_dry_run_writes_nothing(muniment, entry_path, roots):
    before = photograph(roots["user"])
    pinned = entry_path.replace("user/", "user/pinned/")
    assert muniment.lines("pin", entry_path, "--dry-run") == [f"would be pinned: {pinned}"]
    document = muniment.document("pin", entry_path, "--dry-run")
    assert document == {
        "task_id": None,
        "path": pinned,
        "previous_path": entry_path,
        "pinned": True,
        "notes": [],
    }
    assert photograph(roots["user"]) == before


def test_pin_of_missing_entry_or_escape_fails(muniment):
    assert muniment.failure("pin", "user/nothing.md") == "not_found"
    assert muniment.failure("pin", "../outside.md") == "path_escape"
    (line,) = muniment.lines("pin", "user/nothing.md", code=1)
    assert line.startswith("not pinned: ")


def test_help_lists_every_command_in_one_group(muniment):
    text = muniment("--help", bound=False).output
    groups = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert groups == ["Options", "Memory", "History", "Tools", "Operate", "Policy"]
    listed = Counter(re.findall(r"^  ([a-z]+) ", text.partition("Memory:")[2], re.MULTILINE))
    assert listed == Counter(words for words in TABLE if " " not in words)
