"""A throwaway memory with the facts of some weeks, and the programs of two checkouts that use it.

Everything is below `/tmp/ann`: its name is visible in the captures, and a longer one would change where lines
are wrapped. If it exists, nothing is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kit.git import run_git
from kit.locations import TESTS

BASE = Path("/tmp/ann")
WORK, HOME, NOTES = BASE / "project", BASE / ".muniment", BASE / "notes"
NOW = datetime(2026, 6, 10, 9, 30, tzinfo=UTC)

_FOLDER = TESTS / "kit" / "captures"
_FILLED = BASE / "filled"
"""A copy of the memory, so that each command starts with the same one."""

_NOTES = {
    "deploy.md": "We roll back with `make rollback`, which takes two minutes\n",
    "oncall.md": "- The pager rotates every Friday at noon\n- Incidents are written up within two days\n",
    "editor.md": "The user prefers dark mode in all editors\n",
    "wifi.md": "The password of the wifi is hunter2hunter2\n",
    "empty.md": "\n",
}
"""The folder to import. One file is already known, and one contains a password, which is rejected."""


class Edition:
    """The program of one checkout.

    Attributes:
        title: its name in the document.
        names: the entries that commands name: for each the path and the handle; and the id of the review.
    """

    def __init__(self, title, python):
        self.title, self.names, self._python = title, {}, str(python)

    def fill_memory(self):
        """Create the memory, with the library of this checkout."""
        shutil.rmtree(HOME, ignore_errors=True)
        shutil.rmtree(_FILLED, ignore_errors=True)
        HOME.mkdir(mode=0o700)
        command = [self._python, "-m", "kit.captures.fill"]
        env = {**self._build_environment("fill"), "PYTHONPATH": str(TESTS)}
        done = subprocess.run(command, cwd=WORK, env=env, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        paths = {f"{name}-path": each["path"] for name, each in found["entries"].items()}
        handles = {name: each["handle"] for name, each in found["entries"].items()}
        self.names = paths | handles | {"review": found["review"]}
        shutil.copytree(HOME, _FILLED)

    def reset_memory(self, *, is_empty=False):
        """Restore the memory as it was filled, or an empty one."""
        shutil.rmtree(HOME, ignore_errors=True)
        if is_empty:
            HOME.mkdir(mode=0o700)
        else:
            shutil.copytree(_FILLED, HOME)

    def build_command(self, *arguments):
        """Return the command line and the environment of a command of this checkout."""
        return [self._python, "-P", str(_FOLDER / "start.py"), *arguments], self._build_environment(
            *arguments
        )

    def _build_environment(self, *arguments):
        return {
            "PATH": f"{Path(self._python).parent}{os.pathsep}/usr/bin:/bin",
            "HOME": str(BASE),
            "MUNIMENT_HOME": str(HOME),
            "TZ": "UTC",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "EDITOR": "sed --in-place s/30/60/",
            "PYTHONHASHSEED": "0",
            "CAPTURE_TIME": str(NOW.timestamp()),
            "CAPTURE_SEED": " ".join(arguments),
        }


@contextmanager
def create_world():
    """Create the directory of the captures for the block, and remove it afterwards.

    Raises:
        SystemExit: it exists.
    """
    try:
        BASE.mkdir(mode=0o700)
    except FileExistsError:
        sys.exit(f"{BASE} exists: another capture runs, or was killed; if none runs, remove it")
    try:
        WORK.mkdir()
        run_git(WORK, "init", "--quiet")
        NOTES.mkdir()
        for name, text in _NOTES.items():
            (NOTES / name).write_text(text, encoding="utf-8")
            os.utime(NOTES / name, (NOW.timestamp(), NOW.timestamp()))
        yield
    finally:
        shutil.rmtree(BASE)
