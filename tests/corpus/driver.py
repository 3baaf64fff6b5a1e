"""Runs cases of the corpus in a process that has something to lose.

    python -m corpus.driver MODE DIRECTORY ID…        MODE: worker, in-process or tool

Standard input, current directory and HOME of each case point into its own `outside`, and the environment
holds the canary, so that `/dev/stdin`, `/proc/self/cwd`, `/proc/self/environ` and `~` have something to
steal. As root, the capabilities that override file modes are given up before anything starts, so that the
zygote lacks them as well (`privileges.py`).

A line of JSON on standard output before and after each case: `{"start": ID}`, `{"id": ID, "failures": […]}`.
What is written on the standard streams meanwhile is the case's log.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any, get_args

from corpus.interpreter import Case, Subject, load_corpus, run_case
from corpus.privileges import obey_file_modes
from corpus.stage import Stage
from corpus.subjects import Mode, open_subject


def main(mode: Mode, directory: Path, ids: list[str]) -> None:
    """Run the cases in order."""
    assert mode in get_args(Mode)
    obey_file_modes()
    corpus = load_corpus()
    with os.fdopen(os.dup(1), "w") as results:

        def tell(line: dict[str, Any]) -> None:
            print(json.dumps(line), file=results, flush=True)

        for case_id in ids:
            tell({"start": case_id})
            try:
                failures = run_case(
                    corpus.cases[case_id], directory / case_id, corpus.canary, partial(_open, mode)
                )
            except Exception:  # noqa: BLE001 - whatever a subject raises is a result; the next case goes on
                failures = [traceback.format_exc()]
            tell({"id": case_id, "failures": failures})
        os.chdir("/")


def _open(mode: Mode, stage: Stage, case: Case) -> Subject:
    _point_into_outside(stage)
    return open_subject(mode, stage, case)


def _point_into_outside(stage: Stage) -> None:
    os.chdir(stage.outside)
    os.environ["HOME"] = str(stage.outside)
    _put(os.open(stage.outside / "secret.md", os.O_RDONLY), 0)
    log = os.open(stage.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _put(os.dup(log), 1)
    _put(log, 2)


def _put(descriptor: int, place: int) -> None:
    os.dup2(descriptor, place)
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])  # type: ignore[arg-type]  # asserted first thing
