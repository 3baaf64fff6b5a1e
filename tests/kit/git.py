"""Real git in throwaway repositories, independent of the configuration of this machine."""

import os
import shutil
import subprocess

import pytest

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

_SETTINGS = {
    "user.name": "Test",
    "user.email": "test@example.org",
    "init.defaultBranch": "main",
    "protocol.file.allow": "always",
    "advice.detachedHead": "false",
    "pull.rebase": "false",
    "core.hooksPath": os.devnull,
}


def git(directory, *arguments, fails=False):
    """Run git in a directory; return its output."""
    more = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    keep = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *more, *arguments],
        cwd=directory,
        env={**keep, "HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout.strip()


def committed(directory, name="README", text="a product\n"):
    """Commit a file."""
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text, encoding="utf-8")
    git(directory, "add", "--force", name)
    git(directory, "commit", "--quiet", "--message", f"Change {name}")


def repository(directory):
    """Create a repository with one commit."""
    directory.mkdir(parents=True)
    git(directory, "init", "--quiet")
    committed(directory)
    return directory


def clone(source, directory):
    """Clone a repository."""
    git(source, "clone", "--quiet", str(source), str(directory))
    return directory
