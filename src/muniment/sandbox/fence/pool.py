"""Where workers come from: one clean zygote per broker process, one worker per run.

P1 A worker comes from a process that never held the broker's environment or memory (`zygote.py`).
P2 Threads may spawn at once; no thread waits for another's worker.
P3 A process is replaced when it died, when it hung, when a signal that is not ours ended a worker of it, and
   after `runs` workers. One that is replaced ends with its last worker; no run is ended for it.
P4 After a fork of the broker the child has a zygote of its own, and holds no end of the parent's.

Standard library only, and light: a command line imports this and starts the zygote before anything else.
Attacked by `tests/units/sandbox/test_pool.py`.
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
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from muniment.errors import ConfinementUnavailable, DeadlineExceeded, WorkerLost
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Scope
from muniment.sandbox.fence.wire import (
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

# -- process -----------------------------------------------------------------------------------------
#
# One zygote process, seen from the broker: started, asked for workers, ended.
#
# Everything about one worker comes back on a socket that was made for it alone, so threads that ask at once
# share nothing but the control socket, whose messages are atomic. When the broker gives up on a request it
# closes that socket, and the zygote kills the worker that nobody will own. `Zygote` decides when a process
# is started and retired; `zygote.py` is the other end.

LEAVE_SECONDS: Final = 1.0
"""Seconds that a zygote has to leave after its control socket closed, before it is killed. It takes about a
millisecond; one that was stopped never does."""

_CODE: Final = (
    "import sys; sys.path.extend(sys.argv[3:]); "
    "from muniment.sandbox.fence import zygote; zygote.main(int(sys.argv[1]), sys.argv[2])"
)


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
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._control, control = _pair(socket.SOCK_SEQPACKET, ours, theirs)
            try:
                # Empty environment, own session, no standard streams; -I -S: no user site, no cwd on the
                # path, no `.pth` files.
                self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter and a constant program
                    [sys.executable, "-I", "-S", "-c", _CODE, str(control.fileno()), service, *directories],
                    env={},
                    cwd="/",
                    umask=0o077,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(control.fileno(),),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise WorkerLost(f"the zygote could not be started: {error}") from error
            ours.pop_all()
        self.pid = self._popen.pid

    def is_gone(self) -> bool:
        """Whether it has ended, as far as the kernel knows already."""
        return _polled(self._control, 0)  # A hang-up is always told.

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

    def hatch(self, roots: Mapping[Scope, int], patience: Patience, ended: Callable[[bool], None]) -> Worker:
        """Have a worker forked that holds `roots`; these stay the caller's, who closes the worker.

        Args:
            roots: descriptors by scope.
            patience: ends the wait. A worker forked too late is killed.
            ended: as `Worker`.

        Raises:
            WorkerLost: too many roots, the fork failed, or the zygote died or never came up.
            Cancelled, DeadlineExceeded: as `patience` says.
        """
        request = json.dumps({"scopes": list(roots)}).encode()
        if len(roots) > MAX_ROOTS or len(request) > MAX_CONTROL_BYTES:
            raise WorkerLost(f"a worker takes at most {MAX_ROOTS} roots")
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            sock, their_sock = _pair(socket.SOCK_STREAM, ours, theirs)
            report, their_report = _pair(socket.SOCK_SEQPACKET, ours, theirs)
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
            return Worker(pid, pidfd, sock, report, ended)

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


def _pair(
    kind: socket.SocketKind, ours: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, each closed by the stack of its side; ours does not block."""
    try:
        one, other = socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        raise WorkerLost(f"no socket for a worker: {os.strerror(error.errno or errno.EIO)}") from error
    one.setblocking(False)
    return ours.enter_context(one), theirs.enter_context(other)


def _polled(what: int | socket.socket, mask: int = select.POLLIN, seconds: float = 0.0) -> bool:
    """Whether something has an event of `mask`, or hung up, by now or within so many seconds."""
    poller = select.poll()
    poller.register(what, mask)
    return bool(poller.poll(seconds * 1000))


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
# against native code. A worker belongs to the process that spawned it, and not to forks of that. Attacked by
# `tests/attacks/test_pool_hostile.py`.

