"""Where workers come from: one clean zygote per broker process, one worker per run.

P1 A worker comes from a process that never held the broker's environment or memory (`zygote.py`).
P2 Threads may spawn at once; no thread waits for another's worker.
P3 A process is replaced when it died, when it hung, when a signal that is not ours ended a worker of it, and
   after `runs` workers. One that is replaced ends with its last worker; no run is ended for it.
P4 After a fork of the broker the child has a zygote of its own, and holds no end of the parent's.

Standard library only, and light: a command line imports this
and starts the zygote before anything else. Attacked by `tests/units/fence/test_pool.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import importlib.util
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from muniment.errors import ConfinementUnavailable, DeadlineExceeded, WorkerLost
from muniment.fence.wire import (
    MAX_CONTROL_BYTES,
    MAX_ROOTS,
    Channel,
    ExitCode,
    ProtocolViolation,
    Ready,
    Unsendable,
    parse_object,
    receive_with_fds,
    send_with_fds,
)
from muniment.kernel.cancel import Cancel, Patience
from muniment.kernel.names import Scope

# -- process -----------------------------------------------------------------------------------------
#
# One zygote process, seen from the broker: started, asked for workers, ended.
#
# Everything about one worker comes back on a socket that was made for it alone, so threads that ask at once
# share nothing but the control socket, whose messages are atomic. When the broker gives up on a request it
# closes that socket, and the zygote kills the worker that nobody will own.
#
# Standard library only, so that a command line can start this before its own imports. `pool.py` decides
# when a process is started and retired; `zygote.py` is the other end.

LEAVE_SECONDS: Final = 1.0
"""Seconds that a zygote has to leave after its control socket closed, before it is killed. It takes about a
millisecond; one that was stopped never does."""

_CODE: Final = (
    "import sys; sys.path.extend(sys.argv[3:]); "
    "from muniment.fence import zygote; zygote.main(int(sys.argv[1]), sys.argv[2])"
)


@dataclass(frozen=True, slots=True)
class Hatched:
    """A new worker and what belongs to it. Whoever holds this closes all of it.

    Attributes:
        pid: for messages only; signals go by `pidfd`.
        pidfd: readable once the worker ended.
        sock: our end of its connection, non-blocking.
        report: where the zygote tells its exit status, non-blocking.
    """

    pid: int
    pidfd: int
    sock: socket.socket
    report: socket.socket


class ZygoteProcess:
    """A running zygote.

    Args:
        service: `module:function` that its workers run.
        directories: absolute directories that it imports from, besides the standard library's. They come
            behind those, so that nothing in them takes the place of a standard module.

    Attributes:
        pid: process id.
        hired: workers asked for so far.
        live: workers that were asked for and have not ended.

    Raises:
        WorkerLost: it could not be started.
    """

    def __init__(self, service: str, directories: Sequence[str]) -> None:
        self.hired = 0
        self.live = 0
        ours, theirs = _pair(socket.SOCK_SEQPACKET)
        try:
            with theirs:
                # Empty environment, own session, no standard streams; -I -S: no user site, no cwd on the
                # path, no `.pth` files.
                self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter and a constant program
                    [sys.executable, "-I", "-S", "-c", _CODE, str(theirs.fileno()), service, *directories],
                    env={},
                    cwd="/",
                    umask=0o077,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            ours.close()
            raise WorkerLost(f"the zygote could not be started: {error}") from error
        self._control = ours
        self.pid = self._popen.pid

    def is_gone(self) -> bool:
        """Whether it has ended, as far as the kernel knows already."""
        poller = select.poll()
        poller.register(self._control, 0)  # a hang-up is always told
        return bool(poller.poll(0))

    def is_ready(self) -> bool:
        """Whether it said that it is ready; it may have ended since."""
        return "ready" in self._said()

    def wait_ready(self, patience: Patience) -> None:
        """Wait until workers can be forked.

        Raises:
            WorkerLost: it could not import or warm its service, or died.
            Cancelled, DeadlineExceeded: as `patience` says.
        """
        patience.wait(self._control.fileno(), select.POLLIN)
        if not self.is_ready():
            raise self._lost()

    def hatch(self, roots: Mapping[Scope, int], patience: Patience) -> Hatched:
        """Have a worker forked that holds `roots`. The caller keeps its own descriptors.

        Raises:
            WorkerLost: too many roots, the fork failed, or the zygote died or never came up.
            Cancelled, DeadlineExceeded: as `patience` says. A worker forked too late is killed.
        """
        request = json.dumps({"scopes": list(roots)}).encode()
        if len(roots) > MAX_ROOTS or len(request) > MAX_CONTROL_BYTES:
            raise WorkerLost(f"a worker takes at most {MAX_ROOTS} roots")
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            sock, their_sock = _pair(socket.SOCK_STREAM)
            ours.enter_context(sock)
            theirs.enter_context(their_sock)
            report, their_report = _pair(socket.SOCK_SEQPACKET)
            ours.enter_context(report)
            theirs.enter_context(their_report)
            self._ask(request, [their_report.fileno(), their_sock.fileno(), *roots.values()], patience)
            # The kernel holds copies for the zygote now; with ours closed, its end shows as a hang-up.
            theirs.close()
            try:
                patience.wait(report.fileno(), select.POLLIN)
            except BaseException:
                _disown(report)
                raise
            pid, pidfd = self._hatched(report)
            ours.pop_all()
            return Hatched(pid, pidfd, sock, report)

    def close(self) -> None:
        """End the process and all its workers, and wait until it is gone."""
        self._control.close()
        try:
            self._popen.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()  # our own child, not reaped: the id is still its own
            self._popen.wait()

    def forsake(self) -> None:
        """Let go of it in a fork of the broker, where it is somebody else's child: signal nothing."""
        self._control.close()
        # Finds out that there is no such child, which keeps `Popen` from looking after it.
        self._popen.poll()

    def _ask(self, request: bytes, fds: list[int], patience: Patience) -> None:
        while True:
            patience.wait(self._control.fileno(), select.POLLOUT)
            try:
                send_with_fds(self._control, request, fds)
            except BlockingIOError:
                continue
            except ConnectionError:
                raise self._lost() from None
            except OSError as error:
                raise WorkerLost(f"the zygote could not be asked for a worker: {error}") from error
            return

    def _hatched(self, report: socket.socket) -> tuple[int, int]:
        message, fds = receive_report(report)
        match message, fds:
            case {"pid": int(pid)}, [pidfd]:
                return pid, pidfd
            case {"errno": int(number)}, []:
                raise WorkerLost(f"the zygote could not fork a worker: {os.strerror(number)}")
            case _:
                for fd in fds:
                    os.close(fd)
                raise self._lost()

    def _said(self) -> dict[str, object]:
        # Looked at and left there: whoever asks next finds it as well, and no thread need tell another.
        try:
            message = self._control.recv(MAX_CONTROL_BYTES, socket.MSG_PEEK)
            return parse_object(message) if message else {}
        except (OSError, ProtocolViolation):
            return {}

    def _lost(self) -> WorkerLost:
        why = self._said().get("failed")
        return WorkerLost(f"the zygote failed: {why}" if isinstance(why, str) else "the zygote died")


