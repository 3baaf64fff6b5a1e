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
        sys.modules["kit.postgres"].stop_server()


@pytest.fixture
def exit_stack():
    """Close everything the fixtures opened, in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def fleet():
    """Create a migrated database on a real PostgreSQL server, shared by the tests of a process."""
    from kit import postgres
    from kit.fleet.homes import create_database

    with create_database(postgres.get_server_url()) as base:
        yield base


@pytest.fixture
def paths(tmp_path, exit_stack):
    """Open door 1, `kernel.root`: a bound root over `tmp_path/user` for opening names."""
    from muniment.kernel.binding import bind

    (tmp_path / "user").mkdir(mode=0o700)
    return exit_stack.enter_context(closing(bind("user", tmp_path / "user")))


@pytest.fixture
def store_bench(tmp_path, exit_stack):
    """Open door 2, `store.commit`: two roots with entries, an outside directory, a ledger; see
    `store_bench.commit`.
    """
    from kit.store.bench import create_store_bench

    return exit_stack.enter_context(create_store_bench(tmp_path))


@pytest.fixture
def make_judge(tmp_path):
    """Open door 3, policies: a function that returns the judge for the body of a policy file."""
    from kit.policy.files import SCOPES, write_policy
    from muniment.kernel.decide import PolicyEvaluator
    from muniment.policy.load import load_policy

    return lambda body: PolicyEvaluator(load_policy(write_policy(tmp_path / "own.toml", body=SCOPES + body)))


@pytest.fixture
def open_sandbox(tmp_path, exit_stack):
    """Open door 4, `Sandbox`: a function that opens one over `user` and `project`, next to `outside`."""
    from kit.memories import make_roots, make_strict_policy
    from muniment.sandbox.sandbox import Sandbox

    roots = make_roots(tmp_path)

    def create(**terms):
        policy = make_strict_policy(**({"require": "none"} if terms.get("in_process") else {}))
        return exit_stack.enter_context(Sandbox(policy, roots, **terms))

    return create


@pytest.fixture
def open_memory(tmp_path, exit_stack):
    """Open door 5, the library: a function that calls `muniment.open` with a home and a workspace."""
    import muniment

    def create(**terms):
        (tmp_path / "work" / ".git").mkdir(parents=True, exist_ok=True)
        return exit_stack.enter_context(muniment.open(tmp_path / "work", home=tmp_path / "home", **terms))

    return create


@pytest.fixture
def start_http(tmp_path, exit_stack):
    """Open door 6, HTTP: a function that starts a daemon in this process, with `open_client()`."""
    from kit.server.raw import start_local_daemon
    from muniment.client import Client

    def start(model=None, **terms):
        daemon = exit_stack.enter_context(start_local_daemon(tmp_path, model, **terms))
        address = {"url": daemon.url, "token": daemon.token, "workspace": daemon.work}
        daemon.open_client = lambda: exit_stack.enter_context(Client(**address))
        return daemon

    return start


@pytest.fixture
def run_command(tmp_path):
    """Open door 7, the command line: a function that returns the exit code, and the output or document."""
    from kit.cli.commands import run_in_process

    def run(*arguments, stdin=None, **environment):
        workspace = tmp_path / "work"
        (workspace / ".git").mkdir(parents=True, exist_ok=True)
        env = {"MUNIMENT_HOME": str(tmp_path / "home"), **environment}
        result = run_in_process([*arguments, f"--workspace={workspace}"], env, stdin)
        return result.exit_code, json.loads(result.stdout) if "--json" in arguments else result.output

    return run


@pytest.fixture
def connect_model(exit_stack):
    """Open door 8, the model protocol: a function that returns the adapter and a scripted server."""
    from muniment.agent.openai import OpenAIModel
    from muniment.testing.chat_server import ChatServer

    def create(answers, protocol="auto"):
        server = exit_stack.enter_context(ChatServer(answers))
        model = OpenAIModel("scripted", base_url=server.base_url, api_key="sk-test", protocol=protocol)
        return exit_stack.enter_context(closing(model)), server

    return create