END_SECONDS: Final = 5.0
"""Seconds that a killed worker has to be gone; only a process stuck in the kernel needs longer."""

GRACE_SECONDS: Final = 0.2
"""Seconds that a worker has to end by itself once it closed its connection: its exit code says why it did."""

REPORT_SECONDS: Final = 0.5
"""Seconds that the zygote has to tell the status of an ended worker. Only a stopped zygote needs longer."""


class Worker:
    """A worker of one run. One thread speaks to it and closes it; any thread may `kill` it.

    Args:
        pid: for messages only; signals go by `pidfd`.
        pidfd: readable once the worker ended. This and the sockets are owned from here on.
        sock: our end of its connection, non-blocking.
        report: where the zygote tells its exit status, non-blocking.
        ended: called once, when it ended; with True if a signal that we did not send ended it.

    Attributes:
        pid: process id, for messages and tests; it may be recycled once the worker was closed.
        status: once it has ended, how, as wait(2) gives it; None: nobody could tell.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        sock: socket.socket,
        report: socket.socket,
        ended: Callable[[bool], None],
    ) -> None:
        self.pid = pid
        self._pidfd, self._sock, self._report = pidfd, sock, report
        self._channel = Channel(sock)
        self._ended = ended
        self.status: int | None = None
        self._fate: str | None = None
        self._killed = False
        # Reentrant: a signal handler may call `kill` while this very thread is in `close`.
        self._lock = threading.RLock()

    def send(self, header: Mapping[str, object], body: bytes = b"", *, patience: Patience) -> None:
        """Send one message; nothing the worker said may be unread.

        Args:
            header: as `Channel.send`.
            body: as `Channel.send`.
            patience: ends the wait.

        Raises:
            Unsendable: the format cannot carry it. Nothing was sent, and the worker is as it was.
            WorkerLost: it died, closed its connection, or spoke without being asked. It was ended.
            Cancelled, DeadlineExceeded: the wait ended. The worker was ended.
        """
        with self._exchange(patience) as ready:
            self._check_silent()
            self._channel.send(header, body, ready=ready)

    def receive(self, *, max_body: int, patience: Patience) -> tuple[dict[str, object], bytes]:
        """Receive one message: header and body, as `Channel.receive`.

        Args:
            max_body: bytes of body that are accepted.
            patience: ends the wait for the whole message.

        Raises:
            WorkerLost: it died, closed its connection, or sent no message. It was ended.
            Cancelled, DeadlineExceeded: the wait ended. The worker was ended.
        """
        with self._exchange(patience) as ready:
            return self._channel.receive(max_body, ready=ready)

    def request(
        self, header: Mapping[str, object], body: bytes = b"", *, max_body: int, patience: Patience
    ) -> tuple[dict[str, object], bytes]:
        """`send`, then `receive`; raises as these do."""
        self.send(header, body, patience=patience)
        return self.receive(max_body=max_body, patience=patience)

    def check_alive(self) -> None:
        """Return while the worker lives: what the system told of `pid` until then, it told of this worker.

        Raises:
            WorkerLost: it has ended, so the id may be another process's by now.
        """
        if self._fate is not None or _polled(self._pidfd):
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
                    _polled(self._pidfd, seconds=grace)
                self.kill()
                self._fate = what
                self._sock.close()
                if not _polled(self._pidfd, seconds=END_SECONDS):
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

    def _status(self) -> int | None:
        if not _polled(self._report, seconds=REPORT_SECONDS):
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

SERVICE: Final = "muniment.sandbox.tools.service:serve"
"""What a worker runs; by name, so that this package imports nothing above it."""

IMPORTS: Final = (
    "muniment",
    "pydantic",
    "pydantic_core",
    "re2",
    "typing_extensions",
    "annotated_types",
    "typing_inspection",
)
"""What the service imports besides the standard library."""

RUNS_PER_ZYGOTE: Final = 1000
"""Workers of one zygote: they share its address layout and hash seed, which is so renewed now and then."""

_ALIVE: Final[weakref.WeakSet[Zygote]] = weakref.WeakSet()


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
        self._processes: set[ZygoteProcess] = set()
        self._closed = False
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
        with self._changing():
            self._renew()

    def wait_ready(self, patience: Patience) -> None:
        """Start the process if none runs, and wait until it can fork workers.

        Raises:
            WorkerLost: it died, or its service cannot be imported; and as `start`.
            ConfinementUnavailable: as `start`.
            Cancelled, DeadlineExceeded: as `patience` says.
        """
        with self._changing():
            process = self._renew()
            process.live += 1  # Nobody ends it meanwhile; the worker for which this waits comes next.
        try:
            process.wait_ready(patience)
        finally:
            self._release(process, retire=False)

    def spawn(self, roots: Mapping[Scope, int], patience: Patience) -> Worker:
        """Have a worker forked.

        Args:
            roots: descriptors that it may hold, by scope; they stay the caller's. Empty: it sees nothing.
            patience: ends the wait.

        Returns:
            A worker that nobody spoke to yet. The caller closes it.

        Raises:
            WorkerLost: the zygote died or could not fork; and as `start`.
            ConfinementUnavailable: as `start`.
            Cancelled, DeadlineExceeded: the wait ended. No worker is left behind.

        Cost: about 1 ms with a zygote that is ready; waits for one that is not.
        """
        patience.check()
        with self._changing():
            process = self._renew()
            process.hired += 1
            process.live += 1
        try:
            return process.hatch(roots, patience, lambda by_signal: self._release(process, retire=by_signal))
        except BaseException as error:
            # A process that was up and did not answer in time has hung: the next caller gets another one.
            self._release(process, retire=isinstance(error, DeadlineExceeded) and process.is_ready())
            raise

    def rest(self) -> None:
        """End the process that workers come from, unless one of them lives; the next spawn starts another.

        Cost: about a millisecond, in which nobody has to wait for this; a process that hangs takes a second.
        """
        with self._changing():
            if self._current is not None and self._current.live == 0:
                self._current = None

    def close(self) -> None:
        """End all processes of this zygote, and with them all their workers. It cannot be used again."""
        with self._lock:
            self._closed, self._current = True, None
            processes, self._processes = self._processes, set()
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
        if current is None or current.hired >= self._runs or current.is_gone():
            self._current = None
            directories = import_directories() if self._directories is None else self._directories
            current = self._current = ZygoteProcess(self._service, directories)
            self._processes.add(current)
        return current

    def _release(self, process: ZygoteProcess, *, retire: bool) -> None:
        """One worker less; no further ones from this process, if it is to retire."""
        with self._changing():
            process.live -= 1
            if retire and process is self._current:
                self._current = None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; then, without it since that takes a moment, end what retired and has no worker."""
        _watch()
        with self._lock:
            yield
            idle = {each for each in self._processes if each is not self._current and each.live == 0}
            self._processes -= idle
        for process in idle:
            process.close()

    def _forget(self) -> None:
        """Start anew in a fork of the broker, where the lock may be held by a thread that does not exist."""
        self._lock = threading.Lock()
        for process in self._processes:
            process.forsake()
        self._processes, self._current = set(), None


_SHARED: Final = Zygote()


def shared_zygote() -> Zygote:
    """The zygote of this process for the usual service; whoever needs it first starts it."""
    return _SHARED


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
def _watch() -> None:
    # At first need and not on import; a second registration would find nothing left to do.
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_at_exit)


def _after_fork() -> None:
    for zygote in tuple(_ALIVE):
        zygote._forget()  # noqa: SLF001 - the other half of this module's fork handling


def _at_exit() -> None:
    for zygote in tuple(_ALIVE):
        zygote.close()
