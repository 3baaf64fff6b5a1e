"""The source of workers: one clean zygote per broker process, which forks one worker per run.

P1 A worker comes from a process that never had the broker's environment or memory (`zygote.py`).
P2 Threads may spawn workers at the same time; no thread waits for the worker of another one.
P3 A zygote process is replaced if it died, did not respond, or has forked `runs` workers, or if a signal from
   another process ended one of its workers. A replaced process ends after its last worker, and no run is
   ended for that.
P4 After a fork of the broker, the child has its own zygote, and no open connection to the parent's zygote.

Standard library only, with few imports: a command line imports this module and starts the zygote first.
Tested with attacks by `tests/units/sandbox/test_pool.py`.
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
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Scope
from muniment.sandbox.fence.wire import (
    MAX_CONTROL_BYTES,
    MAX_ROOTS,
    Channel,
    ExitCode,
    ProtocolViolation,
    Unsendable,
    WaitReady,
    parse_object,
    receive_with_fds,
    send_with_fds,
)

# -- process -----------------------------------------------------------------------------------------
#
# One zygote process, from the broker's side: start it, request workers, end it.
#
# All reports on a worker arrive on a socket that was created for it, so threads that make requests at once
# share only the control socket, whose messages are atomic. To drop a request, the broker closes the report
# socket, and the zygote kills the worker, which would have no owner. `Zygote` decides when a process is
# started and replaced; `zygote.py` is the other end.

EXIT_SECONDS: Final = 1.0
"""Seconds to wait for the end of a zygote whose control socket was closed, before it is killed. A zygote
needs about a millisecond; a stopped process never ends."""

_CODE: Final = (
    "import sys; sys.path.extend(sys.argv[3:]); "
    "from muniment.sandbox.fence import zygote; zygote.main(int(sys.argv[1]), sys.argv[2])"
)


class ZygoteProcess:
    """A running zygote, from the broker's side.

    Args:
        service: the service that its workers run, as `module:function`.
        directories: absolute directories from which the zygote imports. The standard library comes first, so
            that no file in `directories` replaces a standard module.

    Attributes:
        pid: process id of the zygote.
        requested_count: number of workers requested.
        live_count: number of requested workers that have not ended.

    Raises:
        WorkerLost: the zygote could not be started.
    """

    def __init__(self, service: str, directories: Sequence[str]) -> None:
        self.requested_count = 0
        self.live_count = 0
        with contextlib.ExitStack() as broker_stack, contextlib.ExitStack() as zygote_stack:
            self._control, control = _create_socket_pair(socket.SOCK_SEQPACKET, broker_stack, zygote_stack)
            try:
                # Empty environment, new session, no standard streams; -I -S: no user site, no cwd on the
                # path, no `.pth` files.
                self._popen = subprocess.Popen(  # noqa: S603 - this interpreter and a constant program
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
            broker_stack.pop_all()
        self.pid = self._popen.pid

    def has_ended(self) -> bool:
        """Return whether the zygote has ended, as far as the kernel knows."""
        return _has_event(self._control, 0)  # A hang-up is always reported.

    def is_ready(self) -> bool:
        """Return whether the zygote has reported that it is ready; it may have ended since then."""
        return "ready" in self._peek_status()

    def wait_ready(self, deadline: Deadline) -> None:
        """Wait until the zygote can fork workers.

        Raises:
            WorkerLost: the zygote could not import or warm up its service, or died.
            Cancelled, DeadlineExceeded: the wait ended.
        """
        deadline.wait(self._control.fileno(), select.POLLIN)
        if not self.is_ready():
            raise self._build_error()

    def fork_worker(
        self, roots: Mapping[Scope, int], deadline: Deadline, on_end: Callable[[bool], None]
    ) -> Worker:
        """Fork a worker with copies of the descriptors `roots`. The caller must close the worker.

        Args:
            roots: descriptors by scope; the caller still owns them.
            deadline: ends the wait. A worker that is forked too late is killed.
            on_end: called once, when the worker has ended; with True if a signal of another process ended it.

        Raises:
            WorkerLost: too many roots, the fork failed, or the zygote died or never became ready.
            Cancelled, DeadlineExceeded: the wait ended.
        """
        request = json.dumps({"scopes": list(roots)}).encode()
        if len(roots) > MAX_ROOTS or len(request) > MAX_CONTROL_BYTES:
            raise WorkerLost(f"a worker accepts at most {MAX_ROOTS} roots; bind fewer")
        with contextlib.ExitStack() as broker_stack, contextlib.ExitStack() as zygote_stack:
            sock, their_sock = _create_socket_pair(socket.SOCK_STREAM, broker_stack, zygote_stack)
            report, their_report = _create_socket_pair(socket.SOCK_SEQPACKET, broker_stack, zygote_stack)
            self._send_request(
                request, [their_report.fileno(), their_sock.fileno(), *roots.values()], deadline
            )
            # The kernel has copies for the zygote now; with the copies here closed, its end is visible as a
            # hang-up.
            zygote_stack.close()
            try:
                deadline.wait(report.fileno(), select.POLLIN)
            except BaseException:
                _abandon_request(report)
                raise
            pid, pidfd = self._receive_worker(report)
            broker_stack.pop_all()
            return Worker(pid, pidfd, sock, report, on_end)

    def close(self) -> None:
        """End the zygote and all its workers, and wait until the zygote has ended."""
        self._control.close()
        try:
            self._popen.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()  # a child of this process, not reaped: the id is not reused
            self._popen.wait()

    def abandon(self) -> None:
        """Close the connection to the zygote in a fork of the broker, without sending it a signal.

        The zygote is not a child of the fork.
        """
        self._control.close()
        # Detects that the child does not exist, so that `Popen` does not wait for it.
        self._popen.poll()

    def _send_request(self, request: bytes, fds: list[int], deadline: Deadline) -> None:
        while True:
            deadline.wait(self._control.fileno(), select.POLLOUT)
            try:
                send_with_fds(self._control, request, fds)
            except BlockingIOError:
                continue
            except ConnectionError:
                raise self._build_error() from None
            except OSError as error:
                raise WorkerLost(f"the request for a worker could not be sent: {error}") from error
            return

    def _receive_worker(self, report: socket.socket) -> tuple[int, int]:
        message, fds = receive_report(report)
        match message, fds:
            case {"pid": int(pid)}, [pidfd]:
                return pid, pidfd
            case {"errno": int(number)}, []:
                raise WorkerLost(f"the zygote could not fork a worker: {os.strerror(number)}")
            case _:
                for fd in fds:
                    os.close(fd)
                raise self._build_error()

    def _peek_status(self) -> dict[str, object]:
        # Peeked at and left in the socket, so that every thread finds it.
        try:
            message = self._control.recv(MAX_CONTROL_BYTES, socket.MSG_PEEK)
            return parse_object(message) if message else {}
        except (OSError, ProtocolViolation):
            return {}

    def _build_error(self) -> WorkerLost:
        why = self._peek_status().get("failed")
        return WorkerLost(f"the zygote failed: {why}" if isinstance(why, str) else "the zygote died")


def receive_report(report: socket.socket) -> tuple[dict[str, object], list[int]]:
    """Receive the current report of the zygote on a worker, with its descriptors.

    Returns:
        The report and the descriptors. The report is empty if it is missing or invalid.
    """
    try:
        message, fds, _ = receive_with_fds(report)
    except OSError:
        return {}, []
    try:
        return (parse_object(message) if message else {}), fds
    except ProtocolViolation:
        return {}, fds


def _abandon_request(report: socket.socket) -> None:
    """Drop a request for a worker, so that no worker is left without an owner.

    The zygote kills a worker that it forks from now on. This function kills a worker that was forked before.
    """
    report.shutdown(socket.SHUT_RD)
    _, fds = receive_report(report)
    for pidfd in fds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def _create_socket_pair(
    kind: socket.SocketKind, broker_stack: contextlib.ExitStack, zygote_stack: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, for the broker and for the zygote. The broker's socket does not block.

    Args:
        kind: the kind of the sockets.
        broker_stack: closes the broker's socket.
        zygote_stack: closes the zygote's socket.
    """
    try:
        one, other = socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        raise WorkerLost(f"cannot open a worker's socket: {os.strerror(error.errno or errno.EIO)}") from error
    one.setblocking(False)
    return broker_stack.enter_context(one), zygote_stack.enter_context(other)


