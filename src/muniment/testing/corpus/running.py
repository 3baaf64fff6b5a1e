"""Run drivers, which are processes that run cases: read their results, and kill those that hang."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from muniment.testing.corpus.stage import Failure, FailureKind

HANG_SECONDS: Final = 12.0
"""Seconds after which a case without a result counts as hanging."""

ABOUT: Final = "about"
"""Name of the file in a driver's directory that contains the name that the target reports."""

Failures = Mapping[str, list[Failure]]
"""The failures of each case by its id; an empty list if the case has passed."""


class DriverGroup:
    """A group of running drivers, which another thread can kill."""

    def __init__(self) -> None:
        self._is_killed = False
        self._pids: set[int] = set()
        self._lock = threading.Lock()

    def is_killed(self) -> bool:
        """Return whether the group was killed. After that, no driver may start."""
        return self._is_killed

    @contextmanager
    def register(self, driver: subprocess.Popen[bytes]) -> Iterator[None]:
        """Register a driver for the duration of the block, then kill it with all its children.

        The driver is not reaped within the block, so that its process id is not reused.
        """
        with self._lock:
            self._pids.add(driver.pid)
            if self._is_killed:
                _kill(driver.pid)
        try:
            yield
        finally:
            with self._lock:
                self._pids.discard(driver.pid)
                _kill(driver.pid)

    def kill(self) -> None:
        """Kill all registered drivers, and every driver that is registered later."""
        with self._lock:
            self._is_killed = True
            for pid in self._pids:
                _kill(pid)


def build_driver_command(spec: str, directory: Path) -> list[str]:
    """Return the command that starts the driver of a target, without the ids of the cases.

    The driver does not import modules from its current directory.
    """
    return [sys.executable, "-P", "-m", "muniment.testing.corpus.driver", spec, str(directory)]


def run_driver(
    command: Sequence[str],
    ids: Sequence[str],
    *,
    canary: str,
    hang_seconds: float = HANG_SECONDS,
    on_case_ended: Callable[[str], None] = lambda _: None,
    drivers: DriverGroup | None = None,
) -> Failures:
    """Run cases in drivers, and return their failures. After a hang or a crash, a new driver continues.

    Args:
        command: the command that starts a driver; the ids are appended.
        ids: ids of the cases.
        canary: put into the environment of the drivers, as a secret in `/proc/self/environ`.
        hang_seconds: seconds without output after which a driver and its children are killed.
        on_case_ended: called with its id after each case.
        drivers: group of the drivers; if it is killed, cases that did not run are missing in the result.
    """
    failures: dict[str, list[Failure]] = {}
    remaining, drivers = list(ids), drivers or DriverGroup()

    def record(case_id: str, found: list[Failure]) -> None:
        failures[case_id] = found
        on_case_ended(case_id)

    while remaining and not drivers.is_killed():
        with _start_driver(command, remaining, canary) as driver, drivers.register(driver):
            running, hung = _read_results(driver, record, hang_seconds)
            output = "" if hung else _wait_for_exit(driver, hang_seconds)
        remaining = [case_id for case_id in remaining if case_id not in failures]
        lost = remaining if running is None and not hung else [running or remaining[0]]
        for case_id in lost if not drivers.is_killed() else ():
            if case_id not in failures:
                kind_and_text = (FailureKind.HUNG, f"hung for {hang_seconds} s")
                record(
                    case_id,
                    [Failure(*kind_and_text if hung else (FailureKind.DIED, f"the driver died: {output}"))],
                )
        remaining = [case_id for case_id in remaining if case_id not in failures]
    return failures


def _start_driver(command: Sequence[str], ids: Sequence[str], canary: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUNIMENT_")}
    return subprocess.Popen(  # noqa: S603 - the caller's own command
        [*command, *ids],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "CORPUS_CANARY": canary},
        start_new_session=True,
    )


def _read_results(
    driver: subprocess.Popen[bytes], record: Callable[[str, list[Failure]], None], hang_seconds: float
) -> tuple[str | None, bool]:
    """Read the results of one driver; return the id of the case started last, and whether it hangs."""
    assert driver.stdout is not None  # noqa: S101 - for the type checker
    running: str | None = None
    for line in _read_lines(driver.stdout.fileno(), hang_seconds):
        if line is None:
            return running, True
        message = json.loads(line)
        if "start" in message:
            running = message["start"]
        else:
            record(
                message["id"],
                [Failure(FailureKind(each["kind"]), each["text"]) for each in message["failures"]],
            )
    return running, False


def _wait_for_exit(driver: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait at most `seconds` for the end of a driver, and return its output on standard error."""
    assert driver.stderr is not None  # noqa: S101 - for the type checker
    output = driver.stderr.read().decode(errors="replace")
    pidfd = os.pidfd_open(driver.pid)
    try:
        select.select([pidfd], [], [], seconds)
    finally:
        os.close(pidfd)
    return output


def _kill(pid: int) -> None:
    """Kill all processes in the session of a driver that is not reaped yet."""
    os.killpg(pid, signal.SIGKILL)


def _read_lines(output: int, hang_seconds: float) -> Iterator[bytes | None]:
    """Yield lines as they arrive. If no line arrives in time, yield None and stop."""
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
