"""Runs drivers from outside: reads what they tell, and ends those that hang."""

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

from muniment.testing.corpus.stage import Failure, Kind

HANG_SECONDS: Final = 12.0
"""A case that takes longer hangs."""

ABOUT: Final = "about"
"""The file of a driver's directory in which it leaves what the target calls itself."""

Failures = Mapping[str, list[Failure]]
"""What went wrong in each case; empty: nothing."""


class Leash:
    """Ends all drivers that are held by it, from another thread."""

    def __init__(self) -> None:
        self._pulled = False
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def is_pulled(self) -> bool:
        """Whether it was, so that nothing more is to be started."""
        return self._pulled

    @contextmanager
    def hold(self, driver: subprocess.Popen[bytes]) -> Iterator[None]:
        """Hold a driver for the time of the block, and end it with all that it started.

        It is not reaped meanwhile, so that its number is nobody else's.
        """
        with self._lock:
            self._held.add(driver.pid)
            if self._pulled:
                _kill(driver.pid)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(driver.pid)
                _kill(driver.pid)

    def pull(self) -> None:
        """End those that are held now, and at once those that come."""
        with self._lock:
            self._pulled = True
            for pid in self._held:
                _kill(pid)


def driver_command(spec: str, directory: Path) -> list[str]:
    """How to start the driver of a target, which imports nothing from where it runs; the ids follow."""
    return [sys.executable, "-P", "-m", "muniment.testing.corpus.driver", spec, str(directory)]


def run_driver(
    command: Sequence[str],
    ids: Sequence[str],
    *,
    canary: str,
    hang_seconds: float = HANG_SECONDS,
    told: Callable[[str], None] = lambda _: None,
    leash: Leash | None = None,
) -> Failures:
    """Run the cases, with as many drivers as hangs and crashes make necessary.

    Args:
        command: what to start; the ids are added to it.
        ids: of the cases.
        canary: put into the environment of the drivers, for `/proc/self/environ` to be worth stealing.
        hang_seconds: after which a driver that tells nothing is killed, with all that it started.
        told: hears of each case that ended.
        leash: ends it early; what was not run by then is missing in the result.
    """
    failures: dict[str, list[Failure]] = {}
    left, leash = list(ids), leash or Leash()

    def note(case_id: str, found: list[Failure]) -> None:
        failures[case_id] = found
        told(case_id)

    while left and not leash.is_pulled():
        with _started(command, left, canary) as driver, leash.hold(driver):
            running, hung = _follow(driver, note, hang_seconds)
            said = "" if hung else _last_words(driver, hang_seconds)
        left = [case_id for case_id in left if case_id not in failures]
        lost = left if running is None and not hung else [running or left[0]]
        for case_id in lost if not leash.is_pulled() else ():
            if case_id not in failures:
                fate = (Kind.HUNG, f"hung for {hang_seconds} s")
                note(case_id, [Failure(*fate if hung else (Kind.DIED, f"the driver died: {said}"))])
        left = [case_id for case_id in left if case_id not in failures]
    return failures


def _started(command: Sequence[str], ids: Sequence[str], canary: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUNIMENT_")}
    return subprocess.Popen(  # noqa: S603 - the caller's own command
        [*command, *ids],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "CORPUS_CANARY": canary},
        start_new_session=True,
    )


def _follow(
    driver: subprocess.Popen[bytes], note: Callable[[str, list[Failure]], None], hang_seconds: float
) -> tuple[str | None, bool]:
    """Follow one driver until it ends or hangs: the case that it began last, and whether it hangs."""
    assert driver.stdout is not None  # noqa: S101 - for the type checker
    running: str | None = None
    for line in _lines(driver.stdout.fileno(), hang_seconds):
        if line is None:
            return running, True
        told = json.loads(line)
        if "start" in told:
            running = told["start"]
        else:
            note(told["id"], [Failure(Kind(each["kind"]), each["text"]) for each in told["failures"]])
    return running, False


def _last_words(driver: subprocess.Popen[bytes], seconds: float) -> str:
    """Let a driver end that has nothing more to tell; what it wrote on standard error."""
    assert driver.stderr is not None  # noqa: S101 - for the type checker
    said = driver.stderr.read().decode(errors="replace")
    ending = os.pidfd_open(driver.pid)
    try:
        select.select([ending], [], [], seconds)
    finally:
        os.close(ending)
    return said


def _kill(pid: int) -> None:
    """Kill the whole session of a driver that nobody has reaped yet."""
    os.killpg(pid, signal.SIGKILL)


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
