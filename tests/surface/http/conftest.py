"""Daemons for the tests: shared ones for tests that leave them unchanged, separate ones for the others.

`daemon` is shared by the tests of a file: they may add tasks and tokens to it, and must tolerate those of
others.
`checked_daemon` is also shared, never has a task, and logs no defect. A test that stops, blocks or fills a
daemon uses
`separate_daemon`, `model_daemon`, or, if a process is required, `start_daemon`.
"""

from __future__ import annotations

import re

import pytest

from kit.memories import count_descriptors
from kit.server.process import PausableModel, start_daemon_process, write_policy
from kit.server.raw import start_local_daemon

PAGES = ("https://app.example", "HTTP://Pages.Example:8080", "https://usual.example:443", "http://[::1]:3000")
"""Origins of pages that may call `checked_daemon`, as an operator wrote them."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with start_local_daemon(tmp_path_factory.mktemp("daemon")) as served:
        yield served


@pytest.fixture(scope="module")
def _shared_checked_daemon(tmp_path_factory):
    with start_local_daemon(
        tmp_path_factory.mktemp("quiet"), allow_hosts=("memory.example",), allow_origins=PAGES
    ) as served:
        assert served.client
        yield served


@pytest.fixture
def checked_daemon(_shared_checked_daemon):
    """Check after each attack that the daemon answers, is intact, has no leftovers and no tasks."""
    _shared_checked_daemon.wait_until(lambda: _shared_checked_daemon.count_connections() == 0)
    before = count_descriptors()
    yield _shared_checked_daemon
    _shared_checked_daemon.assert_healthy()
    _shared_checked_daemon.wait_until(lambda: _shared_checked_daemon.count_connections() == 0)
    assert count_descriptors() <= before
    shares = (
        _shared_checked_daemon.guard.in_progress,
        _shared_checked_daemon.guard.waiting,
        _shared_checked_daemon.guard.following,
    )
    assert [len(each) for each in (*shares, _shared_checked_daemon.daemon._server.server_state.tasks)] == [
        0
    ] * 4
    assert _shared_checked_daemon.send_request("GET", "/workspace/memory/tasks").json["tasks"] == []


@pytest.fixture
def separate_daemon(tmp_path, exit_stack):
    """Start a daemon that the test may break."""
    return exit_stack.enter_context(start_local_daemon(tmp_path, expects_defects=True))


@pytest.fixture
def model(exit_stack):
    """Start a language model that does its job unless the test blocks or replaces it."""
    return exit_stack.enter_context(PausableModel())


@pytest.fixture
def model_daemon(tmp_path, model, exit_stack):
    """Start a daemon that uses `model`."""
    return exit_stack.enter_context(start_local_daemon(tmp_path, model))


@pytest.fixture
def blocked_daemon(model_daemon, model):
    """Start such a daemon with a blocked model."""
    model.pause()
    return model_daemon


@pytest.fixture
def start_daemon(tmp_path_factory, exit_stack):
    """Start daemons as programs with temporary homes: `start_daemon(*flags)`."""
    return lambda *flags: exit_stack.enter_context(start_daemon_process(tmp_path_factory.mktemp("d"), *flags))


@pytest.fixture
def user_only_policy(tmp_path):
    """Write a policy like `strict` without a project scope."""
    path = write_policy(tmp_path, require='"none"')
    text = re.sub(r'(?m)^project = .*\n|,? "/project[^"]*"', "", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    return path
