"""Red runs: a proof without its control must fail, or it proves nothing.

Under `pytest --red` every (test function, control) pair becomes one item. It runs the test's own items with
the control switched off until one of them fails in its call; then the red proof passes. If an item fails
earlier, in a fixture, by a programming error, by a lost worker or by a timeout, the red run fails. With
`--slow` all items run.
"""

import signal
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import pytest
from _pytest.runner import runtestprotocol

from muniment.errors import MunimentError, WorkerLost
from muniment.kernel.cancel import Patience
from muniment.sandbox.fence.pool import shared_zygote
from muniment.sandbox.tools.remote import greet
from threats.switches import controls, switched_off

SECONDS = 40.0
"""The time limit of a test, unless its control has `hangs_after`."""


class TooSlow(pytest.fail.Exception):
    """A test that was still running after `SECONDS`."""


MISTAKES = (NameError, AttributeError, TypeError, ImportError, Warning, WorkerLost, TooSlow)
"""Errors that show a broken switch instead of a broken guarantee."""


@dataclass(frozen=True)
class Verdict:
    """The result of a red run of one proof; `failed` is the expected one."""

    outcome: str
    why: str


class RedProof(pytest.Item):
    """One proof under one control; `runtest` runs the test's own items."""

    def __init__(self, *, control, proofs, **terms):
        super().__init__(**terms)
        self.control, self.proofs = control, proofs
        self.verdict = Verdict("broken", "it did not run")
        self.add_marker(pytest.mark.timeout(0))  # The control has its own time limit.

    def reportinfo(self):
        """Return the location of the proof."""
        path, line, _ = self.proofs[0].reportinfo()
        return path, line, self.name

    def runtest(self):
        """Run the proof without its control."""
        self.verdict = self._judged()

    def _judged(self):
        self._forget()
        with switched_off(self.control.name):
            if self.control.in_workers and (problem := _problem_of_workers(self.control.name)):
                return Verdict("broken", f"no worker is available: {problem}")
            try:
                found = {verdict.outcome: verdict for verdict in self._each_judged()}
            finally:
                # Fixtures of the module were also created without the control.
                self.session._setupstate.teardown_exact(None)
                self._forget()
        return next(found[each] for each in ("broken", "failed", "skipped", "passed") if each in found)

    def _each_judged(self):
        """Yield the verdict of each item, up to the first that failed; with `--slow`, of all."""
        for number, proof in enumerate(self.proofs):
            following = self.proofs[number + 1 : number + 2]
            with _limited(self.control.hangs_after):
                reports = runtestprotocol(proof, log=False, nextitem=next(iter(following), None))
            verdict = _verdict(proof, reports)
            yield verdict
            if verdict.outcome == "failed" and not self.config.getoption("--slow"):
                return

    def _forget(self):
        """Clear the caches (`functools.cache`) of tests and the kit: their values depend on the control."""
        kit = (module for name, module in sys.modules.items() if name.startswith("kit."))
        for module in [self.proofs[0].module, *kit]:
            for kept in vars(module).values():
                if hasattr(kept, "cache_clear") and getattr(kept, "__module__", "") == module.__name__:
                    kept.cache_clear()


def _verdict(proof, reports):
    errors = {report.when: _error(report) for report in reports}
    for report in reports:
        error = errors[report.when]
        if report.failed and report.when == "call" and error is not None and not issubclass(error, MISTAKES):
            # Errors of its fixtures afterwards are consequences.
            return Verdict("failed", "")
        if report.failed:
            return Verdict("broken", f"{proof.name} broke in its {report.when}: {report.longreprtext}")
        if report.skipped:
            return Verdict("skipped", str(report.longrepr[2] if report.longrepr else ""))
    return Verdict("passed", "")


@cache
def _problem_of_workers(_control):
    """Return the reason why workers do not start while a control is off; empty if they do."""
    try:
        patience = Patience(time.monotonic() + SECONDS)
        with shared_zygote().spawn({}, patience) as worker:
            greet(worker, patience)
    except MunimentError as error:
        return str(error)
    return ""


@contextmanager
def _limited(hangs_after):
    seconds = hangs_after or SECONDS

    def ring(_number, _frame):
        raise (TooSlow if hangs_after is None else pytest.fail.Exception)(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_errors = {}


def _error(report):
    return _errors.pop((report.nodeid, report.when), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """Store the class of an error, which a report contains only as text."""
    report = yield
    if call.excinfo is not None:
        _errors[report.nodeid, report.when] = call.excinfo.type
    return report


def red_items(items):
    """Return the proofs among `items`, one for each of their controls."""
    groups = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
            for name in sorted({mark.kwargs["control"] for mark in item.iter_markers("threat")}):
                groups[f"{item.parent.nodeid}::{item.originalname}", name].append(item)
    red = []
    for (_, name), proofs in sorted(groups.items()):
        terms = {"control": controls()[name], "proofs": sorted(proofs, key=lambda proof: proof.nodeid)}
        title = f"{proofs[0].originalname}[without {name}]"
        red.append(RedProof.from_parent(proofs[0].parent, name=title, **terms))
    return red


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):  # noqa: ARG001
    """Run a red proof and report its result."""
    if not isinstance(item, RedProof):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    call = pytest.CallInfo.from_call(item.runtest, "call")
    if call.excinfo is not None:
        item.verdict = Verdict("broken", str(call.excinfo.getrepr()))
    item.ihook.pytest_runtest_logreport(report=_report(item, call))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _report(item, call):
    path, line, _ = item.location
    without = f"with its control {item.control.name!r} switched off ({item.control.what})"
    name, why = item.proofs[0].originalname, item.verdict.why
    outcome, longrepr = {
        "failed": ("passed", None),
        "passed": ("failed", f"{name} passed {without}: it proves nothing"),
        "skipped": ("skipped", (path, line, f"Skipped: {why}")),
    }.get(item.verdict.outcome, ("failed", f"{name} has no valid result {without}: {why}"))
    times = {"duration": call.duration, "start": call.start, "stop": call.stop}
    return pytest.TestReport(item.nodeid, item.location, {item.name: 1}, outcome, longrepr, "call", **times)
