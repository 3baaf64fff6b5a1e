"""Commands as a user of an installed Muniment types them, in an empty home."""

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
    """Return the fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(*command, home, given=None, **environment):
    """Run a command in `home`; return its result."""
    environment = {"PATH": f"{PROGRAMS}{os.pathsep}/usr/bin:/bin", "HOME": str(home), **environment}
    return subprocess.run(
        command, cwd=home, env=environment, input=given, capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip


def printed(*command, code=0, **terms):
    """Run a command that must end with `code`; return its output."""
    done = run(*command, **terms)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
