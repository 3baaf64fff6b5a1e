"""The gate: a plugin that fails a test run whose proofs do not support the threat model.

- A mark with an unknown threat or control ends the run before it begins.
- If proofs of a `mitigated` threat were selected, the run fails unless at least one passed, and none
  failed or was skipped. If the whole suite was selected, it also fails for a threat without a proof.
- Slow proofs count only with `--slow`. Proofs of a threat with a reason in `skips` may be skipped.
- With `--red`, the proofs run without their controls instead (`red.py`).
"""

from collections import defaultdict

import pytest
from hypothesis import Phase, settings

from threats import red
from threats.catalogue import REPOSITORY, load_threats
from threats.marks import Proof, load_proofs
from threats.switches import load_controls

_PROVES = "proves"

settings.register_profile(
    "red", max_examples=300, deadline=None, derandomize=True, database=None, report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),  # No shrinking.
)  # fmt: skip


def find_unproved(catalogue, outcomes, *, is_whole):
    """Return a line for each threat that a run leaves unproved.

    Args:
        catalogue: all threats by id.
        outcomes: the outcomes of the selected proofs, by threat.
        is_whole: whether the whole suite was selected.
    """
    found = []
    for threat in catalogue.values():
        outcomes_of_threat = list(outcomes.get(threat.id, ()))
        if threat.status != "mitigated" or not (outcomes_of_threat or is_whole):
            continue
        if "failed" in outcomes_of_threat:
            found.append(f"{threat.id} is not mitigated: a proof of it failed")
        elif "skipped" in outcomes_of_threat and not threat.skips:
            found.append(f"{threat.id} is not proved: a proof was skipped without a reason in `skips`")
        elif "passed" not in outcomes_of_threat and not (outcomes_of_threat and threat.skips):
            found.append(f"{threat.id} is not proved: no proof of it passed")
    return found


def find_mark_problem(mark: pytest.Mark, catalogue) -> str | None:
    """Return the problem of a mark, or None if it is valid."""
    if len(mark.args) != 1 or set(mark.kwargs) != {"control"}:
        return 'write @pytest.mark.threat("T-…", control="…")'
    if mark.args[0] not in catalogue:
        return f"unknown threat {mark.args[0]!r}: not in threat-model/threats"
    if mark.kwargs["control"] not in load_controls():
        return f"unknown control {mark.kwargs['control']!r}: not in tests/threats/without"
    return None


def _find_hidden_mark(item: pytest.Item, mark: pytest.Mark) -> str | None:
    """Return the reason why the generated pages omit a mark of this repository, or None."""
    if not (isinstance(item, pytest.Function) and item.path.is_relative_to(REPOSITORY)):
        return None
    file = str(item.path.relative_to(REPOSITORY))
    is_seen = Proof(mark.args[0], mark.kwargs["control"], file, item.originalname) in load_proofs()
    return None if is_seen else "write the mark as a decorator of the test function"


class Gate:
    """Collects the outcomes of proofs, and checks them at the end of the run."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[str]] = defaultdict(list)
        self._unproved: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        """Add the proved threats to the report, except for a slow proof without `--slow`."""
        report = yield
        counts = report.when == "call" or not report.passed
        is_left_out = item.get_closest_marker("slow") is not None and not item.config.getoption("--slow")
        if counts and not is_left_out:
            report.user_properties += [(_PROVES, mark.args[0]) for mark in item.iter_markers("threat")]
        return report

    def pytest_runtest_logreport(self, report):
        """Store the outcome of a proof from any process."""
        for name, value in report.user_properties:
            if name == _PROVES:
                self._outcomes[value].append(report.outcome)

    def pytest_sessionfinish(self, session, exitstatus):
        """Check a complete run; of several processes, only the main one does it."""
        is_complete = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        is_partial = session.shouldstop or session.shouldfail or session.config.option.collectonly
        if not is_complete or is_partial or hasattr(session.config, "workerinput"):
            return
        self._unproved = find_unproved(
            load_threats(), self._outcomes, is_whole=_is_whole_suite(session.config)
        )
        if self._unproved:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        """Print the unproved threats."""
        if self._unproved:
            terminalreporter.section("threat model", red=True, bold=True)
            for line in self._unproved:
                terminalreporter.line(line, red=True)


def _is_whole_suite(config: pytest.Config) -> bool:
    filter_options = ("keyword", "markexpr", "deselect", "lf", "ignore", "ignore_glob", "stepwise")
    is_filtered = any(config.getoption(name, None) for name in filter_options)
    return config.args_source is config.ArgsSource.TESTPATHS and not is_filtered


def pytest_addoption(parser):
    """Add the option `--red`."""
    parser.addoption("--red", action="store_true", help="run each proof without its control: it must fail")


def pytest_configure(config):
    """Register the gate, or the plugin of red runs."""
    if config.getoption("--red"):
        settings.load_profile("red")
        config.pluginmanager.register(red, "red")
    else:
        config.pluginmanager.register(Gate(), "gate")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Check the marks against the threat model; in a red run, keep only proofs."""
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    is_red = config.getoption("--red")
    for item in items if worker == "gw0" else ():  # One process checks all items.
        for mark in item.iter_markers("threat"):
            problem = find_mark_problem(mark, load_threats()) or (
                None if is_red else _find_hidden_mark(item, mark)
            )
            if problem is not None:
                raise pytest.UsageError(f"{item.nodeid}: {problem}")
    if is_red:
        items[:] = red.make_red_items(items)
