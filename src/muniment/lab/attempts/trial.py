"""A trial: every attempt in a worker of its own, behind the fence that workers have here, and its outcome.

- R1 an attempt that succeeded although a layer holds that should have stopped it is `NOT_HELD`, whatever
  the reason.
- R2 what cannot be tried here, and what fails where no layer that holds is said to stop it, is said, with
  the reason; it counts neither way.
- R3 a trial leaves nothing behind, whichever way it ends.

The workers come from a zygote of the trial's own, since most of them die by a signal, after which the pool
would replace it. Attacked by `tests/units/lab/test_attempts.py`, with each layer taken away.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from muniment.errors import DeadlineExceeded, WorkerLost
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Scope
from muniment.kernel.syscalls import available
from muniment.lab.attempts.attempt import (
    ATTEMPTS,
    DONE,
    EXECUTED,
    ROOT,
    UNTRIED,
    Attempt,
    handle_of,
    program,
)
from muniment.names import FenceLayer, Held
from muniment.sandbox.fence.evidence import read_status, what_holds
from muniment.sandbox.fence.layers import offered_abi
from muniment.sandbox.fence.pool import Worker, ZygoteProcess, describe, import_directories

# -- stage -------------------------------------------------------------------------------------------
#
# The throwaway targets of a trial: a root, an outside, sockets, and a canary in this process's memory.
#
# Everything that an attempt may change lies in one private temporary directory, each file for one attempt
# only, so that no attempt depends on what another one did:
#
#     root      link → outside/secret, linked → outside, and the files that are to be changed
#     outside   secret, program, socket, and the files that are to be changed

IN_ROOT: Final = ("written.md", "emptied.md", "deleted.md", "old.md", "moded.md")
IN_OUTSIDE: Final = ("written", "shortened")

_NEEDLE_BYTES: Final = 64
_NO_SECRETS: Final = (b"PATH", b"HOME", b"PWD", b"LANG")
"""Variables that a worker of a trial may hear of; the others may hold keys."""


@contextlib.contextmanager
def standing(parent: Path | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Set a stage, and clear it away.

    Args:
        parent: where its directory is made; None: where this system keeps temporary files.

    Yields:
        The root that workers are given, a descriptor; and the fields of `Targets` by name, but for the
        processes of the trial, `root` and `connection`.

    Raises:
        OSError: it cannot be set.
    """
    canary = secrets.token_hex(16)
    kept = ctypes.create_string_buffer(canary.encode())
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="muniment-trial-", dir=parent))
        )
        outside = _fill(directory, canary)
        root = os.open(directory / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, root)
        targets = {
            "outside": str(outside),
            "canary": canary,
            "broker": os.getpid(),
            "canary_address": ctypes.addressof(kept),
            **_sockets(stack, outside),
            "pipe": _pipe(stack, canary),
            "handle": _handle(outside / "secret"),
            "library": _library(),
            "needle": _needle().hex(),
        }
        yield root, targets


def _fill(directory: Path, canary: str) -> Path:
    root, outside = directory / "root", directory / "outside"
    for each in (root, outside):
        each.mkdir(mode=0o700)
    for path in (*(root / name for name in IN_ROOT), *(outside / name for name in IN_OUTSIDE)):
        path.write_text("text\n", encoding="utf-8")
    (outside / "secret").write_text(canary, encoding="utf-8")
    (outside / "program").write_bytes(program())
    (outside / "program").chmod(0o700)
    (root / "link").symlink_to(outside / "secret")
    (root / "linked").symlink_to(outside)
    return outside


def _sockets(stack: contextlib.ExitStack, outside: Path) -> dict[str, Any]:
    tcp = stack.enter_context(socket.socket())
    tcp.bind(("127.0.0.1", 0))
    tcp.listen()
    udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    abstract.bind("")  # The kernel chooses a name that nobody has.
    abstract.listen()
    with contextlib.suppress(OSError):  # A path may be too long for a socket; the attempt says so.
        path = stack.enter_context(socket.socket(socket.AF_UNIX))
        path.bind(str(outside / "socket"))
        path.listen()
    return {
        "listener": tcp.fileno(),
        "tcp": tcp.getsockname()[1],
        "udp": udp.getsockname()[1],
        "abstract": abstract.getsockname()[1:].decode(),
    }


def _pipe(stack: contextlib.ExitStack, canary: str) -> int:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    for fd in (reading, writing):
        stack.callback(os.close, fd)
    os.write(writing, canary.encode())
    return reading


def _handle(path: Path) -> str:
    """The handle of a file, in hexadecimal; empty: its file system gives none, or a filter forbids to ask."""
    try:
        return handle_of(os.fsencode(path)).hex()
    except OSError:
        return ""


def _library() -> str:
    """A library that nothing in a worker of a trial needs; empty: there is none."""
    (directory,) = import_directories(("pydantic_core",))
    return str(next(Path(directory, "pydantic_core").glob("*.so"), ""))


