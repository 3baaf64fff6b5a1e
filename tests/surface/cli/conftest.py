"""Every command, run in this process over roots and a home of its own."""

import functools
import gc
import os

import pytest
import typer.main
import typer.testing

from kit.cli.commands import Commands, invoked
from kit.memories import make_roots
from kit.policy.files import SCOPES, write

typer.testing._get_command = functools.cache(typer.main.get_command)  # Six times as fast: it is built once.
UNPLACED = {
    *("acp", "audit", "completion", "conformance", "doctor", "init", "policy", "projects", "serve", "setup"),
    *("token", "uninstall"),
}


class Muniment(Commands):
    """Runs commands, over the roots and a workspace where they take such and unless they are not `bound`."""

    def __init__(self, base, roots, *begin):
        self.base, self.roots, self.begin = base, roots, begin

    def __call__(self, *arguments, stdin=None, bound=True, **environment):
        given = [*self.begin, *map(str, arguments)]
        if bound and given[0] not in UNPLACED:
            (self.base / "workspace").mkdir(exist_ok=True)
            given += [f"--root={scope}={path}" for scope, path in self.roots.items()]
            given += [] if given[0] == "tool" else [f"--workspace={self.base / 'workspace'}"]
        env = {"MUNIMENT_HOME": str(self.base / "home"), **environment}
        return invoked(given, env, stdin)


home = pytest.fixture(lambda tmp_path: tmp_path / "home")


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


@pytest.fixture
def muniment(tmp_path, roots):
    return Muniment(tmp_path, roots)


# Runs the commands below `muniment policy`.
policy = pytest.fixture(lambda tmp_path: Muniment(tmp_path, {}, "policy"))


@pytest.fixture
def terminal(monkeypatch):
    """Commands meet a terminal from now on."""
    monkeypatch.setattr(typer.testing._NamedTextIOWrapper, "isatty", lambda _: True)


# Writes `own.toml`, a policy; the path as text.
own = pytest.fixture(
    lambda tmp_path: lambda body, **more: write(tmp_path / "own.toml", None, SCOPES + body, **more)
)


@pytest.fixture
def at_work(tmp_path, monkeypatch):
    """A workspace that is the current directory; and what daemons set of a process is taken back."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    umask = os.umask(0o022)
    yield tmp_path / "work"
    os.umask(umask)
    gc.enable()
