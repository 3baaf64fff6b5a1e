"""A trial: every attempt in a worker of its own, behind the fence that workers have here, and its outcome.

- R1 an attempt that succeeded although a layer holds that should have stopped it is `NOT_HELD`, whatever
  the reason.
- R2 what cannot be tried here, and what fails where no layer that holds is said to stop it, is said, with
  the reason; it counts neither way.
- R3 a trial leaves nothing behind, whichever way it ends.

The workers come from a zygote of the trial's own, since most of them die by a signal, after which the pool
would replace it. Attacked by `tests/confine/test_attempts.py`, with each layer taken away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from muniment.confine.attempts.attempt import DONE, UNTRIED, Attempt
from muniment.confine.attempts.processes import EXECUTED
from muniment.confine.attempts.service import ROOT
from muniment.confine.attempts.stage import Stage, standing
from muniment.confine.attempts.table import ATTEMPTS
from muniment.confine.cancel import Patience
from muniment.confine.evidence import Held, read_status, what_holds
from muniment.confine.landlock import offered_abi
from muniment.confine.pool import import_directories
from muniment.confine.process import ZygoteProcess
from muniment.confine.worker import Worker, describe
from muniment.errors import DeadlineExceeded, WorkerLost
from muniment.names import FenceLayer, Scope

SERVICE: Final = "muniment.confine.attempts.service:serve"

ATTEMPT_SECONDS: Final = 5.0
"""Seconds for one attempt, from where its worker is ready; it takes milliseconds."""

REFUSALS: Final = frozenset({"EACCES", "EPERM", "SIGSYS", "EAGAIN", "EFBIG", "EMFILE", "ENOMEM"})
"""What the layers answer, each in its way."""


class Verdict(StrEnum):
    """What an outcome means."""

    HELD = "held"
    NOT_HELD = "not held"
    """It succeeded although a layer holds that stops it."""
    OPEN = "open"
    """It succeeded, and nothing that holds here is said to stop it."""
    UNTRIED = "not tried"
    """Nothing here shows what would stop it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one attempt.

    Attributes:
        outcome: `DONE`, an errno, a signal, or the name of another error; empty: none.
        why: the reason for any verdict but `HELD`.
    """

    attempt: Attempt
    outcome: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found.

    Attributes:
        held: what holds a worker here, as a run would be told.
        reported: layers that a worker calls missing, each with the errno that it met.
        findings: in the order of the table.
    """

    held: Held
    reported: Mapping[FenceLayer, int]
    findings: Sequence[Finding]


def judge(
    attempt: Attempt, outcome: str, holding: Collection[FenceLayer], abi: int, why: str = ""
) -> Finding:
    """What an outcome means where these layers hold, with this ABI of Landlock (R1, R2)."""
    if outcome == DONE:
        should = sorted(attempt.stopped_with(abi).intersection(holding))
        if should:
            return Finding(attempt, outcome, Verdict.NOT_HELD, f"{' and '.join(should)} should stop it")
        if attempt.is_residual:
            why = "; ".join(filter(None, ("the full fence leaves it open", attempt.consequence)))
            return Finding(attempt, outcome, Verdict.OPEN, why)
        if not attempt.stopped_by:
            return Finding(attempt, outcome, Verdict.NOT_HELD, "a clean process should not have it")
        return Finding(
            attempt, outcome, Verdict.OPEN, f"only {' or '.join(sorted(attempt.stopped_by))} stops it"
        )
    if outcome == attempt.expected or outcome in REFUSALS:
        stopping = attempt.stopped_with(abi) | attempt.ordinary
        if attempt.stopped_by and stopping.isdisjoint(holding):
            why = "it failed, although no layer that holds is said to stop it"
            return Finding(attempt, outcome, Verdict.UNTRIED, why)
        return Finding(attempt, outcome, Verdict.HELD)
    return Finding(attempt, outcome, Verdict.UNTRIED, why or f"the system answered {outcome}")


def try_all(
    deadline: float,
    *,
    service: str = SERVICE,
    directories: Sequence[str] = (),
    attempts: Iterable[Attempt] = ATTEMPTS.values(),
    parent: Path | None = None,
) -> Trial:
    """Make attempts, each in a throwaway worker.

    Args:
        deadline: second on `time.monotonic()`, for the whole trial.
        service: what the workers run.
        directories: what the zygote imports from besides this package.
        attempts: in this order.
        parent: as `stage.standing`.

    Raises:
        WorkerLost: no worker can be had.
        DeadlineExceeded: the whole took too long.
        ConfinementUnavailable: this package lies where everybody may write.
        OSError: the stage cannot be set.

    Cost: 80 ms, and 5 ms an attempt.
    """
    with standing(parent) as stage:
        process = ZygoteProcess(service, [*import_directories(("muniment",)), *directories])
        try:
            return _Trial(process, stage, deadline).run(attempts)
        finally:
            process.close()


class _Trial:
    """One trial, while its zygote lives."""

    def __init__(self, process: ZygoteProcess, stage: Stage, deadline: float) -> None:
        self._process, self._stage, self._deadline = process, stage, deadline

    def run(self, attempts: Iterable[Attempt]) -> Trial:
        with self._worker() as sibling:
            reported = _greeting(sibling, self._deadline)
            status = read_status(sibling.pid)
            sibling.check_alive()
            held = what_holds(reported, status, read_status(os.getpid()))
            targets = {**self._stage.targets, "zygote": self._process.pid, "sibling": sibling.pid}
            holding, abi = set(FenceLayer).difference(held.missing), offered_abi()
            findings: list[Finding] = []
            for attempt in attempts:
                outcome, why = self._outcome(attempt, targets)
                findings.append(judge(attempt, outcome, holding, abi, why))
        return Trial(held, reported, findings)

    def _outcome(self, attempt: Attempt, targets: Mapping[str, object]) -> tuple[str, str]:
        with self._worker() as worker:
            _greeting(worker, self._deadline)
            until = min(self._deadline, time.monotonic() + ATTEMPT_SECONDS)
            request = {"t": "attempt", "name": attempt.name, "targets": targets}
            try:
                answer, _ = worker.request(request, max_body=0, deadline=until)
            except WorkerLost:
                return _end_of(worker.status), f"the worker ended by {_end_of(worker.status)}"
            except DeadlineExceeded:
                Patience(self._deadline).check()
                return UNTRIED, f"no answer in {ATTEMPT_SECONDS:.0f} s"
        return str(answer.get("outcome")), str(answer.get("why"))

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        roots = {Scope(ROOT): self._stage.root}
        hatched = self._process.hatch(roots, Patience(self._deadline))
        with Worker(hatched, _regardless) as worker:
            yield worker


def _regardless(by_signal: bool) -> None:  # noqa: FBT001
    """However a worker ends: its zygote stays."""


def _greeting(worker: Worker, deadline: float) -> Mapping[FenceLayer, int]:
    """The layers that a worker calls missing."""
    header, _ = worker.receive(max_body=0, deadline=deadline)
    missing = header.get("missing")
    if isinstance(missing, dict) and set(missing) <= set(FenceLayer):
        numbers = {FenceLayer(name): number for name, number in missing.items() if isinstance(number, int)}
        if len(numbers) == len(missing):
            return numbers
    worker.kill()
    raise WorkerLost("the worker sent no valid hello")


def _end_of(status: int | None) -> str:
    """The outcome that the end of a worker tells."""
    if status is not None and os.waitstatus_to_exitcode(status) == EXECUTED:
        return DONE
    return describe(status).removeprefix("signal ")
