"""Make one fault at a time in a copy of the repository, and report whether the tests detect it.

    PYTHONPATH=tests .venv/bin/python -m faults --out FILE [--earlier FILE] [--reach FILE] [--group NAME …]

A fault is killed if a test fails or the run hangs. The first stage runs the test that killed it in an earlier
run, then the tests that run its lines, then all tests. Arguments after `--` are passed to pytest. `--reach`
is a data file of coverage with a context for each test: `pytest --cov --cov-context=test`. `--out` has a line
of JSON for each fault; faults in this file are not tried again.
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

from faults.catalogue import REPOSITORY, Fault, load_faults, read_sources

SECONDS = 1_200
"""Time after which a run counts as hung."""

MAX_ITEMS = 400
"""Limit of pytest items that are named singly; above it, their files are named."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Try the selected faults; return 1 if one survives."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--reach", type=Path)
    parser.add_argument("--group", action="append")
    own, pytest_arguments = _split_arguments(sys.argv[1:])
    options = parser.parse_args(own)
    results = _read_results(options.out)
    known = {each["name"] for each in results}
    earlier = {each["name"]: each["killed_by"] for each in _read_results(options.earlier)}
    coverage_index = CoverageIndex(options.reach) if options.reach else None
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(
            REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", ".coverage*")
        )
        python = make_environment(copy)
        for fault in load_faults():
            if fault.name in known or (options.group and fault.group not in options.group):
                continue
            results.append(
                try_fault(fault, copy, python, coverage_index, earlier.get(fault.name), pytest_arguments)
            )
            with options.out.open("a") as out:
                out.write(json.dumps(results[-1]) + "\n")
            print(f"{results[-1]['killed_by'] or 'SURVIVED'}  <- {fault.group}: {fault.name}", flush=True)
    survived = sum(each["killed_by"] is None for each in results)
    print(f"{len(results) - survived} of {len(results)} killed")
    return 1 if survived else 0


class CoverageIndex:
    """The tests that run each line, from coverage data."""

    def __init__(self, data: Path) -> None:
        self._data = CoverageData(str(data))
        self._data.read()
        self._files = {str(Path(name)).rpartition("/src/")[2]: name for name in self._data.measured_files()}

    def find_tests(self, path: Path, lines: range) -> list[str]:
        """Return the pytest items that run one of the lines."""
        name = self._files.get(str(path).rpartition("/src/")[2])
        contexts = self._data.contexts_by_lineno(name) if name else {}
        return sorted({each.partition("|")[0] for line in lines for each in contexts.get(line, ()) if each})


def make_environment(copy: Path) -> Path:
    """Create `.venv` in a copy, with the installed packages and this package from the copy; return its
    interpreter.

    Programs that tests start by name then belong to the copy in any environment.
    """
    environment = copy / ".venv"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = sysconfig.get_path("purelib")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (environment / "lib" / version / "site-packages" / "copy.pth").write_text(f"{copy / 'src'}\n{packages}\n")
    for program in Path(sys.executable).parent.iterdir():
        if not (environment / "bin" / program.name).exists():
            text = program.read_bytes()
            if text.startswith(b"#!"):
                text = text.replace(os.fsencode(sys.prefix), os.fsencode(environment))
            (environment / "bin" / program.name).write_bytes(text)
            (environment / "bin" / program.name).chmod(0o755)
    return environment / "bin" / "python"


def try_fault(
    fault: Fault,
    copy: Path,
    python: Path,
    coverage_index: CoverageIndex | None,
    earlier: str | None,
    arguments: list[str],
) -> dict[str, Any]:
    """Try one fault and return its result."""
    path = fault.find_module(read_sources(copy / "src"))
    before = path.read_text()
    start = time.monotonic()
    path.write_text(fault.apply(before))
    try:
        first = before[: before.index(fault.find)].count("\n") + 1
        items = (
            coverage_index.find_tests(path, range(first, first + fault.find.count("\n") + 1))
            if coverage_index
            else []
        )
        stages = [*_find_earlier_killer(copy, earlier), *_make_stages(items, path.parent.name)]
        killed_by = next(filter(None, (_find_failure(python, stage, arguments) for stage in stages)), None)
    finally:
        path.write_text(before)
    seconds = round(time.monotonic() - start, 1)
    return {"name": fault.name, "group": fault.group, "killed_by": killed_by, "seconds": seconds}


def _read_results(file: Path | None) -> list[dict[str, Any]]:
    """Read a file of results; a missing file has none."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []


def _find_earlier_killer(copy: Path, killed_by: str | None) -> Iterator[list[str]]:
    """Yield the test that killed a fault in an earlier run, if it still exists."""
    file, _, name = (killed_by or "").partition("[")[0].partition("::")
    if name and (copy / file).is_file() and f"def {name}(" in (copy / file).read_text():
        yield [f"{file}::{name}"]


def _make_stages(items: list[str], package: str) -> Iterator[list[str]]:
    """Yield the tests to run: of the package, one item per function, all items, then all tests."""
    near = [item for item in items if f"/units/{package}/" in item]
    functions = {item.partition("[")[0]: item for item in items}
    for some in (near, list(functions.values()), items):
        if some:
            yield some if len(some) <= MAX_ITEMS else sorted({item.partition("::")[0] for item in some})
    yield []


def _find_failure(python: Path, items: list[str], arguments: list[str]) -> str | None:
    """Return the first failing test, or None if all pass."""
    copy = python.parents[2]
    command = [str(python), "-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command.append("--ignore=tests/faults")  # These tests compare the source text.
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
            os.killpg(process.pid, signal.SIGKILL)  # Including processes of a broken test.
        process.wait()
    if process.returncode in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return None
    if "while loading conftest" in output:
        return "tests/conftest.py"  # For example, a policy fails its own tests.
    if process.returncode == pytest.ExitCode.USAGE_ERROR:
        raise ValueError(f"test not found: {output[-500:]}")  # It would count as a kill.
    failed = _FAILED.search(output)
    return failed[1] if failed else f"pytest ended with {process.returncode}"


def _split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


if __name__ == "__main__":
    sys.exit(main())
