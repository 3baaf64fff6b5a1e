"""Run the corpus against targets: many cases, a few drivers at a time, in throwaway directories.

A driver is a process that runs cases. Each target first gets one ordinary call. A target that does not start,
does not respond or cannot read a file is reported as `unusable` and not tested further: it would pass every
attack. The other targets are not affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

from muniment.testing.conformance.targets import Target, judge_outcome
from muniment.testing.corpus import Case, Corpus, Failure, FailureKind
from muniment.testing.corpus.running import (
    ABOUT,
    HANG_SECONDS,
    DriverGroup,
    Failures,
    build_driver_command,
    run_driver,
)
from muniment.testing.corpus.stage import BAD, CaseOutcome

PROBE: Final = "ok-read-relative"
"""The id of the case with the ordinary call that each target gets first."""

PROBE_SECONDS: Final = 60.0
"""Seconds that the first call may take: `npx` may have to download the server."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one case.

    Attributes:
        case: the case, run or skipped.
        outcome: the outcome of the case.
        failures: the failures of the case; for a skipped case, the reason.
        is_beyond_claims: whether the failures are outside the claims of the target's authors.
    """

    case: Case
    outcome: CaseOutcome
    failures: Sequence[Failure]
    is_beyond_claims: bool


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a target.

    Attributes:
        target: the tested tool.
        about: the name that the target reports.
        findings: one finding for each case, in the order of the cases; empty if the target is unusable.
        unusable: why the target was not tested; None: it was tested.
    """

    target: Target
    about: str
    findings: Sequence[Finding] = field(default=())
    unusable: str | None = None

    def count_outcomes(self, of_class: str | None = None) -> Counter[CaseOutcome]:
        """Return the number of cases for each outcome, for the class `of_class` or all classes."""
        findings = (each for each in self.findings if of_class in {None, each.case["class"]})
        return Counter(each.outcome for each in findings)

    @property
    def is_passed(self) -> bool:
        """Return whether the target fulfils its promises and at least one case ran.

        Muniment must pass every case. For another tool, no outcome may be in `BAD`.
        """
        outcomes = set(self.count_outcomes())
        if self.target.promises.is_exact:
            return outcomes == {CaseOutcome.PASSED}
        return not outcomes & BAD and bool(outcomes - {CaseOutcome.SKIPPED})


def select_cases(
    corpus: Corpus, *, classes: Collection[str] = (), ids: Collection[str] = ()
) -> Mapping[str, Case]:
    """Return the cases of the given classes and the cases with the given ids; all cases if both are empty.

    Raises:
        KeyError: unknown class or id.
    """
    known = {case["class"] for case in corpus.cases.values()}
    for name, choices in (
        *((name, known) for name in classes),
        *((name, corpus.cases.keys()) for name in ids),
    ):
        if name not in choices:
            raise KeyError(name)
    return {
        case_id: case
        for case_id, case in corpus.cases.items()
        if not (classes or ids) or case["class"] in classes or case_id in ids
    }


def run_cases(
    targets: Sequence[Target],
    corpus: Corpus,
    cases: Mapping[str, Case],
    *,
    jobs: int,
    on_case_ended: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Run the cases against every target, and return one result for each target.

    Args:
        targets: the targets, in the order of the results.
        corpus: the corpus of the cases, with the canary.
        cases: the cases by id, as `select_cases` returns them.
        jobs: number of concurrent drivers, for all targets together.
        on_case_ended: called after each case, from any thread.

    Raises:
        OSError: the temporary directory cannot be used.
        KeyboardInterrupt: the user interrupted the run; all drivers are stopped and the directory is removed.
    """
    drivers = DriverGroup()
    with TemporaryDirectory(prefix="muniment-conformance-") as directory, ThreadPoolExecutor(jobs) as pool:
        run = _Run(Path(directory).resolve(), corpus, drivers, on_case_ended)
        try:
            usable = list(pool.map(run.probe, targets))
            parts = [
                pool.submit(run.run_part, target, list(ids)[number::jobs])
                for target, (_, unusable) in zip(targets, usable, strict=True)
                if unusable is None
                for ids in [[case_id for case_id, case in cases.items() if target.find_missing(case) is None]]
                for number in range(jobs)
            ]
            found = [part.result() for part in parts]
        except BaseException:
            drivers.kill()
            pool.shutdown(cancel_futures=True)
            raise
    failures_by_case = {
        (target.spec, case_id): each for target, part in found for case_id, each in part.items()
    }
    return [
        Result(target, about, () if unusable else _build_findings(target, cases, failures_by_case), unusable)
        for target, (about, unusable) in zip(targets, usable, strict=True)
    ]


def _build_findings(
    target: Target, cases: Mapping[str, Case], failures_by_case: Mapping[tuple[str, str], list[Failure]]
) -> list[Finding]:
    findings = []
    for case_id, case in cases.items():
        missing = target.find_missing(case)
        failures = (
            failures_by_case[target.spec, case_id]
            if missing is None
            else [Failure(FailureKind.INEXPRESSIBLE, missing)]
        )
        outcome = judge_outcome(case, failures, target.promises)
        bad = {failure.kind for failure in failures if failure.kind.outcome in BAD}
        findings.append(Finding(case, outcome, failures, target.claims.exclude(case, bad)))
    return findings


@dataclass(frozen=True, slots=True)
class _Run:
    """The state that all drivers of a run share."""

    directory: Path
    corpus: Corpus
    drivers: DriverGroup
    on_case_ended: Callable[[], None]

    def probe(self, target: Target) -> tuple[str, str | None]:
        """Make the ordinary call to a target.

        Returns:
            The name that the target reports, and why the target is unusable (None: it is usable).
        """
        directory, failures = self._drive(target, [PROBE], PROBE_SECONDS)
        found = failures.get(PROBE, [])
        outcome = judge_outcome(self.corpus.cases[PROBE], found, target.promises)
        about = directory / ABOUT
        name = about.read_text() if about.exists() else target.name
        unusable = outcome in {CaseOutcome.HUNG, CaseOutcome.CRASHED, CaseOutcome.BROKEN, CaseOutcome.SKIPPED}
        return name, _last_line(found[0]) if unusable else None

    def run_part(self, target: Target, ids: Sequence[str]) -> tuple[Target, Failures]:
        """Run some cases of a target, one after the other, and return their failures."""
        _, failures = self._drive(target, ids, HANG_SECONDS)
        return target, failures

    def _drive(self, target: Target, ids: Sequence[str], hang_seconds: float) -> tuple[Path, Failures]:
        directory = Path(mkdtemp(dir=self.directory))
        failures = run_driver(
            build_driver_command(target.spec, directory),
            ids,
            canary=self.corpus.canary,
            hang_seconds=hang_seconds,
            on_case_ended=lambda _: self.on_case_ended(),
            drivers=self.drivers,
        )
        return directory, failures


def _last_line(failure: Failure) -> str:
    """Return the last line of a failure, which is the useful part of a traceback or an error output."""
    return (failure.text.strip().splitlines() or [""])[-1].strip()