def _has_event(source: int | socket.socket, mask: int = select.POLLIN, seconds: float = 0.0) -> bool:
    """Return whether `source` has an event in `mask`, or its other end is closed, now or within `seconds`."""
    poller = select.poll()
    poller.register(source, mask)
    return bool(poller.poll(seconds * 1000))


# -- worker ------------------------------------------------------------------------------------------
#
# A worker, from the broker's side: one run's process and the connection to it.
#
# W1 Nothing that a worker does can delay the caller past its deadline: false messages, floods, silence, slow
#    bytes, a socket that is closed or not read.
# W2 Any failed exchange ends the worker: it is killed through its pidfd, never by number, and is not used
#    again. So a late response cannot be taken for the next one.
# W3 A run has ended when the pidfd of its worker is readable, and `Worker.close` returns only then.
# W4 No descriptor is left open after any end of a run.
#
# Not guaranteed: the content of a worker's message is not checked, only its form; this module does not
# confine native code in it. A worker belongs to the process that spawned it, and not to its forks. Tested
# with attacks by `tests/attacks/test_pool_hostile.py`.

KILL_SECONDS: Final = 5.0
"""Seconds to wait for the end of a killed worker; only a process stuck in the kernel needs longer."""

GRACE_SECONDS: Final = 0.2
"""Seconds to wait for the end of a worker that closed its connection: its exit code gives the reason."""