def receive_report(report: socket.socket) -> tuple[dict[str, object], list[int]]:
    """What the zygote tells about a worker, as it is now; nothing, or no message: ({}, descriptors)."""
    try:
        message, fds, _ = receive_with_fds(report)
    except OSError:
        return {}, []
    try:
        return (parse_object(message) if message else {}), fds
    except ProtocolViolation:
        return {}, fds


def _disown(report: socket.socket) -> None:
    """Leave no worker behind that nobody owns: from here on the zygote kills it, what came before we kill."""
    report.shutdown(socket.SHUT_RD)
    _, fds = receive_report(report)
    for pidfd in fds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def _pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        raise WorkerLost(f"no socket for a worker: {os.strerror(error.errno or errno.EIO)}") from error
    ours.setblocking(False)
    return ours, theirs


# -- worker ------------------------------------------------------------------------------------------
#
# A worker, seen from the broker: one run's process and the connection to it.
#
# W1 Nothing that a worker does outlasts the caller's deadline: lies, floods, silence, a drip of bytes, a
# socket that is closed or not read. W2 Whatever breaks an exchange ends the worker: killed through its
# pidfd, never by number, and of no further use. A lost answer can so never be taken for the next one. W3 A
# run has ended when its pidfd is readable, and `Worker.close` returns only then. W4 No descriptor is left
# behind, whichever way a run ends.
#
# What does not hold: what a worker *says* is checked as a message and no further; nothing here fences it
# against native code. A worker belongs to the process that spawned it, and not to forks of that. Standard
# library only. Attacked by `tests/attacks/test_pool_hostile.py`.

