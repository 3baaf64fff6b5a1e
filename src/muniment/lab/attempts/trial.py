"""Run every attempt in a separate worker with the fence of this system, and judge its outcome.

- R1 If an attempt succeeds although an active layer should stop it, the verdict is `NOT_STOPPED`, for any
  reason.
- R2 If an attempt cannot run here, or fails although no active layer is known to stop it, it is reported with
  the reason. It counts neither as stopped nor as a failure.
- R3 A trial leaves no files or processes, even if it fails.

The workers come from a separate zygote, because most of them die by a signal, after which the pool would
replace its zygote. Attacked by `tests/units/lab/test_attempts.py`, with each layer removed.
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
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Scope
from muniment.kernel.syscalls import is_openat2_available
from muniment.lab.attempts.attempt import (
    ATTEMPTS,
    DONE,
    EXECUTED,
    ROOT,
    UNTRIED,
    Attempt,
    build_program,
    read_handle,
)
from muniment.names import Confinement, FenceLayer
from muniment.sandbox.fence.evidence import determine_confinement, read_status
from muniment.sandbox.fence.layers import read_landlock_abi
from muniment.sandbox.fence.pool import Worker, ZygoteProcess, describe, find_import_directories

# -- stage -------------------------------------------------------------------------------------------
#
# The throwaway targets of a trial: a root, an outside directory, sockets, and a canary in this process's
# memory. Everything that an attempt may change is in one private temporary directory, each file for one
# attempt only, so that attempts do not depend on each other:
#
#     root      link → outside/secret, linked → outside, and the files to be changed
#     outside   secret, program, socket, and the files to be changed

IN_ROOT: Final = ("written.md", "emptied.md", "deleted.md", "old.md", "moded.md")
IN_OUTSIDE: Final = ("written", "shortened")

_NEEDLE_BYTES: Final = 64
_HARMLESS_VARIABLES: Final = (b"PATH", b"HOME", b"PWD", b"LANG")
"""Environment variables that a worker of a trial may know; other variables may contain keys."""


@contextlib.contextmanager
def create_targets(parent: Path | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Create the targets of a trial, and remove them at the end of the block.

    Args:
        parent: parent of the directory of the targets; None: the system's directory for temporary files.

    Yields:
        The descriptor of the workers' root, and a dictionary with the other fields of `Targets`, except
        `connection` and the process ids `zygote` and `sibling`.

    Raises:
        OSError: the targets cannot be created.
    """
    canary = secrets.token_hex(16)
    canary_buffer = ctypes.create_string_buffer(canary.encode())
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="muniment-trial-", dir=parent))
        )
        outside = _fill_directories(directory, canary)
        root = os.open(directory / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, root)
        targets = {
            "outside": str(outside),
            "canary": canary,
            "broker": os.getpid(),
            "canary_address": ctypes.addressof(canary_buffer),
            **_open_sockets(stack, outside),
            "pipe": _create_pipe(stack, canary),
            "handle": _read_handle(outside / "secret"),
            "library": _find_library(),
            "needle": _choose_needle().hex(),
        }
        yield root, targets


def _fill_directories(directory: Path, canary: str) -> Path:
    root, outside = directory / "root", directory / "outside"
    for each in (root, outside):
        each.mkdir(mode=0o700)
    for path in (*(root / name for name in IN_ROOT), *(outside / name for name in IN_OUTSIDE)):
        path.write_text("text\n", encoding="utf-8")
    (outside / "secret").write_text(canary, encoding="utf-8")
    (outside / "program").write_bytes(build_program())
    (outside / "program").chmod(0o700)
    (root / "link").symlink_to(outside / "secret")
    (root / "linked").symlink_to(outside)
    return outside


def _open_sockets(stack: contextlib.ExitStack, outside: Path) -> dict[str, Any]:
    tcp = stack.enter_context(socket.socket())
    tcp.bind(("127.0.0.1", 0))
    tcp.listen()
    udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    abstract.bind("")  # The kernel chooses an unused name.
    abstract.listen()
    with contextlib.suppress(OSError):  # The path may be too long for a socket; the attempt reports it.
        path = stack.enter_context(socket.socket(socket.AF_UNIX))
        path.bind(str(outside / "socket"))
        path.listen()
    return {
        "listener": tcp.fileno(),
        "tcp": tcp.getsockname()[1],
        "udp": udp.getsockname()[1],
        "abstract": abstract.getsockname()[1:].decode(),
    }


