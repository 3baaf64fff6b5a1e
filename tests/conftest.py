"""Profiles of the property tests, the switch for the slow ones, and a zygote of one's own."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings

# The threats are those of Linux, which `kit.elsewhere` is not.
pytest_plugins = ["kit.doors", *(["threats.gate"] if sys.platform == "linux" else [])]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # Of what a shell runs behind `&`; programs inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("quick", max_examples=20, stateful_step_count=25, deadline=None, derandomize=True)
settings.register_profile(
    "thorough", max_examples=200, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


class _LoggersNow(dict):
    """Loggers by name. pytest goes through them before each test, while threads of daemons may add one."""

    def values(self):
        return list(super().values())


logging.root.manager.loggerDict = _LoggersNow(logging.root.manager.loggerDict)

LONG = {
    f"test_{name}.py"
    for name in (
        *("chaos", "corpus", "away", "core", "elsewhere", "store"),
        *("tools", "commit", "mistaken_paths", "same_everywhere", "gate"),
    )
}
"""Files with a test that takes long: first, so that neither process waits at the end for the other."""


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run what is slow, and all of every sweep")


def pytest_ignore_collect(collection_path, config):
    """A red run reads the files that hold proofs alone."""
    if config.getoption("--red", default=False) and collection_path.suffix == ".py":
        return "mark.threat(" not in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without collecting garbage, which takes a third of the time and finds little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Have one of two processes read the files from the end, so that each compiles half of them.

    Tests are shuffled afterwards, in the same way in both.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", {}).get("workerid")
    is_shuffled = collector.config.getoption("randomly_reorganize", default=False)
    if worker == "gw1" and is_shuffled and isinstance(collector, pytest.Session | pytest.Directory):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(config, items):
    """Leave out what is slow, and of sweeps all but a sample; a red run looks for what fails among all."""
    items.sort(key=lambda item: item.path.name not in LONG)
    if config.getoption("--slow"):
        return
    sweeps = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None and not config.getoption("--red", default=False):
            sweeps[item.parent.nodeid, item.originalname].append(item)
    left_out = {item for sweep in sweeps.values() for item in beyond_sample(sweep)}
    left_out |= {item for item in items if item.get_closest_marker("slow") is not None}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def beyond_sample(sweep):
    """The items of a sweep that are not of its sample: so many as its mark says, spread over all."""
    (wanted,) = sweep[0].get_closest_marker("sweep").args
    ordered = sorted(sweep, key=lambda item: tuple(item.callspec.indices.values()))
    if len(ordered) <= wanted:
        return []
    sample = {number * (len(ordered) - 1) // max(1, wanted - 1) for number in range(wanted)}
    return [item for number, item in enumerate(ordered) if number not in sample]


def pytest_collection_finish():
    """Set aside all that was collected: a collection then costs what a test left, not ten thousand tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def zygote():
    """A zygote that only the tests of one file use; one of them may have brought it down."""
    from muniment.sandbox.fence.pool import Zygote  # Here: in `kit.elsewhere` there is none.

    with Zygote() as zygote:
        zygote.start()
        yield zygote


@pytest.fixture(scope="session", autouse=True)
def _prepared(request, tmp_path_factory):
    """A new ledger is a copy of one that the product made: to make every table anew takes twice as long.

    Not in a red run, in which the product may make another one.
    """
    if sys.platform != "linux" or request.config.getoption("--red"):
        yield
        return
    from muniment.store import state

    def opened(path, *given):
        if not given and not path.exists():
            new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(new, made)
            os.close(new)
        return real(path, *given)

    real, template = state.open_ledger, tmp_path_factory.mktemp("prepared") / state.LEDGER_NAME
    real(template).close()
    made = template.read_bytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state, "open_ledger", opened)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_trust():
    """Clients of HTTP share what they trust: to read all certificates takes as long as to start a daemon."""
    if sys.platform != "linux":
        yield
        return
    from httpx2._transports import default

    def shared(verify=True, cert=None, trust_env=True):  # noqa: FBT002  as theirs
        is_usual = (verify, cert, trust_env) == (True, None, False)
        return usual if is_usual else real(verify=verify, cert=cert, trust_env=trust_env)

    real = default.create_ssl_context
    usual = real(trust_env=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(default, "create_ssl_context", shared)
        yield


@pytest.fixture(autouse=True)
def _quiet():
    """Commands set up logging and a handler for Ctrl-C, as programs may."""
    logger, before = logging.getLogger("muniment"), signal.getsignal(signal.SIGINT)
    kept = (logger.propagate, list(logger.handlers), logger.level)
    yield
    logger.propagate, logger.handlers = kept[0], kept[1]
    logger.setLevel(kept[2])
    signal.signal(signal.SIGINT, before)
