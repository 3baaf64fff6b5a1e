"""Commands as a user of an installed Muniment types them, in an empty home."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from kit.locations import REPOSITORY

PROGRAMS = Path(sys.executable).parent
SECONDS = 240


def read_page(page):
    return (REPOSITORY / page).read_text(encoding="utf-8")


def find_code_blocks(text, kind="console"):
    """Return the fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run_command(*command, home, stdin=None, **environment):
    """Run a command in `home`; return its result."""
    environment = {"PATH": f"{PROGRAMS}{os.pathsep}/usr/bin:/bin", "HOME": str(home), **environment}
    return subprocess.run(
        command, cwd=home, env=environment, input=stdin, capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip


def get_output(*command, code=0, **options):
    """Run a command that must end with `code`; return its output."""
    done = run_command(*command, **options)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