REPORT_SECONDS: Final = 0.5
"""Seconds to wait for the zygote's report on an ended worker; only a stopped zygote needs longer."""


class Worker:
    """The worker of one run, from the broker's side.

    One thread sends messages to the worker and closes it. Any thread may call `kill`.

    Args:
        pid: process id, for messages only; signals use `pidfd`.
        pidfd: readable after the worker ended. This object owns `pidfd` and the two sockets.
        sock: the broker's end of the connection with the worker, non-blocking.
        report: socket on which the zygote reports the exit status of the worker, non-blocking.
        on_end: called once, when the worker has ended; with True if a signal of another process ended it.

    Attributes:
        pid: process id, for messages and tests; it may be reused after the worker was closed.
        status: exit status as returned by wait(2), after the worker has ended; None: unknown.
    """

    def __init__(
        self, pid: int, pidfd: int, sock: socket.socket, report: socket.socket, on_end: Callable[[bool], None]
    ) -> None:
        self.pid = pid
        self._pidfd, self._sock, self._report = pidfd, sock, report
        self._channel = Channel(sock)
        self._on_end = on_end
        self.status: int | None = None
        self._end_reason: str | None = None
        self._was_killed = False
        # Reentrant: a signal handler may call `kill` while its thread is in `close`.
        self._lock = threading.RLock()

    def send(self, header: Mapping[str, object], body: bytes = b"", *, deadline: Deadline) -> None:
        """Send one message to the worker. Every message of the worker must have been received before.

        Args:
            header: a JSON object without the key `body`.
            body: raw bytes that follow the header; empty: no body.
            deadline: ends the wait.

        Raises:
            Unsendable: the format cannot represent the message. Nothing is sent, and the worker is not ended.
            WorkerLost: the worker died, closed its connection, or sent an unrequested message. It was ended.
            Cancelled, DeadlineExceeded: the wait ended. The worker was ended.
        """
        with self._exchange(deadline) as ready:
            self._check_silent()
            self._channel.send(header, body, ready=ready)

    def receive(self, *, max_body: int, deadline: Deadline) -> tuple[dict[str, object], bytes]:
        """Receive one message from the worker, as header and body.

        Args:
            max_body: maximum bytes of body that the caller accepts.
            deadline: ends the wait for the complete message.

        Raises:
            WorkerLost: the worker died, closed its connection, or sent an invalid message. It was ended.
            Cancelled, DeadlineExceeded: the wait ended. The worker was ended.
        """
        with self._exchange(deadline) as ready:
            return self._channel.receive(max_body, ready=ready)

    def request(
        self, header: Mapping[str, object], body: bytes = b"", *, max_body: int, deadline: Deadline
    ) -> tuple[dict[str, object], bytes]:
        """Send one message to the worker and return its response, as header and body.

        Raises:
            Unsendable, WorkerLost, Cancelled, DeadlineExceeded: as described in `send` and `receive`.
        """
        self.send(header, body, deadline=deadline)
        return self.receive(max_body=max_body, deadline=deadline)

    def check_alive(self) -> None:
        """Raise an error if the worker has ended.

        If it has not, everything that the system returned earlier for its `pid` was about this worker.

        Raises:
            WorkerLost: the worker has ended, so the id may belong to another process.
        """
        if self._end_reason is not None or _has_event(self._pidfd):
            raise self._build_error("ended")

    def kill(self) -> None:
        """End the worker now, in any state. The worker must still be closed."""
        with self._lock:
            if self._end_reason is None:
                self._was_killed = True
                with contextlib.suppress(ProcessLookupError):  # it ended already
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End the worker and close all descriptors. May be repeated.

        If the worker still runs, it is killed. This method returns after the worker has ended.

        Raises:
            WorkerLost: the worker was killed and still exists after `KILL_SECONDS`.
        """
        self._end("closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _exchange(self, deadline: Deadline) -> Iterator[WaitReady]:
        if self._end_reason is not None:
            raise WorkerLost(f"worker {self.pid} has ended: {self._end_reason}")

        def ready(mask: int) -> None:
            if not deadline.wait(self._sock.fileno(), mask, peer_pidfd=self._pidfd):
                raise EOFError

        try:
            yield ready
        except Unsendable:
            raise
        except EOFError:
            raise self._build_error("closed its connection", grace=GRACE_SECONDS) from None
        except ProtocolViolation as violation:
            raise self._build_error(f"broke the protocol: {violation}") from None
        except OSError as error:
            raise self._build_error(f"could not be reached: {error}") from error
        except BaseException as error:
            self._end(f"stopped after {type(error).__name__}")
            raise

    def _check_silent(self) -> None:
        # One request in flight: a response that is already there does not belong to a request.
        try:
            waiting = self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except ConnectionError:
            waiting = b""
        if not waiting:
            raise EOFError
        raise ProtocolViolation("it sent a message that was not requested")

    def _build_error(self, reason: str, *, grace: float = 0.0) -> WorkerLost:
        return WorkerLost(f"worker {self.pid} {self._end(reason, grace)}")

    def _end(self, reason: str, grace: float = 0.0) -> str:
        with self._lock:
            if self._end_reason is not None:
                return self._end_reason
            by_signal = False
            try:
                if grace:
                    _has_event(self._pidfd, seconds=grace)
                self.kill()
                self._end_reason = reason
                self._sock.close()
                if not _has_event(self._pidfd, seconds=KILL_SECONDS):
                    raise WorkerLost(f"worker {self.pid} was killed but still exists")
                status = self.status = self._receive_status()
                by_signal = status is not None and os.WIFSIGNALED(status) and not self._is_own_kill(status)
                self._end_reason = f"{reason} ({describe(status)})"
            finally:
                self._sock.close()
                self._report.close()
                os.close(self._pidfd)
                self._on_end(by_signal)
            return self._end_reason

    def _is_own_kill(self, status: int) -> bool:
        return self._was_killed and os.WTERMSIG(status) == signal.SIGKILL

    def _receive_status(self) -> int | None:
        if not _has_event(self._report, seconds=REPORT_SECONDS):
            return None
        status = receive_report(self._report)[0].get("status")
        return status if isinstance(status, int) else None


def describe(status: int | None) -> str:
    """Return how a process ended, for people: `exit code 70 (bug)`, `signal SIGKILL` or `status unknown`.

    Args:
        status: exit status as returned by wait(2); None: unknown.
    """
    if status is None:
        return "status unknown"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # Real-time signals have no names.
        return f"signal {signal.Signals(number).name if number in set(signal.Signals) else number}"
    code = os.WEXITSTATUS(status)
    return (
        f"exit code {code} ({ExitCode(code).name.lower()})" if code in set(ExitCode) else f"exit code {code}"
    )


# -- pool --------------------------------------------------------------------------------------------

SERVICE: Final = "muniment.sandbox.tools.service:serve"
"""The service that workers run. It is given as a name, so that this package imports no package above it."""

SERVICE_PACKAGES: Final = ("muniment", "re2")
"""Packages that the service imports in addition to the standard library."""

RUNS_PER_ZYGOTE: Final = 1000
"""Workers of one zygote process. They share an address layout and hash seed, which the next one renews."""

_ZYGOTES: Final[weakref.WeakSet[Zygote]] = weakref.WeakSet()


class Zygote:
    """A source of workers. Its process is started on demand and replaced (rule P3 in the module docstring).

    Args:
        service: the service that workers run, as `module:function`.
        directories: directories from which the zygote imports; None: `find_import_directories()`.
        runs: number of workers that one process forks, at least 1.
    """

    def __init__(
        self, service: str = SERVICE, *, directories: Sequence[str] | None = None, runs: int = RUNS_PER_ZYGOTE
    ) -> None:
        self._service, self._directories, self._runs = service, directories, runs
        self._lock = threading.Lock()
        self._current: ZygoteProcess | None = None
        self._processes: set[ZygoteProcess] = set()
        self._closed = False
        _ZYGOTES.add(self)

    @property
    def pid(self) -> int | None:
        """Return the process id of the current zygote process, or None if it is not started."""
        process = self._current
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the zygote process if none runs, without waiting until it is ready.

        The start takes about 2 ms. The process is ready some 170 ms later.

        Raises:
            WorkerLost: the process cannot be started, or this zygote was closed.
            ConfinementUnavailable: a directory to import from is missing or not trustworthy.
        """
        with self._lock_and_clean_up():
            self._get_process()

    def wait_ready(self, deadline: Deadline) -> None:
        """Start the zygote process if none runs, and wait until it can fork workers.

        Raises:
            WorkerLost: the process cannot be started, died, or cannot import its service; or this zygote was
                closed.
            ConfinementUnavailable: a directory to import from is missing or not trustworthy.
            Cancelled, DeadlineExceeded: the wait ended.
        """
        with self._lock_and_clean_up():
            process = self._get_process()
            # Counted like a worker, so that no other thread ends the process before the next spawn.
            process.live_count += 1
        try:
            process.wait_ready(deadline)
        finally:
            self._release(process, retire=False)

    def spawn_worker(self, roots: Mapping[Scope, int], deadline: Deadline) -> Worker:
        """Fork a worker. If no zygote process runs, start one first.

        Args:
            roots: descriptors for the worker, by scope; the caller still owns them. Empty: the worker can
                read nothing.
            deadline: ends the wait.

        Returns:
            A worker that has received no message yet. The caller closes it.

        Raises:
            WorkerLost: the zygote died, could not fork, cannot be started, or was closed.
            ConfinementUnavailable: a directory to import from is missing or not trustworthy.
            Cancelled, DeadlineExceeded: the wait ended. No worker is left over.

        Cost: about 1 ms if the zygote is ready; otherwise waits for it.
        """
        deadline.check()
        with self._lock_and_clean_up():
            process = self._get_process()
            process.requested_count += 1
            process.live_count += 1
        try:
            return process.fork_worker(
                roots, deadline, lambda by_signal: self._release(process, retire=by_signal)
            )
        except BaseException as error:
            # A process that was ready and did not answer in time hangs: the next caller gets another one.
            self._release(process, retire=isinstance(error, DeadlineExceeded) and process.is_ready())
            raise

    def stop_if_idle(self) -> None:
        """End the current zygote process, unless one of its workers is alive.

        The next call of `spawn_worker` starts another process.

        Cost: about a millisecond, without blocking other threads; a second for a process that hangs.
        """
        with self._lock_and_clean_up():
            if self._current is not None and self._current.live_count == 0:
                self._current = None

    def close(self) -> None:
        """End all processes of this zygote, with all their workers. The zygote cannot be used afterwards."""
        with self._lock:
            self._closed, self._current = True, None
            processes, self._processes = self._processes, set()
        for process in processes:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _get_process(self) -> ZygoteProcess:
        """Return the zygote process for the next worker; start one if needed. The caller holds the lock."""
        if self._closed:
            raise WorkerLost("this zygote was closed")
        current = self._current
        if current is None or current.requested_count >= self._runs or current.has_ended():
            self._current = None
            directories = find_import_directories() if self._directories is None else self._directories
            current = self._current = ZygoteProcess(self._service, directories)
            self._processes.add(current)
        return current

    def _release(self, process: ZygoteProcess, *, retire: bool) -> None:
        """Record that a worker of `process` has ended or was not forked.

        Args:
            process: the zygote process of the worker.
            retire: whether `process` must fork no further workers.
        """
        with self._lock_and_clean_up():
            process.live_count -= 1
            if retire and process is self._current:
                self._current = None

    @contextlib.contextmanager
    def _lock_and_clean_up(self) -> Iterator[None]:
        """Hold the lock in the block. After it, end replaced zygote processes that have no workers.

        They are ended without the lock, because that takes time.
        """
        _register_hooks()
        with self._lock:
            yield
            idle = {each for each in self._processes if each is not self._current and each.live_count == 0}
            self._processes -= idle
        for process in idle:
            process.close()

    def _reset_after_fork(self) -> None:
        """Reset the state in a fork of the broker. A thread that no longer exists may hold the lock."""
        self._lock = threading.Lock()
        for process in self._processes:
            process.abandon()
        self._processes, self._current = set(), None


