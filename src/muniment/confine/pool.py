"""Where workers come from: one clean zygote per broker process, one worker per run.

P1 A worker comes from a process that never held the broker's environment or memory (`zygote.py`).
P2 Threads may spawn at once; no thread waits for another's worker.
P3 A process is replaced when it died, when it hung, when a signal that is not ours ended a worker of it, and
   after `runs` workers. One that is replaced ends with its last worker; no run is ended for it.
P4 After a fork of the broker the child has a zygote of its own, and holds no end of the parent's.

What a worker is good for stands in `worker.py`. Standard library only, and light: a command line imports this
and starts the zygote before anything else. Attacked by `tests/confine/test_pool*.py`.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import stat
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from muniment.confine.cancel import Cancel, Patience
from muniment.confine.process import ZygoteProcess
from muniment.confine.worker import Worker
from muniment.errors import ConfinementUnavailable, DeadlineExceeded, WorkerLost
from muniment.names import Scope

SERVICE: Final = "muniment.tools.service:serve"
"""What a worker runs; by name, so that this package imports nothing above it."""

IMPORTS: Final = (
    "muniment",
    "pydantic",
    "pydantic_core",
    "pathspec",
    "re2",
    "typing_extensions",
    "annotated_types",
    "typing_inspection",
)
"""What the service imports besides the standard library."""

RUNS_PER_ZYGOTE: Final = 1000
"""Workers of one zygote: they share its address layout and hash seed, which is so renewed now and then."""


class Zygote:
    """A source of workers. Its process is started at need and replaced as P3 says.

    Args:
        service: `module:function` that workers run.
        directories: directories that the zygote imports from; None: `import_directories()`.
        runs: workers of one process, at least 1.
    """

    def __init__(
        self, service: str = SERVICE, *, directories: Sequence[str] | None = None, runs: int = RUNS_PER_ZYGOTE
    ) -> None:
        self._service, self._directories, self._runs = service, directories, runs
        self._lock = threading.Lock()
        self._current: ZygoteProcess | None = None
        self._retiring: set[ZygoteProcess] = set()
        self._closed = False
        _watch_forks()
        _ALIVE.add(self)

    @property
    def pid(self) -> int | None:
        """Process id of the zygote that workers come from now; None: none was started."""
        process = self._current
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the process if none runs, without waiting for it: about 2 ms; it is ready some 170 ms later.

        Raises:
            WorkerLost: it cannot be started, or this was closed.
            ConfinementUnavailable: a directory to import from cannot be relied on.
        """
        with self._lock:
            self._renew()
        self._sweep()

    def wait_ready(self, deadline: float, cancel: Cancel | None = None) -> None:
        """Start the process if none runs, and wait until it can fork workers.

        Args:
            deadline: second on `time.monotonic()`.
            cancel: ends the wait early.

        Raises:
            WorkerLost: it died, or its service cannot be imported; and as `start`.
            ConfinementUnavailable: as `start`.
            Cancelled, DeadlineExceeded: the wait ended.
        """
        with self._lock:
            process = self._renew()
            process.live += 1  # Nobody ends it meanwhile; the worker for which this waits comes next.
        self._sweep()
        try:
            process.wait_ready(Patience(deadline, cancel))
        finally:
            self._release(process, retire=False)

    def spawn(self, roots: Mapping[Scope, int], *, deadline: float, cancel: Cancel | None = None) -> Worker:
        """Have a worker forked.

        Args:
            roots: descriptors that it may hold, by scope; they stay the caller's. Empty: it sees nothing.
            deadline: second on `time.monotonic()`.
            cancel: ends the wait early.

        Returns:
            A worker that nobody spoke to yet. The caller closes it.

        Raises:
            WorkerLost: the zygote died or could not fork; and as `start`.
            ConfinementUnavailable: as `start`.
            Cancelled, DeadlineExceeded: the wait ended. No worker is left behind.

        Cost: about 1 ms with a zygote that is ready; waits for one that is not.
        """
        patience = Patience(deadline, cancel)
        patience.check()
        with self._lock:
            process = self._renew()
            process.hired += 1
            process.live += 1
        self._sweep()
        try:
            hatched = process.hatch(roots, patience)
        except BaseException as error:
            # A process that was up and did not answer in time has hung: the next caller gets another one.
            self._release(process, retire=isinstance(error, DeadlineExceeded) and process.is_ready())
            raise
        return Worker(hatched, lambda by_signal: self._release(process, retire=by_signal))

    def rest(self) -> None:
        """End the process that workers come from, unless one of them lives; the next spawn starts another.

        Cost: about a millisecond, in which nobody has to wait for this; a process that hangs takes a second.
        """
        with self._lock:
            if self._current is not None and self._current.live == 0:
                self._retire(self._current)
        self._sweep()

    def close(self) -> None:
        """End all processes of this zygote, and with them all their workers. It cannot be used again."""
        with self._lock:
            self._closed = True
            processes = self._all()
            self._retiring, self._current = set(), None
        for process in processes:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _renew(self) -> ZygoteProcess:
        """The process that the next worker comes from; the lock is held."""
        if self._closed:
            raise WorkerLost("this zygote was closed")
        current = self._current
        if current is not None and (current.hired >= self._runs or current.is_gone()):
            self._retire(current)
            current = None
        if current is None:
            directories = import_directories() if self._directories is None else self._directories
            current = self._current = ZygoteProcess(self._service, directories)
        return current

    def _retire(self, process: ZygoteProcess) -> None:
        """Take no further workers from it; the lock is held."""
        if process is self._current:
            self._current = None
            self._retiring.add(process)

    def _release(self, process: ZygoteProcess, *, retire: bool) -> None:
        """One worker less."""
        with self._lock:
            process.live -= 1
            if retire:
                self._retire(process)
        self._sweep()

    def _sweep(self) -> None:
        """End retired processes that have no worker left; without the lock, since that takes a moment."""
        with self._lock:
            idle = {process for process in self._retiring if process.live == 0}
            self._retiring -= idle
        for process in idle:
            process.close()

    def _all(self) -> list[ZygoteProcess]:
        return [*self._retiring, *([] if self._current is None else [self._current])]

    def _forget(self) -> None:
        """Start anew in a fork of the broker, where the lock may be held by a thread that does not exist."""
        self._lock = threading.Lock()
        for process in self._all():
            process.forsake()
        self._retiring, self._current = set(), None


