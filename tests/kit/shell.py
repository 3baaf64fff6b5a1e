"""Commands as somebody types them who has Muniment, and nothing else in a home of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from kit.where import REPOSITORY

PROGRAMS = Path(sys.executable).parent
SECONDS = 240


def text_of(page):
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks_of(text, kind="console"):
    """The fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(*command, home, given=None, **environment):
    """How a command ended that ran in `home`."""
    environment = {"PATH": f"{PROGRAMS}{os.pathsep}/usr/bin:/bin", "HOME": str(home), **environment}
    return subprocess.run(
        command, cwd=home, env=environment, input=given, capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip


def printed(*command, code=0, **terms):
    """What a command printed that ended with `code`."""
    done = run(*command, **terms)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
