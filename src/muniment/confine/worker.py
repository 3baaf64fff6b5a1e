"""A worker, seen from the broker: one run's process and the connection to it.

W1 Nothing that a worker does outlasts the caller's deadline: lies, floods, silence, a drip of bytes, a socket
   that is closed or not read.
W2 Whatever breaks an exchange ends the worker: killed through its pidfd, never by number, and of no further
   use. A lost answer can so never be taken for the next one.
W3 A run has ended when its pidfd is readable, and `Worker.close` returns only then.
W4 No descriptor is left behind, whichever way a run ends.

What does not hold: what a worker *says* is checked as a message and no further; nothing here fences it
against native code. A worker belongs to the process that spawned it, and not to forks of that. Standard
library only. Attacked by `tests/confine/test_pool_hostile.py`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Self

from muniment.confine.cancel import Cancel, Patience
from muniment.confine.process import Hatched, receive_report
from muniment.confine.wire import Channel, ExitCode, ProtocolViolation, Ready, Unsendable
from muniment.errors import DeadlineExceeded, WorkerLost

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
