"""Fixtures that run every command in this process, over temporary roots and a temporary home."""

import functools
import gc
import os

import pytest
import typer.main
import typer.testing

from kit.cli import users
from kit.cli.commands import Commands, run_in_process
from kit.memories import make_roots
from kit.policy.files import SCOPES, write_policy

typer.testing._get_command = functools.cache(typer.main.get_command)  # Building it once is six times as fast.
WITHOUT_WORKSPACE = {
    *("acp", "audit", "completion", "conformance", "doctor", "init", "policy", "projects", "serve", "setup"),
    *("token", "uninstall"),
}


class Muniment(Commands):
    """Runs commands. If `bound`, it adds the roots and the workspace to the commands that accept them."""

    def __init__(self, base, roots, *begin):
        self.base, self.roots, self.begin = base, roots, begin

    def __call__(self, *arguments, stdin=None, bound=True, **environment):
        line = [*self.begin, *map(str, arguments)]
        if bound and line[0] not in WITHOUT_WORKSPACE:
            (self.base / "workspace").mkdir(exist_ok=True)
            line += [f"--root={scope}={path}" for scope, path in self.roots.items()]
            line += [] if line[0] == "tool" else [f"--workspace={self.base / 'workspace'}"]
        env = {"MUNIMENT_HOME": str(self.base / "home"), **environment}
        return run_in_process(line, env, stdin)


home = pytest.fixture(lambda tmp_path: tmp_path / "home")


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def cli(tmp_path, roots):
    return Muniment(tmp_path, roots)


user, install_program, run = users.user, users.install_program, users.run


# Runs the subcommands of `cli policy`.
policy = pytest.fixture(lambda tmp_path: Muniment(tmp_path, {}, "policy"))


@pytest.fixture
def fake_terminal(monkeypatch):
    """Pretend that commands run on a terminal."""
    monkeypatch.setattr(typer.testing._NamedTextIOWrapper, "isatty", lambda _: True)


# Writes the policy `own.toml` and returns its path as text.
write_own_policy = pytest.fixture(
    lambda tmp_path: lambda body, **more: write_policy(tmp_path / "own.toml", None, SCOPES + body, **more)
)


@pytest.fixture
def work_directory(tmp_path, monkeypatch):
    """Change into a workspace, and restore what a daemon changes in its process."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    umask = os.umask(0o022)
    yield tmp_path / "work"
    os.umask(umask)
    gc.enable()
