"""Daemons for the tests: shared ones for tests that leave them unchanged, separate ones for the others.

`daemon` is shared by the tests of a file: they may add tasks and tokens to it, and must tolerate those of
others.
`quiet` is also shared, never has a task, and logs no defect. A test that stops, blocks or fills a daemon uses
`alone`, `scripted`, or, if a process is required, `start_daemon`.
"""

from __future__ import annotations

import re

import pytest

from kit.memories import descriptors
from kit.server.process import HeldModel, policy_file, serving
from kit.server.raw import running

PAGES = ("https://app.example", "HTTP://Pages.Example:8080", "https://usual.example:443", "http://[::1]:3000")
"""Origins of pages that may call `quiet`, as an operator wrote them."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("daemon")) as served:
        yield served


@pytest.fixture(scope="module")
def _quiet_daemon(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("quiet"), allow_hosts=("memory.example",), allow_origins=PAGES
    ) as served:
        assert served.client
        yield served


@pytest.fixture
def quiet(_quiet_daemon):
    """Check after each attack that the daemon answers, is intact, has no leftovers and no tasks."""
    _quiet_daemon.until(lambda: _quiet_daemon.connections() == 0)
    before = descriptors()
    yield _quiet_daemon
    _quiet_daemon.check()
    _quiet_daemon.until(lambda: _quiet_daemon.connections() == 0)
    assert descriptors() <= before
    shares = _quiet_daemon.guard.answering, _quiet_daemon.guard.waiting, _quiet_daemon.guard.following
    assert [len(each) for each in (*shares, _quiet_daemon.daemon._server.server_state.tasks)] == [0] * 4
    assert _quiet_daemon.ask("GET", "/workspace/memory/tasks").json["tasks"] == []


@pytest.fixture
def alone(tmp_path, opened):
    """Start a daemon that the test may break."""
    return opened.enter_context(running(tmp_path, broken=True))


@pytest.fixture
def model(opened):
    """Start a language model that does its job unless the test blocks or replaces it."""
    return opened.enter_context(HeldModel())


@pytest.fixture
def scripted(tmp_path, model, opened):
    """Start a daemon that uses `model`."""
    return opened.enter_context(running(tmp_path, model))


@pytest.fixture
def held(scripted, model):
    """Start such a daemon with a blocked model."""
    model.hold()
    return scripted


@pytest.fixture
def start_daemon(tmp_path_factory, opened):
    """Start daemons as programs with temporary homes: `start_daemon(*flags)`."""
    return lambda *flags: opened.enter_context(serving(tmp_path_factory.mktemp("d"), *flags))


@pytest.fixture
def user_alone(tmp_path):
    """Write a policy like `strict` without a project scope."""
    path = policy_file(tmp_path, require='"none"')
    text = re.sub(r'(?m)^project = .*\n|,? "/project[^"]*"', "", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    return path