_SHARED_ZYGOTE: Final = Zygote()


def get_shared_zygote() -> Zygote:
    """Return the zygote of this process for the default service. Its process starts on first use."""
    return _SHARED_ZYGOTE


def find_import_directories(names: Iterable[str] = SERVICE_PACKAGES) -> tuple[str, ...]:
    """Return the directories from which this process would load packages, without importing them.

    Args:
        names: the packages.

    Returns:
        The directories in the order of the packages, each once.

    Raises:
        ConfinementUnavailable: a package is missing, or its directory is relative or writable by every user.
    """
    directories = dict.fromkeys(_find_directory(name) for name in names)
    for directory in directories:
        if not directory.is_absolute() or directory.stat().st_mode & stat.S_IWOTH:
            remedy = (
                f"{str(directory)!r} is relative or writable by every user; install elsewhere or chmod o-w it"
            )
            raise ConfinementUnavailable("partial", "none", remedy)
    return tuple(map(str, directories))


def _find_directory(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.has_location or spec.origin is None:
        raise ConfinementUnavailable("partial", "none", f"{name!r} is not installed as files; use pip")
    origin = Path(spec.origin)
    return origin.parent.parent if spec.submodule_search_locations is not None else origin.parent


@functools.cache
def _register_hooks() -> None:
    # On first use and not on import; a second registration would have no effect.
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_at_exit)


def _after_fork() -> None:
    for zygote in tuple(_ZYGOTES):
        zygote._reset_after_fork()  # noqa: SLF001 - the other half of this module's fork handling


def _at_exit() -> None:
    for zygote in tuple(_ZYGOTES):
        zygote.close()
