"""Daemons that run: one for the tests of a file that leave it as it was, others for the tests that do not.

`server` is shared by the tests of a file: they may add tasks and tokens to it, and must bear those of others.
`quiet` is shared as well, holds no task ever, and logs no defect. A test that stops, holds or fills a daemon
has its own: `alone`, `scripted`, or, where the claim is about a process, `start_daemon`.
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
    """After each attack on it the daemon still answers, and nothing broke in it, nor stays, nor was done."""
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
    """A daemon of the test's own, which it may break."""
    return opened.enter_context(running(tmp_path, broken=True))


@pytest.fixture
def model(opened):
    """A language model that does its job, unless the test holds it or gives it another mind."""
    return opened.enter_context(HeldModel())


@pytest.fixture
def scripted(tmp_path, model, opened):
    """A daemon of the test's own that `model` thinks for."""
    return opened.enter_context(running(tmp_path, model))


@pytest.fixture
def held(scripted, model):
    """Such a daemon, whose model does not answer yet."""
    model.hold()
    return scripted


@pytest.fixture
def start_daemon(tmp_path_factory, opened):
    """Starts daemons as programs, each in a home of its own: `start_daemon(*flags)`."""
    return lambda *flags: opened.enter_context(serving(tmp_path_factory.mktemp("d"), *flags))


@pytest.fixture
def user_alone(tmp_path):
    """A policy like `strict` that knows no project."""
    path = policy_file(tmp_path, require='"none"')
    text = re.sub(r'(?m)^project = .*\n|,? "/project[^"]*"', "", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    return path
