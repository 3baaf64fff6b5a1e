"""Running daemons: one shared by the tests of a file that do not change it, others for tests that do.

`server` is shared by the tests of a file: they may add tasks and tokens, and must tolerate those of others.
`quiet` is also shared; it never has tasks and logs no defect. A test that stops, blocks or fills a daemon
uses a separate one: `alone`, `scripted`, or `start_daemon` if the claim is about a process.
"""

from __future__ import annotations

import re

import pytest

from kit.memories import descriptors
from kit.server.process import HeldModel, policy_file, serving
from kit.server.raw import running

PAGES = ("https://app.example", "HTTP://Pages.Example:8080", "https://usual.example:443", "http://[::1]:3000")
"""Origins that may call `quiet`, in the spelling of an operator."""


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
    """Return the idle daemon; check afterwards that it still responds, without defects, requests or tasks."""
    _quiet_daemon.until(lambda: _quiet_daemon.connections() == 0)
    before = descriptors()
    yield _quiet_daemon
    _quiet_daemon.check()
    _quiet_daemon.until(lambda: _quiet_daemon.connections() == 0)
    assert descriptors() <= before
    held = _quiet_daemon.guard.answering, _quiet_daemon.guard.waiting, _quiet_daemon.guard.following
    assert [len(each) for each in (*held, _quiet_daemon.daemon._server.server_state.tasks)] == [0] * 4
    assert _quiet_daemon.ask("GET", "/workspace/memory/tasks").json["tasks"] == []


@pytest.fixture
def alone(tmp_path, opened):
    """Start a separate daemon, which the test may break."""
    return opened.enter_context(running(tmp_path, broken=True))


@pytest.fixture
def model(opened):
    """Start a language model that does its job, unless the test pauses it or changes its behaviour."""
    return opened.enter_context(HeldModel())


@pytest.fixture
def scripted(tmp_path, model, opened):
    """Start a separate daemon that uses `model`."""
    return opened.enter_context(running(tmp_path, model))


@pytest.fixture
def held(scripted, model):
    """Return the same daemon, while its model does not respond."""
    model.hold()
    return scripted


@pytest.fixture
def start_daemon(tmp_path_factory, opened):
    """Return a function that starts daemon processes, each with a separate home: `start_daemon(*flags)`."""
    return lambda *flags: opened.enter_context(serving(tmp_path_factory.mktemp("d"), *flags))


@pytest.fixture
def user_alone(tmp_path):
    """Return the path of a policy like `strict` without projects."""
    path = policy_file(tmp_path, require='"none"')
    text = re.sub(r'(?m)^project = .*\n|,? "/project[^"]*"', "", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    return path
