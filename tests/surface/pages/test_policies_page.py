"""The page for reviewers shows what its commands really print, over the policies that stand on it."""

from __future__ import annotations

import re
import shutil

import pytest

from kit.shell import blocks_of, printed, run, text_of

PAGE = text_of("docs/policies.md")
CHANGING = re.compile(r"\b[0-9a-f]{8,64}\b")
"""Digests, whole or cut: they change with the shipped policies."""


def commands(block):
    """Each command of a block with the lines that follow it."""
    parts = [part.splitlines() for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [(head, "".join(f"{line}\n" for line in rest)) for head, *rest in parts]


def shown(command, home):
    """What a command prints, digests replaced."""
    said = run("/bin/sh", "-c", f"({command}) 2>&1", home=home).stdout
    return CHANGING.sub("…", said.replace(str(home), "/home/me"))


@pytest.fixture
def home(tmp_path):
    """The files of the page, and a key to sign with."""
    for content in blocks_of(PAGE, "toml"):
        path = tmp_path / content.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    if shutil.which("ssh-keygen"):
        printed("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key", home=tmp_path)
        (tmp_path / "signers").write_text(f"owner@example.org {(tmp_path / 'key.pub').read_text()}")
    return tmp_path


@pytest.mark.slow
def test_every_command_of_the_page_prints_what_is_shown(home):
    listed = [each for block in blocks_of(PAGE) for each in commands(block)]
    for command, expected in listed:
        if "--key" in command and not shutil.which("ssh-keygen"):
            pytest.skip("there is no ssh-keygen to sign with; what follows is not run")
        assert shown(command, home) == CHANGING.sub("…", expected), command
    for name in ("lint", "explain", "test", "diff", "prove", "show", "lock", "sign", "verify"):
        assert any(f"muniment policy {name} " in command for command, _ in listed)


@pytest.mark.slow
def test_the_commands_of_the_readme_print_what_is_shown(home):
    (block,) = blocks_of(text_of("README.md").split("## Reviewing policies\n")[1].split("\n## ")[0])
    for command, expected in commands(block):
        assert shown(command.replace(".venv/bin/", ""), home) == CHANGING.sub("…", expected), command