def _create_pipe(stack: contextlib.ExitStack, canary: str) -> int:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    for fd in (reading, writing):
        stack.callback(os.close, fd)
    os.write(writing, canary.encode())
    return reading


def _read_handle(path: Path) -> str:
    """Return the handle of a file in hexadecimal; empty if the file has none or a filter denies the call."""
    try:
        return read_handle(os.fsencode(path)).hex()
    except OSError:
        return ""


def _find_library() -> str:
    """Return the path of a library that workers of a trial do not load, or an empty string."""
    (directory,) = find_import_directories(("pydantic_core",))
    return str(next(Path(directory, "pydantic_core").glob("*.so"), ""))


def _choose_needle() -> bytes:
    """Return the start of the longest harmless variable of this environment; empty if all are missing.

    A process can read either its whole environment or nothing, so one variable is enough.
    """
    variables = (b"%s=%s" % (name, value) for name in _HARMLESS_VARIABLES if (value := os.environb.get(name)))
    return max(variables, key=len, default=b"")[:_NEEDLE_BYTES]


# -- trial -------------------------------------------------------------------------------------------

SERVICE: Final = "muniment.lab.attempts.attempt:serve_attempt"

ATTEMPT_SECONDS: Final = 5.0
"""Time limit of one attempt in seconds, after its worker is ready; an attempt needs milliseconds."""

DENIALS: Final = frozenset({"EACCES", "EPERM", "SIGSYS", "EAGAIN", "EFBIG", "EMFILE", "ENOMEM"})
"""The outcomes that show that a layer has denied an attempt."""


class Verdict(StrEnum):
    """The meaning of an attempt's outcome."""

    STOPPED = "held"
    NOT_STOPPED = "not held"
    """The attempt succeeded although an active layer should stop it."""
    OPEN = "open"
    """The attempt succeeded, and no active layer is known to stop it."""
    UNTRIED = "not tried"
    """The attempt could not run, or it failed and nothing shows which layer stopped it."""


