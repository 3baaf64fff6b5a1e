"""Run cases of the corpus in a process that has data to steal.

    python -m muniment.testing.corpus.driver TARGET DIRECTORY ID…      TARGET: as for `muniment conformance`

Standard input, current directory and HOME of each case are in its directory `outside`, and the environment
contains the canary. So `/dev/stdin`, `/proc/self/cwd`, `/proc/self/environ` and `~` all lead to a secret. As
root, the driver drops the capabilities that override file modes before it starts anything, so that the zygote
lacks them too.

The driver writes a line of JSON to standard output before and after each case: `{"start": ID}`, and
`{"id": ID, "failures": [{"kind", "text"}…]}`. The output on the standard streams during a case goes to the
log of the case. The driver writes the name and version that the target reports to `DIRECTORY/about`.
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
    FailureKind,
    OpenSubject,
    Stage,
    Subject,
    UnsupportedCall,
    load_corpus,
    obey_file_modes,
)

MEMORY_BYTES: Final = 1 << 32
"""Maximum address space of a driver that runs another tool in its process; one case has a file of 4 GiB."""


def main(spec: str, directory: Path, ids: Sequence[str]) -> None:
    """Run the cases `ids` in order against the target `spec`.

    Raises:
        ValueError: unknown target.
        KeyError: unknown case.
    """
    # A driver of another tool does not need it.
    from muniment.testing.conformance.targets import parse_target

    target = parse_target(spec)
    if target.kind == "anthropic":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # HOME is `outside`; the cache of `npx` there would count as an escape of the server that it starts.
    os.environ.setdefault("npm_config_cache", str(Path.home() / ".npm"))

    def open_subject(stage: Stage, case: Case) -> Subject:
        subject = target.open(stage, case)
        about = directory / ABOUT
        if not about.exists():
            about.write_text(getattr(subject, "about", target.name))
        return subject

    drive(open_subject, directory, ids)


def drive(open_subject: OpenSubject, directory: Path, ids: Sequence[str]) -> None:
    """Run cases in order against any subject. To write a driver for another tool, call this function.

    Do not use this process for other work afterwards: its standard streams are files of the last case.

    Args:
        open_subject: binds a new subject to the roots of a stage, as for `run_case`.
        directory: directory in which each case gets its own directory.
        ids: ids of the cases.

    Raises:
        KeyError: unknown case.
    """

    def open_outside(stage: Stage, case: Case) -> Subject:
        _point_into_outside(stage)
        return open_subject(stage, case)

    obey_file_modes()
    corpus = load_corpus()
    with os.fdopen(os.dup(1), "w") as results:
        for case_id in ids:
            _write_line(results, {"start": case_id})
            case = corpus.cases[case_id]
            try:
                failures = run_case(case, directory / case_id, corpus.canary, open_outside)
            except UnsupportedCall as reason:
                failures = [Failure(FailureKind.INEXPRESSIBLE, str(reason))]
            except Exception:  # noqa: BLE001 - any exception of a subject is a result; the next case runs
                failures = [Failure(FailureKind.DIED, traceback.format_exc())]
            _write_line(results, {"id": case_id, "failures": [asdict(failure) for failure in failures]})
        os.chdir("/")


def _write_line(results: IO[str], line: Mapping[str, Any]) -> None:
    results.write(f"{json.dumps(line)}\n")
    results.flush()


def _point_into_outside(stage: Stage) -> None:
    os.chdir(stage.outside)
    os.environ["HOME"] = str(stage.outside)
    _redirect(os.open(stage.outside / "secret.md", os.O_RDONLY), 0)
    log = os.open(stage.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _redirect(os.dup(log), 1)
    _redirect(log, 2)


def _redirect(descriptor: int, target: int) -> None:
    os.dup2(descriptor, target)
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