END_SECONDS: Final = 5.0
"""Seconds that a killed worker has to be gone; only a process stuck in the kernel needs longer."""

GRACE_SECONDS: Final = 0.2
"""Seconds that a worker has to end by itself once it closed its connection: its exit code says why it did."""

REPORT_SECONDS: Final = 0.5
"""Seconds that the zygote has to tell the status of an ended worker. Only a stopped zygote needs longer."""


class Worker:
    """A worker of one run. One thread speaks to it and closes it; any thread may `kill` it.

    Args:
        hatched: what belongs to it; owned from here on.
        ended: called once, when it ended; with True if a signal that we did not send ended it.

    Attributes:
        pid: process id, for messages and tests; it may be recycled once the worker was closed.
        status: once it has ended, how, as wait(2) gives it; None: nobody could tell.
    """

    def __init__(self, hatched: Hatched, ended: Callable[[bool], None]) -> None:
        self.pid = hatched.pid
        self._pidfd, self._sock, self._report = hatched.pidfd, hatched.sock, hatched.report
        self._channel = Channel(hatched.sock)
        self._ended = ended
        self.status: int | None = None
        self._fate: str | None = None
        self._killed = False
        # Reentrant: a signal handler may call `kill` while this very thread is in `close`.
        self._lock = threading.RLock()

    def send(
        self,
        header: Mapping[str, object],
        body: bytes = b"",
        *,
        deadline: float,
        cancel: Cancel | None = None,
    ) -> None:
        """Send one message; nothing the worker said may be unread.

        Args:
            header: as `Channel.send`.
            body: as `Channel.send`.
            deadline: second on `time.monotonic()`.
            cancel: ends the wait early.

        Raises:
            Unsendable: the format cannot carry it. Nothing was sent, and the worker is as it was.
            WorkerLost: it died, closed its connection, or spoke without being asked. It was ended.
            Cancelled, DeadlineExceeded: the wait ended. The worker was ended.
        """
        with self._exchange(Patience(deadline, cancel)) as ready:
            self._check_silent()
            self._channel.send(header, body, ready=ready)

    def receive(
        self, *, max_body: int, deadline: float, cancel: Cancel | None = None
    ) -> tuple[dict[str, object], bytes]:
        """Receive one message: header and body, as `Channel.receive`.

        Args:
            max_body: bytes of body that are accepted.
            deadline: second on `time.monotonic()`, for the whole message.
            cancel: ends the wait early.

        Raises:
            WorkerLost: it died, closed its connection, or sent no message. It was ended.
            Cancelled, DeadlineExceeded: the wait ended. The worker was ended.
        """
        with self._exchange(Patience(deadline, cancel)) as ready:
            return self._channel.receive(max_body, ready=ready)

    def request(
        self,
        header: Mapping[str, object],
        body: bytes = b"",
        *,
        max_body: int,
        deadline: float,
        cancel: Cancel | None = None,
    ) -> tuple[dict[str, object], bytes]:
        """`send`, then `receive`; raises as these do."""
        self.send(header, body, deadline=deadline, cancel=cancel)
        return self.receive(max_body=max_body, deadline=deadline, cancel=cancel)

    def check_alive(self) -> None:
        """Return while the worker lives: what the system told of `pid` until then, it told of this worker.

        Raises:
            WorkerLost: it has ended, so the id may be another process's by now.
        """
        if self._fate is not None or self._has_ended():
            raise self._lost("ended")

    def kill(self) -> None:
        """End the worker now, whatever it does. It still has to be closed."""
        with self._lock:
            if self._fate is None:
                self._killed = True
                with contextlib.suppress(ProcessLookupError):  # it ended already
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill the worker if it still runs, wait until it ended, give everything back. May be repeated.

        Raises:
            WorkerLost: it was killed and is still there after `END_SECONDS`.
        """
        self._end("closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _exchange(self, patience: Patience) -> Iterator[Ready]:
        if self._fate is not None:
            raise WorkerLost(f"worker {self.pid} is gone: {self._fate}")

        def ready(mask: int) -> None:
            if not patience.wait(self._sock.fileno(), mask, alive=self._pidfd):
                raise EOFError

        try:
            yield ready
        except Unsendable:
            raise
        except EOFError:
            raise self._lost("closed its connection", grace=GRACE_SECONDS) from None
        except ProtocolViolation as violation:
            raise self._lost(f"broke the protocol: {violation}") from None
        except OSError as error:
            raise self._lost(f"could not be reached: {error}") from error
        except BaseException as error:
            self._end(f"given up after {type(error).__name__}")
            raise

    def _check_silent(self) -> None:
        # One request in flight: an answer that lies there already belongs to no question.
        try:
            waiting = self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except ConnectionError:
            waiting = b""
        if not waiting:
            raise EOFError
        raise ProtocolViolation("it spoke without being asked")

    def _lost(self, what: str, *, grace: float = 0.0) -> WorkerLost:
        return WorkerLost(f"worker {self.pid} {self._end(what, grace)}")

    def _end(self, what: str, grace: float = 0.0) -> str:
        with self._lock:
            if self._fate is not None:
                return self._fate
            by_signal = False
            try:
                if grace:
                    self._is_over(grace)
                self.kill()
                self._fate = what
                self._sock.close()
                if not self._is_over(END_SECONDS):
                    raise WorkerLost(f"worker {self.pid} was killed and is still there")
                status = self.status = self._status()
                by_signal = status is not None and os.WIFSIGNALED(status) and not self._was_ours(status)
                self._fate = f"{what} ({describe(status)})"
            finally:
                self._sock.close()
                self._report.close()
                os.close(self._pidfd)
                self._ended(by_signal)
            return self._fate

    def _was_ours(self, status: int) -> bool:
        return self._killed and os.WTERMSIG(status) == signal.SIGKILL

    def _is_over(self, seconds: float) -> bool:
        try:
            Patience(time.monotonic() + seconds).wait(self._pidfd, select.POLLIN)
        except DeadlineExceeded:
            return False
        return True

    def _has_ended(self) -> bool:
        """Whether it has ended, as far as the kernel knows already."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def _status(self) -> int | None:
        try:
            Patience(time.monotonic() + REPORT_SECONDS).wait(self._report.fileno(), select.POLLIN)
        except DeadlineExceeded:
            return None
        status = receive_report(self._report)[0].get("status")
        return status if isinstance(status, int) else None


def describe(status: int | None) -> str:
    """How a process ended, for people: `exit code 70 (bug)`, `signal SIGKILL`, `status unknown`.

    Args:
        status: as wait(2) gives it; None: nobody could tell.
    """
    if status is None:
        return "status unknown"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # Real-time signals have no name of their own.
        return f"signal {signal.Signals(number).name if number in set(signal.Signals) else number}"
    code = os.WEXITSTATUS(status)
    return (
        f"exit code {code} ({ExitCode(code).name.lower()})" if code in set(ExitCode) else f"exit code {code}"
    )


# -- pool --------------------------------------------------------------------------------------------

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
