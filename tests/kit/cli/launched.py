"""The program as a separate process with its home and workspace; measured if coverage is on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import muniment
from kit.where import REPOSITORY

SECONDS = 40


def launch(base, *arguments, **environment):
    """Start `muniment` with its streams as pipes, without waiting."""
    (base / "work" / ".git").mkdir(parents=True, exist_ok=True)
    (base / "home").mkdir(mode=0o700, exist_ok=True)
    measured, kept = (), {}
    if "COVERAGE_RUN" in os.environ:
        measured = ("coverage", "run", f"--rcfile={REPOSITORY}/pyproject.toml", "-m")
        kept["COVERAGE_FILE"] = os.environ.get("COVERAGE_FILE", str(REPOSITORY / ".coverage"))
    here = {"HOME": str(base), "MUNIMENT_HOME": str(base / "home")}
    source = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(muniment.__file__).parents[1])}
    program = [sys.executable, "-m", *measured, "muniment", *arguments]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(program, cwd=base / "work", env=here | source | kept | environment, **streams)


def has_open(pid, path):
    """Return whether a process has a descriptor of a file."""
    try:
        return path in {each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # A descriptor was closed in the meantime.
        return False


def reached(process, condition):
    """Wait until a condition is true while the process runs."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        os.sched_yield()
