"""Every command that the page for operators shows works, in the order in which it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from muniment.confine.binding import bind_all
from muniment.names import Trust
from muniment.policy.load import load_policy
from muniment.store.review import hold
from muniment.store.state import State
from muniment.tools.changeset import ChangeSet, Proposed
from store.ground import origin

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def shell(tmp_path):
    """Runs a line in a home of its own."""
    environment = {"HOME": str(tmp_path), "PATH": f"{PROGRAMS}{os.pathsep}/usr/bin:/bin"}

    def run(line):
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout

    return run


def waiting(home):
    """A change that waits for its owner."""
    policy = load_policy("strict")
    with State(home / "state") as state, bind_all({"user": home / "user"})["user"] as bound:
        parts = [ChangeSet((Proposed("user/n.md", None, b"waits\n"),))]
        terms = {"policy": policy.digest, "roots": {"user": bound}, "author": "model"}
        return hold(state, origin(), parts, {"user/n.md": Trust.EXTERNAL}, ("why",), **terms)


@pytest.mark.timeout(240)
def test_every_command_of_the_page_works(shell, tmp_path):
    if "sqlite3" in PAGE.read_text() and subprocess.run(["which", "sqlite3"], check=False).returncode:
        pytest.skip("there is no sqlite3(1) to make a backup with")
    saved = json.loads(shell('muniment remember "The owner prefers dark mode in editors" --json'))
    words = {"ENTRY": saved["files_touched"][0], "TASK": saved["task_id"]}
    words["REVIEW"] = waiting(tmp_path / ".muniment")
    for block in BLOCKS:
        for line in block.splitlines():
            assert line.startswith("$ "), line
            shell(re.sub("|".join(words), lambda found: words[found[0]], line[2:]))
    assert BLOCKS


def test_it_names_every_command_that_is_for_operators():
    text = PAGE.read_text()
    for command in (
        *("history", "why", "show", "undo", "erase", "index rebuild", "index verify"),
        *("review list", "review show", "review approve", "audit verify", "audit head", "audit show"),
    ):
        assert f"muniment {command}" in text
