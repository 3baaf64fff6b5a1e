"""The page for reviewers shows what its commands really print, over the policies that stand on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.where import REPOSITORY

PAGE = (REPOSITORY / "docs" / "policies.md").read_text()
README = (REPOSITORY / "README.md").read_text()
PROGRAMS = Path(sys.executable).parent
CHANGING = re.compile(r"\b[0-9a-f]{8,64}\b")
"""Digests, whole or cut: they change with the shipped policies."""


def commands(block):
    """Each command of a block with the lines that follow it."""
    return [
        (head, "".join(f"{line}\n" for line in rest)) for head, *rest in map(str.splitlines, split(block))
    ]


def split(block):
    return [part for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]


def printed(command, home):
    """What a command prints, digests replaced."""
    environment = {"HOME": str(home), "PATH": f"{PROGRAMS}{os.pathsep}/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return CHANGING.sub("…", done.stdout.replace(str(home), "/home/me"))


@pytest.fixture
def home(tmp_path):
    """The files of the page, and a key to sign with."""
    for content in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        path = tmp_path / content.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    if shutil.which("ssh-keygen"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", tmp_path / "key"], check=True
        )
        (tmp_path / "signers").write_text(f"owner@example.org {(tmp_path / 'key.pub').read_text()}")
    return tmp_path


@pytest.mark.slow
def test_every_command_of_the_page_prints_what_is_shown(home):
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    run = [each for block in blocks for each in commands(block)]
    for command, shown in run:
        if "--key" in command and not shutil.which("ssh-keygen"):
            pytest.skip("there is no ssh-keygen to sign with; what follows is not run")
        assert printed(command, home) == CHANGING.sub("…", shown), command
    for name in ("lint", "explain", "test", "diff", "prove", "show", "lock", "sign", "verify"):
        assert any(f"muniment policy {name} " in command for command, _ in run)


@pytest.mark.slow
def test_the_commands_of_the_readme_print_what_is_shown(home):
    section = README.split("## Reviewing policies\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    for command, shown in commands(block):
        assert printed(command.replace(".venv/bin/", ""), home) == CHANGING.sub("…", shown), command


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 250
