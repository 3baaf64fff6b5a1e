"""A user whose coding tools `muniment setup` changes: fixtures for tests of the CLI."""

from __future__ import annotations

import pytest

from muniment.cli import setup
from muniment.integrations.coding_tools.tools import Program

VARIABLES = (
    *("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "QWEN_HOME", "XDG_CONFIG_HOME"),
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY",
)
"""Variables that move the files of the tools and of systemd, or switch off the memory of a tool."""


@pytest.fixture
def user(tmp_path):
    """Create the home directory of a user."""
    directory = tmp_path / "me"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def install_program(monkeypatch):
    """Return a function that sets the program that `muniment setup` finds, and its `MUNIMENT_HOME`."""
    return lambda *words, home=None: monkeypatch.setattr(
        setup, "find_program", lambda _: Program(words, home)
    )


@pytest.fixture
def run(cli, user, install_program):
    """Return a function that runs commands as `user`, whose program is `/opt/muniment`."""
    install_program("/opt/muniment")
    environment = {"HOME": str(user), **dict.fromkeys(VARIABLES)}
    return lambda *arguments, **more: cli(*arguments, **{**environment, **more}, bound=False)
