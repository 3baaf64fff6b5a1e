"""The program as a process of its own, in a home and workspace of its own; measured where the tests are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import muniment
from kit.where import REPOSITORY

SECONDS = 40


def launch(base, *arguments, **environment):
    """Start `muniment` with its streams as pipes, and do not wait."""
    (base / "work" / ".git").mkdir(parents=True, exist_ok=True)
    (base / "home").mkdir(mode=0o700, exist_ok=True)
    measured, kept = (), {}
    if "COVERAGE_RUN" in os.environ:
        measured = ("coverage", "run", f"--rcfile={REPOSITORY}/pyproject.toml", "-m")
        kept["COVERAGE_FILE"] = os.environ.get("COVERAGE_FILE", str(REPOSITORY / ".coverage"))
    return subprocess.Popen(
        [sys.executable, "-m", *measured, "muniment", *arguments],
        cwd=base / "work",
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(muniment.__file__).parents[1]),
            "HOME": str(base),
            "MUNIMENT_HOME": str(base / "home"),
            **kept,
            **environment,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(base, *arguments, given=b"", **environment):
    """Run `muniment` to its end: exit code, output, errors."""
    process = launch(base, *arguments, **environment)
    try:
        out, err = process.communicate(given, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it did not end: {out!r} {err!r}") from None
    return process.returncode, out.decode(), err.decode()


def has_open(pid, path):
    """Whether a process has a descriptor of a file."""
    try:
        return path in {each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # One of them was closed meanwhile.
        return False


def reached(process, condition):
    """Wait until a process that goes on has got so far."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        os.sched_yield()