def _needle() -> bytes:
    """The longest variable of this process's environment that is no secret, or its beginning; empty: none.

    A process has all of its environment or none, so that one variable tells of all.
    """
    variables = (b"%s=%s" % (name, value) for name in _NO_SECRETS if (value := os.environb.get(name)))
    return max(variables, key=len, default=b"")[:_NEEDLE_BYTES]


# -- trial -------------------------------------------------------------------------------------------

SERVICE: Final = "muniment.lab.attempts.attempt:serve"

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
class AttemptFinding:
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
    findings: Sequence[AttemptFinding]


def judge(
    attempt: Attempt,
    outcome: str,
    holding: Collection[FenceLayer],
    abi: int,
    why: str = "",
    *,
    has_openat2: bool = True,
) -> AttemptFinding:
    """What an outcome means where these layers hold, with this ABI of Landlock (R1, R2)."""
    stopped_by = attempt.stopped_with(abi, has_openat2=has_openat2)
    verdict = Verdict.UNTRIED
    if outcome == DONE:
        verdict, why = _of_success(attempt, stopped_by.intersection(holding), has_openat2=has_openat2)
    elif outcome != attempt.expected and outcome not in REFUSALS:
        why = why or f"the system answered {outcome}"
    elif attempt.stopped_by and (stopped_by | attempt.ordinary).isdisjoint(holding):
        why = "it failed, although no layer that holds is said to stop it"
    else:
        verdict, why = Verdict.HELD, ""
    return AttemptFinding(attempt, outcome, verdict, why)


def _of_success(
    attempt: Attempt, should: Collection[FenceLayer], *, has_openat2: bool
) -> tuple[Verdict, str]:
    """What it means that an attempt succeeded, and why; `should`: what holds and ought to have stopped it."""
    if should:
        return Verdict.NOT_HELD, f"{' and '.join(sorted(should))} should stop it"
    if attempt.is_residual:
        return Verdict.OPEN, "; ".join(filter(None, ("the full fence leaves it open", attempt.consequence)))
    if not attempt.stopped_by:
        return Verdict.NOT_HELD, "a clean process should not have it"
    could = attempt.stopped_with(attempt.landlock_abi, has_openat2=has_openat2)
    return Verdict.OPEN, f"only {' or '.join(sorted(could))} stops it"


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
        parent: as `standing`.

    Raises:
        WorkerLost: no worker can be had.
        DeadlineExceeded: the whole took too long.
        ConfinementUnavailable: this package lies where everybody may write.
        OSError: the stage cannot be set.

    Cost: 80 ms, and 5 ms an attempt.
    """
    with standing(parent) as (root, targets):
        process = ZygoteProcess(service, [*import_directories(("muniment",)), *directories])
        try:
            return _Trial(process, root, targets, deadline).run(attempts)
        finally:
            process.close()


class _Trial:
    """One trial, while its zygote lives."""

    def __init__(
        self, process: ZygoteProcess, root: int, targets: Mapping[str, object], deadline: float
    ) -> None:
        self._process, self._root, self._targets, self._deadline = process, root, targets, deadline

    def run(self, attempts: Iterable[Attempt]) -> Trial:
        with self._worker() as sibling:
            reported = _greeting(sibling, self._deadline)
            status = read_status(sibling.pid)
            sibling.check_alive()
            held = what_holds(reported, status, read_status(os.getpid()))
            targets = {**self._targets, "zygote": self._process.pid, "sibling": sibling.pid}
            holding, abi = set(FenceLayer).difference(held.missing), offered_abi()
            findings: list[AttemptFinding] = []
            for attempt in attempts:
                outcome, why = self._outcome(attempt, targets)
                findings.append(judge(attempt, outcome, holding, abi, why, has_openat2=available()))
        return Trial(held, reported, findings)

    def _outcome(self, attempt: Attempt, targets: Mapping[str, object]) -> tuple[str, str]:
        with self._worker() as worker:
            _greeting(worker, self._deadline)
            until = min(self._deadline, time.monotonic() + ATTEMPT_SECONDS)
            request = {"t": "attempt", "name": attempt.name, "targets": targets}
            try:
                answer, _ = worker.request(request, max_body=0, patience=Patience(until))
            except WorkerLost:
                return _end_of(worker.status), f"the worker ended by {_end_of(worker.status)}"
            except DeadlineExceeded:
                Patience(self._deadline).check()
                return UNTRIED, f"no answer in {ATTEMPT_SECONDS:.0f} s"
        return str(answer.get("outcome")), str(answer.get("why"))

    def _worker(self) -> Worker:
        return self._process.hatch({Scope(ROOT): self._root}, Patience(self._deadline), _regardless)


def _regardless(by_signal: bool) -> None:  # noqa: FBT001
    """However a worker ends: its zygote stays."""


def _greeting(worker: Worker, deadline: float) -> Mapping[FenceLayer, int]:
    """The layers that a worker calls missing."""
    header, _ = worker.receive(max_body=0, patience=Patience(deadline))
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