@dataclass(slots=True)
class _Shared:
    zygote: Zygote | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_SHARED: Final = _Shared()
_ALIVE: Final[weakref.WeakSet[Zygote]] = weakref.WeakSet()


def shared_zygote() -> Zygote:
    """The zygote of this process for the usual service: made at first need, not started, closed at exit."""
    with _SHARED.lock:
        if _SHARED.zygote is None:
            _SHARED.zygote = Zygote()
            atexit.register(_SHARED.zygote.close)
        return _SHARED.zygote


def import_directories(names: Iterable[str] = IMPORTS) -> tuple[str, ...]:
    """The directories that this process would load `names` from, in order, each once. Imports none of them.

    Raises:
        ConfinementUnavailable: a package is missing, or lies in a directory that everybody may write to or
            that has no absolute path.
    """
    directories = dict.fromkeys(_directory(name) for name in names)
    for directory in directories:
        if not directory.is_absolute() or directory.stat().st_mode & stat.S_IWOTH:
            remedy = (
                f"{str(directory)!r} is writable by everybody or relative; install elsewhere or chmod o-w it"
            )
            raise ConfinementUnavailable("partial", "none", remedy)
    return tuple(map(str, directories))


def _directory(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.has_location or spec.origin is None:
        raise ConfinementUnavailable("partial", "none", f"the package {name!r} is not installed as files")
    origin = Path(spec.origin)
    return origin.parent.parent if spec.submodule_search_locations is not None else origin.parent


@functools.cache
def _watch_forks() -> None:
    # At first need and not on import; a second registration would find nothing left to do.
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    _SHARED.lock = threading.Lock()
    for zygote in tuple(_ALIVE):
        zygote._forget()  # noqa: SLF001 - the other half of this module's fork handling


__all__ = ["SERVICE", "Worker", "Zygote", "import_directories", "shared_zygote"]
