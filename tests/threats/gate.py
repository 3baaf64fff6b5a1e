"""The gate: a plugin that fails a run if its proofs do not support the threat model.

- A mark with an unknown threat or control ends the run before it begins.
- A `mitigated` threat whose proofs were selected fails the run if none of them passed, or one failed or was
  skipped; if the whole suite was selected, also if it has no proof.
- Proofs that need the slow profile count only if it was requested. If the file of a threat has `skips`, its
  proofs may be skipped.
- `--red` runs the proofs without their controls instead (`red.py`).
"""

from collections import defaultdict

import pytest
from hypothesis import Phase, settings

from threats import red
from threats.catalogue import REPOSITORY, threats
from threats.marks import Proof, proofs
from threats.switches import controls

_PROVES = "proves"

settings.register_profile(
    "red", max_examples=300, deadline=None, derandomize=True, database=None, report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),  # Failures need not be minimised.
)  # fmt: skip


def complaints(catalogue, outcomes, *, is_whole):
    """List the unproved threats of a run, one line each.

    Args:
        catalogue: all threats by id.
        outcomes: the outcomes of every selected proof, by threat.
        is_whole: True if the whole suite was selected.
    """
    found = []
    for threat in catalogue.values():
        ran = list(outcomes.get(threat.id, ()))
        if threat.status != "mitigated" or not (ran or is_whole):
            continue
        if "failed" in ran:
            found.append(f"{threat.id} is not mitigated: one of its proofs failed")
        elif "skipped" in ran and not threat.skips:
            found.append(f"{threat.id} is not proved: a proof was skipped, and its file gives no reason")
        elif "passed" not in ran and not (ran and threat.skips):
            found.append(f"{threat.id} is marked as mitigated, but none of its proofs passed")
    return found


def problem_with(mark: pytest.Mark, catalogue) -> str | None:
    """Return the problem of a mark, or None."""
    if len(mark.args) != 1 or set(mark.kwargs) != {"control"}:
        return 'write @pytest.mark.threat("T-…", control="…")'
    if mark.args[0] not in catalogue:
        return f"unknown threat {mark.args[0]!r}: it is not in threat-model/threats"
    if mark.kwargs["control"] not in controls():
        return f"unknown control {mark.kwargs['control']!r}: it is not in tests/threats/without"
    return None


def _unseen(item: pytest.Item, mark: pytest.Mark) -> str | None:
    """Return the reason why the pages omit a mark of this repository's tests, or None."""
    if not (isinstance(item, pytest.Function) and item.path.is_relative_to(REPOSITORY)):
        return None
    file = str(item.path.relative_to(REPOSITORY))
    is_seen = Proof(mark.args[0], mark.kwargs["control"], file, item.originalname) in proofs()
    return None if is_seen else "write the mark out, as a decorator of the test"


class Gate:
    """Collect outcomes of proofs, and judge them when the run ends."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[str]] = defaultdict(list)
        self._complaints: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        """Record the proved threats in the report, unless the proof is slow and was not requested."""
        report = yield
        counts = report.when == "call" or not report.passed
        is_unasked = item.get_closest_marker("slow") is not None and not item.config.getoption("--slow")
        if counts and not is_unasked:
            report.user_properties += [(_PROVES, mark.args[0]) for mark in item.iter_markers("threat")]
        return report

    def pytest_runtest_logreport(self, report):
        """Record the outcome of a proof from any process."""
        for name, value in report.user_properties:
            if name == _PROVES:
                self._outcomes[value].append(report.outcome)

    def pytest_sessionfinish(self, session, exitstatus):
        """Judge a complete run; if several processes share it, in the main process."""
        came_to_its_end = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        is_cut_short = session.shouldstop or session.shouldfail or session.config.option.collectonly
        if not came_to_its_end or is_cut_short or hasattr(session.config, "workerinput"):
            return
        self._complaints = complaints(threats(), self._outcomes, is_whole=_is_whole(session.config))
        if self._complaints:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        """Print the unproved threats."""
        if self._complaints:
            terminalreporter.section("threat model", red=True, bold=True)
            for line in self._complaints:
                terminalreporter.line(line, red=True)


def _is_whole(config: pytest.Config) -> bool:
    narrowing = ("keyword", "markexpr", "deselect", "lf", "ignore", "ignore_glob", "stepwise")
    narrowed = any(config.getoption(name, None) for name in narrowing)
    return config.args_source is config.ArgsSource.TESTPATHS and not narrowed


def pytest_addoption(parser):
    """Add `--red`."""
    parser.addoption("--red", action="store_true", help="run each proof without its control: it must fail")


def pytest_configure(config):
    """Register the gate, or the plugin for red runs."""
    if config.getoption("--red"):
        settings.load_profile("red")
        config.pluginmanager.register(red, "red")
    else:
        config.pluginmanager.register(Gate(), "gate")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Check marks against the threat model; in a red run, select only proofs."""
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    is_red = config.getoption("--red")
    for item in items if worker == "gw0" else ():  # One process checks for all.
        for mark in item.iter_markers("threat"):
            problem = problem_with(mark, threats()) or (None if is_red else _unseen(item, mark))
            if problem is not None:
                raise pytest.UsageError(f"{item.nodeid}: {problem}")
    if is_red:
        items[:] = red.red_items(items)
