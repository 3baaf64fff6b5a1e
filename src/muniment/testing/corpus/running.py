"""Runs drivers from outside: reads what they tell, and ends those that hang."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

HANG_SECONDS: Final = 12.0
"""A case that takes longer hangs."""

Failures = Mapping[str, list[str]]
"""What went wrong in each case; empty: nothing."""


def driver_command(mode: str, directory: Path) -> list[str]:
    """How to start the driver; the ids follow. `-P`: the case's directory is none to import from."""
    module = "muniment.testing.corpus.driver"
    return [sys.executable, "-P", "-W", "error", "-m", module, mode, str(directory)]


def run_driver(
    command: Sequence[str], ids: Sequence[str], *, canary: str, hang_seconds: float = HANG_SECONDS
) -> Failures:
    """Run the cases, with as many drivers as hangs and crashes make necessary.

    Args:
        command: what to start; the ids are added to it.
        ids: of the cases.
        canary: put into the environment of the drivers, for `/proc/self/environ` to be worth stealing.
        hang_seconds: after which a driver that tells nothing is killed, with all that it started.
    """
    failures: dict[str, list[str]] = {}
    left = list(ids)
    while left:
        _run_some(command, left, failures, canary=canary, hang_seconds=hang_seconds)
        left = [case_id for case_id in left if case_id not in failures]
    return failures


def _run_some(
    command: Sequence[str],
    ids: Sequence[str],
    failures: dict[str, list[str]],
    *,
    canary: str,
    hang_seconds: float,
) -> None:
    """Run one driver until it ends or hangs; a case that it does not survive has failed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUNIMENT_")}
    with subprocess.Popen(  # noqa: S603 - the caller's own command
        [*command, *ids],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "CORPUS_CANARY": canary},
        start_new_session=True,
    ) as driver:
        assert driver.stdout is not None  # noqa: S101 - for the type checker
        running: str | None = None
        for line in _lines(driver.stdout.fileno(), hang_seconds):
            if line is None:
                failures[running or ids[0]] = [f"hung for {hang_seconds} s"]
                os.killpg(driver.pid, signal.SIGKILL)
                return
            told = json.loads(line)
            if "start" in told:
                running = told["start"]
            else:
                failures[told["id"]] = told["failures"]
        lost = ids if running is None else [running]
        said = driver.communicate()[1].decode(errors="replace")
        failures.update(
            {case_id: [f"the driver died: {said}"] for case_id in lost if case_id not in failures}
        )


def _lines(output: int, hang_seconds: float) -> Iterator[bytes | None]:
    """Lines as they come; None, and no more, when none came for too long."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if not selector.select(hang_seconds):
                yield None
                return
            if not (piece := os.read(output, 1 << 16)):
                return
            *lines, pending = (pending + piece).split(b"\n")
            yield from lines
