"""Makes one fault at a time in a copy of the repository, and tells which the tests notice.

    PYTHONPATH=tests .venv/bin/python -m faults --out FILE [--earlier FILE] [--reach FILE] [--group NAME …]

A fault is killed when a test fails, or the run hangs. First is tried what killed it in an earlier run, then
what runs its lines, then all. What stands behind `--` is pytest's.
`--reach` is a data file of coverage with a context for each test: `pytest --cov --cov-context=test`.
`--out` has a line of JSON for each fault; those that stand in it are not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from coverage import CoverageData

from faults.catalogue import REPOSITORY, Fault, faults, texts_below

SECONDS = 1_200
"""After which a run counts as hung."""

MAX_ITEMS = 400
"""Of pytest that are named one by one; past that, their files are."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Try the faults that were asked for; the exit code is 1 if one survives."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--reach", type=Path)
    parser.add_argument("--group", action="append")
    own, given = _split(sys.argv[1:])
    asked = parser.parse_args(own)
    told = _told(asked.out)
    known = {each["name"] for each in told}
    earlier = {each["name"]: each["killed_by"] for each in _told(asked.earlier)}
    reach = Reach(asked.reach) if asked.reach else None
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(
            REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", ".coverage*")
        )
        python = environment_of(copy)
        for fault in faults():
            if fault.name in known or (asked.group and fault.group not in asked.group):
                continue
            told.append(tried(fault, copy, python, reach, earlier.get(fault.name), given))
            with asked.out.open("a") as out:
                out.write(json.dumps(told[-1]) + "\n")
            print(f"{told[-1]['killed_by'] or 'SURVIVED'}  <- {fault.group}: {fault.name}", flush=True)
    survived = sum(each["killed_by"] is None for each in told)
    print(f"{len(told) - survived} of {len(told)} killed")
    return 1 if survived else 0


class Reach:
    """Which tests run which line, by what coverage saw."""

    def __init__(self, data: Path) -> None:
        self._data = CoverageData(str(data))
        self._data.read()
        self._files = {str(Path(name)).rpartition("/src/")[2]: name for name in self._data.measured_files()}

    def of(self, path: Path, lines: range) -> list[str]:
        """Items of pytest that run one of the lines."""
        name = self._files.get(str(path).rpartition("/src/")[2])
        contexts = self._data.contexts_by_lineno(name) if name else {}
        return sorted({each.partition("|")[0] for line in lines for each in contexts.get(line, ()) if each})


def environment_of(copy: Path) -> Path:
    """Make `.venv` in a copy: what is installed here, but this package from the copy; its interpreter.

    Programs that tests start by name are then those of the copy, whatever their environment.
    """
    ours = copy / ".venv"
    venv.create(ours, with_pip=False, symlinks=True)
    packages = sysconfig.get_path("purelib")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (ours / "lib" / version / "site-packages" / "copy.pth").write_text(f"{copy / 'src'}\n{packages}\n")
    for program in Path(sys.executable).parent.iterdir():
        if not (ours / "bin" / program.name).exists():
            text = program.read_bytes()
            if text.startswith(b"#!"):
                text = text.replace(os.fsencode(sys.prefix), os.fsencode(ours))
            (ours / "bin" / program.name).write_bytes(text)
            (ours / "bin" / program.name).chmod(0o755)
    return ours / "bin" / "python"


def tried(
    fault: Fault,
    copy: Path,
    python: Path,
    reach: Reach | None,
    earlier: str | None,
    arguments: list[str],
) -> dict[str, Any]:
    """What came of one fault."""
    path = fault.found_in(texts_below(copy / "src"))
    before = path.read_text()
    start = time.monotonic()
    path.write_text(fault.made_in(before))
    try:
        first = before[: before.index(fault.find)].count("\n") + 1
        items = reach.of(path, range(first, first + fault.find.count("\n") + 1)) if reach else []
        stages = [*_again(copy, earlier), *_stages(items, path.parent.name)]
        killed_by = next(filter(None, (_failure(python, stage, arguments) for stage in stages)), None)
    finally:
        path.write_text(before)
    seconds = round(time.monotonic() - start, 1)
    return {"name": fault.name, "group": fault.group, "killed_by": killed_by, "seconds": seconds}


def _told(file: Path | None) -> list[dict[str, Any]]:
    """What a file of results says; nothing where there is none."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []


def _again(copy: Path, killed_by: str | None) -> Iterator[list[str]]:
    """What killed a fault in an earlier run, where it is still there."""
    file, _, name = (killed_by or "").partition("[")[0].partition("::")
    if name and (copy / file).is_file() and f"def {name}(" in (copy / file).read_text():
        yield [f"{file}::{name}"]


def _stages(items: list[str], package: str) -> Iterator[list[str]]:
    """What to run, from few to all: the package's own tests, one item of each function, all items, all."""
    near = [item for item in items if f"/units/{package}/" in item]
    functions = {item.partition("[")[0]: item for item in items}
    for some in (near, list(functions.values()), items):
        if some:
            yield some if len(some) <= MAX_ITEMS else sorted({item.partition("::")[0] for item in some})
    yield []


def _failure(python: Path, items: list[str], arguments: list[str]) -> str | None:
    """The first test that fails; None: all pass."""
    copy = python.parents[2]
    command = [str(python), "-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command.append("--ignore=tests/faults")  # They notice that the text is another, which is no promise.
    process = subprocess.Popen(
        [*command, *arguments, *items],
        cwd=copy,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "hung"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # Also what a broken test left behind.
        process.wait()
    if process.returncode in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return None
    if "while loading conftest" in output:
        return "tests/conftest.py"  # Nothing starts with it, such as a policy that fails its own tests.
    if process.returncode == pytest.ExitCode.USAGE_ERROR:
        raise ValueError(f"what was to be run is not there: {output[-500:]}")  # It would count as noticed.
    failed = _FAILED.search(output)
    return failed[1] if failed else f"pytest ended with {process.returncode}"


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before `--` and what behind it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


if __name__ == "__main__":
    sys.exit(main())
