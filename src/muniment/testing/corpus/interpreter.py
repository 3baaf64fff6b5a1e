"""Executes one case of the corpus against a subject and says what went wrong.

    1. Build the stage: roots, forbidden trees, the operations of `setup`. Photograph it.
    2. Open the subject. Nothing may have changed.
    3. Make the calls of `first`, which have to be allowed.
    4. Carry out the operations of `when: after_open`. Photograph it again.
    5. Make the call; in a race, repeatedly while another process exchanges a name. Commit.
    6. Photograph a last time, and judge: what is always judged (`judging.py`), then the case's own checks.

Not judged here: a hang. Whoever runs this watches the clock (`running.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from muniment.testing.corpus.case import Case
from muniment.testing.corpus.checks import Effect, problems
from muniment.testing.corpus.failure import Failure, Kind
from muniment.testing.corpus.judging import READING_TOOLS, Call, Run, failures_of, tree_failures
from muniment.testing.corpus.stage import Stage
from muniment.testing.corpus.subject import OpenSubject, Subject
from muniment.testing.race import Swap
from muniment.testing.witness import photograph

RACE_SECONDS: Final = 0.4
"""How long a race lasts at least."""

CALLS_PER_COMMIT: Final = 20
"""In a race, a writing tool's proposals are committed after so many calls: a commit waits for the disk."""


def run_case(case: Case, directory: Path, canary: str, open_subject: OpenSubject) -> list[Failure]:
    """Everything that is wrong with how the subject handles the case; empty: nothing.

    Args:
        case: from the corpus, or one of your own in its format.
        directory: where to build the stage; must not exist. It stays.
        canary: the text that must not come out.
        open_subject: binds a new subject to the roots of the stage.

    Raises:
        KeyError: the case has an operation, kind or check that is not in the format.
        Exception: whatever the subject raises.
    """
    stage = Stage(directory, canary)
    for operation in case["setup"]:
        if operation.get("when") != "after_open":
            stage.prepare(operation)
    untouched = stage.photograph()
    subject = open_subject(stage, case)
    run = Run()
    with ExitStack() as ends:
        ends.callback(lambda: setattr(run, "log", subject.close()))
        opened = tree_failures(untouched, stage.photograph(), roots=True)
        run.first = [_made(subject, stage, call) for call in case.get("first", ())]
        swap = _tamper(case, stage)
        before = stage.photograph()
        _call(case, stage, subject, swap, run)
    after = stage.photograph()
    effect = Effect(stage, run.allowed, tuple(call.answer.text for call in run.calls), run.seconds)
    return [
        *(_at_opening(failure) for failure in opened),
        *failures_of(case, stage, run, before, after),
        *(problem for check in case.get("checks", ()) for problem in problems(effect, check)),
    ]


def _at_opening(failure: Failure) -> Failure:
    kind = Kind.LOOKED if failure.kind is Kind.READ else failure.kind
    return Failure(kind, f"opening: {failure.text}")


def _made(subject: Subject, stage: Stage, call: Any) -> Call:
    arguments = stage.expand(call["args"])
    return Call(call["tool"], arguments, call.get("lands"), subject.call(call["tool"], arguments))


def _tamper(case: Case, stage: Stage) -> Swap | None:
    swap = None
    for operation in case["setup"]:
        if operation["op"] == "swap":
            swap = stage.swap(operation)
        elif operation.get("when") == "after_open":
            stage.prepare(operation)
    return swap


def _call(case: Case, stage: Stage, subject: Subject, swap: Swap | None, run: Run) -> None:
    def call() -> None:
        run.calls.append(_made(subject, stage, case["call"]))

    started = time.monotonic()
    try:
        if swap is None:
            for _ in range(case.get("repeat", 1)):
                call()
            run.commits.append(subject.commit())
            return
        run.decoy = photograph({"decoy": swap.decoy})["decoy"]
        with swap:
            _race(case, subject, call, run)
            run.commits.append(subject.commit())
    finally:
        run.seconds = time.monotonic() - started
        if swap is not None:
            run.exchanges, run.problem = swap.exchanges, swap.problem


def _race(case: Case, subject: Subject, call: Callable[[], None], run: Run) -> None:
    end = time.monotonic() + RACE_SECONDS
    commits = subject.commits_often and case["call"]["tool"] not in READING_TOOLS
    count = 0
    while count < case.get("repeat", 1) or time.monotonic() < end:
        call()
        count += 1
        if commits and count % CALLS_PER_COMMIT == 0:
            run.commits.append(subject.commit())
