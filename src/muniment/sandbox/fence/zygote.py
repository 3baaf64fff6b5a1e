"""The clean process that forks the workers, and what a worker does before it serves.

Runs as `python -I -S` with an empty environment: clearing `os.environ` would not scrub a fork of the
broker, whose initial stack and heap hold the model key still. The broker's end is `pool.py`.

Z1 Nothing of any run ever enters this process: it imports and warms the service, and never runs it.
   A request carries descriptors and the names of scopes; policy and data use the worker's own socket.
Z2 A worker starts with its socket and its roots, `/dev/null` on 0 to 2, and no other descriptor.
Z3 A worker does not outlive this process (PDEATHSIG), nor this process its broker (end of file).
Z4 No worker is reaped before its pidfd is open, so nobody ever signals a recycled process id.
Z5 Neither can be traced, or its memory read, by another process of the same user (not dumpable).
Z6 A worker is fenced (`layers.py`) before its service runs, and the service tells the broker what holds.

Control socket (SEQPACKET): `{"ready": true}` or `{"failed": why}` out, then requests `{"scopes": [...]}`
in, each with the descriptors [report socket, worker socket, root of each scope]. What becomes of a worker
goes to its own report socket (SEQPACKET): `{"pid": n}` with the pidfd, or `{"errno": n}`; at last
`{"status": n}` as wait(2) gives it.

Workers of one zygote share its address layout and hash seed. Excluded from coverage, since it runs only in
the exec'd process; attacked by `tests/units/sandbox/test_pool.py`.
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

Serve = Callable[[socket.socket, Mapping[str, int], layers.Missing], None]
"""A service: serves one run over its socket, roots by scope, until the broker closes the connection. It
tells the broker first which layers of the fence are missing."""

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """One worker to fork.

    Attributes:
        report: where its fate is told.
        sock: its end of the connection with the broker.
        roots: its roots by scope.
    """

    report: int
    sock: int
    roots: dict[str, int]


def main(fd: int, service: str) -> None:
    """Be the zygote until the broker closes the other end of `fd`.

    Args:
        fd: our end of the control socket.
        service: `module:function`; a function `warm` beside it is called once.
    """
    _settle()
    control = socket.socket(fileno=fd)
    try:
        serve = load_service(service)
    except Exception as error:  # noqa: BLE001 - whatever a service raises on import, the broker is told
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]}).encode())
        sys.exit(1)
    # Workers share these pages until one writes to them; a collection would write to all of them.
    gc.collect()
    gc.freeze()
    control.send(b'{"ready":true}')
    _Nursery(control, serve).run()


def load_service(service: str) -> Serve:
    """Import a service named `module:function`, and warm it."""
    module_name, _, function = service.partition(":")
    module = importlib.import_module(module_name)
    serve: Serve = getattr(module, function)
    warm: Callable[[], None] | None = getattr(module, "warm", None)
    if warm is not None:
        warm()
    return serve


def parse_request(message: bytes, fds: list[int]) -> ForkRequest:
    """What a control message asks for.

    Raises:
        FrameViolation: it is no request, or its descriptors do not match its scopes.
    """
    header = parse_object(message)
    scopes = header.pop("scopes", None)
    if header or not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise FrameViolation("a control message that is no request")
    if len(set(scopes)) != len(scopes) or len(fds) != FDS_BEFORE_ROOTS + len(scopes):
        raise FrameViolation("a request whose descriptors do not match its scopes")
    return ForkRequest(fds[0], fds[1], dict(zip(scopes, fds[FDS_BEFORE_ROOTS:], strict=True)))


class _Nursery:
    """Forks, and tells what became of whom."""

    def __init__(self, control: socket.socket, serve: Serve) -> None:
        self._control, self._serve = control, serve
        self._forked: dict[int, tuple[int, int]] = {}
        """Process id and report socket of each worker that was not reaped yet, by its pidfd."""
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._pid = os.getpid()

    def run(self) -> NoReturn:
        while True:
            for fd, _ in self._poller.poll():
                if fd == self._control.fileno():
                    self._take_request()
                else:
                    self._reap(fd)

    def _take_request(self) -> None:
        try:
            message, fds, whole = receive_with_fds(self._control)
        except ConnectionResetError:
            # The broker left without reading that we are ready, which it only ever looks at.
            self._leave(ExitCode.OK)
        if not message:
            self._leave(ExitCode.OK)
        try:
            if not whole:
                # Descriptors were lost, as when this process has too many. Whoever asked is told, if that
                # end arrived; else it sees its report socket close.
                for fd in fds[:1]:
                    _report(fd, {"errno": errno.EMFILE})
                return
            request = parse_request(message, fds)
            if self._fork(request):
                fds.remove(request.report)
        except FrameViolation:
            # The broker is the only one at the other end: nothing that it says can be relied on now.
            self._leave(ExitCode.FRAME)
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, request: ForkRequest) -> bool:
        """Fork a worker; True: it is ours to reap, and the report socket ours to close."""
        try:
            pid = os.fork()
        except OSError as error:
            _report(request.report, {"errno": error.errno})
            return False
        if pid == 0:
            self._become_worker(request)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
            os.waitpid(pid, 0)
            _report(request.report, {"errno": error.errno})
            return False
        self._forked[pidfd] = pid, request.report
        self._poller.register(pidfd, select.POLLIN)
        if not _report(request.report, {"pid": pid}, pidfd):
            # The broker gave up on this request meanwhile: nobody will ever close this worker.
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True

    def _reap(self, pidfd: int) -> None:
        pid, report = self._forked.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        _report(report, {"status": status})
        os.close(report)

    def _leave(self, code: ExitCode) -> NoReturn:
        for pidfd in self._forked:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os._exit(code)

    def _become_worker(self, request: ForkRequest) -> NoReturn:
        code = ExitCode.BUG
        try:
            self._control.detach()  # It must not close a number that belongs to someone else by then.
            gc.enable()
            code = ExitCode.FENCE
            _isolate({request.sock, *request.roots.values()}, self._pid)
            # Asks the kernel what kind of socket it is, which the fence would refuse.
            sock = socket.socket(fileno=request.sock)
            missing = layers.put_up(tuple(request.roots.values()))
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


def _settle() -> None:
    """Inherit nothing from the broker that this process would pass on to workers."""
    gc.disable()
    # Started without any; Python itself adds LC_CTYPE where it finds no locale.
    os.environ.clear()
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A broker that ignores SIGCHLD would otherwise have the kernel reap workers behind our back.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    layers.set_undumpable()


def _isolate(keep: set[int], parent: int) -> None:
    """Make a fresh fork a worker that holds only `keep` (Z2, Z3)."""
    layers.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the line above; nobody would ever end us.
        os._exit(ExitCode.FENCE)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for standard in range(3):
        os.dup2(null, standard)
    _close_except({0, 1, 2, *keep})


def _close_except(keep: set[int]) -> None:
    start = 0
    for fd in sorted(keep):
        # An empty range from 0 would mean all of them: the end wraps around before close_range(2).
        if start < fd:
            os.closerange(start, fd)
        start = fd + 1
    # Every descriptor here was opened under this limit, which nothing lowers.
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _report(fd: int, message: Mapping[str, int | None], *fds: int) -> bool:
    """Tell the broker, with descriptors; False: it closed its end, since it does not want to know."""
    report = socket.socket(fileno=fd)
    try:
        send_with_fds(report, json.dumps(message).encode(), fds)
    except OSError:
        return False
    finally:
        report.detach()
    return True
