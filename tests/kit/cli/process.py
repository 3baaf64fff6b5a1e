"""The program as a separate process with its home and workspace; measured if coverage is on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import muniment
from kit.locations import REPOSITORY

SECONDS = 40


PIPES = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


def launch(base, *arguments, popen_options=PIPES, **environment):
    """Start `muniment` without waiting, by default with its streams as pipes."""
    command, directory, variables = build_command(base, *arguments)
    return subprocess.Popen(command, cwd=directory, env={**variables, **environment}, **popen_options)


def build_command(base, *arguments):
    """Return the command line of the program, its working directory and its variables."""
    (base / "work" / ".git").mkdir(parents=True, exist_ok=True)
    (base / "home").mkdir(mode=0o700, exist_ok=True)
    coverage_command, coverage_variables = (), {}
    if "COVERAGE_RUN" in os.environ:
        coverage_command = ("coverage", "run", f"--rcfile={REPOSITORY}/pyproject.toml", "-m")
        coverage_variables["COVERAGE_FILE"] = os.environ.get("COVERAGE_FILE", str(REPOSITORY / ".coverage"))
    home_variables = {"HOME": str(base), "MUNIMENT_HOME": str(base / "home")}
    python_variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(muniment.__file__).parents[1])}
    program = [sys.executable, "-m", *coverage_command, "muniment", *arguments]
    return program, base / "work", home_variables | python_variables | coverage_variables


def has_open(pid, path):
    """Return whether a process has a descriptor of a file."""
    try:
        return path in {each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # A descriptor was closed in the meantime.
        return False


def wait_until(process, condition):
    """Wait until a condition is true while the process runs."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        os.sched_yield()
