"""`muniment acp`: a child that a host talks to over its standard input and output.

Both are taken aside before anything else happens: what a library prints goes to standard error, and cannot
end up between two answers.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muniment import events
from muniment.cli.interrupt import end_on_interrupt
from muniment.cli.model import ModelFlags, forget_key
from muniment.cli.report import configure_logging, on_one_line, output, print_failure
from muniment.confine.cancel import Cancel, Patience
from muniment.daemon.acp import HostSession, Lines
from muniment.daemon.core import Metrics, Work, Workspace
from muniment.errors import Cancelled, DeadlineExceeded, MunimentError
from muniment.opening import open_model
from muniment.settings import Settings, parse_roots, read_settings
from muniment.store.state import State

READ_BYTES: Final = 65_536
"""Bytes of one read, as many as a pipe holds."""

SEND_SECONDS: Final = 10.0
"""Seconds after which a host that does not read an answer counts as gone."""

_PRIVATE_UMASK: Final = 0o077


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line."""

    workspace: Path
    policy: str | None
    roots: list[str]
    symlinks: str | None
    model: ModelFlags


def serve(asked: Asked) -> int:
    """Answer until the input ends, SIGTERM or Ctrl-C; the exit code.

    What runs then is cancelled, unless it has begun to write. Before it answers, signals end it at once.
    """
    os.umask(_PRIVATE_UMASK)
    configure_logging()
    try:
        with end_on_interrupt(), _set_aside() as (incoming, outgoing), Cancel() as stop:
            settings = read_settings(
                os.environ,
                policy=asked.policy,
                roots=parse_roots(asked.roots),
                symlinks=asked.symlinks,
                **asked.model,
            )
            with _session(settings, asked.workspace, _Output(outgoing, stop), stop) as session:
                _converse(session, incoming, stop)
    except MunimentError as error:
        return print_failure(error, as_json=False, what="not started")
    return 0


@contextmanager
def _set_aside() -> Iterator[tuple[int, int]]:
    """Standard input and output for this module alone, as long as the block runs."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    try:
        yield incoming, outgoing
    finally:
        with output():  # What was printed and is still buffered goes where it belongs.
            pass
        os.dup2(outgoing, 1)
        os.close(incoming)
        os.close(outgoing)


@contextmanager
def _set_on_signals(stop: Cancel) -> Iterator[None]:
    """SIGTERM and Ctrl-C set a token, for the time of the block."""
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Output:
    """Where answers go. Threads may share it; once the host is gone it takes them and does nothing."""

    def __init__(self, fd: int, stop: Cancel) -> None:
        self._fd, self._stop = fd, stop
        self._lock = threading.Lock()
        self._is_broken = False

    def __call__(self, line: bytes) -> None:
        with self._lock:
            if self._is_broken:
                return
            try:
                self._write(line)
            except (OSError, DeadlineExceeded) as error:
                self._is_broken = True
                self._stop.set()
                events.emit("host_gone", problem=type(error).__name__)

    def _write(self, line: bytes) -> None:
        patience = Patience(time.monotonic() + SEND_SECONDS)
        left = memoryview(line)
        while left:
            patience.wait(self._fd, select.POLLOUT)
            left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]  # So much a pipe takes at once.


@contextmanager
def _session(settings: Settings, directory: Path, send: _Output, stop: Cancel) -> Iterator[HostSession]:
    with open_model(settings, os.environ) as model, ExitStack() as opened:
        state = opened.enter_context(State(settings.state))
        forget_key()
        workspace = opened.enter_context(closing(Workspace(directory, settings, state, in_process=False)))
        if (error := workspace.problem()) is not None:
            text = on_one_line(f"{workspace.path} takes no tasks yet: {error}")
            print(f"note: {text} [{error.code}]", file=sys.stderr)
        with _set_on_signals(stop):
            session = HostSession(workspace, Work(workspace, model, Metrics()), send)
            try:
                yield session
            finally:
                if not session.close():
                    opened.pop_all()  # What a look still uses ends with the process.


def _converse(session: HostSession, incoming: int, stop: Cancel) -> None:
    lines = Lines()
    while True:
        try:
            Patience(session.deadline, stop).wait(incoming, select.POLLIN)
        except DeadlineExceeded:
            session.expire()
            continue
        except Cancelled:
            return
        data = os.read(incoming, READ_BYTES)
        if not data:
            return
        for line in lines.feed(data):
            session.receive(line)
