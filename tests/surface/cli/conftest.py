"""Fixtures that run every command in this process, over temporary roots and a temporary home."""

import functools
import gc
import os

import pytest
import typer.main
import typer.testing

from kit.cli import users
from kit.cli.commands import Commands, run_in_process
from kit.cli.screen import run_on_terminal
from kit.memories import make_roots
from kit.policy.files import SCOPES, write_policy
from kit.server.process import write_policy as write_server_policy
from muniment import api

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
        env = {"MUNIMENT_HOME": str(self.base / "home"), **environment}
        return run_in_process(self._complete_line(arguments, bound), env, stdin)

    def show(self, *arguments, columns=80, answers=None, bound=True, **environment):
        """Run a command on a terminal, and return its screen."""
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.base), "TERM": "xterm-256color"}
        env |= {"MUNIMENT_HOME": str(self.base / "home"), **environment}
        line = self._complete_line(arguments, bound)
        return run_on_terminal(line, env, columns=columns, answers=answers)

    def _complete_line(self, arguments, bound):
        """Return the words of a command, with the roots and the workspace if it accepts them."""
        line = [*self.begin, *map(str, arguments)]
        if bound and line[0] not in WITHOUT_WORKSPACE:
            (self.base / "workspace").mkdir(exist_ok=True)
            line += [f"--root={scope}={path}" for scope, path in self.roots.items()]
            line += [] if line[0] == "tool" else [f"--workspace={self.base / 'workspace'}"]
        return line


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
def memory(tmp_path, home, roots):
    """The memory of `cli`, opened by the library; its runs are not confined, and fast."""
    policy = write_server_policy(tmp_path, require='"none"')
    (tmp_path / "workspace").mkdir(exist_ok=True)
    with api.open(tmp_path / "workspace", home=home, roots=roots, policy=policy, in_process=True) as opened:
        yield opened


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
