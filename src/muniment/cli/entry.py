"""Start the `muniment` program.

Commands that run an agent need a worker, and a worker needs the zygote. Its start takes longer than all
imports of this program, so it is started before the large modules are imported.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_NO_RUN = frozenset({"--help", "--in-process"})
_USAGE = 2
_ALLOCATIONS = 50_000
"""Number of new objects between two garbage collections. The default, 700, takes 15 ms more in each command,
because the imports create many objects that all stay.
"""


def main() -> None:
    """Run the program and exit.

    Exit codes: 0 success, 1 rejected or failed, 2 wrong usage (but 0 if the program runs as a hook), 130
    cancelled.
    """
    gc.set_threshold(_ALLOCATIONS)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # If a terminal cannot print a character, the character is escaped; the command does not fail.
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:]
    if arguments == ["recall", "--hook"] and sys.platform == "linux":
        _answer_hook_by_daemon()
    from muniment.cli.table import COMPLETE_VARIABLE, TABLE
    from muniment.errors import PlatformUnsupported

    if COMPLETE_VARIABLE in os.environ:
        from muniment.cli.completion import complete_word

        complete_word(os.environ[COMPLETE_VARIABLE])
    row = TABLE.get(arguments[0]) if arguments else None
    try:
        if row is not None and row.has_agent and not _NO_RUN & set(arguments):
            _start_zygote()
        from muniment.cli.app import app

        with _export_spans() if row is not None and row.is_traced else nullcontext():
            app()
    except SystemExit as end:
        if end.code != _USAGE or arguments[:1] != ["recall"] or "--hook" not in arguments:
            raise
        print("{}")  # If a hook exits with 2, the coding tool blocks the prompt of its user.
        sys.exit(0)
    except KeyboardInterrupt:
        print("cancelled: nothing was written", file=sys.stderr)
        sys.exit(130)
    except PlatformUnsupported as error:
        from muniment.cli.terminal import print_failure

        sys.exit(print_failure(error, as_json="--json" in arguments, prefix="not started"))


def _answer_hook_by_daemon() -> None:
    """Let a daemon answer the event of a coding tool, and exit; return if no daemon can.

    This comes before all other imports, because it needs only a few modules.
    """
    from muniment.cli.hook_client import answer_by_daemon, read_event

    start = time.monotonic()
    event, is_complete = read_event()
    if is_complete and answer_by_daemon(event):
        sys.exit(0)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_ReplayedInput(event, time.monotonic() - start)))


class _ReplayedInput(io.RawIOBase):
    """Standard input, beginning with bytes that were already read from it.

    Attributes:
        seconds: the time that was already spent on the event.
    """

    def __init__(self, data: bytes, seconds: float) -> None:
        self._data, self.seconds = data, seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Copy the next bytes into a buffer, and return their number; 0 at the end."""
        block = self._data[: len(buffer)] or os.read(0, len(buffer))
        self._data = self._data[len(block) :]
        buffer[: len(block)] = block
        return len(block)


def _export_spans() -> AbstractContextManager[None]:
    """Return a context that exports the trace spans of a command, if `OTEL_TRACES_EXPORTER` is set."""
    if "OTEL_TRACES_EXPORTER" not in os.environ:
        return nullcontext()
    from muniment.cli.traces import export_spans

    return export_spans()


def _open_missing_streams() -> None:
    """Open /dev/null for each standard stream that is closed, because some supervisors close them.

    Otherwise the next opened descriptor, such as a root or a socket, would become standard output.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # The lowest free number, which is `fd`.
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _start_zygote() -> None:
    """Start the zygote early, on Linux only. If this fails, the command reports the failure later."""
    if sys.platform != "linux":
        return
    from muniment.errors import MunimentError

    try:
        from muniment.sandbox.fence.pool import get_shared_zygote

        get_shared_zygote().start()
    except MunimentError:
        return
