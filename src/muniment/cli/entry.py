"""Where the `muniment` program starts.

Commands that run an agent need a worker; its zygote takes longer to start than everything else here,
so it is started before anything heavy is imported.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import AbstractContextManager, nullcontext

from muniment.cli.table import TABLE
from muniment.errors import MunimentError, PlatformUnsupported

_NO_RUN = frozenset({"--help", "--in-process"})
_USAGE = 2


def main() -> None:
    """Run the program and exit: 0 done, 1 refused or failed, 2 usage (not as a hook), 130 cancelled."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets it escaped; no command fails for that.
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:]
    row = TABLE.get(arguments[0]) if arguments else None
    try:
        if row is not None and row.has_agent and not _NO_RUN & set(arguments):
            _start_zygote()
        from muniment.cli.app import app

        with _traced() if row is not None and row.is_traced else nullcontext():
            app()
    except SystemExit as end:
        if end.code != _USAGE or arguments[:1] != ["recall"] or "--hook" not in arguments:
            raise
        print("{}")  # A coding tool holds its user's prompt back where a hook ends with 2.
        sys.exit(0)
    except KeyboardInterrupt:
        print("cancelled: nothing was written", file=sys.stderr)
        sys.exit(130)
    except PlatformUnsupported as error:
        from muniment.cli.terminal import print_failure

        sys.exit(print_failure(error, as_json="--json" in arguments, what="not started"))


def _traced() -> AbstractContextManager[None]:
    """What exports the spans of a command that carries out tasks, where somebody asks for that."""
    if "OTEL_TRACES_EXPORTER" not in os.environ:
        return nullcontext()
    from muniment.cli.traces import exported

    return exported()


def _open_missing_streams() -> None:
    """Put /dev/null where a standard stream is closed, as it is under some supervisors.

    Otherwise the next descriptor that is opened, a root or a socket, would become standard output.
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
    """Start it early; if that fails, the command itself will say so. Linux alone has one."""
    if sys.platform != "linux":
        return
    try:
        from muniment.sandbox.fence.pool import shared_zygote

        shared_zygote().start()
    except MunimentError:
        return
