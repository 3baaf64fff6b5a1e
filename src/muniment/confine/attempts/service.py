"""A worker's end of a trial: one attempt, and the answer, if the worker lives to give one.

    worker → broker  hello{missing}
    broker → worker  attempt{name, targets}    → outcome{outcome, why}

Everything that an act needs is imported before the fence. `trial.py` is the other end.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import Any

from muniment.confine.attempts.attempt import DONE, UNTRIED, Attempt, Targets, Untried
from muniment.confine.attempts.memory import initial_stack
from muniment.confine.attempts.table import ATTEMPTS
from muniment.confine.fence import Missing
from muniment.confine.wire import Channel

ROOT = "root"
"""The scope of the one root that a worker of a trial gets."""


def warm() -> None:
    """Look up what no worker may look up any more."""
    initial_stack()


def serve(sock: socket.socket, roots: Mapping[str, int], missing: Missing) -> None:
    """Say what is missing, then make the attempt that the broker names.

    Raises:
        EOFError: it names none.
    """
    channel = Channel(sock)
    channel.send({"t": "hello", "missing": missing})
    header, _ = channel.receive(0)
    described: Any = header["targets"]
    attempt = ATTEMPTS[str(header["name"])]
    outcome, why = outcome_of(attempt, Targets(roots[ROOT], sock.fileno(), **described))
    channel.send({"t": "outcome", "outcome": outcome, "why": why})


def outcome_of(attempt: Attempt, targets: Targets) -> tuple[str, str]:
    """Make an attempt: what came of it, and for one that could not be made why."""
    try:
        attempt.act(targets)
    except Untried as reason:
        return UNTRIED, str(reason)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, f"errno {error.errno}"), ""
    except (ImportError, MemoryError) as error:
        return type(error).__name__, ""
    return DONE, ""
