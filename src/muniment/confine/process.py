"""One zygote process, seen from the broker: started, asked for workers, ended.

Everything about one worker comes back on a socket that was made for it alone, so threads that ask at once
share nothing but the control socket, whose messages are atomic. When the broker gives up on a request it
closes that socket, and the zygote kills the worker that nobody will own.

Standard library only, so that a command line can start this before its own imports. `pool.py` decides when
a process is started and retired; `zygote.py` is the other end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muniment.confine.cancel import Patience
from muniment.confine.control import MAX_CONTROL_BYTES, MAX_ROOTS, receive_with_fds, send_with_fds
from muniment.confine.wire import ProtocolViolation, parse_object
from muniment.errors import WorkerLost
from muniment.names import Scope

LEAVE_SECONDS: Final = 1.0
"""Seconds that a zygote has to leave after its control socket closed, before it is killed. It takes about a
millisecond; one that was stopped never does."""

_CODE: Final = (
    "import sys; sys.path.extend(sys.argv[3:]); "
    "from muniment.confine import zygote; zygote.main(int(sys.argv[1]), sys.argv[2])"
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
