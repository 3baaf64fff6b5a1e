"""The gate: a plugin that fails a run whose proofs do not bear out the threat model.

- A mark that names no threat or no control ends the run before it begins.
- A `mitigated` threat whose proofs were selected fails the run if none of them passed, or one failed or was
  skipped; if the whole suite was selected, also if it has no proof at all.
- Proofs that need the slow profile count only where it is asked for. A threat that says in `skips` why some
  systems cannot run a proof may have skipped ones.
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
    phases=(Phase.explicit, Phase.generate),  # What fails need not be made small.
)  # fmt: skip


def complaints(catalogue, outcomes, *, is_whole):
    """What a run leaves unproved, a line each.

    Args:
        catalogue: all threats by id.
        outcomes: of every proof that was selected, by threat.
        is_whole: whether the whole suite was.
    """
    found = []
    for threat in catalogue.values():
        ran = list(outcomes.get(threat.id, ()))
        if threat.status != "mitigated" or not (ran or is_whole):
            continue
        if "failed" in ran:
            found.append(f"{threat.id} is not mitigated: a proof of it failed")
        elif "skipped" in ran and not threat.skips:
            found.append(f"{threat.id} is not proved: a proof was skipped, and its file gives no reason")
        elif "passed" not in ran and not (ran and threat.skips):
            found.append(f"{threat.id} is called mitigated, and no proof of it passed")
    return found


def problem_with(mark: pytest.Mark, catalogue) -> str | None:
    """Why a mark is none, or None."""
    if len(mark.args) != 1 or set(mark.kwargs) != {"control"}:
        return 'write @pytest.mark.threat("T-…", control="…")'
    if mark.args[0] not in catalogue:
        return f"there is no threat {mark.args[0]!r} in threat-model/threats"
    if mark.kwargs["control"] not in controls():
        return f"there is no control {mark.kwargs['control']!r} in tests/threats/without"
    return None


def _unseen(item: pytest.Item, mark: pytest.Mark) -> str | None:
    """Why the pages do not show a mark of our own tests, or None."""
    if not (isinstance(item, pytest.Function) and item.path.is_relative_to(REPOSITORY)):
        return None
    file = str(item.path.relative_to(REPOSITORY))
    is_seen = Proof(mark.args[0], mark.kwargs["control"], file, item.originalname) in proofs()
    return None if is_seen else "write the mark out, as a decorator of the test"


class Gate:
    """Collects outcomes of proofs, and judges them when the run ends."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[str]] = defaultdict(list)
        self._complaints: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        """Note in the report what it proves, unless it is of a slow proof that nobody asked for."""
        report = yield
        counts = report.when == "call" or not report.passed
        is_unasked = item.get_closest_marker("slow") is not None and not item.config.getoption("--slow")
        if counts and not is_unasked:
            report.user_properties += [(_PROVES, mark.args[0]) for mark in item.iter_markers("threat")]
        return report

    def pytest_runtest_logreport(self, report):
        """Note how a proof went, in whatever process it ran."""
        for name, value in report.user_properties:
            if name == _PROVES:
                self._outcomes[value].append(report.outcome)

    def pytest_sessionfinish(self, session, exitstatus):
        """Judge a run that came to its end; where several processes share it, the one that hears of all."""
        came_to_its_end = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        is_cut_short = session.shouldstop or session.shouldfail or session.config.option.collectonly
        if not came_to_its_end or is_cut_short or hasattr(session.config, "workerinput"):
            return
        self._complaints = complaints(threats(), self._outcomes, is_whole=_is_whole(session.config))
        if self._complaints:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        """Say what is unproved."""
        if self._complaints:
            terminalreporter.section("threat model", red=True, bold=True)
            for line in self._complaints:
                terminalreporter.line(line, red=True)


def _is_whole(config: pytest.Config) -> bool:
    narrowing = ("keyword", "markexpr", "deselect", "lf", "ignore", "ignore_glob", "stepwise")
    narrowed = any(config.getoption(name, None) for name in narrowing)
    return config.args_source is config.ArgsSource.TESTPATHS and not narrowed


def pytest_addoption(parser):
    """`--red`."""
    parser.addoption("--red", action="store_true", help="run each proof without its control: it must fail")


def pytest_configure(config):
    """Judge the run, or make it a red one."""
    if config.getoption("--red"):
        settings.load_profile("red")
        config.pluginmanager.register(red, "red")
    else:
        config.pluginmanager.register(Gate(), "gate")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Hold marks to the threat model; in a red run, keep nothing but proofs."""
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    is_red = config.getoption("--red")
    for item in items if worker == "gw0" else ():  # One process looks for all.
        for mark in item.iter_markers("threat"):
            problem = problem_with(mark, threats()) or (None if is_red else _unseen(item, mark))
            if problem is not None:
                raise pytest.UsageError(f"{item.nodeid}: {problem}")
    if is_red:
        items[:] = red.red_items(items)
