"""Runs cases of the corpus in a process that has something to lose.

    python -m muniment.testing.corpus.driver TARGET DIRECTORY ID…      TARGET: as for `muniment conformance`

Standard input, current directory and HOME of each case point into its own `outside`, and the environment
holds the canary, so that `/dev/stdin`, `/proc/self/cwd`, `/proc/self/environ` and `~` have something to
steal. As root, the capabilities that override file modes are given up before anything starts, so that the
zygote lacks them as well.

A line of JSON on standard output before and after each case: `{"start": ID}`, and
`{"id": ID, "failures": [{"kind", "text"}…]}`.
What is written on the standard streams meanwhile is the case's log. What the target calls itself, version
included, is left in `DIRECTORY/about`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from muniment.testing.corpus.judging import run_case
from muniment.testing.corpus.running import ABOUT
from muniment.testing.corpus.stage import (
    Case,
    Failure,
    Inexpressible,
    Kind,
    OpenSubject,
    Stage,
    Subject,
    load_corpus,
    obey_file_modes,
)

MEMORY_BYTES: Final = 1 << 32
"""Address space of a driver with another's tool in it: a case has a file of 4 GiB."""


def main(spec: str, directory: Path, ids: Sequence[str]) -> None:
    """Run the cases in order against a target.

    Raises:
        ValueError: there is no such target.
        KeyError: there is no such case.
    """
    from muniment.testing.conformance.targets import parse_target  # A driver of another tool needs none.

    target = parse_target(spec)
    if target.sort == "anthropic":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # HOME leads into `outside`; what `npx` keeps there would look like an escape of the server it starts.
    os.environ.setdefault("npm_config_cache", str(Path.home() / ".npm"))

    def opens(stage: Stage, case: Case) -> Subject:
        subject = target.open(stage, case)
        about = directory / ABOUT
        if not about.exists():
            about.write_text(getattr(subject, "about", target.name))
        return subject

    drive(opens, directory, ids)


def drive(opens: OpenSubject, directory: Path, ids: Sequence[str]) -> None:
    """Run the cases in order against any subject. A driver of another tool is a call of this.

    This process is not of much use afterwards: its standard streams lead into the last case.

    Args:
        opens: as for `run_case`.
        directory: gets a directory for each case.
        ids: of the cases.

    Raises:
        KeyError: there is no such case.
    """

    def open_there(stage: Stage, case: Case) -> Subject:
        _point_into_outside(stage)
        return opens(stage, case)

    obey_file_modes()
    corpus = load_corpus()
    with os.fdopen(os.dup(1), "w") as results:
        for case_id in ids:
            _tell(results, {"start": case_id})
            case = corpus.cases[case_id]
            try:
                failures = run_case(case, directory / case_id, corpus.canary, open_there)
            except Inexpressible as reason:
                failures = [Failure(Kind.INEXPRESSIBLE, str(reason))]
            except Exception:  # noqa: BLE001 - whatever a subject raises is a result; the next case goes on
                failures = [Failure(Kind.DIED, traceback.format_exc())]
            _tell(results, {"id": case_id, "failures": [asdict(failure) for failure in failures]})
        os.chdir("/")


def _tell(results: IO[str], line: Mapping[str, Any]) -> None:
    results.write(f"{json.dumps(line)}\n")
    results.flush()


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
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
