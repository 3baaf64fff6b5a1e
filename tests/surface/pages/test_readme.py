"""The README from top to bottom: every block is run, in its order, in one home and one checkout."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.where import REPOSITORY
from muniment.testing.chat_server import ChatServer
from muniment.testing.minds import perfect, through

README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PROGRAMS = Path(sys.executable).parent
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -q . && "
CHECK = "./check"  # runs the tests, of which this is one
SERVE = "muniment serve --port 8421"
MODEL = "http://127.0.0.1:8080/v1"
URL = "http://127.0.0.1:8421"
REQUIRED = re.search(r'requires-python = ">=(3\.\d+)"', (REPOSITORY / "pyproject.toml").read_text())[1]


class Reader:
    """Somebody who follows the page: in a checkout, with a home of their own."""

    def __init__(self, base, model):
        self.base, self.model, self.daemon, self.url = base, model, None, URL
        self.work = base / "checkout"
        (self.work / ".git").mkdir(parents=True)
        (self.work / ".venv").mkdir()
        (self.work / ".venv" / "bin").symlink_to(PROGRAMS)
        self.task = ""
        self.environment = {"HOME": str(base), "PATH": f"{PROGRAMS}{os.pathsep}/usr/bin:/bin"}

    def run(self, *command, **more):
        done = subprocess.run(
            command, cwd=self.work, env=self.environment, capture_output=True, text=True, check=False, **more
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def types(self, line):
        """What a line prints, of a shell that keeps what was assigned in it."""
        if line == SERVE:
            return self.serves()
        if name := re.match(r"([A-Z]+)=", line):
            self.environment[name[1]] = self.run("/bin/sh", "-c", f"{line}; printf %s ${name[1]}")
            return ""
        line = (
            line.replace(MODEL, self.model).replace(URL, self.url).replace(self.shown_task(line), self.task)
        )
        printed = self.run("/bin/sh", "-c", line)
        if task := re.search(r'"taskId": "([^"]+)"', printed):
            self.task = task[1]
        return printed

    def shown_task(self, line):
        found = re.search(r"remember/(remember-[0-9a-f-]+)", line)
        return found[1] if found else "\0"

    def serves(self):
        """Another port than the page's, which may be taken here."""
        self.daemon = subprocess.Popen(
            ["muniment", "serve"],
            cwd=self.work,
            env=self.environment,
            executable=PROGRAMS / "muniment",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url = self.daemon.stdout.readline().removeprefix("serving ").strip()
        return ""

    def leaves(self):
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.communicate(timeout=60)


@pytest.fixture
def reader(tmp_path):
    tmp_path.chmod(0o700)
    with ChatServer(through(perfect)) as server:
        reader = Reader(tmp_path, server.base_url)
        try:
            yield reader
        finally:
            reader.leaves()


@pytest.mark.timeout(240)
def test_every_block_runs_from_top_to_bottom_in_one_home(reader):
    printed = []
    for kind, block in BLOCKS:
        if kind == "console":
            typed = [line[2:].removeprefix(INSTALL) for line in block.splitlines() if line.startswith("$ ")]
            assert typed, block
            printed += [reader.types(line) for line in typed if line != CHECK]
        elif kind in {"python", "py"}:
            printed.append(reader.run(sys.executable, "-c", block))
        else:
            assert not kind  # A drawing.
        for folder in re.findall(r"`(mkdir -p -m 700 [^`]+)`", README) if kind == "console" else ():
            reader.run("/bin/sh", "-c", folder)
    said = "\n".join(printed)
    assert "known" not in said
    assert said.count("saved (new)") == 2
    assert '"status": "completed"' in said


def test_line_three_says_which_python_and_which_system():
    line = README.splitlines()[2]
    assert f"Python {REQUIRED} or later" in line
    assert "Linux" in line


def test_it_says_whose_words_are_whose():
    words = "an entry carries your trust only where its words are yours"
    assert words in " ".join(README.split())


@pytest.mark.parametrize("name", ["__init__", "__main__"])
def test_an_old_python_is_told_which_one_is_needed(name):
    source = REPOSITORY / "src" / "muniment"
    ast.parse((source / "__init__.py").read_text(), feature_version=(3, 7))
    old = "import sys; sys.version_info = (3, 9, 18, 'final', 0); sys.path[0] = sys.argv[1]; "
    done = subprocess.run(
        [sys.executable, "-c", f"{old}import muniment.{name}", source.parent],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: muniment needs Python {REQUIRED} or later, and this is Python 3.9"
    )


def test_the_check_says_which_python_is_needed_before_it_makes_anything(tmp_path):
    shutil.copy(REPOSITORY / "check", tmp_path)
    old = tmp_path / "python3.9"
    old.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] || exit 9\nexec {shlex.quote(sys.executable)} -c "import sys\n'
        'sys.version_info = (3, 9, 18)\n$2"\n'
    )
    old.chmod(0o700)
    done = subprocess.run(
        [tmp_path / "check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(old)},
    )
    assert done.returncode == 1
    assert f"Python {REQUIRED} or later" in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["check", "python3.9"]
