"""Runs cases against a weak tool, in a process that may starve or crash instead of the tests.

python -m kit.corpus.weak_driver TOOL DIRECTORY ID…
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

from kit.corpus import naive
from muniment.testing.corpus.driver import drive

MEMORY_BYTES = 1 << 31
"""A weak tool reads whatever it is told to, however large."""

PATIENCE_SECONDS = 1.5
"""And it waits at a FIFO for as long as it may."""


class HangsError(RuntimeError):
    pass


def hang(_signal, _frame):
    raise HangsError


def opens(stage, case):
    has_fifo = any("fifo" in {operation["op"], operation.get("kind")} for operation in case["setup"])
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS if has_fifo else 0)
    return getattr(naive, sys.argv[1])(stage, case)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, hang)
    drive(opens, Path(sys.argv[2]), sys.argv[3:])
