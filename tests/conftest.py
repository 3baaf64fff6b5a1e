"""Profiles of the property tests, the `--slow` option, and fixtures for all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings

# The threats apply to Linux only, not to systems simulated by `kit.fake_platform`.
pytest_plugins = ["kit.entry_points", *(["threats.gate"] if sys.platform == "linux" else [])]

# A shell ignores it for jobs with `&`; programs inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("quick", max_examples=20, stateful_step_count=25, deadline=None, derandomize=True)
settings.register_profile(
    "thorough", max_examples=200, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


class _LoggerDict(dict):
    """Loggers by name. pytest iterates over them before each test, while threads of daemons may add one."""

    def values(self):
        return list(super().values())


logging.root.manager.loggerDict = _LoggerDict(logging.root.manager.loggerDict)

LONG = {
    f"test_{name}.py"
    for name in (
        *("chaos", "corpus", "away", "core", "elsewhere", "store"),
        *("tools", "commit", "mistaken_paths", "same_everywhere", "gate"),
    )
}
"""Files with a slow test: they run first, so that no process waits for the other at the end."""


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run slow tests, and every case of each sweep")


def pytest_ignore_collect(collection_path, config):
    """Collect only files with threat marks in a red run."""
    if config.getoption("--red", default=False) and collection_path.suffix == ".py":
        return "mark.threat(" not in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Disable garbage collection during test collection: it takes a third of the time and frees little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Reverse the files in one of two processes, so that each compiles half of them.

    Tests are shuffled afterwards, in the same way in both.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", {}).get("workerid")
    is_shuffled = collector.config.getoption("randomly_reorganize", default=False)
    if worker == "gw1" and is_shuffled and isinstance(collector, pytest.Session | pytest.Directory):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(config, items):
    """Deselect slow tests, and all but a sample of each sweep; a red run keeps every case of a sweep."""
    items.sort(key=lambda item: item.path.name not in LONG)
    if config.getoption("--slow"):
        return
    sweeps = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None and not config.getoption("--red", default=False):
            sweeps[item.parent.nodeid, item.originalname].append(item)
    left_out = {item for sweep in sweeps.values() for item in list_unsampled(sweep)}
    left_out |= {item for item in items if item.get_closest_marker("slow") is not None}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def list_unsampled(sweep):
    """Return the cases of a sweep outside its sample. The mark sets the size of the sample, spread evenly."""
    (wanted,) = sweep[0].get_closest_marker("sweep").args
    ordered = sorted(sweep, key=lambda item: tuple(item.callspec.indices.values()))
    if len(ordered) <= wanted:
        return []
    sample = {number * (len(ordered) - 1) // max(1, wanted - 1) for number in range(wanted)}
    return [item for number, item in enumerate(ordered) if number not in sample]


def pytest_collection_finish():
    """Freeze all collected objects: later collections then cost only what a test left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def zygote():
    """Start a zygote for one file, whose tests may kill it."""
    from muniment.sandbox.fence.pool import Zygote  # Imported here: `kit.fake_platform` cannot import it.

    with Zygote() as zygote:
        zygote.start()
        yield zygote


@pytest.fixture(scope="session", autouse=True)
def _template_ledger(request, tmp_path_factory):
    """Copy a new ledger from a template created by the product: creating its tables takes twice as long.

    Not in a red run, in which the product may create a different one.
    """
    if sys.platform != "linux" or request.config.getoption("--red"):
        yield
        return
    from muniment.store import state

    def open_ledger(path, *args, **more):
        if not args and not more and not path.exists():
            new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(new, made)
            os.close(new)
        return real(path, *args, **more)

    real, template = state.open_ledger, tmp_path_factory.mktemp("prepared") / state.LEDGER_NAME
    real(template).close()
    made = template.read_bytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state, "open_ledger", open_ledger)
        yield


@pytest.fixture(scope="session", autouse=True)
def _shared_ssl_context():
    """Share trusted certificates between HTTP clients: reading them takes as long as starting a daemon."""
    if sys.platform != "linux":
        yield
        return
    from httpx2._transports import default

    def create_context(verify=True, cert=None, trust_env=True):  # noqa: FBT002  signature of the library
        is_usual = (verify, cert, trust_env) == (True, None, False)
        return usual if is_usual else real(verify=verify, cert=cert, trust_env=trust_env)

    real = default.create_ssl_context
    usual = real(trust_env=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(default, "create_ssl_context", create_context)
        yield


@pytest.fixture(autouse=True)
def _restored_logging():
    """Restore logging and the Ctrl-C handler, which commands may change."""
    logger, before = logging.getLogger("muniment"), signal.getsignal(signal.SIGINT)
    saved = (logger.propagate, list(logger.handlers), logger.level)
    yield
    logger.propagate, logger.handlers = saved[0], saved[1]
    logger.setLevel(saved[2])
    signal.signal(signal.SIGINT, before)
