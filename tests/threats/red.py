"""Red runs: a proof without its control must fail, or it proves nothing.

With `pytest --red` every pair of test function and control becomes one item. It runs the items of the test
with the control switched off until one of them fails in its call: then it passes. An earlier end by a
fixture, a programming error, a lost worker or a timeout proves nothing, and fails the red run. With `--slow`
all items run.
"""

import gc
import signal
import sys
import time
import warnings
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import pytest
from _pytest.runner import runtestprotocol

from muniment.errors import MunimentError, WorkerLost
from muniment.kernel.cancel import Deadline
from muniment.sandbox.fence.pool import get_shared_zygote
from muniment.sandbox.tools.remote import receive_hello
from threats.switches import load_controls, switch_off

SECONDS = 40.0
"""Time limit of a test whose control has no `hangs_after`."""


class TooSlow(pytest.fail.Exception):
    """A test that exceeded `SECONDS`."""


MISTAKES = (NameError, AttributeError, TypeError, ImportError, Warning, WorkerLost, TooSlow)
"""Errors that mean a broken replacement, not a broken guarantee."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a red run of one proof; `failed` is the expected one."""

    outcome: str
    reason: str


class RedProof(pytest.Item):
    """One proof under one control; `runtest` runs the test's own items."""

    def __init__(self, *, control, proofs, **options):
        super().__init__(**options)
        self.control, self.proofs = control, proofs
        self.verdict = Verdict("broken", "it was not run")
        self.add_marker(pytest.mark.timeout(0))  # The control has its own limit.

    def reportinfo(self):
        """Return the location of the proof."""
        path, line, _ = self.proofs[0].reportinfo()
        return path, line, self.name

    def runtest(self):
        """Run the proof without its control."""
        self.verdict = self._run_without_control()

    def _run_without_control(self):
        self._clear_caches()
        with switch_off(self.control.name):
            if self.control.in_workers and (problem := _find_worker_problem(self.control.name)):
                return Verdict("broken", f"no worker starts: {problem}")
            try:
                found = {verdict.outcome: verdict for verdict in self._run_items()}
            finally:
                # Fixtures of the module were also made without the control.
                self.session._setupstate.teardown_exact(None)
                self._clear_caches()
                _collect_leftovers()
        return next(found[each] for each in ("broken", "failed", "skipped", "passed") if each in found)

    def _run_items(self):
        """Yield the verdict on each item of the test, until the first failure; with `--slow`, on all."""
        for number, proof in enumerate(self.proofs):
            following = self.proofs[number + 1 : number + 2]
            with _limit_time(self.control.hangs_after):
                reports = runtestprotocol(proof, log=False, nextitem=next(iter(following), None))
            verdict = _make_verdict(proof, reports)
            yield verdict
            if verdict.outcome == "failed" and not self.config.getoption("--slow"):
                return

    def _clear_caches(self):
        """Clear the caches of tests and the kit (`functools.cache`), filled in other conditions."""
        kit = (module for name, module in sys.modules.items() if name.startswith("kit."))
        for module in [self.proofs[0].module, *kit]:
            for cached in vars(module).values():
                if hasattr(cached, "cache_clear") and getattr(cached, "__module__", "") == module.__name__:
                    cached.cache_clear()


def _collect_leftovers():
    """Collect what a failed proof left open, so that its warnings do not break the setup of a later proof."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _make_verdict(proof, reports):
    errors = {report.when: _take_error(report) for report in reports}
    for report in reports:
        error = errors[report.when]
        if report.failed and report.when == "call" and error is not None and not issubclass(error, MISTAKES):
            # Later errors of its fixtures follow from this one.
            return Verdict("failed", "")
        if report.failed:
            return Verdict("broken", f"{proof.name} broke in its {report.when}: {report.longreprtext}")
        if report.skipped:
            return Verdict("skipped", str(report.longrepr[2] if report.longrepr else ""))
    return Verdict("passed", "")


@cache
def _find_worker_problem(_control):
    """Return the reason why workers do not start without a control, or an empty text."""
    try:
        deadline = Deadline(time.monotonic() + SECONDS)
        with get_shared_zygote().spawn_worker({}, deadline) as worker:
            receive_hello(worker, deadline)
    except MunimentError as error:
        return str(error)
    return ""


@contextmanager
def _limit_time(hangs_after):
    seconds = hangs_after or SECONDS

    def raise_timeout(_number, _frame):
        raise (TooSlow if hangs_after is None else pytest.fail.Exception)(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_errors = {}


def _take_error(report):
    return _errors.pop((report.nodeid, report.when), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """Store the class of an error, because a report has only its text."""
    report = yield
    if call.excinfo is not None:
        _errors[report.nodeid, report.when] = call.excinfo.type
    return report


def make_red_items(items):
    """Return the proofs among `items`, once for each of their controls."""
    groups = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
            for name in sorted({mark.kwargs["control"] for mark in item.iter_markers("threat")}):
                groups[f"{item.parent.nodeid}::{item.originalname}", name].append(item)
    red = []
    for (_, name), proofs in sorted(groups.items()):
        options = {"control": load_controls()[name], "proofs": sorted(proofs, key=lambda proof: proof.nodeid)}
        title = f"{proofs[0].originalname}[without {name}]"
        red.append(RedProof.from_parent(proofs[0].parent, name=title, **options))
    return red


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):  # noqa: ARG001
    """Run a red proof and report its outcome."""
    if not isinstance(item, RedProof):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    call = pytest.CallInfo.from_call(item.runtest, "call")
    if call.excinfo is not None:
        item.verdict = Verdict("broken", str(call.excinfo.getrepr()))
    item.ihook.pytest_runtest_logreport(report=_make_report(item, call))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _make_report(item, call):
    path, line, _ = item.location
    without = f"with its control {item.control.name!r} switched off ({item.control.effect})"
    name, reason = item.proofs[0].originalname, item.verdict.reason
    outcome, longrepr = {
        "failed": ("passed", None),
        "passed": ("failed", f"{name} passed {without}: it proves nothing"),
        "skipped": ("skipped", (path, line, f"Skipped: {reason}")),
    }.get(item.verdict.outcome, ("failed", f"{name} is inconclusive {without}: {reason}"))
    times = {"duration": call.duration, "start": call.start, "stop": call.stop}
    return pytest.TestReport(item.nodeid, item.location, {item.name: 1}, outcome, longrepr, "call", **times)
