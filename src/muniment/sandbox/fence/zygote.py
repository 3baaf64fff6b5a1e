"""The clean process that forks the workers, and the setup of a worker before it serves.

Runs as `python -I -S` with an empty environment. Workers are not forks of the broker: clearing `os.environ`
would not clean such a fork, because its initial stack and heap still contain the model key. The broker's end
is `pool.py`.

Z1 No data of a run ever enters this process. It imports the service and calls its `warm`, and never runs it.
   A request contains descriptors and the names of scopes; policy and data use the worker's socket.
Z2 A worker starts with its socket and its roots, `/dev/null` on 0 to 2, and no other descriptor.
Z3 A worker does not outlive this process (PDEATHSIG), and this process does not outlive its broker (end of
   file).
Z4 No worker is reaped before its pidfd is open, so no signal goes to a recycled process id.
Z5 Another process of the same user cannot trace this process or a worker, or read its memory (not dumpable).
Z6 A worker is confined (`layers.py`) before its service runs, and the service reports its layers to the
   broker.

On the control socket (SEQPACKET), this process sends `{"ready": true}` or `{"failed": why}`. Then it receives
requests `{"scopes": [...]}`, each with the descriptors [report socket, worker socket, root of each scope]. It
sends the state of a worker to the report socket (SEQPACKET): `{"pid": n}` with the pidfd, or `{"errno": n}`;
at the end `{"status": n}` as returned by wait(2).

Workers of one zygote share its address layout and hash seed. This module is excluded from coverage, because
it runs only in the exec'd process. Tested with attacks by `tests/units/sandbox/test_pool.py`.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from muniment.sandbox.fence import layers
from muniment.sandbox.fence.wire import (
    FDS_BEFORE_ROOTS,
    ExitCode,
    FrameViolation,
    ProtocolViolation,
    parse_object,
    receive_with_fds,
    send_with_fds,
)

Serve = Callable[[socket.socket, Mapping[str, int], layers.MissingLayers], None]
"""A service: a function that serves one run over a socket until the broker closes the connection. It gets the
socket, the roots by scope, and the missing layers of the fence, which it first reports to the broker."""

_PR_SET_PDEATHSIG: Final = 1
_MANY: Final = 2
"""Number of the worker before which `warm_for_many` is called: a command needs one worker, a daemon many."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A request to fork one worker.

    Attributes:
        report: socket for reports on the worker.
        sock: the worker's end of the connection with the broker.
        roots: roots of the worker by scope.
    """

    report: int
    sock: int
    roots: dict[str, int]


def main(fd: int, service: str) -> None:
    """Run the zygote until the broker closes the other end of `fd`.

    Args:
        fd: this process's end of the control socket.
        service: the service of the workers, as `module:function`. If the module has a function `warm`, it is
            called once; a function `warm_for_many` is called before the second worker.
    """
    _reset_process()
    control = socket.socket(fileno=fd)
    try:
        serve, warm_for_many = load_service(service)
    except Exception as error:  # noqa: BLE001 - any error of a service's import is reported to the broker
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]}).encode())
        sys.exit(1)
    _freeze_pages()
    control.send(b'{"ready":true}')
    _WorkerForker(control, serve, warm_for_many).run()


def load_service(service: str) -> tuple[Serve, Callable[[], None]]:
    """Import a service, given as `module:function`, and call `warm` of its module if that exists.

    Returns:
        The service, and `warm_for_many` of its module, or a function that does nothing.
    """
    module_name, _, function = service.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, "warm", _warm_nothing)()
    return getattr(module, function), getattr(module, "warm_for_many", _warm_nothing)


def _warm_nothing() -> None:
    pass


def _freeze_pages() -> None:
    """Let workers share all pages until a process writes to them; a collection would write to all of them."""
    gc.collect()
    gc.freeze()


def parse_request(message: bytes, fds: list[int]) -> ForkRequest:
    """Convert a control message to a request.

    Args:
        message: the text of the message.
        fds: the descriptors that arrived with the message.

    Raises:
        FrameViolation: the message is not a request, or its descriptors do not match its scopes.
    """
    header = parse_object(message)
    scopes = header.pop("scopes", None)
    if header or not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise FrameViolation("invalid control message: not a request")
    if len(set(scopes)) != len(scopes) or len(fds) != FDS_BEFORE_ROOTS + len(scopes):
        raise FrameViolation("invalid request: the descriptors do not match the scopes")
    return ForkRequest(fds[0], fds[1], dict(zip(scopes, fds[FDS_BEFORE_ROOTS:], strict=True)))


class _WorkerForker:
    """Forks workers and reports their state to the broker."""

    def __init__(self, control: socket.socket, serve: Serve, warm_for_many: Callable[[], None]) -> None:
        self._control, self._serve, self._warm_for_many = control, serve, warm_for_many
        self._fork_count = 0
        self._forked: dict[int, tuple[int, int]] = {}
        """Process id and report socket of each worker that was not reaped yet, by the pidfd of the worker."""
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._pid = os.getpid()

    def run(self) -> NoReturn:
        while True:
            for fd, _ in self._poller.poll():
                if fd == self._control.fileno():
                    self._receive_request()
                else:
                    self._reap(fd)

    def _receive_request(self) -> None:
        try:
            message, fds, whole = receive_with_fds(self._control)
        except ConnectionResetError:
            # The broker left without reading the ready message, which it only peeks at.
            self._exit(ExitCode.OK)
        if not message:
            self._exit(ExitCode.OK)
        try:
            if not whole:
                # Descriptors were lost, for example because this process has too many. The requester gets a
                # report if that descriptor arrived; if not, its report socket closes.
                for fd in fds[:1]:
                    _send_report(fd, {"errno": errno.EMFILE})
                return
            request = parse_request(message, fds)
            if self._fork(request):
                fds.remove(request.report)
        except FrameViolation:
            # Only the broker is at the other end, and its messages can no longer be relied on.
            self._exit(ExitCode.FRAME)
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, request: ForkRequest) -> bool:
        """Fork a worker.

        Returns:
            Whether a worker runs, so that this process must reap it and close its report socket.
        """
        self._fork_count += 1
        if self._fork_count == _MANY:
            self._warm_for_many()
            _freeze_pages()
        try:
            pid = os.fork()
        except OSError as error:
            _send_report(request.report, {"errno": error.errno})
            return False
        if pid == 0:
            self._become_worker(request)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is not reused
            os.waitpid(pid, 0)
            _send_report(request.report, {"errno": error.errno})
            return False
        self._forked[pidfd] = pid, request.report
        self._poller.register(pidfd, select.POLLIN)
        if not _send_report(request.report, {"pid": pid}, pidfd):
            # The broker has dropped this request meanwhile: no process will ever close this worker.
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True

    def _reap(self, pidfd: int) -> None:
        pid, report = self._forked.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        _send_report(report, {"status": status})
        os.close(report)

    def _exit(self, code: ExitCode) -> NoReturn:
        for pidfd in self._forked:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os._exit(code)

    def _become_worker(self, request: ForkRequest) -> NoReturn:
        code = ExitCode.BUG
        try:
            self._control.detach()  # It must not close a descriptor number that may be reused by then.
            gc.enable()
            code = ExitCode.FENCE
            _isolate({request.sock, *request.roots.values()}, self._pid)
            # This call reads the type of the socket, which the fence would deny.
            sock = socket.socket(fileno=request.sock)
            missing = layers.set_up_fence(tuple(request.roots.values()))
            code = ExitCode.BUG
            self._serve(sock, request.roots, missing)
            code = ExitCode.OK
        except EOFError:
            code = ExitCode.OK
        except FrameViolation:
            code = ExitCode.FRAME
        except ProtocolViolation:
            code = ExitCode.PROTOCOL
        except MemoryError:
            code = ExitCode.MEMORY
        finally:
            # Also after any other exception: a worker must never return into the loop above.
            os._exit(code)


def _reset_process() -> None:
    """Reset the settings that this process inherited from the broker and would pass on to workers."""
    gc.disable()
    # Started without an environment; Python adds LC_CTYPE if it finds no locale.
    os.environ.clear()
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # If the broker ignores SIGCHLD, the kernel would reap workers automatically.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    layers.set_undumpable()


def _isolate(kept_fds: set[int], parent: int) -> None:
    """Turn a fresh fork into a worker that ends with its parent and has only the descriptors in `kept_fds`.

    Args:
        kept_fds: descriptors that stay open, in addition to 0 to 2.
        parent: process id of the zygote.
    """
    layers.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the line above; no process would ever end this one.
        os._exit(ExitCode.FENCE)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for standard in range(3):
        os.dup2(null, standard)
    _close_except({0, 1, 2, *kept_fds})


def _close_except(kept_fds: set[int]) -> None:
    start = 0
    for fd in sorted(kept_fds):
        # An empty range from 0 would mean all descriptors: the end wraps around before close_range(2).
        if start < fd:
            os.closerange(start, fd)
        start = fd + 1
    # Every descriptor here was opened under this limit, which is never lowered.
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _send_report(fd: int, message: Mapping[str, int | None], *fds: int) -> bool:
    """Send a report on a worker to the broker; return False if the broker closed its end.

    Args:
        fd: the report socket.
        message: the report.
        fds: descriptors to send with it.
    """
    report = socket.socket(fileno=fd)
    try:
        send_with_fds(report, json.dumps(message).encode(), fds)
    except OSError:
        return False
    finally:
        report.detach()
    return True