@dataclass(frozen=True, slots=True)
class AttemptFinding:
    """The result of one attempt.

    Attributes:
        attempt: the attempt.
        outcome: `DONE`, `UNTRIED`, an errno, a signal, or the name of another error.
        verdict: the meaning of the outcome.
        why: the reason for any verdict except `STOPPED`.
    """

    attempt: Attempt
    outcome: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial.

    Attributes:
        confinement: the confinement of a worker, as a run would report it.
        reported: layers that a worker reports as missing, each with the errno.
        findings: the results of the attempts, in the order in which they ran.
    """

    confinement: Confinement
    reported: Mapping[FenceLayer, int]
    findings: Sequence[AttemptFinding]


def judge_outcome(
    attempt: Attempt,
    outcome: str,
    active_layers: Collection[FenceLayer],
    abi: int,
    why: str = "",
    *,
    has_openat2: bool = True,
) -> AttemptFinding:
    """Judge the outcome of an attempt.

    Args:
        attempt: the attempt.
        outcome: its outcome.
        active_layers: layers that are active in the worker.
        abi: version of the Landlock ABI.
        why: why the attempt could not run; otherwise empty.
        has_openat2: whether the system has the call `openat2`.
    """
    stopped_by = attempt.find_stopping_layers(abi, has_openat2=has_openat2)
    verdict = Verdict.UNTRIED
    if outcome == DONE:
        verdict, why = _judge_success(
            attempt, stopped_by.intersection(active_layers), has_openat2=has_openat2
        )
    elif outcome != attempt.expected and outcome not in DENIALS:
        why = why or f"the system returned {outcome}"
    elif attempt.stopped_by and (stopped_by | attempt.ordinary).isdisjoint(active_layers):
        why = "it failed, although no active layer is known to stop it"
    else:
        verdict, why = Verdict.STOPPED, ""
    return AttemptFinding(attempt, outcome, verdict, why)


def _judge_success(
    attempt: Attempt, expected_layers: Collection[FenceLayer], *, has_openat2: bool
) -> tuple[Verdict, str]:
    """Return the verdict on an attempt that succeeded, and the reason.

    Args:
        attempt: the attempt.
        expected_layers: the active layers that should stop it.
        has_openat2: whether the system has the call `openat2`.
    """
    if expected_layers:
        return Verdict.NOT_STOPPED, f"{' and '.join(sorted(expected_layers))} should stop it"
    if attempt.is_residual:
        return Verdict.OPEN, "; ".join(filter(None, ("the full fence does not stop it", attempt.consequence)))
    if not attempt.stopped_by:
        return Verdict.NOT_STOPPED, "the clean process of a worker should not contain it"
    sufficient_layers = attempt.find_stopping_layers(attempt.landlock_abi, has_openat2=has_openat2)
    return Verdict.OPEN, f"only {' or '.join(sorted(sufficient_layers))} stops it"


def run_trial(
    deadline: float,
    *,
    service: str = SERVICE,
    directories: Sequence[str] = (),
    attempts: Iterable[Attempt] = ATTEMPTS.values(),
    parent: Path | None = None,
) -> Trial:
    """Run attempts, each in a throwaway worker.

    Args:
        deadline: time limit of the whole trial, on `time.monotonic()`.
        service: the function that each worker runs, as `module:function`.
        directories: further directories from which the zygote imports modules.
        attempts: the attempts, in the order in which they run.
        parent: parent of the directory of the targets, as for `create_targets`.

    Raises:
        WorkerLost: no worker can be started.
        DeadlineExceeded: the trial took too long.
        ConfinementUnavailable: this package is in a directory that any user may write.
        OSError: the targets cannot be created.

    Cost: 80 ms, and 5 ms for each attempt.
    """
    with create_targets(parent) as (root, targets):
        process = ZygoteProcess(service, [*find_import_directories(("muniment",)), *directories])
        try:
            return _Trial(process, root, targets, deadline).run(attempts)
        finally:
            process.close()


class _Trial:
    """Runs one trial, while its zygote lives."""

    def __init__(
        self, process: ZygoteProcess, root: int, targets: Mapping[str, object], deadline: float
    ) -> None:
        self._process, self._root, self._targets, self._deadline = process, root, targets, deadline

    def run(self, attempts: Iterable[Attempt]) -> Trial:
        with self._start_worker() as sibling:
            reported = _read_missing_layers(sibling, self._deadline)
            status = read_status(sibling.pid)
            sibling.check_alive()
            confinement = determine_confinement(reported, status, read_status(os.getpid()))
            targets = {**self._targets, "zygote": self._process.pid, "sibling": sibling.pid}
            active_layers, abi = set(FenceLayer).difference(confinement.missing), read_landlock_abi()
            findings: list[AttemptFinding] = []
            for attempt in attempts:
                outcome, why = self._run_attempt(attempt, targets)
                findings.append(
                    judge_outcome(
                        attempt, outcome, active_layers, abi, why, has_openat2=is_openat2_available()
                    )
                )
        return Trial(confinement, reported, findings)

    def _run_attempt(self, attempt: Attempt, targets: Mapping[str, object]) -> tuple[str, str]:
        with self._start_worker() as worker:
            _read_missing_layers(worker, self._deadline)
            deadline = min(self._deadline, time.monotonic() + ATTEMPT_SECONDS)
            request = {"t": "attempt", "name": attempt.name, "targets": targets}
            try:
                response, _ = worker.request(request, max_body=0, deadline=Deadline(deadline))
            except WorkerLost:
                return _describe_end(worker.status), f"the worker ended by {_describe_end(worker.status)}"
            except DeadlineExceeded:
                Deadline(self._deadline).check()
                return UNTRIED, f"no response in {ATTEMPT_SECONDS:.0f} s"
        return str(response.get("outcome")), str(response.get("why"))

    def _start_worker(self) -> Worker:
        return self._process.fork_worker({Scope(ROOT): self._root}, Deadline(self._deadline), _ignore_end)


def _ignore_end(by_signal: bool) -> None:  # noqa: FBT001
    """Do nothing when a worker ends, so that the zygote is not replaced."""


def _read_missing_layers(worker: Worker, deadline: float) -> Mapping[FenceLayer, int]:
    """Return the layers that a worker reports as missing, each with the errno.

    Raises:
        WorkerLost: the worker sent an invalid report.
    """
    header, _ = worker.receive(max_body=0, deadline=Deadline(deadline))
    missing = header.get("missing")
    if isinstance(missing, dict) and set(missing) <= set(FenceLayer):
        numbers = {FenceLayer(name): number for name, number in missing.items() if isinstance(number, int)}
        if len(numbers) == len(missing):
            return numbers
    worker.kill()
    raise WorkerLost("the worker did not report its layers")


def _describe_end(status: int | None) -> str:
    """Return the outcome that the exit status of a worker shows."""
    if status is not None and os.waitstatus_to_exitcode(status) == EXECUTED:
        return DONE
    return describe(status).removeprefix("signal ")
