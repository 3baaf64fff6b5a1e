"""The eight ways in which tests use the product, as fixtures; each imports what it needs on first use.

`tests/test_doors.py` uses each of them once. Everything opened is closed after the test.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing

import pytest


def pytest_unconfigure():
    """Stop what the fixtures of this process shared."""
    if "kit.postgres" in sys.modules:
        sys.modules["kit.postgres"].end()


@pytest.fixture
def opened():
    """Close everything the fixtures opened, in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def fleet():
    """Create a migrated database on a real PostgreSQL server, shared by the tests of a process."""
    from kit import postgres
    from kit.fleet.homes import base_on

    with base_on(postgres.served()) as base:
        yield base


@pytest.fixture
def paths(tmp_path, opened):
    """Open door 1, `kernel.root`: a bound root over `tmp_path/user` for opening names."""
    from muniment.kernel.binding import bind

    (tmp_path / "user").mkdir(mode=0o700)
    return opened.enter_context(closing(bind("user", tmp_path / "user")))


@pytest.fixture
def ground(tmp_path, opened):
    """Open door 2, `store.commit`: two roots with entries, an outside directory, a ledger; see
    `ground.commit`.
    """
    from kit.store.ground import laid_out

    return opened.enter_context(laid_out(tmp_path))


@pytest.fixture
def judge_of(tmp_path):
    """Open door 3, policies: a function that returns the judge for the body of a policy file."""
    from kit.policy.files import SCOPES, write
    from muniment.kernel.decide import Judge
    from muniment.policy.load import load_policy

    return lambda body: Judge(load_policy(write(tmp_path / "own.toml", body=SCOPES + body)))


@pytest.fixture
def sandbox(tmp_path, opened):
    """Open door 4, `Sandbox`: a function that opens one over `user` and `project`, next to `outside`."""
    from kit.memories import make_roots, strict
    from muniment.sandbox.sandbox import Sandbox

    roots = make_roots(tmp_path)

    def made(**terms):
        policy = strict(**({"require": "none"} if terms.get("in_process") else {}))
        return opened.enter_context(Sandbox(policy, roots, **terms))

    return made


@pytest.fixture
def memory(tmp_path, opened):
    """Open door 5, the library: a function that calls `muniment.open` with a home and a workspace."""
    import muniment

    def made(**terms):
        (tmp_path / "work" / ".git").mkdir(parents=True, exist_ok=True)
        return opened.enter_context(muniment.open(tmp_path / "work", home=tmp_path / "home", **terms))

    return made


@pytest.fixture
def http(tmp_path, opened):
    """Open door 6, HTTP: a function that starts a daemon in this process, with `open_client()`."""
    from kit.server.raw import running
    from muniment.client import Client

    def served(model=None, **terms):
        daemon = opened.enter_context(running(tmp_path, model, **terms))
        where = {"url": daemon.url, "token": daemon.token, "workspace": daemon.work}
        daemon.open_client = lambda: opened.enter_context(Client(**where))
        return daemon

    return served


@pytest.fixture
def command(tmp_path):
    """Open door 7, the command line: a function that returns the exit code, and the output or document."""
    from kit.cli.commands import invoked

    def run(*arguments, given=None, **environment):
        workspace = tmp_path / "work"
        (workspace / ".git").mkdir(parents=True, exist_ok=True)
        env = {"MUNIMENT_HOME": str(tmp_path / "home"), **environment}
        said = invoked([*arguments, f"--workspace={workspace}"], env, given)
        return said.exit_code, json.loads(said.stdout) if "--json" in arguments else said.output

    return run


@pytest.fixture
def model_behind(opened):
    """Open door 8, the model protocol: a function that returns the adapter and a scripted server."""
    from muniment.agent.openai import OpenAIModel
    from muniment.testing.chat_server import ChatServer

    def made(answers, protocol="auto"):
        server = opened.enter_context(ChatServer(answers))
        model = OpenAIModel("scripted", base_url=server.base_url, api_key="sk-test", protocol=protocol)
        return opened.enter_context(closing(model)), server

    return made
