"""Commands run in this process, over temporary roots and a temporary home."""

import functools
import gc
import os

import pytest
import typer.main
import typer.testing

from kit.cli.commands import Commands, invoked
from kit.memories import make_roots
from kit.policy.files import SCOPES, write

typer.testing._get_command = functools.cache(
    typer.main.get_command
)  # Six times as fast, because it is built only once.
WITHOUT_ROOTS = {
    *("acp", "audit", "completion", "conformance", "doctor", "init", "policy", "projects", "serve", "setup"),
    *("token", "uninstall"),
}


class Muniment(Commands):
    """Runs commands, with options for the roots and a workspace if they accept these and are `bound`."""

    def __init__(self, base, roots, *prefix):
        self.base, self.roots, self.prefix = base, roots, prefix

    def __call__(self, *arguments, stdin=None, bound=True, **environment):
        command = [*self.prefix, *map(str, arguments)]
        if bound and command[0] not in WITHOUT_ROOTS:
            (self.base / "workspace").mkdir(exist_ok=True)
            command += [f"--root={scope}={path}" for scope, path in self.roots.items()]
            command += [] if command[0] == "tool" else [f"--workspace={self.base / 'workspace'}"]
        env = {"MUNIMENT_HOME": str(self.base / "home"), **environment}
        return invoked(command, env, stdin)


home = pytest.fixture(lambda tmp_path: tmp_path / "home")


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def muniment(tmp_path, roots):
    return Muniment(tmp_path, roots)


# Runs the subcommands of `muniment policy`.
policy = pytest.fixture(lambda tmp_path: Muniment(tmp_path, {}, "policy"))


@pytest.fixture
def terminal(monkeypatch):
    """Make commands detect a terminal."""
    monkeypatch.setattr(typer.testing._NamedTextIOWrapper, "isatty", lambda _: True)


# Writes the policy `own.toml`; returns its path as text.
own = pytest.fixture(
    lambda tmp_path: lambda body, **more: write(tmp_path / "own.toml", None, SCOPES + body, **more)
)


@pytest.fixture
def at_work(tmp_path, monkeypatch):
    """Create a workspace as the current directory; restore process settings that daemons change."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    umask = os.umask(0o022)
    yield tmp_path / "work"
    os.umask(umask)
    gc.enable()
